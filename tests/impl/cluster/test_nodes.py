"""Several servers on one database, over real sockets: any client anywhere, and nothing is lost when one goes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from itertools import product
from typing import Any
from unittest.mock import patch
from uuid import UUID

import psycopg
import pytest
from support.journals import AUDIT, judge, judge_rows
from support.postgres import Bouncer, shared_server
from support.proxies import Proxy
from support.runtimes import calls
from support.servers import Place, Server, serving

from cancelmark.impl.cluster.leased import Leased
from cancelmark.impl.cluster.node import BURY, Lease
from cancelmark.impl.cluster.node import Node as ClusterNode
from cancelmark.impl.models import Tool
from cancelmark.impl.models.scripted import say
from cancelmark.impl.runtime import Outbox
from cancelmark.impl.runtime.questions import AskUser
from cancelmark.impl.runtime.turn import ToolRunner
from cancelmark.impl.store import CommitAnswer, CommitRequest, Snapshot, StoreError
from cancelmark.impl.store.postgres import Database, PostgresStore
from cancelmark.impl.store.postgres.store import _SNAPSHOT
from cancelmark.model.lifecycle import Outcome


@asynccontextmanager
async def nodes(number: int = 2, lease: Lease = Lease(2.0, 0.1), wake_ups: str | None = "",  # noqa: B008
                database: str | None = None, tools: Sequence[ToolRunner] = (),
                ) -> AsyncIterator[list[tuple[Server, Place]]]:
    """So many servers on one new database, each with a client of the same session."""
    server = shared_server()
    database = database or server.url(server.new_database())
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving(
                       database=database, lease=lease, wake_ups=wake_ups, stop=1.0, tools=tools))
                   for _ in range(number)]
        clients = [await stack.enter_async_context(one.client()) for one in servers]
        first = await servers[0].workspace(clients[0])
        yield [(one, first.seen_by(http)) for one, http in zip(servers, clients)]


async def test_one_node_does_what_a_server_does() -> None:
    async with nodes(1) as [a]:
        server, place = a
        gate = server.holds("one")
        async with place.watching() as watch:
            await place.send("one", "r1")
            await place.send("two", "r2")
            await place.until(lambda prompts: [p["state"] for p in prompts] == ["active", "queued"])
            gate.open()
            assert (await watch.end("r1"))["outcome"] == "end_turn"
            assert (await watch.end("r2"))["outcome"] == "end_turn"
            assert len(set(watch.ids)) >= 2
        assert not (await place.get())["is_busy"]


Node = tuple[Server, Place]


async def run_at(a: Node, text: str, run_id: str) -> None:
    """A prompt that runs at this node until it is stopped."""
    server, place = a
    server.holds(text)
    await place.send(text, run_id)
    await place.until(lambda prompts: any(p["state"] == "active" for p in prompts))


async def test_a_node_that_leaves_says_503_and_never_that_something_does_not_exist() -> None:
    """A client that hears 4xx gives up, though another node has the workspace and takes the prompt."""
    async with nodes() as (a, b):
        (leaving, here), (_, there) = a, b
        await run_at(a, "waits", "r1")
        server = leaving.site.workspaces
        closing = asyncio.ensure_future(server.close(1.0))
        async with asyncio.timeout(10):
            while not all(workspace.runtime.closing for workspace in server):
                await asyncio.sleep(0)
            answers = [await here.post("two", "r2"), await here.http.post("/v1/workspaces", json={"path": "/other"})]
            with patch.object(server, "_open", {}):  # as it is where nobody has asked for this workspace yet
                answers.append(await here.http.get(here.url))
        assert [(answer.status_code, answer.headers.get("retry-after")) for answer in answers] == [(503, "1")] * 3
        assert (await there.post("two", "r2")).status_code == 202
        await closing


def ends(place: Place) -> Awaitable[list[tuple[str, str]]]:
    async def read() -> list[tuple[str, str]]:
        return [(p["run_id"], p.get("outcome", "")) for p in await place.get("prompts")]

    return read()


@pytest.mark.rule("C6")
@pytest.mark.parametrize("wake_ups", ["", None], ids=["wake-ups", "polling"])
async def test_a_cancel_at_one_node_stops_the_turn_at_another(wake_ups: str | None) -> None:
    async with nodes(wake_ups=wake_ups) as (a, b):
        await run_at(a, "one", "r1")
        await a[1].send("two", "r2")
        async with b[1].watching() as seen, a[1].watching() as also:
            assert (await b[1].do("cancel")).status_code == 200
            for watch in (seen, also):
                assert (await watch.end("r1"))["outcome"] == "canceled"
                assert (await watch.end("r2"))["outcome"] == "canceled"
            await also.until(lambda w: len(w.ends()) == 2)
            assert seen.ends() == also.ends()
            assert [seen.ids[n] for n, e in enumerate(seen.seen) if e["type"] == "run_complete"] == [
                also.ids[n] for n, e in enumerate(also.seen) if e["type"] == "run_complete"]


@pytest.mark.rule("R36b", "R36c", "R36e", "R36g")
@pytest.mark.parametrize("wake_ups", ["", None], ids=["wake-ups", "polling"])
async def test_a_question_at_one_node_is_answered_or_canceled_at_another(wake_ups: str | None) -> None:
    ran: list[str] = []

    async def run(given: str) -> str:
        ran.append(given)
        return "it ran"

    shell = ToolRunner(Tool("read", "a tool", {"type": "object"}), run, lambda given: AskUser("run it?"))
    async with nodes(wake_ups=wake_ups, tools=[shell]) as (a, b):
        async with b[1].watching() as seen:
            for number, answer in enumerate(("allow", "deny", "cancel"), 1):
                a[0].plays(answer, calls("c"), say("done"))
                await a[1].send(answer, answer)
                await seen.until(lambda w, n=number: len([e for e in w.of("ask") if e["status"] == "open"]) == n)
                (ask,) = await b[1].get("asks")
                if answer == "cancel":
                    assert (await b[1].do("cancel")).status_code == 200
                    late = await b[1].do(f"asks/{ask['ask']}", body={"answer": "allow"})
                    assert (late.status_code, late.json()["code"]) == (409, "withdrawn")
                else:
                    first = await b[1].do(f"asks/{ask['ask']}", body={"answer": answer})
                    assert (first.status_code, first.json()["effect"]) == (200, "taken")
                    again = await a[1].do(f"asks/{ask['ask']}", body={"answer": answer})
                    assert (again.status_code, again.json()["effect"]) == (200, "none")
                assert (await seen.end(answer))["outcome"] == ("canceled" if answer == "cancel" else "end_turn")
        assert len(ran) == 1


@pytest.mark.parametrize("payload", [
    "{", "7", "null", "[]", "{}", "[7]", '["x", 7]', '["x", []]', '["x", ["a"]]', '["x", ["a", "b", "c"]]',
    '["x", [1, {}]]', '["x", ["no-such-workspace", "s"]]', "[" * 3000, "\ud7ff" * 900])
async def test_a_notification_that_cannot_be_read_ends_none_of_those_that_follow(payload: str) -> None:
    server = shared_server()
    database = server.url(server.new_database())
    async with nodes(database=database, lease=Lease(300.0, 150.0)) as (a, b):
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("SELECT pg_notify('cancelmark', %s)", (payload,))
        await run_at(a, "one", "r1")
        async with a[1].watching() as watch:
            assert (await b[1].do("cancel")).status_code == 200
            assert (await watch.end("r1"))["outcome"] == "canceled"


@pytest.mark.parametrize("loop", ["_beat_for_ever", "_look_for_ever", "_tell_for_ever", "_prune_for_ever",
                                  "_listen_for_ever"])
async def test_a_loop_of_a_node_that_fails_begins_again(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it fails."""
    rounds: list[str] = []
    go_on = getattr(ClusterNode, loop)

    async def fail_at_first(node: ClusterNode, *more: Any) -> None:
        rounds.append(str(node.url))
        if rounds.count(str(node.url)) == 1:
            raise RuntimeError("injected")
        await go_on(node, *more)

    monkeypatch.setattr(ClusterNode, loop, fail_at_first)
    async with nodes() as (a, b):
        while len(rounds) < 4:
            await asyncio.sleep(0.01)
        await run_at(a, "one", "r1")
        assert (await b[1].do("cancel")).status_code == 200
        await a[1].until(lambda prompts: [p.get("outcome") for p in prompts] == ["canceled"])


