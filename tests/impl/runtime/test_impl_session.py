"""The runtime's session against the model: every edge of the reachable graph, and what misuse can do."""

import pytest
from tools.replaying import Asked, View, asked, replay

from cancelmark.impl.runtime.session import Counter, Effects, Prompt, Session
from cancelmark.model.lifecycle import IllegalTrigger, Outcome, State
from cancelmark.model.properties import Bounds


class Sessions:
    """The runtime's sessions as the server that `replaying` knows."""

    def __init__(self, sessions: int) -> None:
        self.counter = Counter()
        self.closing = False
        self.sessions = [Session(str(i), self.counter) for i in range(sessions)]
        self.prompts: dict[int, Prompt] = {}

    def accept(self, session: int, run_id: bool) -> list[Asked]:
        if self.closing:
            raise RuntimeError("closing")
        prompt, effects = self.sessions[session].accept(run_id="id" if run_id else None)
        self.prompts[prompt.seq] = prompt
        return self.told(effects)

    def enter(self, seq: int) -> list[Asked]:
        return self.on_prompt("enter", seq)

    def fail(self, seq: int) -> list[Asked]:
        return self.on_prompt("fail", seq)

    def settle(self, seq: int) -> list[Asked]:
        return self.on_prompt("settle", seq)

    def step(self, seq: int) -> list[Asked]:
        return self.on_prompt("step", seq)

    def requeue(self, seq: int) -> list[Asked]:
        return self.on_prompt("requeue", seq)

    def finish(self, seq: int, outcome: str) -> list[Asked]:
        return self.on_prompt("finish", seq, Outcome(outcome))

    def cancel(self, session: int) -> list[Asked]:
        return self.told(self.sessions[session].cancel())

    def clear_queue(self, session: int) -> list[Asked]:
        return self.told(self.sessions[session].clear_queue())

    def close(self) -> list[Asked]:
        if self.closing:
            raise RuntimeError("closing")
        self.closing = True
        return [effect for session in self.sessions for effect in self.told(session.cancel())]

    def crash(self) -> list[Asked]:
        """What a restart finds in the journal."""
        self.sessions = [
            Session.restored(s.id, self.counter, s.mark, [(p.seq, "", p.run_id, p.state) for p in s.prompts.values()])
            for s in self.sessions]
        self.prompts.update((seq, prompt) for s in self.sessions for seq, prompt in s.prompts.items())
        return []

    def recover(self) -> list[Asked]:
        effects = [effect for session in self.sessions for effect in self.told(session.recover())]
        self.closing = False
        return effects

    def view(self, session: int) -> View:
        return shape(self.sessions[session])

    def on_prompt(self, action: str, seq: int, *arguments: Outcome) -> list[Asked]:
        prompt = self.prompts[seq]
        return self.told(getattr(prompt.session, action)(prompt, *arguments))

    def told(self, effects: Effects) -> list[Asked]:
        return [asked(effect) for effect in effects]


def shape(session: Session) -> View:
    """What can be compared, once queue and active are seen to agree with it."""
    prompts = sorted(session.prompts.values(), key=lambda p: p.seq)
    assert session.queue == [p for p in prompts if p.state is State.QUEUED]
    assert [session.active] == [p for p in prompts if p.state is State.ACTIVE] or session.active is None
    return session.mark, {p.seq: p.state.value for p in prompts}


@pytest.mark.rule(
    "R1a", "R2", "R3a", "R3b", "R4", "R5a", "R5b", "R6a", "R6b", "R8a", "R8b", "R9a", "R9b", "R9c", "R10a", "R10b",
    "R10c", "R10d", "R11a", "R11b", "R12a", "R12b", "R12c", "R12d", "R12e", "R13a", "R13b", "R15b", "R17a", "R17b",
    "R17c", "R17d", "R19b", "R19c", "R20",
)
@pytest.mark.parametrize(("bounds", "edges"), [
    (Bounds(2, cancels=1, requeues=1, crashes=1), 6_046),
    (Bounds(3, cancels=2, clears=1), 124_573),
    (Bounds(2, cancels=2, clears=1, requeues=1, crashes=1, closes=1), 76_879),
    (Bounds(2, cancels=1, clears=1, sessions=2), 16_112),
], ids=str)
def test_every_edge_of_the_model_is_an_edge_of_the_runtime(bounds: Bounds, edges: int) -> None:
    """Coverage: edges replayed / edges reachable = 100 %, and what the model does not allow is refused."""
    assert replay(Sessions, bounds) == edges


