"""What a server in this process or elsewhere offers to the kit, and what it tells: the adapter and its records."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

from cancelmark.model import calls

from .guarantees import ORDER
from .patience import Patience
from .turns import Turns

GUARANTEES: frozenset[str] = frozenset(p.id for p in ORDER)
"""The ids of everything that a server can claim: `claims = GUARANTEES - {"fifo"}`. specs/protocol.md explains each."""

FAMILY = frozenset({*calls.FAMILY, "stop_hold"} - {"resume"})  # who has `hold` has `resume` too
OPTIONAL = ("clear", "queued", "messages", "shut", "restart", "leave", "attach", "delete", "slow", "lose",
            *sorted(FAMILY))


class Refused(Exception):
    """The server did not do what was asked, and says so: busy, closing, full."""


class ServerGone(Exception):
    """The server has stopped, or has broken the connection. So has every server of which a `ConnectionError`, an
    `EOFError` or what clients of HTTP raise in their place (`BREAKS`) tells, and every `ServerProcess` that has exited.
    An adapter says so itself where its library raises something else."""


BREAKS = frozenset({
    "NetworkError", "RemoteProtocolError",  # httpx, httpx2, httpcore, h11
    "BrokenResourceError", "EndOfStream",  # anyio
    "ClientConnectionError", "ClientPayloadError",  # aiohttp
    "ConnectionError", "ChunkedEncodingError",  # requests
    "IncompleteRead", "ConnectionClosed",  # http.client, websockets
})
"""Names of exceptions, of libraries that need not be here, which say that the peer has broken the connection."""


def is_gone(error: BaseException | None) -> bool:
    """Whether it comes of a server that is gone."""
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
    """Its own, never used before. It is somewhere in the text, and is the run id of a prompt that has one."""
    text: str
    run_id: str | None
    """None: the caller does not name it. Only servers that can take in such prompts (`folds`) are sent any."""
    fails: bool = False
    """The server must fail at it before its turn starts. Only servers that can be made to (`fails_early`) are sent any.
    """
    if_busy: str = ""
    """What becomes of it in a session that is not idle: it waits; `reject`: it is refused; `interrupt`: it goes to the
    front, and what runs is stopped. Only servers that can do so (`if_busy`) are sent any of these two."""


@dataclass(frozen=True)
class Ended:
    """A terminal event, just as the server has published it."""

    name: str
    """The `Sent.name` of the prompt that it speaks of: its run id, or whatever the server says instead, translated."""
    outcome: str
    """`end_turn`, `error` or `canceled`."""
    text: str | None = None
    """The answer that it carries, if it carries one. The answer to a prompt has the prompt's name in it."""
    error: str | None = None
    """What it says went wrong. The failure of a turn has the name of the turn's prompt in it."""


@dataclass(frozen=True)
class Notice:
    """Something that the server has published about a prompt and that is not its end: an error, told apart from it."""

    name: str
    error: str


@dataclass(frozen=True)
class Spoken:
    """A message of a session."""

    role: str
    """`user` or `assistant`; others are ignored."""
    text: str
    finish: str | None = None
    """Why an assistant message is complete: `canceled`, or anything else."""


@dataclass(frozen=True)
class Declined:
    """The server does not take the prompt after all, which counts as a refusal unless its turn has started. For wires
    on which a prompt is answered only when it is over: until then nobody says that it was accepted."""

    name: str
    error: str


Event = Ended | Notice | Declined


