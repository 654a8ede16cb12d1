"""The server's life: startup, signals, and the order of a shutdown.

A shutdown goes from the inside out. First the workspaces close, while the server still responds: every prompt finishes,
and every stream sends the terminal events. Then the sockets close. This takes at most about the deadline, or twice the
deadline if turns have to be abandoned. A second signal ends the process at once; the next start recovers as from a
crash.
"""

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.types import ASGIApp

from ..files import UsageError
from .connections import KEEP_ALIVE, LINGER, Connection, Slots
from .listening import Acceptor

log = logging.getLogger("cancelmark.server")


class Server(uvicorn.Server):
    """Serves an application on a socket that is already bound. Does not handle signals."""

    def __init__(self, app: ASGIApp, listener: socket.socket, connections: int) -> None:
        self.places = Slots(connections)
        self._listener = listener
        super().__init__(uvicorn.Config(
            app, http=type("Placed", (Connection,), {"places": self.places}), ws="none", lifespan="off",
            log_config=None, access_log=False, server_header=False, proxy_headers=False,
            timeout_graceful_shutdown=LINGER, timeout_keep_alive=KEEP_ALIVE))

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.servers = []
        self._acceptor = Acceptor(self._listener, lambda: self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state={}))
        self.started = True

    async def on_tick(self, counter: int) -> bool:
        self.places.sweep(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._acceptor.close()
        self._listener.close()
        await super().shutdown(sockets)


@asynccontextmanager
async def run_server(app: ASGIApp, listener: socket.socket, connections: int) -> AsyncIterator[Server]:
    """Serves the application inside the `with` block. On exit, stops accepting connections and flushes the rest."""
    server = Server(app, listener, connections)
    serving = asyncio.ensure_future(server.serve())
    try:
        while not server.started:
            if serving.done():
                serving.result()
                raise UsageError("the server could not start; see its log")
            await asyncio.sleep(0.001)
        yield server
    finally:
        server.should_exit = True
        await serving


@contextmanager
def set_on_signal(wanted: asyncio.Event) -> Iterator[None]:
    """Sets the event at the first SIGTERM or SIGINT. The second signal, of either kind, ends the process at once."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)

    def shut_down(number: signal.Signals) -> None:
        log.info("shutting down", extra={"signal": number.name})
        wanted.set()
        for each in signals:
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)  # Python's own handler would be slower and print a traceback

    for number in signals:
        loop.add_signal_handler(number, shut_down, number)
    try:
        yield
    finally:
        if not wanted.is_set():
            for number in signals:
                loop.remove_signal_handler(number)