@pytest.mark.rule("C1b")
async def test_a_prompt_that_another_node_has_accepted_runs_at_the_owner() -> None:
    async with nodes() as (a, b):
        await run_at(a, "one", "r1")
        await b[1].send("two", "r2")
        await b[1].until(lambda prompts: [p["state"] for p in prompts] == ["active", "queued"])
        async with b[1].watching() as watch:
            a[0].model.gate("one").open()
            assert (await watch.end("r2"))["outcome"] == "end_turn"
        texts = [part["data"]["text"] for m in await b[1].messages() for part in m["parts"] if part["type"] == "text"]
        assert texts[:3] == ["one", "half done", "two"]


@pytest.mark.rule("C2a")
async def test_a_cancel_reaches_what_another_node_has_just_accepted() -> None:
    """Whoever was told that a prompt is accepted, at whatever node, can cancel it at any other."""
    async with nodes(3) as (a, b, c):
        for n in range(10):
            for one in (a, b, c):
                one[0].holds(f"p{n}")
            await (a, b, c)[n % 3][1].send(f"p{n}", f"r{n}")
            assert (await (a, b, c)[(n + 1) % 3][1].do("cancel")).status_code == 200
            assert not any(p.get("outcome") not in ("canceled", None, "") for p in await c[1].get("prompts"))
            await c[1].until(lambda prompts: all(p.get("outcome") == "canceled" for p in prompts))


