"""The plain explorer: a breadth-first search of every reachable state within bounds, in Python. It is the definition.

**How a state is stored.** No action reads a finished prompt. A state is therefore split into two parts:

- the *situation*: the server with its unfinished prompts, and how much of the bounds is spent;
- the *ledger*: the finished prompts.

The next steps of a server are computed and checked once, however much of the bounds is spent. The next steps of a
situation are computed once, however many ledgers it occurs with. Situations are numbered, each finished prompt has its
own bits in the ledger, and a state is a single integer

    ledger << SITUATION_BITS | situation number

so that a step adds a constant to it. There is no other optimization: every state is stored exactly, with its
predecessor, and a test compares the counts with a naive search over whole states.
"""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from ..actions import Reach
from ..family_properties import properties_for
from ..lifecycle import IllegalTrigger, Outcome, Row, State
from ..properties import BOUND_NAMES, Bounds, Property, ServerStep, SessionStep, goals
from ..protocol import Behaviour, Move
from ..server import Change, Server, changes
from ..session import AnySession, NoPrompt, Prompt
from ..trace import Trace, TraceStep
from .estimate import deepest, estimate
from .result import Progress, Result, Watch

SITUATION_BITS = 24
SITUATION_MASK = (1 << SITUATION_BITS) - 1
INDEX = {name: i for i, name in enumerate(BOUND_NAMES)}
PAUSE_MASK = 0x3FF  # a search checks its limits every 1,024 states


class Situation(NamedTuple):
    """A state without its finished prompts."""

    server: Server
    spent: tuple[int, ...]  # by BOUND_NAMES


@dataclass(slots=True)
class CachedChange:
    """One change of a server, independent of how much of the bounds is spent."""

    change: Change
    ledger: int  # what it adds to the ledger
    server: Server  # the server after it, without finished prompts
    judged: bool = False


class Successors(NamedTuple):
    """The successors of a situation."""

    differences: tuple[int, ...]  # what each change adds to a state's integer
    quiet: bool  # quiescent: none of the changes is the system's own
    by_itself: tuple[int, ...]  # the situations reached by the system's own steps in which no prompt ends


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disable garbage collection. A search creates no reference cycles, and the collector would scan all its objects
    again and again. After a large search, freezing and unfreezing moves them into the oldest generation, so that they
    are not scanned right afterwards either. A small one is not worth it: `get_freeze_count` visits all that is frozen.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.get_count()[0] > 100_000 and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        if collecting:
            gc.enable()


def endless(onward: Mapping[int, Sequence[int]]) -> set[int]:
    """The nodes with an infinite path: what is left after repeatedly removing nodes without successors."""
    ways = {n: len(following) for n, following in onward.items()}
    came: dict[int, list[int]] = {}
    for n, following in onward.items():
        for after in following:
            came.setdefault(after, []).append(n)
    stuck = [n for n in {*ways, *came} if not ways.get(n)]
    for n in stuck:
        ways.pop(n, None)
        for before in came.get(n, ()):
            ways[before] -= 1
            if not ways[before]:
                stuck.append(before)
    return set(ways)


