"""Comparison of two protocols, or of two traces, by their observable behaviour.

An observer sees which calls are possible, each prompt's state and outcome, and the effects, but not a protocol's
internal state. Two protocols are explored in lockstep: both take the same calls as long as their observable behaviour
is the same. The first difference found for an action therefore follows a shortest history.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..actions import Variant
from ..effects import Effect
from ..lifecycle import Outcome, State
from ..properties import Bounds
from ..protocol import Behaviour
from ..server import Change, Server, changes
from ..trace import Trace, TraceStep, call_text
from .graph import Search


class StepView(NamedTuple):
    """The observable part of a step."""

    prompts: tuple[tuple[int, bool, State, Outcome | None], ...]
    effects: tuple[Effect, ...]


def view_step(step: Change | TraceStep) -> StepView:
    return StepView(tuple((p.seq, p.run_id, p.state, p.outcome) for p in step.after.prompts), step.effects)


@dataclass(frozen=True)
class Difference:
    """A call that behaves differently in two protocols after the same history. A step is None where the call is not
    possible."""

    call: str
    histories: tuple[Trace, Trace]
    steps: tuple[TraceStep | None, TraceStep | None]

    @property
    def number(self) -> int:
        """The number of the step that differs."""
        return len(self.histories[0]) + 1


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two protocols."""

    only: tuple[list[str], list[str]]  # actions that only one of them has
    kinds: tuple[list[Variant], list[Variant]]  # kinds of prompts that only one of them accepts
    differences: dict[str, Difference]  # by shared action: the first difference
    looked: int  # pairs of states that were compared
    complete: bool  # whether these were all pairs within the bounds

    @property
    def first(self) -> Difference | None:
        return min(self.differences.values(), key=lambda d: d.number, default=None)


BOUNDS = Bounds(2, cancels=1, clears=1, requeues=1)


def compare(a: Behaviour, b: Behaviour, bounds: Bounds = BOUNDS, most: int = 4000) -> Comparison:
    """Explore both in lockstep within bounds, until every shared action has shown a difference or `most` pairs of
    states have been compared."""
    names = [[action.name for action in protocol.actions] for protocol in (a, b)]
    shared = [name for name in names[0] if name in names[1]]
    kinds = [_kinds(protocol) for protocol in (a, b)]
    differences: dict[str, Difference] = {}
    start = (Server(sessions=(a.start,)), Server(sessions=(b.start,)))

    def onward(pair: tuple[Server, Server]) -> Iterator[tuple[tuple[TraceStep, TraceStep], tuple[Server, Server]]]:
        """The steps that look the same in both protocols. All others are recorded as differences."""
        path = search.path(pair)
        histories = Trace(start[0], tuple(here for here, _ in path)), Trace(start[1], tuple(there for _, there in path))
        answers = [_answers(protocol, server, bounds, history)
                   for protocol, server, history in zip((a, b), pair, histories)]
        for call in dict.fromkeys([*answers[0], *answers[1]]):
            here, there = (answer.get(call, {}) for answer in answers)
            some = next(iter((here or there).values()))
            if some.call.name not in shared or (some.call.name == "accept" and some.call.variant in _only(kinds)):
                continue
            if set(here) != set(there):
                differences.setdefault(some.call.name, Difference(
                    call, histories, (_pick_own(here, there), _pick_own(there, here))))
            for what in here:
                if what in there:
                    yield (here[what], there[what]), (here[what].after, there[what].after)

    search = Search([start], onward)
    looked, complete = 0, False
    for _ in search:
        if looked == most or len(differences) == len(shared):
            break
        looked += 1
    else:
        complete = True
    return Comparison(
        ([n for n in names[0] if n not in names[1]], [n for n in names[1] if n not in names[0]]),
        ([k for k in kinds[0] if k not in kinds[1]], [k for k in kinds[1] if k not in kinds[0]]),
        {name: differences[name] for name in shared if name in differences}, looked, complete)


def _kinds(protocol: Behaviour) -> list[Variant]:
    """The kinds of prompt that a protocol accepts."""
    first = changes(protocol, Server(sessions=(protocol.start,)))
    return [change.call.variant for change in first if change.call.name == "accept"]


def _only(kinds: Sequence[list[Variant]]) -> set[Variant]:
    return set(kinds[0]) ^ set(kinds[1])


def _answers(
    protocol: Behaviour, server: Server, bounds: Bounds, history: Trace,
) -> dict[str, dict[StepView, TraceStep]]:
    """The possible results of each call, usually one."""
    found: dict[str, dict[StepView, TraceStep]] = {}
    for change in changes(protocol, server):
        bound = change.call.action.bound
        if bound is None or sum(s.call.action.bound == bound for s in history.steps) < getattr(bounds, bound):
            step = TraceStep.of(change)
            found.setdefault(call_text(change.call, 1), {}).setdefault(view_step(step), step)
    return found


def _pick_own(mine: dict[StepView, TraceStep], other: dict[StepView, TraceStep]) -> TraceStep | None:
    """A result that only `mine` has or, failing that, any result of `mine`."""
    return next((step for what, step in mine.items() if what not in other), next(iter(mine.values()), None))


# --- traces

class Pair(NamedTuple):
    """The steps of two traces at the same position; None where one trace has ended."""

    number: int
    steps: tuple[TraceStep | None, TraceStep | None]

    @property
    def same(self) -> bool:
        here, there = self.steps
        return (here is not None and there is not None and str(here.call) == str(there.call)
                and view_step(here) == view_step(there))


def pair_steps(a: Trace, b: Trace) -> Iterator[Pair]:
    for i in range(max(len(a), len(b))):
        yield Pair(i + 1, (a.steps[i] if i < len(a) else None, b.steps[i] if i < len(b) else None))


def first_difference(a: Trace, b: Trace) -> Pair | None:
    """The first step in which two traces differ."""
    return next((pair for pair in pair_steps(a, b) if not pair.same), None)
