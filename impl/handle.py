"""An accepted prompt in its caller's hands: its end to wait for, and its events to watch."""

import asyncio
from collections.abc import AsyncIterator, Generator
from dataclasses import dataclass, field

from cancelmark.model.lifecycle import Outcome

from .events import Broker, Feed, Notice
from .session import Prompt
from .store import Event, Json
from .turn import Ending, Turn

STATE = "prompt"  # the type of an update that tells to which state a prompt has come


@dataclass(frozen=True)
class Result:
    """How a prompt ended. The text and error of one that was folded are those of the turn that took it in (R14c)."""

    session_id: str
    run_id: str | None
    outcome: Outcome
    text: str = ""
    message_id: str | None = None
    error: str | None = None

    @property
    def payload(self) -> Json:
        """The terminal event on the wire (R28a)."""
        told = {"run_id": self.run_id, "message_id": self.message_id, "text": self.text, "error": self.error}
        canceled = {"cancelled": True} if self.outcome is Outcome.CANCELED else {}
        return {"session_id": self.session_id, "outcome": self.outcome.value,
                **{name: value for name, value in told.items() if value}, **canceled}


@dataclass(eq=False)
class Run:
    """What the runtime knows of a prompt that is not done."""

    prompt: Prompt
    feed: Feed
    done: asyncio.Future[Result]
    place: int  # the latest event when it was accepted
    ending: Ending = field(default_factory=lambda: Ending(None))
    turn: Turn | None = None
    guests: list["Run"] = field(default_factory=list)  # prompts that were folded into it
    grace: asyncio.TimerHandle | None = None


class Handle:
    """An accepted prompt, in its caller's hands. Dropping it, or the caller's task, does nothing to the
    prompt (R26)."""

    def __init__(self, run: Run, broker: Broker) -> None:
        self.session_id, self.run_id, self.seq = run.prompt.session.id, run.prompt.run_id, run.prompt.seq
        self._done, self._place, self._broker = run.done, run.place, broker
        self._released = asyncio.Event()

    def __await__(self) -> Generator[None, None, Result]:
        """Waits for the prompt's end."""
        return asyncio.shield(self._done).__await__()

    async def events(self) -> AsyncIterator[Notice]:
        """The prompt's messages from now on, and its terminal event, which is the last. A prompt that is folded has
        none of its own: its events end there."""
        with self._broker.subscribe(self._place, self.session_id) as subscription:
            watch = asyncio.ensure_future(self._over())
            watch.add_done_callback(lambda _: subscription.close())
            try:
                async for notice in subscription:
                    if notice.payload.get("seq") == self.seq and notice.type != STATE:
                        yield notice
                        if isinstance(notice, Event) and notice.terminal:
                            return
            finally:
                watch.cancel()
        if self._done.done():
            self._done.result()  # raises if the runtime closed and could not write the end

    async def _over(self) -> None:
        """Returns when no terminal event will come: the caller let go, or the prompt was folded or left behind."""
        released = asyncio.ensure_future(self._released.wait())
        try:
            await asyncio.wait((released, self._done), return_when=asyncio.FIRST_COMPLETED)
            if not released.done() and not self._done.exception() and self._done.result().outcome is not Outcome.FOLDED:
                await released
        finally:
            released.cancel()

    def release(self) -> None:
        """Ends the events that are being watched through this handle. The second time has no effect."""
        self._released.set()
