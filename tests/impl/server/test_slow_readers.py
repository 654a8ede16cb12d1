"""Streams whose readers are slow, in virtual time: who recovers is watched on, and who takes nothing is cut off."""

import asyncio
from math import inf
from typing import Any

import pytest
from starlette.types import Message

from cancelmark.conformance.schedule import run
from cancelmark.impl.models.scripted import ScriptedModel
from cancelmark.impl.runtime.events import Update
from cancelmark.impl.runtime.workspace import Workspace, Workspaces
from cancelmark.impl.server.connections import SMALL, CoalescingTransport
from cancelmark.impl.server.stream import BRIEF, HEARTBEAT, SETTLE, STALL, EventStream, WorkspaceStreams
from cancelmark.impl.store import TERMINAL, AppendEvent

NEWS = 1.5 * BRIEF  # seconds between what is published


class Reader:
    """A reader of a stream that takes so many seconds for each of the first pieces, and nothing for all others."""

    def __init__(self, workspace: Workspace, delays: list[float], crowd: WorkspaceStreams | None = None) -> None:
        self.delays, self.is_slow = delays, bool(delays)
        self.got = b""
        self.cut_off: float | None = None  # when
        self._gone = asyncio.Event()
        self._stream = EventStream(workspace, crowd or WorkspaceStreams(workspace.offsets), "reader", None)

    async def read(self) -> None:
        await self._stream({"type": "http", "state": {"abort": self._abort}}, self._receive, self._send)

    def leave(self) -> None:
        self._gone.set()

    def _abort(self) -> None:
        self.cut_off = asyncio.get_running_loop().time()
        self.leave()

    async def _receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] != "http.response.body" or self._gone.is_set():
            return
        if self.delays:
            gone = asyncio.ensure_future(self._gone.wait())
            await asyncio.wait([gone], timeout=self.delays.pop(0))
            gone.cancel()
            self.is_slow = bool(self.delays)
        self.got += message["body"]


@pytest.mark.parametrize(("delays", "cut_off"), [
    ([], None),
    ([BRIEF / 2] * 20, None),
    ([2 * BRIEF], None),
    ([0, 2 * BRIEF, 0, 2 * BRIEF], None),
    ([STALL - 1, STALL - 1], None),
    ([STALL + 1], STALL),
    ([2 * BRIEF, inf], 2 * BRIEF + SETTLE + STALL),
], ids=str)
def test_only_a_reader_that_takes_nothing_for_long_is_cut_off(delays: list[float], cut_off: float | None) -> None:
    async def main() -> None:
        workspaces = Workspaces(ScriptedModel())
        workspace = await workspaces.open("/a")
        reader = Reader(workspace, delays)
        reading = asyncio.ensure_future(reader.read())
        while reader.is_slow and not reading.done():
            workspace.runtime.broker.publish(Update("s", "news", {}))
            await asyncio.sleep(1)
        for n in range(100):  # for much longer than the limit, sooner than a heartbeat and later than one is slow
            await asyncio.sleep(NEWS)
            workspace.runtime.broker.publish(Update("s", "news", {"number": n}))
        await asyncio.sleep(2 * HEARTBEAT)
        assert reader.cut_off == (cut_off and pytest.approx(cut_off))
        if cut_off is None:
            assert not reading.done()
            assert all(b'"number":%d}' % n in reader.got for n in range(100)), "it misses what it would have taken"
            reader.leave()
        await reading
        assert (workspace.attached, workspace.runtime.broker.statistics().subscriptions) == (0, 0)
        assert (b":\n\n" in reader.got) == (cut_off is None)
        await workspaces.close()
        assert not timers(), "nobody has taken them back"

    run(main(), max_steps=50_000)


def timers() -> list[asyncio.TimerHandle]:
    loop: Any = asyncio.get_running_loop()
    return [timer for timer in loop._timers if not timer.cancelled()]


