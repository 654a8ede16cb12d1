"""No conjunct of a step claim, or of an invariant that is a guarantee, could be left out unnoticed: a seeded bug breaks
the claim by that conjunct alone."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import fields

import pytest

if os.environ.get("CI") != "true":
    pytest.importorskip("z3", reason="z3-solver is not installed: pip install 'cancelmark[prove]'")

import z3
from support.budget import long
from support.seeded_ask_proof import ASK_BUGS
from support.seeded_family_proof import FAMILY_BUGS
from support.seeded_proof import BUGS, ProofBug
from support.seeded_steps import STEP_BUGS

from cancelmark.model.proof.actions import ACTIONS, Action, Step
from cancelmark.model.proof.instances import applied
from cancelmark.model.proof.invariant import GUARANTEES, INVARIANT, Claim
from cancelmark.model.proof.logic import Seen, Term, Universe, View
from cancelmark.model.proof.steps import STEPS

ALL_BUGS = (*BUGS, *FAMILY_BUGS, *ASK_BUGS, *STEP_BUGS)
SIZE = (3, 2, 2)  # prompts, sessions and questions
GUARANTEED = [claim for claim in INVARIANT if any(claim.name in names for names in GUARANTEES.values())]
EVERYWHERE = ("close", "crash", "recover")  # in no session of their own
FEW, WHOLE = 6, -1  # A claim about so many actions, at most, names them: each name is a conjunct too.
# Its formula differs between actions by their rows only. What is true of one row is true of all.
BY_ROWS = {"along-rows": "cancel", "asked-along": "cancel"}
Conjunct = tuple[str, str, int]  # of which claim, about which action, and its number


def without_each(term: Term, positive: bool = True) -> list[Term]:
    """The term without each of its conjuncts in turn: weaker each time. In a premise, these are the disjuncts."""
    if z3.is_quantifier(term):
        x = z3.FreshConst(term.var_sort(0), "x")
        return [z3.ForAll([x], less) for less in without_each(z3.substitute_vars(term.body(), x), positive)]
    if z3.is_not(term):
        return [z3.Not(less) for less in without_each(term.arg(0), not positive)]
    if z3.is_implies(term):
        return without_each(z3.Or(z3.Not(term.arg(0)), term.arg(1)), positive)
    found: list[Term] = []
    if z3.is_and(term) or z3.is_or(term):
        parts = term.children()
        for number, part in enumerate(parts):
            weaker = without_each(part, positive)
            if z3.is_and(term) is positive or len(weaker) > 1:
                found += [term.decl()(*parts[:number], less, *parts[number + 1:]) for less in weaker]
    return found or [z3.BoolVal(positive)]


class Laboratory:
    """A step of a small universe of which nothing is known but that the invariant holds before it.

    An action defines it. So a conjunct is found in the claim's own formula, whatever the action's formulas are.
    """

    def __init__(self) -> None:
        self.universe, self.open = Universe(*SIZE), Universe(*SIZE)
        self.members = [*self.open.prompts, *self.open.sessions, *self.open.questions]
        self.open.prompts = self.open.sessions = self.open.questions = ()  # so that its quantifiers are not written out
        self.before, self.after = View.free(self.universe), View.free(self.universe, "'")
        self.seen, self.where = Seen.free(self.universe), z3.Const("where", self.universe.session)
        self.solver = z3.Solver()
        self.solver.add(*(claim.holds(self.universe, self.before) for claim in INVARIANT))
        self.solver.add(*(self.after.ends(p) == z3.If(ends > 2, 2, ends) for p in self.universe.prompts
                          for ends in [self.before.ends(p) + self.seen.published(p)]))
        self.solver.add(*(self.after.believed(x) == z3.Or(
            self.seen.opened(x), z3.And(self.before.believed(x), z3.Not(self.seen.closed(x))))
            for x in self.universe.questions))

    def claim(self, claim: Claim, action: Action) -> Term:
        """The claim about the action, with quantifiers."""
        where = None if action.name in EVERYWHERE else self.where
        return claim.of(Step(self.open, action.name, where, True, self.before, self.after, self.seen,
                             action.arguments(self.open)))

    def write_out(self, term: Term) -> Term:
        return applied(term, self.members)

    def taken(self, action: Action) -> Iterator[Term]:
        """That the step is one of this action."""
        step = action.step(self.universe, self.before, action.arguments(self.universe))
        yield step.guard
        if step.where is not None:
            yield self.where == step.where
        for free, defined in ((self.after, step.after), (self.seen, step.seen)):
            for field in fields(free):
                x, y = getattr(free, field.name), getattr(defined, field.name)
                if isinstance(x, z3.FuncDeclRef):
                    members = [m for m in self.members if m.sort() == x.domain(0)]
                    yield from (x(member) == y(member) for member in members)
                else:
                    yield x == y

    def find(self, *facts: Term) -> z3.ModelRef | None:
        self.solver.push()
        self.solver.add(*facts)
        answer = self.solver.check()
        assert answer != z3.unknown
        model = self.solver.model() if answer == z3.sat else None
        self.solver.pop()
        return model


def find_unnoticed(claims: Sequence[Claim], bugs: Sequence[ProofBug], exactly: bool) -> set[Conjunct]:
    """The conjuncts of these claims that could be left out: no bug breaks the claim by that conjunct alone.

    A conjunct that follows from the others can always be left out, and is not counted. Every bug must break the claims
    that it declares; no others if `exactly`.
    """
    lab = Laboratory()
    left: set[Conjunct] = set()
    formulas: dict[tuple[str, str], Term] = {}
    weaker: dict[int, list[tuple[Conjunct, Term]]] = {}  # by the formula's id
    for claim in claims:
        terms = {action.name: lab.claim(claim, action) for action in ACTIONS}
        about = [action for action, term in terms.items() if not z3.is_true(term)]
        left |= {(claim.name, action, WHOLE) for action in about if len(about) <= FEW}
        for action in about:
            formula = formulas[claim.name, action] = lab.write_out(terms[action])
            if formula.get_id() not in weaker and BY_ROWS.get(claim.name, action) == action:
                weaker[formula.get_id()] = [((claim.name, action, number), lab.write_out(less))
                                            for number, less in enumerate(without_each(terms[action]))]
                left |= {conjunct for conjunct, less in weaker[formula.get_id()] if lab.find(less, z3.Not(formula))}
    for bug in bugs:
        lab.solver.push()
        lab.solver.add(*lab.taken(bug.action))
        broken = set()
        for claim in claims:
            formula = formulas.get((claim.name, bug.action.name))
            if formula is None or (not exactly and claim.name not in bug.breaks):
                continue
            if found := lab.find(z3.Not(formula)):
                broken.add(claim.name)
                left.discard((claim.name, bug.action.name, WHOLE))
                left -= {conjunct for conjunct, less in weaker.get(formula.get_id(), ()) if conjunct in left
                         and z3.is_true(found.eval(less, True)) and not lab.find(z3.Not(less))}
        assert broken == bug.breaks & {claim.name for claim in claims}, bug.name
        lab.solver.pop()
    return left


@pytest.mark.parametrize(("claims", "exactly"), [([*STEPS, *GUARANTEED], False), long(STEPS, True)],
                         ids=["all", "exactly"])
@pytest.mark.long
def test_no_conjunct_can_be_left_out_unnoticed(claims: Sequence[Claim], exactly: bool) -> None:
    assert find_unnoticed(claims, ALL_BUGS, exactly) == set()


# The claims about questions, each with a bug that breaks no other claim. Three have none: withdrawn-takes-no-answer and
# first-answer-wins follow from one-end-each, answer-is-exact and asked-along. After a step open-is-running follows from
# asks-as-called; before a step it does not, and test_proof shows what breaks without it.
ALONE = {
    "asks-as-called": "enter withdraws the questions of the running turn",
    "told-is-open": "a cancel withdraws in silence",
    "tool-needs-permission": "hold starts the tools that were denied",
    "tool-starts-once": "an allowed tool starts twice",
    "answer-is-exact": "an answer writes the messages of the prompt",
    "answer-is-heard": "an allow is published as a deny",
    "asked-once": "hold publishes open questions again",
    "asked-along": "an answer makes the tool one that has started",
    "one-end-each": "a question is withdrawn after the end is published",
    "started-is-reported": "a tool that did not start is reported after a crash",
}


def test_a_claim_about_questions_is_the_only_one_that_notices_a_bug() -> None:
    lab = Laboratory()
    bugs = {bug.name: bug for bug in ALL_BUGS}
    for name, bug in ((name, bugs[bug]) for name, bug in ALONE.items()):
        lab.solver.push()
        lab.solver.add(*lab.taken(bug.action))
        assert {claim.name for claim in (*INVARIANT, *STEPS)
                if lab.find(z3.Not(lab.write_out(lab.claim(claim, bug.action))))} == {name}
        lab.solver.pop()


def test_a_conjunct_that_no_bug_breaks_alone_is_found() -> None:
    apart = [claim for claim in STEPS if claim.name == "apart"]
    bugs = [bug for bug in STEP_BUGS if "changes every hold" not in bug.name and bug.action.name == "cancel"]
    assert find_unnoticed(apart, bugs, False) == {("apart", "accept", 1)}


def test_a_conjunct_is_left_out_wherever_it_stands() -> None:
    a, b, c, d = z3.Bools("a b c d")
    x = z3.Int("x")
    for term, weaker in (
        (a, [True]),
        (z3.And(a, z3.Or(b, z3.And(c, d))), [z3.Or(b, z3.And(c, d)), z3.And(a, z3.Or(b, d)), z3.And(a, z3.Or(b, c))]),
        (z3.Implies(z3.Or(a, b), c), [z3.Implies(b, c), z3.Implies(a, c)]),
        (z3.Implies(z3.And(a, b), z3.And(c, d)), [z3.Implies(z3.And(a, b), d), z3.Implies(z3.And(a, b), c)]),
        (z3.Not(z3.Or(a, b)), [z3.Not(b), z3.Not(a)]),
        (z3.ForAll([x], z3.And(x > 0, a)), [a, z3.ForAll([x], x > 0)]),
    ):
        found = without_each(term)
        assert len(found) == len(weaker)
        for one, other in zip(found, weaker):
            solver = z3.Solver()
            solver.add(one != other)
            assert solver.check() == z3.unsat, (term, one, other)
