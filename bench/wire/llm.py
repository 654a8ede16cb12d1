"""A language model that answers at once, behind an OpenAI-compatible endpoint, so that the server is what is measured.

A prompt with the word HOLD gets no answer until its connection is dropped. `python -m cancelmark.bench llm PORT`.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

HOLD = b"HOLD"
LAST = 400  # bytes of a request that its last message is looked for in


def _make_chunk(choices: list[Any], **more: Any) -> bytes:
    told = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "turn", "choices": choices, **more}
    return b"data: " + json.dumps(told).encode() + b"\n\n"


_STREAM = b"".join([
    _make_chunk([{"index": 0, "delta": {"role": "assistant", "content": "fine"}, "finish_reason": None}]),
    _make_chunk([{"index": 0, "delta": {}, "finish_reason": "stop"}]),
    _make_chunk([], usage={"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}),
    b"data: [DONE]\n\n"])
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b" % (len(_STREAM), _STREAM)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers one request after the other on a connection."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            body = await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
            if HOLD in body[-LAST:]:
                await reader.read(1)  # until the connection is dropped
                return
            writer.write(ANSWER)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def serve(port: int, told: "Connection | None" = None) -> None:
    """Serves until it is ended; tells its port."""
    server = await asyncio.start_server(answer, "127.0.0.1", port, limit=1 << 24)
    if told:
        told.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def _serve(told: "Connection") -> None:
    asyncio.run(serve(0, told))


@contextmanager
def running() -> Iterator[str]:
    """The base URL of a model in a process of its own."""
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}/v1"
    finally:
        process.kill()
        process.join()
