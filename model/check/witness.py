"""From a story to a trace: the shortest interleaving in which the key steps happen in order and a property breaks.

A story is a list of key steps. Clients, faults and turns that want to go on do exactly what the story says, in its
order, and turns end well unless it says otherwise; what the system does by itself is free, and is found by the
search. A key step is one of

    accept(A)  accept(B, run id)  accept(C, in process)  cancel  clear_queue  close     what a client calls
    A active   B queued   C canceled_on_entry   A done   B folded   A error             what becomes of a prompt
    A published                                                                         its terminal event
    leave(A)   hand_off(A)   summarize(A)                                               an action, as traces print it
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from ..lifecycle import Outcome
from ..properties import Property, ServerStep, SessionStep
from ..server import Change, Server, changes
from ..session import Behaviour, End, label
from ..trace import Trace, TraceStep


def observed(before: Server, change: Change) -> set[str]:
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


class Way(NamedTuple):
    """One change of a state, and what the search wants to know of it."""

    change: Change
    after: int  # the number of the state it leads to
    seen: set[str]
    breaks: bool
    by_itself: bool  # the system does it without being told, and a turn that is not told otherwise ends well


class Search:
    """States by number, and the ways on from each, worked out once."""

    def __init__(self, behaviour: Behaviour, broken: Property) -> None:
        self.behaviour, self.broken = behaviour, broken
        self.servers = [Server(sessions=(behaviour.start,))]
        self.numbers = {self.servers[0]: 0}
        self.ways: dict[int, list[Way]] = {}

    def on_from(self, number: int) -> list[Way]:
        if number not in self.ways:
            server = self.servers[number]
            self.ways[number] = [self.way(server, change) for change in changes(self.behaviour, server)]
        return self.ways[number]

    def way(self, server: Server, change: Change) -> Way:
        after = self.numbers.setdefault(change.after, len(self.servers))
        if after == len(self.servers):
            self.servers.append(change.after)
        call = change.call
        badly = call.name == "fail" or call.variant in (Outcome.ERROR, Outcome.CANCELED)
        return Way(change, after, observed(server, change), _breaks(self.broken, server, change),
                   call.action.system and not badly)

    def left_behind(self, number: int, victim: int | None) -> bool:
        """Whether the system has come to rest in this state with a liveness property broken."""
        at_rest = self.broken.at_rest
        return (at_rest is not None and not any(way.change.call.action.system for way in self.on_from(number))
                and any(not at_rest(p) for p in self.servers[number].prompts if victim in (None, p.seq)))


class Point(NamedTuple):
    """Where a search is: the state, how many key steps have happened, and whether the property has been broken."""

    state: int
    told: int
    broken: bool


def find(
    behaviour: Behaviour, broken: Property, story: Sequence[str], *, victim: int | None = None,
    max_states: int = 200_000,
) -> Trace | None:
    """A shortest trace that tells `story` and breaks the property on the way, or None if there is none. If `victim` is
    given, a liveness property must be broken by the prompt of that seq.

    Best first: one step can be at most `MOST_AT_ONCE` key steps, so a state that lacks n of them is at least that
    fraction of n away from the end, and the first trace that is complete is a shortest one.
    """
    search = Search(behaviour, broken)
    # A call that takes several steps is not interrupted unless the story names its later step.
    later = {a.name for a in behaviour.actions if a.name.endswith("…")} - set(story)
    start = Point(0, 0, False)
    depths = {start: 0}
    came: dict[Point, tuple[Point, Change]] = {}
    order = count()
    todo = [(len(story) / MOST_AT_ONCE, next(order), start)]
    settled: set[Point] = set()
    while todo:
        _, _, point = heappop(todo)
        if point in settled:
            continue
        settled.add(point)
        if len(search.servers) > max_states:
            raise RuntimeError(f"the search for a trace of {behaviour.name} gave up after {max_states:,} states")
        if point.told == len(story) and (point.broken or search.left_behind(point.state, victim)):
            return _trace(search, came, point)
        ways = search.on_from(point.state)
        ways = [way for way in ways if way.change.call.name in later] or ways
        for way in ways:
            told = _told(way, story, point.told)
            if told == point.told and not way.by_itself:
                continue
            after, depth = Point(way.after, told, point.broken or way.breaks), depths[point] + 1
            if depth < depths.get(after, depth + 1):
                depths[after] = depth
                came[after] = (point, way.change)
                heappush(todo, (depth + (len(story) - told) / MOST_AT_ONCE, next(order), after))
    return None


MOST_AT_ONCE = 3


def _told(way: Way, story: Sequence[str], told: int) -> int:
    """How much of the story is told after this change. A call from outside happens only if the story calls it."""
    call = way.change.call
    if call.action.bound is not None and not (told < len(story) and story[told] in (str(call), call.name)):
        return told
    end = told
    while end < len(story) and end - told < MOST_AT_ONCE and story[end] in way.seen:
        end += 1
    return end


def _breaks(broken: Property, server: Server, change: Change) -> bool:
    if broken.on_server:
        return not broken.on_server(ServerStep.of(server, change))
    check = broken.on_session
    return check is not None and not all(
        check(SessionStep.of(server.sessions[i], move)) for i, move in change.moves)


def _trace(search: Search, came: dict[Point, tuple[Point, Change]], point: Point) -> Trace:
    path = []
    while point in came:
        point, change = came[point]
        path.append(change)
    return Trace(search.servers[0], tuple(TraceStep(c.call, c.effects, c.after) for c in reversed(path)))
