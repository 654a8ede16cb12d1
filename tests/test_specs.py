"""What is generated in specs/ is not stale, and the rules that the model cites exist."""

import re
from pathlib import Path

import pytest
from test_explore import PINNED

from cancelmark.impl.specs import COUNTED, FILES, HEADER, SECTIONS, filled
from cancelmark.model.lifecycle import ROWS
from cancelmark.model.revisions.flaws import FLAWS
from cancelmark.model.revisions.matrix import Column
from cancelmark.model.session import ACTIONS
from cancelmark.model.views.tables import revisions_page

SPECS = Path(__file__).parent.parent / "specs"
PROTOCOL = (SPECS / "protocol.md").read_text()


@pytest.mark.parametrize("name", sorted(set(FILES) - {"revisions.md"}))
def test_a_generated_file_is_not_stale(name: str) -> None:
    assert (SPECS / name).read_text() == FILES[name](), "run `make specs`"


@pytest.mark.xdist_group("matrix")
def test_the_page_of_revisions_is_not_stale(columns: dict[str, Column]) -> None:
    assert (SPECS / "revisions.md").read_text() == HEADER + revisions_page(list(columns.values())), "run `make specs`"


def test_the_generated_sections_of_the_protocol_are_not_stale() -> None:
    quick = {name: make for name, make in SECTIONS.items() if name != "counts"}
    kept = re.search(r"<!-- generated: counts -->\n(.*?)<!-- end -->", PROTOCOL, re.DOTALL)
    assert kept
    assert filled(PROTOCOL, {**quick, "counts": lambda: kept[1]}) == PROTOCOL, "run `make specs`"


def test_the_published_counts_are_the_pinned_ones() -> None:
    assert set(COUNTED) == set(PINNED)
    for bounds, (states, edges, depth) in PINNED.items():
        assert f"| {bounds} | {states:,} | {edges:,} | {depth} | holds |" in PROTOCOL


def test_every_section_is_asked_for_once() -> None:
    assert sorted(re.findall(r"<!-- generated: (\w+) -->", PROTOCOL)) == sorted(SECTIONS)


def test_every_rule_that_is_cited_exists_and_every_rule_is_cited() -> None:
    rules = set(re.findall(r"^\*\*(R\d+) ", PROTOCOL, re.MULTILINE))
    rows_and_actions = {row.rule for row in ROWS} | {action.rule for action in ACTIONS}
    flaws = {rule for flaw in FLAWS for rule in re.findall(r"R\d+", flaw.ruled_out)}
    assert rows_and_actions | flaws == rules
    assert rules == {f"R{n}" for n in range(1, len(rules) + 1)}


@pytest.mark.parametrize("document", [*sorted(SPECS.glob("*.md")), SPECS.parent / "README.md"], ids=lambda p: p.name)
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text()
    for target in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        there = document.parent / path if path else document
        assert there.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", there.read_text(), re.MULTILINE)
            assert anchor in {h.lower().replace(" ", "-") for h in headings}, target
