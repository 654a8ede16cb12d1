"""The proof: it proves what it says, it is not empty, and a bug breaks it in a way that people can read."""

import gc
import os

import pytest
from support.budget import DEEP, FAST, one_for_each

from cancelmark.model.family import Feature
from cancelmark.model.variants.catalogue import ASK_MISTAKES, MISTAKES
from cancelmark.model.variants.catalogue import BUGS as SEEDED_BUGS

if os.environ.get("CI") != "true":
    pytest.importorskip("z3", reason="z3-solver is not installed: pip install 'cancelmark[prove]'")

import z3
from support.seeded_ask_proof import ASK_BUGS
from support.seeded_family_proof import FAMILY_BUGS
from support.seeded_proof import BUGS, ProofBug

from cancelmark.model.proof import prover as prover_module
from cancelmark.model.proof.actions import ACTIONS, MOVES
from cancelmark.model.proof.instances import instances
from cancelmark.model.proof.invariant import CONSEQUENCES, GUARANTEES, INVARIANT, Claim
from cancelmark.model.proof.logic import Universe
from cancelmark.model.proof.prover import SIZES, Obligation, ObligationResult, Prover, Verdict
from cancelmark.model.proof.steps import STEPS, SYSTEM
from cancelmark.model.protocol import Protocol

CLAIMS: dict[str, Claim] = {claim.name: claim for claim in (*INVARIANT, *STEPS, *CONSEQUENCES)}
BY_NAME = {bug.name: bug for bug in (*BUGS, *FAMILY_BUGS, *ASK_BUGS)}
# Mistakes that need a memory or a step of their own, for which the proof has no word.
LATER = {"stop is a flag of the session", "stop is done later, to whoever is active", "stop and hold are two steps",
         "reject looks first", "questions are numbered anew after compaction"}
ALL = Protocol("all", features=frozenset(Feature))
BY_ACTION = {action.name: action for action in ACTIONS}


def judged(prover: Prover) -> list[ObligationResult]:
    return [prover.judge(obligation) for obligation in prover.obligations()]


def refuted(prover: Prover, obligation: Obligation) -> ObligationResult:
    """The verdict on an obligation that is expected to be broken: in `make test` without a vain attempt to prove it."""
    if not FAST:
        return prover.judge(obligation)
    found = next(filter(None, (prover.refute(Universe(*size), obligation) for size in SIZES)), None)
    return ObligationResult(obligation, Verdict.BROKEN if found else Verdict.UNKNOWN, found)


def test_the_proof_is_not_empty() -> None:
    assert list(Prover().impossible_moves()) == []
    assert list(Prover().irrefutable()) == []


def test_an_empty_claim_and_a_contradictory_invariant_would_be_noticed() -> None:
    idle = INVARIANT[0].__class__("idle", "Nothing.", lambda u, v: z3.BoolVal(True))
    assert list(Prover(invariant=[*INVARIANT, idle]).irrefutable()) == [("idle", Verdict.BROKEN)]
    never = INVARIANT[0].__class__("never", "Nothing is ever accepted.", lambda u, v: v.latest == 0)
    impossible = {what for what, _ in Prover(invariant=[*INVARIANT, never]).impossible_moves()}
    assert {"enter", "finish", "finish: active → done"} <= impossible


def test_the_proof_has_the_actions_of_the_protocol() -> None:
    assert [a.name for a in ACTIONS] == [a.name for a in ALL.actions] == list(MOVES)
    assert {a.name for a in ACTIONS if a.system} == {a.name for a in ALL.actions if a.system} == set(SYSTEM)
    assert {a.name: a.rule for a in ACTIONS} == {a.name: a.rule for a in ALL.actions}


def test_every_guarantee_rests_on_claims_that_exist() -> None:
    assert {name for names in GUARANTEES.values() for name in names} <= set(CLAIMS)
    assert len(CLAIMS) == len(INVARIANT) + len(STEPS) + len(CONSEQUENCES)
    for claim in CLAIMS.values():
        assert claim.sentence.endswith(".")


# --- bugs

@pytest.mark.parametrize(
    "bug", one_for_each(lambda bug: (*bug.breaks, *bug.never), [*BUGS, *FAMILY_BUGS, *ASK_BUGS]),
    ids=lambda bug: bug.name)
