"""Events to those who watch: places to come back to, and readers that are slow, stalled or gone, up to a thousand."""

import asyncio
import os
import resource
import shutil
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from support.runtimes import until
from support.servers import PATIENCE, Place, Process, Server, placed, serving, web

from cancelmark.impl.runtime.events import Update
from cancelmark.impl.runtime.workspace import Workspace
from cancelmark.impl.server import stream
from cancelmark.impl.server.listening import bind
from cancelmark.impl.server.site import Limits
from cancelmark.impl.server.stream import CHUNK, Encoder, _chunks
from cancelmark.impl.store import Event
from cancelmark.impl.store.offsets import Offsets

# --- coming back

@pytest.mark.rule("R18a", "R29c")
async def test_who_comes_back_to_its_place_sees_each_end_once_and_in_order() -> None:
    async with placed() as (_, place):
        seen: list[Any] = []
        last = None
        async with place.watching() as whole:
            for n in range(12):
                async with place.watching(last_event_id=last) as watch:
                    await watch.until(lambda w: w.last_event_id)
                    if n % 3:
                        await place.send(f"p{n}", f"run-{n}")
                        await watch.end(f"run-{n}")
                if not n % 3:  # sometimes it is not there when the end comes
                    await place.send(f"p{n}", f"run-{n}")
                    await whole.end(f"run-{n}")
                seen += watch.ends()
                last = watch.last_event_id
            await whole.end("run-11")
        async with place.watching(last_event_id=last) as watch:
            await watch.until(lambda w: len(seen + w.ends()) == 12)
            seen += watch.ends()
        assert seen == whole.ends() == [(f"run-{n}", "end_turn") for n in range(12)]


@pytest.mark.rule("R29b")
async def test_who_has_seen_nothing_yet_can_come_back_too() -> None:
    async with placed() as (_, place):
        await place.send("before", "run-0")
        await place.until(lambda prompts: all(p["state"] == "done" for p in prompts))
        async with place.watching() as watch:
            await watch.until(lambda w: w.last_event_id)
            assert watch.seen == []
        await place.send("meanwhile", "run-1")
        await place.until(lambda prompts: all(p["state"] == "done" for p in prompts))
        async with place.watching(last_event_id=watch.last_event_id) as watch:
            await watch.end("run-1")
            assert watch.ends() == [("run-1", "end_turn")]


@pytest.mark.rule("R29c")
@pytest.mark.parametrize("last_event_id", [
    "other-1", "1", "x", "-", "LOG--1", "LOG-1x", "LOG-²", "LOG-99", "LOG-01", "LOG-" + "9" * 30])
async def test_a_place_that_is_not_of_this_log_means_from_the_beginning(last_event_id: str) -> None:
    async with placed() as (server, place):
        for n in range(3):
            await place.send("hello", f"run-{n}")
        await place.until(lambda prompts: all(p["state"] == "done" for p in prompts))
        log = server.site.workspaces.get(place.id).offsets.name(1).removesuffix("-1")
        headers = {b"last-event-id": last_event_id.replace("LOG", log).encode()}
        async with place.http.stream("GET", f"{place.url}/events", params={"client_id": str(uuid4())},
                                     headers=headers) as answer:  # type: ignore[arg-type]
            lines = answer.aiter_lines()
            ends = 0
            async for line in lines:
                ends += "run_complete" in line
                if ends == 3:
                    break


@pytest.mark.rule("R29c")
@pytest.mark.parametrize("lost", ["a backup is restored", "the log of the database is lost"])
async def test_who_has_seen_events_that_were_lost_is_shown_all_that_have_their_numbers(
    tmp_path: Path, lost: str,
) -> None:
    """It comes back when the log is shorter than its place, or has grown beyond it; everybody else keeps its place."""
    data, left = tmp_path / "data", tmp_path / "left"

    async def live(*texts: str, loses_log: bool = False) -> list[str]:
        """The places of a client that sees these prompts end."""
        async with serving(data) as server, server.client() as http:
            place = await server.workspace(http)
            places = []
            async with place.watching() as watch:
                for text in texts:
                    await place.send(text, text)
                    await watch.end(text)
                    places.append(watch.last_event_id)
            if loses_log:
                shutil.copytree(data, left, ignore=shutil.ignore_patterns("*-wal", "*-shm"))
            return places

    async def shown(last_event_id: str) -> list[str | None]:
        async with serving(data) as server, server.client() as http:
            place = await server.workspace(http)
            async with place.watching(last_event_id=last_event_id) as watch:
                await watch.end("g")
                return [run_id for run_id, _ in watch.ends()]

    kept = await live("a", "b")
    if lost == "a backup is restored":
        shutil.copytree(data, left)
    gone = await live("c", "d", loses_log=not left.exists())
    shutil.rmtree(data)
    left.rename(data)
    async with serving(data) as server, server.client() as http:
        place = await server.workspace(http)
        async with place.watching(last_event_id=gone[-1]) as watch:
            await watch.end("b")
            for text in "efg":
                await place.send(text, text)
                await watch.end(text)
            assert [run_id for run_id, _ in watch.ends()] == ["a", "b", "e", "f", "g"]
    for place_of_lost in gone:
        assert await shown(place_of_lost) == ["a", "b", "e", "f", "g"]
    assert await shown(kept[0]) == ["b", "e", "f", "g"]
    assert await shown(kept[1]) == ["e", "f", "g"]


