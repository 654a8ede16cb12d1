"""The commands for a running server, as processes: what they print, where they find it, and how they end."""

import asyncio
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest
from support.commands import COMMAND
from support.hostile import ACCEPTED, EVENTS, POST, Hostile, open_stream, says
from support.hostile import ended as terminal_event
from support.openai_server import Act, Framing, Received, Reply
from support.servers import Process

from cancelmark.impl.cli.main import main
from cancelmark.impl.client import Client, Workspace
from cancelmark.impl.discovery import find

PATIENCE = 60.0
UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
ECHO = "You said: {}\nI am the built-in model, and I repeat what I hear.\n"


class Done(NamedTuple):
    """What a command has printed."""

    stdout: str
    stderr: str


def flushed(stream: TextIOWrapper) -> Any:
    stream.flush()
    return stream


class User:
    """Somebody at a shell, in a directory, who can reach the server with that data directory."""

    def __init__(self, directory: Path, data: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.environment = {**os.environ, "CANCELMARK_DATA_DIR": str(data)}
        self._started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen([*COMMAND, *arguments], cwd=self.directory, env=self.environment, text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._started.append(process)
        return process

    def run(self, *arguments: str, code: int = 0, stdin: bytes = b"") -> "Done":
        """Runs a command to its end, in this process, because starting one takes longer than what most of them do."""
        out, err, typed = (TextIOWrapper(BytesIO(given), "utf-8") for given in (b"", b"", stdin))
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err), chdir(self.directory):
            patch.setattr("sys.stdin", typed)
            patch.setattr("os.environ", self.environment)
            try:
                ended = main(arguments)
            except SystemExit as exit:
                ended = int(exit.code or 0)
        done = Done(*(stream.buffer.getvalue().decode() for stream in (flushed(out), flushed(err))))
        assert ended == code, done
        return done

    def says(self, *arguments: str, code: int = 0, stdin: bytes = b"") -> str:
        """What a command prints, if it complains of nothing."""
        done = self.run(*arguments, code=code, stdin=stdin)
        assert done.stderr == ""
        return done.stdout

    def refused(self, *arguments: str, stdin: bytes = b"") -> str:
        """The one line with which a command refuses."""
        done = self.run(*arguments, code=2, stdin=stdin)
        assert done.stdout == ""
        [line] = done.stderr.splitlines()
        assert line.startswith("cancelmark")
        return line

    def until(self, holds: Callable[[dict[str, object]], object], *arguments: str) -> None:
        """Asks with --json until it holds."""
        deadline = time.monotonic() + PATIENCE
        while not holds(json.loads(self.says(*arguments, "--json"))):
            assert time.monotonic() < deadline


    def ask(self, question: Callable[[Client, Workspace], Awaitable[None]]) -> None:
        """Asks the server something, without a command."""
        async def asked() -> None:
            running = find(Path(self.environment["CANCELMARK_DATA_DIR"]))
            assert running
            async with asyncio.timeout(PATIENCE), Client(running.url) as client:
                await question(client, await client.open_workspace(str(self.directory)))

        asyncio.run(asked())

    def until_busy(self) -> None:
        """Returns when a session has something to do."""
        async def busy(client: Client, workspace: Workspace) -> None:
            while not any(session.is_busy for session in await client.sessions(workspace.id)):
                await asyncio.sleep(0.01)

        self.ask(busy)


async def streams(client: Client, number: int) -> None:
    """Returns when so many watch the server."""
    while f"cancelmark_streams {number}.0\n" not in (await client.http.get("/metrics")).text:
        await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A server whose model takes no time for a prompt that begins with `fast:`, and more than enough for others."""
    with Process(tmp_path_factory.mktemp("server") / "data", "--pace", "10") as server:
        yield server


@pytest.fixture
def user(server: Process, tmp_path: Path) -> Iterator[User]:
    """Somebody in a new workspace."""
    with User(tmp_path / "work", server.directory) as user:
        yield user


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[User]:
    """Somebody at a server whose model takes no time for anything."""
    with Process(tmp_path / "data", "--pace", "0"), User(tmp_path / "work", tmp_path / "data") as user:
        yield user


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def queued_behind(user: User, *prompts: str) -> None:
    """A prompt that runs until it is canceled, and these queued behind it."""
    user.says("send", "a long story")
    for prompt in prompts:
        user.says("send", prompt)
    user.until(lambda told: len(told["queued"]) == len(prompts), "queue")  # type: ignore[arg-type]


# --- run

def test_run_prints_the_answer_and_nothing_else(user: User) -> None:
    assert user.says("run", "fast: hello") == ECHO.format("hello")


def test_run_takes_words_or_standard_input(user: User) -> None:
    assert user.says("run", "fast:", "hello", "you") == ECHO.format("hello you")
    assert user.says("run", "-", stdin="fast: größer →\n".encode()) == ECHO.format("größer →")


def test_run_ends_as_the_turn_ends(user: User) -> None:
    running = user.start("run", "a b c d")
    user.until_busy()
    user.says("cancel")
    assert ended(running) == (3, "", "cancelmark: canceled\n")


def test_run_reports_as_json(user: User) -> None:
    told = json.loads(user.says("run", "--json", "--run-id", "ünique", "fast: hello"))
    assert (told["outcome"], told["run_id"], told["error"]) == ("end_turn", "ünique", None)
    assert told["text"] + "\n" == ECHO.format("hello")


def test_run_says_why_a_run_failed(failing: User) -> None:
    done = failing.run("run", "fail: a b c d", code=1)
    assert done.stderr == "cancelmark: the run failed: the built-in model fails, because it was told to\n"
    assert done.stdout.startswith("You said:")
    told = json.loads(failing.run("run", "--json", "fail: a b", code=1).stdout)
    assert (told["outcome"], told["error"]) == ("error", "the built-in model fails, because it was told to")


def test_one_interrupt_cancels_the_prompt_and_waits_for_its_end(user: User) -> None:
    running = user.start("run", "a b c d")
    user.until_busy()
    running.send_signal(signal.SIGINT)
    code, out, err = ended(running)
    assert (code, out) == (3, "")
    assert err.splitlines() == ["cancelmark: canceling; press Ctrl-C again to exit without waiting",
                                "cancelmark: canceled"]


def test_two_interrupts_leave_and_the_prompt_goes_on(user: User) -> None:
    running = user.start("run", "--run-id", "left", "stubborn: a b c d")
    user.until_busy()
    running.send_signal(signal.SIGINT)
    assert running.stderr
    assert "canceling" in running.stderr.readline()
    running.send_signal(signal.SIGINT)
    code, out, err = ended(running)
    assert (code, out, err) == (130, "", "cancelmark: exiting; the prompt stays on the server\n")
    again = user.run("run", "--run-id", "left", "stubborn: a b c d", code=3)
    assert again.stderr == "cancelmark: canceled\n", "the prompt was asked to stop, and whoever asks is told its end"


def test_the_end_of_the_client_does_not_touch_the_run(user: User) -> None:
    running = user.start("run", "--run-id", "mine", "a b c d")
    user.until_busy()
    running.kill()
    running.communicate()
    queued = json.loads(user.says("send", "--json", "--run-id", "next", "fast: next"))
    assert json.loads(user.says("queue", "--json"))["queued"] == ["fast: next"], "it is queued behind the run"
    user.says("cancel")
    assert queued["run_id"] == "next"
    assert user.run("run", "--run-id", "mine", "a b c d", code=3)


# --- send, cancel, queue

def test_send_returns_the_run_id_at_once(user: User) -> None:
    run_id = user.says("send", "a b c d").strip()
    assert re.fullmatch(UUID, run_id)
    told = json.loads(user.says("send", "--json", "--run-id", "x", "second"))
    assert told["run_id"] == "x"
    user.says("cancel")
    done = user.run("run", "--run-id", run_id, "a b c d", code=3)
    assert done.stderr == "cancelmark: canceled\n"


def test_the_same_prompt_is_sent_once_under_one_run_id(user: User) -> None:
    for _ in range(3):
        assert user.says("send", "--run-id", "once", "once") == "once\n"
    assert "409" in user.refused("send", "--run-id", "once", "something else")
    assert json.loads(user.says("queue", "--json"))["queued"] == []
    user.says("cancel")


def test_a_prompt_that_folds_joins_the_turn_that_runs(user: User) -> None:
    assert user.says("send", "--fold", "fast: nobody waits for me") == "accepted\n"
    assert json.loads(user.says("send", "--fold", "--json", "fast: nor me"))["run_id"] is None


def test_queue_lists_and_clears_and_cancel_cancels(user: User) -> None:
    assert user.says("queue") == "no prompts are queued in session default\n"
    assert user.says("cancel") == "session default is idle: nothing to cancel\n"
    queued_behind(user, "second \x1b[31m\n prompt", "third")
    assert re.fullmatch(r" +#\d+  second \[31m prompt\n +#\d+  third\n", user.says("queue"))
    assert json.loads(user.says("queue", "list", "--json"))["queued"] == ["second \x1b[31m\n prompt", "third"]
    assert user.says("queue", "clear") == "canceled 2 queued prompts of session default\n"
    assert user.says("queue", "clear") == "no prompts are queued in session default\n"
    assert user.says("cancel") == "canceled all prompts of session default\n"
    user.until(lambda told: not told["was_busy"], "cancel")


def test_a_cancel_covers_what_came_before_and_nothing_after(user: User) -> None:
    queued_behind(user, "second")
    before = user.start("run", "third")
    user.until(lambda told: len(told["queued"]) == 2, "queue")  # type: ignore[arg-type]
    user.says("cancel")
    assert user.says("run", "fast: after") == ECHO.format("after")
    assert ended(before)[0] == 3


# --- where

def test_sessions_are_named_by_title_or_id(user: User) -> None:
    assert user.says("run", "--session", "talks", "fast: a") == ECHO.format("a")
    told = json.loads(user.says("run", "--json", "--session", "talks", "fast: b"))
    again = json.loads(user.says("run", "--json", "--session", told["session_id"], "fast: c"))
    assert again["session_id"] == told["session_id"]
    assert user.refused("cancel", "--session", "none").endswith(
        f"--session none: no such session in {user.directory}; choose from talks")


def test_those_who_are_first_at_the_same_time_share_a_session(user: User) -> None:
    sending = [user.start("send", "--json", f"fast: {n}") for n in range(4)]
    assert len({json.loads(ended(each)[1])["session_id"] for each in sending}) == 1


def test_who_finds_that_another_was_faster_takes_the_other_session(tmp_path: Path) -> None:
    async def test() -> list[Any]:
        routes: dict[str, Any] = {
            "GET /v1/version": says(200, {"version": "1"}),
            "POST /v1/workspaces": says(200, {"id": "w", "path": "/"}),
            "POST /v1/workspaces/w/agent/init": says(200, {}),
            "POST /v1/workspaces/w/sessions": says(200, {"id": "mine", "title": "default"}),
            "GET /v1/workspaces/w/sessions": [
                says(200, []), says(200, [{"id": name, "title": "default"} for name in ("other", "mine")])],
            POST: ACCEPTED}
        async with Hostile(routes) as server:
            process = await asyncio.create_subprocess_exec(*COMMAND, "send", "--server", server.address, "hello",
                                                           stdout=subprocess.PIPE)
            await process.communicate()
            return [received.body["session_id"] for received in server.to(POST)]

    assert asyncio.run(test()) == ["other"]


def test_the_workspace_is_this_directory_or_the_one_that_is_named(user: User, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(user.directory)
    queued_behind(user, "second")
    assert re.fullmatch(r" +#\d+  second\n", user.says("queue", "--workspace", str(link)))
    other = tmp_path / "other"
    other.mkdir()
    assert user.says("queue", "--workspace", str(other)) == "no prompts are queued in session default\n"
    user.says("cancel")
    assert "no such directory" in user.refused("queue", "--workspace", str(tmp_path / "none"))
    assert "no such directory" in user.refused("queue", "--workspace", __file__)


def test_no_server_is_told_how_to_start_one(tmp_path: Path) -> None:
    nobody = User(tmp_path, tmp_path / "data")
    for command in (["run", "x"], ["send", "x"], ["cancel"], ["queue"], ["watch"]):
        assert nobody.refused(*command).endswith(
            "no server is running; start one in another terminal: cancelmark serve")


def test_a_server_that_was_killed_or_does_not_answer_is_noticed(tmp_path: Path) -> None:
    user = User(tmp_path / "work", tmp_path / "data")
    with Process(tmp_path / "data") as server:
        server.kill()
        assert "no server is running" in user.refused("queue")
        announcement = tmp_path / "data" / "server.json"
        told = json.loads(announcement.read_text())
        announcement.write_text(json.dumps({**told, "pid": os.getpid()}))
        refused = user.refused("queue")
        assert f"cannot connect to {server.url}; {announcement} names this address" in refused
        assert refused.endswith("restart it: cancelmark serve")
        announcement.write_text("{")
        assert "no server is running" in user.refused("queue")


def test_a_server_on_a_socket_that_wants_a_token_is_found(tmp_path: Path) -> None:
    user, socket, token = User(tmp_path / "work", tmp_path / "data"), tmp_path / "s", tmp_path / "token"
    with Process(tmp_path / "data", "--unix", str(socket), "--token-file", str(token), "--pace", "0"):
        assert user.says("run", "hello") == ECHO.format("hello")
        other = User(tmp_path / "work", tmp_path / "elsewhere")
        assert "--token-file" in other.refused("run", "--server", f"unix:{socket}", "hello")
        assert other.says("run", "--server", f"unix:{socket}", "--token-file", str(token), "hello")
        assert other.says("run", "--data-dir", str(tmp_path / "data"), "hello")
        token.write_text("not the token of this server")
        assert "give the token's file with --token-file" in user.refused("run", "hello")
        token.write_bytes(b"\xff")
        assert "not a text file" in user.refused("run", "hello")
        assert "No such file" in user.refused("run", "--token-file", str(tmp_path / "none"), "hello")


@pytest.mark.parametrize(("reply", "said"), [
    (says(200, {"version": "9.0.0", "name": "cancelmark", "protocol": 2}),
     "runs Cancelmark 9.0.0 with wire protocol 2; this command uses protocol 1: install the server's version"),
    (says(200, b"<html>It works!</html>", {"content-type": "text/html"}), "does not respond with JSON; check the"),
    (says(404, b"<html>No!</html>", {"content-type": "text/html"}), "is not a Cancelmark server; check the address"),
    (says(500, b""), "the server refused (500 Internal Server Error)"),
    (Reply((b"SSH-2.0-OpenSSH_9.2\r\n", Act.DROP), head=False, framing=Framing.UNTIL_CLOSE),
     "without a valid response; check the address"),
])
def test_something_else_at_that_address_is_said_plainly(reply: Reply, said: str, tmp_path: Path) -> None:
    async def test() -> tuple[bytes, int | None]:
        async with Hostile({"GET /v1/version": reply}) as server:
            process = await asyncio.create_subprocess_exec(*COMMAND, "run", "--server", server.address, "x",
                                                           stderr=subprocess.PIPE)
            return (await process.communicate())[1], process.returncode

    refused, code = asyncio.run(test())
    assert code == 2
    [line] = refused.decode().splitlines()
    assert said in line


def test_an_interrupt_after_the_end_changes_nothing() -> None:
    """The turn has ended, and the command gives back its claim, for which the server takes its time."""
    class Slow(Hostile):
        def reply(self, received: Received) -> Reply:
            if received.method == "DELETE":
                leaving.set()
                return Reply((Act.HOLD,))
            return super().reply(received)

    async def test() -> tuple[int | None, bytes, bytes]:
        end = terminal_event(1, "mine", text="hi")
        async with Slow({
                "GET /v1/version": says(200, {"version": "1"}),
                "POST /v1/workspaces": says(200, {"id": "w", "path": "/"}),
                "POST /v1/workspaces/w/agent/init": says(200, {}),
                "GET /v1/workspaces/w/sessions": says(200, [{"id": "s", "title": "default"}]),
                EVENTS: open_stream(end), POST: ACCEPTED}) as server:
            process = await asyncio.create_subprocess_exec(
                *COMMAND, "run", "--server", server.address, "--run-id", "mine", "hello",
                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            await leaving.wait()
            for _ in range(3):
                process.send_signal(signal.SIGINT)
                await asyncio.sleep(0.05)
            out, err = await process.communicate()
            return process.returncode, out, err

    leaving = asyncio.Event()
    code, out, err = asyncio.run(test())
    assert (out, err) == (b"hi\n", b"")
    assert code == 0


@pytest.mark.parametrize(("arguments", "stdin", "named"), [
    (["run"], b"", "the prompt is empty; give a text, or attach a file with --attach"),
    (["run", ""], b"", "the prompt is empty"),
    (["run", "-"], b" \n", "the prompt is empty"),
    (["run", "-"], b"abc\xff", "standard input: not UTF-8 at byte 3"),
    (["run", os.fsdecode(b"\xff")], b"", "the prompt is not UTF-8"),
    (["run", "--server", "localhost", "x"], b"", "--server localhost: invalid address; expected http://HOST:PORT"),
    (["run", "--server", "http://127.0.0.1:1", "x"], b"", "cannot connect to http://127.0.0.1:1; check the address"),
    (["run", "--server", "unix:/nowhere", "x"], b"", "cannot connect to unix:/nowhere"),
    (["send"], b"", "the prompt is empty"),
    (["send", "--now", "--if-idle", "x"], b"", "not allowed with"),
    (["send", "--fold", "--run-id", "x", "y"], b"", "not allowed with"),
    (["queue", "drop"], b"", "queue drop: missing prompt number; cancelmark queue lists them"),
    (["queue", "up", "first"], b"", "queue up: 'first' is not a prompt number"),
    (["queue", "list", "3"], b"", "queue list: unexpected argument 3; only drop, edit, up accept"),
    (["queue", "swap", "3"], b"", "swap"),
    (["cancel", "now"], b"", "now"),
    (["watch", "--session", "x"], b"", "--session"),
    (["send", "--run-id"], b"", "expected one argument"),
])
def test_bad_usage_is_one_clear_line(arguments: list[str], stdin: bytes, named: str, tmp_path: Path) -> None:
    assert named in User(tmp_path, tmp_path).refused(*arguments, stdin=stdin)


def test_what_the_server_refuses_is_one_clear_line(user: User) -> None:
    assert "run_id" in user.refused("run", "--run-id", "x" * 300, "hello")
    assert "400" in user.refused("run", "--session", "x" * 300, "hello")


# --- a server that goes away

def test_a_run_outlives_the_server_it_waits_for(tmp_path: Path) -> None:
    """The server is killed and started again: who was active is told that it was interrupted, who was queued runs."""
    with Process(tmp_path / "data", "--pace", "10") as server, User(tmp_path / "work", tmp_path / "data") as user:
        active = user.start("run", "a b c d e f g")
        user.until_busy()
        queued = user.start("run", "fast: queued")
        user.until(lambda told: told["queued"] == ["fast: queued"], "queue")
        server.kill()
        server.start()
        code, _, err = ended(active)
        assert (code, err.splitlines()[-1]) == (1, "cancelmark: the run failed: interrupted by a restart of the server")
        assert "retrying" in err
        code, out, _ = ended(queued)
        assert (code, out) == (0, ECHO.format("queued"))


def test_a_server_that_shuts_down_gives_every_run_its_end(tmp_path: Path) -> None:
    with Process(tmp_path / "data", "--pace", "10") as server, User(tmp_path / "work", tmp_path / "data") as user:
        running = [user.start("run", f"slow: {n}") for n in range(3)]
        user.until(lambda told: len(told["queued"]) == 2, "queue")  # type: ignore[arg-type]
        assert server.stop() == 0
        assert [ended(each)[0] for each in running] == [3, 3, 3]


# --- watch, in a pipe

def test_watch_prints_a_line_for_each_event_and_ends_at_an_interrupt(failing: User) -> None:
    watching, raw = failing.start("watch"), failing.start("watch", "--json")
    failing.ask(lambda client, workspace: streams(client, 2))
    failing.says("run", "--run-id", "mine", "fast: hello")
    failing.run("run", "fail: oh no", code=1)
    lines, events = [], []
    assert watching.stdout
    assert raw.stdout
    for line in watching.stdout:
        lines.append(line.rstrip("\n"))
        if "done error" in line:
            break
    for line in raw.stdout:
        events.append(json.loads(line))
        if events[-1]["type"] == "prompt" and events[-1]["payload"]["payload"].get("outcome") == "error":
            break
    assert lines[0] == "default session created"
    assert [line for line in lines if " #1 " in line] == [
        "default #1 accepted fast: hello", "default #1 active fast: hello", "default #1 user fast: hello",
        "default #1 assistant end_turn " + " ".join(ECHO.format("hello").split()),
        "default #1 ended end_turn mine " + " ".join(ECHO.format("hello").split()),
        "default #1 done end_turn fast: hello"]
    assert any(re.fullmatch(rf"default #2 ended error {UUID} the built-in model fails.*", line) for line in lines)
    ends = [event["payload"]["payload"]["outcome"] for event in events if event["type"] == "run_complete"]
    assert ends == ["end_turn", "error"]
    assert all(event["id"] for event in events)
    for each in (watching, raw):
        each.send_signal(signal.SIGINT)
        code, _, err = ended(each)
        assert (code, err) == (0, "")
