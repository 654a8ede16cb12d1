"""Imports point one way, the model is pure, one machine moves prompts, and the repository is what a newcomer expects.

Each rule is a function of a source text, so that a test can show of each what it would notice.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from support.paths import ROOT
from tools.specs.rooms import ROOMS, imported_rooms, imports, room_of, sources

SOURCES = [ROOT / path for path in sources(ROOT)]

# What the model may import from outside: nothing that reads, writes, waits or asks what time it is.
PURE = frozenset({"abc", "collections", "dataclasses", "enum", "functools", "heapq", "itertools", "math", "operator",
                  "re", "types", "typing"})
ALSO = {
    "model/check/plain.py": {"contextlib", "gc"},  # the collector is off while it searches
    "model/check/fast": {"array", "ctypes"},
    "model/check/fast/kernel.py": {"os", "struct", "threading"},
    "model/check/fast/library.py": {"importlib", "os", "pathlib", "shutil", "subprocess", "sys", "tempfile"},
    "model/check/fast/memory.py": {"mmap"},
    "model/proof": {"z3"},
}
WORLD = frozenset({"open", "print", "input", "exec", "eval", "__import__"})  # built-in ways out

# Two modules that import each other, and why.
CYCLES = {
    frozenset({"impl/server/app.py", "impl/server/calls.py"}): "one of the calls answers what all calls are",
    frozenset({"impl/runtime/entry.py", "impl/runtime/environment.py", "impl/runtime/outbox.py"}):
        "an intent, and what outboxes share, name the outbox in their types",
}

# Who may set a prompt's state, apart from the machine of `transitions`.
SETTERS = {
    ("impl/runtime/session.py", "LivePrompt.__init__"): "a prompt is made accepted, or as the journal has it",
    ("conformance/schedule/loop.py", ""): "methods of the event loop are replaced, by their names",
}


def back_edges(source: str, path: str) -> list[str]:
    """The imports that point to a later room, or to no room."""
    mine = room_of(path)
    assert mine, f"{path} is in no room"
    return [name for name, room in imported_rooms(source, path)
            if room is None or ROOMS.index(room) > ROOMS.index(mine)]


def impurities(source: str, path: str) -> list[str]:
    """What a file of the model uses of the world."""
    allowed = PURE.union(*(more for where, more in ALSO.items() if f"{path}/".startswith(f"{where}/")))
    used = {name.split(".")[0] for name in imports(source, path)} - allowed - {"cancelmark"}
    called = {name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and (
        name := node.func.id if isinstance(node.func, ast.Name) else "") in WORLD}
    waits = {"async" for node in ast.walk(ast.parse(source)) if isinstance(node, ast.AsyncFunctionDef | ast.Await)}
    return sorted(used | called | waits)


def state_changes(source: str) -> list[tuple[str, int]]:
    """Where the source sets or deletes an attribute `state`: in which function, and on which line.

    The context of an attribute says so whatever the statement: tuple targets, `for`, `with`, `del`, `+=`, annotations.
    The rest are calls and `__dict__`. A call with a name that is not a literal could mean any attribute, and counts.
    """
    found = []

    def visit(node: ast.AST, where: tuple[str, ...]) -> None:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            where = (*where, node.name)
        if _sets_state(node):
            found.append((".".join(where), getattr(node, "lineno", 0)))
        for child in ast.iter_child_nodes(node):
            visit(child, where)

    visit(ast.parse(source), ())
    return found


def _sets_state(node: ast.AST) -> bool:
    changes = isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)
    if isinstance(node, ast.Attribute):
        return node.attr == "state" and changes
    if isinstance(node, ast.Subscript):  # vars(p)["state"] = …, p.__dict__["state"] = …
        return changes and _is_dict(node.value) and _may_be_state(node.slice)
    if not isinstance(node, ast.Call):
        return False
    if _name(node.func) in ("setattr", "delattr"):
        return _may_be_state(node.args[1])
    if _name(node.func) in ("__setattr__", "__delattr__"):  # of `object` with the prompt first, or of the prompt
        return any(isinstance(a, ast.Constant) and a.value == "state" for a in node.args)
    return (_name(node.func) in ("update", "setdefault", "pop") and isinstance(node.func, ast.Attribute)
            and _is_dict(node.func.value))


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _is_dict(node: ast.AST) -> bool:
    return _name(node) == "__dict__" or (isinstance(node, ast.Call) and _name(node.func) == "vars")


def _may_be_state(node: ast.AST) -> bool:
    return not isinstance(node, ast.Constant) or node.value == "state"


def cycles(edges: dict[str, set[str]]) -> Iterator[frozenset[str]]:
    """The largest sets of modules of which each imports each other, at last."""
    def reached(start: str) -> set[str]:
        seen, todo = set[str](), [start]
        while todo:
            for following in edges.get(todo.pop(), set()) - seen:
                seen.add(following)
                todo.append(following)
        return seen

    whole = {module: reached(module) for module in edges}
    yield from {frozenset(other for other in whole[module] if module in whole.get(other, ()))
                for module in edges if module in whole[module]}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# --- the rules

@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_imports_point_to_earlier_rooms(path: Path) -> None:
    assert not back_edges(path.read_text(), relative(path))


def test_no_two_modules_import_each_other() -> None:
    known = {".".join(["cancelmark", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__"):
             relative(path) for path in SOURCES}
    edges = {relative(path): {known[module] for name in imports(path.read_text(), relative(path))
                              if (module := name if name in known else name.rpartition(".")[0]) in known}
             for path in SOURCES}
    assert set(cycles(edges)) == set(CYCLES)


@pytest.mark.parametrize("path", [path for path in SOURCES if relative(path).startswith("model/")], ids=relative)
def test_the_model_is_pure(path: Path) -> None:
    assert not impurities(path.read_text(), relative(path))


def test_every_exception_to_purity_is_needed() -> None:
    used = {where: {name.split(".")[0] for path in [ROOT / where, *(ROOT / where).rglob("*.py")] if path.is_file()
                    for name in imports(path.read_text(), relative(path))} & more for where, more in ALSO.items()}
    assert used == ALSO


@pytest.mark.parametrize("path", ["model/lifecycle.py", "model/oracle.py"])
def test_the_first_page_and_the_oracle_depend_on_nothing(path: str) -> None:
    """The life of a prompt is read alone; the oracle shares no code with what it judges."""
    assert {name.split(".")[0] for name in imports((ROOT / path).read_text(), path)} <= sys.stdlib_module_names


def test_the_proof_shares_no_code_with_the_model() -> None:
    for path in (ROOT / "model" / "proof").glob("*.py"):
        ours = {name for name in imports(path.read_text(), relative(path)) if name.startswith("cancelmark")}
        assert all(name.startswith("cancelmark.model.proof") for name in ours), path


def test_no_state_is_assigned_outside_the_machine() -> None:
    """A prompt's state is set where a prompt is made, and otherwise by the machine alone."""
    found = {(relative(path), where) for path in SOURCES for where, _ in state_changes(path.read_text())}
    assert found == set(SETTERS)


