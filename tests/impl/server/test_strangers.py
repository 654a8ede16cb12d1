"""A raid of strangers on a real server, while honest clients go on with their work."""

import asyncio
import json
import statistics
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import httpx2 as httpx
from support import strangers
from support.budget import effort
from support.servers import PATIENCE, Place, Process, Server, web

ATTACKS, WINDOWS = effort(1200), 4
EVERY = 0.02  # seconds between two honest prompts, whether the one before has ended or not


class Honest:
    """Clients that send prompts at fixed times. What counts is the time from when a prompt should have been sent until
    its acceptance is durable."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.sessions: list[str] = []
        self.sent: list[str] = []  # run ids

    async def work(self, until: "asyncio.Future[object]", least: int) -> list[float]:
        """Works until the future is done, and at least for so many prompts. Returns the seconds that each took."""
        loop = asyncio.get_running_loop()
        began, waits = loop.time(), []
        while len(waits) < least or not until.done():
            due = began + len(waits) * EVERY
            await asyncio.sleep(due - loop.time())
            waits.append(asyncio.ensure_future(self._prompt(due, self.sessions[len(waits) % len(self.sessions)])))
        return list(await asyncio.gather(*waits))

    async def _prompt(self, due: float, session: str) -> float:
        self.sent.append(run_id := str(uuid4()))
        while True:  # a connection that was kept may have had to go just now: whoever sees that asks again
            with suppress(httpx.TransportError):
                await self.place.send("fast: hello", run_id, session)
                return asyncio.get_running_loop().time() - due


def worst(seconds: list[float]) -> float:
    """The 99th percentile."""
    return statistics.quantiles(seconds, n=100)[98]


async def raid(server: Process, token: str, seed: int) -> None:
    async with web(server.url, headers={"authorization": f"Bearer {token}"}) as http:
        place = await Server().workspace(http)
        async with place.watching() as watch:
            honest = Honest(place)
            honest.sessions = [await place.new_session() for _ in range(8)]
            raiders = await asyncio.create_subprocess_exec(
                sys.executable, strangers.__file__, str(server.port), str(seed), token, place.id, place.session,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=1_000_000)
            assert raiders.stdin
            assert raiders.stdout
            quiet: list[float] = []
            during: list[float] = []
            done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            await honest.work(done, 20)
            for _ in range(WINDOWS):  # in turns: the machine has other things to do, now more, now less
                quiet += await honest.work(done, 100)
                raiders.stdin.write(b"%d\n" % (ATTACKS // WINDOWS))
                told = asyncio.ensure_future(raiders.stdout.readline())
                during += await honest.work(told, 100)
                found = json.loads(told.result())
                assert not found["wrong"], found["wrong"]
            raiders.stdin.close()
            await asyncio.wait_for(raiders.wait(), PATIENCE)
            await watch.until(lambda w: len(w.ends()) == len(honest.sent))
            assert sorted(run_id or "" for run_id, _ in watch.ends()) == sorted(honest.sent), "each ends once"
            assert not watch.over, "the stream of an honest client had to go"
    answers = found["answers"]
    kinds = {answer.rpartition(" ")[0] for answer in answers}
    print(f"{sum(answers.values())} attacks of {len(kinds)} kinds; 99 of 100 honest prompts took at most "
          f"{worst(quiet) * 1000:.1f} ms in peace ({len(quiet)}), {worst(during) * 1000:.1f} ms under attack "
          f"({len(during)})")
    assert worst(during) <= 10 * worst(quiet)


def test_a_raid_stops_nothing_and_slows_honest_clients_little(tmp_path: Path) -> None:
    with Process(tmp_path / "data", "--token-file", str(tmp_path / "token"), "--max-connections", "128",
                 "--max-workspaces", "8") as server:
        token = (tmp_path / "token").read_text().strip()
        asyncio.run(raid(server, token, 17))
        assert server.stop() == 0
    log = server.log.read_text()
    assert "Traceback" not in log
    assert "level=error" not in log
    assert len(log) < 100 * ATTACKS
