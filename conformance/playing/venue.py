"""Where scripts run: in this process on the deterministic event loop, or against an external server in real time."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from secrets import token_hex

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
    """The adapter raised an unexpected error; the judgement is inconclusive."""


class NotSteered(AdapterError):
    """The server does not use the kit's language model."""


class Inside:
    """Runs scripts on servers in this process, each on a deterministic event loop of its own."""

    def __init__(self, make: MakeAdapter) -> None:
        self.make = make
        self.names = itertools.count(1)
        self.patience = Patience(make().patience)

    def play(self, script: Script, times: float = CONFIRM) -> History:
        """Run a script. Virtual waiting is free, so timeouts are long enough to need no confirmation."""
        adapter = self.make()
        self.patience.times = max(times, CONFIRM)
        adapter.turns, adapter._waits = Turns(), self.patience
        driver = Driver(adapter, adapter.turns, f"{next(self.names):06}")
        done = record(driver.play(script), script.chooser(), max_steps=MAX_STEPS)
        if isinstance(done.error, Livelock):
            driver.history.complain("progress", "the server never becomes quiet: its tasks keep running (livelock).")
        elif isinstance(done.error, Unhandled):
            driver.history.note(SERVER, "", f"unhandled exception: {done.error.__cause__!r:.120}")
        elif done.error is not None:
            raise AdapterError(_blame(adapter, script, done.error)) from done.error
        return driver.history

    def close(self) -> None:
        """Do nothing: there is nothing to clean up."""


class Outside:
    """Runs scripts on an external server in real time, with a fake language model if the server uses it."""

    def __init__(self, make: MakeAdapter, fake: MakeFake | None) -> None:
        self.make = make
        self.patience = Patience(make().patience)
        self.runner = asyncio.Runner()
        self.log = logging.getLogger("asyncio")
        self.level = self.log.level
        self.log.setLevel(logging.ERROR)  # aborted connections are expected
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
            with suppress(AdapterError):  # the reason why the server did not start matters more
                self.close()
            raise

    async def _enter(self, fake: MakeFake) -> FakeModel:
        return await self.stack.enter_async_context(fake())

    async def _prepare(self, kind: type[Adapter], model_url: str) -> None:
        """Call the adapter's `prepare`, and `clean_up` when this is closed."""
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
                raise AdapterError(f"{kind.__name__}: {what} did not return within {kind.start_limit:g} s "
                                   "(`start_limit`)") from error
            raise AdapterError(f"{kind.__name__}: {type(error).__name__}: {error} (in {what})") from error

    def _check(self, model: FakeModel) -> None:
        """Send one prompt, and raise `NotSteered` unless the server calls the language model."""
        self.play(script("accept A"))
        if not model.asked:
            raise NotSteered(f"the server did not call the kit's language model at {model.url}; configure it to use "
                             "this address.")

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


Venue = Inside | Outside


def _blame(adapter: Adapter, script: Script, error: BaseException) -> str:
    name = type(adapter).__name__
    hint = "; set `outside = True` if it uses sockets, threads or the clock" if isinstance(error, Unrepeatable) else ""
    return f"{name}: {type(error).__name__}: {error} (in the script: {script}){hint}"
