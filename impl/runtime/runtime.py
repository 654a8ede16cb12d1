"""The runtime: sessions that run, as callers see them. `outbox` has what is asked of each, `turns` runs the turns."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cancelmark.model.family import Feature
from cancelmark.model.protocol import REFERENCE, Protocol

from .. import wire
from ..models import Attachment, Model
from ..store import ClosingSession, MemoryStore, PromptRecord, Refused, Store, StoreError
from .events import Broker
from .intents import GONE, Accept, Call, Cancel, ClearQueue, Hold, Next, Replace, Revoke, Stop
from .messages import wire_part
from .outbox import Environment, Outbox, Ownership, Ready
from .ownership import Sole
from .refusals import Closing, Moved, NoPrompt, NoSession, Refusal, RunIdInUse, pause
from .run import Handle
from .session import Prompt
from .trace import TraceWriter
from .turn import ToolRunner
from .turns import Turns


class Runtime(Environment):
    """Runs prompts. Use it as `async with Runtime(model) as runtime`, or call `start` and `close`.

    `ready`, if given, is awaited with the session's id before an accepted prompt enters. What it raises is the reason
    why the prompt cannot start: it ends with that error, unless it was canceled meanwhile. `trace`, if given, is told
    of every action; whoever has opened it closes it. `protocol` is what its sessions live by. `ownership` says which
    sessions are this process's: all of them, unless others share the store.
    """

    def __init__(
        self, model: Model, store: Store | None = None, *, tools: Iterable[ToolRunner] = (), grace: float = 5.0,
        ready: Ready | None = None, trace: TraceWriter | None = None, protocol: Protocol = REFERENCE,
        ownership: Callable[[Environment, Turns], Ownership] = Sole,
    ) -> None:
        store = store or MemoryStore()
        super().__init__(store, Broker(store), trace, protocol)
        self.model, self.grace, self.ready = model, grace, ready
        self.turns: Turns = Turns(self, model, tools, grace)
        self.ownership = ownership(self, self.turns)
        self._close: asyncio.Future[None] | None = None

    async def __aenter__(self) -> "Runtime":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Takes up what a crash or a restart has left."""
        await self.broker.start()
        await self.ownership.start()

    async def close(self, deadline: float | None = None) -> None:
        """Accepts nothing more, cancels every session, waits until all prompts are done, and closes the store. Turns
        that have not ended by the deadline (seconds; by default the grace period) are abandoned. Closing twice is
        closing once, and a close goes on when its caller is canceled (R15a). One of several servers on a database
        hands its sessions over instead."""
        if self._close is None:
            self.closing = True
            self._close = asyncio.ensure_future(self.ownership.leave(self.grace if deadline is None else deadline))
        await asyncio.shield(self._close)

    async def create_session(self, id: str, title: str = "") -> None:
        """A new session. One that exists is left as it is."""
        if id not in self.boxes:
            self._refuse_if_closing()
            await self.ownership.create(id, title)

    # --- what callers do

    async def accept(self, session_id: str, text: str, run_id: str | None = None,
                     attachments: Sequence[Attachment] = (), mode: Feature | None = None) -> Handle:
        """Accepts a prompt: a text, or attachments, or both. When this returns it is journaled, and its end will come.
        Raises `Refusal` or `StoreError`, and then nothing is accepted. If the caller is canceled meanwhile, the prompt
        may or may not be accepted (R1a, R1b, R1c, R15a, R22a). With mode `REJECT` a session that is not idle raises
        `Busy`; with mode `INTERRUPT` the prompt goes to the front, and stops what runs (R35a, R35b)."""
        self._refuse_unstorable(text, run_id, attachments)
        if mode:
            self._refuse_without(mode)
        attached = tuple(map(wire_part, attachments)) if attachments else ()
        attempts = 0
        while True:
            box = self.boxes.get(session_id) if mode is None else None
            if box is None or box.stuck:
                box = await self.ownership.reach(session_id)
            self._refuse_if_closing()
            try:
                handle: Handle = await box.ask(Accept(text, run_id or None, attached, mode, enters=self.ready is None))
                return handle
            except Refused as error:
                if not run_id:
                    raise NoSession(f"session {session_id} was deleted; create another") from error
                raise RunIdInUse(f"run id {run_id} is in use; choose a new one for a new prompt") from error
            except ClosingSession as error:
                raise Closing("the workspace is closing; open it again") from error
            except Moved:
                if not self.ownership.shared:
                    raise
            await pause(attempts := attempts + 1)

    async def call(self, session_id: str, call: Call, by: str = "") -> Any:
        """Makes a call of a client, and answers when what came of it will outlive a crash (R27c). `by` is the id of the
        client: those who watch are told."""
        self._refuse_without(*call.features)
        call.by = by
        attempts = 0
        while True:
            try:
                box = await self.ownership.reach(session_id)
                if call.key is None or box.find(call.key):
                    answer = await box.ask(call)
                    if answer is not GONE:
                        return answer
                record = await self._find_record(box, call.key)
                if record.outcome:
                    return call.late(record)
                await box.drained()  # its end is on its way
            except Moved:
                if not self.ownership.shared:
                    raise
            await pause(attempts := attempts + 1)

    async def _find_record(self, box: Outbox, key: int | str | None) -> PromptRecord:
        """The prompt with that seq or run id, as it is stored. Raises `NoPrompt`."""
        assert key is not None
        storable = key < 2**63 if isinstance(key, int) else self.store.is_storable(key)
        try:
            record = await self.store.prompt(key) if storable else None
        except StoreError:
            if self.over.is_set():  # it has closed meanwhile
                self._refuse_if_closing()
            raise
        if record is None or record.session_id != box.session.id:
            raise NoPrompt(f"session {box.session.id} has no prompt {key!r:.80}")
        return record

    async def cancel(self, session_id: str, *, by: str = "") -> None:
        """Cancels everything accepted in the session so far."""
        await self.call(session_id, Cancel(), by)

    async def clear_queue(self, session_id: str, *, by: str = "") -> None:
        """Drops what is queued; the active prompt goes on."""
        await self.call(session_id, ClearQueue(), by)

    async def revoke(self, session_id: str, key: int | str, *, by: str = "") -> wire.Revoked:
        """Cancels one prompt, by its seq or run id, and says what that has come to. Repeating it changes nothing.
        Raises `NoPrompt` if there is none (R30a, R30b)."""
        revoked: wire.Revoked = await self.call(session_id, Revoke(key), by)
        return revoked

    async def stop(self, session_id: str, *, hold: bool = False, seq: int | None = None, by: str = "") -> wire.Stopped:
        """Cancels the prompt in front, and keeps the queue; with `hold`, holds the session in the same step. With `seq`
        nothing is done unless that prompt is in front: only so can it be repeated (R31a, R31b, R31c)."""
        stopped: wire.Stopped = await self.call(session_id, Stop(hold, seq), by)
        return stopped

    async def hold(self, session_id: str, *, by: str = "") -> wire.Held:
        """Nothing that waits starts or folds any more; a running turn goes on to its end (R32a, R32b)."""
        held: wire.Held = await self.call(session_id, Hold("hold"), by)
        return held

    async def resume(self, session_id: str, *, by: str = "") -> wire.Held:
        """The hold is over, and the queue goes on (R32d)."""
        held: wire.Held = await self.call(session_id, Hold("resume"), by)
        return held

    async def replace(self, session_id: str, key: int | str, text: str, if_version: int | None = None, *, by: str = "",
                      ) -> wire.Replaced:
        """Gives a prompt that has not begun another text. The text that it has already is no change, and is taken in
        every state. Raises `TooLate`, or `OtherVersion` if its text is not of the version that is asked
        for (R33a, R33b)."""
        if not self.store.is_storable(text):
            raise Refusal(f"prompt: it has {self.store.UNSTORABLE}")
        replaced: wire.Replaced = await self.call(session_id, Replace(key, text, if_version), by)
        return replaced

    async def next(self, session_id: str, key: int | str, *, by: str = "") -> wire.Placed:
        """Moves a prompt that waits ahead of all others. Raises `TooLate` (R34a, R34b)."""
        placed: wire.Placed = await self.call(session_id, Next(key), by)
        return placed

    def _refuse_unstorable(self, text: str, run_id: str | None, attachments: Sequence[Attachment]) -> None:
        if not (text.strip() or attachments):
            raise Refusal("the prompt is empty; say something, or attach a text")
        is_storable = self.store.is_storable
        words = [word for one in attachments for word in (one.path, one.mime_type, one.text)] if attachments else []
        if run_id:
            words.append(run_id)
        if not (is_storable(text) and all(map(is_storable, words))):
            raise Refusal(f"the prompt, its run id or an attachment has {self.store.UNSTORABLE}")

    def _refuse_without(self, *features: Feature) -> None:
        for feature in features:
            if feature not in self.protocol.features:
                raise Refusal(f"protocol {self.protocol.name} has no {feature.value}; use one that has")

    def _refuse_if_closing(self) -> None:
        if self.closing:
            raise Closing("the server is closing; ask another, or this one when it is back")

    # --- what callers see: what is stored

    def has_session(self, session_id: str) -> bool:
        """Whether the session is known here. One that is shared may not be, even if it was a moment ago."""
        return session_id in self.boxes

    def mark(self, session_id: str) -> int:
        """The seq up to which a cancel has reached, as it is journaled."""
        return self.find(session_id).mark

    def is_held(self, session_id: str) -> bool:
        """Whether the session is held, as it is journaled."""
        return self.find(session_id).held

    def list_queued(self, session_id: str) -> list[Prompt]:
        """The queued prompts, the next one first."""
        self.refuse_if_stuck(session_id)
        box = self.find(session_id)
        return [prompt for prompt in box.session.queue if prompt.seq not in box.unstored]

    def queued(self, session_id: str) -> list[str]:
        """The texts of the queued prompts, the next one first."""
        return [prompt.text for prompt in self.list_queued(session_id)]

    def unfinished(self, session_id: str | None = None) -> int:
        """How many prompts of the session are not done; without an id, of all sessions."""
        if session_id is None:
            return sum(1 - len(run.guests) for _, run in self.runs)
        box = self.boxes.get(session_id)
        if box is None:
            if self.ownership.shared:  # and not known here
                return 0
            raise NoSession(f"there is no session {session_id}; create it first")
        self.refuse_if_stuck(session_id)
        return len(box.session.prompts) - sum(seq in box.session.prompts for seq in box.unstored)

    def is_busy(self, session_id: str | None = None) -> bool:
        """Whether the session has a prompt whose end has not been published; without an id, whether any has. One that
        stands still is busy: it has something to write."""
        if session_id is None:
            return any(box.runs or box.stuck for box in self.boxes.values())
        box = self.find(session_id)
        return bool(box.stuck or box.session.prompts) or any(
            step.moved for entry in box.entries for step in entry.steps)

    def refuse_if_stuck(self, session_id: str) -> None:
        """Raises `Stuck` if the session stands still until the server is restarted (R25b)."""
        if stuck := self.find(session_id).stuck:
            raise stuck

    async def status(self, run_id: str) -> PromptRecord | None:
        """Where the prompt with that run id is, or how it ended."""
        return await self.store.prompt(run_id)
