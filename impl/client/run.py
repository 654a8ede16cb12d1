"""One prompt, from sending it to its terminal event."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Self
from uuid import uuid4

from cancelmark.model.lifecycle import Outcome
from cancelmark.model.wire import RunComplete

from ..wire import AgentEvent, Attachment, Prompt
from .calls import Client
from .errors import BadAnswer, EndUnknown, Refusal, Unreachable
from .results import Message, Notice
from .stream import Changed, Events, Patience

GRACE = 1.0  # seconds to wait for a terminal event that should already have been sent


async def post(events: Events, session: str, prompt: str, run_id: str, attachments: Sequence[Attachment] = (),
               if_busy: str = "") -> None:
    """Sends a prompt, and retries with backoff until the server accepts or refuses it. Meanwhile another task must read
    `events`.

    A prompt that may have been accepted is resent only to a server that sends event ids: such a server also knows run
    ids, so resending is idempotent. If a prompt may have been accepted, it is never reported as refused: the error
    raised is the one that left its acceptance in doubt."""
    attempt, deadline = 0, events.patience.total
    doubt: Unreachable | Refusal | None = None
    while True:
        try:
            return await events.client.send(events.workspace, session, prompt, run_id, attachments, if_busy)
        except (Unreachable, Refusal) as error:
            waiting = events.patience.delay(attempt, error)
            deadline = None if deadline is None else deadline - waiting
            if error.sent if isinstance(error, Unreachable) else error.unknown:
                doubt = error
            final = isinstance(error, Refusal) and not (doubt and error.passes)
            late = deadline is not None and deadline < 0
            if final or late or (doubt and not await _sends_event_ids(events)):
                raise doubt or error from None
            attempt += 1
            await asyncio.sleep(waiting)


async def _sends_event_ids(events: Events) -> bool:
    """Whether the server sends event ids. It sends the first at the start of a stream."""
    with suppress(TimeoutError):
        async with asyncio.timeout(GRACE):
            while not events.place:
                await asyncio.sleep(0.01)
    return bool(events.place)


async def find_recorded_end(client: Client, workspace: str, session: str, run_id: str) -> RunComplete | None:
    """The terminal event according to the server's record of the prompt, with only its outcome; None if unfinished."""
    record = await client.prompt(workspace, session, run_id)
    if not record or not record.outcome:
        return None
    failed, canceled = (record.outcome == outcome.value for outcome in (Outcome.ERROR, Outcome.CANCELED))
    return RunComplete(session, record.seq, record.outcome, run_id, cancelled=canceled,
                       error="the server no longer has the error message" if failed else "")


class RunStream:
    """Sends a prompt with a run id and follows it to its terminal event. Entering the `async with` block subscribes
    first and then sends; on return the prompt is accepted. Exiting has no effect on the prompt.

    Only the terminal event with our run id finishes the run: not another run's, not the end of a stream, not an idle
    session. An error event counts only if it has our run id or, without a run id, is in our session. If no terminal
    event follows it and the session is idle, that error is the outcome.

    The terminal event may have been published before we subscribed: if the prompt was sent earlier with the same run
    id, or if the stream broke before it sent an event id, or if it was broken for so long that the server's log no
    longer has the event. In these cases, once the session is idle, we search the log and then the server's record of
    the prompt, which has only the outcome. If the server has neither, `EndUnknown` is raised.
    """

    def __init__(
        self, client: Client, workspace: str, session: str, prompt: str, *, run_id: str | None = None,
        attachments: Sequence[Attachment] = (), if_busy: str = "", patience: Patience | None = None,
        changed: Changed = lambda trouble: None,
    ) -> None:
        self.workspace, self.session, self.prompt = workspace, session, prompt
        self.attachments, self.if_busy = attachments, if_busy
        self.run_id = run_id or str(uuid4())
        self._perhaps_over = run_id is not None  # it may have been sent, and have finished, before
        self.result: RunComplete | None = None
        """The terminal event, once known."""
        self.recorded = False
        """Whether only the outcome is known, because the server no longer has the terminal event."""
        self._client = client
        self._events = Events(client, workspace, patience=patience, changed=changed)
        self._error = ""
        self._looked_back = False
        self._next: asyncio.Future[Notice] | None = None

    async def __aenter__(self) -> Self:
        await self._events.__aenter__()
        self._next = asyncio.ensure_future(anext(self._events))
        try:
            await post(self._events, self.session, self.prompt, self.run_id, self.attachments, self.if_busy)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop_reading()
        await self._events.__aexit__()

    async def cancel(self) -> None:
        """Cancels every prompt that the session has accepted so far, including this one. Its terminal event follows."""
        await self._client.cancel(self.workspace, self.session)

    async def end(self) -> RunComplete:
        """Waits for the terminal event."""
        async for _ in self.events():
            pass
        assert self.result
        return self.result

    async def events(self) -> AsyncIterator[Notice]:
        """The events that the server attributes to this prompt; the terminal event is the last."""
        idle = 0
        while not self.result:
            self._next = self._next or asyncio.ensure_future(anext(self._events))
            done, _ = await asyncio.wait((self._next,), timeout=GRACE)
            if not done:
                idle = idle + 1 if self._doubtful and await self._is_idle() else 0
                if idle > 1:  # and no event has arrived since the first time
                    await self._look_back()
                    idle = 0
                continue
            notice, self._next, idle = self._next.result(), None, 0
            if self._is_ours(notice):
                self._perhaps_over = False
                yield notice

    @property
    def _doubtful(self) -> bool:
        """Whether the terminal event might never arrive on the stream."""
        return bool(self._error) or self._perhaps_over or self._events.gap or self._looked_back

    async def _look_back(self) -> None:
        """Searches the log for the terminal event, once. If that cannot help, uses the error event or the server's
        record of the prompt, or raises `EndUnknown`."""
        if self._events.place and (self._perhaps_over or self._events.gap) and not self._looked_back:
            self._looked_back = True
            await self._stop_reading()
            await self._events.rewind()
        elif self._error:
            self.result = RunComplete(self.session, outcome=Outcome.ERROR.value, run_id=self.run_id, error=self._error)
        elif end := await self._find_record():
            self.recorded, self.result = True, end
        else:
            raise EndUnknown(f"run {self.run_id} finished while disconnected; see the session's messages")

    async def _find_record(self) -> RunComplete | None:
        try:
            return await find_recorded_end(self._client, self.workspace, self.session, self.run_id)
        except (Refusal, BadAnswer):
            return None

    async def _stop_reading(self) -> None:
        if self._next:
            self._next.cancel()
            await asyncio.wait((self._next,))
            self._next = None

    def _is_ours(self, notice: Notice) -> bool:
        match notice.payload:
            case RunComplete(run_id=self.run_id) as end:
                failed = end.outcome == Outcome.ERROR.value
                self.result = replace(end, error=end.error or self._error) if failed else end
                return True
            case AgentEvent(error=error, run_id=run_id, session_id=session) if error:
                counts = run_id == self.run_id if run_id else session == self.session
                self._error = error if counts else self._error
                return counts
            case Message(run_id=self.run_id) | Prompt(run_id=self.run_id):
                return True
        return False

    async def _is_idle(self) -> bool:
        try:
            return (await self._client.agent_session(self.workspace, self.session)).is_busy is False
        except (Unreachable, Refusal) as error:
            if isinstance(error, Refusal) and not error.passes:
                raise
            return False  # unknown; assume busy
