"""The mutation tester itself: it makes the changes that it says, tells weak tests from strong ones, and its survivors
are explained."""

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from tools.mutants import (
    PAGE,
    ROOT,
    SUITES,
    TOO_LONG,
    Verdict,
    explained,
    judge_file,
    report,
    score_table,
    source_of,
    survivors_table,
)
from tools.mutating import Key, Source

MODULE = '''
"""What a mark covers."""

def covered(seq: int, mark: int) -> bool:
    """Whether it does."""
    return seq <= mark
'''
WEAK = '''
from tiny import covered

def test_one_that_is_covered():
    assert covered(1, 2)
'''
STRONG = WEAK + '''
def test_the_others():
    assert covered(2, 2)
    assert not covered(3, 2)
'''
RUN = '''
import json, sys
from pathlib import Path
from tools import mutants
from tools.mutating import Source

mutants.LOADED, mutants.LEAST = (), 1
source = Source("tiny", Path("tiny.py"))
suites = [mutants.Suite([Path("test_tiny.py")], tier=tier) for tier in sys.argv[1:]]
found = mutants.campaign(source.mutants, "tiny", suites, {})
print(json.dumps({f"{mutant.number}: {mutant.key.change}": verdict[:-1] for mutant, verdict in found}))
'''


def changes(source: str, directory: Path) -> list[str]:
    path = directory / "changed.py"
    path.write_text(dedent(source))
    return [mutant.key.change for mutant in Source("changed", path).mutants if mutant.code()]


def judge_tiny(
    tests: str, directory: Path, module: str = MODULE, tiers: tuple[str, ...] = ("all",),
) -> dict[str, list[str]]:
    (directory / "tiny.py").write_text(module)
    (directory / "test_tiny.py").write_text(tests)
    done = subprocess.run([sys.executable, "-c", RUN, *tiers], cwd=directory, capture_output=True, text=True,
                          check=False, env={"PYTHONPATH": f"{ROOT / 'tests'}:{directory}"}, timeout=300)
    assert (directory / "tiny.py").read_text() == module, "no file is touched"
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_weak_test_leaves_a_mutant_alive_and_a_strong_one_does_not(tmp_path: Path) -> None:
    weak, strong = judge_tiny(WEAK, tmp_path), judge_tiny(STRONG, tmp_path)
    killed = ["killed", "test_tiny.py::test_one_that_is_covered", "all"]
    assert weak == {"6: return None": killed, "6: <= → <": ["survived", "", ""], "6: <= → >": killed}
    assert strong["6: <= → <"] == ["killed", "test_tiny.py::test_the_others", "all"]
    assert {verdict for verdict, *_ in strong.values()} == {"killed"}  # by whichever test comes first


def test_a_mutant_that_only_a_long_test_notices_is_not_noticed_by_the_fast_tier(tmp_path: Path) -> None:
    tests = STRONG.replace("def test_the_others", "@pytest.mark.long\ndef test_the_others").replace(
        "from tiny", "import pytest\nfrom tiny")
    verdicts = judge_tiny(tests, tmp_path, tiers=("fast", "all"))
    assert verdicts["6: <= → >"][2] == "fast"
    assert verdicts["6: <= → <"] == ["killed", "test_tiny.py::test_the_others", "all"]
    assert judge_tiny(tests, tmp_path, tiers=("fast",))["6: <= → <"] == ["survived", "", ""]


def test_a_mutant_that_never_ends_hangs(tmp_path: Path) -> None:
    module = "def countdown(n):\n    while n > 0:\n        n -= 1\n    return n\n"
    tests = "import tiny\ndef test_it():\n    assert tiny.countdown(3) == 0\n"
    verdicts = judge_tiny(tests, tmp_path, module)
    assert [change for change, (verdict, *_) in verdicts.items() if verdict == "hung"] == [
        "3: without n -= 1", "3: 1 → 0"]
    assert verdicts["2: > → >="] == ["killed", "test_tiny.py::test_it", "all"]


def test_a_suite_that_fails_by_itself_judges_nobody(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="the suite must pass before anything is changed"):
        judge_tiny(WEAK.replace("assert covered(1, 2)", "assert not covered(1, 2)"), tmp_path)


