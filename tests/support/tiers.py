"""Which tests `make test` runs: those that stay inside their own process, and a short one of each real part (`smoke`).

A real part is a child process or a listening socket. PostgreSQL, a browser, SPIN, a notebook's kernel and an install
are child processes. Pytest marks a test `real` when it collects it, if the test names a real part: in its own code, or
in that of a fixture or helper of the tests that it names. So no list of tests has to be kept.

Names do not tell everything: a test can start a process through the product. So every run is guarded. The interpreter
reports child processes and listening sockets (PEP 578), and a test that uses one without the mark fails.
"""

import inspect
import multiprocessing.util
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

TESTS = str(Path(__file__).parents[1])
REAL_PARTS = frozenset({
    "subprocess", "create_subprocess_exec", "ServerProcess", "start_server", "create_server", "run_server", "bind",
    "sync_playwright", "FakeModel", "spin", "make_review"})
CHOSEN = frozenset({"shared_server", "shared_database"})  # often a parameter chooses them, which then has the mark
REAL_PART = "cancelmark.real_part"  # what a helper reports that shares a real part between tests
EVENTS = frozenset({
    REAL_PART, "subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.system", "socket.bind"})


@cache
def names_real_part(start: Callable[..., object]) -> bool:
    """Whether this function names a real part, or a function or class of the tests that does."""
    waiting: list[object] = [start]
    met: set[int] = set()
    while waiting:
        if id(found := waiting.pop()) not in met:
            met.add(id(found))
            for function in _functions(found):
                names, helpers = _read(function)
                if names & REAL_PARTS:
                    return True
                waiting += helpers
    return False


_listed: dict[int, tuple[object, list[FunctionType]]] = {}  # with the object, so that its id is not given out again


def _functions(found: object) -> list[FunctionType]:
    """What `_list_functions` lists. Most helpers are named by many tests."""
    if id(found) not in _listed:
        _listed[id(found)] = found, list(_list_functions(found))
    return _listed[id(found)][1]


def _list_functions(found: Any) -> Iterator[FunctionType]:
    """A function of the tests as it was written, without its decorators; or all functions of a class of the tests."""
    members = [value for base in found.__mro__ for value in vars(base).values()] if inspect.isclass(found) else [found]
    for member in members:
        if isinstance(member, property):
            member = member.fget
        member = getattr(member, "__func__", member)
        if hypothesis := getattr(member, "hypothesis", None):
            member = hypothesis.inner_test
        if callable(member):
            member = inspect.unwrap(member)
        if isinstance(member, FunctionType) and member.__code__.co_filename.startswith(TESTS):
            yield member


@cache
def _read(function: FunctionType) -> tuple[frozenset[str], list[object]]:
    """The names in a function's code, and the functions and classes that they stand for."""
    names = _names(function.__code__)
    known = {name: function.__globals__[name] for name in (names & function.__globals__.keys()) - CHOSEN}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        known[name] = cell.cell_contents
    return names, [value for value in known.values() if callable(value)]


def _names(code: CodeType) -> frozenset[str]:
    return frozenset(code.co_names).union(*(_names(part) for part in code.co_consts if isinstance(part, CodeType)))


class _Guard:
    """Real parts that the test of this moment has used."""

    def __init__(self) -> None:
        self.used: list[str] = []
        sys.addaudithook(self._notice)
        spawn = multiprocessing.util.spawnv_passfds  # it alone reports nothing

        def report_and_spawn(path: bytes, *arguments: Any) -> int:
            self.used.append(f"multiprocessing({path!r})")
            return spawn(path, *arguments)

        multiprocessing.util.spawnv_passfds = report_and_spawn

    def _notice(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in EVENTS:
            self.used.append(f"{event}{arguments[:2]}")


_guard = _Guard()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and any(map(names_real_part, _used(item))):
            item.add_marker(pytest.mark.real)


def _used(item: pytest.Function) -> Iterator[Callable[..., object]]:
    """The functions and classes that a test has: its own, those of its fixtures, and those in its parameters."""
    yield getattr(item.obj, "__func__", item.obj)
    for fixtures in item._fixtureinfo.name2fixturedefs.values():
        yield from (fixture.func for fixture in fixtures)
    for value in item.callspec.params.values() if hasattr(item, "callspec") else ():
        parts = (value, *getattr(value, "__dict__", {}).values()) if not inspect.isclass(value) else (value,)
        yield from (part for part in parts if isinstance(part, type | FunctionType))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    _guard.used.clear()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    result = yield
    if _guard.used and item.get_closest_marker("real") is None:
        pytest.fail(f"this test uses a real part ({_guard.used[0]}): stay inside the process, "
                    "or mark the test with @pytest.mark.real, which leaves it to `make test-all`", pytrace=False)
    return result