# --- what the rules would notice

@pytest.mark.parametrize(("path", "source"), [
    ("model/session.py", "from cancelmark.views.traces import content"),
    ("model/session.py", "def f():\n    from cancelmark.views.notebook import table"),
    ("model/session.py", "from .check import explore"),
    ("model/session.py", "from . import check"),
    ("model/check/plain.py", "from ..revisions.r0 import R0"),
    ("views/pages/tables.py", "if TYPE_CHECKING:\n    import cancelmark.conformance.kit"),
    ("views/pages/tables.py", "async def f():\n    import cancelmark.impl"),
    ("conformance/trace/check.py", "from ..kit import judge"),
    ("conformance/kit.py", "importlib.import_module('cancelmark.impl.cli.main')"),
    ("impl/store/sqlite.py", "from ..runtime import Runtime"),
    ("impl/cli/main.py", "from ...bench import plot"),
    ("model/session.py", "from cancelmark import judge"),  # the public names know all rooms
])
def test_an_import_of_a_later_room_is_noticed(path: str, source: str) -> None:
    assert back_edges(source, path)


def test_an_import_of_an_earlier_room_is_fine() -> None:
    assert not back_edges("from ...model.session import Prompt\nfrom .theme import LIGHT", "views/drawing/plots.py")
    assert not back_edges("from . import lifecycle", "model/session.py")


