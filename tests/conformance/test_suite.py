"""A project that has the wheel and a pytest gets the whole suite in a test file of two lines."""

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.budget import long
from support.installs import plain_install, run_in
from support.paths import SUPPORT

from cancelmark.conformance.adapter.guarantees import ORDER
from cancelmark.conformance.playing.scenarios import SCENARIOS

TWO_LINES = """\
from cancelmark.conformance.suite import ConformanceSuite
class TestMine(ConformanceSuite): adapter = "mine:MyAdapter"
"""
ADAPTER = (SUPPORT / "samples" / "naive.py").read_text() + """

class MyAdapter(NaiveAdapter):
    pass
"""
HISTORIES = """\
from cancelmark.conformance.profile import Profile
from cancelmark.conformance.suite import ConformanceSuite

class TestAgain(ConformanceSuite):
    adapter = "mine.py:MyAdapter"
    profile = Profile("none", histories=0, schedules=0, inside=0, repeats=0, shrinks=0, seconds=0)
    times = 2
    histories = ["accept A", "accept A; accept B; fail"]
"""
PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "-W", "error", "-rfs", "-q")


@pytest.mark.parametrize("version", [long(8), 9])
def test_two_lines_are_a_suite(version: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    python = plain_install(tmp_path_factory) if version == 8 else sys.executable
    (tmp_path / "test_mine.py").write_text(TWO_LINES)
    (tmp_path / "mine.py").write_text(ADAPTER)
    assert f"pytest {version}." in run_in(python, tmp_path, "-m", "pytest", "--version").stdout
    done = run_in(python, tmp_path, *PYTEST, "--junitxml", "times.xml")
    assert done.stderr == ""
    assert "FAILED test_mine.py::TestMine::test_guarantee[no-lost-cancel]" in done.stdout
    assert "FAILED test_mine.py::TestMine::test_scenario[queue-stranded-by-error]" in done.stdout
    assert ("no-lost-cancel is broken: A was accepted, then the server acknowledged a cancel; the turn of A is running "
            "nevertheless (waited ") in done.stdout
    assert "script: accept A, cancel" in done.stdout
    assert "reproduce with: TestMine.histories = ['accept A; accept B; fail']" in done.stdout
    assert "turn of A starts ─" in done.stdout
    assert "the adapter cannot close the server" in done.stdout
    assert "Traceback" not in done.stdout
    times = {str(case.get("name")): float(case.get("time", "")) for case in
             ElementTree.parse(tmp_path / "times.xml").iter("testcase")}
    assert len(times) == len(ORDER) + len(SCENARIOS)
    guarantees = [times[f"test_guarantee[{p.id}]"] for p in ORDER]
    assert sum(guarantees) > 0.5 * sum(times.values())
    assert max(guarantees) < 0.7 * sum(guarantees)  # each carries its own, and not the first everybody's
    assert sum(seconds > 0.01 for seconds in guarantees) >= 8


def test_what_is_required_fails_if_it_was_not_tested_and_what_was_found_before_a_stop_is_told(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(f"{TWO_LINES}    require = ['fifo', 'no-loss']\n".replace(
        ': adapter', ':\n    adapter'))
    (tmp_path / "mine.py").write_text(f"{ADAPTER[:-9]}    async def shut(self): raise KeyError('shut')\n")
    done = run_in(sys.executable, tmp_path, *PYTEST, "-k", "test_guarantee")
    assert "FAILED test_mine.py::TestMine::test_guarantee[no-lost-cancel]" in done.stdout, done.stdout
    assert "no-loss is required, but not observable: the adapter cannot restart the server" in done.stdout
    assert "SKIPPED" in done.stdout
    (tmp_path / "test_mine.py").write_text(TWO_LINES.replace(': adapter', ': require = ["speed"]; adapter'))
    assert "TestMine.require: unknown guarantee speed" in run_in(sys.executable, tmp_path, *PYTEST).stdout


def test_histories_are_tests_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "test_again.py").write_text(HISTORIES)
    (tmp_path / "mine.py").write_text(ADAPTER)
    done = run_in(sys.executable, tmp_path, *PYTEST, "-k", "test_history")
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "FAILED test_again.py::TestAgain::test_history[accept A; accept B; fail]" in done.stdout
    assert "accept A; accept B; fail: all-done broken in 2 of 2 runs" in done.stdout
    (tmp_path / "test_again.py").write_text(HISTORIES.replace("accept A;", "explode;"))
    done = run_in(sys.executable, tmp_path, *PYTEST, "--collect-only")
    assert "script 'explode; accept B; fail': unknown action 'explode'" in done.stdout
