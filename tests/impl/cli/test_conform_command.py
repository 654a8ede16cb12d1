"""`cancelmark conform` on real servers: ours, broken ones, and things that are none."""

import asyncio
import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.budget import DEEP
from support.commands import COMMAND
from support.runtime_bugs import cancels_are_lost, ends_come_twice
from support.servers import PATIENCE, Process, threaded

from cancelmark.conformance.adapter.fake_llm import FakeModel
from cancelmark.conformance.adapter.guarantees import ORDER
from cancelmark.conformance.playing import observer
from cancelmark.conformance.profile import PROFILES, Profile
from cancelmark.impl.cli.conform import target
from cancelmark.impl.cli.main import main
from cancelmark.impl.models.openai import OpenAIModel
from cancelmark.impl.runtime import Runtime
from cancelmark.impl.server.stream import Encoder

FEW = Profile("quick", histories=25, schedules=0, inside=0, repeats=1, shrinks=20, seconds=10)


def free_port() -> int:
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROFILES, "quick", FEW)


@contextmanager
def steered(**options: Any) -> Iterator[tuple[str, int]]:
    """Our server, in a thread, with the kit's language model."""
    port = free_port()
    with threaded(model=OpenAIModel("turn", base_url=f"http://127.0.0.1:{port}/v1"), **options) as server:
        yield server.url, port


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["conform", *arguments])
    told = capsys.readouterr()
    return code, told.out, told.err


# --- our own server

