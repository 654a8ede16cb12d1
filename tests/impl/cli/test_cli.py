"""The command line as people and programs meet it."""

import json
import os
import pty
import re
import signal
import subprocess
import xml.etree.ElementTree as ElementTree
from contextlib import suppress
from pathlib import Path

import pytest
from support.commands import COMMAND, LAST_LINE, read_refusal, run_command, run_on_terminal, run_process


def test_version_and_help() -> None:
    assert re.fullmatch(r"cancelmark \d+\.\d+\.\d+\n", run_command("--version").stdout)
    for command in ("check", "diagram", "revisions", "explain"):
        assert command in run_command("--help").stdout
        assert "cancelmark" in run_command(command, "--help").stdout


@pytest.mark.smoke
@pytest.mark.parametrize(("arguments", "code"), [
    (["check", "--prompts", "1", "--property", "fifo"], 0),
    (["check", "--protocol", "r0", "--prompts", "1", "--cancels", "1", "--property", "no-lost-cancel"], 1),
    (["check", "--prompts", "0"], 2),
    (["nonsense"], 2),
])
def test_a_process_says_and_returns_what_the_command_does(arguments: list[str], code: int) -> None:
    there, here = run_process(*arguments, code=code), run_command(*arguments, code=code)
    assert there.stderr == here.stderr
    assert re.sub(r"[\d.,]+", "", there.stdout) == re.sub(r"[\d.,]+", "", here.stdout), "but for figures"


def test_on_windows_it_says_plainly_that_it_is_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    assert read_refusal("check") == "cancelmark: Windows is not supported; use WSL"


# --- check

def test_check_ends_with_the_figures_and_says_what_holds() -> None:
    done = run_command("check", "--prompts", "2", "--cancels", "1", "--clears", "1")
    last = LAST_LINE.fullmatch(done.stdout.splitlines()[-1])
    assert last
    assert last.groups() == ("1236", "2640", "8", "holds")
    assert done.stderr == "", "no progress bar in a pipe"
    assert "\x1b" not in done.stdout, "no colour in a pipe"
    assert "no-poisoning" in done.stdout


def test_check_json_has_the_same_figures_and_each_property() -> None:
    report = json.loads(run_command("check", "--prompts", "2", "--cancels", "1", "--clears", "1", "--json").stdout)
    assert (report["states"], report["edges"], report["depth"], report["verdict"]) == (1236, 2640, 8, "holds")
    assert {p["verdict"] for p in report["properties"] if p["id"] != "isolation"} == {"holds"}
    assert {p["verdict"] for p in report["properties"] if p["id"] == "isolation"} == {"–"}, "one session: no claim"
    assert all(g["met"] for g in report["goals"] if g["possible"])
    assert sum(report["states_by_depth"]) == report["states"]
    assert report["bytes_per_state"] >= 0


BOUNDS = {"requeue": "requeues", "cancel": "cancels", "clear_queue": "clears", "close": "closes", "crash": "crashes",
          "hold": "holds", "revoke": "revokes"}


@pytest.mark.parametrize("left_out", [[], *([name] for name in BOUNDS), [*BOUNDS]], ids=str)
def test_check_says_first_of_which_actions_its_verdicts_say_nothing(left_out: list[str]) -> None:
    """Those of the protocol whose bound is 0."""
    given = [f"--{bound}=1" for action, bound in BOUNDS.items() if action not in left_out]
    command = ["check", "--protocol", "family:revoke,hold", "--prompts", "1", *given]
    printed, told = run_command(*command).stdout, json.loads(run_command(*command, "--json").stdout)
    named = [f"{action} (--{BOUNDS[action]})" for action in left_out]
    assert sorted(told["not_tried"]) == sorted(named)
    line = printed.splitlines()[1]
    assert line.startswith("not explored, because the bound is 0: ") if named else not line
    assert all(name in line for name in named)


def test_check_of_a_broken_revision_exits_1_and_shows_a_trace() -> None:
    done = run_command(
        "check", "--protocol", "r1", "--prompts", "2", "--cancels", "1", "--property", "no-poisoning", code=1)
    assert "no-poisoning is violated; a shortest trace, 4 steps" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("verdict=violated")


def test_check_of_a_revision_judges_what_it_says_and_no_goals_of_the_reference() -> None:
    run_command("check", "--protocol", "r4", "--prompts", "2", "--property", "record")