@pytest.mark.rule("C1c")
async def test_a_run_id_is_known_at_every_node() -> None:
    async with nodes() as (a, b):
        seq = await a[1].send("one", "r1")
        assert (await b[1].post("one", "r1")).json()["seq"] == seq
        assert (await b[1].post("another", "r1")).status_code == 409


async def test_an_agent_that_one_node_has_made_ready_is_ready_at_all() -> None:
    async with nodes() as (a, b):
        told = (await a[1].http.post("/v1/workspaces", json={"path": "/tmp/cancelmark-other"})).json()
        first, second = Place(a[1].http, told["id"]), Place(b[1].http, told["id"])
        first.session = second.session = await second.new_session()
        assert (await second.post("too early")).status_code == 400
        (await first.http.post(f"{first.url}/agent/init", json={})).raise_for_status()
        await second.send("now")


@pytest.mark.rule("C8b")
async def test_whoever_comes_back_to_another_node_goes_on_where_it_was() -> None:
    async with nodes(wake_ups=None) as (a, b):
        async with a[1].watching() as first:
            await a[1].send("one", "r1")
            await first.end("r1")
        await b[1].send("two", "r2")
        async with a[1].watching() as also:
            await b[1].until(lambda prompts: all(p.get("outcome") for p in prompts))
            async with b[1].watching(last_event_id=first.last_event_id) as second:
                await second.end("r2")
                assert second.ends() == [("r2", "end_turn")]
            assert also.place


@pytest.mark.rule("C1a")
async def test_every_call_of_the_family_is_taken_at_any_node() -> None:
    async with nodes() as (a, b):
        await run_at(a, "one", "r1")
        there = b[1]
        for n in (2, 3, 4):
            await there.send(f"p{n}", f"r{n}")
        await there.until(lambda prompts: [p["state"] for p in prompts] == ["active", "queued", "queued", "queued"])
        url = f"{there.url}/agent/sessions/{there.session}/prompts"
        assert (await there.do("hold")).json() == {"held": True}
        assert (await there.http.delete(f"{url}/run:r2")).json()["effect"] == "canceled"
        assert (await there.http.put(f"{url}/run:r3/text", json={"prompt": "changed"})).json()["version"] == 1
        assert (await there.http.post(f"{url}/run:r4/next")).status_code == 200
        assert (await there.do("stop", body={})).json()["held"] is True
        await there.until(lambda prompts: [p["state"] for p in prompts] == ["done", "done", "queued", "queued"])
        assert (await a[1].get())["held"]
        assert a[0].site.workspaces.get(there.id).leased.count_owned() == 0, "a held session has no owner"
        async with a[1].watching() as watch:
            assert (await there.do("resume")).json() == {"held": False}
            await watch.end("r3")
            assert [run for run, _ in watch.ends()] == ["r4", "r3"]
        assert (await there.get("prompts"))[2]["text"] == "changed"


@pytest.mark.rule("C7b")
async def test_a_held_session_with_nothing_active_has_no_owner_and_goes_on_where_it_is_resumed() -> None:
    async with nodes() as (a, b):
        gate = a[0].holds("one")
        await a[1].send("one", "r1")
        await a[1].send("two", "r2")
        await a[1].until(lambda prompts: [p["state"] for p in prompts] == ["active", "queued"])
        await a[1].do("hold")
        gate.open()
        await b[1].until(lambda prompts: [p["state"] for p in prompts] == ["done", "queued"])
        owners = await a[0].site.workspaces.database.fetch(  # type: ignore[attr-defined]
            "SELECT owner FROM cancelmark.sessions WHERE id = %s", a[1].session)
        assert owners == [(None,)]
        await b[1].do("resume")
        await a[1].until(lambda prompts: [p["state"] for p in prompts] == ["done", "done"])


async def test_what_waits_in_a_held_session_says_its_text_wherever_it_is_resumed() -> None:
    """The model is asked with the user's message, which is written by the step that starts the prompt."""
    async with nodes() as (a, b):
        for n, (holds, accepts, resumes) in enumerate(product((a, b), repeat=3)):
            session = await a[1].new_session()
            await holds[1].do("hold", session)
            await accepts[1].send(f"text {n}", f"r{n}", session)
            await accepts[1].until(lambda prompts: [p["state"] for p in prompts] == ["queued"], session=session)
            await resumes[1].do("resume", session)
            await accepts[1].until(lambda prompts: [p["state"] for p in prompts] == ["done"], session=session)
            messages = await resumes[1].messages(session)
            assert [m["role"] for m in messages] == ["user", "assistant"]
            assert messages[0]["parts"][0]["data"]["text"] == f"text {n}"
            assert f"text {n}" in messages[1]["parts"][0]["data"]["text"]
        with psycopg.connect(a[0].site.workspaces.database.address) as connection:  # type: ignore[attr-defined]
            assert not judge_rows(connection)


