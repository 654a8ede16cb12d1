"""Runtimes of the family with a race in them: what should be one step is two, or an answer comes before its journal.

One flaw a property, and for answers one a call. With each stand the clients among whose schedules one must show it,
and the property that must say so.
"""

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

from support.flawed_runtimes import Racy
from support.scheduled import (
    Do,
    File,
    Memory,
    Parts,
    accept,
    cancel,
    hold,
    move_up,
    replace_text,
    resume,
    revoke,
    stop,
    watch,
)

from cancelmark.conformance.schedule import checkpoint
from cancelmark.impl import wire
from cancelmark.impl.models import Attachment
from cancelmark.impl.runtime import Busy, Handle, Outbox, Runtime
from cancelmark.impl.runtime.intents import CallIntent
from cancelmark.impl.runtime.run import show
from cancelmark.impl.runtime.session import LivePrompt, Session, TakenStep
from cancelmark.impl.store import Store
from cancelmark.model.actions import hand_off
from cancelmark.model.family import Feature, cancel_one
from cancelmark.model.lifecycle import State, Trigger
from cancelmark.model.protocol import FAMILY

_position = attrgetter("position")


# --- a step in two

class EntersUnheld(Racy):
    """The session is idle and not held, and the prompt becomes active later, without another look at the hold."""

    more: ClassVar = ("register",)

    def enter(self, prompt: LivePrompt) -> TakenStep:
        if self.held or self.active:
            return Session.take(self, "enter", prompt)
        self.later("register", prompt)
        return TakenStep("enter", prompt)

    def register(self, prompt: LivePrompt) -> TakenStep:
        held, self.held = self.held, False
        effects = Session.take(self, "enter", prompt)
        self.held = held
        return effects


class RevokesLater(Racy):
    """A revoke finds its prompt in the queue, and drops it later, if it is still there."""

    more: ClassVar = ("drop",)

    def revoke(self, prompt: LivePrompt) -> TakenStep:
        if prompt.state is not State.QUEUED:
            return Session.take(self, "revoke", prompt)
        self.later("drop", prompt)
        return TakenStep("revoke", prompt)

    def drop(self, prompt: LivePrompt) -> TakenStep:
        with self._step("drop", prompt) as effects:
            if prompt.state is State.QUEUED:
                self.fire(prompt, Trigger.DROP)
        return effects


class MovesUpInTwo(Racy):
    """A prompt is taken out of the queue, and put in front later."""

    more: ClassVar = ("put_in_front",)

    def next(self, prompt: LivePrompt) -> TakenStep:
        if prompt.state is not State.QUEUED:
            return Session.take(self, "next", prompt)
        self.queue.remove(prompt)
        self.later("put_in_front", prompt)
        return TakenStep("next", prompt)

    def put_in_front(self, prompt: LivePrompt) -> TakenStep:
        with self._step("put_in_front", prompt) as effects:
            insort(self.queue, prompt, key=_position)
            self.change(prompt, front=self.next_front)
            if not self.active:
                hand_off(self)  # type: ignore[arg-type]
        return effects


class ReplacesLater(Racy):
    """A text has its new version at once, and its new words later."""

    more: ClassVar = ("put_text",)

    def replace(self, prompt: LivePrompt, text: str) -> TakenStep:
        self.later("put_text", prompt, text)
        return super().replace(prompt, prompt.text)

    def put_text(self, prompt: LivePrompt, text: str) -> TakenStep:
        prompt.text = text
        return TakenStep("put_text", prompt)


class InterruptsLater(Racy):
    """An interrupt enters, and stops whoever runs later."""

    more: ClassVar = ("stop_running",)

    def enter(self, prompt: LivePrompt) -> TakenStep:
        if not prompt.urgent:
            return Session.take(self, "enter", prompt)
        with self._step("enter", prompt) as effects:
            self.fire(prompt, Trigger.ENTER)
            self.later("stop_running")
        return effects

    def stop_running(self) -> TakenStep:
        with self._step("stop_running") as effects:
            for running in list(self.active):
                cancel_one(self, running)  # type: ignore[arg-type]
        return effects


