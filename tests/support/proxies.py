"""A TCP proxy that can do to a connection what a network can: cut it, stall it, lose an answer, deliver late."""

import asyncio
from contextlib import suppress

SIZE = 65_536
ACCEPT = b'[["accept",'  # how the operations of such a step begin


class Proxy:
    """Between one node and the database. `requests` and `answers` are open gates while all is well."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self.port = 0
        self.refuses = self.hides = False
        self.accepts = 0  # requests to accept a prompt that were passed on
        self.requests, self.answers = asyncio.Event(), asyncio.Event()
        self.requests.set()
        self.answers.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._far: set[asyncio.StreamWriter] = set()  # of these, those to the database
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Ends all connections, now and with a reset."""
        for writer in list(self._writers):
            writer.transport.abort()

    def half_open(self) -> None:
        """The database sees all connections end, and the node sees nothing."""
        self.hides = True
        for writer in list(self._far):
            writer.transport.abort()

    def heal(self) -> None:
        self.refuses = self.hides = False
        self.requests.set()
        self.answers.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.transport.abort()
            return
        try:
            there, to_database = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, to_database}
        self._far.add(to_database)
        pumps = [asyncio.ensure_future(self._pump(reader, to_database, self.requests)),
                 asyncio.ensure_future(self._pump(there, writer, self.answers))]
        self._tasks.update(pumps)
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        while self.hides and not writer.transport.is_closing():
            await asyncio.sleep(0.02)
        for pump in pumps:
            pump.cancel()
        self._tasks.difference_update(pumps)
        for end in (writer, to_database):
            self._writers.discard(end)
            self._far.discard(end)
            end.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        with suppress(OSError):
            while data := await source.read(SIZE):
                await gate.wait()
                self.accepts += gate is self.requests and ACCEPT in data
                sink.write(data)
                await sink.drain()
