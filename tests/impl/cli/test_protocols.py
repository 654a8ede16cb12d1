"""A protocol is a value: the commands take anybody's own, and every seeded bug."""

import importlib
import json
from pathlib import Path

import pytest
from support.browsing import Sight, chromium, inaccessible
from support.commands import read_refusal, run_command

from cancelmark.impl.cli.protocols import known_protocols, protocol_named
from cancelmark.model.variants.catalogue import SLUGS, VARIANTS

KEEP = """\
from cancelmark.model.actions import stop_active
from cancelmark.model.protocol import REFERENCE

def cancel_keeps(step, arg):
    \"\"\"The queue stays.\"\"\"
    stop_active(step)
    step.mark = arg.seq

KEEP = REFERENCE.changed("keep", cancel={"apply": cancel_keeps})
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(KEEP)
    return tmp_path


@pytest.mark.parametrize("name", ["mine.py:KEEP", "mine:KEEP"])
def test_check_searches_a_protocol_of_ones_own(mine: Path, name: str) -> None:
    said = run_command("check", "--protocol", name, "--prompts", "2", "--cancels", "1", "--json", code=1)
    report = json.loads(said.stdout)
    assert (report["protocol"], report["verdict"]) == ("keep", "violated")
    assert [p["id"] for p in report["properties"] if p["verdict"] == "violated"] == ["no-lost-cancel", "queue-dropped"]


def test_diff_holds_it_against_the_reference(mine: Path) -> None:
    report = json.loads(run_command("diff", "--protocol", "mine.py:KEEP", "--json").stdout)
    assert list(report["actions"]["different"]) == ["cancel"]
    assert report["properties"]["no-lost-cancel"] == {"ref": "holds", "keep": "fails 6", "changed": True}
    assert report["properties"]["delivery"]["keep"] == "–", "it says nothing of delivery"
    assert json.loads(run_command("diff", "ref", "mine.py:KEEP", "--json").stdout) == report


def test_diagrams_are_of_its_rows_and_actions(mine: Path) -> None:
    theirs, ours = (run_command("diagram", "session", "--format", "mermaid", "--protocol", name).stdout
                    for name in ("mine.py:KEEP", "ref"))
    assert theirs != ours
    rows = "KEEP2 = REFERENCE.changed('rows', [r for r in REFERENCE.rows if r.trigger.value != 'fold'])\n"
    (mine / "mine.py").write_text(KEEP + rows)
    drawn = run_command("diagram", "lifecycle", "--format", "mermaid", "--protocol", "mine.py:KEEP2").stdout
    assert "enter" in drawn
    assert "fold" not in drawn
    calls = ("accept A", "accept B", "enter A", "enter B", "cancel")
    assert "queued" in run_command("diagram", "--protocol", "mine.py:KEEP", "trace", *calls).stdout.splitlines()[-1]


def test_play_takes_it_saves_it_and_loads_it(mine: Path) -> None:
    typed = "accept A\naccept B\nenter A\nenter B\ncancel\nsave a.itf.json\n"
    run_command("play", "--protocol", "mine.py:KEEP", given=typed.encode())
    assert "queued" in run_command("play", "--load", "a.itf.json", "--protocol", "mine.py:KEEP").stdout
    assert "is a trace of protocol keep" in read_refusal("play", "--load", "a.itf.json")


def test_a_review_names_what_breaks_with_its_shortest_trace(mine: Path) -> None:
    report = json.loads(run_command("review", "--protocol", "mine.py:KEEP", "-o", "own.html", "--json", code=1).stdout)
    assert (report["verdict"], report["properties"]["no-lost-cancel"]) == ("violated", "violated")
    assert report["counterexamples"]["no-lost-cancel"] == [
        "accept(A)", "accept(B)", "enter(A)", "enter(B)", "cancel", "finish(A, end_turn)"]
    with chromium() as browser:
        page = browser.new_page(reduced_motion="reduce")
        sight = Sight(page, (mine / "own.html").as_uri())
        page.goto((mine / "own.html").as_uri())
        page.wait_for_selector("html[data-ready]")
        assert page.locator("h1").inner_text() == "Review of keep"
        assert "2 of" in page.locator(".verdict").inner_text()
        page.locator('[data-show="own/no-lost-cancel"]').click()
        page.locator('dialog [data-part="last"]').click()
        assert "B starts, although it was canceled after it was accepted." in page.locator("dialog").inner_text()
        page.locator('dialog [data-part="explore"]').click()
        page.locator('#explorer [data-part="beside"]').select_option("ref")
        page.get_by_text("They differ from step 5 on, cancel.").wait_for()
        assert "B done: canceled" in page.locator("#differences").inner_text()
        assert inaccessible(page) == []
        assert sight.errors + sight.elsewhere == []


@pytest.mark.parametrize(("name", "told"), [
    ("nope", "no such protocol; choose one of r0"),
    ("mine.py:NONE", "mine.py defines no NONE; protocols defined there: REFERENCE, KEEP"),
    ("mine.py:cancel_keeps", "expected a Protocol, found function"),
    ("nowhere.py:KEEP", "cannot load nowhere.py: FileNotFoundError"),
    ("nowhere:KEEP", "cannot load nowhere: ModuleNotFoundError"),
    ("broken.py:KEEP", "cannot load broken.py: ZeroDivisionError"),
    ("exits.py:KEEP", "cannot load exits.py: SystemExit"),
    ("seeded:the-mark-is-one-to-high", "no such bug; did you mean the-mark-is-one-too-high"),
])
def test_a_name_that_is_no_protocol_is_refused(mine: Path, name: str, told: str) -> None:
    (mine / "broken.py").write_text("1 / 0")
    (mine / "exits.py").write_text("raise SystemExit(0)")
    assert told in read_refusal("check", "--protocol", name)


def test_every_seeded_bug_has_a_name_on_the_command_line() -> None:
    for bug in VARIANTS.values():
        assert protocol_named(f"seeded:{bug.name}") is protocol_named(f"seeded:{bug.slug}") is bug.protocol
    assert protocol_named("seeded:run-id-folded") is VARIANTS["a step folds prompts with a run id"].protocol
    assert not set(SLUGS) & set(known_protocols())


ILLEGAL = """
from cancelmark.model.actions import cancel
from cancelmark.model.lifecycle import Trigger
from cancelmark.model.variants.catalogue import VARIANTS

