"""The agent for editors against malformed lines, and between an editor and a server that answers late or not at all."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import effort
from support.hostile import ACCEPTED, EVENTS, POST, Hostile, Route, ended, event, open_stream, place, says, stream
from support.openai_server import Act, Framing, Received, Reply
from support.servers import PATIENCE

from cancelmark.impl.acp import agent as agent_module
from cancelmark.impl.acp.agent import NO_SESSION, AcpAgent
from cancelmark.impl.acp.peer import INTERNAL, LONGEST, Peer
from cancelmark.impl.client import Client, Events, Patience

SESSION = "/v1/workspaces/w/sessions/s"
ROUTES: dict[str, Route] = {
    "POST /v1/workspaces": says(200, {"id": "w", "path": "/w"}), "POST /v1/workspaces/w/agent/init": says(200, {}),
    "POST /v1/workspaces/w/sessions": says(200, {"id": "s"}), f"GET {SESSION}": says(200, {"id": "s"}),
    POST: ACCEPTED, EVENTS: open_stream(place(0)),
    f"GET {SESSION}/messages": says(200, []), "GET /v1/workspaces/w/agent/sessions/s/prompts": says(200, [])}
LOST = Reply((Act.RESET,), head=False)


@pytest.fixture(autouse=True)
def mine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts have the run id `mine`, and what failed is asked again soon."""
    monkeypatch.setattr(agent_module, "uuid4", lambda: "mine")
    monkeypatch.setattr(agent_module, "Events", partial(Events, patience=Patience(first=0.001, longest=0.01)))


class Editor:
    """Writes lines to an agent, and reads its answers by their ids."""

    def __init__(self, limit: int) -> None:
        self.lines, self.written, self.more = asyncio.StreamReader(limit=limit), b"", asyncio.Event()

    def write(self, data: bytes) -> None:
        self.written += data
        self.more.set()

    @property
    def heard(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.written.splitlines()]

    def answers(self, id: object) -> list[dict[str, Any]]:
        return [one for one in self.heard if "method" not in one and one["id"] == id]

    def say(self, id: object, method: str, **params: object) -> None:
        self.lines.feed_data(json.dumps({"id": id, "method": method, "params": params}).encode() + b"\n")

    async def ask(self, id: object, method: str, **params: object) -> dict[str, Any]:
        self.say(id, method, **params)
        return await self.answer(id)

    async def answer(self, id: object) -> dict[str, Any]:
        while not self.answers(id):
            await self.more.wait()
            self.more.clear()
        return self.answers(id)[0]

    def text(self) -> str:
        told = [one["params"]["update"] for one in self.heard if one.get("method") == "session/update"]
        return "".join(one["content"]["text"] for one in told if one["sessionUpdate"] == "agent_message_chunk")


@asynccontextmanager
async def bridged(limit: int = LONGEST, **routes: Any) -> AsyncIterator[Editor]:
    """An editor whose agent is at a server with these routes."""
    editor = Editor(limit)
    async with asyncio.timeout(PATIENCE / 4), Hostile(ROUTES | routes) as server, Client(server.address) as client:
        serving = asyncio.create_task(AcpAgent(client, Peer(editor.lines, editor)).serve())
        try:
            yield editor
            assert not serving.done(), "the agent has ended"
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


