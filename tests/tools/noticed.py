"""The power of the tests: which tier notices each seeded bug and each mutant, by which test, and how soon.

`make power` runs this and writes the tables of specs/power.md.

- A seeded bug is a parameter of tests that pass only if they notice it (`JUDGES`). Those in the fast tier are run;
  then, for the bugs that none of them has, those that `make test-all` adds.
- A mutant (`mutating`) is judged by its module's tests of the fast tier, and if it survives, by all of them.

The mutants are a seeded sample. An interrupted run is continued by the same sample and seed. With no mutants, those on
the page are kept, with the commit that they are of.
"""

import argparse
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from rich.progress import Progress
from support.paths import ROOT
from tools.mutants import FAST, SUITES, Verdict, campaign, import_name, source_of, suites_of
from tools.mutating import Key, Mutant

PAGE = ROOT / "specs" / "power.md"
FOUND = ROOT / "build" / "noticed.json"
OUTCOMES = ("noticed by `make test`", "only by `make test-all`", "not noticed", "not measured")

# By test: its parameter that is a seeded bug. Tests of one name in several files have the same parameter.
JUDGES: Mapping[str, str] = {
    "test_the_explorer_finds_exactly_what_the_record_declares": "variant",
    "test_both_engines_agree_on_seeded_bugs_and_no_reduction_loses_one": "bug",
    "test_both_engines_agree_on_mistakes": "mistake",
    "test_no_reduction_loses_a_mistake": "mistake",
    "test_the_oracle_complains_about": "bug",
    "test_a_walk_shows": "mistake",
    "test_the_replay_finds_every_mistake_of_the_family": "mistake",
    "test_a_flaw_is_in_exactly_the_revisions_it_names": "flaw",
    "test_flaw_breaks_its_property": "flaw",
    "test_log_flaw_breaks_its_property": "flaw",
    "test_every_known_error_is_found": "flaw",
    "test_a_bug_breaks_the_claims_that_it_declares": "bug",
    "test_a_proof_of_another_protocol_would_be_noticed": "bug",
    "test_a_mistake_is_not_proved": "mistake",
    "test_the_random_tests_find": "flaw",
    "test_some_schedule_shows_the_flaw": "flaw",
    "test_the_machine_catches": "bug",
    "test_a_broker_with_a_bug_is_caught": "bug",
    "test_the_random_test_finds_a_broker_that_loses_ends": "flawed",
    "test_a_stream_that_loses_ends_is_found": "bug",
    "test_a_wrong_implementation_is_found": "make",
    "test_a_wrong_implementation_of_the_family_is_found": "make",
    "test_threads_find_a_lock_that_is_not_held": "make",
    "test_a_kill_shows": "bug",
    "test_each_error_is_found": "flaw",
    "test_a_script_shows": "bug",
    "test_a_script_shows_in_the_runtime": "bug",
    "test_the_kit_finds": "bug",
    "test_the_kit_is_right_about": "server",
    "test_a_bug_is_blamed_inside_and_outside": "kind",
    "test_a_mistake_shows": "name",
    "test_a_judgement_finds_the_mistake": "mistake",
    "test_a_seeded_bug_in_the_checker_is_found_out": "bug",
    "test_a_bad_agent_is_caught": "flaw",
    "test_a_bad_server_is_caught": "flaw",
    "test_a_broken_copy_is_caught": "flaw",
    "test_a_bug_is_found_and_told": "bug",
    "test_an_error_that_one_node_alone_does_not_show_is_found": "error",
}


class Noticed(NamedTuple):
    """Whether a test has noticed a seeded bug."""

    bug: str
    test: str
    tier: str
    seconds: float  # of processor time
    outcome: str  # passed: it has; failed; skipped, as is what could not run on this machine


# --- Seeded bugs -------------------------------------------------------------------------------------------------

def bug_of(item: pytest.Item) -> str | None:
    """The seeded bug that a test must notice."""
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return None
    bug = item.callspec.params.get(JUDGES.get(item.originalname, ""))
    if bug is None or "NOTSET" in item.nodeid or getattr(bug, "is_innocent", False):
        return None
    return str(getattr(bug, "name", None) or getattr(bug, "__name__", bug))


class Seeded:
    """A plugin that runs only the judges of seeded bugs, and writes down what became of them."""

    def __init__(self, file: Path, tier: str, known: frozenset[str]) -> None:
        self.file, self.tier, self.known = file, tier, known
        self.bugs: dict[str, str] = {}
        self.began = 0.0
        self.outcomes: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.bugs = {item.nodeid: bug for item in items if (bug := bug_of(item)) and bug not in self.known}
        items[:] = [item for item in items if item.nodeid in self.bugs]

    def pytest_runtest_logstart(self) -> None:
        self.began = spent()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.outcomes[report.nodeid] = report.outcome
        if report.when == "teardown":
            with self.file.open("a") as file:
                file.write(json.dumps(Noticed(self.bugs[report.nodeid], report.nodeid, self.tier,
                                              spent() - self.began, self.outcomes[report.nodeid])) + "\n")


