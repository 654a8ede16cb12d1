"""A disk that fails while it confirms: what was refused never runs, what was accepted always does, and what nobody
knows is not called refused.

Each test runs `cancelmark serve` on a disk whose syncs fail on command (`support/disk.c`), kills and restarts it.
A failed sync leaves what was written in the page cache, so that a new process finds it, and marks it clean, so that the
power can still take it away: a server that trusts what it reads there, or what it did not sync again, is found out.
"""

import asyncio
import os
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx2 as httpx
import pytest
from support.budget import effort
from support.commands import COMMAND
from support.disks import Disk, compile_disk, has_compiler
from support.servers import PATIENCE, Place, Process, Server, web
from support.shared_fixture import once

from cancelmark.impl.client import Client, RunStream

pytestmark = pytest.mark.skipif(not has_compiler() and os.environ.get("CI") != "true",
                                reason="a C compiler and Linux are needed to make a disk fail")


@pytest.fixture
def disk(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Disk:
    library = once(tmp_path_factory, "disk", lambda: compile_disk(tmp_path_factory.mktemp("library")))
    return Disk(tmp_path / "disk", library)


class Life:
    """One server after the other on one failing disk."""

    def __init__(self, tmp_path: Path, disk: Disk, pace: float) -> None:
        self.disk = disk
        self.server = Process(tmp_path / "data", "--pace", str(pace), "--drain", "0.2", environment=disk.environment)
        self.place: Place

    async def start(self) -> None:
        await asyncio.to_thread(self.server.start)

    async def kill(self) -> None:
        """The process is gone; the page cache stays."""
        await asyncio.to_thread(self.server.kill)

    async def lose_power(self) -> None:
        await self.kill()
        self.disk.lose_power(self.server.directory)

    async def prompts(self) -> dict[str, Any]:
        """Where each prompt of the session is, by run id, when all are done."""
        told = await self.place.until(lambda told: all(prompt["state"] == "done" for prompt in told))
        counts = Counter(prompt["run_id"] for prompt in told)
        assert not counts or max(counts.values()) == 1
        return {prompt["run_id"]: prompt["outcome"] for prompt in told}


@asynccontextmanager
async def living(tmp_path: Path, disk: Disk, pace: float = 0.0) -> AsyncIterator[Life]:
    life = Life(tmp_path, disk, pace)
    await life.start()
    try:
        async with asyncio.timeout(4 * PATIENCE), web(life.server.url) as http:
            life.place = await Server().workspace(http)
            await life.place.send("fast: the first", "first")
            await life.prompts()
            yield life
    finally:
        if life.server.process and life.server.process.poll() is None:
            life.server.kill()


async def restart(life: Life) -> None:
    await life.kill()
    await life.start()


async def lose_power_and_restart(life: Life) -> None:
    await life.lose_power()
    await life.start()


DEATHS = pytest.mark.parametrize("die", [restart, lose_power_and_restart], ids=["killed", "power"])


@DEATHS
@pytest.mark.rule("R1c", "R16a")
async def test_a_prompt_that_was_refused_never_runs(
    tmp_path: Path, disk: Disk, die: Callable[[Life], Awaitable[None]],
) -> None:
    """The disk fails once. The refusal is durable before it is said, and the next prompt is accepted."""
    async with living(tmp_path, disk) as life:
        disk.fail_once()
        refused = await life.place.post("refused", "refused")
        assert refused.status_code == 503, refused.text
        await die(life)
        assert await life.prompts() == {"first": "end_turn"}
        disk.fail_once()
        refused = await life.place.post("refused", "refused")
        assert refused.status_code == 503, refused.text
        assert (await life.place.post("after", "after")).status_code == 202
        await die(life)
        assert (await life.prompts()).keys() == {"first", "after"}


@DEATHS
@pytest.mark.rule("R1d", "R22b")
async def test_a_prompt_that_nobody_knows_of_is_not_called_refused_and_runs_at_most_once_under_its_run_id(
    tmp_path: Path, disk: Disk, die: Callable[[Life], Awaitable[None]],
) -> None:
    """The disk fails for as long as the server lives. What comes after the first failure never touches the journal."""
    async with living(tmp_path, disk) as life:
        with disk.failing():
            unknown = await life.place.post("unknown", "unknown")
            assert unknown.status_code == 500, unknown.text
            assert "unknown; check the disk" in unknown.text
            assert "same run id" in unknown.text
            assert str(tmp_path) not in unknown.text
            refused = await life.place.post("refused", "refused")
            assert refused.status_code == 503, refused.text
            await life.kill()
        if die is lose_power_and_restart:
            disk.lose_power(life.server.directory)
        await life.start()
        found = await life.prompts()
        assert {"first"} <= found.keys() <= {"first", "unknown"}
        assert (await life.place.post("unknown", "unknown")).status_code == 202
        await life.prompts()
        await die(life)
        assert (await life.prompts()).keys() == {"first", "unknown"}


@pytest.mark.rule("R16a")
async def test_what_a_failed_sync_left_in_the_page_cache_is_written_again_before_it_is_built_upon(
    tmp_path: Path, disk: Disk,
) -> None:
    async with living(tmp_path, disk) as life:
        with disk.failing():
            assert (await life.place.post("unknown", "unknown")).status_code == 500
            await life.kill()
        await life.start()
        found = await life.prompts()
        assert (await life.place.post("after", "after")).status_code == 202
        await lose_power_and_restart(life)
        assert (await life.prompts()).keys() == {*found, "after"}


@pytest.mark.rule("R1d", "R25a")
async def test_a_disk_that_works_again_ends_the_doubt_without_being_asked(tmp_path: Path, disk: Disk) -> None:
    async with living(tmp_path, disk) as life:
        with disk.failing():
            assert (await life.place.post("unknown", "unknown")).status_code == 500
        log = life.server.log
        async with asyncio.timeout(PATIENCE):
            while "is now known to be rolled back" not in log.read_text():
                await asyncio.sleep(0.05)
        await restart(life)
        assert await life.prompts() == {"first": "end_turn"}


@pytest.mark.rule("R25a", "R16b")
@pytest.mark.parametrize(("what", "heals"), [("cancel", True), ("prompts/clear", False)])
async def test_a_cancel_is_answered_when_it_is_durable_and_not_before(
    tmp_path: Path, disk: Disk, what: str, heals: bool,
) -> None:
    async with living(tmp_path, disk, pace=0.1) as life:
        await life.place.send("slow: a", "a")
        await life.place.send("b", "b")
        with disk.failing():
            canceling = asyncio.ensure_future(life.place.do(what))
            await asyncio.sleep(0.5)
            assert not canceling.done(), "a cancel was acknowledged that is not durable"
            if not heals:
                await life.kill()
                await asyncio.gather(canceling, return_exceptions=True)
        if heals:
            assert (await canceling).status_code == 200
            await restart(life)
        else:
            await life.start()
        found = await life.prompts()
        assert found.keys() == {"first", "a", "b"}
        assert found["b"] == "canceled" or not heals


@pytest.mark.rule("R14a", "R16c")
async def test_an_end_is_told_when_it_is_durable_and_not_before(tmp_path: Path, disk: Disk) -> None:
    """The disk fails when the turn has begun, so that its end is the first that cannot be written."""
    async with living(tmp_path, disk, pace=0.1) as life:
        async with life.place.watching() as watch:
            await life.place.send("slow: a", "a")
            await watch.until(lambda w: any(prompt["state"] == "active" for prompt in w.of("prompt")))
            with disk.failing():
                await asyncio.sleep(0.5)
                told = watch.ends()
                await life.kill()
        await life.start()
        found = await life.prompts()
        assert found.keys() == {"first", "a"}
        assert all(found[run_id] == outcome for run_id, outcome in told if run_id)
        async with life.place.watching(last_event_id="0") as again:
            await again.end("a")
            assert Counter(run_id for run_id, _ in again.ends()) == {"first": 1, "a": 1}


@pytest.mark.rule("R15b", "R25b")
async def test_a_shutdown_on_a_failing_disk_ends_and_claims_nothing(tmp_path: Path, disk: Disk) -> None:
    async with living(tmp_path, disk, pace=0.1) as life:
        await life.place.send("slow: a", "a")
        await life.place.send("b", "b")
        with disk.failing():
            assert await asyncio.to_thread(life.server.stop) == 0
        await life.start()
        found = await life.prompts()
        assert found.keys() == {"first", "a", "b"}
        assert found["a"] in ("error", "canceled")


@pytest.mark.rule("R1d")
async def test_a_session_that_nobody_knows_of_is_not_called_refused(tmp_path: Path, disk: Disk) -> None:
    async with living(tmp_path, disk) as life:
        url, body = f"{life.place.url}/sessions", {"title": "another"}
        before = (await life.place.http.get(url)).json()
        disk.fail_once()
        assert (await life.place.http.post(url, json=body)).status_code == 503
        await restart(life)
        assert (await life.place.http.get(url)).json() == before
        with disk.failing():
            assert (await life.place.http.post(url, json=body)).status_code == 500


@pytest.mark.rule("R1d", "R22b")
async def test_our_client_posts_again_what_nobody_knows_of(tmp_path: Path, disk: Disk) -> None:
    async with living(tmp_path, disk) as life:
        async def run() -> str:
            async with Client(life.server.url) as client, RunStream(
                    client, life.place.id, life.place.session, "unknown", run_id="unknown") as stream:
                return str((await stream.end()).outcome)

        with disk.failing():
            running = asyncio.ensure_future(run())
            await asyncio.sleep(1)
            assert not running.done()
        assert await running == "end_turn"
        assert (await life.prompts()).keys() == {"first", "unknown"}

        async def send(*words: str) -> str:
            process = await asyncio.create_subprocess_exec(
                *COMMAND, "send", "--server", life.server.url, "--workspace", str(tmp_path), *words,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            return " ".join(said.decode() for said in await process.communicate())

        await send("fast: this makes the session")
        with disk.failing():
            told = await send("again")
        run_id = told.partition("--run-id ")[2].strip()
        assert (await send("--run-id", run_id, "again")).strip() == run_id, told


@pytest.mark.rule("R1c", "R1d", "R14a", "R16a", "R22b")
@pytest.mark.parametrize("seed", range(effort(2)))
async def test_whatever_fails_and_dies_each_answer_was_true(tmp_path: Path, disk: Disk, seed: int) -> None:
    """Prompts, cancels, syncs that fail once or for a while, kills and losses of power, all at random."""
    random = Random(seed)
    accepted, refused, unknown = set[str](), set[str](), set[str]()

    async def post(life: Life, name: str) -> None:
        try:
            answer = await life.place.post(random.choice(["", "fast: "]) + name, name)
        except httpx.TransportError:
            unknown.add(name)
        else:
            {202: accepted, 503: refused, 500: unknown}[answer.status_code].add(name)

    async with living(tmp_path, disk, pace=0.005) as life:
        number = 0
        for _ in range(3):
            work: list[asyncio.Future[Any]] = []
            for _ in range(6):
                if random.random() < 0.5:
                    disk.fail_once()
                for _ in range(random.randint(1, 3)):
                    work.append(asyncio.ensure_future(post(life, f"run-{number}")))
                    number += 1
                if random.random() < 0.3:
                    work.append(asyncio.ensure_future(life.place.do("cancel")))
                await asyncio.sleep(random.choice([0, 0.005, 0.05]))
            with disk.failing():
                work.append(asyncio.ensure_future(post(life, f"run-{number}")))
                number += 1
                await asyncio.sleep(random.choice([0, 0.01, 0.2]))
                await life.kill()
                await asyncio.gather(*work, return_exceptions=True)
            if random.random() < 0.5:
                disk.lose_power(life.server.directory)
            await life.start()
            found = (await life.prompts()).keys() - {"first"}
            assert accepted <= found, "accepted, and lost"
            assert not refused & found, "refused, and it ran"
            assert found <= accepted | unknown
            accepted.update(found)
            unknown.clear()
        async with life.place.watching(last_event_id="0") as watch:
            await life.place.send("the last", "last")
            await watch.end("last")
            assert Counter(run_id for run_id, _ in watch.ends()) == Counter([*accepted, "first", "last"])
    assert accepted
    assert refused
