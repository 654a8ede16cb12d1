"""The runtime as its callers see it. `outbox` applies and stores what they request, `turns` runs the turns."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from cancelmark.model.family import Feature
from cancelmark.model.protocol import REFERENCE, Protocol

from .. import wire
from ..models import Attachment, Model
from ..store import ClosingSession, ConstraintViolation, MemoryStore, PromptRecord, Store, StoreError
from .environment import Environment, Ownership, Ready
from .events import Broker
from .intents import GONE, Accept, Answer, CallIntent, Cancel, ClearQueue, Hold, Next, Replace, Revoke, Stop
from .messages import wire_part
from .outbox import Outbox
from .ownership import Sole
from .questions import Reply, parse_question, show_question
from .refusals import Closing, Moved, NoPrompt, NoSession, Refusal, RunIdInUse, pause
from .run import Handle
from .session import LivePrompt
from .trace import TraceWriter
from .turn import ToolRunner
from .turns import Turns

T = TypeVar("T")


class Runtime(Environment):
    """Runs prompts. Use it as `async with Runtime(model) as runtime`, or call `start` and `close`.

    - `ready`, if given, is awaited with the session's id before an accepted prompt enters. If it raises, the prompt
      ends with that error, unless it was canceled meanwhile.
    - `trace`, if given, records every action. The caller closes it.
    - `protocol` is the protocol of its sessions.
    - `ownership` decides which sessions this process runs: all of them, unless other servers share the store.
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
        """Recover what a crash or a restart has left."""
        await self.broker.start()
        await self.ownership.start()

    async def close(self, deadline: float | None = None) -> None:
        """Accept nothing more, cancel every session, wait until all prompts are done, and close the store.

        Turns that have not ended by the deadline (seconds; by default the grace period) are abandoned. Idempotent, and
        shielded from the caller's cancellation. A server of a cluster hands its sessions over instead of canceling
        them.
        """
        if self._close is None:
            self.closing = True
            self._close = asyncio.ensure_future(self.ownership.leave(self.grace if deadline is None else deadline))
        await asyncio.shield(self._close)

    async def create_session(self, id: str, title: str = "") -> None:
        """Create a session. Idempotent: an existing one is left as it is."""
        if id not in self.boxes:
            self._refuse_if_closing()
            await self.ownership.create(id, title)

    # --- calls

    async def accept(self, session_id: str, text: str, run_id: str | None = None,
                     attachments: Sequence[Attachment] = (), mode: Feature | None = None) -> Handle:
        """Accept a prompt: a text, or attachments, or both. When this returns, the prompt is journaled and
        certain to end, even after a crash.

        Raises `Refusal` or `StoreError` if nothing is accepted, and `Unconfirmed` if that is unknown. If the caller is
        canceled meanwhile, the prompt may or may not be accepted. With mode `REJECT`, a session that is not idle raises
        `Busy`. With mode `INTERRUPT`, the prompt goes to the front and stops what runs.
        """
        self._refuse_unstorable(text, run_id, attachments)
        if mode:
            self._refuse_without(mode)
        attached = tuple(map(wire_part, attachments)) if attachments else ()

        async def attempt() -> Handle:
            box = self.boxes.get(session_id) if mode is None else None
            if box is None or box.stuck:
                box = await self.ownership.reach(session_id)
            self._refuse_if_closing()
            handle: Handle = await box.submit(Accept(text, run_id or None, attached, mode, enters=self.ready is None))
            return handle

        try:
            return await self._retry(attempt)
        except ConstraintViolation as error:
            if not run_id:
                raise NoSession(f"session {session_id} was deleted; create another") from error
            raise RunIdInUse(f"run id {run_id} is in use by another prompt; choose a new one") from error
        except ClosingSession as error:
            raise Closing("the workspace is closing; open it again") from error

    async def call(self, session_id: str, call: CallIntent, by: str = "") -> Any:
        """Make a client's call, and return its answer once its outcome is durable. `by` is the client's id, which
        subscribers see."""
        self._refuse_without(*call.features)
        call.by = by

        async def attempt() -> Any:
            box = await self.ownership.reach(session_id)
            if call.key is None or box.find(call.key):
                answer = await box.submit(call)
                if answer is not GONE:
                    return answer
            record = await self._find_record(box, call.key)
            if record.outcome:
                return call.late(record)
            await box.drained()  # its end is not stored yet
            return GONE

        return await self._retry(attempt)

    async def _retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Make the attempt, and retry with backoff while its session moves to another server or its prompt is
        `GONE`."""
        attempts = 0
        while True:
            try:
                answer = await attempt()
                if answer is not GONE:
                    return answer
            except Moved:
                if not self.ownership.shared:
                    raise
            await pause(attempts := attempts + 1)

    async def _find_record(self, box: Outbox, key: int | str | None) -> PromptRecord:
        """The stored prompt with that seq or run id. Raises `NoPrompt`."""
        assert key is not None
        storable = key < 2**63 if isinstance(key, int) else self.store.is_storable(key)
        try:
            record = await self.store.prompt(key) if storable else None
        except StoreError:
            if self.over.is_set():  # the runtime has closed meanwhile
                self._refuse_if_closing()
            raise
        if record is None or record.session_id != box.session.id:
            raise NoPrompt(f"session {box.session.id} has no prompt {key!r:.80}")
        return record

    async def cancel(self, session_id: str, *, by: str = "") -> None:
        """Cancel everything accepted in the session so far."""
        await self.call(session_id, Cancel(), by)

    async def clear_queue(self, session_id: str, *, by: str = "") -> None:
        """Drop what is queued; the active prompt goes on."""
        await self.call(session_id, ClearQueue(), by)

    async def revoke(self, session_id: str, key: int | str, *, by: str = "") -> wire.Revoked:
        """Cancel one prompt, by its seq or run id, and return the outcome. Idempotent. Raises `NoPrompt`."""
        revoked: wire.Revoked = await self.call(session_id, Revoke(key), by)
        return revoked

    async def stop(self, session_id: str, *, hold: bool = False, seq: int | None = None, by: str = "") -> wire.Stopped:
        """Cancel the prompt in front, and keep the queue; with `hold`, hold the session in the same step. With `seq`,
        has no effect unless that prompt is in front: only that form is idempotent."""
        stopped: wire.Stopped = await self.call(session_id, Stop(hold, seq), by)
        return stopped

    async def hold(self, session_id: str, *, by: str = "") -> wire.Held:
        """Hold the session: no waiting prompt starts or folds; a running turn goes on to its end."""
        held: wire.Held = await self.call(session_id, Hold("hold"), by)
        return held

    async def resume(self, session_id: str, *, by: str = "") -> wire.Held:
        """Release the hold; the queue goes on."""
        held: wire.Held = await self.call(session_id, Hold("resume"), by)
        return held

    async def replace(self, session_id: str, key: int | str, text: str, if_version: int | None = None, *, by: str = "",
                      ) -> wire.Replaced:
        """Replace the text of a prompt that has not started. Idempotent: the same text again is accepted in every
        state. Raises `TooLate`, or `OtherVersion` if its text is not at `if_version`."""
        if not self.store.is_storable(text):
            raise Refusal(f"prompt: it contains {self.store.UNSTORABLE}")
        replaced: wire.Replaced = await self.call(session_id, Replace(key, text, if_version), by)
        return replaced

    async def next(self, session_id: str, key: int | str, *, by: str = "") -> wire.Placed:
        """Move a waiting prompt ahead of all others. Raises `TooLate`."""
        placed: wire.Placed = await self.call(session_id, Next(key), by)
        return placed

    async def answer(self, session_id: str, ask: str, reply: Reply, *, by: str = "") -> wire.AskAnswered:
        """Answer a question of a turn (`SEQ.N`). The first answer wins; the same answer again has no effect. Raises
        `NoPrompt` or `NoQuestion`, `QuestionClosed` if it was answered otherwise or withdrawn, and `Refusal` if the
        question does not take this answer."""
        seq, n = parse_question(ask)
        answered: wire.AskAnswered = await self.call(session_id, Answer(seq, n, reply), by)
        return answered

    async def list_asks(self, session_id: str, *, closed: int = 0) -> list[wire.Ask]:
        """The open questions of the session, as stored; with `closed`, also those that have ended, of its unfinished
        prompts and of that many finished ones."""
        return [show_question(session_id, record.seq, record.run_id, n, question)
                for record in await self.store.prompts(session_id, closed)
                for n, question in enumerate(record.questions, 1) if closed or question["status"] == "open"]

    def _refuse_unstorable(self, text: str, run_id: str | None, attachments: Sequence[Attachment]) -> None:
        if not (text.strip() or attachments):
            raise Refusal("the prompt is empty; send a text or an attachment")
        is_storable = self.store.is_storable
        words = [word for one in attachments for word in (one.path, one.mime_type, one.text)] if attachments else []
        if run_id:
            words.append(run_id)
        if not (is_storable(text) and all(map(is_storable, words))):
            raise Refusal(f"the prompt, its run id or an attachment contains {self.store.UNSTORABLE}")

    def _refuse_without(self, *features: Feature) -> None:
        for feature in features:
            if feature not in self.protocol.features:
                raise Refusal(f"protocol {self.protocol.name} has no {feature.value}; use a protocol that has it")

    def _refuse_if_closing(self) -> None:
        if self.closing:
            raise self.ownership.refuse()

    # --- queries: callers see what is stored

    def has_session(self, session_id: str) -> bool:
        """Whether this process knows the session. A cluster's session can become unknown at any time."""
        return session_id in self.boxes

    def mark(self, session_id: str) -> int:
        """The seq up to which a cancel has reached, as journaled."""
        return self.find(session_id).mark

    def is_held(self, session_id: str) -> bool:
        """Whether the session is held, as journaled."""
        return self.find(session_id).held

    def list_queued(self, session_id: str) -> list[LivePrompt]:
        """The queued prompts, next one first."""
        self.refuse_if_stuck(session_id)
        box = self.find(session_id)
        return [prompt for prompt in box.session.queue if prompt.seq not in box.unstored]

    def queued(self, session_id: str) -> list[str]:
        """The texts of the queued prompts, next one first."""
        return [prompt.text for prompt in self.list_queued(session_id)]

    def unfinished(self, session_id: str | None = None) -> int:
        """How many prompts of the session are not done; without an id, of all sessions."""
        if session_id is None:
            return sum(1 - len(run.folded_runs) for _, run in self.runs)
        box = self.boxes.get(session_id)
        if box is None:
            if self.ownership.shared:  # another server has its prompts
                return 0
            raise NoSession(f"there is no session {session_id}; create it first")
        self.refuse_if_stuck(session_id)
        return len(box.session.prompts) - sum(seq in box.session.prompts for seq in box.unstored)

    def is_busy(self, session_id: str | None = None) -> bool:
        """Whether the session has a prompt whose end is not published; without an id, whether any session has. A stuck
        session is busy: it still has something to write."""
        if session_id is None:
            return any(box.runs or box.stuck for box in self.boxes.values())
        box = self.find(session_id)
        return bool(box.stuck or box.session.prompts) or any(
            step.moved for entry in box.entries for step in entry.steps)

    def refuse_if_stuck(self, session_id: str) -> None:
        """Raise `Stuck` if the session is stuck until the server is restarted."""
        if stuck := self.find(session_id).stuck:
            raise stuck

    async def status(self, run_id: str) -> PromptRecord | None:
        """The stored prompt with that run id: its state, or how it ended."""
        return await self.store.prompt(run_id)