class LooksFirst(Runtime):
    """A prompt that wants an idle session looks, and is accepted later."""

    async def accept(self, session_id: str, text: str, run_id: str | None = None,
                     attachments: Sequence[Attachment] = (), mode: Feature | None = None) -> Handle:
        if mode is Feature.REJECT:
            if not self.find(session_id).session.is_idle():
                raise Busy("it is busy")
            await checkpoint()
            mode = None
        return await super().accept(session_id, text, run_id, attachments, mode)


# --- an answer that is not true

class StopsSomebodyElse(Runtime):
    """A stop looks who is in front, and stops whoever is there later."""

    async def stop(self, session_id: str, **how: Any) -> wire.Stopped:
        front = self.find(session_id).session.in_front()
        await checkpoint()
        return replace(await super().stop(session_id, **how), stopped=front.seq if front else 0)


class AnswersEarly(Runtime):
    """Calls are answered before they are journaled."""

    async def call(self, session_id: str, call: CallIntent, by: str = "") -> Any:
        box = self.find(session_id)
        stored = box.submit(call)
        return await stored if stored.done() else box.entries[-1].answer


class TellsEarly(Runtime):
    """Who watches is told of a prompt as it is about to be."""

    class Boxes(dict[str, Outbox]):
        def __setitem__(self, id: str, box: Any) -> None:
            super().__setitem__(id, box)
            publish = box.publisher.publish_state

            def publish_early(prompt: LivePrompt, *about: Any, **how: Any) -> None:
                if run := box.runs.get(prompt.seq):
                    run.shown = show(prompt)
                publish(prompt, *about, **how)

            box.publisher.publish_state = publish_early

    def __init__(self, *made_of: Any, **how: Any) -> None:
        super().__init__(*made_of, **how)
        self.boxes = self.Boxes()


# --- the table

class Flaw(NamedTuple):
    """A flawed runtime, clients that meet the flaw in some schedule, and the property that it breaks."""

    parts: Parts
    clients: list[Do]
    breaks: str
    store: type[Store] = Memory


def of_sessions(session: type[Session]) -> Parts:
    return Parts(session=session, protocol=FAMILY)


def of_runtime(runtime: type[Runtime]) -> Parts:
    return Parts(protocol=FAMILY, runtime=runtime)


A, B = accept(run_id=True), accept()
EARLY: Mapping[str, list[Do]] = {
    "hold": [hold()],
    "resume": [hold(), resume("hold")],
    "stop and hold": [stop(hold=True)],
    "stop": [accept(turn="takes long"), stop("active")],
    "revoke": [A, A, revoke("queued", of=2)],
    "replace": [A, A, replace_text("queued", of=2)],
    "next": [A, A, A, move_up("queued", nth=2, of=3)],
}
FLAWS: Mapping[str, Flaw] = {
    "hold is looked at before the entry": Flaw(of_sessions(EntersUnheld), [A, hold("accept")], "held"),
    "revoke drops later": Flaw(of_sessions(RevokesLater), [A, A, revoke("queued", of=2)], "revoke-exact"),
    "next takes out and puts in": Flaw(of_sessions(MovesUpInTwo), [A, A, move_up("queued", of=2), cancel("next")],
                                       "queue-dropped"),
    "replace writes its words later": Flaw(of_sessions(ReplacesLater), [A, A, replace_text("queued", of=2)], "edited"),
    "interrupt stops later": Flaw(of_sessions(InterruptsLater), [A, accept("active", mode="interrupt", run_id=True)],
                                  "cancel-stops"),
    "reject looks first": Flaw(of_runtime(LooksFirst), [accept(mode="reject"), accept(mode="reject")], "reject"),
    "stop looks first": Flaw(of_runtime(StopsSomebodyElse), [A, A, stop("queued")], "told"),
    "a text is told before it is durable": Flaw(
        of_runtime(TellsEarly), [A, A, replace_text("queued", of=2), watch()], "durable", File),
    **{f"{call} is answered early": Flaw(of_runtime(AnswersEarly), clients, "durable", File)
       for call, clients in EARLY.items()},
}