async def test_whoever_watches_at_another_node_sees_states_messages_and_who_runs_it() -> None:
    async with nodes() as (a, b):
        gate = a[0].holds("one")
        async with b[1].watching() as watch:
            session = await a[1].new_session("made at a")
            await a[1].send("one", "r1", session)
            await watch.until(lambda w: any(p["state"] == "active" for p in w.of("prompt")))
            (active,) = [p for p in watch.of("prompt") if p["state"] == "active"]
            listed = await b[1].get("prompts", session)
            assert active["node"] == listed[0]["node"]
            assert a[0].url.endswith(active["node"].partition("#")[0])
            assert [s["title"] for s in watch.of("session")] == ["made at a"]
            gate.open()
            await watch.end("r1")
            await a[1].send("two", "r2", session)
            await watch.end("r2")
            types = [(e["type"], e["payload"]["payload"].get("run_id")) for e in watch.seen]
            spoken = [(m["role"], m["seq"], m["run_id"]) for m in watch.of("message")]
        assert {("user", 1, "r1"), ("assistant", 1, "r1")} <= set(spoken)
        for run_id in ("r1", "r2"):  # no message after the end (R29d)
            assert ("message", run_id) not in types[types.index(("run_complete", run_id)):]
        assert not any("node" in p for p in await b[1].get("prompts", session))


async def test_a_failover_is_seen_at_every_node_with_who_took_over_from_whom() -> None:
    async with nodes(3) as (a, b, c):
        await run_at(a, "one", "r1")
        await c[1].send("two", "r2")
        (running,) = [p["node"] for p in await c[1].get("prompts") if p["state"] == "active"]
        async with b[1].watching() as at_b, c[1].watching() as at_c:
            await c[0].site.workspaces.database.fetch(  # type: ignore[attr-defined]
                "UPDATE cancelmark.nodes SET dead = true WHERE url = %s", a[0].url)
            for watch in (at_b, at_c):
                assert (await watch.end("r1"))["outcome"] == "error"
                await watch.until(lambda w: w.of("taken_over"))
            (told,) = {tuple(sorted(one.items())) for watch in (at_b, at_c) for one in watch.of("taken_over")}
        taken = dict(told)
        assert (taken["session_id"], taken["gone"]) == (c[1].session, running)
        assert taken["node"] not in (running, "unknown")


@pytest.mark.rule("C4d", "C7a")
async def test_a_node_that_closes_hands_its_sessions_over() -> None:
    async with nodes() as (a, b):
        await run_at(a, "one", "r1")
        a[0].holds("two")
        await a[1].send("two", "r2")
        await a[1].send("three", "r3")
        async with b[1].watching() as watch:
            await a[0].site.workspaces.close(0.1)
            assert (await watch.end("r1"))["outcome"] == "error"
            assert (await watch.end("r2"))["outcome"] == "end_turn"
            assert (await watch.end("r3"))["outcome"] == "end_turn"


@pytest.mark.rule("C2d", "C5c")
async def test_a_node_that_is_dead_to_others_loses_its_turns_and_goes_on_under_another_name() -> None:
    async with nodes() as (a, b):
        await run_at(a, "one", "r1")
        await a[1].send("two", "r2")
        node = a[0].site.workspaces.node
        first = node.id
        async with b[1].watching() as watch:
            await node.database.fetch("UPDATE cancelmark.nodes SET dead = true WHERE id = %s", first)
            assert (await watch.end("r1"))["outcome"] == "error"
            assert (await watch.end("r2"))["outcome"] == "end_turn"
            while node.id == first:
                await asyncio.sleep(0.05)
            a[0].model.gate("one").open()
            await a[1].send("three", "r3")
            assert (await watch.end("r3"))["outcome"] == "end_turn"
            assert len(watch.ends()) == 3
        said = [m["id"] for m in await b[1].messages()]
        assert len(said) == 6, "the turn that was lost has written nothing more"