def test_a_bug_breaks_the_claims_that_it_declares(bug: ProofBug) -> None:
    prover = Prover(actions=[bug.action])
    claims = (*INVARIANT, *STEPS) if DEEP else [CLAIMS[name] for name in bug.breaks]
    found = [refuted(prover, Obligation(claim, bug.action)) for claim in claims]
    assert {one.obligation.claim.name for one in found if one.verdict is Verdict.BROKEN} == bug.breaks
    if bug.never or DEEP:
        assert tuple(what for what, _ in prover.impossible_moves()) == bug.never
    assert bug.breaks or bug.never
    for one in found:
        if one.counterexample:
            assert len(one.counterexample.before.prompts) <= 3
            assert f"after {bug.action.name}" in one.counterexample.text


def test_every_bug_that_the_explorer_finds_is_here_and_breaks_the_proof() -> None:
    assert {bug.name for bug in SEEDED_BUGS} == {bug.name for bug in BUGS}
    assert {mistake.name for mistake in (*MISTAKES, *ASK_MISTAKES)} == {
        bug.name for bug in (*FAMILY_BUGS, *ASK_BUGS)} | LATER


def test_a_bug_in_a_step_leaves_the_rest_proved() -> None:
    """A bug that breaks a step claim alone breaks one property. One that breaks the invariant takes all with it."""
    record = BY_NAME["nothing is written for a prompt canceled on entry"]
    prover = Prover(actions=[record.action])
    verdicts = prover.guarantees(judged(prover))
    assert {id for id, verdict in verdicts.items() if verdict is not Verdict.PROVED} == {"record"}
    assert verdicts["record"] is Verdict.BROKEN
    stranded = Prover(actions=[BY_NAME["clear_queue raises the mark"].action])
    assert set(stranded.guarantees(judged(stranded)).values()) == {Verdict.UNPROVED}


def test_a_counterexample_reads_like_a_story() -> None:
    bug = BY_NAME["the last in the queue goes first"]
    found = Prover().judge(Obligation(CLAIMS["first-comes-first"], bug.action)).counterexample
    assert found
    assert found.text == f"""\
first-comes-first is broken: {CLAIMS["first-comes-first"].sentence}
               before   after finish(A, end_turn)
  A  seq 1     active   done (end_turn)
  B  seq 2     queued   queued
  C  seq 3     queued   active
  mark         0        0
  latest seq   3        3
  effects               A's terminal event, C starts
"""


def test_a_counterexample_shows_the_questions_that_it_is_about() -> None:
    bug = BY_NAME["one answer answers every open question"]
    found = Prover().judge(Obligation(CLAIMS["answer-is-exact"], bug.action)).counterexample
    assert found
    assert found.text == f"""\
answer-is-exact is broken: {CLAIMS["answer-is-exact"].sentence}
               before       after answer(s)
  A  seq 1     active       active
  question s   open, of A   denied, of A
  question t   open, of A   denied, of A, open by the calls
  mark         0            0
  latest seq   1            1
  effects                   question s is denied, question t is denied
  features     ask
"""


def test_a_counterexample_has_as_few_prompts_and_sessions_as_it_needs() -> None:
    apart = Prover().judge(Obligation(CLAIMS["apart"], BY_NAME["a cancel reaches every session"].action))
    assert apart.counterexample
    assert (len(apart.counterexample.before.prompts), len(apart.counterexample.before.marks)) == (1, 2)
    assert "after cancel in session" in apart.counterexample.text


# --- the invariant says no more than it must

