"""`cancelmark conform --adapter`: anybody's adapter, scripts and scenarios by name, and reports as files."""

import json
import shlex
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.commands import read_refusal, run_command, run_process
from support.paths import SUPPORT

from cancelmark.conformance.adapter.guarantees import ORDER
from cancelmark.conformance.playing.scenarios import SCENARIOS
from cancelmark.conformance.profile import PROFILES, Profile

NAIVE = "support.samples.naive:NaiveAdapter"
FEW = Profile("quick", histories=0, schedules=4, inside=20, repeats=1, shrinks=60, seconds=0)
MINE = """\
import asyncio
from support.samples.naive import NaiveAdapter


class Mine(NaiveAdapter):
    async def open(self) -> None:
        import laid_beside  # as late as this
        await super().open()


class Needs(NaiveAdapter):
    def __init__(self, url: str) -> None:
        self.url = url


class Outside(NaiveAdapter):
    outside = True


def make() -> NaiveAdapter:
    return Mine()


NUMBER = 7
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with an adapter, and this process in it."""
    monkeypatch.setitem(PROFILES, "quick", FEW)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_own.py").write_text(MINE)
    (tmp_path / "laid_beside.py").write_text("")
    for name in ("my_own", "laid_beside"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_a_finding_is_played_again_by_the_command_that_it_ends_with(here: Path) -> None:
    out = run_command("conform", "--adapter", "my_own.py:Mine", code=1).stdout
    lines = [line.partition("reproduce with: ")[2] for line in out.splitlines() if "reproduce with: " in line]
    assert len(lines) == 3
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "cancelmark"
        again = run_command(*arguments, code=1).stdout
        assert " broken in 5 of 5 runs" in again
    assert out.startswith("my_own.py:Mine, ")


def test_it_works_in_a_process_of_its_own(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT.parent))  # where the adapter finds what it is made of
    script = ("--script", "accept A; accept B; fail", "--times", "2")
    said = run_process("conform", "--adapter", "my_own:make", *script, code=1)
    assert "accept A; accept B; fail: all-done broken in 2 of 2 runs" in said.stdout
    assert said.stderr == ""


def test_reports_for_programs_and_pages_for_people(here: Path) -> None:
    files = ("--junit", "j.xml", "--html", "h.html")
    said = run_command("conform", "--adapter", "my_own:Mine", "--json", *files, code=1)
    report = json.loads(said.stdout)
    assert report["server"] == "my_own:Mine"
    told = next(g for g in report["guarantees"] if g["id"] == "all-done")
    assert told["reproduce"] == (
        "cancelmark conform --adapter my_own:Mine --script 'accept A; accept B; fail' --times 5")
    suite = ElementTree.parse(here / "j.xml").getroot()
    assert suite.get("failures") == "3"
    assert "reproduce with: cancelmark conform --adapter my_own:Mine" in (here / "j.xml").read_text()
    times = [float(case.get("time", "")) for case in suite.iter("testcase")]
    assert sum(times) > 0
    assert sum(times) == pytest.approx(report["seconds"], rel=0.5)
    assert "3 guarantees are broken" in (here / "h.html").read_text()


@pytest.mark.usefixtures("here")
def test_one_scenario_alone() -> None:
    out = run_command("conform", "--adapter", "my_own:Mine", "--scenario", "queue-stranded-by-error", code=1).stdout
    assert "all-done is broken" in out
    assert "no-lost-cancel is broken" not in out


def test_what_there_is_is_listed() -> None:
    out = run_command("conform", "--list").stdout
    for name in [p.id for p in ORDER] + [s.name for s in SCENARIOS]:
        assert f"{name} " in out
    assert "accept A; accept B; fail" in out


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("arguments", "says"), [
    ((), "give either the URL of a server that speaks our wire protocol, or --adapter"),
    (("http://127.0.0.1:1", "--adapter", "my_own:Mine"), "give either the URL"),
    (("--adapter", "mine"), "--adapter mine: 'mine' is not an adapter's name; expected module:Class"),
    (("--adapter", "yours:Mine"), "--adapter yours:Mine: cannot load yours: ModuleNotFoundError"),
    (("--adapter", "yours.py:Mine"), "--adapter yours.py:Mine: cannot load yours.py: FileNotFoundError"),
    (("--adapter", "my_own:Yours"), "my_own has no Yours; adapters there: NaiveAdapter, Mine, Needs, Outside"),
    (("--adapter", "my_own:Needs"), "Needs() raised TypeError"),
    (("--adapter", "my_own:NUMBER"), "NUMBER() raised TypeError"),
    (("--adapter", "my_own:asyncio"), "asyncio() raised TypeError"),
    (("--adapter", "builtins:dict"), "dict() returned a dict, not a cancelmark.Adapter"),
    (("--adapter", "my_own:Mine", "--token", "x"), "--token does not apply with --adapter"),
    (("--adapter", "my_own:Mine", "--keep-open"), "--keep-open does not apply with --adapter"),
    (("--adapter", "my_own:Mine", "--llm-port", "4545"), "my_own:Mine runs in this process"),
    (("--adapter", "my_own:Outside", "--llm-port", "70000"), "--llm-port 70000: give the port"),
    (("--adapter", "my_own:Mine", "--scenario", "queue-stranded"), "did you mean queue-stranded-by-"),
    (("--adapter", "my_own:Mine", "--script", "accept A; explode"), "unknown action 'explode'"),
    (("--adapter", "my_own:Mine", "--script", "cancel", "--scenario", "a restart"), "mutually exclusive"),
    (("--adapter", "my_own:Mine", "--script", "cancel", "--times", "0"), "--times 0: must be at least 1"),
    (("--adapter", "my_own:Mine", "--times", "3"), "--times 3 requires --script"),
])
def test_what_cannot_be_done_is_said_in_one_line(arguments: tuple[str, ...], says: str) -> None:
    assert says in read_refusal("conform", *arguments)
