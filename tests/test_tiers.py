"""A test's tier follows from what it uses, and a test in the wrong tier fails."""

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.budget import long, one_for_each
from support.commands import run_process
from support.servers import Process, serving
from support.tiers import names_real_part

pytest_plugins = ["pytester"]


def starts_a_process() -> None:
    subprocess.run(["true"], check=True)


class Starter:
    def start(self) -> None:
        starts_a_process()


@contextmanager
def started() -> Iterator[None]:
    Starter().start()
    yield


def uses_a_helper() -> None:
    with started():
        pass


def uses_it_inside() -> None:
    async def main() -> None:
        async with serving():
            pass

    asyncio.run(main())


def stays_inside() -> None:
    assert sum([1, 2]) == 3


@pytest.mark.parametrize("function", [starts_a_process, uses_a_helper, uses_it_inside, run_process, Process])
def test_what_names_a_real_part_is_real_by_whatever_way(function: object) -> None:
    assert names_real_part(function)


def test_what_stays_inside_is_not_real() -> None:
    assert not names_real_part(stays_inside)


PARTS = {
    "a process": "import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', ''], check=True)",
    "a fork": "import os; pid = os.fork(); os._exit(0) if pid == 0 else os.waitpid(pid, 0)",
    "a socket": "import socket; socket.create_server(('127.0.0.1', 0)).close()",
    "a spawn": "from multiprocessing.util import spawnv_passfds; import os, sys; os.waitpid("
               "spawnv_passfds(os.fsencode(sys.executable), [sys.executable, '-S', '-c', ''], []), 0)",
}


@pytest.mark.real
@pytest.mark.smoke
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("where", ["test", "fixture"])
def test_a_real_part_without_the_mark_fails_the_test_that_uses_it(
    part: str, where: str, pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest("pytest_plugins = ['support.tiers']")
    pytester.makeini("[pytest]\nmarkers = real")
    used = f"""
        import pytest

        @pytest.fixture
        def part():
            {PARTS[part] if where == "fixture" else "pass"}

        @pytest.mark.real
        def test_marked(part):
            {PARTS[part] if where == "test" else "pass"}

        def test_unmarked(part):
            {PARTS[part] if where == "test" else "pass"}

        def test_after_it():
            pass
    """
    pytester.makepyfile(used)
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*this test uses a real part*make test-all*"])


def test_each_property_has_one_bug_in_the_fast_tier() -> None:
    breaks = {"one": ["a"], "again": ["a"], "more": ["a", "b"]}
    assert one_for_each(breaks.__getitem__, breaks) == ["one", long("again"), "more"]