@pytest.mark.rule("C5c")
async def test_a_node_that_cannot_take_its_place_again_owns_nothing_under_a_name_that_nobody_knows(
        monkeypatch: pytest.MonkeyPatch) -> None:
    async with nodes() as (a, b):
        node, gate = a[0].site.workspaces.node, a[0].holds("one")
        enroll, sent, enrolled = ClusterNode._enroll, list[asyncio.Task[object]](), asyncio.Event()

        async def fail_at_first(self: ClusterNode, *name: UUID) -> None:
            if not sent:
                sent.append(asyncio.ensure_future(a[1].send("one", "r1")))
                await asyncio.wait(sent, timeout=1.0)  # it is taken, or waits for a name that counts
                raise StoreError("the database", "away", "try again")
            await enroll(self, *name)
            enrolled.set()

        monkeypatch.setattr(ClusterNode, "_enroll", fail_at_first)
        async with b[1].watching() as watch:
            await node.database.fetch("UPDATE cancelmark.nodes SET dead = true WHERE id = %s", node.id)
            await enrolled.wait()
            await sent[0]
            gate.open()
            assert (await watch.end("r1"))["outcome"] == "end_turn"
        assert node.deaths == 1


async def test_a_workspace_that_is_closed_at_one_node_is_closed_at_all_and_opens_again() -> None:
    async with nodes() as (a, b):
        await run_at(a, "one", "r1")
        answer = await b[1].http.delete(b[1].url)
        assert answer.status_code == 200, answer.text
        assert (await b[1].http.get(b[1].url)).status_code == 404
        async with asyncio.timeout(10):
            while (await a[1].http.get(a[1].url)).status_code != 404:
                assert (await a[1].post("two", "r2")).status_code != 202
                await asyncio.sleep(0.05)
        again = (await b[1].http.post("/v1/workspaces", json={"path": "/tmp/cancelmark-test"})).json()
        assert again["id"] == b[1].id
        assert [(p["run_id"], p["outcome"]) for p in await b[1].get("prompts")] == [("r1", "canceled")]
        async with a[1].watching() as watch:
            await b[1].send("three", "r3")
            await watch.end("r3")


@pytest.mark.parametrize("forget", [False, True], ids=["closed", "forgotten"])
async def test_whoever_watches_where_a_workspace_is_closed_sees_what_other_nodes_have_ended(forget: bool) -> None:
    async def hear_nothing() -> None:
        """The node is slow to look at the log."""

    async with nodes() as (a, b):
        await run_at(a, "one", "r1")
        async with b[1].watching() as watch:
            b[0].site.workspaces._update_log_positions = hear_nothing  # type: ignore[attr-defined]
            await b[1].http.delete(b[1].url, params={"forget": "true"} if forget else {})
            assert (await watch.end("r1"))["outcome"] == "canceled"


@pytest.mark.parametrize("forget", [False, True], ids=["closed", "forgotten"])
async def test_a_node_that_has_not_heard_of_a_close_opens_the_workspace_for_all(forget: bool) -> None:
    async with nodes(lease=Lease(60.0, 30.0), wake_ups=None) as (a, b):
        await b[1].get("prompts")  # it is open there
        closed = await a[1].http.delete(a[1].url, params={"forget": "true"} if forget else {})
        assert closed.status_code < 300, closed.text
        opened = await b[1].http.post("/v1/workspaces", json={"path": "/tmp/cancelmark-test"})
        assert opened.status_code == 200, opened.text
        await b[1].http.post(f"{b[1].url}/agent/init", json={})
        session = await a[1].new_session()
        await b[1].send("again", "r1", session)
        await a[1].until(lambda prompts: [p.get("outcome") for p in prompts] == ["end_turn"], session=session)


async def test_through_a_pool_in_transaction_mode() -> None:
    server = shared_server()
    bouncer = Bouncer(server)
    try:
        async with nodes(database=server.url(server.new_database(), bouncer.port)) as (a, b):
            await run_at(a, "one", "r1")
            async with b[1].watching() as watch:
                await b[1].do("cancel")
                assert (await watch.end("r1"))["outcome"] == "canceled"
                await b[1].send("two", "r2")
                assert (await watch.end("r2"))["outcome"] == "end_turn"
    finally:
        bouncer.stop()


@pytest.mark.parametrize("attempt", range(3))
async def test_what_is_asked_while_a_session_is_being_claimed_is_carried_out_by_its_new_owner(attempt: int) -> None:
    """A resume claims the session; a cancel that comes before the answer to that drops what was queued."""
    async with nodes() as (a, b):
        await run_at(a, "one", "r1")
        for n in (2, 3):
            await a[1].send(f"p{n}", f"r{n}")
        assert (await a[1].do("stop", body={"hold": True})).json()["held"]
        await b[1].until(lambda prompts: [p["state"] for p in prompts] == ["done", "queued", "queued"])
        answers = await asyncio.gather(*(b[1].do(what) for what in ("resume", "cancel", "resume", "cancel")))
        assert [answer.status_code for answer in answers] == [200] * 4
        await a[1].until(lambda prompts: all(p["state"] == "done" for p in prompts))
        async with a[1].watching() as watch:
            await b[1].send("more", "r4")
            assert (await watch.end("r4"))["outcome"] == "end_turn"