def test_our_own_server_conforms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `make test-deep` as thoroughly as the command does it; else with fewer plays of each race."""
    if not DEEP:
        monkeypatch.setitem(PROFILES, "quick", replace(PROFILES["quick"], histories=50, limit=inf, races=3, repeats=2))
    port = free_port()
    options = ("--model", "openai", "--model-name", "turn", "--base-url", f"http://127.0.0.1:{port}/v1", "--grace", "1")
    with Process(tmp_path / "data", *options, environment={"OPENAI_API_KEY": "none"}) as server:
        code, out, err = run(capsys, server.url, "--llm-port", str(port), "--grace", "1", "--json",
                             "--junit", str(tmp_path / "j.xml"))
        assert (code, err) == (0, ""), out + err
        assert server.process is not None
        assert server.process.poll() is None
    report = json.loads(out)
    told = {g["id"]: g["status"] for g in report["guarantees"]}
    assert list(told) == [p.id for p in ORDER]
    assert {g for g, status in told.items() if status != "kept"} == {"no-loss"}
    assert (report["verdict"], report["server"]) == ("conforms", server.url)
    suite = ElementTree.parse(tmp_path / "j.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == (str(len(ORDER)), "0", "1")
    with closing(socket.socket()) as again:  # the port of the language model is free again
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))


@pytest.mark.usefixtures("quickly")
def test_a_server_that_cannot_be_steered_is_judged_by_what_can_be_seen(capsys: pytest.CaptureFixture[str]) -> None:
    with threaded() as server:
        code, out, _ = run(capsys, server.url, "--json")
    told = {g["id"]: g for g in json.loads(out)["guarantees"]}
    assert code == 0
    assert {"no-poisoning", "one-terminal", "some-terminal", "closed"} <= {
        id for id, g in told.items() if g["status"] == "kept"}
    assert told["fifo"]["status"] == "not observable"
    assert "cannot control the server's turns" in told["fifo"]["why"]


@pytest.mark.usefixtures("quickly")
def test_green_is_only_what_was_tested(capsys: pytest.CaptureFixture[str]) -> None:
    with threaded() as server:
        code, out, _ = run(capsys, server.url, "--only", "no-lost-cancel")
        assert code == 2
        assert "broken=0 not-tested=0 not-observable=1" in out
        assert out.rstrip().endswith("verdict=unknown kept=0/1")
        both = ("--only", "no-lost-cancel", "--only", "one-terminal")
        assert run(capsys, server.url, *both)[0] == 0
        code, out, _ = run(capsys, server.url, *both, "--require", "one-terminal,no-lost-cancel")
        assert code == 2
        assert "missing=no-lost-cancel" in out


@pytest.mark.parametrize(("options", "complaint"), [
    (("--require", "one-terminal,speed"), "--require speed: unknown guarantee"),
    (("--only", "fifo", "--require", "closed"), "--require closed: --only excludes it"),
    (("--until", "60s"), "--until requires --script, and excludes --times"),
    (("--script", "cancel", "--times", "2", "--until", "2m"), "--until requires --script, and excludes --times"),
    (("--junit", "/no/such/place/j.xml"), "--junit /no/such/place/j.xml: there is no directory /no/such/place"),
    (("--html", "/no/such/place/p.html"), "--html /no/such/place/p.html: there is no directory"),
])
def test_what_is_required_must_be_judged(
    options: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = run(capsys, "http://127.0.0.1:1", *options)
    assert code == 2
    assert complaint in err


@pytest.mark.usefixtures("quickly")
def test_a_server_that_must_not_be_closed_is_left_open(capsys: pytest.CaptureFixture[str]) -> None:
    with threaded() as server:
        _, out, _ = run(capsys, server.url, "--keep-open", "--only", "closed")
        assert len(list(server.site.workspaces)) == 1
    assert "closed     not observable  the adapter cannot close the server" in out


@pytest.mark.usefixtures("quickly")
def test_a_token_is_used(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hush\n")
    with threaded(token="hush") as server:
        for option in (("--token", "hush"), ("--token-file", str(tmp_path / "token"))):
            assert run(capsys, server.url, *option, "--only", "one-terminal")[0] == 0


@pytest.mark.usefixtures("quickly")
def test_a_turn_that_takes_another_in_before_it_asks_is_not_taken_for_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with steered() as (url, port):
        code, out, _ = run(capsys, url, "--llm-port", str(port), "--times", "2", "--script",
                           "accept A; accept B; accept C anonymous; release; release", "--script",
                           "accept A; accept B anonymous; accept C anonymous; release; release")
    assert (code, out.count("nothing broken in 2 runs")) == (0, 2), out


# --- servers with a bug

def places_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Encoder, "parse_offset", lambda self, last_event_id, latest: None)


BUGS: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    cancels_are_lost: "no-lost-cancel",
    ends_come_twice: "one-terminal",
    places_are_forgotten: "delivery",
}


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_is_found_and_told(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    bug(monkeypatch)
    monkeypatch.setattr(target, "PATIENCE", 1.0)
    with steered(stop=1.0) as (url, port):
        code, out, _ = run(capsys, url, "--llm-port", str(port), "--junit", str(tmp_path / "j.xml"),
                           "--only", BUGS[bug])
    assert code == 1
    assert f"{BUGS[bug]} is broken: " in out
    assert "script: accept A" in out
    assert out.rstrip().endswith("verdict=broken kept=0/1")
    cases = ElementTree.parse(tmp_path / "j.xml").iter("testcase")
    failure = {case.get("name"): case.find("failure") for case in cases}[BUGS[bug]]
    assert failure is not None
    assert "accept A ──" in str(failure.text)


# --- what cannot be judged: exit 2, and one line that says why

def test_nobody_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, f"http://127.0.0.1:{free_port()}")
    assert (code, out) == (2, "")
    assert "cannot connect to http://127.0.0.1:" in err
    assert err.endswith("check the URL, or start the server\n")


def test_a_token_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    with threaded(token="hush") as server:
        code, _, err = run(capsys, server.url)
        assert code == 2
        assert "(401 Unauthorized)" in err
        assert err.endswith("the server requires a token; give it with --token\n")
        assert "the token is wrong" in run(capsys, server.url, "--token", "loud")[2]


def test_something_else_runs_there(capsys: pytest.CaptureFixture[str]) -> None:
    ready, over = threading.Event(), threading.Event()
    urls: list[str] = []

    async def serve() -> None:
        async with FakeModel() as fake:
            urls.append(fake.url.removesuffix("/v1"))
            ready.set()
            while not over.is_set():
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        code, _, err = run(capsys, urls[0])
    finally:
        over.set()
        thread.join(PATIENCE)
    assert code == 2
    assert "so it is not a server of this wire protocol" in err
    assert "write an adapter" in err


def test_something_that_is_not_http_runs_there(capsys: pytest.CaptureFixture[str]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        def answer() -> None:
            connection, _ = listener.accept()
            with closing(connection):
                connection.recv(1000)
                connection.sendall(b"SSH-2.0-nothing\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        code, _, err = run(capsys, f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread.join(PATIENCE)
    assert code == 2
    assert "without a valid response; check the address" in err


@pytest.mark.usefixtures("quickly")
def test_a_server_that_does_not_use_the_language_model_is_told_to(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(target, "PATIENCE", 0.5)
    with threaded() as server:
        code, _, err = run(capsys, server.url, "--llm-port", str(free_port()))
    assert code == 2
    assert "the server did not call the kit's language model at http://127.0.0.1:" in err


def test_a_port_that_is_taken_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with threaded() as server, closing(socket.create_server(("127.0.0.1", 0))) as taken:
        code, _, err = run(capsys, server.url, "--llm-port", str(taken.getsockname()[1]))
    assert code == 2
    assert "cannot listen on 127.0.0.1 port" in err


@pytest.mark.parametrize(("arguments", "complaint"), [
    (["localhost"], "localhost: invalid address; expected http://HOST:PORT, https://HOST or unix:PATH"),
    (["http://127.0.0.1:1", "--only", "speed"], "--only speed: unknown guarantee; choose from all-done"),
    (["http://127.0.0.1:1", "--llm-port", "0"], "--llm-port 0: give the port that the server is configured to use"),
    (["http://127.0.0.1:1", "--token-file", "/no/such/file"],
     "--token-file: cannot read /no/such/file: No such file or directory"),
])
def test_bad_usage_is_told_in_one_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert complaint in err
    assert err.count("\n") == 1


def test_nobody_answers(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "ANSWER", 0.2)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        code, _, err = run(capsys, f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert code == 2
    assert "no response within 0.2 s" in err


@pytest.mark.usefixtures("quickly")
def test_a_server_that_hangs_is_told_and_given_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(self: Runtime, session_id: str, **more: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Runtime, "cancel", never)
    monkeypatch.setattr(observer, "CALL", 0.5)
    monkeypatch.setattr(target, "PATIENCE", 0.2)
    with threaded(stop=1.0) as server:
        code, out, _ = run(capsys, server.url)
    assert code == 1
    assert "progress is broken: a call of cancel got no response within " in out
    assert "the judgement stopped: in 3 histories the server did not respond or become quiet" in out


@contextmanager
def judging(directory: Path) -> Iterator[tuple[Process, subprocess.Popen[str]]]:
    """A server, and the command in the middle of judging it. Neither is left behind."""
    with Process(directory / "data", "--pace", "0.01") as server, subprocess.Popen(
            [*COMMAND, "conform", server.url, "--profile", "deep"], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE) as conform:
        try:
            with server.log.open() as log:
                while "workspace opened" not in log.read():
                    time.sleep(0.02)
            yield server, conform
        finally:
            conform.kill()


def test_a_server_that_dies_has_broken_progress(tmp_path: Path) -> None:
    with judging(tmp_path) as (server, conform):
        server.kill()
        out, err = conform.communicate(timeout=PATIENCE)
    if conform.returncode == 2:  # it died before it had accepted a prompt
        assert "no prompt was accepted" in err
        return
    assert (conform.returncode, err) == (1, "")
    assert "progress is broken: the server is gone" in out
    assert "give the adapter a `revive` method" in out


def test_it_can_be_interrupted(tmp_path: Path) -> None:
    with judging(tmp_path) as (_, conform):
        conform.send_signal(signal.SIGINT)
        out, err = conform.communicate(timeout=PATIENCE)
    assert (conform.returncode, out, err) == (130, "", "cancelmark: interrupted\n")


def test_a_server_that_goes_away_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    async def looked(*_: object) -> bool:
        return True  # it was there a moment ago

    monkeypatch.setattr(target, "probe_server", looked)
    code, _, err = run(capsys, f"http://127.0.0.1:{free_port()}")
    assert code == 2
    assert "cannot connect to" in err
    assert "the result is inconclusive" in err


def test_the_help_says_how_to_steer(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["conform", "--help"])
    told = " ".join(capsys.readouterr().out.split())  # however wide the terminal is
    assert "--base-url http://127.0.0.1:4545/v1" in told
    assert "exit codes: 0 conforms or nothing-broken 1 broken 2 unknown, bad usage" in told
