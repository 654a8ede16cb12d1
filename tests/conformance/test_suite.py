"""A project gets the whole suite in a test file of five lines, with the pytest that it has."""

import sys
from pathlib import Path

import pytest
from support.installs import plain_install, run_in

from cancelmark.conformance.report import ORDER
from cancelmark.conformance.scenarios import SCENARIOS

TEST_FILE = """\
from cancelmark.conformance.naive import NaiveAdapter
from cancelmark.conformance.suite import ConformanceSuite

class TestMine(ConformanceSuite):
    adapter = NaiveAdapter
"""
PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "-W", "error", "-rfs", "-q")


@pytest.mark.parametrize("version", [8, 9])
def test_five_lines_are_a_suite(version: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    python = plain_install(tmp_path_factory) if version == 8 else sys.executable
    (tmp_path / "test_mine.py").write_text(TEST_FILE)
    assert f"pytest {version}." in run_in(python, tmp_path, "-m", "pytest", "--version").stdout
    where = run_in(python, tmp_path, *PYTEST, "--collect-only").stdout
    assert f"{len(ORDER) + len(SCENARIOS)} tests collected" in where
    done = run_in(python, tmp_path, *PYTEST)
    assert done.stderr == ""
    assert "FAILED test_mine.py::TestMine::test_guarantee[no-lost-cancel]" in done.stdout
    assert "FAILED test_mine.py::TestMine::test_scenario[queue-stranded-by-error]" in done.stdout
    assert "no-lost-cancel is broken: A was accepted before a cancel that was answered, and its turn goes on." in (
        done.stdout)
    assert "what was done: accept A, cancel" in done.stdout
    assert "turn of A starts ─" in done.stdout
    assert "the adapter cannot close the server" in done.stdout
    assert "Traceback" not in done.stdout
