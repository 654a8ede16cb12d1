"""The measure of the tests' power: it runs the tier of `make test`, and takes no missing figure for a good one."""

import re

from support.paths import ROOT
from tools.mutants import FAST, SURVIVED, Verdict
from tools.mutating import Key
from tools.noticed import (
    JUDGES,
    OUTCOMES,
    PAGE,
    Noticed,
    bug_rows,
    mutant_row,
    published,
    sample,
    summary_table,
    table,
)

QUICK, LATE, MISSED, UNKNOWN = OUTCOMES
KEY = Key("model/server", "f", "a < b", "< → <=")


def test_the_fast_tier_is_what_make_test_runs() -> None:
    assert f'-m "{FAST}"\n' in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_every_judge_is_a_test_with_that_parameter() -> None:
    tests = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    for test, parameter in JUDGES.items():
        assert re.search(rf"def {test}\([^)]*\b{parameter}: ", tests), test


def test_a_bug_is_noticed_by_the_first_tier_with_a_test_that_passed() -> None:
    rows = bug_rows([
        Noticed("a", "test_a", "fast", 2.0, "passed"), Noticed("a", "test_b", "fast", 1.0, "passed"),
        Noticed("b", "test_a", "fast", 2.0, "failed"), Noticed("b", "test_b", "all", 3.0, "passed"),
        Noticed("c", "test_a", "fast", 2.0, "failed"), Noticed("d", "test_a", "all", 0.0, "skipped")])
    assert [(bug, outcome, seconds) for bug, outcome, _, seconds in rows] == [
        ("a", QUICK, "1.0"), ("b", LATE, "3.0"), ("c", MISSED, "–"), ("d", UNKNOWN, "–")]


def test_a_mutant_that_was_not_judged_is_not_measured() -> None:
    verdicts = (Verdict("killed", "test_a", "fast", 1.0), Verdict("hung", tier="all"), SURVIVED, None)
    rows = [mutant_row(KEY, verdict) for verdict in verdicts]
    assert [outcome for _, outcome, _, _ in rows] == [QUICK, LATE, MISSED, UNKNOWN]
    assert "| all | 4 | 1 | 1 | 1 | 1 | 33.3 % | 1.0 | 1.0 |" in summary_table({"mutants": rows})


def test_the_mutants_on_the_page_can_be_kept() -> None:
    rows = [["model/server f", "`a | b`: `| → &`", LATE, "test_a", "0.1"]]
    written = table(("where", "change", "noticed", "by", "seconds"), rows, "llllr")
    section = f"<!-- generated: mutants -->\n{written}<!-- end -->"
    for told in ("At abc123, every seeded bug and all mutants:",
                 "At 123abc, every seeded bug; at abc123, all mutants:"):
        assert published(f"{told}\n\n{section}\n") == ("abc123", "all mutants", rows)
    assert published(PAGE.read_text(encoding="utf-8"))[2]


def test_a_sample_is_repeated_by_its_seed() -> None:
    def keys(seed: int) -> list[Key]:
        return [mutant.key for mutants in sample(30, seed).values() for mutant in mutants]

    assert len(set(keys(1))) == 30
    assert keys(1) == keys(1) != keys(2)
