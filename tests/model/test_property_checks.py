"""Each property by itself: the smallest steps that break it, and their neighbours that do not."""

from dataclasses import replace

import pytest

from cancelmark.model.actions import ACTIONS, Reach
from cancelmark.model.effects import Effect, End, Fold, Record, Report, Start, Stop
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.properties import PROPERTIES, Bounds, Kind, ServerStep, SessionStep, goals
from cancelmark.model.protocol import REFERENCE, Move
from cancelmark.model.server import Server, changes
from cancelmark.model.session import Prompt, Session

ACCEPTED, ON_ENTRY, QUEUED, ACTIVE, DONE = State
END_TURN, ERROR, CANCELED, FOLDED = Outcome
BY_NOTHING, BY_CLEAR, BY_CANCEL = Reach
CHECKS = {p.id: p for p in PROPERTIES}


def prompt(seq: int, state: State, outcome: Outcome | None = None, reach: Reach = BY_NOTHING, ends: int = 0,
           run_id: bool = False) -> Prompt:
    return Prompt(seq, run_id, state, outcome, reach, ends)


def step(before: list[Prompt], after: list[Prompt], *effects: Effect, call: str = "finish") -> SessionStep:
    action = replace(ACTIONS[0], name=call)
    last = Session(prompts=tuple(after))
    return SessionStep.of(Session(prompts=tuple(before)), Move(action, None, None, last, effects, (), *last.retire()))


A, B, C = prompt(1, ACTIVE), prompt(2, QUEUED), prompt(3, ACTIVE)
DONE_A = prompt(1, DONE, END_TURN, ends=1)
STOPPED_A = prompt(1, ACTIVE, reach=BY_CANCEL)

