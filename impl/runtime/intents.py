"""The intents: accepting a prompt, the calls of clients, and the requests of turns and of the server.

A call on one prompt also defines the answer for a late caller, whose prompt is done. That prompt's record is final, so
nothing has to be stored. `model/calls.py` has the table of all calls.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

from cancelmark.model.effects import Fold
from cancelmark.model.family import HOLD, Feature
from cancelmark.model.lifecycle import Outcome, State

from .. import wire
from ..store import Json, MessageRecord, PromptRecord
from .entry import Decision, Intent
from .outbox import Outbox
from .questions import Reply, repeat_answer, show_question
from .refusals import Busy, NoQuestion, OtherVersion, Refusal, TooLate
from .result import Result
from .run import Handle, Run
from .session import LivePrompt, Session, TakenStep
from .turn import Turn

GONE = object()  # the prompt is no longer in memory: its record has the answer


class Accept(Intent):
    """Accepts a prompt, which enters in the same step sequence if it can."""

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
            why = "held; resume it first" if session.held else "busy; retry when it is idle"
            raise Busy(f"session {session.id} is {why}, or let the prompt queue")
        if home.store.shared:  # provisional and above all others, until the store assigns one
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
        if self.enters and home.ownership.enters_here(box):
            steps += enter(session, prompt)
        return Decision(steps, Handle(self.run, home.broker, accepted.held))


def enter(session: Session, prompt: LivePrompt, action: str = "enter") -> list[TakenStep]:
    """Take the action: `enter`, or `fail` for a prompt that cannot start. One canceled on entry is settled at once.
    """
    steps = [session.take(action, prompt)]
    if prompt.state is State.CANCELED_ON_ENTRY:
        steps.append(session.take("settle", prompt))
    return steps


# --- requests of the server and its turns

class OfPrompt(Intent):
    """A request about a prompt of this server. Has no effect if another server has ended the prompt."""

    def __init__(self, run: Run) -> None:
        self.of = run

    def apply(self, box: Outbox) -> Decision:
        prompt = self.of.prompt
        if box.session.prompts.get(prompt.seq) is not prompt:
            return Decision()
        return Decision(self.take(box, prompt))

    def take(self, box: Outbox, prompt: LivePrompt) -> Sequence[TakenStep]:
        raise NotImplementedError


class Enter(OfPrompt):
    """Lets the prompt enter, if it has not."""

    def take(self, box: Outbox, prompt: LivePrompt) -> Sequence[TakenStep]:
        return enter(box.session, prompt) if prompt.state is State.ACCEPTED else ()


class Fail(OfPrompt):
    """Ends a prompt that cannot start."""

    def take(self, box: Outbox, prompt: LivePrompt) -> Sequence[TakenStep]:
        return enter(box.session, prompt, "fail") if prompt.state is State.ACCEPTED else ()


class Settle(OfPrompt):
    """Records that the prompt was canceled on entry, and ends it."""

    def take(self, box: Outbox, prompt: LivePrompt) -> Sequence[TakenStep]:
        return [box.session.take("settle", prompt)] if prompt.state is State.CANCELED_ON_ENTRY else ()


class TakeIn(OfPrompt):
    """Folds what may be folded into the turn. The answer is the folded prompts."""

    def apply(self, box: Outbox) -> Decision:
        steps = super().apply(box).steps
        folded = [e.seq for step in steps for e in step if isinstance(e, Fold)]
        return Decision(steps, [run for seq in folded if (run := box.runs.get(seq) or box.unstored.get(seq))])

    def take(self, box: Outbox, prompt: LivePrompt) -> Sequence[TakenStep]:
        return [box.session.take("step", prompt)] if box.session.can("step", prompt) else ()


class Requeue(OfPrompt):
    """Returns a prompt to the queue, to go on after a summary. If it was canceled meanwhile, ends it."""

    def __init__(self, run: Run, turn: Turn) -> None:
        super().__init__(run)
        self._turn, self._messages = turn, turn.unwritten

    def take(self, box: Outbox, prompt: LivePrompt) -> Sequence[TakenStep]:
        if prompt.covered:
            self.of.close(self._turn.end(Outcome.CANCELED), self._turn.unwritten)
            return [box.session.take("finish", prompt, Outcome.CANCELED)]
        self.of.messages, self.of.is_resumed = self._messages, True
        return [box.session.take("requeue", prompt)]


class Ask(OfPrompt):
    """Asks a question of the turn. The answer is its number, or 0 if the turn may not ask: it is to stop. `waiter`
    receives the question once it has ended."""

    def __init__(self, run: Run, question: Json, waiter: "asyncio.Future[Json]") -> None:
        super().__init__(run)
        self._question, self._waiter = question, waiter

    def apply(self, box: Outbox) -> Decision:
        steps = super().apply(box).steps
        return Decision(steps, len(self.of.prompt.questions) if steps else 0)

    def take(self, box: Outbox, prompt: LivePrompt) -> Sequence[TakenStep]:
        if not box.session.can("ask", prompt):
            return ()
        step = box.session.take("ask", prompt, says=self._question)
        self.of.asking[len(prompt.questions)] = self._waiter
        return [step]


class OnQuestion(OfPrompt):
    """A step of the turn on one of its questions. The answer is whether it was taken."""

    def __init__(self, action: str, run: Run, n: int, says: Json) -> None:
        super().__init__(run)
        self._action, self._n, self._says = action, n, says

    def apply(self, box: Outbox) -> Decision:
        steps = super().apply(box).steps
        return Decision(steps, bool(steps))

    def take(self, box: Outbox, prompt: LivePrompt) -> Sequence[TakenStep]:
        if not box.session.can(self._action, prompt, str(self._n)):
            return ()
        return [box.session.take(self._action, prompt, str(self._n), says=self._says)]


class Finish(OfPrompt):
    """Ends a prompt with its turn's result, and with the messages still to be written."""

    def __init__(self, run: Run, result: Result, messages: Sequence[MessageRecord] = ()) -> None:
        super().__init__(run)
        self._outcome = result.outcome
        run.close(result, messages)

    def take(self, box: Outbox, prompt: LivePrompt) -> Sequence[TakenStep]:
        return [box.session.take("finish", prompt, self._outcome)]


