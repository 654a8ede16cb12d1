"""A store in memory."""

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from functools import partial
from heapq import merge
from itertools import islice, takewhile
from time import time
from typing import Any, TypeVar

from cancelmark.model.lifecycle import INITIAL, State

from .interface import Refused, Store, closed, discard, draw_name
from .operations import (
    AcceptPrompt,
    AppendEvent,
    Batch,
    ChangePrompt,
    DropEvent,
    ForgetPrompt,
    HoldSession,
    MovePrompt,
    NewSession,
    Operation,
    PutMessage,
    RaiseMark,
    ReplaceText,
)
from .records import TERMINAL, Event, Life, Message, PromptRecord, SessionRecord, Transition
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
        self._seqs: dict[str, list[int]] = {}  # of each session's prompts, in order
        self._unfinished: dict[str, set[int]] = {}  # of each session's prompts that are not done
        self._messages: dict[str, dict[int, Message]] = {}  # by session and place, counted from 0
        self._places: dict[str, tuple[str, int]] = {}  # of a message, by its id
        self._done_at: dict[int, int] = {}
        self._digests: dict[int, str] = {}  # of texts that are forgotten
        self._replaced: dict[int, str] = {}  # the digests of texts that were replaced
        self._held: dict[str, bool] = {}
        self._events: dict[int, tuple[AppendEvent, int]] = {}  # by id, each with its time
        self._latest = 0  # the highest id
        self._listeners: list[Callable[[int], None]] = []
        self._undo: list[tuple[dict[Any, Any], Any, Any]] = []
        self._ledger = Ledger()
        self._life = Life(1, draw_name())
        self._open = True
        self._apply: dict[type[Operation], Callable[[Any], bool]] = {
            NewSession: self._new_session, RaiseMark: self._raise_mark, HoldSession: self._hold_session,
            AcceptPrompt: self._accept_prompt, ChangePrompt: self._change_prompt, ReplaceText: self._replace_text,
            MovePrompt: self._move_prompt, PutMessage: self._put_message, AppendEvent: self._append_event,
            DropEvent: self._drop_event, ForgetPrompt: self._forget_prompt,
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
        before = self._latest
        self._undo.clear()
        for operation in steps.operations:
            if not self._apply[type(operation)](operation):
                self._take_back(before)
                raise Refused(self.WHERE, operation)
        self._index(steps.operations)
        latest = self._latest
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
        unfinished = sorted(seq for seqs in self._unfinished.values() for seq in seqs)
        return snapshots(self._ledger.settled(), map(self._mark, self._sessions), map(self._record, unfinished))

    def _load(self, session_id: str, versions: Mapping[str, int]) -> Snapshot:
        unfinished = map(self._record, sorted(self._unfinished.get(session_id, ())))
        return snapshots(versions, [self._mark(session_id)], unfinished)[0]

    def _mark(self, session_id: str) -> tuple[str, int, bool]:
        return session_id, self._sessions[session_id].mark, self._held.get(session_id, False)

    def _index(self, operations: Batch) -> None:
        """Notes which prompts each session has, now that the operations are kept."""
        for op in operations:
            if isinstance(op, PutMessage):
                continue
            if isinstance(op, AcceptPrompt):
                insort(self._seqs.setdefault(op.session_id, []), op.seq)
                self._unfinished.setdefault(op.session_id, set()).add(op.seq)
            elif isinstance(op, MovePrompt) and op.state is State.DONE:
                self._unfinished[self._prompts[op.seq].session_id].discard(op.seq)
                self._done_at[op.seq] = int(time())
            elif isinstance(op, ForgetPrompt):
                self._forget(op.seq)

    def _forget(self, seq: int) -> None:
        prompt = self._prompts[seq]
        seqs = self._seqs[prompt.session_id]
        del seqs[bisect_left(seqs, seq)], self._done_at[seq]
        if prompt.run_id is None:
            del self._prompts[seq], self._moves[seq], self._digests[seq]
        else:
            self._prompts[seq] = prompt._replace(text="", attachments=())

    async def prompt(self, key: str | int) -> PromptRecord | None:
        self._check_open()
        seq = key if isinstance(key, int) else self._by_run_id.get(key, 0)
        return self._record(seq) if seq in self._prompts else None

    async def prompts(self, session_id: str, finished: int, *, before: int | None = None) -> list[PromptRecord]:
        self._check_open()
        seqs, unfinished = self._seqs.get(session_id, []), self._unfinished.get(session_id, set())
        end = len(seqs) if before is None else bisect_left(seqs, before)
        earlier = (seqs[place] for place in range(end - 1, -1, -1))  # the latest first
        done = islice((seq for seq in earlier if seq in self._done_at), finished)
        return [self._record(seq) for seq in sorted({*done, *(unfinished if before is None else ())})]

    async def done_prompts(self, until: int, limit: int, *, before: int | None = None) -> list[PromptRecord]:
        self._check_open()
        highest = max((seqs[-1] for seqs in self._seqs.values() if seqs), default=0)
        seqs = takewhile(lambda seq: seq <= until and seq < highest, merge(*self._seqs.values()))
        oldest = islice((seq for seq in seqs if seq in self._done_at), limit)
        return list(map(self._record, takewhile(lambda seq: before is None or self._done_at[seq] < before, oldest)))

    async def transitions(self, seq: int) -> list[Transition]:
        self._check_open()
        if seq not in self._prompts or seq in self._digests:
            return []
        return [Transition(seq, INITIAL, None), *(Transition(*move[:3]) for move in self._moves[seq])]

    def _record(self, seq: int) -> PromptRecord:
        prompt = self._prompts[seq]
        moves = self._moves[seq]
        _, state, outcome, into = moves[-1] if moves else (seq, INITIAL, None, None)
        begun = any(move.state is State.ACTIVE for move in moves)
        return PromptRecord(seq, prompt.session_id, prompt.text, prompt.run_id, state, outcome, self._digests.get(seq),
                            prompt.attachments, prompt.traits._replace(begun=begun), self._replaced.get(seq), into)

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
        end = self._latest if until is None else min(until, self._latest)
        for id in range(max(after + 1, self._first), end + 1):
            if len(found) == limit:
                break
            event, _ = self._events[id]
            if (session is None or event.session_id == session) and (event.type == TERMINAL or not terminal):
                found.append(Event(id, event.session_id, event.run_id, event.type, event.payload))
        return found

    async def latest_event(self) -> int:
        self._check_open()
        return self._latest

    async def first_event(self, since: int = 0) -> int:
        self._check_open()
        ids = range(self._first, self._latest + 1)
        return self._first + bisect_left(ids, since, key=lambda id: self._events[id][1])

    @property
    def _first(self) -> int:
        """The lowest id in the log."""
        return self._latest - len(self._events) + 1

    async def lives(self) -> list[Life]:
        self._check_open()
        return [self._life]

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

    def _change_prompt(self, op: ChangePrompt) -> bool:
        if op.seq not in self._prompts or self._is_done(op.seq):
            return False
        self._put(self._prompts, op.seq, self._prompts[op.seq]._replace(traits=op.traits))
        return True

    def _replace_text(self, op: ReplaceText) -> bool:
        if op.seq not in self._prompts or self._is_done(op.seq):
            return False
        self._put(self._prompts, op.seq, self._prompts[op.seq]._replace(text=op.text))
        if op.seq not in self._replaced:
            self._put(self._replaced, op.seq, op.was)
        return True

    def _hold_session(self, op: HoldSession) -> bool:
        if op.session_id not in self._sessions:
            return False
        self._put(self._held, op.session_id, op.held)
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
        self._latest += 1
        self._put(self._events, self._latest, (op, int(time())))
        return True

    def _drop_event(self, op: DropEvent) -> bool:
        if op.id != self._first or op.id >= self._latest:
            return False
        self._undo.append((self._events, op.id, self._events.pop(op.id)))
        return True

    def _forget_prompt(self, op: ForgetPrompt) -> bool:
        prompt = self._prompts.get(op.seq)
        if (prompt is None or not self._is_done(op.seq) or op.seq in self._digests
                or (prompt.run_id is None) != (op.digest is None)
                or not any(seq > op.seq for seq in reversed(self._prompts))):
            return False
        self._put(self._digests, op.seq, op.digest or "")
        return True

    def _put(self, table: dict[K, V], key: K, value: V) -> None:
        """Sets the key, and notes how to take that back."""
        self._undo.append((table, key, table.get(key)))
        table[key] = value

    def _take_back(self, events: int) -> None:
        """Makes everything as it was before the batch, when there were so many events."""
        self._latest = events
        for table, key, value in reversed(self._undo):
            if value is None:
                del table[key]
            else:
                table[key] = value

    def _check_open(self) -> None:
        if not self._open:
            raise closed(self.WHERE)
