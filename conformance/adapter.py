"""What the kit needs of a server that it judges: an adapter, about a dozen lines.

    class Mine(Adapter):
        async def open(self) -> None:                          # a server, or a connection to one
            self.server = MyServer(model=self.turns, on_end=self.tell_end)

        async def accept(self, session: str, prompt: Sent) -> None:      # returns when the server has accepted it
            await self.server.post(session, prompt.text, prompt.run_id)

        async def cancel(self, session: str) -> None:
            await self.server.cancel(session)

        def tell_end(self, run_id: str, how: str) -> None:     # called by the server, for each terminal event
            self.tell(Ended(run_id, how))

    print(judge(Mine))

That is enough to be judged. What else a server offers is told by writing the method for it: `clear`, `queued`,
`messages`, `shut`, `restart`, and `leave` with `come_back`. What it does not offer is never asked for, and guarantees
that need it are reported as not observable. Guarantees that it does not mean to give are left out of `claims`, and
reported as not claimed.

**Turns.** The kit decides how long each turn takes and how it ends, because `self.turns` stands in for the language
model. A server in this process calls it: `answer = await self.turns(text)`. A server elsewhere uses a fake language
model server on a port of this machine, which the kit serves: `judge(Mine, llm_port=4545)`.

**Time.** A server in this process runs on a deterministic event loop, where the kit chooses who comes first and waiting
costs nothing (`cancelmark.conformance.schedule`). One that uses sockets, threads or the clock says `outside = True`.

**Other wires.** The kit speaks of sessions, and of a cancel that reaches all that a session has accepted. If the server
has threads or conversations, those are sessions. If it cancels by run id alone, `cancel` is a loop over the run ids
that this adapter has had accepted and whose end it has not told. If it has no queue and refuses while it is busy,
`accept` raises `Refused`. If it gives out ids instead of taking them, keep a dictionary from its id to `prompt.name`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

from cancelmark.model.delivery import DELIVERY
from cancelmark.model.properties import PROPERTIES

GUARANTEES: frozenset[str] = frozenset(p.id for p in (*PROPERTIES, DELIVERY))
"""The ids of everything that a server can claim: `claims = GUARANTEES - {"fifo"}`. specs/protocol.md explains each."""

OPTIONAL = ("clear", "queued", "messages", "shut", "restart", "leave")


class Refused(Exception):
    """The server did not do what was asked, and says so: busy, closing, full."""


@dataclass(frozen=True)
class Sent:
    """A prompt that the kit sends."""

    name: str
    """Its own, never used before. It is somewhere in the text, and is the run id of a prompt that has one."""
    text: str
    run_id: str | None
    """None: the caller does not name it. Only servers that can take in such prompts (`folds`) are sent any."""


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


Event = Ended | Notice


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

    def count_starts(self, token: str) -> int:
        """How often the language model was asked for this prompt's turn."""

    def count_broken_off(self, token: str) -> int:
        """How many of these the server has broken off before they were over."""


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
    folds: ClassVar[bool] = False
    """It takes prompts without a run id, and its turns may take them in: `Turns.step`."""
    patience: ClassVar[float] = 3.0
    """Seconds without any news after which what has not happened will never happen. Servers outside: real ones."""

    turns: "Turns"
    """Set by the kit before `open`, for servers in this process."""

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
        """Everything that the server publishes, from `open` on. Either write it as an async generator, as for a stream
        of events, or leave it and call `tell`. The kit reads it until `close`."""
        return self._read_inbox()

    def tell(self, event: Event) -> None:
        """Something was published. For servers that call back."""
        self._inbox.put_nowait(event)

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

    async def leave(self) -> None:
        """The subscriber goes away: `events` is not read until `come_back`. The server goes on."""
        raise NotImplementedError

    async def come_back(self) -> None:
        """The subscriber is back, and `events` goes on where it was: what was published meanwhile is told once."""
        raise NotImplementedError

    # --- what the kit asks

    _inbox: asyncio.Queue[Event]
    _sessions: int

    def __new__(cls, *arguments: object, **options: object) -> Self:  # so that an `__init__` need not call this one's
        made = super().__new__(cls)
        made._inbox, made._sessions = asyncio.Queue(), 0
        return made

    async def _read_inbox(self) -> AsyncIterator[Event]:
        while True:
            yield await self._inbox.get()

    def offers(self, what: str) -> bool:
        """Whether it has one of the `OPTIONAL` methods."""
        return getattr(type(self), what) is not getattr(Adapter, what)


MakeAdapter = Callable[[], Adapter]
"""An adapter's class, or any function without arguments that makes one."""


class TurnFailed(Exception):
    """The language model failed, because the kit wants it to."""


def answer_to(name: str) -> str:
    return f"this is the answer to {name}"


def failure_of(name: str) -> str:
    return f"the turn of {name} failed"


class Turns:
    """The language model of a server in this process, steered by the kit.

    `await turns(text)` is one turn: it returns the answer, or raises `TurnFailed`. The text is the prompt's, or
    anything that contains it; if it contains several prompts', the last one counts. To cancel a turn, cancel the task
    that awaits it.
    """

    def __init__(self) -> None:
        self._known: dict[str, asyncio.Event] = {}
        self._how: dict[str, str] = {}  # what it will do when it is let go: release, fail or again
        self._started: dict[str, int] = {}
        self._closed: dict[str, int] = {}
        self.taken_in: dict[str, str] = {}
        """By name, the prompt whose turn has taken it in."""
        self.changed: Callable[[], None] = lambda: None
        """Called when a turn has started or was broken off."""

    async def __call__(self, text: str) -> str:
        answer = await self.step(text)
        if answer is None:
            raise TypeError("this turn was asked to go on, but calls the model once; do not set `folds`")
        return answer

    async def step(self, text: str, *taken_in: str) -> str | None:
        """One call of a turn that may need several: None means that it has to call again. `taken_in` are the texts of
        prompts that the turn has taken in since the last call."""
        name = self._name_in(text)
        for other in map(self._name_in, taken_in):
            self.taken_in[other] = name
        self._started[name] = self._started.get(name, 0) + 1
        self.changed()
        let_go = self._known[name]
        try:
            await let_go.wait()
        except asyncio.CancelledError:
            self._closed[name] = self._closed.get(name, 0) + 1
            self.changed()
            raise
        how = self._how.get(name)
        if how == "again":
            let_go.clear()
            return None
        if how == "fail":
            raise TurnFailed(failure_of(name))
        return answer_to(name)

    def _name_in(self, text: str) -> str:
        found = [(text.rfind(name), name) for name in self._known if name in text]
        if not found:
            raise LookupError(f"a turn for a text in which there is no prompt of the kit: {text:.200}")
        return max(found)[1]

    # --- steering

    def hold(self, token: str) -> None:
        self._known[token] = asyncio.Event()

    def release(self, token: str) -> None:
        self._let_go(token, "release")

    def fail(self, token: str) -> None:
        self._let_go(token, "fail")

    def again(self, token: str) -> None:
        """The call that waits now returns, and the turn has to call again."""
        self._let_go(token, "again")

    def _let_go(self, token: str, how: str) -> None:
        self._how[token] = how
        self._known[token].set()

    def count_starts(self, token: str) -> int:
        return self._started.get(token, 0)

    def count_broken_off(self, token: str) -> int:
        return self._closed.get(token, 0)