class Recover(Intent):
    """Resumes the session from what a previous owner has left."""

    fatal = True

    def apply(self, box: Outbox) -> Decision:
        session = box.session
        session.down = True
        return Decision([session.take("recover")])


# --- calls of clients

class CallIntent(Intent):
    """A client's call. `by` is the client's id, which subscribers see."""

    name: ClassVar[str]
    features: tuple[Feature, ...] = ()  # the call exists only with these

    def __init__(self, key: int | str | None = None) -> None:
        self.key, self.by = key, ""  # the prompt that it names, or None

    def apply(self, box: Outbox) -> Decision:
        if self.key is None:
            return self.decide(box)
        prompt = box.find(self.key)
        return Decision((), GONE) if prompt is None else self.decide_on(box, prompt)

    def decide(self, box: Outbox) -> Decision:
        raise NotImplementedError

    def decide_on(self, box: Outbox, prompt: LivePrompt) -> Decision:
        raise NotImplementedError

    def late(self, record: PromptRecord) -> Any:
        """The answer for a late caller, whose prompt is done."""
        raise NotImplementedError

    def told(self, box: Outbox, seq: int = 0, held: bool = False) -> wire.Called:
        """The call as subscribers receive it, without the mark."""
        return wire.Called(box.session.id, self.name, 0, seq, held, self.by)


class Cancel(CallIntent):
    """Cancels everything that was accepted before it.

    When re-applied, it also covers prompts that other servers accepted meanwhile, because its caller may already have
    seen them. It does not cover prompts accepted here since.
    """

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
    """A cancel after which the server accepts nothing more."""

    name = "close"

    def decide(self, box: Outbox) -> Decision:
        return super().decide(box)._replace(call=None)


class ClearQueue(CallIntent):
    """Drops what is queued at the time it is stored. No client gets an answer earlier, so to every
    client the call comes after those prompts."""

    name = "clear_queue"

    def decide(self, box: Outbox) -> Decision:
        return Decision([box.session.take(self.name)], None, self.told(box))