BROKEN: list[tuple[str, SessionStep]] = [
    ("no-poisoning", step([B], [prompt(2, DONE, CANCELED)])),
    ("no-poisoning", step([B], [prompt(2, ON_ENTRY)])),
    ("no-poisoning", step([A, B], [prompt(1, DONE, CANCELED, BY_CANCEL), prompt(2, DONE, CANCELED)])),
    ("no-late-fold", step([STOPPED_A, B], [STOPPED_A, prompt(2, DONE, FOLDED)], Fold(2, into=1))),
    ("cancel-stops", step([A], [STOPPED_A], call="cancel")),
    ("cancel-stops", step([A], [prompt(1, DONE, CANCELED, BY_CANCEL)], call="cancel")),
    ("cancel-stops", step([A, B], [STOPPED_A, prompt(2, DONE, CANCELED, BY_CANCEL)], Stop(2), call="cancel")),
    ("cancel-stops", step([A, C], [STOPPED_A, prompt(3, ACTIVE, reach=BY_CANCEL)], Stop(1), call="close")),
    ("cancel-stops", step([A], [A], Stop(1), call="clear_queue")),
    ("queue-dropped", step([A, B], [A, prompt(2, QUEUED, reach=BY_CLEAR)], call="clear_queue")),
    ("queue-dropped", step([A, B], [A, prompt(2, DONE, ERROR, BY_CLEAR)], call="clear_queue")),
    ("queue-dropped", step([A, B], [STOPPED_A, prompt(2, QUEUED, reach=BY_CANCEL)], Stop(1), call="cancel")),
    ("queue-dropped", step([A, B], [STOPPED_A, prompt(2, DONE, ERROR, BY_CANCEL)], Stop(1), call="close")),
    ("queue-dropped", step([prompt(2, DONE, CANCELED, BY_CLEAR)], [prompt(2, ACTIVE, reach=BY_CLEAR)], Start(2))),
    ("no-lost-cancel", step([B], [prompt(2, ACTIVE, reach=BY_CANCEL)], Start(2))),
    ("no-lost-cancel", step([A, B], [A, prompt(2, DONE, FOLDED, BY_CANCEL)], Fold(2, into=1))),
    ("no-lost-cancel", step([prompt(1, ACCEPTED)], [prompt(1, DONE, ERROR, BY_CANCEL)])),
    ("no-lost-cancel", step([A, B], [A, prompt(2, DONE, ERROR, BY_CANCEL)])),
    ("no-loss", step([A, B], [A])),
    ("no-loss", step([A], [B])),
    ("one-terminal", step([A], [A, prompt(2, DONE, ERROR, ends=2)])),
    ("single-active", step([A, B], [A, prompt(2, ACTIVE)])),
    ("fifo", step([A, B, prompt(3, QUEUED)], [A, B, prompt(3, ACTIVE)], Start(3))),
    ("fifo", step([A, B], [A, B], Start(2))),
    ("no-absorption", step([A, prompt(2, QUEUED, run_id=True)], [A], Fold(2, into=1))),
    ("no-absorption", step([A, prompt(2, QUEUED, run_id=True), prompt(3, QUEUED)], [A], Fold(3, 1), Fold(2, 1))),
    ("attribution", step([A, B], [DONE_A, B], End(1, END_TURN, of=2))),
    ("attribution", step([A, B], [DONE_A, B], End(1, END_TURN, of=1), Report(1, of=2))),
    ("attribution", step([A, B], [DONE_A, B], End(1, ERROR, of=1))),
    ("idle-cancel-noop", step([DONE_A], [DONE_A], Start(1), call="cancel")),
    ("idle-cancel-noop", step([DONE_A], [], call="cancel")),
    ("record", step([prompt(1, ON_ENTRY)], [prompt(1, DONE, CANCELED)])),
    ("record", step([prompt(1, ON_ENTRY)], [prompt(1, DONE, CANCELED)], Record(2))),
    ("record", step([prompt(1, ON_ENTRY), prompt(2, ON_ENTRY)], [prompt(1, DONE), prompt(2, DONE)], Record(2))),
    ("prompt-terminal", step([A, B], [DONE_A, prompt(2, ACTIVE)], Start(2), End(1, END_TURN, of=1))),
    ("prompt-terminal", step([A, B], [prompt(1, DONE, END_TURN), prompt(2, ACTIVE)], Start(2))),
]
HOLDS: list[tuple[str, SessionStep]] = [
    ("no-poisoning", step([B], [prompt(2, DONE, CANCELED, BY_CLEAR)])),
    ("no-poisoning", step([B], [prompt(2, ON_ENTRY, reach=BY_CANCEL)])),
    ("no-poisoning", step([A], [prompt(1, DONE, ERROR)])),
    ("no-late-fold", step([A, B], [A, prompt(2, DONE, FOLDED)], Fold(2, into=1))),
    ("cancel-stops", step([A], [STOPPED_A], Stop(1), call="cancel")),
    ("cancel-stops", step([STOPPED_A], [STOPPED_A], call="cancel")),
    ("cancel-stops", step([STOPPED_A], [STOPPED_A], Stop(1), call="cancel")),
    ("cancel-stops", step([B], [prompt(2, DONE, CANCELED, BY_CANCEL)], call="cancel")),
    ("cancel-stops", step([A, B], [A, prompt(2, DONE, CANCELED, BY_CLEAR)], call="clear_queue")),
    ("queue-dropped", step([A, B], [A, prompt(2, DONE, CANCELED, BY_CLEAR)], call="clear_queue")),
    ("queue-dropped", step([A, B], [STOPPED_A, prompt(2, DONE, CANCELED, BY_CANCEL)], Stop(1), call="cancel")),
    ("queue-dropped", step([prompt(2, ACCEPTED)], [prompt(2, ACCEPTED, reach=BY_CANCEL)], call="cancel")),
    ("queue-dropped", step([A, B], [DONE_A, prompt(2, ACTIVE)], Start(2))),
    ("no-lost-cancel", step([B], [prompt(2, ACTIVE)], Start(2))),
    ("no-lost-cancel", step([B], [prompt(2, ACTIVE, reach=BY_CLEAR)], Start(2))),
    ("no-lost-cancel", step([A, B], [A, prompt(2, DONE, FOLDED)], Fold(2, into=1))),
    ("no-lost-cancel", step([A], [prompt(1, DONE, ERROR, BY_CANCEL)])),
    ("no-lost-cancel", step([prompt(1, ACCEPTED)], [prompt(1, DONE, CANCELED, BY_CANCEL)])),
    ("no-lost-cancel", step([prompt(1, ACCEPTED)], [prompt(1, ON_ENTRY, reach=BY_CANCEL)])),
    ("no-lost-cancel", step([B], [prompt(2, DONE, ERROR, BY_CLEAR)])),
    ("no-lost-cancel", step([prompt(1, DONE, ERROR, BY_CANCEL), B], [prompt(1, DONE, ERROR, BY_CANCEL), B])),
    ("no-lost-cancel", step([A, B], [prompt(1, DONE, ERROR, BY_CANCEL), B])),
    ("no-loss", step([A], [A, B])),
    ("no-loss", step([A, B], [B, DONE_A])),
    ("one-terminal", step([A], [DONE_A, B])),
    ("single-active", step([A], [A, B])),
    ("single-active", step([A], [DONE_A])),
    ("fifo", step([B, prompt(3, QUEUED)], [prompt(2, ACTIVE), prompt(3, QUEUED)], Start(2))),
    ("no-absorption", step([A, B, prompt(3, QUEUED, run_id=True)], [A], Fold(2, into=1))),
    ("attribution", step([A, B], [DONE_A, B], End(1, END_TURN, of=1), Report(1, of=1))),
    ("idle-cancel-noop", step([DONE_A], [DONE_A], call="cancel")),
    ("idle-cancel-noop", step([DONE_A, B], [DONE_A], Start(2), call="cancel")),
    ("idle-cancel-noop", step([DONE_A], [DONE_A], Record(1), call="clear_queue")),
    ("record", step([prompt(1, ON_ENTRY)], [prompt(1, DONE, CANCELED)], Record(1))),
    ("record", step([prompt(1, ON_ENTRY)], [prompt(1, ON_ENTRY)])),
    ("record", step([A], [DONE_A])),
    ("prompt-terminal", step([A, B], [DONE_A, prompt(2, ACTIVE)], End(1, END_TURN, of=1), Start(2))),
    ("prompt-terminal", step([A], [prompt(1, DONE, END_TURN)], End(1, END_TURN, of=1))),
]


