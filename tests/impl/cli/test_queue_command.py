"""What a person does with a queue: stop, hold, resume, drop, edit, move up, cancel one run, send now or if idle."""

import json
import re
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep

import pytest
from support.commands import read_refusal, run_command
from support.servers import PATIENCE, Process

from cancelmark.impl.cli.client.board import Board, draw_board
from cancelmark.impl.cli.client.watch import Lines
from cancelmark.impl.client import Ask, Called, Notice, Prompt, Session


class User:
    """Somebody at a terminal, in a workspace of a server."""

    def __init__(self, server: Process, directory: Path) -> None:
        self.where = ("--server", server.url, "--workspace", str(directory))

    def does(self, *words: str, code: int = 0) -> str:
        return run_command(*words, *self.where, code=code).stdout

    def refused(self, *words: str) -> str:
        return read_refusal(*words, *self.where)

    def tells(self, *words: str, code: int = 0) -> dict[str, object]:
        told: dict[str, object] = json.loads(self.does(*words, "--json", code=code))
        return told

    def queue(self) -> list[str]:
        return [str(text) for text in self.tells("queue")["queued"]]  # type: ignore[attr-defined]

    def seq(self, text: str) -> str:
        (seq,) = [p["seq"] for p in self.tells("queue")["prompts"] if p["text"] == text]  # type: ignore[attr-defined]
        return str(seq)

    def until(self, holds: Callable[[], object]) -> None:
        end = monotonic() + PATIENCE
        while not holds():
            assert monotonic() < end
            sleep(0.02)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with Process(tmp_path_factory.mktemp("server") / "data", "--pace", "10") as server:
        yield server


@pytest.fixture
def user(server: Process, tmp_path: Path) -> User:
    return User(server, tmp_path)