class Revoke(CallIntent):
    name, features = "revoke", (Feature.REVOKE,)

    def decide_on(self, box: Outbox, prompt: LivePrompt) -> Decision:
        step = box.session.take(self.name, prompt)
        after = prompt.state
        return Decision([step], wire.Revoked(
            prompt.seq, "asked" if after is State.ACTIVE else "canceled", after.value, prompt.text,
            Outcome.CANCELED.value if after is State.DONE else ""), self.told(box, prompt.seq))

    def late(self, record: PromptRecord) -> wire.Revoked:
        return wire.Revoked(record.seq, "none", record.state.value, record.text,
                            record.outcome.value if record.outcome else "", record.into or 0)


class Stop(CallIntent):
    """Stops the prompt in front. Re-applied, it reaches no other prompt if that one was already asked to stop."""

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


class Hold(CallIntent):
    """Holds or resumes the session."""

    features = (Feature.HOLD,)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name  # type: ignore[misc]

    def decide(self, box: Outbox) -> Decision:
        session = box.session
        before, step = session.held, session.take(self.name)
        told = self.told(box, held=session.held) if session.held is not before else None
        return Decision([step], wire.Held(session.held), told)


class Replace(CallIntent):
    name, features = "replace", (Feature.REPLACE,)

    def __init__(self, key: int | str, text: str, if_version: int | None) -> None:
        super().__init__(key)
        self._text, self._if_version = text, if_version

    def decide_on(self, box: Outbox, prompt: LivePrompt) -> Decision:
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

    def _look(self, prompt: LivePrompt | PromptRecord) -> wire.Replaced | None:
        """The answer if the prompt already has that text, which is allowed in every state and changes nothing."""
        if not (self._text.strip() or prompt.attachments):
            raise Refusal("prompt: empty text; send a text, or revoke the prompt instead")
        version = prompt.traits.version
        if self._text == prompt.text:
            return wire.Replaced(prompt.seq, version)
        if self._if_version not in (None, version):
            raise OtherVersion(f"the text is now at version {version}; read it again, then retry", prompt.state,
                               prompt.outcome, version)
        return None


class Next(CallIntent):
    name, features = "next", (Feature.NEXT,)

    def decide_on(self, box: Outbox, prompt: LivePrompt) -> Decision:
        if not box.session.can(self.name, prompt):
            raise too_late(prompt)
        return Decision([box.session.take(self.name, prompt)], wire.Placed(0), self.told(box, prompt.seq))

    def late(self, record: PromptRecord) -> wire.Placed:
        raise too_late(record)


class Answer(CallIntent):
    """Answers a question of a turn. The first answer wins; the same answer again has no effect."""

    name, features = "answer", (Feature.ASK,)

    def __init__(self, seq: int, n: int, reply: Reply) -> None:
        super().__init__(seq)
        self._n, self._reply = n, reply

    def decide_on(self, box: Outbox, prompt: LivePrompt) -> Decision:
        variant = f"{self._n} {self._reply.answer}"
        if box.session.can(self.name, prompt, variant):
            self._reply.check(prompt.questions[self._n - 1])
            step = box.session.take(self.name, prompt, variant, says=self._reply.describe(self.by))
            shown = self._show(prompt)
            return Decision([step], wire.AskAnswered(shown.ask, shown.status, "taken", shown.by))
        return Decision((), repeat_answer(self._show(prompt), self._reply))

    def late(self, record: PromptRecord) -> wire.AskAnswered:
        return repeat_answer(self._show(record), self._reply)

    def _show(self, prompt: LivePrompt | PromptRecord) -> wire.Ask:
        session_id = prompt.session.id if isinstance(prompt, LivePrompt) else prompt.session_id
        if not 0 < self._n <= len(prompt.questions):
            raise NoQuestion(f"prompt {prompt.seq} has no question {self._n}; list the questions of the session")
        return show_question(session_id, prompt.seq, prompt.run_id, self._n, prompt.questions[self._n - 1])


def too_late(prompt: LivePrompt | PromptRecord) -> TooLate:
    where = prompt.outcome or prompt.state
    return TooLate(f"prompt {prompt.seq} can no longer be changed: it is {where.value.replace('_', ' ')}",
                   prompt.state, prompt.outcome, prompt.traits.version)
