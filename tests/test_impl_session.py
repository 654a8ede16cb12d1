"""The runtime's session against the model: every edge of the reachable graph, and what threads and misuse can do."""

import threading

import pytest

from cancelmark.impl.session import Counter, Prompt, Session
from cancelmark.model.explore import SITUATION_MASK, Explorer
from cancelmark.model.lifecycle import IllegalTrigger, Outcome, State
from cancelmark.model.properties import Bounds
from cancelmark.model.server import Change, Server
from cancelmark.model.session import REFERENCE, Effect
from cancelmark.model.session import Session as ModelSession


def build(server: Server) -> list[Session]:
    """The runtime's sessions in the state that the model's are in."""
    counter = Counter(server.seq)
    sessions = []
    for number, model in enumerate(server.sessions):
        session = Session.restored(str(number), counter, model.mark, (
            (p.seq, "", "id" if p.run_id else None, p.state) for p in model.live))
        session.down = model.down
        sessions.append(session)
    return sessions


def shape(session: Session | ModelSession) -> object:
    """What can be compared: the mark, whether it is down, and the prompts that are not done."""
    if isinstance(session, ModelSession):
        return session.mark, session.down, [(p.seq, p.run_id, p.state) for p in session.live]
    prompts = sorted(session.prompts.values(), key=lambda p: p.seq)
    assert session.queue == [p for p in prompts if p.state is State.QUEUED]
    assert [session.active] == [p for p in prompts if p.state is State.ACTIVE] or session.active is None
    return session.mark, session.down, [(p.seq, p.has_run_id, p.state) for p in prompts]


def apply(sessions: list[Session], change: Change) -> list[Effect]:
    """The same call at run time."""
    call = change.call
    affected = sessions if call.session is None else [sessions[call.session]]
    effects: list[Effect] = []
    for session in affected:
        if call.name == "accept":
            effects += session.accept(run_id="id" if call.variant is True else None)[1]
        elif call.name in ("cancel", "clear_queue", "recover"):
            effects += getattr(session, call.name)()
        elif call.name == "close":
            effects += session.cancel()
        elif call.name == "crash":
            session.down = True
        else:
            assert call.seq is not None
            arguments = (call.variant,) if call.name == "finish" else ()
            effects += getattr(session, call.name)(session.prompts[call.seq], *arguments)
    return effects


@pytest.mark.parametrize(("bounds", "edges"), [
    (Bounds(3, cancels=2, clears=1), 124_573),
    (Bounds(2, cancels=2, clears=1, requeues=1, crashes=1, closes=1), 76_879),
    (Bounds(2, cancels=1, clears=1, sessions=2), 16_112),
], ids=str)
def test_every_edge_of_the_model_is_an_edge_of_the_runtime(bounds: Bounds, edges: int) -> None:
    """Coverage: edges replayed / edges reachable = 100 %. A done prompt is in neither side's session, so all states
    with the same situation are one replay; each edge counts as often as it occurs."""
    explorer = Explorer(REFERENCE, bounds)
    explorer.search()
    occurrences = [0] * len(explorer.situations)
    for state in explorer.parent:
        occurrences[state & SITUATION_MASK] += 1
    replayed = 0
    for situation, often in zip(explorer.situations, occurrences):
        for change, _ in explorer.changes(situation):
            sessions = build(situation.server)
            assert apply(sessions, change) == list(change.effects), change.call
            assert [shape(s) for s in sessions] == [shape(s) for s in change.after.sessions], change.call
            replayed += often
    assert replayed == edges == explorer.result.edges


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


def test_threads_cannot_break_a_session() -> None:
    """Many threads on one session: every prompt ends once, and never two are active."""
    session = Session("s", Counter())
    ended: list[int] = []
    actives: list[int] = []
    lock = threading.Lock()

    def note(effects: list[Effect]) -> None:
        with lock:
            ended.extend(e.seq for e in effects if type(e).__name__ == "End")

    def carry(prompt: Prompt) -> None:
        note(session.enter(prompt))
        if prompt.state is State.CANCELED_ON_ENTRY:
            note(session.settle(prompt))

    def work(number: int) -> None:
        for n in range(60):
            prompt, _ = session.accept(run_id=f"{number}-{n}" if n % 2 else None)
            carry(prompt)
            if n % 7 == 0:
                note(session.cancel())
            if n % 11 == 0:
                note(session.clear_queue())
            active = session.active
            if active is not None:
                try:
                    note(session.step(active))
                    note(session.finish(active, Outcome.END_TURN))
                    actives.append(active.seq)
                except IllegalTrigger:
                    pass  # another thread finished it first

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while session.active:
        note(session.finish(session.active, Outcome.END_TURN))
    assert not session.prompts
    assert sorted(ended) == list(range(1, 8 * 60 + 1))
    assert len(actives) == len(set(actives))
