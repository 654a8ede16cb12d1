"""A store in memory."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from cancelmark.model.lifecycle import INITIAL, State

from .interface import Refused, Store, closed, discard
from .operations import AcceptPrompt, AppendEvent, MovePrompt, NewSession, Operation, PutMessage, RaiseMark
from .records import TERMINAL, Event, Message, PromptRecord, SessionRecord, Transition
from .steps import Answer, Ledger, Snapshot, Steps, snapshots

K = TypeVar("K")
V = TypeVar("V")


class MemoryStore(Store):
    """A store that ends with its process. It keeps the whole history, as a file would, and is for one thread. What was
    written is kept as it came, and made into records when it is read.

    A commit is done at once: its future is done when `begin_commit` returns.
    """

    WHERE = "memory"

    def __init__(self) -> None:
        self._sessions: dict[str, SessionRecord] = {}
        self._prompts: dict[int, AcceptPrompt] = {}
        self._moves: dict[int, tuple[MovePrompt, ...]] = {}
        self._by_run_id: dict[str, int] = {}
        self._messages: dict[str, dict[int, Message]] = {}  # by session and place, counted from 0
        self._places: dict[str, tuple[str, int]] = {}  # of a message, by its id
        self._events: list[AppendEvent] = []  # the event with id n is at n - 1
        self._listeners: list[Callable[[int], None]] = []
        self._undo: list[tuple[dict[Any, Any], Any, Any]] = []
        self._ledger = Ledger()
        self._open = True
        self._apply: dict[type[Operation], Callable[[Any], bool]] = {
            NewSession: self._new_session, RaiseMark: self._raise_mark, AcceptPrompt: self._accept_prompt,
            MovePrompt: self._move_prompt, PutMessage: self._put_message, AppendEvent: self._append_event,
        }

    def begin_commit(self, steps: Steps) -> "asyncio.Future[Answer]":
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        try:
            answer.set_result(self._commit_now(steps))
        except Exception as error:
            answer.set_exception(error)
        return answer

    def _commit_now(self, steps: Steps) -> Answer:
        self._check_open()
        if not self._ledger.fits(steps):
            return self._ledger.refuse(steps, partial(self._load, steps.session_id))
        before = len(self._events)
        self._undo.clear()
        for operation in steps.operations:
            if not self._apply[type(operation)](operation):
                self._take_back(before)
                raise Refused(self.WHERE, operation)
        latest = len(self._events)
        answer = self._ledger.keep(steps, tuple(range(before + 1, latest + 1)))
        if latest > before:
            for listener in self._listeners:
                listener(latest)
        return answer

    async def load(self, session_id: str) -> Snapshot:
        self._check_open()
        return self._load(session_id, self._ledger.settled())

    async def load_all(self) -> list[Snapshot]:
        self._check_open()
        unfinished = [self._record(seq) for seq in sorted(self._prompts) if not self._is_done(seq)]
        return snapshots(self._ledger.settled(), ((s.id, s.mark) for s in self._sessions.values()), unfinished)

    def _load(self, session_id: str, versions: Mapping[str, int]) -> Snapshot:
        mine = sorted(seq for seq, prompt in self._prompts.items() if prompt.session_id == session_id)
        unfinished = [self._record(seq) for seq in mine if not self._is_done(seq)]
        return snapshots(versions, [(session_id, self._sessions[session_id].mark)], unfinished)[0]

    async def prompt(self, key: str | int) -> PromptRecord | None:
        self._check_open()
        seq = key if isinstance(key, int) else self._by_run_id.get(key, 0)
        return self._record(seq) if seq in self._prompts else None

    async def prompts(self, session_id: str, finished: int) -> list[PromptRecord]:
        self._check_open()
        mine = sorted(seq for seq, prompt in self._prompts.items() if prompt.session_id == session_id)
        done = [seq for seq in mine if self._is_done(seq)]
        left_out = set(done[:max(0, len(done) - finished)])
        return [self._record(seq) for seq in mine if seq not in left_out]

    async def transitions(self, seq: int) -> list[Transition]:
        self._check_open()
        if seq not in self._prompts:
            return []
        return [Transition(seq, INITIAL, None), *(Transition(*move) for move in self._moves[seq])]

    def _record(self, seq: int) -> PromptRecord:
        prompt = self._prompts[seq]
        _, state, outcome = self._moves[seq][-1] if self._moves[seq] else (seq, INITIAL, None)
        return PromptRecord(seq, prompt.session_id, prompt.text, prompt.run_id, state, outcome)

    def _is_done(self, seq: int) -> bool:
        moves = self._moves[seq]
        return bool(moves) and moves[-1].state is State.DONE

    async def latest_seq(self) -> int:
        self._check_open()
        return max(max(self._prompts, default=0), max((s.mark for s in self._sessions.values()), default=0))

    async def sessions(self) -> list[SessionRecord]:
        self._check_open()
        return list(self._sessions.values())

    async def messages(self, session_id: str, *, since: str | None = None, before: str | None = None,
                       last: int | None = None) -> list[Message]:
        self._check_open()
        messages = self._messages.get(session_id, {})
        begin, end = 0, len(messages)
        for id in (since, before):
            if id is not None and self._places.get(id, ("",))[0] != session_id:
                return []
        if since is not None:
            begin = self._places[since][1]
        if before is not None:
            end = self._places[before][1]
        if last is not None:
            begin = max(begin, end - last)
        return [messages[place] for place in range(begin, end)]

    async def events(self, after: int = 0, *, until: int | None = None, session: str | None = None,
                     terminal: bool = False, limit: int | None = None) -> list[Event]:
        self._check_open()
        found: list[Event] = []
        end = len(self._events) if until is None else min(until, len(self._events))
        for index in range(max(after, 0), end):  # a slice would copy the whole rest for each page of a long log
            if len(found) == limit:
                break
            event = self._events[index]
            if (session is None or event.session_id == session) and (event.type == TERMINAL or not terminal):
                found.append(Event(index + 1, event.session_id, event.run_id, event.type, event.payload))
        return found

    async def latest_event(self) -> int:
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
            self._put(self._sessions, session.id, session._replace(mark=op.mark))
        return True

    def _accept_prompt(self, op: AcceptPrompt) -> bool:
        if op.session_id not in self._sessions or op.seq < 1 or op.seq in self._prompts or op.run_id in self._by_run_id:
            return False
        self._put(self._prompts, op.seq, op)
        self._put(self._moves, op.seq, ())
        if op.run_id is not None:
            self._put(self._by_run_id, op.run_id, op.seq)
        return True

    def _move_prompt(self, op: MovePrompt) -> bool:
        if op.seq not in self._prompts or self._is_done(op.seq) or (op.state is State.DONE) != (op.outcome is not None):
            return False
        self._put(self._moves, op.seq, (*self._moves[op.seq], op))
        return True

    def _put_message(self, op: PutMessage) -> bool:
        message = op.message
        messages = self._messages.get(message.session_id)
        if messages is None:
            return False
        session_id, place = self._places.get(message.id, (message.session_id, len(messages)))
        if session_id != message.session_id:
            return False
        if place == len(messages):
            self._put(self._places, message.id, (session_id, place))
        self._put(messages, place, message)
        return True

    def _append_event(self, op: AppendEvent) -> bool:
        if op.session_id not in self._sessions:
            return False
        self._events.append(op)
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
