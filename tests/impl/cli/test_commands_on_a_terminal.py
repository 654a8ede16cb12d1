"""The commands on a terminal: answers as they come, Ctrl-C, and a live view that leaves the terminal as it was."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commands import COMMAND
from support.hostile import EVENTS, STATUS, Hostile, open_stream, place, says, stream
from support.openai_server import Act, Reply
from support.servers import Process
from support.terminals import Terminal

from cancelmark.impl import discovery
from cancelmark.impl.cli.client.board import KEPT, Board, draw_board
from cancelmark.impl.client import Notice, Prompt, Session


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A server whose model takes seconds for each piece of an answer, minutes for `slow:`, and no time for `fast:`."""
    with Process(tmp_path_factory.mktemp("server") / "data", "--pace", "3") as server:
        yield server


@pytest.fixture
def terminal(server: Process, tmp_path: Path) -> Iterator[Terminal]:
    with Terminal(tmp_path, {"CANCELMARK_DATA_DIR": str(server.directory)}) as terminal:
        yield terminal


def send(server: Process, directory: Path, *arguments: str) -> None:
    """Sends a prompt from elsewhere."""
    subprocess.run([*COMMAND, *arguments], cwd=directory, env=server.environment, check=True, capture_output=True)


# --- run

def test_an_answer_is_shown_as_it_comes_once(tmp_path: Path) -> None:
    with Process(tmp_path / "data", "--pace", "0.4") as server, \
            Terminal(tmp_path, {"CANCELMARK_DATA_DIR": str(server.directory)}) as terminal:
        terminal.run(*COMMAND, "run", "one two three four five six", after="; echo code $?")
        assert "I hear" not in terminal.until("You said: one")
        shown = terminal.until("code 0")
        assert shown.splitlines()[:2] == [
            "You said: one two three four five six", "I am the built-in model, and I repeat what I hear."]


def test_what_it_waits_for_is_told_until_the_answer_begins(terminal: Terminal, server: Process, tmp_path: Path) -> None:
    send(server, tmp_path, "send", "slow: first")
    terminal.run(*COMMAND, "run", "second", after="; echo code $?")
    terminal.until("queued")
    send(server, tmp_path, "cancel")
    assert terminal.until("code 3") == "cancelmark: canceled\ncode 3\n$"


def test_one_interrupt_cancels_and_two_leave(terminal: Terminal) -> None:
    terminal.run(*COMMAND, "run", "one two three four", after="; echo code $?")
    terminal.until("You said:")
    terminal.type("C-c")
    answer, *rest = terminal.until("code 3").splitlines()
    assert re.fullmatch(r"You said: .*\^C", answer)
    assert rest == ["cancelmark: canceling; press Ctrl-C again to exit without waiting", "cancelmark: canceled",
                    "code 3", "$"]
    terminal.run(*COMMAND, "run", "stubborn: " + "one two three four " * 20, after="; echo code $?")
    terminal.until("You said:")
    terminal.type("C-c")
    terminal.until("canceling")
    terminal.type("C-c")
    assert "cancelmark: exiting; the prompt stays on the server" in terminal.until("code 130")


def test_what_others_say_cannot_drive_the_terminal(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "prompt").write_text("fast: red \x1b[31m and \x1b]0;title\x07 bell")
    terminal.run(*COMMAND, "run", "-", after=" < prompt; echo code $?")
    terminal.until("code 0")
    assert "red [31m and ]0;title bell" in terminal.colours


# --- watch

def test_watch_shows_prompts_move_and_leaves_the_terminal_as_it_was(
        terminal: Terminal, server: Process, tmp_path: Path) -> None:
    terminal.run("stty", "-a", after=" > before")
    terminal.run("echo", "here before", after="; " + " ".join(COMMAND) + " watch; echo code $?; stty -a > after")
    assert "● live" in terminal.until("no prompts yet; in another terminal: cancelmark run")
    send(server, tmp_path, "send", "slow: the first prompt")
    send(server, tmp_path, "send", "the second prompt")
    terminal.until(lambda shown: re.search(r"1 ●─{19}● \d+s +slow: the first", shown)
                   and re.search(r"●─{9}● +the second prompt", shown))
    send(server, tmp_path, "queue", "clear")
    terminal.until("⊘ canceled  the second prompt")
    assert "\x1b[32m" in terminal.colours
    for width, height in ((50, 10), (120, 30), (30, 6), (20, 4), (80, 24)):
        terminal.resize(width, height)
        shown = terminal.until(lambda shown, width=width: "q quits" in shown and (  # type: ignore[misc]
            "accepted  queued" in shown) == (width >= 76))
        assert all(len(line) <= width for line in shown.splitlines())
        assert len(shown.splitlines()) <= height
    send(server, tmp_path, "cancel")
    terminal.until("⊘ canceled  slow: the first")
    terminal.type("q")
    assert terminal.until("code 0").splitlines()[:2] == ["here before", "code 0"]
    terminal.until(lambda _: (tmp_path / "after").exists() and (tmp_path / "after").read_text())
    assert (tmp_path / "before").read_text() == (tmp_path / "after").read_text()