def write_editor(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_queue_is_held_edited_reordered_dropped_and_resumed(
    user: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three prompts queued, hold, edit the second, move the third up, drop the first, resume."""
    assert user.does("hold") == "session default is held\n"
    for name in ("first", "second", "third"):
        user.does("send", "--run-id", name, f"fast: {name}")
    user.until(lambda: len(user.queue()) == 3)
    monkeypatch.setenv("EDITOR", write_editor(tmp_path / "editor", 'sed -i s/second/2nd/ "$1"'))
    monkeypatch.delenv("VISUAL", raising=False)
    second = user.seq("fast: second")
    assert user.does("queue", "edit", second) == f"prompt #{second} has the new text\n"
    third = user.seq("fast: third")
    assert user.does("queue", "up", f"#{third}") == f"prompt #{third} is moved to the front\n"
    first = user.seq("fast: first")
    assert user.does("queue", "drop", first) == f"prompt #{first} is canceled\n"
    assert user.does("queue", "drop", first, code=1) == f"prompt #{first} had already finished: canceled\n"
    told = user.does("queue")
    assert re.fullmatch(r"session default is held: queued prompts do not start until cancelmark resume\n"
                        r" +#\d+  fast: third\n"
                        r" +#\d+  fast: 2nd \(edited\)\n", told)
    assert user.does("resume") == "session default is not held\n"
    told = user.does("run", "--run-id", "second", "fast: second")  # under its run id it is the same, and is waited for
    assert "2nd" in told
    assert user.does("queue", "up", third, code=1) == f"prompt #{third} is no longer waiting: it is end turn\n"


def test_a_session_that_somebody_else_holds_stays_held_after_an_edit(
    user: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    user.does("send", "a long story")
    user.does("send", "waits")
    user.until(lambda: user.queue() == ["waits"])
    seq = user.seq("waits")
    monkeypatch.setenv("EDITOR", "true")
    assert user.does("queue", "edit", seq) == f"prompt #{seq} is unchanged\n"
    assert user.tells("queue")["held"] is False
    user.does("hold")
    again = " ".join((sys.executable, "-m cancelmark.impl.cli.main queue up", seq, *user.where))
    monkeypatch.setenv("EDITOR", write_editor(tmp_path / "slow", f'echo other > "$1"; {again} > /dev/null'))
    assert user.does("queue", "edit", seq) == f"prompt #{seq} has the new text\n"
    assert user.tells("queue")["held"] is True
    drops = again.replace(" up ", " drop ")
    monkeypatch.setenv("EDITOR", write_editor(tmp_path / "late", f'echo mine > "$1"; {drops}'))
    assert user.does("queue", "edit", seq, code=1).endswith(
        f"prompt #{seq} is no longer waiting: it is canceled. Your text: mine\n")
    for editor, says in (("false", "failed with exit status 1; the prompt is unchanged"), ("/nowhere", "No such file"),
                         (write_editor(tmp_path / "empty", 'echo > "$1"'), "text is empty; the prompt is unchanged")):
        user.does("send", "another")
        monkeypatch.setenv("EDITOR", editor)
        assert says in user.refused("queue", "edit", user.seq("another"))
        user.does("queue", "clear")
    assert user.does("queue", "edit", seq, code=1) == f"prompt #{seq} is no longer waiting: it is canceled\n"
    assert user.does("queue", "edit", "99999", code=1) == "prompt #99999 does not exist in this session\n"
    assert "has no prompt 99999" in user.refused("queue", "drop", "99999")
    user.does("cancel")


def test_stop_keeps_the_queue_and_holds_it_if_asked_to(user: User) -> None:
    assert "does not exist yet" in user.refused("stop")
    user.does("send", "--run-id", "story", "a long story")
    user.does("send", "waits")
    user.until(lambda: user.queue() == ["waits"])
    assert re.fullmatch(r"stopped prompt #\d+\nsession default is held\n", user.does("stop", "--hold"))
    assert user.queue() == ["waits"]
    assert user.tells("stop")["stopped"] is None
    assert user.does("stop") == "nothing is running\nsession default is held\n"
    assert user.tells("cancel", "--run", "story", code=1)["outcome"] == "canceled"
    user.does("queue", "clear")
    user.does("resume")


def test_one_run_is_canceled_and_no_other(user: User) -> None:
    for name in ("one", "two"):
        user.does("send", "--run-id", name, f"a story of {name}")
    user.until(lambda: len(user.queue()) == 1)
    assert user.does("cancel", "--run", "two") == "run two is canceled\n"
    assert user.does("cancel", "--run", "one") == "run one is running and was asked to stop\n"
    assert "has no prompt 'three'" in user.refused("cancel", "--run", "three")
    user.until(lambda: "had already finished" in run_command("cancel", "--run", "two", *user.where, code=1).stdout)


def test_send_now_interrupts_and_if_idle_refuses(user: User) -> None:
    user.does("send", "--run-id", "story", "a long story")
    user.does("send", "fast: later")
    assert "is busy; retry when it is idle" in user.refused("send", "--if-idle", "not now")
    user.does("hold")
    assert "is held; resume it" in user.refused("send", "--if-idle", "not now")
    user.does("resume")
    assert "urgent" in user.does("run", "--now", "fast: urgent")
    assert user.tells("cancel", "--run", "story", code=1)["outcome"] == "canceled"


def test_watch_shows_holds_places_and_edits() -> None:
    board = Board()
    board.fill([Session("s", "talk", held=True)], [
        Prompt(1, "s", "active", "one"), Prompt(2, "s", "queued", "two", version=1), Prompt(3, "s", "queued", "three")])
    board.fill([], [Prompt(3, "s", "queued", "three", front=1), Prompt(2, "s", "queued", "2nd", version=2)])
    shown = [line.plain.rstrip() for line in draw_board(board, 100, 20)]
    assert shown[1] == " talk  held"
    assert [re.sub(r"^ +(\d) .*  (?=\S)", r"\1 ", line) for line in shown[2:]] == [
        "1 one", "3 (to the front) three", "2 (edited) 2nd"]
    board.fill([Session("s", "talk")], [])
    assert draw_board(board, 100, 20)[1].plain.rstrip() == " talk"


def test_watch_shows_up_to_where_a_cancel_has_reached() -> None:
    board = Board()
    board.fill([Session("s", "talk"), Session("t", "other", mark=1)], [
        Prompt(1, "t", "done", "one"), Prompt(2, "s", "active", "two"), Prompt(3, "s", "queued", "three")])
    board.take(Notice("", "call", "created", Called("s", "cancel", mark=2), {}))
    board.take(Notice("", "session", "updated", Session("s", "talk"), {}))  # not every answer has the mark
    assert [line.plain.rstrip() for line in draw_board(board, 60, 20) if "mark" in line.plain] == [
        " other  mark ≤ 1", " talk  mark ≤ 2"]
    assert " talk  mark <= 2" in [line.plain.rstrip() for line in draw_board(board, 60, 20, unicode=False)]


def test_watch_says_who_has_called() -> None:
    board = Board()
    board.fill([Session("s", "talk")], [])
    for call, words in (
            (Called("s", "hold", held=True, client_id="0f0f0f0f"), "talk hold by client 0f0f"),
            (Called("s", "stop", seq=2, held=True, client_id="0f0f0f0f"), "talk #2 stop and hold by client 0f0f"),
            (Called("s", "replace", seq=2), "talk #2 edited by client unknown")):
        assert Lines(board, raw=False).tell(Notice("", "call", "created", call, {})) == words


def test_watch_shows_what_a_turn_asks_and_how_that_ended() -> None:
    board = Board()
    board.fill([Session("s", "talk")], [Prompt(2, "s", "active", "two")])
    asked = Ask("2.1", "s", 2, "open", title="run it?")
    for ask, words in (
            (asked, "asks: run it? (cancelmark answer 2.1 allow|deny)"),
            (replace(asked, status="allowed", by="0f0f0f0f"), "question 2.1 allowed by client 0f0f"),
            (replace(asked, status="withdrawn", why="canceled"), "question 2.1 withdrawn: canceled")):
        notice = Notice("", "ask", "created", ask, {})
        assert Lines(board, raw=False).tell(notice) == f"talk #2 {words}"
        board.take(notice)
        assert any(words in line.plain for line in draw_board(board, 110, 20))
