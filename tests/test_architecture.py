"""Imports point one way, the model is pure, and the repository is what a newcomer expects."""

import ast
import re
import subprocess
from pathlib import Path

import pytest
from support.paths import ROOT

MODEL = sorted((ROOT / "model").rglob("*.py"))
IMPURE = {"asyncio", "io", "os", "pathlib", "random", "socket", "sqlite3", "subprocess", "sys", "tempfile",
          "threading", "time"}


def imports(path: Path) -> set[str]:
    """The modules that a file imports, relative imports written out from `cancelmark`."""
    package = ["cancelmark", *path.relative_to(ROOT).parts[:-1]]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[:len(package) - node.level + 1] if node.level else []
            found.add(".".join([*base, *([node.module] if node.module else [])]))
    return found


@pytest.mark.parametrize("path", MODEL, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_model_imports_nothing_of_impl_and_touches_no_world(path: Path) -> None:
    names = imports(path)
    assert not any(name.startswith("cancelmark.impl") for name in names)
    if "conformance" not in path.parts:
        assert not {name.split(".")[0] for name in names} & IMPURE


def test_the_oracle_shares_no_code_with_the_model() -> None:
    assert not any(name.startswith("cancelmark") for name in imports(ROOT / "model" / "oracle.py"))


def test_the_purity_test_would_notice() -> None:
    assert "os" in imports(ROOT / "impl" / "files.py")
    assert "cancelmark.model.session" in imports(ROOT / "model" / "server.py")


def test_no_state_is_assigned_outside_the_machine() -> None:
    """A prompt's state is set where a prompt is made, and otherwise by the machine alone."""
    for path in sorted((ROOT / "impl").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name != "__init__":
                for inner in ast.walk(node):
                    targets = inner.targets if isinstance(inner, ast.Assign) else []
                    assert not any(isinstance(t, ast.Attribute) and t.attr == "state" for t in targets), path


@pytest.mark.parametrize("target", [
    "review", "test", "mutants", "lint", "diagrams", "specs", "serve", "bench", "field", "help"])
def test_make_has_the_targets_that_the_readme_promises(target: str) -> None:
    assert re.search(rf"^{target}:.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_make_help_lists_every_target() -> None:
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "make review" in done.stdout
    assert len(done.stdout.splitlines()) >= 8
