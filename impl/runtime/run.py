"""An accepted prompt as its caller holds it: its end to wait for, and its events to watch."""

import asyncio
from collections.abc import AsyncIterator, Generator, Sequence
from typing import NamedTuple

from cancelmark.model.lifecycle import Outcome

from ..store import Event, Json, MessageRecord
from .events import GAP, Broker, Feed, Notice, Subscription
from .messages import user_message
from .questions import summarize_questions
from .result import Result
from .session import LivePrompt
from .turn import Turn

STATE = "prompt"  # the type of an update with a prompt's new state
CALL = "call"  # the type of an update with a client's call: cancel, hold and the like


class Shown(NamedTuple):
    """What subscribers see of a prompt besides its state. These are the stored values, not those about to be stored."""

    text: str
    version: int
    front: int


def show(prompt: LivePrompt) -> Shown:
    return Shown(prompt.text, prompt.version, prompt.front)


class Run:
    """What the runtime knows of a prompt that is not done."""

    def __init__(self, prompt: LivePrompt, feed: Feed, offset: int) -> None:
        self.prompt, self.feed = prompt, feed
        self.offset = offset  # the latest event when it was accepted
        self.shown = show(prompt)
        self.pending_result: Result | None = None  # how its turn ended, or why it could not start
        self.messages: Sequence[MessageRecord] = ()  # to be written when its turn ends or is requeued
        self.turn: Turn | None = None
        self.task: asyncio.Task[None] | None = None  # runs its turn
        self.is_resumed = False  # its turn was started before
        self.trouble: str | None = None  # why a started prompt cannot run
        self.folded_runs: list[Run] = []  # prompts that were folded into it
        self.grace: asyncio.TimerHandle | None = None
        self.asking: dict[int, asyncio.Future[Json]] = {}  # by number: what its turn waits for
        self.end: Result | Exception | None = None  # once it is known
        self._message: MessageRecord | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def resolve(self, end: "Result | Exception") -> None:
        """Set the end of the prompt, and wake its waiters. Later waiters find it."""
        self.feed.close()
        self.end = end
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def wait(self) -> "asyncio.Future[None]":
        """A future of the end for one waiter. Canceling it does not affect other waiters."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.end is None:
            self._waiters.append(waiter)
        else:
            waiter.set_result(None)
        return waiter

    @property
    def message(self) -> MessageRecord:
        """The user's message."""
        if self._message is None:
            prompt = self.prompt
            self._message = user_message(prompt.session.id, prompt.seq, prompt.text, prompt.attachments)
        return self._message

    def renumber(self) -> None:
        """Adapt to the prompt's new seq."""
        if self._message:
            self._message = self._message._replace(id=f"p{self.prompt.seq}")

    def forget_message(self) -> None:
        """Make the message again on next use: the prompt has a new text."""
        self._message = None

    def hear_answer(self, n: int) -> None:
        """Pass the end of a question to the turn that waits for it."""
        waiter = self.asking.pop(n, None)
        if waiter and not waiter.done():
            waiter.set_result(self.prompt.questions[n - 1])

    def fail(self, why: str) -> Result:
        """The result of a prompt that ends in an error without a turn's result."""
        return Result(self.prompt.session.id, self.prompt.run_id, Outcome.ERROR, error=why)

    def close(self, result: Result, messages: Sequence[MessageRecord]) -> None:
        """Keep the result of the turn, with the messages still to be written, and close the feed."""
        self.pending_result, self.messages = result, messages
        self.feed.close()
        if self.grace:
            self.grace.cancel()

    def result(self, outcome: Outcome) -> Result:
        """How the prompt ended, given the outcome of its row."""
        said = self.pending_result or Result(self.prompt.session.id, self.prompt.run_id, outcome)
        if self.prompt.questions:
            said = said._replace(asks=summarize_questions(self.prompt.seq, self.prompt.questions))
        if said.outcome is outcome and (said.error is None or outcome is Outcome.ERROR):
            return said
        return said._replace(outcome=outcome, error=said.error if outcome is Outcome.ERROR else None)


class Handle:
    """An accepted prompt as its caller holds it. Dropping it, or canceling the caller, does not affect the prompt."""

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
        """How the prompt ended; None while it has not. Raises `Refusal` if the runtime could not store its end."""
        if isinstance(self._run.end, Exception):
            raise self._run.end
        return self._run.end

    def __await__(self) -> Generator[None, None, Result]:
        """Wait for the prompt's end."""
        if self._run.end is None:
            yield from self._run.wait()
        assert self.result is not None
        return self.result

    async def events(self) -> AsyncIterator[Notice]:
        """The prompt's messages from now on, ending with its terminal event. The events end without one if the prompt
        is folded, or if its terminal event has been deleted from the log."""
        with self._broker.subscribe(self._run.offset, self.session_id) as subscription:
            self._subscriptions.add(subscription)
            waiter = self._run.wait()
            waiter.add_done_callback(lambda _: self._close_in_vain(subscription))
            try:
                if self._released:
                    return
                async for notice in subscription:
                    if notice.type == GAP and await self._is_gone(subscription.offset):
                        return
                    if notice.payload.get("seq") == self.seq and notice.type != STATE:
                        yield notice
                        if isinstance(notice, Event) and notice.terminal:
                            return
            finally:
                self._subscriptions.discard(subscription)
                waiter.cancel()
        _ = self.result  # raises if the end could not be stored

    async def _is_gone(self, floor: int) -> bool:
        """Whether the terminal event was published and has been deleted from the log."""
        over = self._run.end is not None
        kept = await self._broker.store.events(floor, session=self.session_id, terminal=True)
        return over and all(event.payload.get("seq") != self.seq for event in kept)

    def release(self) -> None:
        """End the `events` that are read through this handle. Idempotent."""
        self._released = True
        for subscription in self._subscriptions:
            subscription.close()

    def _close_in_vain(self, subscription: Subscription) -> None:
        """Close the subscription if no terminal event will come: the prompt was folded, or its end could not be
        stored."""
        if isinstance(self._run.end, Exception) or (self._run.end and self._run.end.outcome is Outcome.FOLDED):
            subscription.close()
