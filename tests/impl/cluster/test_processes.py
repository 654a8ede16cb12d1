"""`cancelmark serve --database` as processes: killed, frozen, asked to go, and with a database that is away."""

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from support.commands import COMMAND
from support.postgres import PostgresServer, shared_server
from support.servers import PATIENCE, Place, Process, web

LEASE = ("--lease", "1", "--poll", "0.1", "--drain", "0.3", "--pace", "0.05", "--log-level", "warning")
LONG = "stubborn: " + "and on " * 400  # a turn that does not end by itself in time


@contextmanager
def started(tmp_path: Path, number: int, database: str | None = None) -> Iterator[list[Process]]:
    server = shared_server()
    url = database or server.url(server.new_database())
    with ExitStack() as stack:
        yield [stack.enter_context(Process(tmp_path / f"node{n}", "--database", url, *LEASE)) for n in range(number)]


@asynccontextmanager
async def places(processes: list[Process]) -> AsyncIterator[list[Place]]:
    """A client of the same session at each node."""
    async with web(processes[0].url) as http:
        told = (await http.post("/v1/workspaces", json={"path": "/tmp/cancelmark-test"})).json()
        (await http.post(f"/v1/workspaces/{told['id']}/agent/init", json={})).raise_for_status()
        first = Place(http, told["id"])
        first.session = await first.new_session()
        found = [first]
        for process in processes[1:]:
            found.append(first.seen_by(web(process.url)))
        yield found
        for place in found[1:]:
            await place.http.aclose()


@asynccontextmanager
async def play(tmp_path: Path, number: int, database: str | None = None) -> AsyncIterator[list[tuple[Process, Place]]]:
    with started(tmp_path, number, database) as processes:
        async with asyncio.timeout(PATIENCE), places(processes) as found:
            yield list(zip(processes, found))


async def start_turn(place: Place, text: str = LONG) -> None:
    await place.send(text, "r1")
    await place.until(lambda prompts: prompts[0]["state"] == "active")


Node = tuple[Process, Place]


@pytest.mark.rule("C4b")
async def test_what_a_killed_node_ran_ends_with_an_error_and_the_rest_goes_on_elsewhere(tmp_path: Path) -> None:
    async with play(tmp_path, 2) as (a, b):
        await start_turn(a[1])
        await a[1].send("fast: two", "r2")
        async with b[1].watching() as watch:
            a[0].kill()
            assert "interrupted" in (await watch.end("r1"))["error"]
            assert (await watch.end("r2"))["outcome"] == "end_turn"
        a[0].start()
        async with web(a[0].url) as http:
            assert [(p["run_id"], p["outcome"]) for p in await a[1].seen_by(http).get("prompts")] == [
                ("r1", "error"), ("r2", "end_turn")]


@pytest.mark.rule("C5a")
async def test_a_node_that_wakes_after_its_lease_writes_nothing_more(tmp_path: Path) -> None:
    async with play(tmp_path, 2) as (a, b):
        await start_turn(a[1])
        await a[1].send("fast: two", "r2")
        async with b[1].watching() as watch:
            a[0].signal(signal.SIGSTOP)
            await watch.end("r1")
            await watch.end("r2")
            said = await b[1].messages()
            a[0].signal(signal.SIGCONT)
            await a[1].send("fast: three", "r3")
            await watch.end("r3")
            assert watch.ends() == [("r1", "error"), ("r2", "end_turn"), ("r3", "end_turn")]
        await asyncio.sleep(0.5)
        assert (await b[1].messages())[:len(said)] == said
        assert len(await b[1].messages()) == len(said) + 2


async def test_a_node_that_is_asked_to_go_hands_over_and_exits_cleanly(tmp_path: Path) -> None:
    async with play(tmp_path, 2) as (a, b):
        await start_turn(a[1], "slow: " + "word " * 40)
        await a[1].send("fast: two", "r2")
        async with b[1].watching() as watch:
            a[0].signal(signal.SIGTERM)
            assert (await watch.end("r1"))["outcome"] == "error"
            assert (await watch.end("r2"))["outcome"] == "end_turn"
        assert await asyncio.to_thread(a[0].wait) == 0


@pytest.mark.rule("C2c")
async def test_while_the_database_is_away_nothing_is_taken_and_nothing_is_lost(tmp_path: Path) -> None:
    server = PostgresServer()
    try:
        async with play(tmp_path, 1, server.url("postgres")) as [a]:
            _, place = a
            await start_turn(place, "slow: " + "word " * 8)
            await asyncio.to_thread(server.stop)
            answer = await place.post("fast: two", "r2")
            assert answer.status_code in (500, 503), answer.text
            assert (await place.http.get("/v1/health")).json() == {"status": "ok"}
            ready = await place.http.get("/v1/ready")
            assert (ready.status_code, ready.json()) == (503, {"status": "away"})
            await asyncio.to_thread(server.start)
            async with asyncio.timeout(30):
                while (await place.post("fast: two", "r2")).status_code != 202:
                    await asyncio.sleep(0.1)
            prompts = await place.until(lambda prompts: all(p.get("outcome") for p in prompts))
            assert [p["run_id"] for p in prompts] == ["r1", "r2"]
            assert prompts[0]["outcome"] == "end_turn", "its turn stood still, and went on"
    finally:
        server.remove()


@pytest.mark.parametrize(("database", "told"), [
    ("nonsense", "expected postgresql://"), ("postgresql://127.0.0.1:1/none", "cannot be reached"),
    (None, "does not exist")])
def test_a_database_that_cannot_be_used_is_said_in_one_line(tmp_path: Path, database: str | None, told: str) -> None:
    done = subprocess.run([*COMMAND, "serve", "--port", "0", "--data-dir", str(tmp_path), "--database",
                           database or shared_server().url("no_such_database")],
                          capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2, done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr
