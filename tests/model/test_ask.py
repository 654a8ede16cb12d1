"""The feature `ask`: its counts, what each action asks for, and the invariants that its guards rely on."""

import re
from typing import Any

import pytest
from support.budget import long
from support.counts import ASK_PINNED

from cancelmark.model.ask import ASK_ACTIONS
from cancelmark.model.check.explore import Explorer, explore
from cancelmark.model.effects import encode_effect
from cancelmark.model.family import QUEUE_FEATURES, Feature
from cancelmark.model.family_properties import ASK_PROPERTIES, properties_for
from cancelmark.model.lifecycle import ROWS, State
from cancelmark.model.observer import unreached, wish_of
from cancelmark.model.properties import PROPERTIES, Bounds
from cancelmark.model.protocol import FAMILY, REFERENCE, Protocol
from cancelmark.model.questions import SETTLED, Question
from cancelmark.model.server import changes
from cancelmark.model.session import label
from cancelmark.model.trace import replay
from cancelmark.model.variants.catalogue import ASK_MISTAKES

ASK, STOP, REVOKE, HOLD, INTERRUPT = (
    Feature.ASK, Feature.STOP, Feature.REVOKE, Feature.HOLD, Feature.INTERRUPT)
ALONE = Protocol("ask", features=frozenset({ASK}))
ALL = Protocol("all", features=frozenset(Feature))


def having(*features: Feature) -> Protocol:
    return Protocol("+".join(f.value for f in features), features=frozenset(features))


# A changed count is a changed protocol: say in the commit what changed and why.
@pytest.mark.parametrize(("protocol", "bounds", "counts"), [
    *((long if counts[0] > 150_000 else pytest.param)(having(*features), bounds, counts)
      for features, (bounds, counts) in ASK_PINNED),
    long(ALL, Bounds(2, cancels=1, revokes=1, stops=1, holds=1, replaces=1, nexts=1, asks=1),
         (672_054, 3_950_650, 15)),
    long(ALL, Bounds(2, requeues=1, crashes=1, revokes=1, stops=1, holds=1, asks=2), (513_096, 2_511_368, 18)),
], ids=str)
def test_a_protocol_with_questions_holds_and_has_its_counts(
    protocol: Protocol, bounds: Bounds, counts: tuple[int, int, int],
) -> None:
    result = explore(protocol, bounds)
    assert (result.verdict, result.violations, result.unmet) == ("holds", {}, [])
    assert (result.states, result.edges, result.depth) == counts


def test_questions_add_no_row_and_change_nothing_that_does_not_have_them() -> None:
    assert ALONE.rows == ROWS
    assert {*Feature} - {*QUEUE_FEATURES} == {ASK}
    added = {action.name for action in ASK_ACTIONS}
    calls = having(*QUEUE_FEATURES).actions
    assert added.isdisjoint(action.name for action in (*REFERENCE.actions, *calls))
    assert {a.name for a in FAMILY.actions} - {a.name for a in calls} == added
    assert {p.id for p in properties_for(ALONE)} - {p.id for p in PROPERTIES} == {p.id for p in ASK_PROPERTIES}
    assert all(len(action.effect.splitlines()) == 1 for action in ALL.actions), "a cell of a table"


def replayed(calls: str) -> Any:
    return replay(ALL, re.split(r", (?=[a-z])(?!\d|[a-z_]+\))", calls))


ASKED = "accept(A), enter(A), ask(A)"


@pytest.mark.rule("R36a", "R36b", "R36c", "R36d", "R36e", "R36f", "R36g", "R36h", "R36i", "R36j")
@pytest.mark.parametrize(("calls", "effects"), [
    (f"{ASKED}, answer(A, 1 allow), run(A, 1)", "start A, ask A 1, answered A 1 allow, run A 1"),
    (f"{ASKED}, answer(A, 1 deny), finish(A, end_turn)", "start A, ask A 1, answered A 1 deny, end A end_turn"),
    (f"{ASKED}, withdraw(A, 1), ask(A), answer(A, 2 allow)",
     "start A, ask A 1, withdraw A 1, ask A 2, answered A 2 allow"),
    (f"{ASKED}, ask(A), answer(A, 2 deny), cancel",
     "start A, ask A 1, ask A 2, answered A 2 deny, stop A, withdraw A 1"),
    ("accept(A), enter(A), accept(B), enter(B), ask(A), cancel",
     "start A, ask A 1, stop A, withdraw A 1, end B canceled"),
    (f"{ASKED}, close", "start A, ask A 1, stop A, withdraw A 1"),
    (f"{ASKED}, revoke(A)", "start A, ask A 1, stop A, withdraw A 1"),
    (f"{ASKED}, stop, finish(A, canceled)", "start A, ask A 1, stop A, withdraw A 1, end A canceled"),
    (f"{ASKED}, accept(B, interrupt), enter(B)", "start A, ask A 1, stop A, withdraw A 1"),
    (f"{ASKED}, answer(A, 1 allow), cancel, finish(A, canceled)",
     "start A, ask A 1, answered A 1 allow, stop A, end A canceled"),
    (f"{ASKED}, finish(A, end_turn)", "start A, ask A 1, withdraw A 1, end A end_turn"),
    (f"{ASKED}, requeue(A), ask(A), answer(A, 2 allow)",
     "start A, ask A 1, withdraw A 1, start A, ask A 2, answered A 2 allow"),
    (f"{ASKED}, hold, requeue(A)", "start A, ask A 1, withdraw A 1, start A"),
    (f"{ASKED}, hold, answer(A, 1 allow), run(A, 1)", "start A, ask A 1, answered A 1 allow, run A 1"),
    (f"{ASKED}, ask(A), answer(A, 1 allow), run(A, 1), crash, recover",
     "start A, ask A 1, ask A 2, answered A 1 allow, run A 1, unsure A 1, withdraw A 2, end A error"),
    (f"{ASKED}, answer(A, 1 allow), crash, recover", "start A, ask A 1, answered A 1 allow, end A error"),
], ids=str)
def test_what_the_actions_on_questions_ask_for(calls: str, effects: str) -> None:
    """Written by hand, from the rules."""
    asked = []
    for step in replayed(calls).steps:
        for effect in map(encode_effect, step.effects):
            kind, seq, *details = effect.values()
            asked.append(" ".join([kind, label(seq), *map(str, details)]))
    assert [text for text in asked if not text.startswith("acknowledge")] == effects.split(", ")


