"""The original's behaviours that only a server can show, over real sockets: end to end, transport and backend.

Those that the models and the runtime show too are in `test_behaviours`.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from support.servers import PATIENCE, Place, Server, Watch, serving

from cancelmark.impl.models.scripted import Stubborn, Wait, say

USER, NORMAL, CANCELED = ("user", None), ("assistant", "end_turn"), ("assistant", "canceled")


@dataclass
class Cast:
    """One server and two clients of the same session, each with its own connections and its own view."""

    server: Server
    a: Place
    b: Place
    seen_by_a: Watch
    seen_by_b: Watch

    def nobody_saw_an_error(self) -> None:
        for watch in (self.seen_by_a, self.seen_by_b):
            assert not watch.of("agent_event")
            assert not [end for end in watch.of("run_complete") if "error" in end]


@pytest.fixture
@asynccontextmanager
async def c() -> AsyncIterator[Cast]:
    async with serving() as server, server.client() as one, server.client() as other:
        a = await server.workspace(one)
        b = a.seen_by(other)
        async with a.watching() as seen_by_a, b.watching() as seen_by_b:
            yield Cast(server, a, b, seen_by_a, seen_by_b)


# --- end to end, several clients over SSE

async def test_a_cancel_right_after_the_202_is_not_lost(c: Cast) -> None:
    for n in range(20):
        gate = c.server.holds(f"p{n}")
        await c.a.send(f"p{n}", f"run-{n}")
        await c.b.do("cancel")
        assert (await c.seen_by_a.end(f"run-{n}"))["outcome"] == "canceled"
        gate.open()
    assert await c.a.spoken() == [USER, CANCELED] * 20
    c.nobody_saw_an_error()


async def test_a_cancel_between_active_and_the_assistant_message_leaves_both_messages(c: Cast) -> None:
    c.server.plays("silent", (Wait("silent"), *say("never")))
    await c.a.send("silent", "run-a")
    await c.seen_by_b.until(lambda w: any(p["state"] == "active" for p in w.of("prompt")))
    await c.b.do("cancel")
    assert (await c.seen_by_a.end("run-a"))["outcome"] == "canceled"
    assert await c.a.spoken() == [USER, CANCELED]


async def test_the_deadline_of_the_posting_request_does_not_own_the_run(c: Cast) -> None:
    gate = c.server.holds("long")
    async with c.server.client() as hasty:
        await c.a.seen_by(hasty).send("long", "run-a")
    await gate.reached()  # the request is over, and so is its connection
    gate.open()
    assert (await c.seen_by_b.end("run-a"))["outcome"] == "end_turn"


async def test_the_run_outlives_its_poster_while_another_client_is_attached(c: Cast) -> None:
    gate = c.server.holds("long")
    async with c.server.client() as third:
        place = c.a.seen_by(third)
        async with place.watching() as watch:
            await place.send("long", "run-a")
            await gate.reached()
        released = await third.delete(f"/v1/clients/{watch.client_id}")
        assert released.json() == {"released": 1}
    gate.open()
    assert (await c.seen_by_b.end("run-a"))["outcome"] == "end_turn"


# --- transport

async def test_run_ids_survive_the_wire(c: Cast) -> None:
    odd = ["run-1", "ünïcödé ☃ \U0001f600", "with spaces and \"quotes\" \\ / ? #", "<b>&amp;", "line\nbreak\r\n\u2028",
           "data: x", "x" * 200]
    for n, run_id in enumerate(odd):
        await c.a.send(f"hello {n}", run_id)
        end = await c.seen_by_b.end(run_id)
        assert end["text"].startswith(f"You said: hello {n}")
    assert [p["run_id"] for p in await c.b.get("prompts")] == odd


async def test_a_canceled_run_never_becomes_a_500(c: Cast) -> None:
    gate = c.server.holds("long")
    answers = [await c.a.post("long", "run-0")]
    await gate.reached()
    for n in range(1, 10):
        posted, canceled = await asyncio.gather(c.a.post("long", f"run-{n}"), c.b.do("cancel"))
        answers += [posted, canceled]
    await c.b.do("cancel")
    for n in range(10):
        assert (await c.seen_by_a.end(f"run-{n}"))["outcome"] == "canceled"
    assert {answer.status_code for answer in answers} == {200, 202}


@pytest.mark.rule("R26")
async def test_dropping_the_posting_request_does_not_touch_the_run(c: Cast) -> None:
    """The poster is gone before it has its answer. What arrived is accepted, and runs."""
    body = json.dumps({"session_id": c.a.session, "prompt": "hello", "run_id": "run-a"}).encode()
    await post_and_leave(c, body, len(body))
    assert (await c.seen_by_b.end("run-a"))["outcome"] == "end_turn"


async def post_and_leave(c: Cast, body: bytes, size: int) -> None:
    """Posts a prompt, and leaves without waiting for an answer."""
    host, port = c.server.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {c.a.url}/agent HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-length: {size}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    writer.close()


async def test_half_a_request_accepts_nothing(c: Cast) -> None:
    body = json.dumps({"session_id": c.a.session, "prompt": "hello", "run_id": "run-a"}).encode()
    await post_and_leave(c, body[:-1], len(body))
    await c.a.send("after it", "run-b")
    await c.seen_by_b.end("run-b")
    assert [p["run_id"] for p in await c.b.get("prompts")] == ["run-b"]


# --- backend

async def no_workspace(c: Cast) -> tuple[int, str]:
    answer = await Place(c.a.http, "unknown", c.a.session).post("hello", "run-x")
    return answer.status_code, answer.json()["message"]


async def not_initialized(c: Cast) -> tuple[int, str]:
    opened = (await c.a.http.post("/v1/workspaces", json={"path": "/not-initialized"})).json()
    place = Place(c.a.http, opened["id"])
    answer = await place.post("hello", "run-x", await place.new_session())
    assert (await c.a.http.get(f"{place.url}/agent")).json()["is_ready"] is False
    return answer.status_code, answer.json()["message"]


async def empty_prompt(c: Cast) -> tuple[int, str]:
    answer = await c.a.post(" \n\t", "run-x")
    return answer.status_code, answer.json()["message"]


async def missing_session(c: Cast) -> tuple[int, str]:
    answer = await c.a.http.post(f"{c.a.url}/agent", json={"prompt": "hello", "run_id": "run-x"})
    return answer.status_code, answer.json()["message"]


async def empty_session(c: Cast) -> tuple[int, str]:
    answer = await c.a.http.post(f"{c.a.url}/agent", json={"session_id": "", "prompt": "hello", "run_id": "run-x"})
    return answer.status_code, answer.json()["message"]


async def unknown_session(c: Cast) -> tuple[int, str]:
    answer = await c.a.post("hello", "run-x", "unknown")
    return answer.status_code, answer.json()["message"]


async def workspace_closing(c: Cast) -> tuple[int, str]:
    c.server.plays("stubborn", (Stubborn((Wait("stubborn"),)),))
    gate = c.server.model.gate("stubborn")
    await c.a.send("stubborn", "run-a")
    await gate.reached()
    deleting = asyncio.ensure_future(c.b.http.delete(c.b.url))
    async with asyncio.timeout(PATIENCE):
        while (await c.a.http.get(f"{c.a.url}/agent")).json()["is_ready"]:
            pass
    answer = await c.a.post("hello", "run-x")
    assert not deleting.done(), "shutdown waits for the run"
    gate.open()
    assert (await deleting).status_code == 200
    return answer.status_code, answer.json()["message"]


@pytest.mark.rule("R27b")
@pytest.mark.parametrize(("attempt", "status", "named"), [
    (no_workspace, 404, "workspace 'unknown'"), (not_initialized, 400, "not initialized"),
    (empty_prompt, 400, "prompt: empty"), (missing_session, 400, "session_id: field required"),
    (empty_session, 400, "session_id: "), (unknown_session, 400, "session_id: there is no session 'unknown'"),
    (workspace_closing, 409, "closing")])
async def test_what_cannot_be_accepted_is_refused_at_once_and_nothing_is_accepted(
    c: Cast, attempt: Callable[[Cast], Awaitable[tuple[int, str]]], status: int, named: str,
) -> None:
    answered, message = await attempt(c)
    assert answered == status
    assert named in message
    assert not [p for p in c.seen_by_a.of("prompt") if p.get("run_id") == "run-x"]
    if attempt is not workspace_closing:
        assert await c.a.get("prompts") == []


async def test_acceptance_returns_at_once_and_shutdown_waits_for_the_run(c: Cast) -> None:
    gate = c.server.model.gate("stubborn")
    c.server.plays("stubborn", (Stubborn((Wait("stubborn"),)), *say("done")))
    await c.a.send("stubborn", "run-a")  # which returned, and its turn has not ended
    await gate.reached()
    workspace = c.server.site.workspaces.get(c.b.id)
    deleting = asyncio.ensure_future(c.b.http.delete(c.b.url))
    while not workspace.runtime.closing:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)
    assert not deleting.done()
    assert not c.seen_by_a.over
    gate.open()
    assert (await deleting).status_code == 200
    await c.seen_by_a.until(lambda w: w.over)
    assert len(c.seen_by_a.ends()) == 1