class Steering(Protocol):
    """How the kit steers turns, by a token in the prompt's text, which is its name. `Turns` does it for servers in this
    process, and the fake language model server for others."""

    taken_in: dict[str, str]
    """By name, the prompt whose turn has taken it in."""

    def hold(self, token: str) -> None:
        """The turn of this prompt, when it starts, waits until it is released or fails."""

    def release(self, token: str) -> None:
        """It ends well: now, or as soon as it starts."""

    def fail(self, token: str) -> None:
        """It ends with an error: now, or as soon as it starts."""

    def again(self, token: str) -> None:
        """The turn has to call the language model again, after a tool call."""

    def outgrow(self, token: str) -> None:
        """The turn no longer fits into its context: now, or as soon as it starts. The summary that is asked for then is
        held until `summarize`."""

    def summarize(self, token: str) -> None:
        """The summary of its conversation is made: now, or as soon as it is asked for."""

    def flood(self, token: str) -> None:
        """It ends well with a very long answer: now, or as soon as it starts."""

    def settle(self, token: str) -> None:
        """Its turn may be over from now on, because something was canceled: what follows may be another's."""

    def heard(self, token: str) -> str:
        """The text of this prompt as the language model first heard it; empty if it has not."""

    def count_starts(self, token: str) -> int:
        """How often the language model was asked for this prompt's turn."""

    def count_summaries(self, token: str) -> int:
        """How often the language model was asked for a summary of its conversation."""

    def count_broken_off(self, token: str) -> int:
        """How many of these the server has broken off before they were over."""

    def count_open(self, token: str) -> int:
        """How many of these wait for an answer now."""


