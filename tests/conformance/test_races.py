"""A narrow window that a client hits only if its calls go out on open connections, in any order and with any gap."""

import asyncio
from random import Random
from time import perf_counter

from cancelmark.conformance.adapter import Adapter, Ended, Sent
from cancelmark.conformance.playing.script import Script, script
from cancelmark.conformance.playing.venue import Outside

PLAYS = 30
WINDOW = 0.0002  # seconds after the answer to a cancel in which a prompt would be stranded


class Narrow(Adapter):
    """A server on a socket: a line is a call, and so is its answer. It counts the prompts that come in the window."""

    outside = True
    patience = 0.2
    hits = 0

    async def open(self) -> None:
        self.answered = 0.0
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)

    async def close(self) -> None:
        for _, writer in self.idle:
            writer.close()
        self.server.close()
        await asyncio.sleep(0.01)  # both sides of each connection see its end

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            what, _, name = line.decode().strip().partition(" ")
            if what == "accept":
                type(self).hits += perf_counter() - self.answered < WINDOW
                asyncio.get_running_loop().call_later(0.01, self.tell, Ended(name, "end_turn"))
            writer.write(b"done\n")
            if what == "cancel":
                self.answered = perf_counter()
        writer.close()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.server.sockets[0].getsockname())

    async def ask(self, line: str) -> None:
        reader, writer = self.idle.pop() if self.idle else await self.connect()
        writer.write(f"{line}\n".encode())
        await reader.readline()
        self.let_go(reader, writer)

    def let_go(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def accept(self, session: str, prompt: Sent) -> None:
        await self.ask(f"accept {prompt.name}")

    async def cancel(self, session: str) -> None:
        await self.ask("cancel")


class Warm(Narrow):
    hits = 0

    async def warm(self, n: int) -> None:
        self.idle += [await self.connect() for _ in range(n + 1)]

    def let_go(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.idle.append((reader, writer))


def hits(kind: type[Narrow], scripts: list[Script]) -> int:
    stage = Outside(kind, None)
    try:
        for each in scripts:
            stage.play(each)
    finally:
        stage.close()
    return kind.hits


def test_a_race_is_hit_more_often_on_open_connections_with_gaps_that_vary() -> None:
    race, draw = script("cancel, accept A"), Random(0)
    before = hits(Narrow, [race] * PLAYS)
    after = hits(Warm, [race.vary(draw) for _ in range(PLAYS)])
    print(f"\n{before} of {PLAYS} before, {after} of {PLAYS} now")
    assert after > before
