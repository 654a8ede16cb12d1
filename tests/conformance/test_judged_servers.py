"""Of small servers in processes of their own, the kit says exactly what is written beside each."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from http.client import IncompleteRead
from pathlib import Path
from time import sleep

import h11
import httpx2
import pytest
from support import judged_servers as servers
from support.budget import long

from cancelmark.conformance import Adapter, Ended, Sent, judge
from cancelmark.conformance.adapter import ServerGone, is_gone
from cancelmark.conformance.profile import PROFILES
from cancelmark.conformance.report import Decision
from examples.worker.server import Server

SHORT = replace(PROFILES["quick"], histories=10, repeats=1, races=1, shrinks=0, limit=5, decisive=1)
TIMES = int(os.environ.get("CANCELMARK_IN_A_ROW", "1"))
# Each with what the kit decides, the guarantees that it must say are broken, and others that it may.
VERDICTS: dict[type[Adapter], tuple[Decision, set[str], set[str]]] = {
    servers.adapter_of(Server): (Decision.CONFORMS, set(), set()),
    servers.adapter_of(Server, tells_queue=False): (Decision.NOTHING_BROKEN, set(), set()),
    servers.TellsBesides: (Decision.CONFORMS, set(), set()),
    servers.adapter_of(servers.Slow): (Decision.CONFORMS, set(), set()),
    servers.adapter_of(servers.Lifo): (Decision.BROKEN, {"fifo"}, set()),
    servers.adapter_of(servers.Lifo, tells_queue=False): (Decision.BROKEN, {"fifo"}, set()),
    servers.adapter_of(servers.Dies): (Decision.BROKEN, {"progress"}, set()),
    servers.adapter_of(servers.LeavesOpen): (Decision.BROKEN, {"cancel-stops", "single-active"}, {"no-lost-cancel"}),
}


@pytest.fixture(scope="module")
def busy() -> Iterator[None]:
    """Two processes that do nothing but compute."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


LATER = ("ServerBlind", "Slow", "Lifo")  # to `make test-all`


@pytest.mark.parametrize("server", [long(server) if server.__name__ in LATER else server for server in VERDICTS],
                         ids=lambda server: server.__name__)
def test_the_verdict_is_right_beside_two_busy_loops(server: type[Adapter], busy: None) -> None:
    decision, must, may = VERDICTS[server]
    for _ in range(TIMES):
        report = judge(server, profile=SHORT)
        assert must <= set(report.broken) <= must | may, str(report)
        assert report.decision is decision, str(report)


# --- a server that is gone

def raised(*kinds: str | Exception) -> Exception:
    """What comes of exceptions, each of the one before it: of a library that need not be here, or one that is."""
    error: BaseException | None = None
    for kind in kinds:
        made = type(kind, (Exception,), {})() if isinstance(kind, str) else kind
        made.__cause__, error = error, made
    assert isinstance(error, Exception)
    return error


@pytest.mark.parametrize(("error", "gone"), [
    (raised(httpx2.RemoteProtocolError("incomplete chunked read")), True),
    (raised(httpx2.ReadError(""), ValueError("no JSON")), True),
    (raised(h11.RemoteProtocolError("")), True),
    (raised("ClientPayloadError"), True), (raised("ClientConnectionError"), True), (raised("NetworkError"), True),
    (raised(ExceptionGroup("all attempts failed", [ConnectionRefusedError()]), OSError("all attempts failed")), True),
    (raised(IncompleteRead(b"")), True), (raised(EOFError()), True), (raised(ServerGone("it says so")), True),
    (raised(httpx2.ReadTimeout("")), False), (raised(httpx2.LocalProtocolError("")), False),
    (raised(httpx2.HTTPStatusError("500", request=None, response=None)), False),  # type: ignore[arg-type]
    (raised(KeyError("id")), False), (raised(TimeoutError()), False), (raised(OSError("no such file")), False),
], ids=lambda value: repr(value))
def test_a_broken_connection_is_told_from_an_error_of_the_adapter(error: Exception, gone: bool) -> None:
    assert is_gone(error) is gone


class Silent(servers.adapter_of(servers.Dies)):  # type: ignore[misc]
    """Of what breaks, its client says nothing that the kit would know."""

    async def accept(self, session: str, prompt: Sent) -> None:
        try:
            await super().accept(session, prompt)
        except httpx2.HTTPError:
            raise LookupError("no answer") from None

    async def events(self) -> AsyncIterator[Ended]:
        with suppress(httpx2.HTTPError):
            async for event in super().events():
                yield event
        await asyncio.Event().wait()


def test_a_process_that_has_exited_is_gone_whatever_its_client_says() -> None:
    report = judge(Silent, scripts=["accept A; cancel", "accept A; accept B", "accept A; release"], times=1)
    assert report.broken == ["progress"]
    assert "exited with exit code 3; its last output: " in report.verdict("progress").about
    assert report.verdict("progress").about.endswith("/ panic: two at once).")
    assert [replay.ends for replay in report.replays][::2] == [{"A canceled": 1}, {"A end_turn": 1}]  # it is back


TERMINATED = """
import os, pathlib
from support.judged_servers import Dies, adapter_of

class Judged(adapter_of(Dies)):
    async def open(self):
        with pathlib.Path(os.environ["TOLD"]).open("a") as told:
            print(self.server._running.pid, self.server.place, file=told)
        await super().open()
"""


def test_sigterm_stops_the_server_removes_its_files_and_reports_what_was_found(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TERMINATED)
    told = tmp_path / "told"
    judging = subprocess.Popen(
        [Path(sys.executable).with_name("cancelmark"), "conform", "--adapter", "mine.py:Judged", "--junit", "j.xml"],
        cwd=tmp_path, env=os.environ | {"TOLD": str(told), "PYTHONPATH": ":".join(sys.path)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while judging.poll() is None and (not told.exists() or len(set(told.read_text().splitlines())) < 3):
        sleep(0.05)  # until it has died twice and is back
    judging.terminate()
    out, err = judging.communicate()
    assert judging.returncode == 130, out + err
    assert "progress is broken: the server is gone" in out
    assert "the judgement stopped: it was interrupted" in out
    assert "verdict=broken" in out.splitlines()[-1]
    assert 'failures="1"' in (tmp_path / "j.xml").read_text()
    for line in told.read_text().splitlines():
        pid, place = line.split()
        assert not Path(place).exists()
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