@pytest.mark.parametrize(("id", "seen", "holds"), [
    *((id, seen, False) for id, seen in BROKEN), *((id, seen, True) for id, seen in HOLDS)])
def test_a_step_of_a_session(id: str, seen: SessionStep, holds: bool) -> None:
    check = CHECKS[id].on_session
    assert check is not None
    assert check(seen) is holds


@pytest.mark.parametrize(("id", "seen", "holds"), [
    ("isolation", ServerStep("cancel", 0, (False, False), frozenset({0})), True),
    ("isolation", ServerStep("cancel", 0, (False, False), frozenset()), True),
    ("isolation", ServerStep("cancel", 0, (False, False), frozenset({1})), False),
    ("isolation", ServerStep("cancel", 0, (False, False), frozenset({0, 1})), False),
    *(("isolation", ServerStep(call, None, (False, False), frozenset({0, 1})), True)
      for call in ("close", "crash", "recover")),
    ("closed", ServerStep("accept", 0, (False, False), frozenset({0})), True),
    ("closed", ServerStep("accept", 0, (True, True), frozenset({0})), False),
    ("closed", ServerStep("close", None, (False, True), frozenset()), True),
    ("closed", ServerStep("close", None, (False, False), frozenset()), False),
    ("closed", ServerStep("cancel", 0, (True, True), frozenset()), True),
    ("closed", ServerStep("cancel", 0, (True, False), frozenset()), False),
    ("closed", ServerStep("cancel", 0, (False, True), frozenset()), False),
    ("closed", ServerStep("recover", None, (True, False), frozenset()), True),
])
def test_a_step_of_the_server(id: str, seen: ServerStep, holds: bool) -> None:
    check = CHECKS[id].on_server
    assert check is not None
    assert check(seen) is holds