class Adapter:
    """A server under test. A new one is made for each history, opened, used and closed; nothing is shared between two,
    unless they are about the same server outside.

    No method may wait for a turn to end: `accept` returns when the prompt is accepted, `cancel` and `clear` when they
    have taken effect, so that whatever is accepted after that is not reached by them. Every call has a time limit.
    """

    claims: ClassVar[frozenset[str]] = GUARANTEES
    """The guarantees that the server means to give."""
    outside: ClassVar[bool] = False
    """It is not made of asyncio alone: it uses sockets, threads or the clock, and real time goes by."""
    folds: bool = False
    """It takes prompts without a run id, and its turns may take them in: `Turns.step`. Outside, whenever the language
    model has called `tool`."""
    tool: ClassVar[tuple[str, str]] = ("cancelmark_wait", "{}")
    """Outside: a tool that the language model may call without harm, and its arguments. A server that answers a call of
    a tool that it does not have, and goes on, needs none."""
    outgrows: str = ""
    """How a turn learns that it no longer fits into its context, if it goes on after a summary then: by an `error` of
    the language model (`ContextFull`, for a server in this process), or by the `usage` of an answer."""
    run_ids: ClassVar[bool] = False
    """It knows a run id again: prompts may be sent twice (R22)."""
    grace: float | None = None
    """Seconds for which it waits when nobody watches any more. Watchers that come and go leave for longer than that."""
    if_busy: frozenset[str] = frozenset()
    """Which it knows of the words of `Sent.if_busy`: `reject`, `interrupt`."""
    always: ClassVar[str] = ""
    """One of these words, if each prompt is sent so, whatever `Sent.if_busy` says."""
    fails_early: ClassVar[bool] = False
    """A prompt can be made to fail before its turn starts: `Sent.fails`. For instance by an attachment that is not
    there, or a model that is not known."""
    one_at_a_time: ClassVar[bool] = False
    """Clients send a prompt only when all others of its session are over: they wait for those that are about to be, and
    leave the prompt out otherwise."""
    model_fails: ClassVar[bool] = True
    """The language model may fail. False: what a server makes of that is not judged."""
    promises: ClassVar[Mapping[str, str]] = {}
    """By guarantee, where the text that the server follows promises it, or that the text is silent. For the report."""
    patience: ClassVar[float] = 3.0
    """The least number of seconds without any news after which what has not happened counts as missing. The kit waits
    longer if the server, or the machine, is slow, and before it says that something is broken."""
    capacity: ClassVar[int | None] = None
    """How many turns the server runs at once, over all sessions. While so many run, nobody else has to start."""
    fails_by_itself: ClassVar[bool] = False
    """Its turns may fail although the language model does not: then a canceled prompt may end `error` too."""
    call_limits: ClassVar[Mapping[str, float]] = {"open": 120.0, "session": 60.0, "restart": 120.0, "revive": 120.0}
    """Seconds for calls that may take long, by name. All others have ten, or more if the server is slow."""
    start_limit: ClassVar[float] = 120.0
    """Seconds for `prepare`, and for `clean_up`."""
    llm_port: ClassVar[int | None] = None
    """For a server outside that uses the kit's language model: the port where the kit serves it, if `judge` is not told
    another. 0: any that is free, for `prepare` to tell the server."""

    turns: Turns
    """Set by the kit before `open`, for servers in this process."""

    # --- once for a judgement, of a server outside

    @classmethod
    async def prepare(cls, model_url: str) -> None:
        """Before anything is played: starts the server, signs in, whatever is done once. `model_url` is the base URL of
        the kit's language model, as in `http://127.0.0.1:4545/v1`, or empty if the server's own is used."""

    @classmethod
    async def clean_up(cls) -> None:
        """After everything was played, also if `prepare` has failed: stops the server."""

    # --- what every server has

    async def open(self) -> None:
        """Makes the server, or connects to it. When this returns, every event from now on will be told."""

    async def close(self) -> None:
        """Leaves nothing behind. Called after `open`, also if that has failed."""

    async def session(self) -> str:
        """A new session, and its id. The default is for servers that make a session when they first hear of it."""
        self._sessions += 1
        return f"session-{self._sessions}"

    async def accept(self, session: str, prompt: Sent) -> None:
        """Posts the prompt, and returns when the server has accepted it. Raises `Refused` if it was not accepted."""
        raise NotImplementedError(f"{type(self).__name__} needs `async def accept(self, session, prompt)`")

    async def cancel(self, session: str) -> None:
        """Cancels everything that the session has accepted."""
        raise NotImplementedError(f"{type(self).__name__} needs `async def cancel(self, session)`")

    def events(self) -> AsyncIterator[Event]:
        """Everything that the server publishes, from `open` on. Write it as an async generator, as for a stream of
        events, or leave it and call `tell`, or both: what is told is read besides.

        The kit reads it until `close`, and between `leave` and `come_back` not at all. If it ends before that, or
        raises what `ServerGone` says, the server is gone, which breaks *progress*. After `shut` it may end or raise so:
        what has not come by then never comes. Whatever else it raises is an error of the adapter, and told at once."""
        self._reads_inbox = True
        return self._read_inbox()

    def tell(self, event: Event) -> None:
        """Something was published. For servers that call back."""
        self._inbox.put_nowait(event)

    def spawn(self, work: Coroutine[Any, Any, None], name: str | None = None) -> asyncio.Task[None]:
        """A task of the adapter's own, such as one that reads a stream and calls `tell`. What it raises is told at
        once, as if `events` had raised it. The adapter cancels it in `close`."""
        task = asyncio.create_task(work, name=name)
        self._tasks.append(task)
        task.add_done_callback(self._end_calls)
        return task

    async def warm(self, n: int) -> None:
        """Opens connections for so many calls at once, before anything is played."""

    # --- what some servers have

    async def clear(self, session: str) -> None:
        """Drops what is queued; what is running goes on."""
        raise NotImplementedError

    async def queued(self, session: str) -> int:
        """How many prompts are queued."""
        raise NotImplementedError

    async def messages(self, session: str) -> Sequence[Spoken]:
        """What was said in the session, in order."""
        raise NotImplementedError

    async def shut(self) -> None:
        """The operator closes the server: it accepts nothing more, cancels everything, and publishes the ends."""
        raise NotImplementedError

    async def restart(self) -> None:
        """The server dies without warning and is started again on what it has stored; events go on to be told."""
        raise NotImplementedError

    async def revive(self) -> None:
        """The server has stopped by itself: starts it again, for the histories that follow. Without this the kit uses
        `restart`, or hopes that somebody else does it."""
        raise NotImplementedError

    @property
    def has_place(self) -> bool:
        """Whether the server has said where to come back to, by an id of an event, say. If it has not, the subscriber
        does not leave, and whether it would have missed anything cannot be seen."""
        return True

    async def leave(self) -> None:
        """The subscriber goes away: `events` is not read until `come_back`. The server goes on."""
        raise NotImplementedError

    async def come_back(self) -> None:
        """The subscriber is back, and `events` goes on where it was: what was published meanwhile is told once."""
        raise NotImplementedError

    async def attach(self) -> None:
        """One more client connects, looks at what there is, and watches until `close`."""
        raise NotImplementedError

    async def delete(self, session: str) -> None:
        """Deletes the session: what it has accepted is canceled."""
        raise NotImplementedError

    async def slow(self) -> None:
        """The subscriber stays connected, and takes nothing that the server sends until `catch_up`. The kit does not
        read `events` meanwhile, which is all that an adapter that reads a stream there has to see to."""
        raise NotImplementedError

    async def catch_up(self) -> None:
        """The subscriber takes what the server has sent and sends."""

    async def lose(self, session: str, prompt: Sent) -> None:
        """Posts the prompt, and breaks the connection off before the answer comes."""
        raise NotImplementedError

    # --- the family (R30 to R35): what some servers have besides, each for itself

    async def revoke(self, session: str, prompt: Sent) -> None:
        """Cancels this prompt, and no other; returns when that has taken effect, also if the prompt has ended. Raises
        `Refused` if the server does not know it, or does not do it."""
        raise NotImplementedError

    async def stop(self, session: str) -> str | None:
        """Cancels the prompt in front, which runs or is about to, and keeps the queue. Returns its name; empty: nobody
        was in front; None: the server does not say."""
        raise NotImplementedError

    async def stop_hold(self, session: str) -> str | None:
        """Holds the session and cancels the prompt that runs, in one step. Returns what `stop` does."""
        raise NotImplementedError

    async def hold(self, session: str) -> None:
        """Nothing that waits starts until `resume`, which an adapter with this has too; what runs goes on."""
        raise NotImplementedError

    async def resume(self, session: str) -> None:
        """The hold is over, and what waits goes on."""
        raise NotImplementedError

    async def replace(self, session: str, prompt: Sent, text: str) -> None:
        """Gives a prompt that waits another text. Raises `Refused` if the server does not take it."""
        raise NotImplementedError

    async def next(self, session: str, prompt: Sent) -> None:
        """Moves a prompt that waits ahead of all others. Raises `Refused` if the server does not do it."""
        raise NotImplementedError

    # --- what the kit asks

    _inbox: asyncio.Queue[Event]
    _reads_inbox: bool = False  # `events` does; where it does not, the kit does
    _sessions: int
    _tasks: list[asyncio.Task[None]]
    _calls: set[asyncio.Timeout]
    _waits: Patience

    def __new__(cls, *arguments: object, **options: object) -> Self:  # so that an `__init__` need not call this one's
        made = super().__new__(cls)
        made._inbox, made._sessions = asyncio.Queue(), 0
        made._tasks, made._calls, made._waits = [], set(), Patience(cls.patience)
        return made

    def _end_calls(self, task: asyncio.Task[None]) -> None:
        """Nobody waits for an answer that a task would have brought which has failed."""
        if not task.cancelled() and task.exception():
            for limit in self._calls:
                limit.reschedule(asyncio.get_running_loop().time())

    def _check_tasks(self) -> None:
        """Raises what a task of the adapter's own has raised."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def _read_inbox(self) -> AsyncIterator[Event]:
        while True:
            yield await self._inbox.get()

    def offers(self, what: str) -> bool:
        """Whether it has one of the `OPTIONAL` methods."""
        return getattr(type(self), what, None) is not getattr(Adapter, what, None)


MakeAdapter = Callable[[], Adapter]
"""An adapter's class, or any function without arguments that makes one."""