@pytest.mark.rule("R12d", "R19c")
def test_an_illegal_call_changes_nothing() -> None:
    session = Session("s", Counter())
    prompt, _ = session.accept("hello", "run-1")
    before = shape(session)
    with pytest.raises(IllegalTrigger, match=r"1 of session s \(run id run-1\) is accepted: no row lets it settle"):
        session.settle(prompt)
    with pytest.raises(IllegalTrigger):
        session.finish(prompt, Outcome.END_TURN)
    assert shape(session) == before
    session.enter(prompt)
    with pytest.raises(IllegalTrigger, match="finish_canceled"):
        session.finish(prompt, Outcome.CANCELED)
    assert prompt.state is State.ACTIVE


def test_a_session_that_is_down_takes_nothing_but_recover() -> None:
    session = Session.restored("s", Counter(1), 0, [(1, "hello", None, State.ACTIVE)])
    with pytest.raises(RuntimeError, match="down: recover it first"):
        session.cancel()
    session.recover()
    assert not session.prompts
    with pytest.raises(RuntimeError, match="not down"):
        session.recover()


def test_finished_prompts_leave_memory() -> None:
    session = Session("s", Counter())
    for _ in range(1000):
        prompt, _ = session.accept()
        session.enter(prompt)
        session.finish(prompt, Outcome.END_TURN)
    assert not session.prompts
    assert not session.queue


def test_a_step_tells_what_was_done_to_whom_and_where_the_mark_is() -> None:
    session = Session("s", Counter())
    a, accepted = session.accept("hello")
    b, _ = session.accept(run_id="run-1")
    steps = [accepted, session.enter(a), session.enter(b), session.step(a), session.requeue(a), session.cancel(),
             session.finish(a, Outcome.CANCELED), session.clear_queue(), session.cancel("close")]
    c, _ = session.accept()
    d, _ = session.accept()
    steps += [session.fail(c), session.cancel(), session.enter(d), session.settle(d)]
    assert [(s.action, s.prompt, s.variant, s.mark) for s in steps] == [
        ("accept", a, False, 0), ("enter", a, None, 0), ("enter", b, None, 0), ("step", a, None, 0),
        ("requeue", a, None, 0), ("cancel", None, None, 2), ("finish", a, Outcome.CANCELED, 2),
        ("clear_queue", None, None, 2), ("close", None, None, 2), ("fail", c, None, 2), ("cancel", None, None, 4),
        ("enter", d, None, 4), ("settle", d, None, 4)]
    assert [[(p.seq, row.name) for p, row in s.moved] for s in steps] == [
        [], [(1, "enter→active")], [(2, "enter→queued")], [], [(1, "requeue→queued"), (1, "start→active")],
        [(2, "drop→done")], [(1, "finish_canceled→done")], [], [], [(3, "fail→done")], [],
        [(4, "enter→canceled_on_entry")], [(4, "settle→done")]]
    assert (a.text, b.text, repr(a), repr(b)) == ("hello", "", "1 of session s", "2 of session s (run id run-1)")
    assert [p.outcome for p in (a, b, c, d)] == [
        Outcome.CANCELED, Outcome.CANCELED, Outcome.ERROR, Outcome.CANCELED]
    for prompt in (session.accept()[0], session.accept()[0], session.accept()[0]):
        session.enter(prompt)
    assert [(p.seq, row.name) for p, row in session.clear_queue().moved] == [(6, "drop→done"), (7, "drop→done")]


def test_a_session_answers_every_guard_of_its_prompts() -> None:
    session = Session.restored("s", Counter(4), 1, [
        (3, "b", None, State.QUEUED), (1, "c", None, State.ACTIVE), (4, "a", None, State.ACCEPTED),
        (2, "d", "run-1", State.QUEUED)])
    prompts = list(session.prompts.values())
    assert [p.text for p in prompts] == ["c", "d", "b", "a"], "in order of seq"
    assert [p.covered for p in prompts] == [True, False, False, False]
    assert [p.first for p in prompts] == [True, True, False, False]
    assert [p.has_run_id for p in prompts] == [False, True, False, False]
    assert all(p.busy for p in prompts)
    session.down = False
    assert all(p.busy for p in prompts)
    session.active, session.queue = None, []
    assert not any(p.busy for p in prompts)
    assert all(p.first for p in prompts)
    session.down = True
    assert all(p.busy for p in prompts)


def test_a_recovery_tells_what_it_did_in_order_of_seq() -> None:
    session = Session.restored("s", Counter(3), 0, [
        (3, "", None, State.ACCEPTED), (2, "", None, State.ACCEPTED), (1, "", None, State.ACTIVE)])
    session.prompts = dict(reversed(session.prompts.items()))
    steps = session.recover()
    assert (steps.action, steps.prompt, steps.variant, steps.mark) == ("recover", None, None, 0)
    assert [(p.seq, row.name) for p, row in steps.moved] == [
        (1, "interrupt→done"), (2, "enter→queued"), (3, "enter→queued"), (2, "start→active")]
