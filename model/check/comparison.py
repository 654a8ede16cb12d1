"""Two protocols, or two traces, held against each other by what an observer sees.

An observer sees the calls that are possible, what becomes of each prompt, and what the world is asked for; not how a
protocol keeps its books. Two protocols are walked through side by side: both take the same calls for as long as the
same is seen of both, so the first difference that is found for an action comes after a shortest history.
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
    """What an observer sees of a step."""

    prompts: tuple[tuple[int, bool, State, Outcome | None], ...]
    effects: tuple[Effect, ...]


def view_step(step: Change | TraceStep) -> StepView:
    return StepView(tuple((p.seq, p.run_id, p.state, p.outcome) for p in step.after.prompts), step.effects)


@dataclass(frozen=True)
class Difference:
    """A call that two protocols answer differently after the same history. No steps: it is not possible there."""

    call: str
    histories: tuple[Trace, Trace]
    steps: tuple[TraceStep | None, TraceStep | None]

    @property
    def number(self) -> int:
        """The number of the step that differs."""
        return len(self.histories[0]) + 1


@dataclass(frozen=True)
class Comparison:
    """Two protocols side by side."""

    only: tuple[list[str], list[str]]  # actions that only one of them has
    kinds: tuple[list[Variant], list[Variant]]  # kinds of prompts that only one of them accepts
    differences: dict[str, Difference]  # by action that both have: the first
    looked: int  # pairs of states that were compared
    complete: bool  # whether these were all within the bounds

    @property
    def first(self) -> Difference | None:
        return min(self.differences.values(), key=lambda d: d.number, default=None)


BOUNDS = Bounds(2, cancels=1, clears=1, requeues=1)


def compare(a: Behaviour, b: Behaviour, bounds: Bounds = BOUNDS, most: int = 4000) -> Comparison:
    """Walks through both side by side, within bounds, until every action that both have has been seen to differ, or
    `most` pairs of states have been compared."""
    names = [[action.name for action in protocol.actions] for protocol in (a, b)]
    shared = [name for name in names[0] if name in names[1]]
    kinds = [_kinds(protocol) for protocol in (a, b)]
    differences: dict[str, Difference] = {}
    start = (Server(sessions=(a.start,)), Server(sessions=(b.start,)))

    def onward(pair: tuple[Server, Server]) -> Iterator[tuple[tuple[TraceStep, TraceStep], tuple[Server, Server]]]:
        """The steps that look the same in both. What does not is a difference."""
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
    """The kinds of prompts that a protocol accepts."""
    first = changes(protocol, Server(sessions=(protocol.start,)))
    return [change.call.variant for change in first if change.call.name == "accept"]


def _only(kinds: Sequence[list[Variant]]) -> set[Variant]:
    return set(kinds[0]) ^ set(kinds[1])


def _answers(
    protocol: Behaviour, server: Server, bounds: Bounds, history: Trace,
) -> dict[str, dict[StepView, TraceStep]]:
    """What each possible call leads to: usually one thing."""
    found: dict[str, dict[StepView, TraceStep]] = {}
    for change in changes(protocol, server):
        bound = change.call.action.bound
        if bound is None or sum(s.call.action.bound == bound for s in history.steps) < getattr(bounds, bound):
            step = TraceStep.of(change)
            found.setdefault(call_text(change.call, 1), {}).setdefault(view_step(step), step)
    return found


def _pick_own(mine: dict[StepView, TraceStep], other: dict[StepView, TraceStep]) -> TraceStep | None:
    """What is only mine, if there is such a thing."""
    return next((step for what, step in mine.items() if what not in other), next(iter(mine.values()), None))


# --- traces

class Pair(NamedTuple):
    """The steps of two traces that have the same number; None where one is over."""

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