async def test_a_cancel_that_comes_while_its_session_is_being_recovered_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, cancel_came = asyncio.Event(), asyncio.Event()
    commit = PostgresStore._commit

    async def commit_late(self: PostgresStore, steps: CommitRequest) -> CommitAnswer:
        if steps.claim == "recover":
            asked.set()
            await cancel_came.wait()
        return await commit(self, steps)

    monkeypatch.setattr(PostgresStore, "_commit", commit_late)
    async with nodes() as (a, b):
        await run_at(a, "one", "r1")
        for server in (a[0], b[0]):
            server.holds("two")
        last = await a[1].send("two", "r2")
        node = a[0].site.workspaces.node
        a[0].site.workspaces.get(a[1].id).runtime.draining = True  # it claims nothing
        await node.database.fetch("UPDATE cancelmark.nodes SET dead = true WHERE id = %s", node.id)
        await asked.wait()
        canceling = asyncio.ensure_future(b[1].do("cancel"))
        await asyncio.sleep(0.2)
        cancel_came.set()
        assert (await canceling).status_code == 200
        assert (await node.database.fetch("SELECT min(mark) FROM cancelmark.sessions"))[0][0] >= last
        await b[1].until(lambda prompts: all(p["state"] == "done" for p in prompts))
        with psycopg.connect(node.database.address, autocommit=True) as connection:
            connection.execute(AUDIT.encode())
            assert not judge(connection)


async def test_a_session_that_is_lost_while_it_is_loaded_again_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with nodes() as (a, _):
        await run_at(a, "one", "r1")
        runtime = next(iter(a[0].site.workspaces)).runtime
        box = runtime.boxes[a[1].session]
        snapshot = await runtime.store.load(a[1].session)
        read = PostgresStore.prompt

        async def lose_meanwhile(self: PostgresStore, key: str | int) -> object:
            found = await read(self, key)
            box.lose()
            assert found is not None
            return found._replace(outcome=Outcome.ERROR)  # by its new owner

        monkeypatch.setattr(PostgresStore, "prompt", lose_meanwhile)
        await box.load(snapshot._replace(prompts=()))
        assert not runtime.runs
        assert a[1].session not in runtime.boxes


async def test_calls_that_find_a_session_at_the_same_time_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two calls at a node that does not know the session: the second reads what the first has made the node's own."""
    load = PostgresStore.load
    first, both, runs = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def load_late(self: PostgresStore, session_id: str) -> Snapshot:
        if not first.is_set():
            first.set()
            await both.wait()
        elif not both.is_set():
            both.set()
            await runs.wait()
        return await load(self, session_id)

    async with nodes(lease=Lease(60.0, 30.0), wake_ups=None) as (a, b):
        session = await a[1].new_session()
        await b[1].get("prompts")  # the workspace is open there
        runtime = b[0].site.workspaces.get(b[1].id).runtime
        assert session not in runtime.boxes
        b[0].holds("one")
        monkeypatch.setattr(PostgresStore, "load", load_late)
        accepting = asyncio.ensure_future(runtime.accept(session, "one", "r1"))
        await first.wait()
        canceling = asyncio.ensure_future(runtime.cancel(session))
        await accepting
        while not any(run.turn for _, run in runtime.runs):
            await asyncio.sleep(0.01)
        runs.set()
        await canceling
        assert both.is_set()
        await b[1].until(lambda prompts: [p.get("outcome") for p in prompts] == ["canceled"], session=session)
        await a[1].send("two", "r2", session)
        await b[1].until(lambda prompts: prompts[-1].get("outcome") == "end_turn", session=session)


@pytest.mark.parametrize(("where", "error"), [
    ("_begin_commit", KeyError("of this node")),
    ("_begin_commit", asyncio.CancelledError("that nobody has asked for")),
    ("load", KeyError("of this node")),
    ("_settle", KeyError("of this node")),
])
async def test_a_session_with_which_its_owner_cannot_go_on_is_given_up_and_others_go_on(
        monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str, error: BaseException) -> None:
    async with nodes() as (a, b):
        await run_at(a, "one", "r1")
        await a[1].send("two", "r2")
        runtime, known = next(iter(a[0].site.workspaces)).runtime, getattr(Outbox, where)
        failed: list[str] = []

        def fail_once(self: Outbox, *given: Any) -> Any:
            if self.home is runtime and not failed:
                failed.append(where)
                raise error
            return known(self, *given)

        monkeypatch.setattr(Outbox, where, fail_once)
        async with b[1].watching() as watch:
            await b[1].send("three", "r3")
            assert (await watch.end("r1"))["outcome"] == "error"
            assert (await watch.end("r2"))["outcome"] == "end_turn"
            assert (await watch.end("r3"))["outcome"] == "end_turn"
            await a[1].send("four", "r4")
            assert (await watch.end("r4"))["outcome"] == "end_turn"
        with psycopg.connect(a[0].site.workspaces.database.address, autocommit=True) as connection:
            assert not judge_rows(connection)
        assert failed
        assert "is stuck until a node takes it over" in caplog.text


