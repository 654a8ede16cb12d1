"""The calls of the family over HTTP: what each answers, also too late, sent again, or after its answer was lost."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from support import runtime_bugs
from support.postgres import shared_server
from support.runtime_bugs import KILLED
from support.servers import Place, Process, Server, Watch, placed, serving, web

from cancelmark.impl.client import Client, Refusal
from cancelmark.impl.models import Finish, FinishReason
from cancelmark.impl.models.scripted import Wait, call, say
from cancelmark.model.protocol import REFERENCE


class Scene:
    """A server, a client of it, and one session in which turns wait until they are let go."""

    def __init__(self, server: Server, place: Place, watch: Watch) -> None:
        self.server, self.place, self.watch = server, place, watch

    async def ask(self, method: str, path: str, body: Any = None, session: str | None = None) -> tuple[int, Any]:
        url = f"{self.place.url}/agent/sessions/{session or self.place.session}/{path}"
        answer = await self.place.http.request(method, url, **({} if body is None else {"json": body}))
        return answer.status_code, answer.json()

    async def send(self, text: str, run_id: str | None = None, if_busy: str | None = None) -> tuple[int, Any]:
        body = {"session_id": self.place.session, "prompt": text} | ({"run_id": run_id} if run_id else {})
        answer = await self.place.http.post(f"{self.place.url}/agent",
                                            json=body | ({"if_busy": if_busy} if if_busy else {}))
        return answer.status_code, answer.json()

    async def running(self, text: str = "a", run_id: str | None = "run-a") -> Callable[[], None]:
        """A prompt whose turn is running, and what lets it go."""
        gate = self.server.holds(text)
        await self.send(text, run_id)
        await gate.reached()
        return gate.open

    async def queue(self, *texts: str) -> None:
        for text in texts:
            await self.place.send(text, f"run-{text}")
        await self.place.until(lambda queued: queued[-len(texts):] == list(texts) or not texts, "prompts/list")

    async def waiting(self) -> list[str]:
        return [str(text) for text in await self.place.get("prompts/list")]

    async def ends(self, *run_ids: str) -> list[str]:
        return [(await self.watch.end(run_id))["outcome"] for run_id in run_ids]


@asynccontextmanager
async def scene(**where: Any) -> AsyncIterator[Scene]:
    async with placed(**where) as (server, place), place.watching() as watch:
        yield Scene(server, place, watch)


@pytest.fixture
def s() -> AbstractAsyncContextManager[Scene]:
    return scene()


# --- revoke

@pytest.mark.rule("R30a", "R30b")
async def test_a_revoke_cancels_one_prompt_and_says_what_came_of_it(s: Scene) -> None:
    go = await s.running()
    await s.queue("b", "c")
    dropped = {"seq": 2, "state": "done", "text": "b", "outcome": "canceled"}
    assert await s.ask("DELETE", "prompts/2") == (200, {**dropped, "effect": "canceled"})
    assert await s.ask("DELETE", "prompts/run:run-b") == (200, {**dropped, "effect": "none"})
    asked = {"seq": 1, "effect": "asked", "state": "active", "text": "a"}
    assert await s.ask("DELETE", "prompts/run:run-a") == (200, asked)
    assert await s.ends("run-a", "run-b", "run-c") == ["canceled", "canceled", "end_turn"]
    assert await s.ask("DELETE", "prompts/3") == (
        200, {"seq": 3, "effect": "none", "state": "done", "text": "c", "outcome": "end_turn"})
    go()


@pytest.mark.rule("R27d", "R30a")
async def test_a_revoke_of_nobody_leaves_nothing_behind(s: Scene) -> None:
    other = await s.place.new_session()
    assert (await s.ask("DELETE", "prompts/run:later"))[0] == 404
    assert (await s.ask("DELETE", "prompts/1"))[0] == 404
    assert (await s.ask("DELETE", f"prompts/{10**17}"))[0] == 404
    await s.send("hello", "later")
    assert await s.ends("later") == ["end_turn"]
    assert (await s.ask("DELETE", "prompts/1", session=other))[0] == 404
    code, told = await s.ask("DELETE", "prompts/nobody")
    assert (code, told["message"]) == (400, "prompt: 'nobody' does not name a prompt; give its seq, or run:RUN_ID")


@pytest.mark.rule("R9a", "R30a")
async def test_a_revoke_of_a_folded_prompt_says_whose_turn_has_taken_it_in(s: Scene) -> None:
    s.server.plays("a", (Wait("a"), *call("c1", "look", {}), Finish(FinishReason.TOOL_USE)), say("done"))
    await s.send("a", "run-a")
    await s.server.model.gate("a").reached()
    await s.place.send("and this")
    await s.place.until(lambda queued: queued == ["and this"], "prompts/list")
    s.server.model.gate("a").open()
    await s.watch.end("run-a")
    assert await s.ask("DELETE", "prompts/2") == (
        200, {"seq": 2, "effect": "none", "state": "done", "text": "and this", "outcome": "folded", "into": 1})


@pytest.mark.rule("R30a")
async def test_a_run_id_may_look_like_a_path(s: Scene) -> None:
    go = await s.running()
    for run_id in ("a/text", "text", "/next", "ü %2F?#", "run:x"):
        _, told = await s.send("waits", run_id)
        name = quote(f"run:{run_id}", safe="")
        assert await s.ask("PUT", f"prompts/{name}/text", {"prompt": "other"}) == (
            200, {"seq": told["seq"], "version": 1})
        assert await s.ask("POST", f"prompts/{name}/next") == (200, {"ahead": 0})
        assert (await s.ask("DELETE", f"prompts/{name}"))[1]["text"] == "other"
    assert (await s.ask("PUT", "prompts/1", {"prompt": "x"}))[0] == 404
    assert (await s.ask("POST", "prompts/1"))[0] == 404
    go()


# --- stop, hold, resume

@pytest.mark.rule("R31a", "R31b")
async def test_a_stop_reaches_who_is_in_front_and_keeps_the_queue(s: Scene) -> None:
    assert await s.ask("POST", "stop") == (200, {"stopped": 0, "held": False})
    await s.running()
    await s.queue("b", "c")
    hold_b = s.server.holds("b")
    assert await s.ask("POST", "stop", {"seq": 2}) == (200, {"stopped": 0, "held": False})
    assert await s.ask("POST", "stop", {"seq": 1}) == (200, {"stopped": 1, "held": False})
    assert await s.ends("run-a") == ["canceled"]
    await hold_b.reached()
    assert await s.ask("POST", "stop", {"seq": 1}) == (200, {"stopped": 0, "held": False})  # sent again: nobody else
    hold_b.open()
    assert await s.ends("run-b", "run-c") == ["end_turn", "end_turn"]


@pytest.mark.rule("R31c", "R32a", "R32b", "R32d")
async def test_a_stop_that_holds_starts_nobody(s: Scene) -> None:
    await s.running()
    await s.queue("b")
    assert await s.ask("POST", "stop", {"hold": True}) == (200, {"stopped": 1, "held": True})
    assert await s.ends("run-a") == ["canceled"]
    assert await s.ask("POST", "hold") == (200, {"held": True})
    assert (await s.send("c", "run-c"))[1]["held"] is True
    assert await s.waiting() == ["b", "c"]
    told = await s.place.get()
    assert (told["is_busy"], told["held"]) == (True, True)
    await s.place.do("cancel")
    assert await s.ends("run-b", "run-c") == ["canceled", "canceled"]
    assert (await s.place.get())["held"] is True
    await s.send("d", "run-d")
    assert await s.ask("POST", "resume") == (200, {"held": False})
    assert await s.ask("POST", "resume") == (200, {"held": False})
    assert await s.ends("run-d") == ["end_turn"]
    holds = [e["payload"] for e in s.watch.seen if e["type"] == "session"]
    assert [(h["type"], h["payload"]["held"], h["payload"]["title"]) for h in holds] == [
        ("updated", True, "a session"), ("updated", False, "a session")]


# --- replace, next

@pytest.mark.rule("R33a", "R33b")
async def test_a_text_is_replaced_until_its_prompt_begins(s: Scene) -> None:
    go = await s.running()
    await s.queue("b")
    assert await s.ask("PUT", "prompts/2/text", {"prompt": "B"}) == (200, {"seq": 2, "version": 1})
    assert await s.ask("PUT", "prompts/2/text", {"prompt": "B", "if_version": 0}) == (200, {"seq": 2, "version": 1})
    code, told = await s.ask("PUT", "prompts/2/text", {"prompt": "C", "if_version": 0})
    assert (code, told["code"], told["version"], told["state"]) == (412, "other_version", 1, "queued")
    assert await s.ask("PUT", "prompts/2/text", {"prompt": "C", "if_version": 1}) == (200, {"seq": 2, "version": 2})
    assert await s.waiting() == ["C"]
    assert await s.ask("GET", "prompts/list?full=true") == (200, [
        {"seq": 2, "session_id": s.place.session, "state": "queued", "text": "C", "run_id": "run-b", "version": 2}])
    assert (await s.ask("PUT", "prompts/2/text", {"prompt": " "}))[0] == 400
    code, told = await s.ask("PUT", "prompts/1/text", {"prompt": "x"})
    assert (code, told["code"], told["state"]) == (409, "too_late", "active")
    assert await s.ask("PUT", "prompts/1/text", {"prompt": "a"}) == (200, {"seq": 1, "version": 0})
    go()
    assert await s.ends("run-b") == ["end_turn"]
    assert [request.prompt for request in s.server.requests] == ["a", "C"]
    assert await s.ask("PUT", "prompts/2/text", {"prompt": "C"}) == (200, {"seq": 2, "version": 2})
    code, told = await s.ask("PUT", "prompts/2/text", {"prompt": "D"})
    assert (code, told["state"], told["outcome"], told["version"]) == (409, "done", "end_turn", 2)
    told_of = [(p["text"], p.get("version", 0)) for p in s.watch.of("prompt") if p["seq"] == 2]
    assert told_of[1:4] == [("b", 0), ("B", 1), ("C", 2)]


@pytest.mark.rule("R22b", "R22c", "R33a")
@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres"])
async def test_a_post_that_is_repeated_is_compared_with_the_text_of_acceptance(store: str, tmp_path: Path) -> None:
    """However often the text was replaced since then, and also when the prompt is done."""
    where: Any = {"directory": tmp_path} if store == "sqlite" else {}
    if store == "postgres":
        where["database"] = shared_server().url(shared_server().new_database())
    async with scene(**where) as s:
        async def repeat() -> None:
            for edits, text in enumerate("bcde"):
                code, answer = await s.send(text, f"run-{text}")
                assert (code, answer["seq"]) == (202, 2 + edits)
                assert [(await s.send(text * n, f"run-{text}"))[0] for n in range(2, 6)] == [409] * 4

        go = await s.running()
        await s.queue(*"bcde")
        for edits, text in enumerate("bcde"):
            for n in range(edits):
                assert (await s.ask("PUT", f"prompts/run:run-{text}/text", {"prompt": text * (n + 2)}))[0] == 200
        await repeat()
        go()
        assert await s.ends(*(f"run-{text}" for text in "bcde")) == ["end_turn"] * 4
        await repeat()


@pytest.mark.rule("R34a", "R34b")
async def test_next_goes_ahead_of_all_that_wait(s: Scene) -> None:
    go = await s.running()
    await s.queue("b", "c", "d")
    assert await s.ask("POST", "prompts/3/next") == (200, {"ahead": 0})
    assert await s.ask("POST", "prompts/run:run-d/next") == (200, {"ahead": 0})
    assert await s.ask("POST", "prompts/4/next") == (200, {"ahead": 0})
    assert await s.waiting() == ["d", "c", "b"]
    code, told = await s.ask("POST", "prompts/1/next")
    assert (code, told["code"], told["state"]) == (409, "too_late", "active")
    go()
    await s.ends("run-b", "run-c", "run-d")
    assert [request.prompt for request in s.server.requests] == ["a", "d", "c", "b"]
    code, told = await s.ask("POST", "prompts/4/next")
    assert (code, told["state"], told["outcome"]) == (409, "done", "end_turn")


# --- if_busy

@pytest.mark.rule("R35a")
async def test_reject_wants_an_idle_session_and_a_retry_is_not_refused_by_itself(s: Scene) -> None:
    gate = s.server.holds("a")
    assert (await s.send("a", "run-a", "reject"))[0] == 202
    await gate.reached()
    assert (await s.send("a", "run-a", "reject"))[1]["seq"] == 1
    code, told = await s.send("b", "run-b", "reject")
    assert (code, told["code"]) == (409, "busy")
    gate.open()
    await s.ends("run-a")
    await s.ask("POST", "hold")
    assert (await s.send("b", "run-b", "reject"))[0] == 409
    await s.ask("POST", "resume")
    assert (await s.send("b", "run-b", "reject"))[0] == 202
    together = await asyncio.gather(*(s.send(f"p{n}", f"run-p{n}", "reject") for n in range(8)))
    assert sum(code == 202 for code, _ in together) <= 1
    assert (await s.send("x", None, "sometimes"))[0] == 400


@pytest.mark.rule("R35b")
async def test_an_interrupt_stops_what_runs_and_keeps_what_waits(s: Scene) -> None:
    await s.running()
    await s.queue("b")
    assert (await s.send("now", "run-now", "interrupt"))[0] == 202
    assert await s.ends("run-a", "run-now", "run-b") == ["canceled", "end_turn", "end_turn"]
    assert [request.prompt for request in s.server.requests] == ["a", "now", "b"]


# --- who has called

async def test_those_who_watch_are_told_what_was_called_and_by_whom(s: Scene) -> None:
    """Of each call that has done something, once; who does not say its name is nobody."""
    go = await s.running()
    await s.queue("b", "c")
    me = "0F0F0F0F-0000-4000-8000-00000000000A"
    s.place.http.headers["Client-Id"] = me
    for _ in range(2):
        await s.ask("POST", "hold")
        await s.ask("PUT", "prompts/2/text", {"prompt": "B"})
        await s.ask("DELETE", "prompts/3")
    await s.ask("POST", "stop", {"seq": 9})
    await s.ask("POST", "prompts/2/next")
    await s.ask("POST", "stop", {"hold": True})
    del s.place.http.headers["Client-Id"]
    go()
    await s.ask("POST", "resume")
    await s.watch.until(lambda watch: any(told["call"] == "resume" for told in watch.of("call")))
    mine = [{"call": "hold", "held": True}, {"call": "replace", "seq": 2}, {"call": "revoke", "seq": 3},
            {"call": "next", "seq": 2}, {"call": "stop", "seq": 1, "held": True}]
    known = {"session_id": s.place.session, "mark": 0}
    assert s.watch.of("call") == [
        *({**known, **told, "client_id": me.lower()} for told in mine), {**known, "call": "resume"}]
    s.place.http.headers["Client-Id"] = "x"
    code, told = await s.ask("POST", "cancel")
    assert (code, told["message"]) == (400, "client-id: 'x' is not a UUID; generate one and keep it")
    del s.place.http.headers["Client-Id"]


# --- lost answers

LOST: dict[str, tuple[str, str, Any, Callable[[Scene], Awaitable[bool]], Any]] = {
    "revoke": ("DELETE", "prompts/2", None, lambda s: gone(s, "b"), {"effect": "none", "outcome": "canceled"}),
    "stop by name": ("POST", "stop", {"seq": 1}, lambda s: ended(s, "run-a"), {"stopped": 0}),
    "stop and hold by name": ("POST", "stop", {"seq": 1, "hold": True}, lambda s: is_held(s), {"held": True}),
    "hold": ("POST", "hold", None, lambda s: is_held(s), {"held": True}),
    "resume": ("POST", "resume", None, lambda s: is_held(s, False), {"held": False}),
    "replace": ("PUT", "prompts/2/text", {"prompt": "B", "if_version": 0}, lambda s: gone(s, "b"), {"version": 1}),
    "next": ("POST", "prompts/3/next", None, lambda s: first(s, "c"), {"ahead": 0}),
}


async def gone(s: Scene, text: str) -> bool:
    return text not in await s.waiting()


async def first(s: Scene, text: str) -> bool:
    return (await s.waiting())[0] == text


async def ended(s: Scene, run_id: str) -> bool:
    return bool(await s.watch.end(run_id))


async def is_held(s: Scene, held: bool = True) -> bool:
    return bool((await s.place.get()).get("held", False) is held)


@pytest.mark.parametrize("call", LOST)
async def test_a_call_whose_answer_is_lost_is_repeated(call: str) -> None:
    """The caller hangs up before it has read the answer, and asks again: nothing happens twice."""
    method, path, body, done, again = LOST[call]
    async with serving() as server, server.client() as http:
        place = await server.workspace(http)
        async with place.watching() as watch:
            s = Scene(server, place, watch)
            go = await s.running()
            await s.queue("b", "c")
            gate = server.holds("b")
            if call == "resume":
                await s.ask("POST", "hold")
            await hang_up(server.url, method, f"{place.url}/agent/sessions/{place.session}/{path}", body)
            while not await done(s):
                await asyncio.sleep(0.002)
            before = await place.get("prompts")
            code, told = await s.ask(method, path, body)
            assert code == 200
            assert {name: told.get(name) for name in again} == again
            assert await place.get("prompts") == before or call.startswith("stop")
            await s.ask("POST", "resume")
            gate.open()
            go()
            expected = {"revoke": "canceled"}.get(call, "end_turn")
            assert await s.ends("run-b", "run-c") == [expected, "end_turn"]


@pytest.mark.parametrize("mode", ["queue", "reject", "interrupt"])
@pytest.mark.rule("R22b", "R35a")
async def test_a_post_whose_answer_is_lost_is_repeated_in_every_mode(mode: str) -> None:
    async with serving() as server, server.client() as http:
        place = await server.workspace(http)
        async with place.watching() as watch:
            s = Scene(server, place, watch)
            gate = server.holds("x")
            body = {"session_id": place.session, "prompt": "x", "run_id": "run-x", "if_busy": mode}
            lost = asyncio.ensure_future(hang_up(server.url, "POST", f"{place.url}/agent", body))
            codes = [(await s.send("x", "run-x", mode))[0] for _ in range(20)]
            await lost
            assert set(codes) == {202}
            gate.open()
            assert await s.ends("run-x") == ["end_turn"]
            assert len(await place.get("prompts")) == 1


COPIES: list[tuple[str, str, Any]] = [
    *(("POST", "", {"prompt": "x", "run_id": "run-x", "if_busy": mode}) for mode in ("queue", "reject", "interrupt")),
    ("POST", "cancel", None), ("POST", "hold", None), ("POST", "resume", None), ("POST", "prompts/clear", None),
    ("POST", "stop", {"seq": 1}), ("DELETE", "prompts/run:run-b", None), ("DELETE", "prompts/run:run-a", None),
    ("PUT", "prompts/run:run-b/text", {"prompt": "B"}), ("POST", "prompts/run:run-c/next", None),
    ("POST", "", {"prompt": "b", "run_id": "run-b"}), ("POST", "", {"prompt": "c", "run_id": "run-b"}),
]


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("store", ["memory", "database"])
@pytest.mark.rule("R22b", "R35a")
async def test_a_call_that_comes_several_times_at_once_is_answered_the_same(store: str, busy: bool) -> None:
    """But for where its prompt is by then, and what only one of them can have done."""
    where = {"database": shared_server().url(shared_server().new_database())} if store == "database" else {}
    async with serving(**where) as server, server.client() as http:
        place = await server.workspace(http)
        server.holds("a")
        for number, (method, path, body) in enumerate(COPIES):
            session = await place.new_session()
            own = f"{number}-"

            def named(text: str, own: str = own) -> str:
                return text.replace("run-", f"run-{own}")

            if busy:
                for text in "abc":
                    await place.send(text, named(f"run-{text}"), session)
                edit = f"{place.url}/agent/sessions/{session}/prompts/{named('run:run-b')}/text"
                for text in ("edited", "edited twice"):
                    assert (await http.put(edit, json={"prompt": text})).status_code == 200
                first = (await http.get(f"{place.url}/agent/sessions/{session}/prompts")).json()[0]["seq"]
                body = {"seq": first} if path == "stop" else body
            url = f"{place.url}/agent/sessions/{session}/{named(path)}" if path else f"{place.url}/agent"
            if not path:
                body = {"session_id": session, **body, "run_id": named(body["run_id"])}
            answers = await asyncio.gather(*(http.request(method, url, **({"json": body} if body else {}))
                                             for _ in range(3)))
            told = [(answer.status_code, [answer.json().get(name) for name in ("seq", "held", "code", "version")])
                    for answer in answers]
            assert told == told[:1] * 3, (method, path, body, told)
            if busy and not path and body["prompt"] == "b":
                assert answers[0].status_code == 202, "what was accepted is, however often it was edited"
            await place.do("cancel", session)


async def hang_up(url: str, method: str, path: str, body: Any) -> None:
    """Sends a call, and is gone before its answer."""
    where = urlsplit(url)
    data = b"" if body is None else json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(f"{method} {path} HTTP/1.1\r\nhost: {where.netloc}\r\ncontent-type: application/json\r\n"
                 f"content-length: {len(data)}\r\n\r\n".encode() + data)
    await writer.drain()
    await asyncio.sleep(0.005)
    writer.transport.abort()
    del reader


# --- kills

FOR_EVER, AT_ONCE = ("--pace", "3600"), ("--pace", "0")
Queue = list[tuple[str, int]]  # texts with their versions
BEGIN: Queue = [("a", 0), ("b", 0), ("c", 0), ("d", 0)]


class Killed:
    """A server that is killed as soon as a call is answered, and started again. Turns do not end before the last life,
    so nothing depends on how soon the kill comes."""

    def __init__(self, server: Process, workspace: str, session: str) -> None:
        self.server, self.place = server, (workspace, session)
        self.queue = list[tuple[str, int]]()  # as callers were told

    @classmethod
    async def prepare(cls, server: Process, kill: bool) -> "Killed":
        """Four prompts wait in a session that was held, with or without a kill after the hold."""
        async with Client(server.url) as client:
            workspace = (await client.open_workspace("/tmp")).id
            await client.init_agent(workspace)
            story = cls(server, workspace, (await client.create_session(workspace, "s")).id)
        await story.call(lambda c: c.hold(*story.place), kill)
        async with Client(server.url) as client:
            await client.init_agent(workspace)
            for text, _ in BEGIN:
                await client.send(*story.place, text, f"run-{text}")
        story.queue = list(BEGIN)
        await story.check()
        return story

    async def call(self, act: Callable[[Client], Awaitable[Any]], kill: bool = True) -> Any:
        async with Client(self.server.url) as client:
            told = await act(client)
            if kill:
                self.server.kill()
        if kill:
            self.server.start()
        return told

    async def check(self) -> None:
        async with Client(self.server.url) as client:
            assert (await client.agent_session(*self.place)).held, "a hold was forgotten"
            waiting = [(p.text, p.version) for p in await client.waiting(*self.place)]
            assert waiting == self.queue, "another queue than callers were told"

    async def replace(self) -> None:
        assert (await self.call(lambda c: c.replace(*self.place, "run-b", "B"))).version == 1
        self.queue[self.queue.index(("b", 0))] = ("B", 1)
        async with Client(self.server.url) as client:
            await client.init_agent(self.place[0])
            await client.send(*self.place, "b", "run-b")  # the text of acceptance is known
            with pytest.raises(Refusal):
                await client.send(*self.place, "B", "run-b")

    async def next(self) -> None:
        await self.call(lambda c: c.next(*self.place, "run-c"))
        self.queue.sort(key=lambda p: p != ("c", 0))

    async def revoke(self) -> None:
        assert (await self.call(lambda c: c.revoke(*self.place, "run-a"))).effect == "canceled"
        self.queue.remove(("a", 0))

    async def interrupt(self) -> None:
        await self.call(lambda c: c.send(*self.place, "now", "run-now", if_busy="interrupt"))
        self.queue.insert(0, ("now", 0))

    async def resume(self) -> None:
        """What starts with the resume is active when the call is answered, so the kill ends it; the rest goes on."""
        self.server.options = AT_ONCE
        assert await self.call(lambda c: c.resume(*self.place)) is False
        async with Client(self.server.url) as client:
            assert not (await client.agent_session(*self.place)).held, "a resume was forgotten"
        async with web(self.server.url) as http:
            place = Place(http, *self.place)
            prompts = await place.until(lambda prompts: all(p["state"] == "done" for p in prompts))
            ran = [p["text"] for p in prompts if p["outcome"] != "canceled"]
            assert sorted(ran) == sorted(text for text, _ in self.queue)
            assert {p["text"] for p in prompts if p["outcome"] == "error"} == {self.queue[0][0]}
            said = [m["parts"][0]["data"]["text"] for m in await place.messages() if m["role"] == "user"]
            assert said == [text for text, _ in self.queue]


async def play_killed(server: Process, *calls: str) -> None:
    story = await Killed.prepare(server, "hold" in calls)
    for name in calls:
        if name != "hold":
            await getattr(story, name)()
            if name != "resume":
                await story.check()


@pytest.mark.rule("R16a", "R16c", "R32b", "R33a", "R34a", "R35b")
def test_what_a_call_has_answered_outlives_a_kill_at_that_moment(tmp_path: Path) -> None:
    with Process(tmp_path / "data", *FOR_EVER) as server:
        asyncio.run(play_killed(server, "hold", "replace", "next", "revoke", "interrupt", "resume"))


@pytest.mark.parametrize("bug", KILLED)
def test_a_kill_shows(bug: str, tmp_path: Path) -> None:
    """The same on a server with the bug, with the call that has it."""
    class Buggy(Process):
        command = (sys.executable, runtime_bugs.__file__, bug)

    _, name, words = KILLED[bug]
    with Buggy(tmp_path / "data", *FOR_EVER) as server, pytest.raises((AssertionError, Refusal), match=words):
        asyncio.run(play_killed(server, name))


async def test_a_server_of_the_reference_has_none_of_these_calls() -> None:
    async with serving() as server, server.client() as http:
        server.site.workspaces.protocol = REFERENCE
        place = await server.workspace(http, "/tmp/reference")
        s = Scene(server, place, Watch(place, ""))
        await s.send("hello", "run-a")
        for method, path, body in (("DELETE", "prompts/1", None), ("POST", "stop", None), ("POST", "hold", None),
                                   ("POST", "resume", None), ("PUT", "prompts/1/text", {"prompt": "x"}),
                                   ("POST", "prompts/1/next", None)):
            code, told = await s.ask(method, path, body)
            assert (code, told["message"][:16]) == (400, "protocol ref has")
        for mode in ("reject", "interrupt"):
            assert (await s.send("x", None, mode))[0] == 400
        assert (await s.send("x", "run-x", "queue"))[0] == 202
