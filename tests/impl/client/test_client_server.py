"""The client and the server together, over real sockets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import effort
from support.servers import Process, Server, serving

from cancelmark.impl.client import (
    Client,
    Events,
    Message,
    Notice,
    Patience,
    Prompt,
    Refusal,
    RunComplete,
    RunStream,
    Session,
    Unreachable,
    Workspace,
)
from cancelmark.impl.models import Failure, ModelError
from cancelmark.impl.models.scripted import Fail, say

QUICK = Patience(first=0.001, longest=0.05, total=60.0, silence=30.0)


def check(test: Awaitable[None]) -> None:
    async def guarded() -> None:
        async with asyncio.timeout(120):
            await test

    asyncio.run(guarded())


@asynccontextmanager
async def at_work(server: Server) -> AsyncIterator[tuple[Client, Workspace, Session]]:
    async with Client(server.url) as client:
        yield client, *await prepared(client, "/tmp/cancelmark-client")


async def prepared(client: Client, path: str) -> tuple[Workspace, Session]:
    """A workspace that accepts prompts, and a session in it."""
    workspace = await client.open_workspace(path)
    await client.init_agent(workspace.id)
    return workspace, await client.create_session(workspace.id, "a talk")


# --- every call

async def every_call(client: Client) -> None:
    await client.health()
    version = await client.version()
    assert (version.name, version.protocol) == ("cancelmark", 1)
    workspace, session = await prepared(client, "/tmp/cancelmark-calls")
    assert workspace.path == "/tmp/cancelmark-calls"
    assert (await client.open_workspace("/tmp/../tmp/cancelmark-calls")).id == workspace.id
    assert (workspace.clients, workspace.is_ready) == ((client.client_id,), False)
    workspace = replace(workspace, is_ready=True)  # now that its agent was initialized
    assert workspace in await client.workspaces()
    assert await client.workspace(workspace.id) == workspace
    assert session.title == "a talk"
    assert await client.session(workspace.id, session.id) == session
    assert await client.sessions(workspace.id) == (session,)
    agent = await client.agent(workspace.id)
    assert (agent.is_ready, agent.is_busy) == (True, False)
    async with RunStream(client, workspace.id, session.id, "hello") as run:
        end = await run.end()
    assert (end.outcome, end.run_id, end.session_id) == ("end_turn", run.run_id, session.id)
    assert end.text.startswith("You said: hello")
    user, answer = await client.messages(workspace.id, session.id)
    assert (user.role, user.text) == ("user", "hello")
    assert (answer.role, answer.text, answer.finish_reason, answer.id) == (
        "assistant", end.text, "end_turn", end.message_id)
    assert (await client.agent_session(workspace.id, session.id)).is_busy is False
    assert await client.queued(workspace.id, session.id) == 0
    assert await client.queue(workspace.id, session.id) == ()
    [prompt] = await client.prompts(workspace.id, session.id)
    assert (prompt.text, prompt.state, prompt.outcome, prompt.run_id) == ("hello", "done", "end_turn", run.run_id)
    await client.cancel(workspace.id, session.id)
    await client.clear_queue(workspace.id, session.id)
    await client.summarize(workspace.id, session.id)
    await client.release()
    await client.delete_workspace(workspace.id)
    with pytest.raises(Refusal, match="404"):
        await client.workspace(workspace.id)


async def test_every_call_over_tcp() -> None:
    async with serving() as server, Client(server.url) as client:
        await every_call(client)


async def test_every_call_over_a_unix_socket_and_with_a_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    with Process(tmp_path / "data", "--unix", str(tmp_path / "s"), "--token-file", str(token), "--pace", "0"):
        async with Client(f"unix:{tmp_path}/s", token=token.read_text().strip()) as client:
            await every_call(client)
        for wrong in (None, "wrong"):
            async with Client(f"unix:{tmp_path}/s", token=wrong) as client:
                with pytest.raises(Refusal, match=r"401.*token"):
                    await client.version()


async def test_leaving_releases_the_claims() -> None:
    async with serving() as server, Client(server.url) as watcher:
        async with at_work(server) as (client, workspace, _):
            assert client.client_id in server.site.workspaces.get(workspace.id).clients
        assert client.client_id not in server.site.workspaces.get(workspace.id).clients
        assert (await watcher.workspace(workspace.id)).id == workspace.id


# --- what the original's tests pin of the transport

async def test_run_ids_survive_the_wire() -> None:
    async with serving() as server, at_work(server) as (client, workspace, session):
        for run_id in ("plain", "a/b ?&=#\"'\\é→\U0001f600", "x" * 200):
            async with RunStream(client, workspace.id, session.id, "hi", run_id=run_id) as run:
                shown = [notice.payload async for notice in run.events()]
            assert run.result
            assert run.result.run_id == run_id
            assert {s.run_id for s in shown if isinstance(s, Message | Prompt | RunComplete)} == {run_id}
            assert [s.state for s in shown if isinstance(s, Prompt)] == ["accepted", "active"]


async def test_a_canceled_run_never_becomes_a_500() -> None:
    async with serving() as server, at_work(server) as (client, workspace, session):
        server.holds("a")
        async with RunStream(client, workspace.id, session.id, "a") as active, \
                RunStream(client, workspace.id, session.id, "b") as queued:
            await server.model.gate("a").reached()
            await active.cancel()
            ends = [await active.end(), await queued.end()]
            await active.cancel()  # when nothing is left
        assert [(end.outcome, end.error) for end in ends] == [("canceled", "")] * 2


async def test_dropping_a_run_stream_does_not_touch_the_run() -> None:
    async with serving() as server, at_work(server) as (client, workspace, session):
        gate = server.holds("a")
        async with Events(client, workspace.id) as events:
            async with RunStream(client, workspace.id, session.id, "a", run_id="mine"):
                await gate.reached()
            gate.open()
            end = await terminal(events)
            assert (end.run_id, end.outcome) == ("mine", "end_turn")


async def terminal(events: Events) -> RunComplete:
    """The next terminal event."""
    while True:
        if isinstance(end := (await anext(events)).payload, RunComplete):
            return end


# --- several at once

async def test_each_run_gets_its_own_end_and_text_and_error() -> None:
    async with serving() as server, at_work(server) as (_, workspace, session):
        server.plays("bad", (*say("well"), Fail(ModelError(Failure.UNAVAILABLE, "the model is down"))))

        async def run(prompt: str) -> RunComplete:
            async with Client(server.url) as mine, RunStream(mine, workspace.id, session.id, prompt) as stream:
                return await stream.end()

        ends = await asyncio.gather(*map(run, ("one", "bad", "two", "bad", "three")))
        assert [end.outcome for end in ends] == ["end_turn", "error", "end_turn", "error", "end_turn"]
        for end, prompt in zip(ends, ("one", "bad", "two", "bad", "three")):
            assert end.text == "well" if prompt == "bad" else end.text.startswith(f"You said: {prompt}")
            assert end.error == ("the model is down" if prompt == "bad" else "")


async def test_the_same_prompt_under_the_same_run_id_runs_once_and_both_learn_its_end() -> None:
    async with serving() as server, at_work(server) as (client, workspace, session):
        gate = server.holds("a")
        async with RunStream(client, workspace.id, session.id, "a", run_id="x") as one, \
                RunStream(client, workspace.id, session.id, "a", run_id="x") as two:
            gate.open()
            assert await one.end() == await two.end()
        assert server.model.calls == 1
        with pytest.raises(Refusal, match="409"):
            async with RunStream(client, workspace.id, session.id, "b", run_id="x"):
                pass


async def test_the_end_of_a_run_id_that_was_sent_before_is_found() -> None:
    async with serving() as server, at_work(server) as (client, workspace, session):
        for _ in range(2):
            async with RunStream(client, workspace.id, session.id, "a", run_id="x") as run:
                assert (await run.end()).text.startswith("You said: a")
        assert server.model.calls == 1


# --- broken connections

class Cutter:
    """A proxy that passes the bytes of each connection on, and cuts it after so many of them; later ones are whole."""

    def __init__(self, server: Server, cuts: list[int]) -> None:
        self._host, self._port = server.url.removeprefix("http://").split(":")
        self._cuts = iter(cuts)
        self.connections = 0

    async def __aenter__(self) -> "Cutter":
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._pass(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        left = next(self._cuts, None)
        there, back = await asyncio.open_connection(self._host, int(self._port))
        sending = asyncio.ensure_future(copied(reader, back))
        try:
            while chunk := await there.read(4096 if left is None else min(4096, left)):
                writer.write(chunk)
                await writer.drain()
                if left is not None and not (left := left - len(chunk)):
                    break
        except ConnectionError:
            pass
        finally:
            sending.cancel()
            writer.transport.abort()
            back.transport.abort()


async def copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while chunk := await reader.read(4096):
            writer.write(chunk)
            await writer.drain()
    writer.transport.abort()


@settings(max_examples=effort(12), deadline=None)
@given(st.lists(st.integers(1, 3000), max_size=12))
async def test_wherever_connections_are_cut_each_run_gets_exactly_one_end(cuts: list[int]) -> None:
    """Answers to calls are cut as well as streams, so that nobody knows whether a prompt has arrived."""
    async with serving() as server, at_work(server) as (client, workspace, session), \
            Events(client, workspace.id) as witness, Cutter(server, cuts) as cutter:
        async def run(prompt: str) -> RunComplete:
            while True:  # subscribing is not tried again
                with suppress(Unreachable):
                    async with Client(cutter.url) as mine, RunStream(
                            mine, workspace.id, session.id, prompt, run_id=prompt, patience=QUICK) as stream:
                        return await stream.end()

        prompts = [f"prompt {n}" for n in range(4)]
        ends = await asyncio.gather(*map(run, prompts))
        assert [end.run_id for end in ends] == prompts
        assert {end.outcome for end in ends} == {"end_turn"}
        assert server.model.calls == 4
        assert sorted([(await terminal(witness)).run_id for _ in prompts]) == prompts


async def test_a_server_that_is_killed_and_started_again_is_come_back_to(tmp_path: Path) -> None:
    """Each of two watchers sees the end of every run exactly once, and every waiter gets its own."""
    with Process(tmp_path / "data", "--pace", "0.05") as server:
        async with Client(server.url) as client:
            workspace = await client.open_workspace(str(tmp_path))
            await client.init_agent(workspace.id)
            sessions = [await client.create_session(workspace.id, str(n)) for n in range(3)]
            seen: list[list[str]] = [[], []]
            waiting = {str(uuid4()): session for session in sessions for _ in range(4)}

            async def watch(ends: list[str]) -> None:
                async with Events(client, workspace.id, patience=QUICK) as events:
                    started.release()
                    while True:
                        ends.append((await terminal(events)).run_id)

            async def run(run_id: str) -> RunComplete:
                async with RunStream(client, workspace.id, waiting[run_id].id, f"{run_id} says a few words",
                                     run_id=run_id, patience=QUICK) as stream:
                    accepted.release()
                    return await stream.end()

            started, accepted = asyncio.Semaphore(0), asyncio.Semaphore(0)
            watchers = [asyncio.ensure_future(watch(ends)) for ends in seen]
            for _ in watchers:
                await started.acquire()
            runs = [asyncio.ensure_future(run(run_id)) for run_id in waiting]
            for _ in runs:
                await accepted.acquire()
            for _ in range(2):
                before = len(seen[0])
                while len(seen[0]) == before:  # some have ended, and others have not
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            ends = await asyncio.gather(*runs)
            while min(map(len, seen)) < len(waiting):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)
            assert [end.run_id for end in ends] == list(waiting)
            assert {end.outcome for end in ends} == {"end_turn", "error"}
            assert any("interrupted" in end.error for end in ends)
            assert any(end.outcome == "end_turn" for end in ends)
            assert [sorted(ends) for ends in seen] == [sorted(waiting)] * 2


def test_notices_of_unknown_types_are_passed_on_as_they_are() -> None:
    notice = Notice.read("1", '{"type": "lsp", "payload": {"type": "created", "payload": {"a": 1}}}')
    assert (notice.type, notice.change, notice.payload) == ("lsp", "created", {"a": 1})
