"""A server whose disk runs full, and has room again or not.

    python starved.py FILE limit-returns|limit-killed|fill

It prints `accepted RUN_ID` for each prompt that was accepted and `refused RUN_ID` for each that was not. Then there is
room again, everything ends and it closes; with `limit-killed` it dies instead.
"""

import asyncio
import logging
import os
import resource
import signal
import sys
from pathlib import Path

from cancelmark.impl.models.scripted import ScriptedModel, say
from cancelmark.impl.runtime import Runtime
from cancelmark.impl.store import SqliteStore, StoreError

KB = 1024


class Disk:
    """The space that the server has."""

    def __init__(self, path: Path, how: str) -> None:
        self.how, self.ballast = how, path.with_name("ballast")

    def fill(self) -> None:
        if self.how == "fill":
            with self.ballast.open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(b"x" * KB)
                except OSError:
                    return
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200 * KB, hard))

    def empty(self) -> None:
        if self.how == "fill":
            self.ballast.unlink()
        else:
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


async def main(path: str, how: str) -> None:
    disk = Disk(Path(path), how)
    handles = []
    async with Runtime(ScriptedModel(lambda request: say("x" * KB)), SqliteStore(path)) as runtime:
        for session in "st":
            await runtime.create_session(session)
        refused = 0
        for number in range(400):
            if number == 10:
                disk.fill()
            try:
                handles.append(await runtime.accept("st"[number % 2], "y" * KB, f"r{number}"))
                print("accepted", f"r{number}", flush=True)
            except StoreError:
                print("refused", f"r{number}", flush=True)
                refused += 1
            if refused > 5:
                break
        if how == "limit-killed":
            sys.stdout.flush()
            os._exit(0)  # what was not committed is gone, as after any other death
        await asyncio.sleep(0.2)
        disk.empty()
        for handle in handles:
            await handle


if __name__ == "__main__":
    logging.disable()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    asyncio.run(main(*sys.argv[1:]))
