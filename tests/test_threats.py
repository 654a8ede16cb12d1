"""The page on threats: each promise has a test, and the test is there."""

import ast
import re

from support.paths import ROOT

PAGE = ROOT / "specs" / "threats.md"


def test_every_promise_names_tests_that_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    tables = re.findall(r"\| promise \| tests \|\n\|---\|---\|\n((?:\|.*\n)+)", text)
    assert len(tables) == 5, "one for each kind of stranger"
    for row in "".join(tables).splitlines():
        assert re.search(r"\]\(\.\./tests/[\w/]+\.py#test_\w+\)", row.split("|")[2]), row
    named = set(re.findall(r"\]\(\.\./(tests/[\w/]+\.py)#(\w+)\)", text))
    assert len(named) > 30
    for file, name in named:
        functions = {node.name for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body
                     if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in functions, f"{file} has no {name}"
