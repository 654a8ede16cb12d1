"""What the commands print fits the terminal, also a narrow one."""

import contextlib
import io
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from support.commands import COMMAND
from support.terminals import Terminal

from cancelmark.conformance.report import counted
from cancelmark.impl.cli import explain
from cancelmark.impl.cli.main import COMMANDS, main
from cancelmark.impl.cli.width import fit_line
from cancelmark.model.protocol import REFERENCE
from cancelmark.model.revisions.flaws import FLAWS
from cancelmark.model.trace import replay
from cancelmark.views.traces.text import trace_text

PROGRAM = re.compile(r" *([A-Z_]+=\S+ )*(cancelmark|python|git|make|curl|pip|printf|OPENAI_API_KEY)\b")


def help_of(command: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as said, pytest.raises(SystemExit):
        main([command, "--help"])
    return said.getvalue()


@pytest.mark.parametrize("width", [60, 110])
@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits(monkeypatch: pytest.MonkeyPatch, command: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    too_wide = [line for line in help_of(command).splitlines() if len(line) > width]
    assert all(len(line.split()) == 1 for line in too_wide), too_wide  # an address cannot be broken
    lines = ["", *help_of(command).splitlines()]
    broken = [line for before, line in pairwise(lines) if line.endswith("\\") and not before.endswith("\\")]
    assert all(PROGRAM.match(line) for line in broken), broken  # and not a sentence
    assert not any(re.search(r"\S {3,}\d+ {2,}\S", line) for line in lines)  # two columns of a table in one line


def test_a_command_that_is_broken_is_still_one_command() -> None:
    line = "  cancelmark diagram --protocol r1 trace \"accept A\" \"accept B\" cancel 'enter A, now'        its purpose"
    *command, words = fit_line(line, 50)
    assert len(command) > 1
    assert shlex.split("\n".join(command).replace("\\\n", "")) == [  # as a shell does
        "cancelmark", "diagram", "--protocol", "r1", "trace", "accept A", "accept B", "cancel", "enter A, now"]
    assert all(len(part) <= 50 for part in command)
    assert words.strip() == "its purpose"


def test_an_explanation_stays_in_its_column() -> None:
    assert list(fit_line("  holds         every state was explored, and every property holds", 50)) == [
        "  holds         every state was explored, and", "                every property holds"]


@pytest.mark.parametrize("width", [60, 110])
def test_an_explanation_of_several_lines_is_one_text(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    told = " ".join(help_of("check").split())
    assert "traces may be longer than the shortest (not for a protocol with next or replace)" in told
    assert not re.search(r"^ {16}\S.*\n {6}\S", help_of("check"), re.MULTILINE)


@pytest.mark.parametrize("width", [40, 60, 110])
def test_a_trace_fits(width: int) -> None:
    trace = replay(REFERENCE, ["accept A", "accept B, run id", "accept C", "enter A", "enter B", "cancel"], 1)
    text = trace_text(trace, width)
    assert max(map(len, text.splitlines())) <= width
    assert " ".join(text.split()).count("accepted*") == 3
    assert "B ends: canceled" in " ".join(text.split())


@pytest.mark.parametrize("width", [60, 110])
def test_the_game_fits_and_explains_its_signs(tmp_path: Path, width: int) -> None:
    with Terminal(tmp_path, {}, width=width, height=60) as terminal:
        terminal.run(*COMMAND, "play", "accept A", "cancel")
        assert "q quit" in terminal.until("? help")
        terminal.type("?")
        shown = " ".join(terminal.until("each prompt must").split())
        assert "this step changed it" in shown
        assert "q quit" in shown
        terminal.type("q")


def test_every_flaw_is_listed_with_its_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    listed = capsys.readouterr().out
    for flaw in FLAWS:
        assert f"{flaw.name} " in listed
        assert flaw.says in listed
    assert len({flaw.says for flaw in FLAWS}) == len(FLAWS)


def test_the_list_of_flaws_fits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for width in range(100, 121):
        monkeypatch.setattr(explain, "columns", lambda width=width: width)
        assert main(["explain"]) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= width


def test_a_misspelt_command_is_recognized(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chek"]) == 2
    assert capsys.readouterr().err == "cancelmark: chek: no such command; did you mean check?\n"
    assert main(["xyz"]) == 2
    assert "cancelmark --help lists the commands" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "says"), [
    (["check", "--protcol", "x"], "cancelmark check: unrecognized arguments: --protcol x; did you mean --protocol? "
                                  "(see cancelmark check --help)"),
    (["check", "--zzz"], "cancelmark check: unrecognized arguments: --zzz (see cancelmark check --help)")])
def test_a_misspelt_option_is_recognized(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert capsys.readouterr().err == says + "\n"


def test_every_command_stands_beside_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    listed = " ".join(help_of("--help").splitlines())
    for command, (_, help) in COMMANDS.items():
        assert re.search(rf"  {command} +{re.escape(help)}", listed), command


def test_a_property_is_explained_by_what_breaks_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "no-late-fold"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("no-late-fold: A turn covered by a cancel folds no prompts.")
    assert [flaw.name for flaw in FLAWS if flaw.name in said] == [f.name for f in FLAWS if f.breaks == "no-late-fold"]
    assert main(["explain", "progress"]) == 0
    assert "no named flaw" in capsys.readouterr().out


def test_one_history_is_one_history() -> None:
    assert (counted(1), counted(1203)) == ("1 history", "1,203 histories")