async def test_a_database_that_is_away_when_a_conflict_is_looked_into_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with nodes() as (a, b):
        await run_at(a, "one", "r1")
        gate = a[0].model.gate("one")
        runtime, known = next(iter(a[0].site.workspaces)).runtime, Outbox.load
        failed: list[str] = []

        async def fail_once(self: Outbox, *given: Any) -> None:
            if self.home is runtime and not failed:
                failed.append("away")
                raise StoreError("the database", "away", "try again")
            await known(self, *given)

        monkeypatch.setattr(Leased, "is_behind", lambda *_: False)  # only the commit finds the conflict
        monkeypatch.setattr(Outbox, "load", fail_once)
        async with b[1].watching() as watch:
            await b[1].send("two", "r2")
            gate.open()
            assert (await watch.end("r1"))["outcome"] == "end_turn"
            assert (await watch.end("r2"))["outcome"] == "end_turn"
        assert failed


async def test_a_node_whose_connections_are_all_dead_without_a_word_lives_on_with_new_ones() -> None:
    server = shared_server()
    name = server.new_database()
    proxy = Proxy("127.0.0.1", server.port)
    await proxy.start()
    lease = Lease(4.0, 0.1)
    async with asyncio.timeout(60), nodes(1, lease, database=server.url(name, proxy.port)) as (behind,), \
            nodes(1, lease, database=server.url(name)) as (buries,):
        node = behind[0].site.workspaces.node
        database = behind[0].site.workspaces.database
        await asyncio.gather(*(database.fetch("SELECT pg_sleep(0.2)") for _ in range(12)))  # so many connections
        proxy.half_open()
        await asyncio.sleep(2 * lease.length)
        assert (node.deaths, buries[0].site.workspaces.node.buried) == (0, 0)
    await proxy.stop()


# --- what calls cost, in statements: each is a way to the database and back, and a step is a commit besides

RARELY = Lease(60.0, 30.0)
KINDS = (("cancelmark.step(", "step"), ("cancelmark.step_all(", "steps"), (_SNAPSHOT, "load"), ("pg_notify", "tell"),
         (BURY, "look"), ("FROM cancelmark.events", "events"), ("FROM cancelmark.messages", "messages"))


@contextmanager
def noting() -> Iterator[list[tuple[Database, str]]]:
    """What is sent meanwhile, by whom."""
    fetch, told = Database.fetch, list[tuple[Database, str]]()

    async def note(self: Database, query: str, *values: Any, **how: Any) -> list[tuple[Any, ...]]:
        kind = next((kind for words, kind in KINDS if words in query), query)
        told.append((self, "say" if kind == "step" and not values[3] else kind))
        return await fetch(self, query, *values, **how)

    with patch.object(Database, "fetch", note):
        yield told


def list_sent(node: Node, told: list[tuple[Database, str]]) -> list[str]:
    """What the node has asked of the database; not what running turns have said, which goes there when it is due."""
    return [kind for database, kind in told if database is node[0].site.workspaces.database and kind != "say"]


async def test_a_prompt_that_waits_takes_one_statement() -> None:
    async with nodes(1, lease=RARELY) as [a]:
        await run_at(a, "one", "r1")
        with noting() as told:
            await a[1].send("two", "r2")
        assert list_sent(a, told) == ["step"]
        assert [p["state"] for p in await a[1].get("prompts")] == ["active", "queued"]


async def test_a_prompt_that_runs_takes_two_steps() -> None:
    async with nodes(1, lease=RARELY) as [a], a[1].watching() as watch:
        with noting() as told:
            await a[1].send("one", "r1")
            await watch.end("r1")
        assert list_sent(a, told) == ["step", "messages", "step"]


async def test_prompts_that_come_together_share_statements() -> None:
    async with nodes(1, lease=RARELY) as [a]:
        sessions = [await a[1].new_session() for _ in range(20)]
        for n, session in enumerate(sessions):
            a[0].holds(f"one {n}")
            await a[1].send(f"one {n}", f"r{n}", session)
        with noting() as told:
            await asyncio.gather(*(a[1].send("two", f"s{n}", session) for n, session in enumerate(sessions)))
        assert len(list_sent(a, told)) <= len(sessions) / 2


