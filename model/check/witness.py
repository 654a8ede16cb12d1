"""Witnesses: the shortest trace in which key steps happen in order and a property breaks.

Clients, faults and turns that want to go on do exactly what the key steps say, in their order. Turns end well unless a
key step says otherwise. What the system does by itself is free: the search finds it. A key step is one of

    accept(A)  accept(B, run id)  accept(C, in process)  cancel  clear_queue  close     what a client calls
    A active   B queued   C canceled_on_entry   A done   B folded   A error             what becomes of a prompt
    A published                                                                         its terminal event
    leave(A)   hand_off(A)   summarize(A)                                               an action, as traces print it
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..effects import End
from ..lifecycle import Outcome
from ..properties import Property
from ..protocol import Behaviour
from ..server import Change, Server
from ..session import label
from ..trace import Trace, TraceStep
from .graph import Search, StateGraph
from .judging import broken_by


def observe_change(before: Server, change: Change) -> set[str]:
    """Everything that a key step may say of this change."""
    seen = {str(change.call), change.call.name}
    seen.update(f"{label(e.seq)} published" for e in change.effects if isinstance(e, End))
    was = {p.seq: p for p in before.prompts}
    for p in change.after.prompts:
        old = was.get(p.seq)
        if old is None or (old.state, old.outcome) != (p.state, p.outcome):
            seen.add(f"{label(p.seq)} {p.state.value}")
            if p.outcome:
                seen.add(f"{label(p.seq)} {p.outcome.value}")
    return seen


class Judged(NamedTuple):
    """One change of a state, and what the search wants to know of it."""

    change: Change
    after: int  # the number of the state it leads to
    seen: set[str]
    breaks: bool
    by_itself: bool  # the system does it without being told, and a turn that is not told otherwise ends well


class JudgedGraph:
    """The states of a behaviour, and the ways on from each, judged once."""

    def __init__(self, behaviour: Behaviour, broken: Property) -> None:
        self.graph, self.broken = StateGraph(behaviour, whole=True), broken
        self._judged: dict[int, list[Judged]] = {}

    def ways(self, number: int) -> list[Judged]:
        if number not in self._judged:
            server = self.graph.states[number]
            self._judged[number] = [
                Judged(change, after, observe_change(server, change), bool(broken_by([self.broken], server, change)),
                       change.call.action.system and not _ends_badly(change))
                for change, after in self.graph.ways(number)]
        return self._judged[number]

    def left_behind(self, number: int, victim: int | None) -> bool:
        """Whether the system has come to rest in this state with a liveness property broken."""
        at_rest = self.broken.at_rest
        return (at_rest is not None and not any(way.change.call.action.system for way in self.ways(number))
                and any(not at_rest(p) for p in self.graph.states[number].owed if victim in (None, p.seq)))


def _ends_badly(change: Change) -> bool:
    return change.call.name == "fail" or change.call.variant in (Outcome.ERROR, Outcome.CANCELED)


class Point(NamedTuple):
    """Where a search is: the state, how many key steps have happened, and whether the property has been broken."""

    state: int
    taken: int
    broken: bool


def find_witness(
    behaviour: Behaviour, broken: Property, key_steps: Sequence[str], *, victim: int | None = None,
    max_states: int = 200_000,
) -> Trace | None:
    """A shortest trace that takes the key steps and breaks the property on the way, or None if there is none.

    `victim`: the seq of the prompt that must break a liveness property, if it matters which.

    Best first: one step can be at most `MOST_AT_ONCE` key steps, so a state that lacks n of them is at least that
    fraction of n away from the end, and the first trace that is complete is a shortest one.
    """
    graph = JudgedGraph(behaviour, broken)
    # A call that takes several steps is not interrupted unless a key step is its later step.
    later = {a.name for a in behaviour.actions if a.name.endswith("…")} - set(key_steps)

    def onward(point: Point) -> Iterator[tuple[Change, Point]]:
        ways = graph.ways(point.state)
        for way in [way for way in ways if way.change.call.name in later] or ways:
            taken = _count_taken(way, key_steps, point.taken)
            if taken > point.taken or way.by_itself:
                yield way.change, Point(way.after, taken, point.broken or way.breaks)

    search = Search([Point(0, 0, False)], onward, left=lambda point: (len(key_steps) - point.taken) / MOST_AT_ONCE)
    for point in search:
        if len(graph.graph.states) > max_states:
            raise RuntimeError(f"the search for a trace of {behaviour.name} gave up after {max_states:,} states")
        if point.taken == len(key_steps) and (point.broken or graph.left_behind(point.state, victim)):
            return Trace(graph.graph.states[0], tuple(map(TraceStep.of, search.path(point))))
    return None


MOST_AT_ONCE = 3


def _count_taken(way: Judged, key_steps: Sequence[str], taken: int) -> int:
    """How many key steps are taken after this change. A call from outside happens only if it is the next key step."""
    call = way.change.call
    if call.action.bound is not None and not (
            taken < len(key_steps) and key_steps[taken] in (str(call), call.name)):
        return taken
    end = taken
    while end < len(key_steps) and end - taken < MOST_AT_ONCE and key_steps[end] in way.seen:
        end += 1
    return end
