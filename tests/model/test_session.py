"""The model's sessions, piece by piece: what searches and replays rely on and do not show by themselves."""

from dataclasses import replace

import pytest

from cancelmark.model.actions import ACTIONS, Actor, Reach
from cancelmark.model.effects import Acknowledge, Effect, End, Fold, Record, Start, Stop
from cancelmark.model.lifecycle import IllegalTrigger, Outcome, State, Trigger
from cancelmark.model.protocol import REFERENCE, with_history
from cancelmark.model.server import Call, Server, changes
from cancelmark.model.session import Prompt, Session, Step, label
from cancelmark.model.trace import replay


def test_words_that_are_printed_and_exported() -> None:
    assert [reach.value for reach in Reach] == ["nothing", "clear_queue", "cancel"]
    assert [label(seq) for seq in (1, 2, 26)] == ["A", "B", "Z"]
    assert Prompt(3, run_id=False).label == "C"


def test_a_prompt_that_is_not_there_is_named() -> None:
    with pytest.raises(LookupError, match="the session has no prompt B"):
        Session().prompt(2)


def test_an_illegal_trigger_says_what_the_guards_answered() -> None:
    prompt = Prompt(2, run_id=True, state=State.QUEUED)
    session = Session(mark=2, prompts=(Prompt(1, run_id=False, state=State.ACTIVE), prompt))
    step = Step(REFERENCE.table, session)
    with pytest.raises(IllegalTrigger, match=(
            r"^prompt B is queued with guards \[busy, covered, first, has_run_id\]: no row allows start$")):
        step.fire(prompt, Trigger.START)
    with pytest.raises(IllegalTrigger, match=r"^prompt A is accepted with guards \[first\]: no row allows settle$"):
        Step(REFERENCE.table, Session()).fire(Prompt(1, run_id=False), Trigger.SETTLE)
    assert (step.session, step.rows, step.effects) == (session, [], [])
    assert "A is accepted with guards [none]:" in str(IllegalTrigger("A", State.ACCEPTED, Trigger.SETTLE, []))
    assert "A is accepted: no row" in str(IllegalTrigger("A", State.ACCEPTED, Trigger.SETTLE))
    with pytest.raises(TypeError, match=r"^fire expects a Trigger, not 'start'; use one of Trigger\.ENTER, "):
        step.fire(prompt, "start")  # type: ignore[arg-type]


def test_finished_prompts_retire_and_the_others_stay() -> None:
    done, live = Prompt(1, run_id=False, state=State.DONE, outcome=Outcome.ERROR, ends=1), Prompt(2, run_id=True)
    session = Session(mark=1, prompts=(done, live))
    assert session.retire() == (Session(mark=1, prompts=(live,)), (done,))
    assert Session(mark=1, prompts=(live,)).retire() == (Session(mark=1, prompts=(live,)), ())


C, E = Outcome.CANCELED, Outcome.ERROR
ASKED = (  # every action, and what it asks for, in order
    ("accept A", Acknowledge(1)), ("enter A", Start(1)), ("accept B", Acknowledge(2)), ("enter B",),
    ("accept(C, run id)", Acknowledge(3)), ("enter C",),
    ("step A", Fold(2, into=1), End(2, Outcome.FOLDED, of=2)),
    ("requeue A", Start(1)),
    ("accept D", Acknowledge(4)),
    ("cancel", Stop(1), End(3, C, of=3)), ("cancel",),
    ("enter D",), ("settle D", Record(4), End(4, C, of=4)),
    ("accept E", Acknowledge(5)), ("enter E",), ("finish A canceled", End(1, C, of=1), Start(5)),
    ("accept F", Acknowledge(6)), ("fail F", End(6, E, of=6)),
    ("accept G", Acknowledge(7)), ("enter G",), ("accept H", Acknowledge(8)), ("enter H",),
    ("finish E error", End(5, E, of=5), Start(7)), ("accept I", Acknowledge(9)),
    ("crash",), ("recover", End(7, E, of=7), Start(8)),
    ("clear_queue", End(9, C, of=9)), ("finish H end_turn", End(8, Outcome.END_TURN, of=8)),
    ("accept J", Acknowledge(10)), ("enter J", Start(10)), ("accept K", Acknowledge(11)), ("enter K",),
    ("close", Stop(10), End(11, C, of=11)),
)


@pytest.mark.rule("R12a", "R13a", "R17a", "R17b")
def test_what_each_action_asks_for_is_as_it_is_written_here() -> None:
    """Model and runtime run the same actions, so that neither can judge the other: this is a second opinion."""
    trace = replay(REFERENCE, [call for call, *_ in ASKED])
    assert [list(step.effects) for step in trace.steps] == [effects for _, *effects in ASKED]
    assert {step.call.name for step in trace.steps} == {action.name for action in REFERENCE.actions}


# --- Several sessions ---------------------------------------------------------------------------------------------

TWO = Server(seq=3, sessions=(
    Session(prompts=(Prompt(1, run_id=False, state=State.ACTIVE), Prompt(3, run_id=True))),
    Session(prompts=(Prompt(2, run_id=False, state=State.QUEUED),))))