def test_traces_of_several_sessions_say_which() -> None:
    report = json.loads(run_command("check", "--prompts", "2", "--cancels", "1", "--sessions", "2", "--json").stdout)
    witness = next(g["witness"]["calls"] for g in report["goals"] if g["id"] == "action cancel")
    assert witness == ["cancel@1"]


def test_check_of_one_property_judges_only_that() -> None:
    report = json.loads(run_command("check", "--prompts", "1", "--property", "fifo", "--json").stdout)
    assert [p["id"] for p in report["properties"]] == ["fifo"]


def test_a_limit_stops_the_check_without_a_verdict() -> None:
    done = run_command("check", "--prompts", "3", "--cancels", "2", "--max-states", "1000", code=2)
    assert done.stdout.splitlines()[-1].endswith("verdict=incomplete")
    assert "more than 1,000 states" in done.stdout
    assert "holds" not in done.stdout
    done = run_command("check", "--prompts", "3", "--cancels", "2", "--max-memory", "1", code=2)
    assert "more than 1 MiB of memory" in done.stdout


def test_an_interrupt_stops_the_check_with_what_it_has() -> None:
    terminal, slave = pty.openpty()
    process = subprocess.Popen([*COMMAND, "check", "--prompts", "6", "--cancels", "3", "--clears", "2"],
                               stdout=subprocess.PIPE, stderr=slave, text=True)
    os.close(slave)
    shown = b""
    while b"states/s" not in shown:  # the search goes on
        shown += os.read(terminal, 4096)
    process.send_signal(signal.SIGINT)
    with suppress(OSError):  # the other end is closed
        while True:
            shown += os.read(terminal, 4096)
    os.close(terminal)
    out, _ = process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in shown
    assert out.splitlines()[-1].endswith("verdict=interrupted")


def test_progress_and_colour_on_a_terminal() -> None:
    shown = run_on_terminal("check", "--prompts", "3", "--cancels", "2")
    assert b"states/s" in shown
    assert b"frontier" in shown
    assert b"\x1b[32mholds" in shown


@pytest.mark.parametrize(("arguments", "named"), [
    (["check", "--prompts", "-1"], "--prompts -1: must be from 1 to 8"),
    (["check", "--prompts", "0"], "--prompts 0"),
    (["check", "--prompts", "1000000"], "--prompts 1000000: must be from 1 to 8"),
    (["check", "--cancels", "-2"], "--cancels -2"),
    (["check", "--sessions", "0"], "--sessions 0"),
    (["check", "--prompts", "two"], "two"),
    (["check", "--property", "no-such"], "no-such: no such property; choose one of no-poisoning"),
    (["check", "--protocol", "r9"], "r9: no such protocol; choose one of r0, r1"),
    (["check", "--max-states", "0"], "--max-states 0"),
    (["check", "--nonsense"], "--nonsense"),
    (["nonsense"], "nonsense"),
    ([], "COMMAND"),
    (["diagram", "circle"], "circle: no such diagram; choose lifecycle, session or trace"),
    (["diagram", "lifecycle", "--format", "bmp"], "bmp: not supported for a lifecycle; choose from svg"),
    (["diagram", "lifecycle", "--format", "text"], "text"),
    (["diagram", "lifecycle", "--format", "png"], "-o"),
    (["diagram", "lifecycle", "accept A"], "accepts no calls"),
    (["diagram", "session", "--protocol", "r4"], "a revision of the original has no session diagram; use"),
    (["diagram", "trace", "--revision", "r4", "--goal", "action cancel"], "--goal: not supported for r4"),
    (["diagram", "trace"], "give either calls"),
    (["diagram", "trace", "enter A"], "enter A"),
    (["diagram", "trace", "fly A"], "fly A"),
    (["diagram", "trace", "--goal", "moon"], "moon: no such goal"),
    (["diagram", "trace", "cancel", "--sessions", "9"], "--sessions 9"),
    (["explain", "no-such-flaw"], "no-such-flaw: no such flaw"),
    (["explain", "run-id-folded", "--revision", "ref"], "the reference does not have run-id-folded"),
    (["explain", "run-id-folded", "--format", "bmp"], "bmp"),
])
def test_bad_usage_is_one_clear_line(arguments: list[str], named: str) -> None:
    assert named in read_refusal(*arguments)


# --- diagrams

