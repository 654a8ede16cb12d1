"""docs/architecture.md: what is generated is not stale, and the walks are what the code does."""

import ast
import re
from typing import NamedTuple

import pytest
from support.paths import ROOT
from tools.specs.pages import generated
from tools.specs.rooms import ROOMS

PAGE = ROOT / "docs" / "architecture.md"
TEXT = PAGE.read_text(encoding="utf-8")


class Hop(NamedTuple):
    """One step of a walk."""

    path: str
    name: str
    called: bool  # by the step before

    def __str__(self) -> str:
        return f"{self.path}#{self.name}"


def walks(text: str) -> dict[str, list[Hop]]:
    found = {}
    for title, body in re.findall(r"^### The walk of (.+?)\n(.*?)(?=^##)", text, re.MULTILINE | re.DOTALL):
        items = re.findall(r"^(\d+)\. (→ |⇢ )?\[`(.+?)`\]\(\.\./(.+?)#(.+?)\)", body, re.MULTILINE)
        assert [number for number, *_ in items] == re.findall(r"^(\d+)\.", body, re.MULTILINE)
        assert all(label == name for _, _, label, _, name in items)
        assert [number for number, arrow, *_ in items if not arrow] == ["1"]
        found[title] = [Hop(path, name, arrow == "→ ") for _, arrow, _, path, name in items]
    return found


WALKS = walks(TEXT)


def definition(hop: Hop) -> ast.AST:
    """Where the name is defined in the file: a function, a class, a method or a constant."""
    node: ast.AST = ast.parse((ROOT / hop.path).read_text(encoding="utf-8"))
    for part in hop.name.split("."):
        inner = [child for child in ast.iter_child_nodes(node) if part in defined(child)]
        assert len(inner) == 1, f"{hop.path} has no {hop.name}"
        node = inner[0]
    return node


def defined(node: ast.AST) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def mentions(hop: Hop, other: Hop) -> bool:
    """Whether the code of one step uses the name of another. A method is called by its own name, not its class's."""
    wanted = other.name.split(".")[-1]
    return any(wanted in (getattr(node, "id", None), getattr(node, "attr", None)) for node in ast.walk(definition(hop)))


def test_what_is_generated_is_not_stale() -> None:
    make = next(make for path, make in generated(ROOT / "specs").items() if path == PAGE)
    assert make() == TEXT, "run `make specs`"


def test_there_are_four_walks() -> None:
    assert [*WALKS] == ["a prompt", "a cancel", "a state in `check`", "a history in the kit"]
    assert all(len(walk) >= 8 for walk in WALKS.values())


@pytest.mark.parametrize("name", WALKS)
def test_each_step_of_a_walk_is_in_the_code_and_called_by_the_one_before(name: str) -> None:
    for before, hop in zip([None, *WALKS[name]], WALKS[name]):
        definition(hop)
        assert not hop.called or (before and mentions(before, hop)), f"{before} does not call {hop}"


@pytest.mark.parametrize("name", WALKS)
def test_most_steps_of_a_walk_are_calls(name: str) -> None:
    assert sum(hop.called for hop in WALKS[name]) >= len(WALKS[name]) // 2


def test_every_other_link_to_a_name_is_in_the_code() -> None:
    for path, name in re.findall(r"\]\(\.\./([\w/]+\.py)#([\w.]+)\)", TEXT):
        definition(Hop(path, name, called=False))


def test_a_step_that_is_not_so_is_noticed() -> None:
    send = WALKS["a prompt"][0]
    assert not mentions(send, WALKS["a state in `check`"][-1])
    with pytest.raises(AssertionError, match="has no"):
        definition(send._replace(name="nothing"))


def test_every_room_is_on_the_page() -> None:
    assert re.findall(r"^\| `([\w/]+)` \|", TEXT, re.MULTILINE) == list(ROOMS)
