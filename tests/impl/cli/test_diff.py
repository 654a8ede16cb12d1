"""Two revisions or two traces side by side."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.commands import run_command

from cancelmark.impl.cli.itf import load, save
from cancelmark.impl.cli.main import main
from cancelmark.model.check.comparison import compare, first_difference
from cancelmark.model.protocol import REFERENCE, Protocol
from cancelmark.model.revisions import REVISIONS
from cancelmark.model.revisions.matrix import Column
from cancelmark.model.trace import replay

R0, R1, R2, R3, R4 = REVISIONS


def diff(*arguments: str, code: int = 0) -> str:
    said = run_command("diff", *arguments, code=code)
    return said.stderr if code else said.stdout


@pytest.fixture
def searched(columns: dict[str, Column], monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdicts that other tests have searched for already."""
    monkeypatch.setattr("cancelmark.impl.cli.diff.column", lambda behaviour, watch: columns[behaviour.name])


@pytest.mark.usefixtures("searched")
def test_two_revisions_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "r3", "r4", "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert report["actions"]["only_r4"] == ["close", "clear_queue…", "close…"]
    assert report["actions"]["only_r3"] == []
    step = report["actions"]["different"]["step"]
    assert step["r4"] == "not possible"
    assert "B folds into A" in step["r3"]
    assert {id for id, p in report["properties"].items() if p["changed"]} == {"no-absorption", "closed"}
    assert report["flaws"]["repaired"] == ["run-id-folded", "run-id-dropped-silently", "outer-event-suppressed"]
    assert report["first_difference"]["call"] == "return(A)"
    assert report["first_difference"]["after"] == ["accept(A)", "fail(A)"]


@pytest.mark.usefixtures("searched")
def test_two_revisions_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "r0", "r1"]) == 0
    said = capsys.readouterr().out
    assert "actions only in r1: enter, settle" in said
    assert "properties whose verdict changes:\n  record: – → holds\n\n" in said, "all that r0 breaks r1 breaks too"
    assert "flaws introduced (5): sibling-survives-cancel" in said
    assert "the first step that differs is step 2" in said
    assert main(["diff", "r3", "r4"]) == 0
    assert "no-absorption: fails 5 → holds" in capsys.readouterr().out


def test_the_first_difference_of_an_action_comes_after_a_shortest_history() -> None:
    compared = compare(R1, R2)
    assert compared.only == ([], [])
    cancel = compared.differences["enter"]
    assert [str(step.call) for step in cancel.histories[0].steps] == ["accept(A)", "cancel", "accept(B)"]
    assert cancel.call == "enter(B)", "r1's flag is eaten by the later prompt, r2's mark is not"


def test_a_protocol_does_not_differ_from_itself() -> None:
    compared = compare(R2, R2, most=300)
    assert compared.differences == {}
    assert not compared.complete
    whole = compare(REFERENCE, REFERENCE)
    assert whole.differences == {}
    assert whole.complete


def test_a_seeded_difference_is_found() -> None:
    rows = tuple(row for row in REFERENCE.rows if row.name != "fold→done")
    other = Protocol("no fold", rows=rows, actions=tuple(a for a in REFERENCE.actions if a.name != "step"))
    assert compare(REFERENCE, other).only == (["step"], [])
    strict = Protocol("strict", rows=tuple(row for row in REFERENCE.rows if row.name != "fail→canceled_on_entry"))
    compared = compare(REFERENCE, strict)
    assert list(compared.differences) == ["fail"]
    assert compared.first
    assert compared.first.number == 3
    assert compared.first.steps[1] is None


# --- traces

def test_two_traces(tmp_path: Path) -> None:
    calls = ["accept A", "cancel", "accept B", "enter B", "enter A"]
    for protocol in (R1, REFERENCE):
        save(tmp_path / f"{protocol.name}.json", protocol, replay(protocol, calls))
    a, b = str(tmp_path / "r1.json"), str(tmp_path / "ref.json")
    report = json.loads(diff(a, b, "--json"))
    assert report["first_difference"] == 4
    assert [step["same"] for step in report["steps"]] == [True, True, True, False, False]
    assert report["broken"] == {"a": {"no-poisoning": 4, "no-lost-cancel": 5}, "b": {}}
    said = diff(a, b)
    assert "the first step that differs is step 4" in said
    assert "breaks: no-poisoning (step 4), no-lost-cancel (step 5)" in said
    assert "the traces do not differ" in diff(a, a)


def test_a_trace_that_is_longer_differs_after_the_end_of_the_other() -> None:
    short, long = replay(REFERENCE, ["accept A"]), replay(REFERENCE, ["accept A", "enter A"])
    difference = first_difference(short, long)
    assert difference
    assert (difference.number, difference.steps[0]) == (2, None)
    assert first_difference(long, long) is None


def test_saved_traces_come_back(tmp_path: Path) -> None:
    trace = replay(R0, ["accept A", "look A", "cancel", "begin A"])
    save(tmp_path / "t.json", R0, trace)
    assert load(tmp_path / "t.json") == (R0, trace)


@pytest.mark.parametrize(("arguments", "problem"), [
    (("r4", "r9"), "diff r9: neither a protocol (r0, r1, r2, r3, r4, ref, family (every call that the server "),
    (("r8", "r9"), "diff r8: neither a protocol (r0, r1, r2, r3, r4, ref, family (every call that the server "),
    (("r4", "pyproject.toml"), "give two protocols (r0, r1, r2, r3, r4, ref, family) or two files"),
    (("r4",), "diff: give two protocols or two trace files"),
])
def test_bad_usage(arguments: tuple[str, ...], problem: str) -> None:
    [line] = diff(*arguments, code=2).splitlines()
    assert problem in line
