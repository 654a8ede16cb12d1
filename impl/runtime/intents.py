"""What can be wanted of a session: to accept a prompt, what clients call, and what turns and the server ask for.

A call on one prompt also says what is answered when that is done: its record is final, and nothing has to be stored for
it (R27d). `model/calls.py` has the table of all calls.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from cancelmark.model.effects import Fold
from cancelmark.model.family import HOLD, Feature
from cancelmark.model.lifecycle import Outcome, State

from .. import wire
from ..store import Message, PromptRecord
from .outbox import Decision, Intent, Outbox
from .refusals import Busy, OtherVersion, Refusal, TooLate
from .result import Result
from .run import Handle, Run
from .session import Effects, Prompt, Session
from .turn import Turn

GONE = object()  # the answer to a call on a prompt that is not there any more: its record tells


class Accept(Intent):
    """Accepts a prompt, which enters in the same breath if it can."""

    accepts = True

    def __init__(self, text: str, run_id: str | None, attachments: Sequence[Any], mode: Feature | None, enters: bool,
                 ) -> None:
        self.text, self.run_id, self.attachments, self.mode, self.enters = text, run_id, attachments, mode, enters
        self.alone = mode is Feature.INTERRUPT
        self.run: Run | None = None
        self._seq: int | None = None

    def apply(self, box: Outbox) -> Decision:
        session, home = box.session, box.home
        if self.mode is Feature.REJECT and not session.is_idle():
            why = "held; resume it" if session.held else "busy; wait"
            raise Busy(f"session {session.id} is {why}, or let the prompt queue")
        if home.store.shared:  # its seq is above all others of the session, until the store gives it one
            self._seq = 1 + max([session.counter.latest, *session.prompts])
        elif self._seq is None:
            self._seq = session.counter.next()
        prompt, accepted = session.accept(self.text, self.run_id, self._seq, self.mode, self.attachments)
        if self.run is None:
            self.run = Run(prompt, home.broker.feed(session.id, self.run_id), home.broker.latest)
        else:
            self.run.prompt = prompt
            self.run.forget_message()
        box.unstored[prompt.seq] = self.run
        steps = [accepted]
        if self.enters and home.ownership.starts(box):
            steps += enter(session, prompt)
        return Decision(steps, Handle(self.run, home.broker, accepted.held))


def enter(session: Session, prompt: Prompt, action: str = "enter") -> list[Effects]:
    """The prompt enters, or fails, and is settled if it was canceled, without being asked to (R7b, R21)."""
    steps = [session.take(action, prompt)]
    if prompt.state is State.CANCELED_ON_ENTRY:
        steps.append(session.take("settle", prompt))
    return steps


# --- what the server and its turns ask for

class OfPrompt(Intent):
    """Something about a prompt of this server. If others have ended it, there is nothing left to do."""

    def __init__(self, run: Run) -> None:
        self.of = run

    def apply(self, box: Outbox) -> Decision:
        prompt = self.of.prompt
        if box.session.prompts.get(prompt.seq) is not prompt:
            return Decision()
        return Decision(self.take(box, prompt))

    def take(self, box: Outbox, prompt: Prompt) -> Sequence[Effects]:
        raise NotImplementedError


class Enter(OfPrompt):
    """The prompt enters, if it has not."""

    def take(self, box: Outbox, prompt: Prompt) -> Sequence[Effects]:
        return enter(box.session, prompt) if prompt.state is State.ACCEPTED else ()


class Fail(OfPrompt):
    """The prompt cannot start."""

    def take(self, box: Outbox, prompt: Prompt) -> Sequence[Effects]:
        return enter(box.session, prompt, "fail") if prompt.state is State.ACCEPTED else ()


class Settle(OfPrompt):
    """The prompt was canceled on entry: that is recorded, and it is done."""

    def take(self, box: Outbox, prompt: Prompt) -> Sequence[Effects]:
        return [box.session.take("settle", prompt)] if prompt.state is State.CANCELED_ON_ENTRY else ()


class TakeIn(OfPrompt):
    """The turn takes in what may be folded into it. The answer is who that is."""

    def apply(self, box: Outbox) -> Decision:
        steps = super().apply(box).steps
        folded = [e.seq for step in steps for e in step if isinstance(e, Fold)]
        return Decision(steps, [run for seq in folded if (run := box.runs.get(seq) or box.unstored.get(seq))])

    def take(self, box: Outbox, prompt: Prompt) -> Sequence[Effects]:
        return [box.session.take("step", prompt)] if box.session.can("step", prompt) else ()


class Requeue(OfPrompt):
    """The turn must go on after a summary: back to the queue, or if it was canceled meanwhile, to its end."""

    def __init__(self, run: Run, turn: Turn) -> None:
        super().__init__(run)
        self._turn, self._messages = turn, turn.unwritten

    def take(self, box: Outbox, prompt: Prompt) -> Sequence[Effects]:
        if prompt.covered:
            self.of.close(self._turn.end(Outcome.CANCELED), self._turn.unwritten)
            return [box.session.take("finish", prompt, Outcome.CANCELED)]
        self.of.messages, self.of.goes_on = self._messages, True
        return [box.session.take("requeue", prompt)]


class Finish(OfPrompt):
    """The turn has ended so, and has still to write these."""

    def __init__(self, run: Run, result: Result, messages: Sequence[Message] = ()) -> None:
        super().__init__(run)
        self._outcome = result.outcome
        run.close(result, messages)

    def take(self, box: Outbox, prompt: Prompt) -> Sequence[Effects]:
        return [box.session.take("finish", prompt, self._outcome)]


class Recover(Intent):
    """The session goes on from what the last life, or another server, has left."""

    fatal = True

    def apply(self, box: Outbox) -> Decision:
        session = box.session
        session.down = True
        return Decision([session.take("recover")])


# --- what clients call

class Call(Intent):
    """A call of a client. `by` is its id: those who watch are told."""

    name: ClassVar[str]
    features: tuple[Feature, ...] = ()  # without which there is no such call

    def __init__(self, key: int | str | None = None) -> None:
        self.key, self.by = key, ""  # the prompt that it names, if it names one

    def apply(self, box: Outbox) -> Decision:
        if self.key is None:
            return self.decide(box)
        prompt = box.find(self.key)
        return Decision((), GONE) if prompt is None else self.decide_on(box, prompt)

    def decide(self, box: Outbox) -> Decision:
        raise NotImplementedError

    def decide_on(self, box: Outbox, prompt: Prompt) -> Decision:
        raise NotImplementedError

    def late(self, record: PromptRecord) -> Any:
        """What is answered if its prompt is done."""
        raise NotImplementedError

    def told(self, box: Outbox, seq: int = 0, held: bool = False) -> wire.Called:
        """What those who watch are told, but for the mark."""
        return wire.Called(box.session.id, self.name, 0, seq, held, self.by)


class Cancel(Call):
    """It reaches everything that was accepted before it. Applied again, it also reaches what others have accepted
    meanwhile, and no prompt that was accepted here since: its caller may have been told of the first, and not of
    these."""

    name = "cancel"

    def __init__(self) -> None:
        super().__init__()
        self._reach = 0

    def decide(self, box: Outbox) -> Decision:
        session = box.session
        stored = [seq for seq in session.prompts if seq not in box.unstored]
        self._reach = max([self._reach, *stored]) if self._reach else session.counter.latest
        return Decision([session.take(self.name, None, None, self._reach)], None, self.told(box))


class Close(Cancel):
    """A cancel, after which the server accepts nothing more."""

    name = "close"

    def decide(self, box: Outbox) -> Decision:
        return super().decide(box)._replace(call=None)


class ClearQueue(Call):
    """It drops what is queued when it is stored: nobody has its answer before, so for every caller it came after
    those."""

    name = "clear_queue"

    def decide(self, box: Outbox) -> Decision:
        return Decision([box.session.take(self.name)], None, self.told(box))


class Revoke(Call):
    name, features = "revoke", (Feature.REVOKE,)

    def decide_on(self, box: Outbox, prompt: Prompt) -> Decision:
        step = box.session.take(self.name, prompt)
        after = prompt.state
        return Decision([step], wire.Revoked(
            prompt.seq, "asked" if after is State.ACTIVE else "canceled", after.value, prompt.text,
            Outcome.CANCELED.value if after is State.DONE else ""), self.told(box, prompt.seq))

    def late(self, record: PromptRecord) -> wire.Revoked:
        return wire.Revoked(record.seq, "none", record.state.value, record.text,
                            record.outcome.value if record.outcome else "", record.into or 0)


class Stop(Call):
    """It reaches the prompt in front. Applied again, it reaches nobody else if that prompt was asked to stop (R31a)."""

    name = "stop"

    def __init__(self, hold: bool, seq: int | None) -> None:
        super().__init__()
        self._hold, self._seq = hold, seq
        self._stopped = 0  # the prompt whose turn was asked to stop
        self.features = (Feature.STOP, Feature.HOLD) if hold else (Feature.STOP,)

    def decide(self, box: Outbox) -> Decision:
        session = box.session
        before, steps = session.held, []
        front = next(iter(session.active), None) if self._hold else session.in_front()
        seq = front.seq if front else 0
        if self._stopped and seq != self._stopped:
            seq = self._stopped
            steps = [session.take("hold")] if self._hold else []
        elif self._seq in (None, seq):
            steps = [session.take(self.name, None, HOLD if self._hold else None)]
            if front and front.state is State.ACTIVE and front.seq in box.runs:
                self._stopped = seq
        else:
            seq = 0
        answer = wire.Stopped(seq, session.held)
        changed = answer.stopped or answer.held is not before
        return Decision(steps, answer, self.told(box, seq, self._hold) if changed else None)


class Hold(Call):
    """Hold, or resume."""

    features = (Feature.HOLD,)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name  # type: ignore[misc]

    def decide(self, box: Outbox) -> Decision:
        session = box.session
        before, step = session.held, session.take(self.name)
        told = self.told(box, held=session.held) if session.held is not before else None
        return Decision([step], wire.Held(session.held), told)


class Replace(Call):
    name, features = "replace", (Feature.REPLACE,)

    def __init__(self, key: int | str, text: str, if_version: int | None) -> None:
        super().__init__(key)
        self._text, self._if_version = text, if_version

    def decide_on(self, box: Outbox, prompt: Prompt) -> Decision:
        if (known := self._look(prompt)) is not None:
            return Decision((), known)
        if not box.session.can(self.name, prompt):
            raise too_late(prompt)
        step = box.session.replace(prompt, self._text)
        if run := box.runs.get(prompt.seq) or box.unstored.get(prompt.seq):
            run.forget_message()
        return Decision([step], wire.Replaced(prompt.seq, prompt.version), self.told(box, prompt.seq))

    def late(self, record: PromptRecord) -> wire.Replaced:
        if (known := self._look(record)) is not None:
            return known
        raise too_late(record)

    def _look(self, prompt: Prompt | PromptRecord) -> wire.Replaced | None:
        """The answer if the prompt has that text already, which is no change, and is taken in every state."""
        if not (self._text.strip() or prompt.attachments):
            raise Refusal("prompt: it is empty; say something, or drop the prompt")
        version = prompt.traits.version
        if self._text == prompt.text:
            return wire.Replaced(prompt.seq, version)
        if self._if_version not in (None, version):
            raise OtherVersion(f"its text has version {version} by now; read it again", prompt.state, prompt.outcome,
                               version)
        return None


class Next(Call):
    name, features = "next", (Feature.NEXT,)

    def decide_on(self, box: Outbox, prompt: Prompt) -> Decision:
        if not box.session.can(self.name, prompt):
            raise too_late(prompt)
        return Decision([box.session.take(self.name, prompt)], wire.Placed(0), self.told(box, prompt.seq))

    def late(self, record: PromptRecord) -> wire.Placed:
        raise too_late(record)


def too_late(prompt: Prompt | PromptRecord) -> TooLate:
    where = prompt.outcome or prompt.state
    return TooLate(f"prompt {prompt.seq} does not wait any more: it is {where.value.replace('_', ' ')}",
                   prompt.state, prompt.outcome, prompt.traits.version)