@pytest.mark.parametrize("number", [1, 10, 300])
def test_however_many_watch_the_timers_are_as_few(number: int) -> None:
    """A loop sorts its timers: with some for each stream a notice would cost more for each the more there are. At each
    moment there is one for all that are silent, one for all that send, and one for what a crowd gathers."""
    async def main() -> None:
        workspaces = Workspaces(ScriptedModel())
        workspace = await workspaces.open("/a")
        others, crowd = len(timers()), WorkspaceStreams(workspace.offsets)
        readers = [Reader(workspace, [], crowd) for _ in range(number)]
        reading = [asyncio.ensure_future(reader.read()) for reader in readers]
        await asyncio.sleep(1)
        most = 0
        for n in range(5):
            workspace.runtime.broker.publish(Update("s", "news", {"number": n}))
            for _ in range(5):
                await asyncio.sleep(0)
                most = max(most, len(timers()) - others)
            await asyncio.sleep(1)
        assert most <= (3 if number > 100 else 2 + number)  # where few watch, each settles for itself
        await asyncio.sleep(HEARTBEAT)
        assert len(timers()) - others <= 2
        for reader in readers:
            assert reader.got.count(b":\n\n") == 1
            assert all(b'"number":%d}' % n in reader.got for n in range(5))
            reader.leave()
        await asyncio.gather(*reading)
        await workspaces.close()

    run(main(), max_steps=500_000)


def test_updates_that_come_close_together_are_sent_together_and_an_event_is_not_waited_with() -> None:
    """Counted in pieces that are sent, in virtual time."""
    async def main() -> None:
        workspaces = Workspaces(ScriptedModel())
        workspace = await workspaces.open("/a")
        await workspaces.ready(workspace)
        broker, loop = workspace.runtime.broker, asyncio.get_running_loop()
        session = (await workspace.create_session("s")).id
        reader = Counting(workspace, [])
        reading = asyncio.ensure_future(reader.read())
        await asyncio.sleep(1)
        reader.pieces.clear()
        for number in range(4):
            broker.publish(Update(session, "news", {"number": number}))
            await asyncio.sleep(SETTLE / 8)
        await asyncio.sleep(SETTLE)
        ((at, piece),) = reader.pieces
        assert [b'"number":%d}' % n in piece for n in range(4)] == [True] * 4
        reader.pieces.clear()
        broker.publish(Update(session, "news", {"number": 5}))
        began = loop.time()
        await workspace.runtime.store.write([AppendEvent(session, TERMINAL, {"seq": 1}, "r")])
        await asyncio.sleep(SETTLE)
        ((at, piece),) = reader.pieces
        assert (at, b'"number":5}' in piece, b"run_complete" in piece) == (began, True, True)
        await asyncio.sleep(1)
        reader.pieces.clear()
        began = loop.time()
        await workspace.runtime.store.write([AppendEvent(session, TERMINAL, {"seq": 2}, "r")])
        broker.publish(Update(session, "news", {"number": 6}))  # as a state is told right after the end
        await asyncio.sleep(SETTLE)
        ((at, piece),) = reader.pieces
        assert (at, b"run_complete" in piece, b'"number":6}' in piece) == (began, True, True)
        reader.leave()
        await reading
        await workspaces.close()

    run(main(), max_steps=50_000)


class Counting(Reader):
    """A reader that notes each piece, and when it came."""

    def __init__(self, workspace: Workspace, delays: list[float]) -> None:
        super().__init__(workspace, delays)
        self.pieces: list[tuple[float, bytes]] = []

    async def _send(self, message: Message) -> None:
        if message.get("body"):
            self.pieces.append((asyncio.get_running_loop().time(), message["body"]))
        await super()._send(message)


class Noting:
    """A transport that notes what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.closed = True


async def test_what_is_written_in_one_turn_of_the_loop_is_one_call_of_the_system() -> None:
    transport = Noting()
    corked = CoalescingTransport(transport, asyncio.get_running_loop())
    corked.write(b"head")
    corked.write(b"body")
    assert (transport.written, corked.get_write_buffer_size()) == ([], 8)
    await asyncio.sleep(0)
    assert (transport.written, corked.get_write_buffer_size()) == ([b"headbody"], 0)
    corked.write(b"a")
    corked.write(b"x" * (SMALL + 1))
    assert transport.written[1:] == [b"a" + b"x" * (SMALL + 1)], "whether there is room is known at once"
    corked.write(b"last")
    corked.close()
    assert (transport.written[2:], transport.closed) == ([b"last"], True)
    await asyncio.sleep(0)
    assert len(transport.written) == 3
