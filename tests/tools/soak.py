"""A soak: many readers and writers on one server for minutes, and what of it grows.

    python soak.py [--seconds 600] [--readers 500] [--writers 50]

A third of the readers take nothing, a third take a little now and then, a third leave and come back. Each writer sends
prompts one after the other, each of which it sees to its end. After a tenth of the time, memory, descriptors and the
log must not grow any more, and no end may be lost or come twice. It ends with a line of figures, and with 1 if not.
"""

import argparse
import asyncio
import os
import resource
import socket
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from uuid import uuid4

from support.servers import PATIENCE, Place, Process, Server, web

from cancelmark.impl.client import Client, Events, RunComplete

SAMPLES = 60  # of the figures


@dataclass(frozen=True)
class Figures:
    """How much a server has at a moment."""

    memory: int  # bytes
    files: int
    log: int  # bytes


def measure(server: Process) -> Figures:
    assert server.process
    of = Path(f"/proc/{server.process.pid}")
    memory = next(int(line.split()[1]) for line in (of / "status").read_text().splitlines() if line.startswith("VmRSS"))
    return Figures(memory * 1024, len(os.listdir(of / "fd")), server.log.stat().st_size)


@dataclass
class Soak:
    server: Process
    seconds: float
    readers: int
    writers: int
    sent: list[str] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    samples: list[Figures] = field(default_factory=list)

    async def run(self) -> None:
        async with web(self.server.url) as http:
            place = await Server().workspace(http)
            sessions = [await place.new_session() for _ in range(self.writers)]
        stop = asyncio.Event()
        heard = asyncio.Event()
        watching = asyncio.ensure_future(self._watch(place, heard))
        await heard.wait()
        readers = [asyncio.ensure_future(self._read(place, n % 3, Random(n))) for n in range(self.readers)]
        writing = [asyncio.ensure_future(self._write(place, session, stop)) for session in sessions]
        for _ in range(SAMPLES):
            await asyncio.sleep(self.seconds / SAMPLES)
            self.samples.append(measure(self.server))
        stop.set()
        await asyncio.gather(*writing)
        async with asyncio.timeout(PATIENCE):
            while len(self.ends) < len(self.sent):
                await asyncio.sleep(0.05)
        for task in (*readers, watching):
            task.cancel()
        await asyncio.gather(*readers, watching, return_exceptions=True)

    async def _watch(self, place: Place, heard: asyncio.Event) -> None:
        """Sees every end, over as many connections as it takes."""
        async with Client(self.server.url) as client, Events(client, place.id) as events:
            heard.set()
            async for notice in events:
                if isinstance(notice.payload, RunComplete):
                    self.ends[notice.payload.run_id] += 1

    async def _write(self, place: Place, session: str, stop: asyncio.Event) -> None:
        """Sends a prompt, sees it end, waits a little, sends the next."""
        async with web(self.server.url) as http:
            mine = place.seen_by(http)
            while not stop.is_set():
                self.sent.append(run_id := str(uuid4()))
                await mine.send("fast: " + "hello " * 20, run_id, session)
                while not self.ends[run_id]:
                    await asyncio.sleep(0.05)
                await asyncio.sleep(0.5)

    async def _read(self, place: Place, kind: int, random: Random) -> None:
        """Watches, and takes nothing, a little now and then, or leaves and comes back."""
        loop = asyncio.get_running_loop()
        while True:
            reader = socket.socket()
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.setblocking(False)
            with reader, suppress(OSError):
                await loop.sock_connect(reader, ("127.0.0.1", self.server.port))
                await loop.sock_sendall(reader, f"GET {place.url}/events?client_id={uuid4()} HTTP/1.1\r\n"
                                                "host: localhost\r\n\r\n".encode())
                if kind == 0:  # until it is cut off
                    await asyncio.sleep(70)
                elif kind == 1:
                    while await loop.sock_recv(reader, 2048):
                        await asyncio.sleep(random.uniform(0.2, 2))
                else:
                    await asyncio.sleep(random.uniform(0, 5))
                    if random.random() < 0.5:
                        reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            await asyncio.sleep(0.2)

    def judge(self) -> list[str]:
        """What was not as it should be. The first tenth is for warming up; what comes then is compared with the end."""
        after = self.samples[SAMPLES // 10:]
        third = len(after) // 3
        first, last = after[:third], after[-third:]
        wrong = []
        for name, slack in (("memory", 20_000_000), ("files", 60), ("log", 2_000)):
            before, now = (median(getattr(each, name) for each in part) for part in (first, last))
            if now > 1.15 * before + slack:
                wrong.append(f"{name} grew from {before:,.0f} to {now:,.0f}")
        lost, twice = set(self.sent) - set(self.ends), [run for run, times in self.ends.items() if times > 1]
        wrong += [f"{len(lost)} ends were lost"] * bool(lost) + [f"{len(twice)} ends came twice"] * bool(twice)
        return wrong

    def describe(self) -> str:
        after = self.samples[SAMPLES // 10:]
        shown = [f"{name}={getattr(after[0], name):,}..{max(getattr(each, name) for each in after):,}.."
                 f"{getattr(after[-1], name):,}" for name in ("memory", "files", "log")]
        return (f"seconds={self.seconds:g} readers={self.readers} writers={self.writers} prompts={len(self.sent)} "
                f"ends={sum(self.ends.values())} {' '.join(shown)} (after a tenth of the time, most, at the end)")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--readers", type=int, default=500)
    parser.add_argument("--writers", type=int, default=50)
    given = parser.parse_args(arguments)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    with tempfile.TemporaryDirectory() as directory, Process(Path(directory) / "data", "--pace", "0.05") as server:
        soak = Soak(server, given.seconds, given.readers, given.writers)
        asyncio.run(soak.run())
        code = server.stop()
        wrong = soak.judge() + ["the server ended with an error"] * bool(code)
        wrong += ["the log has a traceback"] * ("Traceback" in server.log.read_text())
    print(soak.describe(), f"verdict={'grows' if wrong else 'flat'}")
    for each in wrong:
        print(each, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
