"""The runtime's session against the model: every edge of the reachable graph, and what misuse can do."""


import pytest
from support.budget import long, one_for_each
from support.replayed_sessions import Sessions, restored, shape
from tools.replaying import replay

from cancelmark.impl.runtime.session import Counter, Restored, Session
from cancelmark.model.actions import Argument, Port, cancel
from cancelmark.model.lifecycle import Guard, IllegalTrigger, Outcome, State, Trigger
from cancelmark.model.properties import Bounds
from cancelmark.model.protocol import REFERENCE, Protocol
from cancelmark.model.variants.catalogue import BUGS, FLAWED, SILENT, VARIANTS, ProtocolVariant


@pytest.mark.rule(
    "R1a", "R2", "R3a", "R3b", "R4", "R5a", "R5b", "R6a", "R6b", "R8a", "R8b", "R9a", "R9b", "R9c", "R10a", "R10b",
    "R10c", "R10d", "R11a", "R11b", "R12a", "R12b", "R12c", "R12d", "R12e", "R13a", "R13b", "R15b", "R17a", "R17b",
    "R17c", "R17d", "R19b", "R19c", "R20",
)
@pytest.mark.parametrize(("bounds", "edges"), [
    (Bounds(2, cancels=1, requeues=1, crashes=1), 6_046),
    long(Bounds(3, cancels=2, clears=1), 124_573),
    long(Bounds(2, cancels=2, clears=1, requeues=1, crashes=1, closes=1), 76_879),
    (Bounds(3, cancels=1), 20_305),
    (Bounds(2, cancels=1, sessions=2), 5_298),
    long(Bounds(2, cancels=1, clears=1, sessions=2), 16_112),
], ids=str)
def test_every_edge_of_the_model_is_an_edge_of_the_runtime(bounds: Bounds, edges: int) -> None:
    """Coverage: edges replayed / edges reachable = 100 %, and what the model does not allow is refused."""
    assert replay(Sessions, bounds) == edges


@pytest.mark.parametrize("bug", one_for_each(lambda bug: bug.breaks or ["nothing"], [
    bug for bug in (*BUGS, *SILENT, *FLAWED) if not bug.only_in_model]), ids=lambda bug: bug.name)
def test_every_seeded_bug_of_the_model_runs_on_the_runtimes_session(bug: ProtocolVariant) -> None:
    """The protocol is a value: with a bug in it, model and runtime are still the same protocol."""
    assert run_on_session(bug.protocol, bug.bounds)


def run_on_session(protocol: Protocol, bounds: Bounds) -> int:
    return replay(type("Changed", (Sessions,), {"protocol": protocol}), bounds, protocol)


def test_what_cannot_run_there_is_listed() -> None:
    assert {bug.name for bug in VARIANTS.values() if bug.only_in_model} == {
        "recovery forgets the queue", "a crash forgets what was accepted"}


@pytest.mark.rule("R12d", "R19c")
def test_an_illegal_call_changes_nothing() -> None:
    session = Session("s", Counter())
    prompt, _ = session.accept("hello", "run-1")
    before = shape(session)
    with pytest.raises(IllegalTrigger, match=r"1 of session s \(run id run-1\) is accepted: no row allows settle"):
        session.take("settle", prompt)
    with pytest.raises(IllegalTrigger):
        session.take("finish", prompt, Outcome.END_TURN)
    assert shape(session) == before
    session.take("enter", prompt)
    with pytest.raises(IllegalTrigger, match=r"is active: no row allows finish \(canceled\)"):
        session.take("finish", prompt, Outcome.CANCELED)
    assert prompt.state is State.ACTIVE


def test_a_session_that_is_down_takes_nothing_but_recover() -> None:
    session = restored("s", Counter(1), 0, [(1, "hello", None, State.ACTIVE)])
    with pytest.raises(RuntimeError, match="down; recover it first"):
        session.take("cancel")
    session.take("recover")
    assert not session.prompts
    with pytest.raises(RuntimeError, match="not down"):
        session.take("recover")


def test_finished_prompts_leave_memory() -> None:
    session = Session("s", Counter())
    for _ in range(1000):
        prompt, _ = session.accept()
        session.take("enter", prompt)
        session.take("finish", prompt, Outcome.END_TURN)
    assert not session.prompts
    assert not session.queue