async def test_a_cancel_elsewhere_takes_a_load_and_a_step_at_each_node_and_one_word_between_them() -> None:
    async with nodes(lease=RARELY) as (a, b):
        await run_at(a, "one", "r1")
        async with a[1].watching() as watch:
            await b[1].get("prompts")
            with noting() as told:
                assert (await b[1].do("cancel")).status_code == 200
                assert (await watch.end("r1"))["outcome"] == "canceled"
            assert list_sent(b, told)[:3] == ["load", "step", "tell"]
            assert [kind for kind in list_sent(a, told) if kind != "tell"] == ["load", "step"]


@pytest.mark.parametrize("state", ["53100", "53200", "53400", "40001", "55P03", "25006", "XX000", "22000", "58030"])
async def test_what_the_database_says_is_for_the_log_and_a_full_one_is_not_ready(
        state: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("cancelmark.impl.runtime.workspace.FULL_FOR", 0.5)
    monkeypatch.setattr("cancelmark.impl.store.postgres.store.PATIENCE", 0.1)
    server = shared_server()
    database = server.url(server.new_database())
    secret = 'could not extend file "base/16391/16420": no space'
    async with nodes(1, database=database) as [a]:
        place = a[1]
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(f"""
                CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
                    $$ BEGIN RAISE EXCEPTION '{secret}' USING ERRCODE = '{state}'; END $$;
                CREATE TRIGGER failing BEFORE INSERT ON cancelmark.sessions EXECUTE FUNCTION fail()""")
            answer = await place.http.post(f"{place.url}/sessions", json={"title": "one more"})
            assert answer.status_code == 503
            for word in ("base/", "SQL", "INSERT", "function", "127.0.0.1"):
                assert word not in answer.text
            assert any(secret in str(getattr(record, "problem", "")) for record in caplog.records)
            assert ((await place.http.get("/v1/ready")).status_code == 503) == (state == "53100")
            connection.execute("DROP TRIGGER failing ON cancelmark.sessions")
        while (await place.http.get("/v1/ready")).status_code != 200:
            await asyncio.sleep(0.05)
        await place.new_session()


async def test_a_database_that_takes_no_writes_is_not_ready() -> None:
    """As a standby does."""
    server = shared_server()
    name = server.new_database()
    async with nodes(1, database=server.url(name), lease=Lease(300.0, 150.0)) as [a]:
        assert (await a[1].http.get("/v1/ready")).status_code == 200
        with psycopg.connect(server.url(name), autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                               " WHERE datname = current_database() AND pid <> pg_backend_pid()")
        for _ in range(20):  # until each connection is a new one
            with suppress(StoreError):
                await a[0].site.workspaces.database.fetch("SELECT 1")  # type: ignore[attr-defined]
        assert (await a[1].http.get("/v1/ready")).json()["status"] == "away"
        with psycopg.connect(server.url(name), autocommit=True) as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                               " WHERE datname = current_database() AND pid <> pg_backend_pid()")
        while (await a[1].http.get("/v1/ready")).status_code != 200:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("again", range(3))
async def test_a_workspace_that_is_forgotten_while_others_create_and_post_leaves_nothing(
        again: int, caplog: pytest.LogCaptureFixture) -> None:
    """And what they are told is no failure of the server."""
    server = shared_server()
    database = server.url(server.new_database())
    async with nodes(database=database) as (a, b):
        over = asyncio.Event()
        answers: list[tuple[int, str]] = []

        async def create(place: Place) -> None:
            while not over.is_set():
                made = await place.http.post(f"{place.url}/sessions", json={"title": "more"})
                answers.append((made.status_code, made.text))
                if made.status_code == 200:
                    posted = await place.post("one more", session=made.json()["id"])
                    answers.append((posted.status_code, posted.text))

        creating = [asyncio.create_task(create(one)) for one in (a[1], b[1], b[1]) for _ in range(3)]
        await asyncio.sleep(0.05 * again)
        forgotten = await a[1].http.delete(a[1].url, params={"forget": "true"})
        await asyncio.sleep(0.2)
        over.set()
        await asyncio.gather(*creating)
        assert forgotten.status_code == 200, forgotten.text
        assert {status for status, _ in answers} <= {200, 202, 400, 404, 409, 503}, answers
        assert not [told for _, told in answers if "in use" in told], "there is no such run id"
        assert "Traceback" not in caplog.text
    with psycopg.connect(database) as connection:
        tables = connection.execute(
            "SELECT DISTINCT table_name FROM information_schema.columns WHERE table_schema = 'cancelmark'"
            " AND (column_name = 'workspace_id' OR table_name = 'workspaces')").fetchall()
        assert len(tables) > 8
        for (table,) in tables:
            assert connection.execute(f"SELECT count(*) FROM cancelmark.{table}").fetchone() == (0,), table
