"""The pages: their examples run as they stand, their links lead somewhere, and the index lists every page."""

import re
import shlex
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.util import find_spec
from inspect import getdoc
from pathlib import Path
from textwrap import dedent

import pytest
from support.commands import Said, run_command
from support.docs import PAGES, code_blocks, commands_with_output, heading_anchors, matches
from support.paths import ROOT
from tools.power import SEEDED

import cancelmark

README = ROOT / "README.md"
SAYS = {
    "README.md": ["single-active is broken", "canceled"],
    "docs/judge.md": ["a test class: TestMine", "canceled\ncanceled error folded\nA ends end_turn without a start"],
    "docs/serve.md": ["{'ask': '1.1', 'status': 'ran', 'started': True}"],
    "docs/review.md": ["holds", "no-lost-cancel: accept(A), accept(B), enter(A), enter(B), cancel, finish(A"],
}
EXAMPLES = [(name, example, says) for name, said in SAYS.items()
            for example, says in zip(code_blocks(ROOT / name, "python"), said, strict=True)]
COMMANDS = {command: shown for page in PAGES for command, shown in commands_with_output(page)}


def run_example(example: str, directory: Path) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", example], cwd=directory, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("name", "example", "says"), EXAMPLES, ids=[says for _, _, says in EXAMPLES])
def test_an_example_runs_and_says_what_it_should(name: str, example: str, says: str, tmp_path: Path) -> None:
    assert says in run_example(example, tmp_path)


def test_no_example_is_left_out() -> None:
    elsewhere = {"docs/adapters.md"}  # tests/test_adapters.py
    assert {str(page.relative_to(ROOT)) for page in PAGES if code_blocks(page, "python")} == SAYS.keys() | elsewhere


@pytest.mark.parametrize("command", [
    pytest.param(command, marks=pytest.mark.real if command == "cancelmark prove" else ()) for command in COMMANDS])
def test_a_command_prints_what_the_page_shows(command: str, request: pytest.FixtureRequest) -> None:
    name, *arguments = shlex.split(command)
    assert name == "cancelmark"
    said: Said = request.getfixturevalue("proof") if arguments == ["prove"] else run_command(*arguments)
    printed = said.stdout
    assert matches(printed.splitlines(), COMMANDS[command]), printed


def test_a_command_that_prints_something_else_is_noticed() -> None:
    assert matches(["a", "b", "seconds=1.5 c"], ["…", "seconds=… c"])
    assert not matches(["a", "b", "seconds=1.5 d"], ["…", "seconds=… c"])
    assert not matches(["a", "b"], ["a"])


def test_the_history_in_the_readme_is_what_the_example_prints(tmp_path: Path) -> None:
    (told,) = re.findall(r"^    some-terminal is broken.*?within 9 s$", README.read_text(), re.DOTALL | re.MULTILINE)
    assert dedent(told) in run_example(code_blocks(README, "python")[0], tmp_path)


def test_the_readme_is_short() -> None:
    assert len(README.read_text().split()) <= 900


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), target
        assert not anchor or there.suffix != ".md" or anchor in heading_anchors(there), target


@pytest.mark.parametrize("page", [*PAGES, *(ROOT / "specs").glob("*.pml"), *(ROOT / "notebooks").glob("[0-9]*.py")],
                         ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_are_there(page: Path) -> None:
    rooms = "model|views|conformance|impl|bench|tests|specs|docs|notebooks|examples"
    named = re.findall(rf"(?<![\w/.-])((?:{rooms})/[\w./-]*\w)", page.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).exists() and not (ROOT / f"{name}.py").exists()] == []


def test_the_index_lists_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    listed = {(index.parent / target).resolve() for target in re.findall(r"\]\(([^)#\s]+)\)", index.read_text())}
    others = [*(ROOT / "specs").glob("*.json"), *(ROOT / "specs").glob("*.pml"), *(ROOT / "notebooks").glob("*.py")]
    assert {*PAGES, *others} - {index} - listed == set()


def test_the_page_on_installing_names_every_dependency_with_its_extras() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = (ROOT / "docs" / "install.md").read_text()
    rows = re.findall(r"^\| (\w[^|]*) \| (–|`[^|]*`) \| .+ \|$", page, re.MULTILINE)
    told = {package: {*re.findall(r"`(.+?)`", extras)} for packages, extras in rows for package in packages.split(", ")}
    required: dict[str, set[str]] = {name_of(requirement): set() for requirement in project["dependencies"]}
    for extra, requirements in project["optional-dependencies"].items():
        for name in {name_of(requirement) for requirement in requirements} - {"cancelmark"}:
            required.setdefault(name, set()).add(extra)
    assert told == required


def name_of(requirement: str) -> str:
    return re.split(r"[\[>=<;!~ ]", requirement)[0]


def test_the_page_on_stability_lists_the_public_names() -> None:
    text = (ROOT / "docs" / "stability.md").read_text()
    (names,) = re.findall(r"^## Public names\n(.*?)^##", text, re.DOTALL | re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", names)) == sorted(cancelmark.__all__)


def test_figures_on_the_page_about_trust_are_those_that_were_measured() -> None:
    page, results, mutation = (
        (ROOT / name).read_text() for name in ("docs/trust.md", "bench/RESULTS.md", "specs/mutation.md"))
    assert [row for row in re.findall(r"^\| prompts.*$", page, re.MULTILINE) if row not in results] == []
    (mutants,) = re.findall(r"^\| all \| (\d+) \|", mutation, re.MULTILINE)
    assert f"in {int(mutants):,} small ways" in page
    assert f"{len(SEEDED)} flaws of the original are seeded" in page
    _, _, missed = page.partition("## Goals that were missed")
    assert missed.count("\n- ") == results.count("- goal missed:")


@pytest.mark.parametrize("name", cancelmark.__all__)
def test_what_a_public_name_offers_is_described(name: str) -> None:
    public = getattr(cancelmark, name)
    offered = vars(public) if isinstance(public, type) else ()
    assert getdoc(public)
    assert [each for each in offered if not each.startswith("_") and callable(getattr(public, each))
            and not getdoc(getattr(public, each))] == []


def new_path(old: str, rows: dict[str, str]) -> str:
    """Where the changelog says that a module is now: its own row, that of its package, or where it was."""
    if old in rows:
        return rows[old]
    for package, new in rows.items():
        if package.endswith(".*") and f"{old}.".startswith(package[:-1]):
            return new[:-2] + old[len(package) - 2:]
    return old


def test_the_changelog_maps_every_old_import_path() -> None:
    rows = {f"cancelmark.{old}": f"cancelmark.{new}" for old, new in re.findall(
        r"^\| `([\w.*]+)` \| `?([\w.*–]+)`? \|$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)}
    old_modules = (ROOT / "tests" / "fixtures" / "e117825" / "modules.txt").read_text().split()
    paths = {old: new_path(old, rows) for old in old_modules}
    missing = [f"{old} -> {new}" for old, new in paths.items() if new != "cancelmark.–" and find_spec(new) is None]
    assert not missing
    assert rows.keys() - {f"{old}.*" for old in old_modules} <= {*old_modules}


def test_names_that_have_left_their_module_are_where_the_changelog_says() -> None:
    rows = re.findall(r"^\| `[\w.]+`: (.+) \| `([\w.]+)` \|$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert rows
    for names, module in rows:
        there = dir(import_module(f"cancelmark.{module}"))
        assert [name for name in re.findall(r"`(\w+)`", names) if name not in there] == [], module