async def test_places_outlive_the_server_and_a_lost_log_is_told_from_its_beginning(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as http:
        place = await server.workspace(http)
        async with place.watching() as watch:
            await place.send("a", "run-a")
            await watch.end("run-a")
            await watch.until(lambda w: w.of("prompt")[-1]["state"] == "done")
            there = watch.last_event_id
            await place.send("b", "run-b")
            await watch.end("run-b")
    async with serving(tmp_path) as server, server.client() as http:
        place = Place(http, place.id, place.session)
        async with place.watching(last_event_id=there) as watch:
            await watch.end("run-b")
            await place.send("c", "run-c")
            await watch.end("run-c")
            assert [run_id for run_id, _ in watch.ends()] == ["run-b", "run-c"]
            there = watch.last_event_id
    for file in (tmp_path / "workspaces").iterdir():
        file.unlink()
    async with serving(tmp_path) as server, server.client() as http:
        place = await server.workspace(http)
        for text in "defg":
            await place.send(text, f"run-{text}")
        async with place.watching(last_event_id=there) as watch:
            await watch.end("run-g")
            assert [run_id for run_id, _ in watch.ends()] == ["run-d", "run-e", "run-f", "run-g"]


# --- what is sent

async def test_a_silent_stream_has_comments() -> None:
    async with placed(limits=Limits(heartbeat=0.02)) as (_, place), place.watching() as watch:
        await watch.until(lambda w: w.comments > 3)
        assert watch.seen == []


@pytest.mark.rule("R29a")
async def test_a_message_is_created_once_and_then_updated() -> None:
    async with placed() as (_, place), place.watching() as watch:
        await place.send("hello", "run-a")
        await watch.end("run-a")
        told = [(e["payload"]["payload"]["id"], e["payload"]["type"]) for e in watch.seen if e["type"] == "message"]
        created = [id for id, change in told if change == "created"]
        assert len(created) == len(set(created)) == 2
        answer = [change for id, change in told if id == created[1]]
        assert answer == ["created", *["updated"] * (len(answer) - 1)]
        assert len(answer) > 3
        assert {m["run_id"] for m in watch.of("message")} == {"run-a"}


def test_notices_are_made_ready_once_and_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    dumps = stream.encode
    monkeypatch.setattr(stream, "encode", lambda value: made.append(value) or dumps(value))
    encoder = Encoder(Offsets([], "log"))
    update = Update("s", "session", {"id": "s"})
    assert encoder.encode(update) is encoder.encode(update)
    one, same = (Event(1, "s", None, "run_complete", {"text": "x"}) for _ in range(2))
    assert encoder.encode(one) is encoder.encode(same), "each reader reads it from the log for itself"
    assert len(made) == 2
    for n in range(100):
        encoder.encode(Update("s", "session", {"id": f"{n}", "title": "x" * 100_000}))
    assert encoder._size <= stream.SHARED
    assert sum(len(data) for _, data in encoder._ready.values()) == encoder._size


@pytest.mark.parametrize("sizes", [[], [1], [CHUNK], [CHUNK + 1], [1, CHUNK], [5 * CHUNK, 3, 4], [3] * 50_000, [0, 0]])
def test_what_is_sent_is_cut_into_pieces_of_a_good_size(sizes: list[int]) -> None:
    told = [os.urandom(size) for size in sizes]
    chunks = list(_chunks(told))
    assert b"".join(chunks) == b"".join(told)
    assert all(len(chunk) <= CHUNK for chunk in chunks)
    assert len(chunks) <= 2 * sum(sizes) / CHUNK + 2


async def test_small_answers_are_not_held_back() -> None:
    """Nagle's delay is off: with it, an answer in two pieces takes 40 milliseconds."""
    seen: list[int] = []
    listener = bind("127.0.0.1", 0)
    accepted = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda reader, writer: accepted.set_result(writer), sock=listener)
    _, writer = await asyncio.open_connection(*listener.getsockname())
    inner = await accepted
    seen.append(inner.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
    writer.close()
    inner.close()
    server.close()
    await server.wait_closed()
    assert seen == [1]


# --- readers that are slow, stalled or gone

def attached(server: Server, place: Place) -> Workspace:
    return server.site.workspaces.get(place.id)


async def connected(server: Server, place: Place, buffer: int = 4096) -> socket.socket:
    """A reader that has the head of the answer, and then does nothing."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    made.setblocking(False)
    loop = asyncio.get_running_loop()
    host, port = server.url.removeprefix("http://").split(":")
    await loop.sock_connect(made, (host, int(port)))
    await loop.sock_sendall(made, request(place).encode())
    assert (await loop.sock_recv(made, 12)) == b"HTTP/1.1 200"
    return made


def request(place: Place) -> str:
    return f"GET {place.url}/events?client_id={uuid4()} HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def test_a_reader_that_was_slow_misses_updates_and_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "BRIEF", 0.05)
    turns, text = 100, "x" * 20_000
    async with placed() as (server, place):
        broker = attached(server, place).runtime.broker
        slow = await connected(server, place)
        async with place.watching() as watch:
            for n in range(turns):
                await place.send(text, f"run-{n}")
                await watch.end(f"run-{n}")  # nobody waits for the slow one
            assert len(watch.of("message")) > 5 * turns
        await until(lambda: broker.statistics().subscriptions == 0)  # it rests
        reader, writer = await asyncio.open_connection(sock=slow)
        got = b""
        while got.count(b'"run_complete"') < turns:
            data = await asyncio.wait_for(reader.read(1_000_000), PATIENCE)
            assert data
            got += data
        writer.close()
        ends = [line for line in got.split(b"\n") if b'"run_complete"' in line]
        assert [f'"run-{n}"'.encode() in end for n, end in enumerate(ends)] == [True] * turns
        assert got.count(b'"type":"message"') < 5 * turns


async def test_a_stalled_reader_is_cut_off_and_can_come_back() -> None:
    async with placed(limits=Limits(stall=0.2)) as (server, place):
        stalled = await connected(server, place)
        workspace = attached(server, place)
        assert workspace.attached == 1
        await place.send("x" * 190_000, "run-0")
        await until(lambda: workspace.attached == 0)
        stalled.close()
        async with place.watching(last_event_id=f"{workspace.offsets.name(0)}") as watch:
            await watch.end("run-0")


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_reader_that_is_gone_leaves_nothing_behind(how: str) -> None:
    async with placed() as (server, place):
        workspace = attached(server, place)
        readers = [await connected(server, place) for _ in range(20)]
        await until(lambda: workspace.attached == 20)
        for reader in readers:
            if how == "reset":
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            reader.close()
        await until(lambda: workspace.attached == 0)
        assert workspace.runtime.broker.statistics().subscriptions == 0


async def test_a_client_that_comes_back_while_it_is_being_released_is_not_confused() -> None:
    async with placed() as (server, place):
        client = str(uuid4())
        async with place.watching(client) as old:
            await place.http.delete(f"/v1/clients/{client}")
            async with place.watching(client) as new:
                await old.until(lambda w: w.over)
                await place.send("hello", "run-a")
                await new.end("run-a")
                assert attached(server, place).clients == [client]


def rss(pid: int) -> int:
    """The memory that a process has in use, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def spent(pid: int) -> float:
    """The seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/status").exists() and os.environ.get("CI") != "true",
                    reason="memory and CPU are read from /proc")
def test_a_thousand_readers_that_are_slow_stalled_or_gone_slow_nobody_down_and_grow_no_memory(tmp_path: Path) -> None:
    readers, turns = 1000, 40
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * readers)), hard))

    async def main(server: Process) -> None:
        assert server.process is not None
        pid = server.process.pid
        async with web(server.url) as http:
            place = await Server().workspace(http)
            flood = await place.new_session()

            async def run(name: str, session: str, text: str = "hello", times: int = turns) -> float:
                """So many prompts one after the other, each seen to its end; the seconds of CPU they took."""
                before = spent(pid)
                for n in range(times):
                    await place.send(text, f"{name}-{n}", session)
                    await watch.end(f"{name}-{n}")
                return spent(pid) - before

            with ExitStack() as sockets:
                async with place.watching() as watch:
                    await run("warm", await place.new_session())
                    alone = await run("alone", await place.new_session())
                    empty = rss(pid)
                    all_readers = []
                    for _ in range(readers):
                        reader = sockets.enter_context(socket.create_connection(("127.0.0.1", server.port), PATIENCE))
                        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                        reader.sendall(request(place).encode())
                        all_readers.append(reader)
                    for n, reader in enumerate(all_readers):
                        assert reader.recv(12) == b"HTTP/1.1 200"
                        if n % 10 == 0:  # gone
                            reader.close()
                    idle = rss(pid)
                    await run("flood", flood, "x" * 150_000, 2)  # more than any buffer holds: all are stalled now
                    full = rss(pid)
                    await asyncio.sleep(1.5 * stream.BRIEF)
                    for reader in all_readers[1::10]:  # slow: it takes a little now and then
                        reader.recv(2048)
                    crowded = min([await run(f"crowded-{n}", await place.new_session()) for n in range(3)])
                    await run("flood-again", flood, "y" * 150_000, 4)
                    later = rss(pid)
        print(f"server CPU for {turns} prompts: alone {alone:.2f} s, among {readers} stalled {crowded:.2f} s; "
              f"bytes a reader: {(idle - empty) / readers:,.0f} idle, {(full - empty) / readers:,.0f} stalled, "
              f"{(later - empty) / readers:,.0f} after twice as much")
        assert crowded < 3 * alone + 0.1
        assert (full - empty) / readers < 250_000
        assert later - full < 0.25 * (full - empty) + 30_000_000, "what they do not take is not kept for them"

    with Process(tmp_path / "data", "--pace", "0", "--memory") as server:
        asyncio.run(main(server))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