class Explorer:
    """One search and all its state."""

    def __init__(self, protocol: Behaviour, bounds: Bounds, properties: Sequence[Property] | None = None) -> None:
        properties = properties_for(protocol) if properties is None else properties
        if not properties:
            raise ValueError("no properties to check; pass at least one")
        possible = [a for a in protocol.actions if a.bound is None or getattr(bounds, a.bound)]
        self.protocol = protocol.limited(tuple(possible))
        self.without_accept = protocol.limited(tuple(a for a in possible if a.bound != "prompts"))
        self.bounds, self.properties = bounds, properties
        self.on_session = [(p.id, p.on_session) for p in properties if p.on_session]
        self.on_server = [(p.id, p.on_server) for p in properties if p.on_server]
        self.deepest = deepest(protocol, bounds)
        self.limits = tuple(getattr(bounds, name) for name in BOUND_NAMES)
        self.result = Result(protocol, bounds, goals(protocol, bounds))
        self.goals_of = {row: [f"row {row.name}", *([f"outcome {row.outcome.value}"] if row.outcome else [])]
                         for row in protocol.rows}
        self.wanted = {goal.id for goal in self.result.goals}
        self.parent: dict[int, int] = {}

        self.situations: list[Situation] = []
        self.numbers: dict[Situation, int] = {}
        self.onward: list[Successors | None] = []
        self.first_state: dict[int, int] = {}  # by situation: the first state that has it
        self.moves: dict[tuple[AnySession, int], tuple[Move, ...]] = {}
        self.shared: dict[Any, Any] = {}
        self.ways_of: dict[Server, list[CachedChange]] = {}

        ways_to_end = bounds.sessions * 2 * len(Outcome) * len(Reach) * 3
        self.ending_bits = ways_to_end.bit_length()
        self.endings: dict[tuple[int, Prompt], int] = {}  # a finished prompt and its session -> its ledger bits
        self.ended: list[dict[int, tuple[int, Prompt]]] = [{} for _ in range(bounds.prompts + 1)]  # inverse, by seq
        self.restless: set[str] = set()  # liveness properties that some finished prompt violates

    # --- the search

    @gc_disabled()
    def search(self, max_states: int | None = None, watch: Watch | None = None) -> Result:
        result, parent, onward = self.result, self.parent, self.onward
        frontier = [self.root()]
        try:
            while frontier and not result.stopped:
                result.levels.append(len(frontier))
                following: list[int] = []
                for count, state in enumerate(frontier):
                    if not count & PAUSE_MASK:
                        result.stopped = self.pause(len(frontier) - count + len(following), max_states, watch)
                        if result.stopped:
                            break
                    differences, quiet, _ = onward[state & SITUATION_MASK] or self.expand(state)
                    result.edges += len(differences)
                    for difference in differences:
                        if (after := state + difference) not in parent:
                            parent[after] = state
                            following.append(after)
                    if quiet and self.restless:
                        self.judge_rest(state, [p for p in self.decode(state).prompts if p.state is State.DONE])
                frontier = following
            if not result.stopped:
                self.judge_progress()
        except KeyboardInterrupt:
            result.stopped, result.interrupted = "interrupted", True
        except (OverflowError, MemoryError) as error:
            result.stopped = str(error) or "out of memory"
        except (IllegalTrigger, NoPrompt) as error:
            result.stopped, result.broken = f"an action does something that its rows do not allow: {error}", True
        result.states = len(parent)
        return result

    def root(self) -> int:
        """The initial state."""
        start = Server(sessions=(self.protocol.start,) * self.bounds.sessions)
        root = self.number(Situation(start, (0,) * len(BOUND_NAMES)))
        self.parent[root] = root
        return root

    def pause(self, frontier: int, max_states: int | None, watch: Watch | None) -> str | None:
        if max_states is not None and len(self.parent) > max_states:
            return f"more than {max_states:,} states"
        if watch is None:
            return None
        states = len(self.parent)
        return watch(Progress(states, frontier, self.result.depth, estimate(self.result.levels, states, self.deepest)))

    def expand(self, state: int) -> Successors:
        """Compute, check and cache the next steps of the situation of `state`."""
        number = state & SITUATION_MASK
        situation = self.situations[number]
        differences: list[int] = []
        by_itself: list[int] = []
        quiet = True
        for way, spent in self.changes(situation):
            target = self.number(Situation(way.server, spent))
            differences.append((way.ledger << SITUATION_BITS) + target - number)
            if way.change.call.action.system:
                quiet = False
                if not way.ledger:
                    by_itself.append(target)
            if not way.judged:
                way.judged = True
                self.judge(state, situation, way.change)
        found = self.onward[number] = Successors(tuple(differences), quiet, tuple(by_itself))
        self.first_state[number] = state
        if quiet:
            self.judge_rest(state, situation.server.owed)
        return found

    def changes(self, situation: Situation) -> Iterator[tuple[CachedChange, tuple[int, ...]]]:
        """The changes that the bounds still allow, each with how much of the bounds is spent after it."""
        server, spent = situation
        ways = self.ways_of.get(server)
        if ways is None:
            ways = self.ways_of[server] = [CachedChange(change, *self.split(change)) for change in changes(
                self.protocol, server, self.judged_moves)]
        for way in ways:
            if (bound := way.change.call.action.bound) is None:
                yield way, spent
            elif spent[i := INDEX[bound]] < self.limits[i]:
                yield way, (*spent[:i], spent[i] + 1, *spent[i + 1:])

    def judged_moves(self, session: AnySession, seq: int) -> tuple[Move, ...]:
        moves = self.moves.get((session, seq))
        if moves is None:
            protocol = self.protocol if seq < self.bounds.prompts else self.without_accept
            moves = self.moves[session, seq] = tuple(
                self.judge_move(session, move) for move in protocol.moves(session, seq))
        return moves

    def judge_move(self, before: AnySession, move: Move) -> Move:
        """The move with the properties that it violates. Equal values are shared: they make up most of the memory."""
        step = SessionStep.of(before, move)
        share = self.shared.setdefault
        return move._replace(
            after=share(move.after, move.after), live=share(move.live, move.live),
            effects=share(move.effects, move.effects), rows=share(move.rows, move.rows),
            broken=tuple(id for id, holds in self.on_session if not holds(step)))

    # --- states as integers

    def situation(self, state: int) -> Situation:
        return self.situations[state & SITUATION_MASK]

    def number(self, situation: Situation) -> int:
        number = self.numbers.setdefault(situation, len(self.situations))
        if number == len(self.situations):
            if number > SITUATION_MASK:
                raise OverflowError(f"more than {SITUATION_MASK:,} situations")
            self.situations.append(situation)
            self.onward.append(None)
        return number

    def split(self, change: Change) -> tuple[int, Server]:
        """What the change adds to the ledger, and the server after it."""
        ledger = 0
        sessions = list(change.after.sessions)
        for i, move in change.moves:
            sessions[i] = move.live
            for prompt in move.ended:
                ledger += self.ending(i, prompt) << self.ending_bits * (prompt.seq - 1)
        return ledger, change.after._replace(sessions=tuple(sessions))

    def ending(self, session: int, prompt: Prompt) -> int:
        """The ledger bits that represent this finished prompt."""
        bits = self.endings.get((session, prompt))
        if bits is None:
            known = self.ended[prompt.seq]
            bits = self.endings[session, prompt] = len(known) + 1
            if bits >> self.ending_bits:
                raise OverflowError(f"prompts end in more than {len(known)} different ways")
            known[bits] = (session, prompt)
            self.restless.update(p.id for p in self.properties if p.at_rest and not p.at_rest(prompt))
        return bits

    def finished_prompts(self, state: int) -> Iterator[tuple[int, Prompt]]:
        """The prompts in the ledger, each with its session."""
        ledger = state >> SITUATION_BITS
        for seq in range(1, self.bounds.prompts + 1):
            if bits := ledger >> self.ending_bits * (seq - 1) & (1 << self.ending_bits) - 1:
                yield self.ended[seq][bits]

    def decode(self, state: int) -> Server:
        """The whole state, finished prompts included."""
        server = self.situations[state & SITUATION_MASK].server
        prompts = [list(s.prompts) for s in server.sessions]
        for session, prompt in self.finished_prompts(state):
            prompts[session].append(prompt)
        return server._replace(sessions=tuple(
            s.with_prompts(ps) for s, ps in zip(server.sessions, prompts)))

    # --- checking properties

    def judge(self, state: int, situation: Situation, change: Change) -> None:
        broken = [b for _, move in change.moves for b in move.broken]
        step = ServerStep.of(situation.server, change)
        broken += [id for id, holds in self.on_server if not holds(step)]
        for id in broken:
            if id not in self.result.violations:
                self.result.violations[id] = self.trace(state, change)
        if self.wanted:
            for goal in self.wanted.intersection(self.goals_reached(change.call.name, change.rows)):
                self.result.met[goal] = self.trace(state, change)
                self.wanted.remove(goal)

    def goals_reached(self, action: str, rows: tuple[Row, ...]) -> list[str]:
        """The goals that an action reaches when it fires these rows."""
        return [f"action {action}", *(goal for row in rows for goal in self.goals_of[row])]

    def judge_rest(self, state: int, prompts: list[Prompt]) -> None:
        for p in self.properties:
            if p.at_rest and p.id not in self.result.violations and not all(map(p.at_rest, prompts)):
                self.result.violations[p.id] = self.trace(state)

    def judge_progress(self) -> None:
        """Check that the system's own steps cannot form a cycle. On a cycle no prompt ends and no bound is spent, so it
        is enough to look for cycles among situations."""
        if not any(p.id == "progress" for p in self.properties):
            return
        left = {n: onward.by_itself for n, onward in enumerate(self.onward) if onward and onward.by_itself}
        if endless(left):
            for state in self.first_state.values():  # in order of depth, so that the path to the cycle is shortest
                if self.judge_circle(state):
                    return

    def judge_circle(self, state: int) -> bool:
        """Report the shortest cycle through the situation of `state`, if there is one."""
        start = state & SITUATION_MASK
        came: dict[int, int] = {}
        todo = [start]
        for number in todo:
            onward = self.onward[number] or self.expand(state - start + number)
            for after in onward.by_itself:
                if after not in came:
                    came[after] = number
                    todo.append(after)
        if start not in came:
            return False
        circle = [start, came[start]]
        while circle[-1] != start:
            circle.append(came[circle[-1]])
        self.result.violations["progress"] = self.lasso(state, circle[::-1])
        return True

    # --- traces

    def trace(self, state: int, last: Change | None = None) -> Trace:
        """A shortest path to `state`, followed by `last`."""
        states = [state]
        while self.parent[states[-1]] != states[-1]:
            states.append(self.parent[states[-1]])
        states.reverse()
        steps = [self.step(a, b) for a, b in pairwise(states)]
        if last is not None:
            steps.append(self.complete_step(state, last))
        return Trace(self.decode(states[0]), tuple(steps))

    def step(self, state: int, after: int) -> TraceStep:
        """The step from one state to the other."""
        for change, following in self.following(state):
            if following == after:
                return self.complete_step(state, change)
        raise LookupError("no step leads from one state to the other")

    def following(self, state: int) -> Iterator[tuple[Change, int]]:
        """Every change of a state, with the resulting state."""
        number = state & SITUATION_MASK
        for way, spent in self.changes(self.situations[number]):
            target = self.number(Situation(way.server, spent))
            yield way.change, state + (way.ledger << SITUATION_BITS) + target - number

    def complete_step(self, state: int, change: Change) -> TraceStep:
        """The change as a step of a trace, with the finished prompts restored."""
        before = self.decode(state)
        sessions = tuple(
            after.with_prompts({p.seq: p for p in (*whole.prompts, *after.prompts)}.values())
            for whole, after in zip(before.sessions, change.after.sessions))
        return TraceStep(change.call, change.effects, change.after._replace(sessions=sessions))

    def lasso(self, state: int, circle: list[int]) -> Trace:
        """A shortest path to the state, followed by one round of the cycle of situations."""
        way = self.trace(state)
        steps = list(way.steps)
        for here, there in pairwise(circle):
            after = state + there - here
            steps.append(self.step(state, after))
            state = after
        return Trace(way.start, tuple(steps), loop=len(way))
