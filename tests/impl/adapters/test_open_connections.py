"""The adapter's open connections: one that the server has closed meanwhile is no reason to blame the server."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from cancelmark.conformance.adapter import is_gone
from cancelmark.impl.adapters.connections import Connections
from cancelmark.impl.client.errors import Unreachable

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Serve = Callable[[StreamReader, StreamWriter], Awaitable[None]]


@asynccontextmanager
async def connected(serve: Serve) -> AsyncIterator[tuple[Connections, list[StreamWriter]]]:
    """One connection to a server, open; and what the server has accepted so far."""
    made: list[StreamWriter] = []

    async def take(reader: StreamReader, writer: StreamWriter) -> None:
        made.append(writer)
        await serve(reader, writer)
        writer.close()

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        connections = Connections(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            await connections.warm(1)
            yield connections, made
        finally:
            await connections.close()
            for writer in made:
                with suppress(ConnectionError):
                    await writer.wait_closed()


async def answer_once(reader: StreamReader, writer: StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(ANSWER)


async def answer_all(reader: StreamReader, writer: StreamWriter) -> None:
    with suppress(ConnectionError):
        while await reader.read(65_536):
            writer.write(ANSWER)


async def close_unanswered(reader: StreamReader, writer: StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")


@pytest.mark.parametrize(("serve", "needed"), [(answer_once, 2), (answer_all, 1)])
async def test_a_connection_serves_until_the_server_closes_it(serve: Serve, needed: int) -> None:
    async with connected(serve) as (connections, made):
        assert (await connections.ask("GET", "/")).status_code == 200
        (line,) = connections._endpoint._idle
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):  # until it is closed, if it is to be
                while not line.ended:
                    await asyncio.sleep(0.001)
        assert (await connections.ask("GET", "/")).status_code == 200
        assert len(made) == needed


async def test_a_server_that_closes_before_it_answers_is_gone() -> None:
    async with connected(close_unanswered) as (connections, _):
        with pytest.raises(Unreachable) as caught:
            await connections.ask("GET", "/")
        assert is_gone(caught.value)
