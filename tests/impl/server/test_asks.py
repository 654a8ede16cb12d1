"""Questions over HTTP: what clients see of them, who answers first, and what a late caller is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2 as httpx
import pytest
from support.runtimes import calls
from support.servers import Place, Process, Server, Watch, placed, web

from cancelmark.impl.client import Client, Refusal, read_ended
from cancelmark.impl.models import Tool
from cancelmark.impl.models.scripted import say
from cancelmark.impl.runtime.questions import AskUser
from cancelmark.impl.runtime.turn import ToolRunner


class Asking:
    """A server whose tool asks, a client of it, and another that watches."""

    def __init__(self, server: Server, place: Place, watch: Watch, ran: list[str]) -> None:
        self.server, self.place, self.watch, self.ran = server, place, watch, ran

    async def ask(self, run_id: str, n: int = 1) -> dict[str, Any]:
        """The open question of a new prompt."""
        self.server.plays(run_id, *[calls("c")] * n, say("done"))
        await self.place.send(run_id, run_id)
        await self.watch.until(lambda w: any(
            ask["status"] == "open" and ask["run_id"] == run_id for ask in w.of("ask")))
        return next(ask for ask in self.watch.of("ask") if ask["run_id"] == run_id)

    async def answer(self, ask: str, answer: str, client: str = "", **more: Any) -> httpx.Response:
        url = f"{self.place.url}/agent/sessions/{self.place.session}/asks/{ask}"
        return await self.place.http.post(url, json={"answer": answer, **more},
                                          headers={"client-id": client} if client else {})


@asynccontextmanager
async def asking(question: AskUser | None = None, **where: Any) -> AsyncIterator[Asking]:
    ran: list[str] = []

    async def run(given: str) -> str:
        ran.append(given)
        return "it ran"

    shell = ToolRunner(Tool("read", "a tool", {"type": "object"}), run,
                       lambda given: question or AskUser("run it?", options=("once", "always")))
    async with placed(tools=[shell], **where) as (server, place), place.watching() as watch:
        yield Asking(server, place, watch, ran)


@pytest.mark.smoke
@pytest.mark.rule("R36b", "R36c", "R36k")
async def test_subscribers_see_a_question_its_answer_and_its_prompts_end() -> None:
    async with asking() as s:
        ask, alice = await s.ask("a"), str(uuid4())
        assert ask | {"seq": 1, "kind": "permission", "title": "run it?", "tool": "read", "ask": "1.1",
                      "options": ["once", "always"]} == ask
        assert await s.place.get("asks") == [ask]
        assert (await s.place.get("prompts"))[0]["asks"] == ["1.1"]
        answered = await s.answer("1.1", "allow", alice, option="once")
        assert (answered.status_code, answered.json()) == (
            200, {"ask": "1.1", "status": "allowed", "effect": "taken", "by": alice})
        end = await s.watch.end("a")
        assert end["asks"] == [{"ask": "1.1", "status": "ran", "started": True}]
        kinds = [(e["type"], e["payload"]["type"], e["payload"]["payload"].get("status"))
                 for e in s.watch.seen if e["type"] in ("ask", "run_complete")]
        assert kinds == [("ask", "created", "open"), ("ask", "updated", "allowed"), ("run_complete", "created", None)]
        assert s.ran == ['{"n": "c"}']
        assert await s.place.get("asks") == []
        (ended,) = await s.place.get("asks?all=true")
        assert (ended["status"], ended["started"], ended["by"], ended["option"]) == ("ran", True, alice, "once")


@pytest.mark.rule("R36c")
async def test_of_two_clients_that_answer_at_once_one_wins_and_the_other_is_told_who() -> None:
    async with asking() as s:
        await s.ask("a")
        alice, bob = str(uuid4()), str(uuid4())
        answers = await asyncio.gather(s.answer("1.1", "allow", alice), s.answer("1.1", "deny", bob))
        won, lost = sorted(answers, key=lambda answer: answer.status_code)
        assert (won.status_code, lost.status_code) == (200, 409)
        told = lost.json()
        assert (told["code"], told["ask"]["by"]) == ("answered", won.json()["by"])
        again = await s.answer("1.1", told["ask"]["answer"])  # as after a lost response
        assert (again.status_code, again.json()["effect"], again.json()["by"]) == (200, "none", won.json()["by"])
        await s.watch.end("a")
        assert len(s.ran) == (told["ask"]["answer"] == "allow")


@pytest.mark.rule("R36c", "R36g")
async def test_an_answer_after_a_cancel_starts_nothing_and_is_told_why() -> None:
    async with asking() as s:
        await s.ask("a")
        assert (await s.place.do("cancel")).status_code == 200
        late = await s.answer("1.1", "allow")
        assert (late.status_code, late.json()["code"], late.json()["ask"]["why"]) == (409, "withdrawn", "canceled")
        assert (await s.watch.end("a"))["outcome"] == "canceled"
        types = [(e["type"], e["payload"]["payload"].get("status")) for e in s.watch.seen]
        assert types.index(("ask", "withdrawn")) < types.index(("run_complete", None))
        assert s.ran == []


@pytest.mark.parametrize(("ask", "body", "status", "says"), [
    ("1.1", {}, 400, "answer"), ("1.1", {"answer": "maybe"}, 400, "answer"),
    ("1.1", {"answer": "allow", "option": "never"}, 400, "choose one of once, always"),
    ("1.1", {"answer": "allow", "value": 7}, 400, "leave the value out"),
    ("1.2", {"answer": "allow"}, 404, "has no question 2"), ("9.1", {"answer": "allow"}, 404, "has no prompt 9"),
    ("x", {"answer": "allow"}, 404, "give SEQ.N"),
])
async def test_a_malformed_answer_is_refused_and_the_question_stays_open(
    ask: str, body: dict[str, Any], status: int, says: str,
) -> None:
    async with asking() as s:
        await s.ask("a")
        url = f"{s.place.url}/agent/sessions/{s.place.session}/asks/{ask}"
        answer = await s.place.http.post(url, json=body)
        assert (answer.status_code, says in answer.json()["message"]) == (status, True), answer.text
        assert len(await s.place.get("asks")) == 1
        await s.place.do("cancel")


async def test_the_client_has_the_calls_on_questions() -> None:
    async with asking(AskUser("which branch?", "input", schema={"type": "string"})) as s:
        await s.ask("a")
        async with Client(s.server.url) as client:
            (ask,) = await client.asks(s.place.id, s.place.session)
            assert (ask.kind, ask.json_schema) == ("input", {"type": "string"})
            with pytest.raises(Refusal, match="is not of type"):
                await client.answer(s.place.id, s.place.session, ask.ask, "allow", value=7)
            answered = await client.answer(s.place.id, s.place.session, ask.ask, "allow", value="main")
            assert (answered.effect, answered.by) == ("taken", client.client_id)
            with pytest.raises(Refusal) as late:
                await client.answer(s.place.id, s.place.session, ask.ask, "deny")
            ended = read_ended(late.value)
            assert ended is not None
            assert (late.value.status, ended.answer, ended.value) == (409, "allow", "main")
        await s.watch.end("a")
        assert s.ran == ['"main"']


@pytest.mark.rule("R36e", "R36i")
@pytest.mark.parametrize("answered", [False, True], ids=["open", "answered"])
async def test_a_kill_withdraws_a_question_and_keeps_what_its_answer_was_told(tmp_path: Path, answered: bool) -> None:
    with Process(tmp_path / "data", "--pace", "30" if answered else "0") as server:
        async with web(server.url) as http:
            place = await Server.workspace(Server(), http, str(tmp_path))
            await place.send("ask: hello", "a")
            await place.until(lambda asks: len(asks) == 1, "asks")
            url = f"{place.url}/agent/sessions/{place.session}/asks/1.1"
            if answered:
                assert (await http.post(url, json={"answer": "allow"})).status_code == 200
            server.kill()
        server.start()
        async with web(server.url) as http:
            place = place.seen_by(http)
            (prompt,) = await place.until(lambda prompts: prompts[0]["state"] == "done")
            assert prompt["outcome"] == "error"
            (ask,) = await place.get("asks?all=true")
            late = await http.post(url, json={"answer": "allow"})
            if ask["status"] == "ran":  # the kill came after the start of the tool
                assert answered
                assert (late.status_code, late.json()["effect"], late.json()["started"]) == (200, "none", True)
            else:
                assert (ask["status"], ask["why"]) == ("void" if answered else "withdrawn", "crash")
                assert (late.status_code, late.json()["code"]) == (409, "withdrawn")
