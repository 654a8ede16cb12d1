"""Where histories are played: in this process, on the deterministic event loop, or outside, in real time."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from secrets import token_hex
from typing import Protocol

from ..adapter import Adapter, MakeAdapter, Turns
from ..adapter.fake_llm import FakeModel
from ..adapter.patience import CONFIRM, Patience
from ..judging.history import SERVER, History
from ..schedule import Unhandled, record
from ..schedule.loop import Livelock
from ..schedule.loop import Refused as Unrepeatable
from .driver import Driver
from .script import Script, script

MAX_STEPS = 30_000

MakeFake = Callable[[], FakeModel]


class AdapterError(Exception):
    """The adapter raised something that it should not: nothing more is claimed."""


class NotSteered(AdapterError):
    """The server does not use the kit's language model."""


class Venue(Protocol):
    """Plays histories, one after the other."""

    patience: Patience

    def play(self, script: Script, times: float = 1.0) -> History:
        """Plays it; a silence has to last so many times as long as usual."""

    def close(self) -> None:
        """Leaves nothing behind."""


class Inside:
    """Servers in this process: on the deterministic event loop, each history by itself."""

    def __init__(self, make: MakeAdapter) -> None:
        self.make = make
        self.names = itertools.count(1)
        self.patience = Patience(make().patience)

    def play(self, script: Script, times: float = CONFIRM) -> History:
        """Waiting costs nothing here: a silence is confirmed at once."""
        adapter = self.make()
        self.patience.times = max(times, CONFIRM)
        adapter.turns, adapter._waits = Turns(), self.patience
        driver = Driver(adapter, adapter.turns, f"{next(self.names):06}")
        done = record(driver.play(script), script.chooser(), max_steps=MAX_STEPS)
        if isinstance(done.error, Livelock):
            driver.history.complain("progress", "the server did not come to rest: it goes on and on.")
        elif isinstance(done.error, Unhandled):
            driver.history.note(SERVER, "", f"an exception that nobody handled: {done.error.__cause__!r:.120}")
        elif done.error is not None:
            raise AdapterError(_blame(adapter, script, done.error)) from done.error
        return driver.history

    def close(self) -> None:
        """Nothing is left."""


class Outside:
    """Servers outside: in real time, with a fake language model if they can be steered by one."""

    def __init__(self, make: MakeAdapter, fake: MakeFake | None) -> None:
        self.make = make
        self.patience = Patience(make().patience)
        self.runner = asyncio.Runner()
        self.log = logging.getLogger("asyncio")
        self.level = self.log.level
        self.log.setLevel(logging.ERROR)  # a server that breaks off is nothing to warn of
        self.stack = AsyncExitStack()
        self.steering: FakeModel | None = None
        self.names = (token_hex(6) for _ in itertools.count())  # not from `random`, which Hypothesis seeds
        try:
            if fake:
                self.steering = self.runner.run(self._enter(fake))
            self.runner.run(self._prepare(type(make()), self.steering.url if self.steering else ""))
            if self.steering:
                self._check(self.steering)
        except BaseException:
            with suppress(AdapterError):  # of a server that was not started; why it was not is what has to be told
                self.close()
            raise

    async def _enter(self, fake: MakeFake) -> FakeModel:
        return await self.stack.enter_async_context(fake())

    async def _prepare(self, kind: type[Adapter], model_url: str) -> None:
        """What the adapter does once; it is undone when this is closed."""
        self.stack.push_async_callback(self._limit, kind, "clean_up", kind.clean_up)
        await self._limit(kind, "prepare", lambda: kind.prepare(model_url))

    async def _limit(self, kind: type[Adapter], what: str, call: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(kind.start_limit) as limit:
                await call()
        except NotSteered:
            raise
        except Exception as error:
            if limit.expired():
                raise AdapterError(f"{kind.__name__}: {what} was not done within {kind.start_limit:g} s") from error
            raise AdapterError(f"{kind.__name__}: {type(error).__name__}: {error} (in {what})") from error

    def _check(self, model: FakeModel) -> None:
        """One prompt, to see whether the language model is asked."""
        self.play(script("accept A"))
        if not model.asked:
            raise NotSteered(f"no turn has reached the kit's language model at {model.url}; is the server told to use "
                             "it?")

    def play(self, script: Script, times: float = 1.0) -> History:
        adapter = self.make()
        self.patience.times, adapter._waits = times, self.patience
        if self.steering:
            self.steering.tool, self.steering.outgrows = adapter.tool, adapter.outgrows
        driver = Driver(adapter, self.steering, next(self.names))
        try:
            return self.runner.run(driver.play(script))
        except Exception as error:
            raise AdapterError(_blame(adapter, script, error)) from error

    def close(self) -> None:
        try:
            self.runner.run(self.stack.aclose())
        finally:
            self.runner.close()
            self.log.setLevel(self.level)


def _blame(adapter: Adapter, script: Script, error: BaseException) -> str:
    name = type(adapter).__name__
    hint = "; say `outside = True` if it uses sockets, threads or the clock" if isinstance(error, Unrepeatable) else ""
    return f"{name}: {type(error).__name__}: {error} (while playing: {script}){hint}"
