"""An accepted prompt in its caller's hands: its end to wait for, and its events to watch."""

import asyncio
from collections.abc import AsyncIterator, Generator, Sequence
from typing import NamedTuple

from cancelmark.model.lifecycle import Outcome

from ..store import Event, Message
from .events import GAP, Broker, Feed, Notice, Subscription
from .messages import user_message
from .result import Result
from .session import Prompt
from .turn import Turn

STATE = "prompt"  # the type of an update that tells to which state a prompt has come
CALL = "call"  # and of one that tells what somebody has called: cancel, hold and the like


class Shown(NamedTuple):
    """What those who watch are told of a prompt besides its state: what is durable, and not what is about to be."""

    text: str
    version: int
    front: int


def show(prompt: Prompt) -> Shown:
    return Shown(prompt.text, prompt.version, prompt.front)


class Run:
    """What the runtime knows of a prompt that is not done."""

    def __init__(self, prompt: Prompt, feed: Feed, place: int) -> None:
        self.prompt, self.feed = prompt, feed
        self.place = place  # the latest event when it was accepted
        self.shown = show(prompt)
        self.said: Result | None = None  # how its turn ended, or why it could not begin
        self.messages: Sequence[Message] = ()  # that are to be written when it leaves its turn
        self.turn: Turn | None = None
        self.task: asyncio.Task[None] | None = None  # that runs its turn
        self.goes_on = False  # its turn has begun before
        self.trouble: str | None = None  # why it cannot run, if it was started and cannot
        self.guests: list[Run] = []  # prompts that were folded into it
        self.grace: asyncio.TimerHandle | None = None
        self.end: Result | Exception | None = None  # once it is known
        self._message: Message | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def over(self, end: "Result | Exception") -> None:
        """Tells everybody who waits. What comes later finds it."""
        self.feed.close()
        self.end = end
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def wait(self) -> "asyncio.Future[None]":
        """A future for one who waits for the end: canceling it harms nobody else."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.end is None:
            self._waiters.append(waiter)
        else:
            waiter.set_result(None)
        return waiter

    @property
    def message(self) -> Message:
        """The user's message."""
        if self._message is None:
            prompt = self.prompt
            self._message = user_message(prompt.session.id, prompt.seq, prompt.text, prompt.attachments)
        return self._message

    def renumber(self) -> None:
        """The prompt has another seq."""
        if self._message:
            self._message = self._message._replace(id=f"p{self.prompt.seq}")

    def forget_message(self) -> None:
        """The prompt has another text."""
        self._message = None

    def fail(self, why: str) -> Result:
        """The result of a prompt that ends without a turn's word."""
        return Result(self.prompt.session.id, self.prompt.run_id, Outcome.ERROR, error=why)

    def close(self, result: Result, messages: Sequence[Message]) -> None:
        """Its turn has ended so, and is still to write these."""
        self.said, self.messages = result, messages
        self.feed.close()
        if self.grace:
            self.grace.cancel()

    def result(self, outcome: Outcome) -> Result:
        """How the prompt ended, given the outcome of its row."""
        said = self.said or Result(self.prompt.session.id, self.prompt.run_id, outcome)
        if said.outcome is outcome and (said.error is None or outcome is Outcome.ERROR):
            return said
        return Result(said.session_id, said.run_id, outcome, said.text, said.message_id,
                      said.error if outcome is Outcome.ERROR else None)


class Handle:
    """An accepted prompt, in its caller's hands. Dropping it, or the caller's task, does nothing to the
    prompt (R26)."""

    def __init__(self, run: Run, broker: Broker, held: bool = False) -> None:
        self.session_id, self.run_id = run.prompt.session.id, run.prompt.run_id
        self.held = held  # whether its session was held when it was accepted
        self._run, self._broker = run, broker
        self._subscriptions: set[Subscription] = set()
        self._released = False

    @property
    def seq(self) -> int:
        return self._run.prompt.seq

    @property
    def result(self) -> Result | None:
        """How the prompt ended; None while it has not. Raises `Refusal` if the runtime could not write its end."""
        if isinstance(self._run.end, Exception):
            raise self._run.end
        return self._run.end

    def __await__(self) -> Generator[None, None, Result]:
        """Waits for the prompt's end."""
        if self._run.end is None:
            yield from self._run.wait()
        assert self.result is not None
        return self.result

    async def events(self) -> AsyncIterator[Notice]:
        """The prompt's messages from now on, and its terminal event, which is the last. A prompt that is folded has
        none of its own: its events end there, and so do those of a prompt whose terminal event is not kept any more."""
        with self._broker.subscribe(self._run.place, self.session_id) as subscription:
            self._subscriptions.add(subscription)
            waiter = self._run.wait()
            waiter.add_done_callback(lambda _: self._close_in_vain(subscription))
            try:
                if self._released:
                    return
                async for notice in subscription:
                    if notice.type == GAP and await self._is_gone(subscription.place):
                        return
                    if notice.payload.get("seq") == self.seq and notice.type != STATE:
                        yield notice
                        if isinstance(notice, Event) and notice.terminal:
                            return
            finally:
                self._subscriptions.discard(subscription)
                waiter.cancel()
        _ = self.result  # raises if it could not be written

    async def _is_gone(self, floor: int) -> bool:
        """Whether the terminal event was published, and is not in the log any more."""
        over = self._run.end is not None
        kept = await self._broker.store.events(floor, session=self.session_id, terminal=True)
        return over and all(event.payload.get("seq") != self.seq for event in kept)

    def release(self) -> None:
        """Ends the events that are being watched through this handle. The second time has no effect."""
        self._released = True
        for subscription in self._subscriptions:
            subscription.close()

    def _close_in_vain(self, subscription: Subscription) -> None:
        """Closes it if no terminal event will come: the prompt was folded, or could not be ended."""
        if isinstance(self._run.end, Exception) or (self._run.end and self._run.end.outcome is Outcome.FOLDED):
            subscription.close()
