"""Every clause of the specification is carried by the model and by a test of the runtime, and none is made up."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.paths import ROOT
from tools.specs.pages import HEADER
from tools.specs.rules import CLAUSE, Traceability, page, rules, traced

from cancelmark.model.actions import ACTIONS
from cancelmark.model.examples import EXAMPLES
from cancelmark.model.protocol import FAMILY
from cancelmark.model.revisions.flaws import FLAWS

PROTOCOL = (ROOT / "specs" / "protocol.md").read_text(encoding="utf-8")
RULES = {rule.id: rule for rule in rules(PROTOCOL)}
CLAUSES = {clause: says for rule in RULES.values() for clause, says in rule.clauses.items()}


@pytest.fixture(scope="module")
def found() -> Traceability:
    return traced(ROOT)


def test_every_clause_is_carried_by_the_model_and_by_a_test_of_the_runtime(found: Traceability) -> None:
    assert found.gaps() == []


def test_nothing_cites_a_clause_that_does_not_exist(found: Traceability) -> None:
    assert found.unknown == []
    prose = [flaw.ruled_out for flaw in FLAWS] + [example.rule for example in EXAMPLES] + [PROTOCOL]
    cited = {id for text in prose for id in re.findall(rf"\b{CLAUSE}\b", text)} | {a.rule for a in ACTIONS}
    assert cited <= RULES.keys() | CLAUSES.keys()


def test_rules_and_clauses_are_numbered_without_gaps() -> None:
    assert list(RULES) == [f"R{n}" for n in range(1, len(RULES) + 1)]
    for rule in RULES.values():
        letters = [clause.removeprefix(rule.id) for clause in rule.clauses]
        assert letters in ([""], [chr(ord("a") + n) for n in range(len(letters))]), rule.id
    assert len(re.findall(r"\*\*R\d+[a-z]?\b", PROTOCOL)) == len(CLAUSES.keys() | RULES.keys())  # none is missed


def test_a_clause_says_how_binding_it_is() -> None:
    for clause, says in CLAUSES.items():
        assert re.search(r"\b(MUST|SHOULD|MAY)\b", says), clause
        assert not re.search(r"\b[Nn]othing\b[^.:;]* MUST\b", says), f"{clause}: who must not do what?"


def test_the_page_is_not_stale(found: Traceability) -> None:
    assert (ROOT / "specs" / "traceability.md").read_text(encoding="utf-8") == HEADER + page(found), "run `make specs`"


# --- What the check would notice ----------------------------------------------------------------------------------

def project(directory: Path, *, protocol: str = PROTOCOL, tests: Mapping[str, str] | None = None) -> Path:
    """A project with another specification, or with these tests only."""
    (directory / "specs").mkdir()
    (directory / "specs" / "protocol.md").write_text(protocol)
    (directory / "specs" / "cluster.md").symlink_to(ROOT / "specs" / "cluster.md")
    for room in ("model", "conformance"):
        (directory / room).symlink_to(ROOT / room)
    if tests is None:
        (directory / "tests").symlink_to(ROOT / "tests")
    for file, text in (tests or {}).items():
        path = directory / "tests" / file
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return directory


def test_a_rule_that_nothing_carries_is_two_gaps(tmp_path: Path, found: Traceability) -> None:
    added = PROTOCOL + "\n**R99 News.**\n- **R99a** Somebody MUST do something.\n"
    assert set(traced(project(tmp_path, protocol=added)).gaps()) - set(found.gaps()) == {
        f"R99a is not cited in the {column}" for column in ("model", "tests of the runtime")}


def test_a_clause_that_was_taken_away_is_missed_wherever_it_is_cited(tmp_path: Path) -> None:
    unknown = traced(project(tmp_path, protocol=PROTOCOL.replace("- **R9c** ", "  "))).unknown
    assert {line.split(" cites ")[0] for line in unknown} >= {
        "action step", "property no-late-fold",
        "model/test_clauses::test_a_turn_that_is_covered_folds_nothing_and_a_run_id_is_never_folded"}


def test_only_marked_tests_carry_a_clause_and_only_those_that_run_it_carry_it_for_the_runtime(tmp_path: Path) -> None:
    marked = '''
@pytest.mark.parametrize("x", [1])
@pytest.mark.rule("R4", "R5a")
async def test_one(x):
    """(R7a)"""
@pytest.mark.skip("R6a")
def test_two():
    pass
TABLE = [Behaviour("three in a table", marks=pytest.mark.rule("R9a")), Behaviour("four", "R9b")]
'''
    tests = {"impl/test_it.py": marked, "model/test_it.py": '@pytest.mark.rule("R6a")\ndef test_model(): pass'}
    carriers = traced(project(tmp_path, tests=tests)).carriers
    assert carriers["tests of the runtime"] == {
        "R4": ["impl/test_it::test_one"], "R5a": ["impl/test_it::test_one"], "R9a": ["impl/test_it::three in a table"]}
    assert carriers["other tests"] == {"R6a": ["model/test_it::test_model"]}


def test_a_mark_that_is_no_plain_string_is_refused(tmp_path: Path) -> None:
    tests = {"impl/test_it.py": "@pytest.mark.rule(NAME)\ndef test_one(): pass"}
    with pytest.raises(ValueError, match=r"test_one: the arguments of pytest\.mark\.rule must be"):
        traced(project(tmp_path, tests=tests))


def test_the_rows_carry_what_they_did_when_the_specification_was_numbered() -> None:
    """Whoever cites a rule elsewhere, as the flaws do, must be able to rely on its number."""
    by_rule = {(row.trigger.value, row.dest.value): re.sub("[a-z]$", "", row.rule) for row in FAMILY.rows}
    assert by_rule == {
        ("enter", "canceled_on_entry"): "R4", ("enter", "queued"): "R5", ("enter", "active"): "R6",
        ("fail", "canceled_on_entry"): "R8", ("fail", "done"): "R8", ("settle", "done"): "R7",
        ("start", "active"): "R11", ("fold", "done"): "R9", ("drop", "done"): "R13", ("requeue", "queued"): "R10",
        ("finish_end_turn", "done"): "R11", ("finish_error", "done"): "R11", ("finish_canceled", "done"): "R12",
        ("interrupt", "done"): "R17", ("requeue", "active"): "R32"}
    assert {action.name: action.rule for action in ACTIONS} == {
        "accept": "R1", "enter": "R3", "fail": "R8", "settle": "R7", "step": "R9", "requeue": "R10", "finish": "R11",
        "cancel": "R12", "clear_queue": "R13", "close": "R15", "crash": "R16", "recover": "R17"}