NEEDED = {
    "seq-given": Obligation(CLAIMS["seq-unique"], BY_ACTION["accept"]),
    "seq-unique": Obligation(CLAIMS["first-comes-first"], BY_ACTION["finish"]),
    "mark-given": Obligation(CLAIMS["covered-is-reached"], BY_ACTION["accept"]),
    "covered-is-reached": Obligation(CLAIMS["reached-never-starts"], BY_ACTION["enter"]),
    "queue-is-uncovered": Obligation(CLAIMS["reached-never-starts"], BY_ACTION["finish"]),
    "entry-is-covered": Obligation(CLAIMS["canceled-is-reached"], BY_ACTION["settle"]),
    "one-end": Obligation(CLAIMS["rest-is-told"]),
    "queue-has-a-turn": Obligation(CLAIMS["rest-is-done"]),
    "places-given": Obligation(CLAIMS["order-as-called"], BY_ACTION["accept"]),
    "order-as-called": Obligation(CLAIMS["first-comes-first"], BY_ACTION["finish"]),
    "held-as-called": Obligation(CLAIMS["held-waits"], BY_ACTION["enter"]),
    "text-as-called": Obligation(CLAIMS["latest-text"], BY_ACTION["finish"]),
    "begun-is-known": Obligation(CLAIMS["latest-text"], BY_ACTION["replace"]),
    "interrupt-is-news": Obligation(CLAIMS["interrupt-stops-no-later"], BY_ACTION["enter"]),
    "unused-is-unset": Obligation(CLAIMS["rest-is-done"]),
    "open-is-running": Obligation(CLAIMS["tool-needs-permission"], BY_ACTION["run"]),
    "asks-as-called": Obligation(CLAIMS["first-answer-wins"], BY_ACTION["answer"]),
    "told-is-open": Obligation(CLAIMS["one-end-each"], BY_ACTION["cancel"]),
}


WHOLE = Prover()


def test_each_conjunct_is_a_guarantee_itself_or_is_needed_for_one() -> None:
    themselves = {name for names in GUARANTEES.values() for name in names}
    assert {claim.name for claim in INVARIANT} <= set(NEEDED) | themselves


@pytest.mark.parametrize("name", NEEDED)
def test_without_a_conjunct_that_is_needed_the_proof_breaks(name: str) -> None:
    without = Prover(invariant=[claim for claim in INVARIANT if claim.name != name])
    assert refuted(without, NEEDED[name]).verdict is Verdict.BROKEN
    assert WHOLE.judge(NEEDED[name]).verdict is Verdict.PROVED


# --- honest answers

def test_what_is_neither_proved_nor_refuted_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prover_module, "ROUNDS", 0)
    record = next(a for a in ACTIONS if a.name == "settle")
    found = [ObligationResult(o, Verdict.PROVED) for o in Prover(actions=[record]).obligations()]
    unknown = Prover().judge(Obligation(CLAIMS["record-is-written"], record))
    assert unknown.verdict is Verdict.UNKNOWN
    others = [one for one in found if one.obligation != unknown.obligation]
    assert Prover(actions=[record]).guarantees([*others, unknown])["record"] is Verdict.UNKNOWN


def test_a_claim_that_only_finitely_many_prompts_make_true_is_unknown() -> None:
    """A queue that is not empty has a first only because it is finite, which no first-order premise can say."""
    bug = BY_NAME["a cancel ends the active prompt and starts the next"]
    assert Prover().judge(Obligation(CLAIMS["queue-has-a-turn"], bug.action)).verdict is Verdict.UNKNOWN


def test_instances_follow_from_their_premises() -> None:
    """Both variables of a pair are given the right terms, and names are given to what merely exists."""
    u = Universe()
    below, a, b = z3.Function("below", u.prompt, u.prompt, z3.BoolSort()), *z3.Consts("a b", u.prompt)

    def answer(*premises: object) -> z3.CheckSatResult:
        *_, last = instances(u, z3.And(*premises), 2)
        solver = z3.Solver()
        solver.add(last)
        return solver.check()

    asymmetric = u.every_pair(lambda p, q: z3.Implies(below(p, q), z3.Not(below(q, p))))
    assert answer(asymmetric, below(a, b)) == z3.sat
    assert answer(asymmetric, below(a, b), below(b, a)) == z3.unsat
    assert answer(asymmetric, u.some_prompt(lambda p: below(p, p))) == z3.unsat
    above_all = u.some_prompt(lambda p: u.every_prompt(lambda q: z3.Or(p == q, below(q, p))))
    assert answer(asymmetric, above_all, below(a, b)) == z3.sat
    assert answer(u.every_prompt(lambda p: u.some_prompt(lambda q: below(p, q))),
                  u.every_pair(lambda p, q: z3.Not(below(p, q))), a == a) == z3.unsat


def test_no_term_is_left_to_the_garbage_collector() -> None:
    """It may run in any thread, and a term that is freed in another thread than the solver's can hang the solver."""
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        Prover().judge(Obligation(CLAIMS["apart"], BY_NAME["a cancel reaches every session"].action))
        gc.collect()
        assert not [thing for thing in gc.garbage if isinstance(thing, z3.AstRef)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