def drop_the_second_turn(step, arg):
    for prompt in list(step.active)[1:]:
        step.fire(prompt, Trigger.DROP)

beside = VARIANTS["a prompt without a run id does not wait"].protocol
ILLEGAL = beside.changed("illegal", cancel={"apply": drop_the_second_turn})
"""


def test_what_was_found_before_an_action_breaks_its_own_rows_is_told(mine: Path) -> None:
    (mine / "illegal.py").write_text(ILLEGAL)
    said = run_command("check", "--protocol", "illegal.py:ILLEGAL", "--prompts", "2", "--cancels", "1", "--engine",
                       "plain", code=1)
    words = " ".join(said.stdout.split())
    assert "single-active is violated" in words
    assert "is active with guards [busy, first]: no row allows drop" in words
    assert "Fix the action" in words


@pytest.mark.parametrize("command", [
    ("check", "--prompts", "1", "--cancels", "1"), ("play", "accept A"), ("diagram", "session")])
def test_an_action_that_fails_is_told_with_its_place_and_is_no_verdict(mine: Path, command: tuple[str, ...]) -> None:
    (mine / "fails.py").write_text(KEEP.replace("stop_active(step)", "step.nope"))
    told = read_refusal(command[0], "--protocol", "fails.py:KEEP", *command[1:])
    assert "protocol keep: AttributeError: " in told
    assert "fails.py:6); the result is inconclusive" in told


def test_a_file_finds_what_lies_beside_it_and_replaces_no_other_module(mine: Path) -> None:
    (mine / "inner").mkdir()
    (mine / "inner" / "beside.py").write_text(KEEP)
    (mine / "inner" / "queue.py").write_text("from beside import KEEP\n")
    assert protocol_named("inner/queue.py:KEEP").name == "keep"
    assert "KEEP" not in vars(importlib.import_module("queue"))
