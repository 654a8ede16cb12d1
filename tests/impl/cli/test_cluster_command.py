"""`cancelmark check --cluster` and `cancelmark explain` of a cluster's flaws."""

import json
import re

import pytest
from support.commands import read_refusal, run_command

from cancelmark.model.cluster.flaws import ALL_FLAWS


def test_bounds_that_are_given_are_searched_and_hold() -> None:
    said = run_command("check", "--cluster", "--prompts", "1", "--kills", "1").stdout
    assert "prompts=1 kills=1" in said
    assert said.rstrip().endswith("verdict=holds")


def test_a_report_as_json_says_the_same() -> None:
    report = json.loads(run_command("check", "--cluster", "--prompts", "1", "--kills", "1", "--json").stdout)
    search, = report["searches"]
    assert (report["verdict"], search["verdict"], search["violations"]) == ("holds", "holds", {})


def test_a_flaw_is_a_violation_with_its_history() -> None:
    said = run_command("check", "--cluster", "--flaw", "message-unfenced", code=1).stdout
    assert "fenced is violated; a shortest trace, 5 steps" in said
    assert "a: message of A" in said


def test_liveness_says_that_there_is_no_way_on() -> None:
    said = run_command("check", "--cluster", "--flaw", "claim-only", code=1).stdout
    assert "all-ends is violated; a shortest trace, after which the property can no longer hold, 3 steps" in said


def test_a_limit_leaves_nothing_claimed() -> None:
    arguments = ("check", "--cluster", "--prompts", "2", "--cancels", "2", "--kills", "1", "--max-states", "9")
    assert "verdict=incomplete" in run_command(*arguments, code=2).stdout


@pytest.mark.parametrize(("arguments", "words"), [
    (["--kills", "1"], "--kills requires --cluster"),
    (["--flaw", "claim-only"], "--flaw requires --cluster"),
    (["--cluster", "--flaw", "nothing"], "--flaw nothing: no such cluster flaw; choose one of version-ignored"),
    (["--cluster", "--flaw", "claim-only", "--kills", "1"], "--flaw sets its own bounds"),
    (["--cluster", "--kills", "10"], "--kills 10: must be from 0 to 9"),
    (["--cluster", "--crashes", "1"], "--crashes and --cluster are mutually exclusive"),
    (["--cluster", "--engine", "fast"], "--engine and --cluster are mutually exclusive"),
    (["--cluster", "--deep", "--kills", "1"], "--kills and --deep are mutually exclusive"),
    (["--cluster", "--protocol", "r0", "--kills", "1"], "--protocol r0: --cluster supports only ref, family"),
])
def test_what_cannot_be_searched_is_refused(arguments: list[str], words: str) -> None:
    assert words in read_refusal("check", *arguments)


def test_explain_tells_a_flaw_of_a_cluster() -> None:
    said = run_command("explain", "claim-only").stdout
    assert "breaks all-ends; violates C4b of specs/cluster.md" in said
    assert "  3  a is killed" in said
    assert json.loads(run_command("explain", "claim-only", "--json").stdout)["calls"][-1] == "a is killed"
    assert run_command("explain", "claim-only", "--format", "svg").stdout.startswith("<svg")


def test_explain_lists_the_flaws_of_a_cluster() -> None:
    said = run_command("explain").stdout
    assert all(flaw.name in said for flaw in ALL_FLAWS)


def test_explain_refuses_what_a_cluster_has_not() -> None:
    assert "is a cluster flaw and has no revisions" in read_refusal("explain", "claim-only", "--revision", "r0")
    assert "choose text, svg or json" in read_refusal("explain", "claim-only", "--format", "mermaid")


def test_a_lost_answer_is_drawn_on_its_way_back_and_the_step_that_breaks_is_marked() -> None:
    drawn = run_command("explain", "retry-cancels-twice", "--format", "svg").stdout
    (start, end), = re.findall(r'stroke-dasharray="5 4" d="M([\d.]+) [\d.]+H([\d.]+)"', drawn)
    database = re.search(r'<text x="([\d.]+)"[^>]*>database</text>', drawn)
    assert database
    assert float(start) == float(database[1]) > float(end)
    assert drawn.count('<line class="fault"') == 2
    assert drawn.index("cancel, retried") < drawn.index("✗ breaks no-echo")