@pytest.mark.parametrize("key", ["q", "C-c", "C-d"])
def test_watch_is_left_by_a_key(key: str, terminal: Terminal) -> None:
    terminal.run("env", "COLUMNS=80", "LINES=24", *COMMAND, "watch", after="; echo code $?")
    terminal.until("no prompts yet")
    for width in (60, 70, 50):  # and nothing else happens, for which it would be drawn anew
        terminal.resize(width, 12)
        terminal.until(lambda shown, width=width: re.search(  # type: ignore[misc]
            rf"^.{{{width - 8}}}q quits$", shown, re.MULTILINE))
    terminal.type(key)
    assert terminal.until("code 0") == "code 0\n$"
    terminal.type("-l", "echo typed")
    assert "$ echo typed" in terminal.until("typed"), "what is typed is shown again"


def test_watch_can_be_suspended_and_goes_on(terminal: Terminal, server: Process, tmp_path: Path) -> None:
    terminal.run(*COMMAND, "watch", after="; echo code $?")
    terminal.until("no prompts yet")
    terminal.type("C-z")
    terminal.until("Stopped")
    send(server, tmp_path, "run", "fast: meanwhile")
    terminal.type("fg", "Enter")
    terminal.until("✓ end_turn  fast: mean")
    terminal.type("q")
    terminal.until("$")


def test_watch_comes_back_to_a_server_that_was_killed(tmp_path: Path) -> None:
    with Process(tmp_path / "data", "--pace", "10") as server, \
            Terminal(tmp_path, {"CANCELMARK_DATA_DIR": str(server.directory)}) as terminal:
        terminal.run(*COMMAND, "watch")
        terminal.until("no prompts yet")
        send(server, tmp_path, "send", "one")
        terminal.until(lambda shown: re.search(r"● \d+s +one", shown))
        server.kill()
        terminal.until("retrying")
        server.start()
        shown = terminal.until("✗ error     one")
        assert "interrupted by a restart" in shown
        terminal.until("● live")
        send(server, tmp_path, "send", "fast: two")
        terminal.until("✓ end_turn  fast: two")
        terminal.type("q")


def test_watch_on_a_terminal_without_unicode(terminal: Terminal, server: Process, tmp_path: Path) -> None:
    send(server, tmp_path, "run", "fast: hello")
    terminal.run("env", "PYTHONIOENCODING=ascii", *COMMAND, "watch")
    assert "* live" in terminal.until("o-------------------o---------+ end_turn  fast: hello")
    terminal.type("q")


async def test_watch_catches_up_with_what_it_missed(tmp_path: Path) -> None:
    """The connection breaks, and while it is away a prompt ends: nothing is published after it comes back."""
    def prompts(state: str) -> Reply:
        return says(200, [{"seq": 1, "session_id": "s", "state": state, "text": "hello"}])

    routes: dict[str, Any] = {
        "GET /v1/version": says(200, {"version": "1"}),
        "POST /v1/workspaces": says(200, {"id": "w", "path": "/"}),
        "POST /v1/workspaces/w/agent/init": says(200, {}),
        "GET /v1/workspaces/w/sessions": says(200, [{"id": "s", "title": "default"}]),
        f"{STATUS}/prompts": [prompts("queued"), prompts("active")],
        EVENTS: [stream(place(0), Act.HOLD), open_stream(place(0))]}
    async with Hostile(routes) as server:
        with Terminal(tmp_path, {}) as terminal:
            await asyncio.to_thread(terminal.run, *COMMAND, "watch", "--server", server.address)
            await asyncio.to_thread(terminal.until, "1 queued, 0 active")
            server.released.set()
            await asyncio.to_thread(terminal.until, "0 queued, 1 active")
            terminal.type("q")


# --- the board

def notice(type: str, **payload: object) -> Notice:
    return Notice.read("1", json.dumps({"type": type, "payload": {"type": "updated", "payload": payload}}))


def moved(seq: int, state: str, **more: object) -> Notice:
    return notice("prompt", seq=seq, session_id="s", state=state, text=f"prompt {seq}", **more)