@pytest.mark.parametrize(("source", "expected"), [
    ("x = a is b", ["is → is not"]),
    ("x = a < b <= c", ["< → <=", "< → >=", "<= → <", "<= → >"]),
    ("x = a and b and c", ["and → or", "without a", "without b", "without c"]),
    ("x = not a", ["without not"]),
    ("x = a - b | c", ["| → &", "- → +"]),
    ("x = 2", ["2 → 3", "2 → 1"]),
    ("x = True", ["True → False"]),
    ("x = 'word'", ["'word' → ''"]),
    ("x = min(a), any(b), sorted(c, key=d)", [
        "without min(a)", "without any(b)", "without sorted(c, key=d)", "min → max", "any → all",
        "sorted → sorted backwards"]),
    ("x = a.union(b)", ["union → intersection"]),
    ("x = [a for a in b if a]", ["a → not a"]),
    ("x = {a: b, c: d}", ["without a", "without c"]),
    ("x = a in (b, c)", ["in → not in", "without b", "without c"]),
    ("a, b = c, d", []),
    ("if a: pass", ["a → not a"]),
    ("def f(a=1):\n    g(a)\n    del a\n    return b", [
        "without g(a)", "without del a", "return None", "1 → 2", "1 → 0"]),
    ("def f():\n    with a:\n        raise b", ["without a", "without raise b"]),
    ("def f() -> 'int':\n    '''Says.'''\n    assert a == 1\n    print(f'{a} 1')", ["without print(f'{a} 1')"]),
    ("from typing import TypeAlias\nA: TypeAlias = B | C\nD = Callable[[B], C]", []),
    ("x = 1 + 1", ["+ → -", "1 → 2", "1 → 0", "1 → 2 (no. 2)", "1 → 0 (no. 2)"]),
])
def test_what_is_changed(source: str, expected: list[str], tmp_path: Path) -> None:
    assert sorted(changes(source, tmp_path)) == sorted(expected)


def test_a_mutant_says_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "it.py"
    path.write_text("class It:\n    def go(self):\n        return self.n + 1\n")
    mutant = Source("it", path).mutants[1]
    assert (mutant.number, mutant.key) == (3, Key("it", "It.go", "return self.n + 1", "+ → -"))
    scope: dict[str, type] = {}
    exec(mutant.code(), scope)
    it = scope["It"]()
    it.n = 5
    assert it.go() == 4


# --- What is written down -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("module", SUITES)
def test_explained_survivors_are_mutants_that_there_are(module: str) -> None:
    there = {mutant.key for mutant in source_of(module).mutants}
    gone = [key for key in explained() if key.module == module and key not in there]
    assert not gone, "its line has changed: run `make mutants`, and explain it anew if it survives"


def test_every_explanation_is_a_sentence_about_a_module_that_is_judged() -> None:
    for key, reason in explained().items():
        assert key.module in SUITES
        assert reason.endswith(".")


def test_the_page_has_the_explained_survivors_and_no_others() -> None:
    page = PAGE.read_text(encoding="utf-8")
    table = page.split("<!-- generated: survivors -->\n")[1].split("<!-- end -->")[0]
    assert sorted(table.splitlines()) == sorted(survivors_table(explained(), explained()).splitlines())
    for module in SUITES:
        assert f"| {module} | " in page


def test_every_judge_exists() -> None:
    for stages in SUITES.values():
        for name in stages.replace("|", " ").split():
            assert judge_file(name).exists()
    assert TOO_LONG


def test_an_unexplained_survivor_and_an_explanation_without_one_are_failures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    alive, dead = Key("model/server", "f", "a < b", "< → <="), Key("model/server", "f", "a < b", "< → >=")
    found = {"model/server": {alive: Verdict("survived"), dead: Verdict("killed", "test_it")}}
    assert report(found, {alive: "It is the same."}) == 0
    assert report(found, {}) == 1
    assert report(found, {alive: "It is the same.", dead: "It was the same."}) == 1
    assert capsys.readouterr().out == (
        "mutants=2 killed=1 survived=1 unexplained=0\n"
        "survives, unexplained: model/server f: a < b: < → <=\nmutants=2 killed=1 survived=1 unexplained=1\n"
        "is explained, and does not survive: model/server f: a < b: < → >=\n"
        "mutants=2 killed=1 survived=1 unexplained=0\n")
    assert "| model/server | 2 | 1 | 0 | 1 | 50.0 % |" in score_table(found)