@pytest.mark.parametrize("source", [
    "import time", "from os import path", "def f():\n    import asyncio", "import random as chance",
    "import transitions", "open('file')", "async def f(): ...", "print(1)"])
def test_an_impure_model_is_noticed(source: str) -> None:
    assert impurities(source, "model/session.py")
    assert not impurities("from collections import deque\nimport re\ns.open", "model/session.py")


@pytest.mark.parametrize("source", [
    "p.state = ACTIVE", "p.state: State = ACTIVE", "p.state += 1", "p.state, x = ACTIVE, 1", "[x, *p.state] = y",
    "a = p.state = ACTIVE", "for p.state in y: ...", "for x, p.state in y: ...", "[x for p.state in y]",
    "with y as p.state: ...", "with y as (x, p.state): ...", "del p.state", "del x, p.state",
    "async def f():\n    p.state = ACTIVE", "async def f():\n    async for p.state in y: ...",
    "async def f():\n    async with y as p.state: ...", "class C:\n    def __init__(self): self.state = ACTIVE",
    "self.prompt.state = ACTIVE", "prompts[0].state = ACTIVE", "(lambda: setattr(p, 'state', ACTIVE))()",
    "setattr(p, name, ACTIVE)", "delattr(p, 'state')", "object.__setattr__(p, 'state', ACTIVE)",
    "p.__setattr__('state', ACTIVE)", "super().__setattr__('state', ACTIVE)", "builtins.setattr(p, 'state', ACTIVE)",
    "p.__dict__['state'] = ACTIVE", "vars(p)['state'] = ACTIVE", "p.__dict__.update(state=ACTIVE)",
    "vars(p).update({'state': ACTIVE})"])
def test_an_assignment_of_a_state_is_noticed(source: str) -> None:
    assert state_changes(source)


@pytest.mark.parametrize("source", [
    "state = p.state", "p.states = 1", "f(state=ACTIVE)", "p.state == ACTIVE", "setattr(p, 'outcome', x)",
    "d['state'] = ACTIVE", "{p.state: 1}", "p.state.value", "object.__setattr__(p, 'table', x)"])
def test_a_look_at_a_state_is_fine(source: str) -> None:
    assert not state_changes(source)


def test_an_assignment_is_told_with_its_place() -> None:
    assert state_changes("class C:\n    async def f(self):\n        x, self.state = y") == [("C.f", 3)]


def test_a_cycle_of_imports_is_noticed() -> None:
    assert set(cycles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()})) == {frozenset({"b", "c"})}


# --- what a newcomer expects

@pytest.mark.parametrize("target", [
    "review", "test", "mutants", "lint", "diagrams", "specs", "serve", "bench", "field", "help"])
def test_make_has_the_targets_that_the_readme_promises(target: str) -> None:
    assert re.search(rf"^{target}:.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_make_help_lists_every_target() -> None:
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "make review" in done.stdout
    assert len(done.stdout.splitlines()) >= 8


# --- tests

TESTS = sorted((ROOT / "tests").rglob("*.py"))


def test_what_make_test_leaves_out_is_run_before_a_change_lands() -> None:
    targets = re.findall(r"^make ([\w-]+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert {"test", "test-all"} <= set(targets)


def test_no_random_test_fails_because_the_machine_is_busy() -> None:
    assert settings().deadline is None


def test_no_test_module_is_imported() -> None:
    """What several of them need is in `support`, so that one folder on the path is enough."""
    modules = {path.stem for path in TESTS if path.stem.startswith("test_")}
    for path in TESTS:
        named = {part for name in imports(path.read_text(), relative(path)) for part in name.split(".")}
        assert not named & modules, path
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["tool"]["pytest"]["ini_options"]["pythonpath"] == ["tests"]


def test_test_modules_have_names_of_their_own() -> None:
    """As long as they are in no package, pytest can tell them apart by nothing else."""
    names = [path.stem for path in TESTS if path.stem.startswith("test_")]
    assert len(names) == len(set(names))
