"""The runtime's sessions as the server that `tools.replaying` knows."""

from collections.abc import Iterable
from typing import ClassVar

from tools.replaying import Asked, View, asked, describe

from cancelmark.impl.runtime.session import Counter, LivePrompt, NotAllowed, Restored, Session
from cancelmark.model.actions import Variant
from cancelmark.model.family import Feature, place
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.protocol import FAMILY, REFERENCE, Protocol


def restored(id: str, counter: Counter, mark: int, prompts: Iterable[Restored], *, held: bool = False,
             protocol: Protocol = REFERENCE, kind: type[Session] = Session) -> Session:
    """A session as its journal has it after a crash. Nothing but `recover` may follow."""
    session = kind(id, counter, mark, protocol=protocol)
    session.down = True
    session.reload(mark, prompts, held)
    return session


class Sessions:
    """The runtime's sessions as the server that `replaying` knows."""

    protocol: ClassVar[Protocol] = REFERENCE

    def __init__(self, sessions: int) -> None:
        self.counter = Counter()
        self.closing = False
        self.sessions = [Session(str(i), self.counter, protocol=self.protocol) for i in range(sessions)]
        self.prompts: dict[int, LivePrompt] = {}

    def accept(self, session: int, run_id: bool) -> list[Asked]:
        self.refuse_if_closing("accept")
        prompt, effects = self.sessions[session].accept(run_id="id" if run_id else None)
        self.prompts[prompt.seq] = prompt
        return [asked(effect) for effect in effects]

    def enter(self, seq: int) -> list[Asked]:
        return self.take("enter", seq=seq)

    def fail(self, seq: int) -> list[Asked]:
        return self.take("fail", seq=seq)

    def settle(self, seq: int) -> list[Asked]:
        return self.take("settle", seq=seq)

    def step(self, seq: int) -> list[Asked]:
        return self.take("step", seq=seq)

    def requeue(self, seq: int) -> list[Asked]:
        return self.take("requeue", seq=seq)

    def finish(self, seq: int, outcome: str) -> list[Asked]:
        return self.take("finish", seq=seq, variant=Outcome(outcome))

    def cancel(self, session: int = 0) -> list[Asked]:
        return self.take("cancel", session)

    def clear_queue(self, session: int) -> list[Asked]:
        return self.take("clear_queue", session)

    def close(self) -> list[Asked]:
        return self.take("close")

    def recover(self) -> list[Asked]:
        return self.take("recover")

    def crash(self) -> list[Asked]:
        """What a restart finds in the journal."""
        self.sessions = [
            restored(s.id, self.counter, s.mark,
                     [Restored(p.seq, "", p.run_id, p.state, p.traits, (), p.questions) for p in s.prompts.values()],
                     held=s.held, protocol=self.protocol)
            for s in self.sessions]
        self.prompts.update((seq, prompt) for s in self.sessions for seq, prompt in s.prompts.items())
        return []

    def view(self, session: int) -> View:
        return shape(self.sessions[session])

    def take(self, name: str, session: int = 0, seq: int | None = None, variant: Variant = None) -> list[Asked]:
        self.refuse_if_closing(name)
        action, prompt = self.protocol.action(name), None if seq is None else self.prompts[seq]
        here = self.sessions if action.everywhere else [prompt.session if prompt else self.sessions[session]]
        effects = [asked(effect) for s in here for effect in s.take(name, prompt, variant)]
        self.closing = self.closing if action.sets_closing is None else action.sets_closing
        return effects

    def refuse_if_closing(self, name: str) -> None:
        if self.closing and not self.protocol.action(name).while_closing:
            raise RuntimeError("closing")


def shape(session: Session) -> View:
    """What can be compared, once queue and active are seen to agree with it."""
    prompts = sorted(session.prompts.values(), key=lambda p: p.seq)
    assert session.queue == sorted((p for p in prompts if p.state is State.QUEUED), key=place)
    assert sorted(session.active, key=lambda p: p.seq) == [p for p in prompts if p.state is State.ACTIVE]
    return session.mark, describe(session.held, ((p.seq, p.state, p.traits, p.asks) for p in prompts))


class FamilySessions(Sessions):
    """The same with every call of the family."""

    protocol = FAMILY

    def accept(self, session: int, run_id: bool, mode: str | None = None) -> list[Asked]:
        self.refuse_if_closing("accept")
        latest = self.counter.latest
        try:
            prompt, effects = self.sessions[session].accept(
                run_id="id" if run_id else None, mode=Feature(mode) if mode else None)
        except NotAllowed:
            self.counter.latest = latest
            raise
        self.prompts[prompt.seq] = prompt
        return [asked(effect) for effect in effects]

    def revoke(self, seq: int) -> list[Asked]:
        return self.take("revoke", seq=seq)

    def stop(self, session: int, how: str | None = None) -> list[Asked]:
        return self.take("stop", session, variant=how)

    def hold(self, session: int) -> list[Asked]:
        return self.take("hold", session)

    def resume(self, session: int) -> list[Asked]:
        return self.take("resume", session)

    def replace(self, seq: int) -> list[Asked]:
        return self.take("replace", seq=seq)

    def next(self, seq: int) -> list[Asked]:
        return self.take("next", seq=seq)

    def ask(self, seq: int) -> list[Asked]:
        return self.take("ask", seq=seq)

    def answer(self, seq: int, given: str) -> list[Asked]:
        return self.take("answer", seq=seq, variant=given)

    def run(self, seq: int, n: str) -> list[Asked]:
        return self.take("run", seq=seq, variant=n)

    def withdraw(self, seq: int, n: str) -> list[Asked]:
        return self.take("withdraw", seq=seq, variant=n)