def deep(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("line", [
    "[" * 50_000, deep(50_000), '{"id":[],"result":1}', '{"id":{},"error":{"code":[]}}',
    '{"id":1,"error":{"code":"x","data":[1]}}', '{"id":[1],"method":"initialize"}', "null", "7", "[]", "\xff", "x",
    '{"id":NaN,"method":"initialize"}', '{"id":"\\ud800","method":"initialize"}', '{"id":2,"method":"\\ud800"}',
    '{"id":3,"method":"session/load","params":{"cwd":"/w","sessionId":"\\ud800"}}',
    '{"id":3,"method":"session/new","params":{"cwd":"\\ud800"}}', '{"id":3,"method":"session/list","params":{"cwd":7}}',
    '{"id":3,"method":"session/prompt","params":{"sessionId":"s","prompt":[{"type":"\\ud800"}]}}', "x" * 3_000_000,
])
async def test_a_malformed_line_is_answered_and_the_next_one_is_heard(line: str) -> None:
    async with bridged(limit=1_000_000) as editor:
        await editor.ask(1, "session/new", cwd="/w")
        editor.lines.feed_data(line.encode("latin-1") + b"\n")
        assert (await editor.ask("next", "session/new", cwd="/w"))["result"] == {"sessionId": "s"}


async def test_a_request_nested_as_deep_as_can_be_read_fails_alone() -> None:
    async with bridged() as editor:
        await editor.ask(1, "session/new", cwd="/w")
        for depth in range(900, 1000):
            for method, name in ("session/new", "cwd"), ("session/prompt", "prompt"), ("session/load", "sessionId"):
                params = f'{{"sessionId": "s", "cwd": "/w", "{name}": [{deep(depth)}]}}'
                editor.lines.feed_data(f'{{"id": 2, "method": "{method}", "params": {params}}}\n'.encode())
            assert "result" in await editor.ask(f"after {depth}", "session/new", cwd="/w")
        await asyncio.sleep(0.1)


@pytest.mark.parametrize(("status", "code"), [
    (404, NO_SESSION), (400, NO_SESSION), (503, INTERNAL), (429, INTERNAL), (401, INTERNAL)])
async def test_that_a_session_is_not_there_is_said_only_if_that_is_known(status: int, code: int) -> None:
    async with bridged(**{f"GET {SESSION}": says(status, {"message": "no"})}) as editor:
        answer = await editor.ask(1, "session/load", cwd="/w", sessionId="s")
        assert answer["error"]["code"] == code


# --- answers in any order, and some of them never

WHOLE = "the whole answer"
REFUSALS = {"500": 500, "429": 429, "503": 503, "408": 408, "409": 409}
PASSING = st.lists(st.sampled_from([*REFUSALS, "reset"]).filter("409".__ne__), max_size=3)
"""What a server answers that has not accepted the prompt, or does not look whether it has."""


def message(text: str) -> dict[str, object]:
    return {"id": "m", "role": "assistant", "session_id": "s", "run_id": "mine",
            "parts": [{"type": "text", "data": {"text": text}}]}


class Accepting:
    """A server that accepts one prompt, once, and tells of it from any place."""

    def __init__(self, before: list[str], how: str, after: list[str], updates: list[int], cut: int | None, gap: bool,
                 late: bool) -> None:
        self.answers, self.cut, self.gap = [*before, how, *after, *["409"] * late], cut, gap
        self.accepted, self.told = asyncio.Event(), asyncio.Event()
        if not late:  # the answer to its posting does not wait for its end
            self.told.set()
        self.events = [event(n, "message", **message(WHOLE[:length])) for n, length in enumerate(updates, 1)]
        self.events.append(ended(len(updates) + 1, "mine", outcome="end_turn", text=WHOLE, message_id="m"))

    @property
    def routes(self) -> dict[str, Any]:
        prompt = {"seq": 1, "session_id": "s", "run_id": "mine", "state": "done", "text": "", "outcome": "end_turn"}
        return {POST: self.post, EVENTS: self.watch,
                f"GET {SESSION}/messages": lambda _: says(200, [message(WHOLE)] * self.accepted.is_set()),
                "GET /v1/workspaces/w/agent/sessions/s/prompts": lambda _: says(200, [prompt] * self.accepted.is_set())}

    def post(self, received: Received) -> Reply:
        how = self.answers.pop(0) if self.answers else "accepted"
        if how in REFUSALS:
            return says(REFUSALS[how], {})
        if how == "reset":
            return LOST
        self.accepted.set()
        answer = b"HTTP/1.1 202 Accepted\r\ncontent-length: 2\r\n\r\n{}"
        last = Act.RESET if how == "reset after" else answer.replace(b"202", b"500") if how == "500 after" else answer
        return Reply((self.told, last), head=False, framing=Framing.UNTIL_CLOSE)

    def watch(self, received: Received) -> Reply:
        seen = int(received.headers.get("last-event-id", 0))
        if self.cut is not None:
            rest, self.cut = self.events[seen:self.cut], None
            return stream(place(seen), self.accepted, *rest, Act.RESET)
        if self.gap:
            return open_stream(self.accepted, event(99, "gap", reason="forgotten"))
        return open_stream(place(seen), self.accepted, *self.events[seen:])


@pytest.mark.rule("R1d", "R22b", "R29e")
@settings(max_examples=effort(60))
@given(before=PASSING, how=st.sampled_from(["accepted", "500 after", "reset after"]), after=PASSING,
       updates=st.lists(st.integers(1, len(WHOLE)), unique=True, max_size=3).map(sorted),
       cut=st.none() | st.integers(0, 3), gap=st.booleans(), late=st.booleans())
async def test_an_editor_is_told_once_how_its_prompt_ended_and_all_of_its_text(
        gap: bool, cut: int | None, **way: Any) -> None:
    """Whatever answers are lost, late, or come before others. An error means that nothing was accepted."""
    server = Accepting(cut=cut if cut is None else min(cut, len(way["updates"])), gap=gap and cut is not None, **way)
    async with bridged(**server.routes) as editor:
        await editor.ask(1, "session/new", cwd="/w")
        answer = await editor.ask(2, "session/prompt", sessionId="s", prompt=[{"type": "text", "text": "hello"}])
        server.told.set()
        await editor.ask(3, "session/prompt", sessionId="s", prompt="")  # comes after all that is asked before it
        assert editor.answers(2) == [answer]
        if "error" in answer:
            assert not server.accepted.is_set()
        else:
            assert answer["result"]["stopReason"] == "end_turn"
            assert editor.text() == WHOLE


async def test_a_workspace_that_could_not_be_watched_is_watched_the_next_time() -> None:
    server = Accepting([], "accepted", [], [], None, False, False)
    init = {"POST /v1/workspaces/w/agent/init": [says(503, {}), says(200, {})]}
    async with bridged(**server.routes, **init) as editor:
        assert "error" in await editor.ask(1, "session/new", cwd="/w")
        assert "result" in await editor.ask(2, "session/new", cwd="/w")
        assert "result" in await editor.ask(3, "session/prompt", sessionId="s", prompt=[])
