"""Who `cancelmark conform` judges on our own wire: in which workspace, and how the command is written down again."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cancelmark.conformance.playing.script import script
from cancelmark.impl.adapters.wire import OpenWireAdapter
from cancelmark.impl.cli.conform import target
from cancelmark.impl.cli.conform.target import Target, find_target, is_local
from cancelmark.impl.cli.main import parser


@contextmanager
def found(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Iterator[Target]:
    async def probe_server(*_: object) -> bool:
        return True

    async def probe_calls(*_: object) -> frozenset[str]:
        return frozenset()

    monkeypatch.setattr(target, "probe_server", probe_server)
    monkeypatch.setattr(target, "probe_calls", probe_calls)
    with find_target(parser("conform").parse_args(["conform", *arguments])) as judged:
        yield judged


def workspace_of(judged: Target) -> str:
    made = judged.make()
    assert isinstance(made, OpenWireAdapter)
    return made.place


@pytest.mark.parametrize("url", ["http://127.0.0.1:4343", "http://localhost:1", "http://[::1]:1", "unix:/run/server"])
def test_a_server_on_this_machine_gets_a_directory_that_is_gone_afterwards(
    url: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    with found(monkeypatch, url) as judged:
        workspace = Path(workspace_of(judged))
        assert workspace.is_dir()
        assert not list(workspace.iterdir())
        (workspace / "left by the server").write_text("")
    assert not workspace.exists()


@pytest.mark.parametrize("url", ["https://example.org", "http://10.0.0.1:1", "http://localhost.example.org"])
def test_a_server_elsewhere_gets_a_name(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_local(url)
    with found(monkeypatch, url) as judged:
        assert workspace_of(judged).startswith("/cancelmark-conform-")


def test_a_workspace_that_is_given_is_used_and_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with found(monkeypatch, "http://127.0.0.1:1", "--workspace", str(tmp_path)) as judged:
        assert workspace_of(judged) == str(tmp_path)
    assert tmp_path.is_dir()


def test_the_command_says_everything_again_but_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a token").write_text("hush")
    place = str(tmp_path / "it's here")
    given = ["http://127.0.0.1:1", "--token-file", str(tmp_path / "a token"), "--llm-port", "4545",
             "--workspace", place, "--keep-open"]
    with found(monkeypatch, *given) as judged:
        line = judged.reproduce(script("accept A, cancel"))
        assert shlex.split(line) == ["cancelmark", "conform", *given, "--script", "accept A, cancel", "--until", "60s"]
    with found(monkeypatch, "unix:/a path", "--token", "hush", "--profile", "deep") as judged:
        line = judged.reproduce(script("cancel"))
        assert line == "cancelmark conform 'unix:/a path' --token \"$TOKEN\" --script cancel --times 5"
