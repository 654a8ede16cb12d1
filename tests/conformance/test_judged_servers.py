"""Of small servers in processes of their own, the kit says exactly what is written beside each."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support import judged_servers as servers

from cancelmark.conformance import Adapter, judge
from cancelmark.conformance.profile import PROFILES
from cancelmark.conformance.report import Decision
from examples.worker.server import Server

SHORT = replace(PROFILES["quick"], histories=10, repeats=1, races=1, shrinks=0, limit=5, decisive=1)
TIMES = int(os.environ.get("CANCELMARK_IN_A_ROW", "1"))
# Each with what the kit decides, the guarantees that it must say are broken, and others that it may.
VERDICTS: dict[type[Adapter], tuple[Decision, set[str], set[str]]] = {
    servers.adapter_of(Server): (Decision.CONFORMS, set(), set()),
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


@pytest.mark.parametrize("server", list(VERDICTS), ids=lambda server: server.__name__)
def test_the_verdict_is_right_beside_two_busy_loops(server: type[Adapter], busy: None) -> None:
    decision, must, may = VERDICTS[server]
    for _ in range(TIMES):
        report = judge(server, profile=SHORT)
        assert must <= set(report.broken) <= must | may, str(report)
        assert report.decision is decision, str(report)