def test_a_server_starts_with_one_session_and_knows_its_prompts_and_their_homes() -> None:
    assert Server() == (0, False, (Session(),))
    assert [p.seq for p in TWO.prompts] == [1, 2, 3]
    assert [TWO.home(seq) for seq in (1, 2, 3)] == [0, 1, 0]


def test_a_call_is_written_as_people_read_it() -> None:
    by_name = {action.name: action for action in ACTIONS}
    assert [str(Call(by_name[name], 0, seq, variant)) for name, seq, variant in (
        ("accept", 1, True), ("accept", 2, False), ("finish", 1, Outcome.ERROR), ("cancel", None, None),
        ("enter", 3, None), ("enter", 3, "late"))] == [
        "accept(A, run id)", "accept(B)", "finish(A, error)", "cancel", "enter(C)", "enter(C, late)"]


def test_an_action_happens_in_one_session_or_once_in_all_of_them() -> None:
    calls = [(str(c.call), c.call.session, [i for i, _ in c.moves]) for c in changes(REFERENCE, TWO)]
    assert [c for c in calls if c[0] in ("cancel", "close", "crash", "accept(D)")] == [
        ("accept(D)", 0, [0]), ("cancel", 0, [0]), ("close", None, [0, 1]), ("crash", None, [0, 1]),
        ("accept(D)", 1, [1]), ("cancel", 1, [1])]
    [close] = [c for c in changes(REFERENCE, TWO) if c.call.name == "close"]
    assert (close.after.closing, close.after.seq) == (True, 3)
    assert close.effects == close.moves[0][1].effects + close.moves[1][1].effects
    assert close.rows == close.moves[0][1].rows + close.moves[1][1].rows
    assert [type(effect).__name__ for effect in close.effects] == ["Stop", "End"]
    assert {c.call.name for c in changes(REFERENCE, close.after)} == {
        "clear_queue", "cancel", "crash", "enter", "fail", "finish"}
    [accept] = [c for c in changes(REFERENCE, TWO) if str(c.call) == "accept(D, run id)" and c.call.session == 1]
    assert (accept.call.seq, accept.after.seq, accept.after.closing) == (4, 4, False)
    assert accept.after.sessions == (TWO.sessions[0], Session(prompts=(
        Prompt(2, run_id=False, state=State.QUEUED), Prompt(4, run_id=True))))


def test_actions_can_be_ruled_out_and_moves_can_come_from_a_cache() -> None:
    only_cancel = changes(REFERENCE, TWO, allowed=lambda action: action.name == "cancel")
    assert [str(c.call) for c in only_cancel] == ["cancel", "cancel"]
    asked: list[tuple[object, int]] = []

    def none(session: object, seq: int) -> tuple[()]:
        asked.append((session, seq))
        return ()

    assert list(changes(REFERENCE, TWO, none)) == []
    assert asked == [(session, 3) for session in TWO.sessions]


def test_the_system_acts_by_itself_where_no_caller_no_fault_and_no_bound_is_asked() -> None:
    assert {action.name for action in ACTIONS if action.system} == {
        "enter", "fail", "settle", "step", "finish", "recover"}
    assert not any(replace(action, bound=None).system for action in ACTIONS
                   if action.actor in (Actor.CLIENT, Actor.OPERATOR, Actor.FAULT))


def test_a_protocol_is_what_its_rows_and_actions_are() -> None:
    again = replace(REFERENCE)
    assert (again, hash(again)) == (REFERENCE, hash(REFERENCE))
    assert again != replace(REFERENCE, rows=REFERENCE.rows[1:])
    assert "table" not in repr(REFERENCE)
    assert REFERENCE.name == "ref", "as the command line and the matrix of revisions call it"


def test_an_observer_notes_the_strongest_reach_and_up_to_two_ends() -> None:
    by_name = {action.name: action for action in ACTIONS}
    one = Prompt(1, run_id=False, state=State.QUEUED, reach=Reach.CANCEL, ends=1)
    two = Prompt(2, run_id=False, state=State.QUEUED)
    before = Session(prompts=(one, two, Prompt(3, run_id=False)))

    def noted(action: str, *effects: Effect) -> list[tuple[Reach, int]]:
        step = Step(REFERENCE.table, before)
        step.effects += effects
        return [(p.reach, p.ends) for p in with_history(before, by_name[action], step).prompts]

    nothing, clear, cancel = Reach
    end = End(1, Outcome.ERROR, of=1)
    assert noted("step") == [(cancel, 1), (nothing, 0), (nothing, 0)]
    assert noted("clear_queue") == [(cancel, 1), (clear, 0), (nothing, 0)]
    assert noted("cancel", end) == [(cancel, 2), (cancel, 0), (cancel, 0)]
    assert noted("close", end, end) == [(cancel, 2), (cancel, 0), (cancel, 0)]
    assert noted("finish", End(2, Outcome.ERROR, of=2)) == [(cancel, 1), (nothing, 1), (nothing, 0)]
