"""Seeded servers in real time: calls come over sockets, and turns ask the kit's language model over HTTP.

Two things show only here: a window of some milliseconds that a client hits if it varies the gaps between its calls, and
what is said when the time for playing is over.
"""

import asyncio
import json
from asyncio import StreamReader, StreamWriter
from time import perf_counter
from typing import ClassVar

from cancelmark.conformance.adapter import Ended, Refused, Sent

from .seeded import Sound

DONE = b"done\n"


class OnSockets(Sound):
    """The sound server on a socket: a line is a call, and its answer is a line."""

    outside = True
    llm_port = 0
    claims = frozenset({"all-done", "fifo"})
    model: ClassVar[tuple[str, int]]

    @classmethod
    async def prepare(cls, model_url: str) -> None:
        host, _, port = model_url.removeprefix("http://").partition("/")[0].partition(":")
        cls.model = host, int(port)

    async def open(self) -> None:
        self.idle: list[tuple[StreamReader, StreamWriter]] = []
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)

    async def close(self) -> None:
        await super().close()
        for _, writer in self.idle:
            writer.close()
        self.server.close()
        await asyncio.sleep(0.01)  # both sides of each connection see its end

    # --- the client's side

    async def warm(self, n: int) -> None:
        self.idle += [await asyncio.open_connection(*self.server.sockets[0].getsockname()) for _ in range(n)]

    async def accept(self, session: str, prompt: Sent) -> None:
        await self.ask("accept", session, prompt.name, prompt.text)

    async def cancel(self, session: str) -> None:
        await self.ask("cancel", session)

    async def ask(self, *call: str) -> None:
        if not self.idle:
            await self.warm(1)
        reader, writer = self.idle.pop()
        writer.write(json.dumps(call).encode() + b"\n")
        answer = await reader.readline()
        self.idle.append((reader, writer))
        if answer != DONE:
            raise Refused(answer.decode())

    # --- the server's side

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        while line := await reader.readline():
            what, session, *prompt = json.loads(line)
            try:
                if what == "accept":
                    name, text = prompt
                    await self.take(session, Sent(name, text, name))
                else:
                    await Sound.cancel(self, session)
            except Refused as refusal:
                writer.write(f"{refusal}\n".encode())
            else:
                writer.write(DONE)
            self.answered(what, session)
        writer.close()

    async def take(self, session: str, prompt: Sent) -> None:
        await Sound.accept(self, session, prompt)

    def answered(self, what: str, session: str) -> None:
        """The answer to a call has been written."""

    async def run(self, prompt: Sent) -> Ended:
        body = json.dumps({"model": "turn", "messages": [{"role": "user", "content": prompt.text}]}).encode()
        reader, writer = await asyncio.open_connection(*self.model)
        try:
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: model\r\nconnection: close\r\n"
                         b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
        if b" 200 " not in head.splitlines()[0]:
            return Ended(prompt.name, "error", error=json.loads(answer)["error"]["message"])
        return Ended(prompt.name, "end_turn", json.loads(answer)["choices"][0]["message"]["content"])


class StrandsInTheWindow(OnSockets):
    """Cleans up a little after it has answered a cancel, and forgets who came in between."""

    claims = frozenset({"all-done"})
    WINDOW = 0.0004, 0.01  # seconds after the answer

    async def open(self) -> None:
        await super().open()
        self.canceled: dict[str, float] = {}

    def answered(self, what: str, session: str) -> None:
        if what == "cancel":
            self.canceled[session] = perf_counter()

    async def take(self, session: str, prompt: Sent) -> None:
        begin, end = self.WINDOW
        if begin < perf_counter() - self.canceled.get(session, 0) < end:
            self.lane(session).queue.append(prompt)
            self.find_in_window(session)
        else:
            await super().take(session, prompt)

    def find_in_window(self, session: str) -> None:
        """Nobody starts what came in the window."""


class LateInTheWindow(StrandsInTheWindow):
    def find_in_window(self, session: str) -> None:
        asyncio.get_running_loop().call_later(0.1, self.start_next, session)


class OvertakesLater(OnSockets):
    """Takes the last one first, but not in the first twenty histories."""

    claims = frozenset({"fifo"})
    histories: ClassVar[int]

    @classmethod
    async def prepare(cls, model_url: str) -> None:
        await super().prepare(model_url)
        cls.histories = 0

    async def open(self) -> None:
        await super().open()
        type(self).histories += 1

    def start_next(self, session: str) -> None:
        lane = self.lane(session)
        if self.histories > 20 and self.may_start(session):
            lane.queue = lane.queue[-1:] + lane.queue[:-1]
        super().start_next(session)


class InOrder(OnSockets):
    claims = frozenset({"fifo"})