def texts(board: Board, width: int = 100, height: int = 24) -> list[str]:
    return [line.plain for line in draw_board(board, width, height)]


def test_the_board_follows_what_happens() -> None:
    board = Board()
    board.fill([Session("s", "talks")], [Prompt(1, "s", "active", text="prompt 1")])
    for state in ("accepted", "queued"):
        board.take(moved(2, state))
    message = {"id": "m", "session_id": "s", "role": "assistant", "seq": 1}
    board.take(notice("message", **message, parts=[{"type": "text", "data": {"text": "so\nfar"}}]))
    assert [line.split() for line in texts(board)[1:]] == [
        ["talks"], ["1", "●───────────────────●", "0s", "prompt", "1", "so", "far"],
        ["2", "●─────────●", "prompt", "2"]]
    board.take(notice("run_complete", session_id="s", seq=1, outcome="error", error="boom"))
    board.take(moved(2, "done", outcome="canceled"))
    assert [line.split()[1:] for line in texts(board)[2:]] == [
        ["●───────────────────●─────────✗", "error", "prompt", "1", "boom"],
        ["●─────────●───────────────────⊘", "canceled", "prompt", "2"]]


def test_a_board_that_is_too_long_shows_what_is_not_done() -> None:
    board = Board()
    for seq in range(1, 100):
        board.take(moved(seq, "done" if seq % 3 else "queued", **({"outcome": "end_turn"} if seq % 3 else {})))
    shown = texts(board, height=40)
    assert len(shown) == 40
    assert sum("●─────────● " in line for line in shown) == 33
    few = texts(board, height=10)
    assert few[-1] == "  and 26 more"
    assert few[2].split() == ["3", "●─────────●", "prompt", "3"], "those that are next"
    assert texts(board, height=0) == []
    for seq in range(100, 3 * KEPT):
        board.take(moved(seq, "done", outcome="end_turn"))
    assert len(board.cards) == KEPT + 33, "what was done long ago is forgotten"


@pytest.mark.parametrize("width", [1, 10, 20, 40, 75, 76, 100, 200])
def test_no_line_of_a_board_is_too_long(width: int) -> None:
    board = Board()
    wide = "日本語" * 100
    board.fill([Session("s", wide), Session("t", "")], [])
    for seq, state in enumerate(("accepted", "canceled_on_entry", "queued", "active", "done", "unheard of"), 1):
        board.take(moved(seq, state))
        board.take(notice("message", id="m", session_id="s", role="assistant", seq=seq,
                          parts=[{"type": "text", "data": {"text": wide}}]))
    for line in draw_board(board, width, 50):
        assert line.cell_len <= width


HEAVY = {"httpx2", "httpcore2", "anyio", "starlette", "uvicorn", "pydantic", "prometheus_client", "sqlite3", "pydot",
         "numpy", "numba", "importlib.metadata", "cancelmark.impl.client", "cancelmark.impl.runtime",
         "cancelmark.model.variants.catalogue", "cancelmark.model.revisions", "cancelmark.model.cluster.search",
         "rich.progress"}


@pytest.mark.parametrize(("command", "modules"), [
    (["--help"], 110), (["check", "--prompts", "1"], 220), (["check"], 235), (["check", "--json"], 175),
    (["cancel", "--help"], 195), (["run", "--help"], 195),
    (["cancel"], 200), (["run", "hello"], 200), (["send", "hello"], 200), (["watch"], 200),  # there being no server
], ids=str)
def test_a_command_loads_what_it_needs(
    command: list[str], modules: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loading is most of what a short command takes, so a module that nobody needs is noticed here."""
    code = ("import sys; from cancelmark.impl.cli.main import main\n"
            f"try: main({command})\nexcept SystemExit: pass\nprint(*sys.modules)")
    monkeypatch.setenv(discovery.ENVIRONMENT, str(tmp_path))
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = set(loaded.stdout.splitlines()[-1].split())
    assert sorted(HEAVY & names) == []
    assert len(names) <= modules


def test_a_check_collects_nothing() -> None:
    """What a search makes has no circles, and the collector would look at all of it."""
    code = ("import gc; from cancelmark.impl.cli.check import run; from cancelmark.impl.cli.main import parser\n"
            "arguments = parser('check').parse_args(['check', '--prompts', '3', '--cancels', '1', '--json'])\n"
            "gc.collect(); gc.callbacks.append(lambda phase, told: print('collected')); assert run(arguments) == 0")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "collected" not in done.stdout.partition('"verdict"')[0]
