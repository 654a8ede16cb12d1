"""`cancelmark check` with its engines and reductions."""

import json
from pathlib import Path

import pytest
from support.commands import LAST_LINE, read_refusal, run_command
from support.engines import hide_compilers, need_fast_engine

from cancelmark.impl.cli.check import DEEP_BOUNDS, DEFAULT_BOUNDS
from cancelmark.impl.cli.main import main
from cancelmark.model.properties import Bounds

need_fast_engine()

SMALL = ("--prompts", "2", "--cancels", "1", "--clears", "1")


def test_both_engines_report_alike_and_say_which_they_are() -> None:
    plain, fast = (json.loads(run_command("check", *SMALL, "--engine", engine, "--json").stdout)
                   for engine in ("plain", "fast"))
    assert (plain.pop("engine"), fast.pop("engine")) == ("plain", "fast")
    for figure in ("seconds", "processor_seconds", "states_per_second", "bytes_per_state"):
        assert plain.pop(figure) >= 0
        assert fast.pop(figure) >= 0
    assert plain == fast


def test_a_reduced_search_says_so_and_keeps_the_last_line() -> None:
    done = run_command("check", *SMALL, "--reduce", "finished,symmetry")
    assert "reduced by finished, symmetry: the counts are those of the reduced search" in done.stdout
    assert "fast engine" in done.stdout
    last = LAST_LINE.fullmatch(done.stdout.splitlines()[-1])
    assert last
    assert int(last[1]) < 1236
    assert last[4] == "holds"
    report = json.loads(run_command("check", *SMALL, "--reduce", "all", "--json").stdout)
    assert (report["engine"], report["reductions"]) == ("fast", ["finished", "symmetry", "commuting"])


def test_a_trace_that_may_not_be_shortest_is_not_called_that() -> None:
    broken = ("check", "--revision", "r1", "--prompts", "2", "--cancels", "1", "--property", "no-poisoning")
    assert "a shortest trace, 4 steps" in run_command(*broken, "--reduce", "finished", code=1).stdout
    assert "is violated; a trace, " in run_command(*broken, "--reduce", "commuting", code=1).stdout


def test_deep_covers_what_it_promises() -> None:
    assert DEEP_BOUNDS.allows(Bounds(5, cancels=2, clears=1, requeues=1, crashes=1, sessions=2))
    assert DEEP_BOUNDS.allows(DEFAULT_BOUNDS)


@pytest.mark.parametrize(("arguments", "named"), [
    (["--engine", "slow"], "--engine slow: no such engine; choose plain or fast"),
    (["--reduce", "nothing"], "--reduce nothing: no such reduction; choose all, none or some of finished, symmetry"),
    (["--engine", "plain", "--reduce", "all"], "--engine plain supports no reductions"),
    (["--engine", "plain", "--deep"], "--engine plain supports no reductions"),
    (["--deep", "--prompts", "2"], "--prompts and --deep are mutually exclusive"),
    (["--engine", "fast", "--prompts", "8", "--cancels", "9", "--crashes", "9", "--sessions", "4"],
     "needs more than 63 bits"),
])
def test_bad_usage_is_read_refusal(arguments: list[str], named: str) -> None:
    assert named in read_refusal("check", *arguments)


def test_without_a_compiler_there_is_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hide_compilers(monkeypatch, tmp_path)
    assert "pip install 'cancelmark[fast]'" in read_refusal("check", "--deep")


@pytest.mark.parametrize(("bounds", "told"), [
    (("--prompts", "5", "--cancels", "2", "--clears", "1"), True), (("--prompts", "3", "--cancels", "1"), False),
    (("--prompts", "5", "--cancels", "2", "--clears", "1", "--engine", "plain"), False)])
def test_whoever_will_wait_for_the_plain_engine_is_told_of_the_fast_one(
    bounds: tuple[str, ...], told: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    hide_compilers(monkeypatch, tmp_path)
    main(["check", *bounds, "--max-states", "1000"])
    assert ("pip install 'cancelmark[fast]'" in capsys.readouterr().err) == told
