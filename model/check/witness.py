"""Witnesses: the shortest trace in which given key steps happen in order and a property is violated.

Clients, faults and requeued turns do exactly what the key steps say, in that order. Turns succeed unless a key step
says otherwise. The system's own steps are unconstrained; the search finds them. A key step is one of

    accept(A)  accept(B, run id)  accept(C, in process)  cancel  clear_queue  close     a client call
    A active   B queued   C canceled_on_entry   A done   B folded   A error             a prompt's new state or outcome
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
    """All key steps that this change matches."""
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


class CheckedChange(NamedTuple):
    """One change of a state, with the facts that the search needs."""

    change: Change
    after: int  # the number of the state it leads to
    seen: set[str]  # the key steps it matches
    breaks: bool  # whether it violates the property
    by_itself: bool  # whether the system does it without a key step: its own steps, except turns that do not succeed


class CheckedGraph:
    """The states of a behaviour, with the cached and checked next steps of each."""

    def __init__(self, behaviour: Behaviour, broken: Property) -> None:
        self.graph, self.broken = StateGraph(behaviour, whole=True), broken
        self._judged: dict[int, list[CheckedChange]] = {}

    def ways(self, number: int) -> list[CheckedChange]:
        if number not in self._judged:
            server = self.graph.states[number]
            self._judged[number] = [
                CheckedChange(
                    change, after, observe_change(server, change), bool(broken_by([self.broken], server, change)),
                    change.call.action.system and not _ends_badly(change))
                for change, after in self.graph.ways(number)]
        return self._judged[number]

    def left_behind(self, number: int, victim: int | None) -> bool:
        """Whether the system is quiescent in this state and violates a liveness property."""
        at_rest = self.broken.at_rest
        return (at_rest is not None and not any(way.change.call.action.system for way in self.ways(number))
                and any(not at_rest(p) for p in self.graph.states[number].owed if victim in (None, p.seq)))


def _ends_badly(change: Change) -> bool:
    return change.call.name == "fail" or change.call.variant in (Outcome.ERROR, Outcome.CANCELED)


class Point(NamedTuple):
    """A node of the search: the state, how many key steps have happened, and whether the property was violated."""

    state: int
    taken: int
    broken: bool


def find_witness(
    behaviour: Behaviour, broken: Property, key_steps: Sequence[str], *, victim: int | None = None,
    max_states: int = 200_000,
) -> Trace | None:
    """A shortest trace that contains the key steps and violates the property, or None if there is none.

    `victim` is the seq of the prompt that must violate a liveness property, if it matters which.

    The search is best-first. One step can match at most `MOST_AT_ONCE` key steps, so a state that lacks n of them is at
    least n / `MOST_AT_ONCE` steps away from the goal. The first complete trace is therefore a shortest one.
    """
    graph = CheckedGraph(behaviour, broken)
    # No other step interrupts a call that takes several steps, unless one of its later steps is a key step.
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
            raise RuntimeError(f"the search for a trace of {behaviour.name} gave up after {max_states:,} states; "
                               "raise max_states")
        if point.taken == len(key_steps) and (point.broken or graph.left_behind(point.state, victim)):
            return Trace(graph.graph.states[0], tuple(map(TraceStep.of, search.path(point))))
    return None


MOST_AT_ONCE = 3


def _count_taken(way: CheckedChange, key_steps: Sequence[str], taken: int) -> int:
    """How many key steps have happened after this change. An external call counts only if it is the next key step."""
    call = way.change.call
    if call.action.bound is not None and not (
            taken < len(key_steps) and key_steps[taken] in (str(call), call.name)):
        return taken
    end = taken
    while end < len(key_steps) and end - taken < MOST_AT_ONCE and key_steps[end] in way.seen:
        end += 1
    return end
