"""The proof obligations, their verdicts, and the checks that the proof is not vacuous."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple

import z3

from .actions import ACTIONS, ASK_MOVES, MOVES, Action, Step
from .counterexample import Counterexample, picture, wishes
from .instances import instances
from .invariant import CONSEQUENCES, GUARANTEES, INVARIANT, Claim, StateClaim, initial
from .logic import Seen, Term, Universe, View
from .steps import STEPS, moves

ROUNDS = 3  # maximum number of instantiation rounds
# Prompts, sessions, questions: smallest first.
SIZES = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (2, 1, 2), (3, 1, 1), (3, 2, 1), (2, 2, 2), (4, 1, 1),
         (4, 2, 2))


class Verdict(Enum):
    PROVED = "proved"
    BROKEN = "broken"
    UNPROVED = "unproved"  # it relies on an invariant that is not fully proved
    UNKNOWN = "unknown"  # the solver timed out


class Obligation(NamedTuple):
    """A claim to prove: after an action, at the start, or wherever the invariant holds."""

    claim: Claim
    action: Action | None = None
    start: bool = False

    def __str__(self) -> str:
        if self.action:
            return f"{self.claim.name} after {self.action.name}"
        return f"{self.claim.name} {'at the start' if self.start else 'wherever the invariant holds'}"


class ObligationResult(NamedTuple):
    obligation: Obligation
    verdict: Verdict
    counterexample: Counterexample | None = None


class Hollow(NamedTuple):
    """A point at which the proof is vacuous (verdict broken) or may be (verdict unknown)."""

    what: str
    verdict: Verdict


@dataclass(frozen=True)
class Prover:
    """A protocol and its invariant."""

    actions: Sequence[Action] = ACTIONS
    invariant: Sequence[StateClaim] = INVARIANT
    timeout: float = 20.0  # seconds per question

    def obligations(self) -> list[Obligation]:
        """Initiation, consecution for every action, and the consequences."""
        return [
            *(Obligation(claim, start=True) for claim in self.invariant),
            *(Obligation(claim, action) for action in self.actions for claim in (*self.invariant, *STEPS)),
            *(Obligation(claim) for claim in CONSEQUENCES),
        ]

    def judge(self, obligation: Obligation) -> ObligationResult:
        """Decide an obligation: proved for any number of prompts, broken with a smallest counterexample, or unknown."""
        universe = Universe()
        question, _ = self.question(universe, obligation)
        for made in instances(universe, question, ROUNDS):
            if self.solver(made).check() == z3.unsat:
                return ObligationResult(obligation, Verdict.PROVED)
        for size in SIZES:
            if found := self.refute(Universe(*size), obligation):
                return ObligationResult(obligation, Verdict.BROKEN, found)
        return ObligationResult(obligation, Verdict.UNKNOWN)

    def refute(self, universe: Universe, obligation: Obligation) -> Counterexample | None:
        """A counterexample in this universe, as simple as possible."""
        question, step = self.question(universe, obligation)
        solver = self.solver(question)
        if solver.check() != z3.sat:
            return None
        for wish in wishes(step):
            solver.push()
            solver.add(wish)
            if solver.check() != z3.sat:
                solver.pop()
        solver.check()
        return picture(obligation.claim.name, obligation.claim.sentence, step, obligation.action, solver.model())

    def question(self, universe: Universe, obligation: Obligation) -> tuple[Term, Step]:
        """The conditions under which the claim fails."""
        before = View.free(universe)
        allowed = [initial(universe, before)] if obligation.start else self.allowed(universe)
        if obligation.action:
            step = obligation.action.step(universe, before, obligation.action.arguments(universe))
        else:
            step = Step(universe, "", None, True, before, before, Seen())
        return z3.And(*allowed, step.guard, z3.Not(obligation.claim.of(step))), step

    def allowed(self, universe: Universe) -> list[Term]:
        """The invariant for an otherwise arbitrary state."""
        return self.unbounded if not universe.prompts else self._write_invariant(universe)

    @cached_property
    def unbounded(self) -> list[Term]:
        """The invariant for any number of prompts, cached because most questions use it."""
        return self._write_invariant(Universe())

    def _write_invariant(self, universe: Universe) -> list[Term]:
        return [claim.holds(universe, View.free(universe)) for claim in self.invariant]

    def solver(self, *facts: Term) -> z3.Solver:
        solver = z3.Solver()
        solver.set(timeout=round(self.timeout * 1000))
        solver.add(*facts)
        return solver

    def complete(self, judged: Sequence[ObligationResult]) -> list[ObligationResult]:
        """The verdicts, with unknown added for every obligation that has none."""
        known = {str(one.obligation) for one in judged}
        return [*judged, *(ObligationResult(o, Verdict.UNKNOWN) for o in self.obligations() if str(o) not in known)]

    def guarantees(self, judged: Sequence[ObligationResult]) -> Mapping[str, Verdict]:
        """The verdict on each property, derived from its own claims and the whole invariant that they rely on."""
        by_claim: dict[str, set[Verdict]] = {}
        for one in self.complete(judged):
            by_claim.setdefault(one.obligation.claim.name, set()).add(one.verdict)
        invariant = set[Verdict]().union(*(by_claim[claim.name] for claim in self.invariant))
        found = {}
        for id, claims in GUARANTEES.items():
            own = set[Verdict]().union(*(by_claim.get(name, {Verdict.UNPROVED}) for name in claims))
            if own == {Verdict.PROVED}:
                found[id] = Verdict.PROVED if invariant == {Verdict.PROVED} else Verdict.UNPROVED
            else:
                found[id] = next(v for v in (Verdict.BROKEN, Verdict.UNKNOWN, Verdict.UNPROVED) if v in own)
        return found

    # --- the proof is not vacuous

    def hollows(self) -> Iterator[Hollow]:
        """The points at which the proof is vacuous. There must be none."""
        for move, verdict in self.impossible_moves():
            yield Hollow(f"never happens: {move}", verdict)
        for claim, verdict in self.irrefutable():
            yield Hollow(f"holds of anything: {claim}", verdict)

    def impossible_moves(self) -> Iterator[Hollow]:
        """Actions that no state of the invariant enables, and moves of actions that never happen."""
        universe = Universe(3, 2)
        before = View.free(universe)
        allowed = self.allowed(universe)
        for action in self.actions:
            step = action.step(universe, before, action.arguments(universe))
            yield from self.hollow(action.name, *allowed, step.guard)
            for source, dest, outcome in MOVES[action.name]:
                happens = universe.some_prompt(lambda p: moves(step, p, source, dest, outcome))  # noqa: B023
                yield from self.hollow(f"{action.name}: {source} → {dest}", *allowed, step.guard, happens)
            for source, dest in ASK_MOVES.get(action.name, ()):
                asked = universe.some_question(lambda x: z3.And(
                    before.status(x) == source, step.after.status(x) == dest))  # noqa: B023
                yield from self.hollow(f"{action.name}: {source} → {dest}", *allowed, step.guard, asked)

    def irrefutable(self) -> Iterator[Hollow]:
        """Claims that hold for any step whatsoever, so that they say nothing about the protocol."""
        universe = Universe(2, 2, 2)
        before, after, seen = View.free(universe), View.free(universe, "'"), Seen.free(universe)
        session = z3.Const("session", universe.session)
        for claim in (*self.invariant, *STEPS, *CONSEQUENCES):
            steps = [Step(universe, action.name, session, True, before, after, seen, action.arguments(universe))
                     for action in self.actions]
            yield from self.hollow(claim.name, z3.Not(z3.And(*map(claim.of, steps))))

    def hollow(self, what: str, *facts: Term) -> Iterator[Hollow]:
        """Yield a `Hollow` unless these facts are satisfiable."""
        answer = self.solver(*facts).check()
        if answer != z3.sat:
            yield Hollow(what, Verdict.BROKEN if answer == z3.unsat else Verdict.UNKNOWN)