@pytest.mark.parametrize("what", ["lifecycle", "session"])
def test_a_diagram_is_written_in_every_form(what: str, tmp_path: Path) -> None:
    svg = tmp_path / "x.svg"
    run_command("diagram", what, "-o", str(svg))
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert run_command("diagram", what, "--format", "dot").stdout.startswith("digraph")
    assert "-->" in run_command("diagram", what, "--format", "mermaid").stdout


@pytest.mark.usefixtures("font")
@pytest.mark.parametrize("what", ["lifecycle", "session"])
def test_a_diagram_is_written_as_a_picture(what: str, tmp_path: Path) -> None:
    png = tmp_path / "x.png"
    run_command("diagram", what, "-o", str(png))
    assert png.read_bytes().startswith(b"\x89PNG")


def test_a_trace_is_drawn_from_calls_and_from_a_goal(tmp_path: Path) -> None:
    calls = ["accept A", "cancel", "accept B", "enter B", "enter A"]
    text = run_command("diagram", "trace", *calls).stdout
    assert "canceled_on_entry" in text.splitlines()[-1]
    assert run_command("diagram", "trace", *calls, "--format", "mermaid").stdout.startswith("sequenceDiagram")
    assert "digraph" in run_command("diagram", "trace", *calls, "--format", "dot").stdout
    itf = json.loads(run_command("diagram", "trace", "--goal", "row fold→done", "--format", "itf").stdout)
    assert len(itf["states"]) == 6
    out = tmp_path / "t.svg"
    run_command("diagram", "trace", "accept A", "accept B@2", "cancel@2", "--sessions", "2", "-o", str(out))
    ElementTree.parse(out)


def test_an_unwritable_file_is_refused_and_nothing_is_left_half_written(tmp_path: Path) -> None:
    assert "cannot write" in read_refusal("diagram", "lifecycle", "-o", str(tmp_path / "no" / "such" / "x.svg"))
    assert "cannot write" in read_refusal("diagram", "lifecycle", "-o", str(tmp_path), "--format", "svg")
    old = tmp_path / "old.svg"
    old.write_text("old")
    read_refusal("diagram", "trace", "accept A", "nonsense", "-o", str(old))
    assert old.read_text() == "old"
    assert os.listdir(tmp_path) == ["old.svg"]


@pytest.mark.parametrize("command", ["explain", "check --prompts 1", "diagram lifecycle"])
def test_output_into_a_closed_pipe_is_no_error(command: str) -> None:
    script = f"set -o pipefail; {' '.join(COMMAND)} {command} | head -1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.parametrize("command", ["explain", "check --prompts 1"])
def test_output_that_cannot_be_written_is_one_clear_line(command: str) -> None:
    done = subprocess.run(["bash", "-c", f"{' '.join(COMMAND)} {command} > /dev/full"], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_terminal_without_unicode_gets_question_marks() -> None:
    done = subprocess.run([*COMMAND, "diagram", "trace", "accept A"], capture_output=True, check=True,
                          env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert b"?" in done.stdout


def test_a_file_is_replaced_through_a_link_and_keeps_its_mode(tmp_path: Path) -> None:
    real, link, pipe = tmp_path / "real.mmd", tmp_path / "link.mmd", tmp_path / "pipe"
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to(real)
    run_command("diagram", "lifecycle", "-o", str(link))
    assert link.is_symlink()
    assert real.read_text().startswith("stateDiagram")
    assert real.stat().st_mode & 0o777 == 0o600
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        run_command("diagram", "lifecycle", "--format", "mermaid", "-o", str(pipe))
        assert reader.communicate()[0].startswith(b"stateDiagram")
    assert pipe.is_fifo()


# --- the history

def test_explain_lists_the_flaws_and_tells_one(tmp_path: Path) -> None:
    assert "queue-stranded-by-error" in run_command("explain").stdout
    told = run_command("explain", "later-prompt-eats-cancel").stdout
    assert "breaks no-poisoning" in told
    assert "The shortest interleaving in r1, 5 steps" in told
    drawn = run_command("explain", "later-prompt-eats-cancel", "--format", "mermaid").stdout
    assert drawn.startswith("sequenceDiagram")
    report = json.loads(run_command("explain", "queue-stranded-by-error", "--revision", "r2", "--json").stdout)
    assert report["revision"] == "r2"
    assert report["calls"][-1].startswith("return")
    out = tmp_path / "f.svg"
    run_command("explain", "later-prompt-eats-cancel", "--format", "svg", "-o", str(out))
    ElementTree.parse(out)
    assert len(json.loads(run_command("explain", "--json").stdout)) > 20
