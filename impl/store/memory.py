"""A store in memory."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from cancelmark.model.lifecycle import INITIAL, State

from .interface import Refused, Store, closed, discard
from .operations import AcceptPrompt, AppendEvent, Batch, MovePrompt, NewSession, Operation, PutMessage, RaiseMark
from .records import Event, Message, PromptRecord, SessionRecord, Transition

K = TypeVar("K")
V = TypeVar("V")


class MemoryStore(Store):
    """A store that ends with its process. It keeps the whole history, as a file would, and is for one thread.

    `write` never suspends: it applies the batch and returns within the same step of the event loop.
    """

    WHERE = "memory"

    def __init__(self) -> None:
        self._sessions: dict[str, SessionRecord] = {}
        self._prompts: dict[int, PromptRecord] = {}
        self._by_run_id: dict[str, int] = {}
        self._transitions: dict[int, tuple[Transition, ...]] = {}
        self._messages: dict[str, dict[str, Message]] = {}  # by session and id
        self._session_of: dict[str, str] = {}  # of a message
        self._events: list[Event] = []  # the event with id n is at n - 1
        self._listeners: list[Callable[[int], None]] = []
        self._undo: list[tuple[dict[Any, Any], Any, Any]] = []
        self._open = True
        self._apply: dict[type[Operation], Callable[[Any], bool]] = {
            NewSession: self._new_session, RaiseMark: self._raise_mark, AcceptPrompt: self._accept_prompt,
            MovePrompt: self._move_prompt, PutMessage: self._put_message, AppendEvent: self._append_event,
        }

    async def write(self, batch: Batch) -> tuple[int, ...]:
        self._check_open()
        before = len(self._events)
        self._undo.clear()
        for operation in batch:
            if not self._apply[type(operation)](operation):
                self._take_back(before)
                raise Refused(self.WHERE, operation)
        latest = len(self._events)
        if latest > before:
            for listener in self._listeners:
                listener(latest)
        return tuple(range(before + 1, latest + 1))

    def prompt(self, run_id: str) -> PromptRecord | None:
        self._check_open()
        seq = self._by_run_id.get(run_id)
        return None if seq is None else self._prompts[seq]

    def unfinished(self) -> list[PromptRecord]:
        self._check_open()
        return sorted((p for p in self._prompts.values() if p.state is not State.DONE), key=lambda p: p.seq)

    def prompts(self, session_id: str, finished: int) -> list[PromptRecord]:
        self._check_open()
        found: list[PromptRecord] = []
        for prompt in reversed(self._prompts.values()):
            if prompt.session_id == session_id:
                finished -= prompt.state is State.DONE
                if prompt.state is not State.DONE or finished >= 0:
                    found.append(prompt)
        return sorted(found, key=lambda p: p.seq)

    def transitions(self, seq: int) -> list[Transition]:
        self._check_open()
        return list(self._transitions.get(seq, ()))

    def latest_seq(self) -> int:
        self._check_open()
        return max(max(self._prompts, default=0), max((s.mark for s in self._sessions.values()), default=0))

    def sessions(self) -> list[SessionRecord]:
        self._check_open()
        return list(self._sessions.values())

    def messages(self, session_id: str) -> list[Message]:
        self._check_open()
        return list(self._messages.get(session_id, {}).values())

    def events(self, after: int = 0, *, until: int | None = None, session: str | None = None,
               terminal: bool = False, limit: int | None = None) -> list[Event]:
        self._check_open()
        found: list[Event] = []
        end = len(self._events) if until is None else min(until, len(self._events))
        for index in range(max(after, 0), end):  # a slice would copy the whole rest for each page of a long log
            if len(found) == limit:
                break
            event = self._events[index]
            if (session is None or event.session_id == session) and (event.terminal or not terminal):
                found.append(event)
        return found

    def latest_event(self) -> int:
        self._check_open()
        return len(self._events)

    def watch(self, listener: Callable[[int], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: discard(self._listeners, listener)

    def close(self) -> None:
        self._open = False

    # --- one method for each operation: it says whether the operation is allowed, and changes nothing if not

    def _new_session(self, op: NewSession) -> bool:
        if op.id in self._sessions:
            return False
        self._put(self._sessions, op.id, SessionRecord(op.id, op.title, 0, op.created_at))
        self._put(self._messages, op.id, {})
        return True

    def _raise_mark(self, op: RaiseMark) -> bool:
        session = self._sessions.get(op.session_id)
        if session is None:
            return False
        if op.mark > session.mark:
            self._put(self._sessions, session.id, replace(session, mark=op.mark))
        return True

    def _accept_prompt(self, op: AcceptPrompt) -> bool:
        if op.session_id not in self._sessions or op.seq < 1 or op.seq in self._prompts or op.run_id in self._by_run_id:
            return False
        self._put(self._prompts, op.seq, PromptRecord(op.seq, op.session_id, op.text, op.run_id, INITIAL, None))
        self._put(self._transitions, op.seq, (Transition(op.seq, INITIAL, None),))
        if op.run_id is not None:
            self._put(self._by_run_id, op.run_id, op.seq)
        return True

    def _move_prompt(self, op: MovePrompt) -> bool:
        prompt = self._prompts.get(op.seq)
        if prompt is None or prompt.state is State.DONE or (op.state is State.DONE) != (op.outcome is not None):
            return False
        moved = PromptRecord(prompt.seq, prompt.session_id, prompt.text, prompt.run_id, op.state, op.outcome)
        self._put(self._prompts, op.seq, moved)
        self._put(self._transitions, op.seq,
                  (*self._transitions[op.seq], Transition(op.seq, op.state, op.outcome)))
        return True

    def _put_message(self, op: PutMessage) -> bool:
        message = op.message
        session_id = message.session_id
        if session_id not in self._sessions or self._session_of.get(message.id, session_id) != session_id:
            return False
        self._put(self._session_of, message.id, session_id)
        self._put(self._messages[session_id], message.id, message)
        return True

    def _append_event(self, op: AppendEvent) -> bool:
        if op.session_id not in self._sessions:
            return False
        self._events.append(Event(len(self._events) + 1, op.session_id, op.run_id, op.type, op.payload))
        return True

    def _put(self, table: dict[K, V], key: K, value: V) -> None:
        """Sets the key, and notes how to take that back."""
        self._undo.append((table, key, table.get(key)))
        table[key] = value

    def _take_back(self, events: int) -> None:
        """Makes everything as it was before the batch, when there were so many events."""
        del self._events[events:]
        for table, key, value in reversed(self._undo):
            if value is None:
                del table[key]
            else:
                table[key] = value

    def _check_open(self) -> None:
        if not self._open:
            raise closed(self.WHERE)
