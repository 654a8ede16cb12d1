"""The model's session, piece by piece: what searches and replays rely on and do not show by themselves."""

import pytest

from cancelmark.model.lifecycle import IllegalTrigger, Outcome, State, Trigger
from cancelmark.model.session import REFERENCE, Prompt, Reach, Session, Step, label


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
            r"^prompt B is queued with guards \[busy, covered, first, has_run_id\]: no row lets it start$")):
        step.fire(prompt, Trigger.START)
    with pytest.raises(IllegalTrigger, match=r"^prompt A is accepted with guards \[first\]: no row lets it settle$"):
        Step(REFERENCE.table, Session()).fire(Prompt(1, run_id=False), Trigger.SETTLE)
    assert (step.session, step.rows, step.effects) == (session, [], [])
    assert "A is accepted with guards [none]:" in str(IllegalTrigger("A", State.ACCEPTED, Trigger.SETTLE, []))
    assert "A is accepted: no row" in str(IllegalTrigger("A", State.ACCEPTED, Trigger.SETTLE))


def test_finished_prompts_retire_and_the_others_stay() -> None:
    done, live = Prompt(1, run_id=False, state=State.DONE, outcome=Outcome.ERROR, ends=1), Prompt(2, run_id=True)
    session = Session(mark=1, prompts=(done, live))
    assert session.retire() == (Session(mark=1, prompts=(live,)), (done,))
    assert Session(mark=1, prompts=(live,)).retire() == (Session(mark=1, prompts=(live,)), ())