@pytest.mark.parametrize(("id", "seen", "holds"), [
    ("all-done", A, False), ("all-done", DONE_A, True), ("all-done", prompt(1, DONE), True),
    ("some-terminal", prompt(1, DONE), False), ("some-terminal", DONE_A, True),
    ("some-terminal", prompt(1, DONE, ends=2), True),
])
def test_a_prompt_at_rest(id: str, seen: Prompt, holds: bool) -> None:
    check = CHECKS[id].at_rest
    assert check is not None
    assert check(seen) is holds


def test_every_property_but_progress_is_here_both_broken_and_kept() -> None:
    on_session = {p.id for p in PROPERTIES if p.on_session}
    assert {id for id, _ in BROKEN} == {id for id, _ in HOLDS} == on_session
    assert {p.id for p in PROPERTIES} - on_session == {"isolation", "closed", "all-done", "some-terminal", "progress"}
    assert {p.id for p in PROPERTIES if p.kind is Kind.LIVENESS} == {"all-done", "some-terminal", "progress"}


def test_a_step_is_read_from_a_move() -> None:
    before = [A, B, prompt(3, QUEUED)]
    effects = (Fold(2, into=1), End(2, FOLDED, of=2), Start(3), Record(3))
    seen = step(before, [A], *effects)
    assert (seen.call, seen.started, seen.folded, seen.into, seen.ended) == (
        "finish", [prompt(3, QUEUED)], [B], [A], [End(2, FOLDED, of=2)])
    assert (seen.before.prompts, seen.after.prompts, seen.effects) == (tuple(before), (A,), effects)


def test_a_step_of_the_server_is_read_from_a_change() -> None:
    server = Server(sessions=(Session(), Session()))
    by_call = {(str(c.call), c.call.session): ServerStep.of(server, c) for c in changes(REFERENCE, server)}
    assert by_call["accept(A)", 1] == ("accept", 1, (False, False), {1})
    assert by_call["cancel", 0] == ("cancel", 0, (False, False), set())
    assert by_call["close", None] == ("close", None, (False, True), set())
    assert by_call["crash", None] == ("crash", None, (False, False), {0, 1})


def test_bounds_are_compared_counted_and_printed() -> None:
    assert vars(Bounds()) == {"prompts": 3, "cancels": 0, "clears": 0, "requeues": 0, "crashes": 0, "closes": 0,
                              "revokes": 0, "stops": 0, "holds": 0, "replaces": 0, "nexts": 0, "asks": 0,
                              "sessions": 1}
    assert str(Bounds(2, 1, 2, 3, 4, 5, sessions=2)) == (
        "prompts=2 cancels=1 clears=2 requeues=3 crashes=4 closes=5 sessions=2")
    assert str(Bounds(1)) == "prompts=1"
    one, more = Bounds(2, cancels=1), Bounds(2, cancels=2)
    assert more.allows(one)
    assert one.allows(one)
    assert not one.allows(more)
    assert not Bounds(3).allows(one)
    for name in ("prompts", "sessions"):
        with pytest.raises(ValueError, match=f"{name}=0 leave nothing to explore: {name} must be at least 1"):
            Bounds(**{name: 0})
    with pytest.raises(ValueError, match="bounds with clears=-1"):
        Bounds(clears=-1)


def test_goals_are_those_of_rows_and_without_rows_there_are_none() -> None:
    names = [goal.id for goal in goals(REFERENCE, Bounds(1))]
    assert len(names) == len(set(names)) == len(REFERENCE.rows) + len(Outcome) + len(REFERENCE.actions)
    assert goals(replace(REFERENCE, rows=()), Bounds(1)) == []
