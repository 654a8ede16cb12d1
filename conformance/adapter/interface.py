"""The adapter's interface: the calls that the kit makes, and the events that the adapter reports."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cancelmark.model import calls

from .guarantees import ORDER
from .patience import Patience
from .turns import Turns

GUARANTEES: frozenset[str] = frozenset(p.id for p in ORDER)
"""The ids of all guarantees: `claims = GUARANTEES - {"fifo"}`. specs/protocol.md explains each."""

FAMILY = frozenset({*calls.FAMILY, "stop_hold"} - {"resume"})  # `hold` includes `resume`
OPTIONAL = ("clear", "queued", "messages", "shut", "restart", "leave", "attach", "delete", "slow", "lose",
            *sorted(FAMILY))


class Refused(Exception):
    """The server refused the call: it is busy, closing or full."""


class ServerGone(Exception):
    """The server has stopped, or has broken the connection. The kit treats a `ConnectionError`, an `EOFError`, the
    equivalents of HTTP clients (`BREAKS`) and an exited `ServerProcess` in the same way. Raise it where a library
    raises something else."""


BREAKS = frozenset({
    "NetworkError", "RemoteProtocolError",  # httpx, httpx2, httpcore, h11
    "BrokenResourceError", "EndOfStream",  # anyio
    "ClientConnectionError", "ClientPayloadError",  # aiohttp
    "ConnectionError", "ChunkedEncodingError",  # requests
    "IncompleteRead", "ConnectionClosed",  # http.client, websockets
})
"""Names of exceptions that mean a broken connection, in libraries that need not be installed."""


def is_gone(error: BaseException | None) -> bool:
    """Whether the error means that the server is gone."""
    while error is not None:
        if isinstance(error, ServerGone | EOFError) or any(kind.__name__ in BREAKS for kind in type(error).__mro__):
            return True
        if isinstance(error, BaseExceptionGroup) and any(map(is_gone, error.exceptions)):
            return True
        error = error.__cause__ or error.__context__
    return False


@dataclass(frozen=True)
class Sent:
    """A prompt that the kit sends."""

    name: str
    """Unique. The text contains it, and it is also the run id if the prompt has one."""
    text: str
    run_id: str | None
    """None: the prompt has no run id. The kit sends such prompts only to servers that fold them (`folds`)."""
    fails: bool = False
    """The server must fail to start it. The kit sends such prompts only if the adapter can arrange that
    (`fails_early`).
    """
    if_busy: str = ""
    """What happens if the session is not idle. Empty: the prompt waits. `reject`: it is refused. `interrupt`: it moves
    to the front, and the running prompt is stopped. The kit uses the last two only if the adapter declares them
    (`if_busy`)."""


@dataclass(frozen=True)
class Ended:
    """A terminal event, as the server published it."""

    name: str
    """The `Sent.name` of its prompt: the run id, or the server's own id translated to the name."""
    outcome: str
    """`end_turn`, `error` or `canceled`."""
    text: str | None = None
    """The answer, if the event carries one. The kit's language model repeats the prompt's name in it."""
    error: str | None = None
    """The error message, if the event carries one. The kit's language model repeats the prompt's name in it."""


@dataclass(frozen=True)
class Notice:
    """An error that the server published for a prompt, separately from its terminal event."""

    name: str
    error: str


@dataclass(frozen=True)
class Spoken:
    """A message in a session's conversation."""

    role: str
    """`user` or `assistant`; others are ignored."""
    text: str
    finish: str | None = None
    """The finish reason of an assistant message: `canceled`, or anything else."""


@dataclass(frozen=True)
class Declined:
    """A late refusal of a prompt; an error if its turn has started. For wire protocols that respond to a prompt only
    when it has ended, and so do not acknowledge its acceptance."""

    name: str
    error: str


Event = Ended | Notice | Declined


