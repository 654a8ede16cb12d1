"""One prompt, from its posting to its end."""

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

GRACE = 1.0  # seconds for an end to arrive that should be there


async def post(events: Events, session: str, prompt: str, run_id: str, attachments: Sequence[Attachment] = (),
               if_busy: str = "") -> None:
    """Posts a prompt until an answer says what came of it, while its reader reads `events`. A prompt that may have been
    accepted is posted again only to a server that tells places, for that one also knows run ids, and runs nothing
    twice. Once a prompt may have been accepted it is never called refused: what raises is the error that left it in
    doubt (R1d, R22b)."""
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
            if final or late or (doubt and not await _tells_places(events)):
                raise doubt or error from None
            attempt += 1
            await asyncio.sleep(waiting)


async def _tells_places(events: Events) -> bool:
    """Whether the server tells places: it does so at the beginning of a stream."""
    with suppress(TimeoutError):
        async with asyncio.timeout(GRACE):
            while not events.place:
                await asyncio.sleep(0.01)
    return bool(events.place)


async def find_recorded_end(client: Client, workspace: str, session: str, run_id: str) -> RunComplete | None:
    """The end of a prompt by the server's record, if there is one, and if the prompt is done: the outcome alone."""
    record = await client.prompt(workspace, session, run_id)
    if not record or not record.outcome:
        return None
    failed, canceled = (record.outcome == outcome.value for outcome in (Outcome.ERROR, Outcome.CANCELED))
    return RunComplete(session, record.seq, record.outcome, run_id, cancelled=canceled,
                       error="the server does not keep what went wrong" if failed else "")


class RunStream:
    """Sends a prompt under a run id of its own, and says what becomes of it. Entering it subscribes first, then posts;
    when that returns the prompt is accepted. Leaving it does nothing to the prompt.

    The end is the terminal event that carries our run id and nothing else: no other run's, no stream that ends, no
    idle session. An error event counts only if its run id is ours or, without one, its session is; if then no terminal
    event follows and the session has nothing left to do, that error is the end.

    An end may have been published before we could listen: if the prompt was sent before under the same run id, or if
    the stream broke before it had told a place, or for so long that the server's log does not reach back. Then, when
    the session has nothing left to do, the end is looked for in the log, and then in the server's record of the prompt,
    which has the outcome alone; `EndUnknown` if the server keeps neither (R28b, R29e).
    """

    def __init__(
        self, client: Client, workspace: str, session: str, prompt: str, *, run_id: str | None = None,
        attachments: Sequence[Attachment] = (), if_busy: str = "", patience: Patience | None = None,
        changed: Changed = lambda trouble: None,
    ) -> None:
        self.workspace, self.session, self.prompt = workspace, session, prompt
        self.attachments, self.if_busy = attachments, if_busy
        self.run_id = run_id or str(uuid4())
        self._perhaps_over = run_id is not None  # as far as we know
        self.result: RunComplete | None = None
        """How it ended, once that is known."""
        self.recorded = False
        """Only the outcome is known: the terminal event is not kept any more."""
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
        """Cancels everything that was accepted in the session so far, this prompt with it. Its end still comes."""
        await self._client.cancel(self.workspace, self.session)

    async def end(self) -> RunComplete:
        """Waits for the end."""
        async for _ in self.events():
            pass
        assert self.result
        return self.result

    async def events(self) -> AsyncIterator[Notice]:
        """What happens to this prompt, as far as the server tells whose it is; the terminal event is the last."""
        idle = 0
        while not self.result:
            self._next = self._next or asyncio.ensure_future(anext(self._events))
            done, _ = await asyncio.wait((self._next,), timeout=GRACE)
            if not done:
                idle = idle + 1 if self._doubtful and await self._is_idle() else 0
                if idle > 1:  # and the event did not come after we had seen that
                    await self._look_back()
                    idle = 0
                continue
            notice, self._next, idle = self._next.result(), None, 0
            if self._claim(notice):
                self._perhaps_over = False
                yield notice

    @property
    def _doubtful(self) -> bool:
        """Whether the end might never come by itself."""
        return bool(self._error) or self._perhaps_over or self._events.gap or self._looked_back

    async def _look_back(self) -> None:
        """Looks for the end in the log, once; if that cannot help, ends in the error that counts, or as the record
        says, or gives up."""
        if self._events.place and (self._perhaps_over or self._events.gap) and not self._looked_back:
            self._looked_back = True
            await self._stop_reading()
            await self._events.rewind()
        elif self._error:
            self.result = RunComplete(self.session, outcome=Outcome.ERROR.value, run_id=self.run_id, error=self._error)
        elif end := await self._find_record():
            self.recorded, self.result = True, end
        else:
            raise EndUnknown(f"run {self.run_id} has ended, but not while we could listen: see the session's messages")

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

    def _claim(self, notice: Notice) -> bool:
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
            return False  # as far as is known
