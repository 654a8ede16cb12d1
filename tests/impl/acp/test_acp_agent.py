"""`cancelmark acp` under the official client of the Agent Client Protocol, and under our own judge."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import acp
import pytest
from support import broken_acp

from cancelmark.conformance.adapter.process import ServerProcess
from cancelmark.conformance.kit import PROFILES, judge
from cancelmark.conformance.report import Report
from cancelmark.impl.adapters.acp import acp_adapter
from cancelmark.impl.adapters.agents import AgentCommand
from cancelmark.impl.cli.main import main

pytestmark = pytest.mark.real
CANCELMARK = (sys.executable, "-m", "cancelmark.impl.cli.main")
SHORT = replace(PROFILES["quick"], histories=12, repeats=1, races=1, shrinks=0, limit=8, decisive=1)


class Editor(acp.Client):
    """The official client, as an editor would write it."""

    def __init__(self) -> None:
        self.updates: list[tuple[str, Any]] = []

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append((session_id, update))

    def said(self, kind: str) -> str:
        return "".join(update.content.text for _, update in self.updates if update.session_update == kind)

    def states(self) -> list[str]:
        found = [update.field_meta["cancelmark"] for _, update in self.updates
                 if update.session_update == "session_info_update"]
        return [told["state"] for told in found]


@asynccontextmanager
async def started(*options: str, editor: Editor | None = None) -> AsyncIterator[tuple[Any, Editor]]:
    """The agent in a process of its own, and an editor that has shaken hands with it."""
    editor = editor or Editor()
    async with acp.spawn_agent_process(editor, *CANCELMARK, "acp", *options) as (agent, _):
        shaken = await agent.initialize(protocol_version=acp.PROTOCOL_VERSION)
        assert shaken.agent_capabilities.load_session
        yield agent, editor


async def test_the_official_client_is_told_the_answer_piece_by_piece(tmp_path: Path) -> None:
    async with started("--memory", "--pace", "0.01") as (agent, editor):
        session = (await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        done = await agent.prompt(session_id=session, prompt=[acp.text_block("hello there, editor")])
        assert done.stop_reason == "end_turn"
        assert done.field_meta["cancelmark"]["outcome"] == "end_turn"
        chunks = [u for _, u in editor.updates if u.session_update == "agent_message_chunk"]
        assert len(chunks) > 1
        assert "hello there, editor" in editor.said("agent_message_chunk")
        assert not editor.said("user_message_chunk")
        assert "active" in editor.states()


async def test_a_cancel_reaches_all_that_was_sent_before_it_and_nothing_after(tmp_path: Path) -> None:
    async with started("--memory", "--pace", "0.01") as (agent, _):
        session = (await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        first = asyncio.create_task(agent.prompt(session_id=session, prompt=[acp.text_block("slow: one " * 40)]))
        second = asyncio.create_task(agent.prompt(session_id=session, prompt=[acp.text_block("fast: two")]))
        await asyncio.sleep(0)
        await agent.cancel(session_id=session)
        third = await agent.prompt(session_id=session, prompt=[acp.text_block("fast: three")])
        assert [(await each).stop_reason for each in (first, second)] == ["cancelled", "cancelled"]
        assert third.stop_reason == "end_turn"


async def test_a_turn_that_fails_is_an_error(tmp_path: Path) -> None:
    async with started("--memory", "--pace", "0.01") as (agent, _):
        session = (await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        with pytest.raises(acp.RequestError):
            await agent.prompt(session_id=session, prompt=[acp.text_block("fail: it")])
        with pytest.raises(acp.RequestError, match="no such session"):
            await agent.prompt(session_id="none", prompt=[acp.text_block("hello")])
        with pytest.raises(acp.RequestError, match="absolute"):
            await agent.new_session(cwd="here", mcp_servers=[])


async def test_a_session_is_found_again_by_the_next_process(tmp_path: Path) -> None:
    options = ("--data-dir", str(tmp_path / "data"), "--pace", "0.01")
    async with started(*options) as (agent, _):
        session = (await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        await agent.prompt(session_id=session, prompt=[acp.text_block("fast: remember me")])
    async with started(*options) as (agent, editor):
        await agent.load_session(cwd=str(tmp_path), session_id=session, mcp_servers=[])
        assert editor.said("user_message_chunk") == "fast: remember me"
        assert "remember me" in editor.said("agent_message_chunk")
        again = await agent.prompt(session_id=session, prompt=[acp.text_block("fast: go on")])
        assert again.stop_reason == "end_turn"
        listed = await agent.list_sessions(cwd=str(tmp_path))
        assert [each.session_id for each in listed.sessions] == [session]
    async with started(*options) as (agent, editor):
        await agent.resume_session(cwd=str(tmp_path), session_id=session, mcp_servers=[])
        assert not editor.updates
        with pytest.raises(acp.RequestError, match="no such session"):
            await agent.load_session(cwd=str(tmp_path), session_id="none", mcp_servers=[])


async def test_two_editors_share_a_session_at_one_server(tmp_path: Path) -> None:
    server = ServerProcess([*CANCELMARK, "serve", "--port", "{port}", "--memory", "--pace", "0.01"],
                           ready="/v1/health")
    await server.start()
    try:
        async with started("--url", server.url) as (one, _), started("--url", server.url) as (two, watcher):
            session = (await one.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
            await two.resume_session(cwd=str(tmp_path), session_id=session, mcp_servers=[])
            running = asyncio.create_task(one.prompt(session_id=session, prompt=[
                acp.text_block("slow: what the other one said " * 20)]))
            while "what" not in watcher.said("agent_message_chunk"):
                await asyncio.sleep(0.02)
            assert "what the other one said" in watcher.said("user_message_chunk")
            await two.cancel(session_id=session)
            assert (await running).stop_reason == "cancelled"
    finally:
        await server.close()


# --- under the judge

def judged(command: tuple[str, ...], mode: str, *scripts: str) -> Report:
    kind = acp_adapter(AgentCommand(command), mode)
    if scripts:
        return judge(kind, fake=kind.make_model, scripts=scripts, times=1)
    return judge(kind, fake=kind.make_model, profile=SHORT)


@pytest.mark.parametrize("mode", ["polite", "free"])
def test_it_conforms(mode: str) -> None:
    report = judged((*CANCELMARK, "acp"), mode)
    assert report.ok, report
    assert report.untested == ([] if mode == "polite" else ["queue-dropped"]), report


def test_it_conforms_as_a_bridge(tmp_path: Path) -> None:
    """The server is outside, on a socket in the file system, which an agent without a network reaches too."""
    kind = acp_adapter(AgentCommand((*CANCELMARK, "acp", "--url", f"unix:{tmp_path / 's'}")), "free")

    class Bridge(kind):  # type: ignore[misc, valid-type]
        @classmethod
        async def prepare(cls, model_url: str) -> None:
            cls.server = ServerProcess(
                [*CANCELMARK, "serve", "--unix", str(tmp_path / "s"), "--memory", "--model", "openai", "--model-name",
                 "turn", "--base-url", model_url], environment={"OPENAI_API_KEY": "none"})
            cls.server._answers = wait_for(tmp_path / "s")  # type: ignore[method-assign]
            await cls.server.start()
            await super().prepare(model_url)

        @classmethod
        async def clean_up(cls) -> None:
            await super().clean_up()
            await cls.server.close()

    report = judge(Bridge, fake=Bridge.make_model, times=1, scripts=[
        "accept A, cancel", "accept A; accept B; cancel", "accept A; accept B; release; release",
        "accept A, cancel, accept B"])
    assert report.ok, report


def wait_for(path: Path) -> Any:
    async def answers() -> bool:
        return path.exists()
    return answers


@pytest.mark.parametrize(("flaw", "mode", "script", "guarantee"), [
    ("CancelLostBeforeFirstToken", "polite", "accept A; cancel", "cancel-stops"),
    ("ErrorForCancelled", "polite", "accept A; cancel", "attribution"),
    ("SecondPromptSwallowed", "free", "accept A; accept B; release", "all-done"),
])
def test_a_broken_copy_is_caught(flaw: str, mode: str, script: str, guarantee: str) -> None:
    report = judged((sys.executable, broken_acp.__file__, flaw), mode, script)
    assert guarantee in report.broken, report


@pytest.mark.parametrize(("options", "says"), [
    (["--url", "http://127.0.0.1:1"], "cannot connect to http://127.0.0.1:1; start it with: cancelmark serve"),
    (["--url", "nonsense"], "--url nonsense: invalid address; expected http://HOST:PORT"),
    (["--url", "http://127.0.0.1:1", "--memory"], "--memory and --url are mutually exclusive"),
    (["--model", "other"], "--model other: choose scripted or openai"),
])
def test_what_it_cannot_do_is_said(options: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["acp", *options]) == 2
    assert says in capsys.readouterr().err
