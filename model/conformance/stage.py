"""Where histories are played: in this process, on the deterministic event loop, or outside, in real time."""

import asyncio
import itertools
from collections.abc import Callable
from contextlib import AsyncExitStack
from secrets import token_hex
from typing import Protocol

from .adapter import Adapter, MakeAdapter, Steering, Turns
from .fake import FakeModel
from .history import SERVER, History
from .loop import Livelock
from .player import Player
from .schedule import Unhandled, record
from .script import Script

MAX_STEPS = 100_000

MakeFake = Callable[[], FakeModel]


class AdapterError(Exception):
    """The adapter, or the server behind it, raised something that it should not. Nothing is claimed about the server."""


class Stage(Protocol):
    """Plays histories, one after the other."""

    def play(self, script: Script) -> History: ...
    def close(self) -> None: ...


class Inside:
    """Servers in this process: on the deterministic event loop, each history by itself."""

    def __init__(self, make: MakeAdapter) -> None:
        self.make = make
        self.names = itertools.count(1)

    def play(self, script: Script) -> History:
        adapter = self.make()
        adapter.turns = Turns()
        player = Player(adapter, adapter.turns, f"{next(self.names):06}")
        done = record(player.play(script), script.chooser(), max_steps=MAX_STEPS)
        if isinstance(done.error, Livelock):
            player.history.complain("progress", "the server did not come to rest: it goes on and on.")
        elif isinstance(done.error, Unhandled):
            player.history.note(SERVER, "", f"an exception that nobody handled: {done.error.__cause__!r:.120}")
        elif done.error is not None:
            raise AdapterError(_blame(adapter, script, done.error)) from done.error
        return player.history

    def close(self) -> None:
        """Nothing is left."""


class Outside:
    """Servers outside: in real time, with a fake language model if they can be steered by one."""

    def __init__(self, make: MakeAdapter, fake: MakeFake | None) -> None:
        self.make = make
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.steering: Steering | None = None
        self.names = (token_hex(6) for _ in itertools.count())  # not from `random`, which Hypothesis seeds
        try:
            if fake:
                self.steering = self.runner.run(self._enter(fake))
        except BaseException:
            self.close()
            raise

    async def _enter(self, fake: MakeFake) -> Steering:
        return await self.stack.enter_async_context(fake())

    def play(self, script: Script) -> History:
        adapter = self.make()
        player = Player(adapter, self.steering, next(self.names))
        try:
            return self.runner.run(player.play(script))
        except (OSError, asyncio.CancelledError, KeyboardInterrupt):
            raise
        except Exception as error:
            raise AdapterError(_blame(adapter, script, error)) from error

    def close(self) -> None:
        try:
            self.runner.run(self.stack.aclose())
        finally:
            self.runner.close()


def _blame(adapter: Adapter, script: Script, error: BaseException) -> str:
    name = type(adapter).__name__
    hint = "; say `outside = True` if it uses sockets, threads or the clock" if "no schedule can repeat" in str(error) else ""
    return f"{name}: {type(error).__name__}: {error} (while playing: {script}){hint}"