class Adapter:
    """The interface to a server under test. The kit makes, opens, uses and closes an adapter for each history. Adapters
    share no state, unless they are connected to the same external server.

    No method may wait for a turn to end. `accept` returns when the prompt is accepted. `cancel` and `clear` return when
    they have taken effect, so that they do not reach any prompt that is accepted later. Every call has a time limit.
    """

    claims: ClassVar[frozenset[str]] = GUARANTEES
    """The guarantees that the server intends to give."""
    outside: ClassVar[bool] = False
    """True: the server is external. It uses sockets, threads or the clock, and runs in real time."""
    folds: bool = False
    """The server accepts prompts without a run id, and its turns may fold them: see `Turns.step`. An external server
    folds whenever the language model has called `tool`."""
    tool: ClassVar[tuple[str, str]] = ("cancelmark_wait", "{}")
    """For an external server: a harmless tool for the language model to call, and its arguments. A server that
    continues after a call of an unknown tool needs no real one."""
    outgrows: str = ""
    """How a turn detects that it has overflowed its context, if the server continues it after a summary: from an
    `error` of the language model (`ContextFull`, for a server in this process), or from the `usage` of an answer."""
    run_ids: ClassVar[bool] = False
    """The server deduplicates by run id, so a prompt may be sent twice."""
    grace: float | None = None
    """Seconds for which the server waits after the last subscriber has left. The kit's subscribers stay away longer."""
    if_busy: frozenset[str] = frozenset()
    """The values of `Sent.if_busy` that the server supports: `reject`, `interrupt`."""
    always: ClassVar[str] = ""
    """One of these values if the adapter sends every prompt with it, whatever `Sent.if_busy` is."""
    fails_early: ClassVar[bool] = False
    """The adapter can make a prompt fail before its turn starts (`Sent.fails`), for example with a missing attachment
    or an unknown model."""
    one_at_a_time: ClassVar[bool] = False
    """Clients send a prompt only when no other prompt of its session is live. They wait for those that are about to
    end, and skip the prompt otherwise."""
    model_fails: ClassVar[bool] = True
    """The kit may make the language model fail. False: the server's handling of failures is not judged."""
    promises: ClassVar[Mapping[str, str]] = {}
    """By guarantee, where the specification that the server follows promises it, or that it is silent. For the report.
    """
    patience: ClassVar[float] = 3.0
    """The minimum timeout: the seconds without any observation after which an expected event counts as missing. The kit
    waits longer if the server or the machine is slow, and before it reports a break."""
    capacity: ClassVar[int | None] = None
    """How many turns the server runs concurrently, over all sessions. While it is at capacity, no prompt has to start.
    """
    fails_by_itself: ClassVar[bool] = False
    """Its turns may fail although the language model does not; a canceled prompt may then end `error`."""
    call_limits: ClassVar[Mapping[str, float]] = {"open": 120.0, "session": 60.0, "restart": 120.0, "revive": 120.0}
    """Time limits of slow calls in seconds, by name. All others have ten seconds, or more if the server is slow."""
    start_limit: ClassVar[float] = 120.0
    """Time limit of `prepare` and of `clean_up`, in seconds."""
    llm_port: ClassVar[int | None] = None
    """For an external server: the default port of the kit's language model, which an argument of `judge` overrides. 0:
    any free port, which `prepare` passes on to the server."""

    turns: Turns
    """The language model for a server in this process. The kit sets it before `open`."""

    # --- once for each judgement, for an external server

    @classmethod
    async def prepare(cls, model_url: str) -> None:
        """Do once, before any history, what all histories need: start the server, log in. `model_url` is the base URL
        of the kit's language model, as in `http://127.0.0.1:4545/v1`; empty if the server uses its own."""

    @classmethod
    async def clean_up(cls) -> None:
        """Stop the server after the last history. Called even if `prepare` has failed."""

    # --- required

    async def open(self) -> None:
        """Create the server, or connect to it. The adapter must report every event that is published from now on."""

    async def close(self) -> None:
        """Release all resources. Called after `open`, even if it has failed."""

    async def session(self) -> str:
        """Create a session, and return its id. The default suits servers that create sessions on first use."""
        self._sessions += 1
        return f"session-{self._sessions}"

    async def accept(self, session: str, prompt: Sent) -> None:
        """Send the prompt, and return when the server has accepted it. Raise `Refused` if it did not."""
        raise NotImplementedError(f"{type(self).__name__} needs `async def accept(self, session, prompt)`")

    async def cancel(self, session: str) -> None:
        """Cancel every prompt that the session has accepted."""
        raise NotImplementedError(f"{type(self).__name__} needs `async def cancel(self, session)`")

    def events(self) -> AsyncIterator[Event]:
        """Everything that the server publishes, from `open` on. Implement it as an async generator, or call `tell`, or
        both.

        The kit reads it until `close`, except between `leave` and `come_back`. If it ends before that, or raises an
        error that means `ServerGone`, the server is gone, which breaks *progress*. After `shut` it may do so; events
        that have not arrived by then count as missing. Any other exception is an error of the adapter, and stops the
        judgement."""
        self._reads_inbox = True
        return self._read_inbox()

    def tell(self, event: Event) -> None:
        """Report an event, for servers that use callbacks."""
        self._inbox.put_nowait(event)

    def spawn(self, work: Coroutine[Any, Any, None], name: str | None = None) -> asyncio.Task[None]:
        """Start a task of the adapter, such as one that reads a stream and calls `tell`. The kit reports its exceptions
        immediately, as those of `events`. The adapter must cancel the task in `close`."""
        task = asyncio.create_task(work, name=name)
        self._tasks.append(task)
        task.add_done_callback(self._end_calls)
        return task

    async def warm(self, n: int) -> None:
        """Open connections for `n` concurrent calls, before a history starts."""

    # --- optional

    async def clear(self, session: str) -> None:
        """Drop all queued prompts; the running one continues."""
        raise NotImplementedError

    async def queued(self, session: str) -> int:
        """The number of queued prompts."""
        raise NotImplementedError

    async def messages(self, session: str) -> Sequence[Spoken]:
        """The messages of the session, in order."""
        raise NotImplementedError

    async def shut(self) -> None:
        """Close the server, as its operator does: it stops accepting, cancels every prompt, and publishes the terminal
        events."""
        raise NotImplementedError

    async def restart(self) -> None:
        """Kill the server and start it again on the same storage. Events must continue to be reported."""
        raise NotImplementedError

    async def revive(self) -> None:
        """Start the server again after it has stopped by itself, for the histories that follow. Without this method the
        kit uses `restart`, or relies on a supervisor."""
        raise NotImplementedError

    @property
    def has_place(self) -> bool:
        """Whether the server has published an offset to resume from, such as an event id. If it has not, the subscriber
        does not leave, and *delivery* is not observable."""
        return True

    async def leave(self) -> None:
        """Unsubscribe: the kit does not read `events` until `come_back`. The server continues."""
        raise NotImplementedError

    async def come_back(self) -> None:
        """Resubscribe at the offset where `events` stopped. Events published meanwhile must be reported exactly once.
        """
        raise NotImplementedError

    async def attach(self) -> None:
        """Connect another client that reads the current state, and subscribes until `close`."""
        raise NotImplementedError

    async def delete(self, session: str) -> None:
        """Delete the session, which cancels every prompt that it has accepted."""
        raise NotImplementedError

    async def slow(self) -> None:
        """Stay subscribed, and read nothing that the server sends until `catch_up`. The kit does not read `events`
        meanwhile, which is enough for an adapter that reads a stream there."""
        raise NotImplementedError

    async def catch_up(self) -> None:
        """Resume reading."""

    async def lose(self, session: str, prompt: Sent) -> None:
        """Send the prompt, and break the connection before the response arrives."""
        raise NotImplementedError

    # --- optional calls with guarantees of their own (R30 to R35)

    async def revoke(self, session: str, prompt: Sent) -> None:
        """Cancel this prompt and no other; return when that has taken effect, even if the prompt has already ended.
        Raise `Refused` if the server does not know the prompt, or refuses."""
        raise NotImplementedError

    async def stop(self, session: str) -> str | None:
        """Cancel the prompt that is running, or is about to, and keep the queue. Return its name; empty if there was
        none; None if the server does not report it."""
        raise NotImplementedError

    async def stop_hold(self, session: str) -> str | None:
        """Hold the session and cancel the running prompt, in one step. Return the same as `stop`."""
        raise NotImplementedError

    async def hold(self, session: str) -> None:
        """Keep waiting prompts from starting until `resume`; the running one continues. Requires `resume`."""
        raise NotImplementedError

    async def resume(self, session: str) -> None:
        """Release the hold."""
        raise NotImplementedError

    async def replace(self, session: str, prompt: Sent, text: str) -> None:
        """Replace the text of a waiting prompt. Raise `Refused` if the server refuses."""
        raise NotImplementedError

    async def next(self, session: str, prompt: Sent) -> None:
        """Move a waiting prompt to the front. Raise `Refused` if the server refuses."""
        raise NotImplementedError

    # --- for the kit

    _inbox: asyncio.Queue[Event]
    _reads_inbox: bool = False  # True: `events` reads it; False: the kit does
    _sessions: int
    _tasks: list[asyncio.Task[None]]
    _calls: set[asyncio.Timeout]
    _waits: Patience

    def __new__(cls, *arguments: object, **options: object) -> Self:  # so that subclasses need not call `__init__`
        made = super().__new__(cls)
        made._inbox, made._sessions = asyncio.Queue(), 0
        made._tasks, made._calls, made._waits = [], set(), Patience(cls.patience)
        return made

    def _end_calls(self, task: asyncio.Task[None]) -> None:
        """Time out the calls in progress if a task has failed, since it may be the one that reads their responses."""
        if not task.cancelled() and task.exception():
            for limit in self._calls:
                limit.reschedule(asyncio.get_running_loop().time())

    def _check_tasks(self) -> None:
        """Raise the exception of a failed task."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def _read_inbox(self) -> AsyncIterator[Event]:
        while True:
            yield await self._inbox.get()

    def offers(self, what: str) -> bool:
        """Whether the adapter implements one of the `OPTIONAL` methods."""
        return getattr(type(self), what, None) is not getattr(Adapter, what, None)


MakeAdapter = Callable[[], Adapter]
"""An adapter's class, or any function without arguments that returns an adapter."""