@pytest.mark.rule("R36a", "R36b", "R36c", "R36d", "R36g", "R36h")
@pytest.mark.parametrize(("calls", "refused"), [
    ("accept(A)", "ask(A)"), ("accept(A), enter(A), cancel", "ask(A)"),
    ("accept(A), enter(A), requeue(A), hold, revoke(A)", "ask(A)"),
    (ASKED, "run(A, 1)"), (ASKED, "answer(A, 2 allow)"),
    (f"{ASKED}, answer(A, 1 deny)", "answer(A, 1 allow)"), (f"{ASKED}, answer(A, 1 deny)", "run(A, 1)"),
    (f"{ASKED}, answer(A, 1 allow), run(A, 1)", "run(A, 1)"),
    (f"{ASKED}, cancel", "answer(A, 1 allow)"), (f"{ASKED}, withdraw(A, 1)", "answer(A, 1 allow)"),
    (f"{ASKED}, answer(A, 1 allow), cancel", "run(A, 1)"), (f"{ASKED}, answer(A, 1 allow), stop", "run(A, 1)"),
    (f"{ASKED}, answer(A, 1 allow), requeue(A)", "run(A, 1)"), (f"{ASKED}, requeue(A)", "answer(A, 1 allow)"),
    (f"{ASKED}, crash", "answer(A, 1 allow)"), (f"{ASKED}, finish(A, error)", "answer(A, 1 allow)"),
], ids=str)
def test_a_call_that_comes_too_late_or_too_early_is_refused(calls: str, refused: str) -> None:
    possible = {str(change.call) for change in changes(ALL, replayed(calls).states[-1])}
    assert refused not in possible


@pytest.mark.parametrize(("protocol", "bounds"), [
    (ALONE, Bounds(1, cancels=1, requeues=1, crashes=1, closes=1, asks=2)),
    (having(ASK, REVOKE, STOP, HOLD, INTERRUPT), Bounds(2, revokes=1, asks=1)),
    long(ALONE, Bounds(2, cancels=1, requeues=1, crashes=1, closes=1, asks=2)),
    long(having(ASK, REVOKE, STOP, HOLD, INTERRUPT), Bounds(2, revokes=1, stops=1, holds=1, asks=1)),
], ids=str)
def test_what_the_guards_rely_on_holds_in_every_state(protocol: Protocol, bounds: Bounds) -> None:
    """An unsettled question belongs to an active prompt that no call has canceled; subscribers know what is open."""
    explorer = Explorer(protocol, bounds)
    explorer.search()
    seen: set[Question] = set()
    for situation in explorer.situations:
        for session in situation.server.sessions:
            for p in session.prompts:
                if not SETTLED.keys().isdisjoint(p.asks):
                    assert p.state is State.ACTIVE
                    assert unreached(p)
                    assert not session.covered(p)
                assert p.asks == wish_of(p).asks
                assert wish_of(p).told == {n for n, question in enumerate(p.asks, 1) if question is Question.OPEN}
                seen.update(p.asks)
    assert seen == set(Question)


def test_every_property_of_questions_is_broken_by_a_mistake() -> None:
    """`test_variants` explores each of them, and finds exactly what it declares."""
    assert len(ASK_MISTAKES) == 33
    assert {p.id for p in ASK_PROPERTIES} <= {id for mistake in ASK_MISTAKES for id in mistake.breaks}
    shortest = {id: min(m.breaks.get(id, 99) for m in ASK_MISTAKES) for id in (p.id for p in ASK_PROPERTIES)}
    assert shortest == {"no-late-approval": 4, "tool-once": 6, "one-answer": 5, "answer-exact": 5, "answer-heard": 4,
                        "ask-settled": 4, "may-have-run": 6}