def spent() -> float:
    """Seconds of processor time, also of child processes that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def run_judges(tier: str, known: frozenset[str] = frozenset()) -> list[Noticed]:
    """Runs the judges of that tier, in a process of its own, for all bugs but those that are known to be noticed."""
    with TemporaryDirectory() as directory:
        file = Path(directory) / "noticed"
        file.touch()
        subprocess.run([sys.executable, __file__, "--judges", tier, str(file)], input=json.dumps(sorted(known)),
                       text=True, check=False, cwd=ROOT, env={**os.environ, "CANCELMARK_TESTS": tier})
        return [Noticed(*json.loads(line)) for line in file.read_text().splitlines()]


def run_judges_here(tier: str, file: Path, known: frozenset[str]) -> int:
    sys.path.insert(0, str(ROOT))
    return pytest.main(["tests", "-q", "--no-header", "--timeout", "600", "-p", "no:cacheprovider", "-p", "no:xdist",
                        "-W", "ignore::pytest.PytestAssertRewriteWarning",  # hypothesis is loaded already
                        *(["-m", FAST] if tier == "fast" else [])], plugins=[Seeded(file, tier, known)])


def notice_bugs() -> list[Noticed]:
    fast = run_judges("fast")
    return fast + run_judges("all", frozenset(each.bug for each in fast if each.outcome == "passed"))


# --- Mutants -----------------------------------------------------------------------------------------------------

def sample(number: int | None, seed: int) -> dict[str, list[Mutant]]:
    """That many mutants of all modules, by module; all of them for None."""
    every = [mutant for module in SUITES for mutant in source_of(module).mutants]
    chosen = set(range(len(every))) if number is None else set(random.Random(seed).sample(range(len(every)), number))
    by_module: dict[str, list[Mutant]] = {module: [] for module in SUITES}
    for index in sorted(chosen):
        by_module[every[index].key.module].append(every[index])
    return by_module


def notice_mutants(chosen: Mapping[str, list[Mutant]], known: dict[Key, Verdict]) -> Iterator[None]:
    """Judges what is not known yet, and writes it down there."""
    for module, mutants in chosen.items():
        if left := [mutant for mutant in mutants if mutant.key not in known]:
            suites = [*suites_of(module, "fast"), *suites_of(module, "all")]
            for mutant, verdict in campaign(left, import_name(module), suites, {}):
                known[mutant.key] = verdict
                yield


# --- The page ----------------------------------------------------------------------------------------------------

Row = tuple[str, str, str, str]  # what was changed, the outcome, the test that notices it first, seconds


def bug_rows(noticed: Iterable[Noticed]) -> list[Row]:
    """A row for each seeded bug: of the tests of the first tier that notice it, the quickest."""
    by_bug: dict[str, list[Noticed]] = defaultdict(list)
    for each in noticed:
        by_bug[each.bug].append(each)
    rows = []
    for bug, tries in by_bug.items():
        found = [each for each in tries if each.outcome == "passed"]
        if found:
            best = min(found, key=lambda each: (each.tier == "all", each.seconds))
            count = sum(each.tier == best.tier for each in found)
            more = f" and {count - 1} more" if count > 1 else ""
            rows.append((bug, OUTCOMES[best.tier == "all"], short(best.test) + more, f"{best.seconds:.1f}"))
        else:
            failed = [each.test for each in tries if each.outcome == "failed"]
            rows.append((bug, OUTCOMES[2 if failed else 3], short(failed[0]) + " fails" if failed else "–", "–"))
    return rows


def mutant_row(key: Key, verdict: Verdict | None) -> Row:
    change = f"`{key.line}`: `{key.change}`"
    if verdict is None or verdict.verdict == "survived":
        return change, OUTCOMES[3 if verdict is None else 2], "–", "–"
    by = short(verdict.by) if verdict.by else "it hangs"
    return change, OUTCOMES[verdict.tier == "all"], by, f"{verdict.seconds:.1f}" if verdict.by else "–"


def short(test: str) -> str:
    """A test without its directory and its parameters."""
    return test.split("[")[0].rsplit("/", 1)[-1].replace(".py::", " ")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], align: str) -> str:
    lines = [head, [{"l": "---", "r": "---:"}[side] for side in align], *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def summary_table(kinds: Mapping[str, Sequence[Row]]) -> str:
    """How many of each kind are noticed by which tier, and how soon by the fast one."""
    lines = []
    for kind, rows in [*kinds.items(), ("all", [row for each in kinds.values() for row in each])]:
        tally = Counter(outcome for _, outcome, _, _ in rows)
        measured = len(rows) - tally[OUTCOMES[3]]
        seconds = [float(s) for _, outcome, _, s in rows if outcome == OUTCOMES[0] and s != "–"]
        lines.append([kind, str(len(rows)), *(str(tally[outcome]) for outcome in OUTCOMES),
                      f"{100 * tally[OUTCOMES[0]] / measured:.1f} %" if measured else "–",
                      f"{median(seconds):.1f}" if seconds else "–", f"{max(seconds):.1f}" if seconds else "–"])
    head = ("what was changed", "number", *OUTCOMES, "share of `make test`", "seconds (median)", "most")
    return table(head, lines, "lrrrrrrrr")


def published(page: str) -> tuple[str, str, list[list[str]]]:
    """The mutants on the page: of which commit, which of them, and their rows."""
    told = re.search(r"(?:^At (\w+), every seeded bug and|; at (\w+),) (.+):$", page, re.MULTILINE)
    assert told, f"{PAGE} does not say of which commit its mutants are"
    section = page.split("<!-- generated: mutants -->\n")[1].split("<!-- end -->")[0]
    rows = [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for line in section.splitlines()[2:]]
    return told[1] or told[2], told[3], rows


def write_page(noticed: list[Noticed], chosen: Mapping[str, list[Mutant]], known: Mapping[Key, Verdict], run: Any,
               ) -> None:
    from tools.specs.pages import filled  # not before the last fork: mutants import it anew

    bugs, page = bug_rows(noticed), PAGE.read_text(encoding="utf-8")
    every = sum(len(source_of(module).mutants) for module in SUITES)
    if size := sum(map(len, chosen.values())):
        sampled = "all mutants" if size == every else f"a sample of {size} of {every:,} mutants (SEED={run['seed']})"
        measured = f"every seeded bug and {sampled}"
        rows = [[f"{module} {m.key.where}".strip(), *mutant_row(m.key, known.get(m.key))]
                for module, mutants in chosen.items() for m in mutants]
    else:
        commit, sampled, rows = published(page)
        measured = f"every seeded bug; at {commit}, {sampled}"
    by_module: dict[str, list[Row]] = defaultdict(list)
    for where, *(change, outcome, by, seconds) in rows:
        by_module[f"mutants of {where.split()[0]}"].append((change, outcome, by, seconds))
    PAGE.write_text(filled(page, {
        "noticed": lambda: f"At {run['commit']}, {measured}:\n\n" + summary_table({"seeded bugs": bugs, **by_module}),
        "bugs": lambda: table(("seeded bug", "noticed", "by", "seconds"), bugs, "lllr"),
        "mutants": lambda: table(("where", "change", "noticed", "by", "seconds"), rows, "llllr"),
    }), encoding="utf-8")


def load(run: Any) -> tuple[list[Noticed], dict[Key, Verdict]]:
    """What an interrupted run of the same kind has found."""
    with suppress(FileNotFoundError):
        found = json.loads(FOUND.read_text())
        if found["run"] == run and not found["finished"]:
            return ([Noticed(*each) for each in found["bugs"]],
                    {Key(*key): Verdict(*verdict) for key, verdict in found["mutants"]})
    return [], {}


def save(run: Any, bugs: list[Noticed], mutants: Mapping[Key, Verdict], finished: bool = False) -> None:
    FOUND.parent.mkdir(exist_ok=True)
    FOUND.write_text(json.dumps({
        "run": run, "finished": finished, "bugs": bugs, "mutants": list(mutants.items())}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", default="200", metavar="N",
                        help="how many, 0 to keep those on the page, or all (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (default: 1)")
    parser.add_argument("--judges", nargs=2, metavar=("TIER", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.judges:
        tier, file = options.judges
        sys.exit(run_judges_here(tier, Path(file), frozenset(json.load(sys.stdin))))
    if options.mutants != "all" and not options.mutants.isdigit():
        parser.error(f"--mutants {options.mutants}: give a number, or all")
    commit = subprocess.run(["git", "describe", "--always"], cwd=ROOT, text=True, capture_output=True, check=True)
    run = {"mutants": options.mutants, "seed": options.seed, "commit": commit.stdout.strip()}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the child is not left behind
    chosen = sample(None if options.mutants == "all" else int(options.mutants), options.seed)
    bugs, known = load(run)
    print(f"if interrupted, continue with: make power MUTANTS={options.mutants} SEED={options.seed}", flush=True)
    size = sum(map(len, chosen.values()))
    with Progress(disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("mutants", total=size, completed=len(known))
        for _ in notice_mutants(chosen, known):
            save(run, bugs, known)
            progress.advance(task)
    if not bugs:
        bugs = notice_bugs()
    save(run, bugs, known, finished=True)
    write_page(bugs, chosen, known, run)
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