def test_a_step_tells_what_was_done_to_whom_and_where_the_mark_is() -> None:
    session = Session("s", Counter())
    a, accepted = session.accept("hello")
    b, _ = session.accept(run_id="run-1")
    steps = [accepted, session.take("enter", a), session.take("enter", b), session.take("requeue", a),
             session.take("cancel"), session.take("finish", a, Outcome.CANCELED), session.take("clear_queue"),
             session.take("close")]
    c, _ = session.accept()
    d, _ = session.accept()
    steps += [session.take("fail", c), session.take("cancel"), session.take("enter", d), session.take("settle", d)]
    assert [(s.action, s.prompt, s.variant, s.mark) for s in steps] == [
        ("accept", a, False, 0), ("enter", a, None, 0), ("enter", b, None, 0),
        ("requeue", a, None, 0), ("cancel", None, None, 2), ("finish", a, Outcome.CANCELED, 2),
        ("clear_queue", None, None, 2), ("close", None, None, 2), ("fail", c, None, 2), ("cancel", None, None, 4),
        ("enter", d, None, 4), ("settle", d, None, 4)]
    assert [[(p.seq, row.name) for p, row in s.moved] for s in steps] == [
        [], [(1, "enter→active")], [(2, "enter→queued")], [(1, "requeue→queued"), (1, "start→active")],
        [(2, "drop→done")], [(1, "finish_canceled→done")], [], [], [(3, "fail→done")], [],
        [(4, "enter→canceled_on_entry")], [(4, "settle→done")]]
    assert (a.text, b.text, repr(a), repr(b)) == ("hello", "", "1 of session s", "2 of session s (run id run-1)")
    assert [p.outcome for p in (a, b, c, d)] == [
        Outcome.CANCELED, Outcome.CANCELED, Outcome.ERROR, Outcome.CANCELED]
    for prompt in (session.accept()[0], session.accept()[0], session.accept()[0]):
        session.take("enter", prompt)
    assert [(p.seq, row.name) for p, row in session.take("clear_queue").moved] == [(6, "drop→done"), (7, "drop→done")]


def test_a_step_that_takes_in_nobody_is_refused() -> None:
    session = Session("s", Counter())
    a, b, c = (session.accept(run_id=run_id)[0] for run_id in (None, "run-1", None))
    session.take("enter", a)
    session.take("enter", b)
    assert not session.can("step", a), "what is queued has a run id"
    with pytest.raises(IllegalTrigger, match="is active: no row allows step"):
        session.take("step", a)
    session.take("enter", c)
    assert session.can("step", a)
    step = session.take("step", a)
    assert (step.action, step.prompt, step.variant, step.mark) == ("step", a, None, 0)
    assert [(p.seq, row.name) for p, row in step.moved] == [(3, "fold→done")]


def test_a_session_that_has_failed_in_the_middle_of_a_step_takes_nothing_more_until_it_is_reloaded() -> None:
    def cancel_twice(step: Port, arg: Argument) -> None:
        cancel(step, arg)
        for prompt in step.active:
            step.fire(prompt, Trigger.SETTLE)

    session = Session("s", Counter(), protocol=REFERENCE.changed("broken", cancel={"apply": cancel_twice}))
    for run_id in ("run-1", "run-2", None):
        session.take("enter", session.accept(run_id=run_id)[0])
    with pytest.raises(IllegalTrigger, match="settle"):
        session.take("cancel")
    with pytest.raises(RuntimeError, match="halfway through cancel; reload it first"):
        session.take("clear_queue")
    session.reload(0, [Restored(1, "", "run-1", State.ACTIVE), Restored(2, "", "run-2", State.QUEUED)])
    assert [p.seq for p, _ in session.take("clear_queue").moved] == [2]


def test_a_session_answers_every_guard_of_its_prompts() -> None:
    session = restored("s", Counter(4), 1, [
        (3, "b", None, State.QUEUED), (1, "c", None, State.ACTIVE), (4, "a", None, State.ACCEPTED),
        (2, "d", "run-1", State.QUEUED)])
    prompts = list(session.prompts.values())
    assert [p.text for p in prompts] == ["c", "d", "b", "a"], "in order of seq"

    def answers(guard: Guard) -> list[bool]:
        return [session.holds(p, guard) for p in prompts]

    assert answers(Guard.COVERED) == [p.covered for p in prompts] == [True, False, False, False]
    assert answers(Guard.FIRST) == [True, True, False, False]
    assert answers(Guard.HAS_RUN_ID) == [False, True, False, False]
    assert all(answers(Guard.BUSY))
    session.down = False
    assert all(answers(Guard.BUSY))
    session.active, session.queue = [], []
    assert not any(answers(Guard.BUSY))
    assert all(answers(Guard.FIRST))
    session.down = True
    assert all(answers(Guard.BUSY))


def test_a_recovery_tells_what_it_did_in_order_of_seq() -> None:
    session = restored("s", Counter(3), 0, [
        (3, "", None, State.ACCEPTED), (2, "", None, State.ACCEPTED), (1, "", None, State.ACTIVE)])
    session.prompts = dict(reversed(session.prompts.items()))
    steps = session.take("recover")
    assert (steps.action, steps.prompt, steps.variant, steps.mark) == ("recover", None, None, 0)
    assert [(p.seq, row.name) for p, row in steps.moved] == [
        (1, "interrupt→done"), (2, "enter→queued"), (3, "enter→queued"), (2, "start→active")]
