"""The calls of the server over real sockets: what specs/wire.md says, call by call."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from support.runtimes import fails, until
from support.servers import Place, Server, placed, serving

from cancelmark.impl.models import Failure
from cancelmark.impl.models.scripted import Wait, say
from cancelmark.impl.runtime.conversation import SUMMARIZE
from cancelmark.impl.server.site import Limits
from cancelmark.impl.store import SqliteStore, StoreError
from cancelmark.model.lifecycle import Outcome

Story = Callable[[Server, Place], Awaitable[None]]


def played(story: Story) -> Callable[[], Awaitable[None]]:
    """A test that plays the story on a server in memory."""
    async def test() -> None:
        async with placed() as (server, place):
            await story(server, place)

    test.__name__, test.__doc__ = getattr(story, "__name__", "test"), story.__doc__
    return test


# --- prompts

@pytest.mark.smoke
@played
async def test_a_prompt_is_accepted_runs_and_ends_once(server: Server, place: Place) -> None:
    async with place.watching() as watch:
        seq = await place.send("hello", "run-1")
        end = await watch.end("run-1")
        assert (end["outcome"], end["seq"], end["session_id"]) == ("end_turn", seq, place.session)
        assert end["text"].startswith("You said: hello")
        message = next(m for m in await place.messages() if m["id"] == end["message_id"])
        assert message["parts"][0]["data"]["text"] == end["text"]
    assert await place.spoken() == [("user", None), ("assistant", "end_turn")]


@played
async def test_a_prompt_without_a_run_id_ends_with_an_event_without_one(server: Server, place: Place) -> None:
    async with place.watching() as watch:
        seq = await place.send("hello")
        await watch.until(lambda w: w.ends())
        (end,) = watch.of("run_complete")
        assert end["seq"] == seq
        assert "run_id" not in end


@played
async def test_every_state_that_a_prompt_comes_to_is_told_in_order(server: Server, place: Place) -> None:
    gate = server.holds("a")
    async with place.watching() as watch:
        await place.send("a", "run-a")
        await gate.reached()
        await place.send("b", "run-b")
        await watch.until(lambda w: ("queued", None) in told(w, "run-b"))
        gate.open()
        await watch.until(lambda w: ("done", "end_turn") in told(w, "run-b"))
        assert told(watch, "run-a") == [("accepted", None), ("active", None), ("done", "end_turn")]
        assert told(watch, "run-b") == [("accepted", None), ("queued", None), ("active", None), ("done", "end_turn")]
        changes = [e["payload"]["type"] for e in watch.seen if e["type"] == "prompt"]
        assert changes.count("created") == 2


def told(watch: Any, run_id: str) -> list[tuple[str, str | None]]:
    return [(p["state"], p.get("outcome")) for p in watch.of("prompt") if p.get("run_id") == run_id]


@pytest.mark.rule("R27a")
@played
async def test_a_session_tells_its_queue_its_prompts_and_whether_it_is_busy(server: Server, place: Place) -> None:
    assert (await place.get())["is_busy"] is False
    gate = server.holds("a")
    await place.send("a", "run-a")
    await gate.reached()
    for text in ("b", "c"):
        await place.send(text, f"run-{text}")
    await place.until(lambda n: n == 2, "prompts/queued")
    assert await place.get("prompts/list") == ["b", "c"]
    assert (await place.get())["is_busy"] is True
    agent = (await place.http.get(f"{place.url}/agent")).json()
    assert (agent["is_busy"], agent["is_ready"], agent["model"]) == (True, True, "scripted")
    assert [(p["text"], p["state"], p["run_id"]) for p in await place.get("prompts")] == [
        ("a", "active", "run-a"), ("b", "queued", "run-b"), ("c", "queued", "run-c")]
    assert (await place.do("prompts/clear")).status_code == 200
    assert await place.get("prompts/queued") == 0
    gate.open()
    await place.until(lambda prompts: all(p["state"] == "done" for p in prompts))
    assert [p["outcome"] for p in await place.get("prompts")] == ["end_turn", "canceled", "canceled"]
    await until_idle(place)
    assert (await place.http.get(f"{place.url}/agent")).json()["is_busy"] is False


async def until_idle(place: Place) -> None:
    await place.until(lambda session: not session["is_busy"], "")


@pytest.mark.parametrize("durable", [False, True])
async def test_the_list_of_prompts_has_all_unfinished_and_the_last_50_finished(durable: bool, tmp_path: Path) -> None:
    async with placed(tmp_path if durable else None) as (server, place):
        other = await place.new_session()
        for n in range(60):
            await place.send(f"early {n}", f"run-{n}")
            await place.send(f"other {n}", f"other-{n}", other)
        await place.until(lambda prompts: all(p["state"] == "done" for p in prompts))
        gate = server.holds("late")
        await place.send("late", "run-late")
        await gate.reached()
        prompts = await place.get("prompts")
        assert [p["text"] for p in prompts] == [*(f"early {n}" for n in range(10, 60)), "late"]
        gate.open()


@played
async def test_prompts_without_a_run_id_fold_into_the_turn_and_have_no_end_of_their_own(
        server: Server, place: Place) -> None:
    gate = server.holds("a")
    async with place.watching() as watch:
        await place.send("a", "run-a")
        await gate.reached()
        await place.send("b", "run-b")
        folded = await place.send("c")
        await place.until(lambda n: n == 2, "prompts/queued")
        gate.open()
        await watch.end("run-b")
        await watch.until(lambda w: any(p["seq"] == folded and p["state"] == "done" for p in w.of("prompt")))
        assert [e["outcome"] for e in watch.of("run_complete")] == ["end_turn", "end_turn"]
        assert watch.of("prompt")[-1]["seq"] != folded or watch.of("prompt")[-1]["outcome"] == "folded"


# --- run ids

@pytest.mark.rule("R22b")
@played
async def test_the_same_prompt_under_the_same_run_id_is_accepted_once(server: Server, place: Place) -> None:
    gate = server.holds("a")
    first = await place.post("a", "run-a")
    await gate.reached()
    again = await place.post("a", "run-a")
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json() == again.json()
    gate.open()
    await until_idle(place)
    assert (await place.post("a", "run-a")).json() == first.json(), "also when it is done"
    assert await place.spoken() == [("user", None), ("assistant", "end_turn")]
    assert server.model.calls == 1


@played
async def test_the_same_prompt_many_times_at_once_is_accepted_once(server: Server, place: Place) -> None:
    answers = await asyncio.gather(*(place.post("a", "run-a") for _ in range(20)))
    assert {(a.status_code, a.json()["seq"]) for a in answers} == {(202, answers[0].json()["seq"])}
    await until_idle(place)
    assert server.model.calls == 1


@pytest.mark.rule("R22c")
@pytest.mark.parametrize("change", ["prompt", "session"])
async def test_another_prompt_under_a_used_run_id_is_refused(change: str) -> None:
    async with placed() as (server, place):
        await place.send("a", "run-a")
        other = await place.new_session()
        text, session = ("b", place.session) if change == "prompt" else ("a", other)
        refused = await place.post(text, "run-a", session)
        assert refused.status_code == 409
        assert "run_id" in refused.json()["message"]
        await until_idle(place)
        assert server.model.calls == 1


async def test_a_run_id_is_remembered_after_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as http:
        place = await server.workspace(http)
        seq = await place.send("a", "run-a")
        await until_idle(place)
    async with serving(tmp_path) as server, server.client() as http:
        place = Place(http, place.id, place.session)
        assert await place.send("a", "run-a") == seq
        assert (await place.post("b", "run-a")).status_code == 409
        assert server.model.calls == 0


@pytest.mark.rule("R22b")
async def test_a_run_id_that_is_known_is_acknowledged_while_the_workspace_closes_and_when_the_queue_is_full() -> None:
    async with placed(queue=1) as (server, place):
        gate = server.holds("a")
        server.plays("a", (Wait("a"),))
        seq = await place.send("a", "run-a")
        await gate.reached()
        assert (await place.post("b", "run-b")).status_code == 429
        assert await place.send("a", "run-a") == seq
        workspace = server.site.workspaces.get(place.id)
        workspace.runtime.closing = True
        assert await place.send("a", "run-a") == seq
        assert (await place.post("b", "run-b")).status_code == 409
        workspace.runtime.closing = False


# --- workspaces

async def test_paths_that_lead_to_the_same_place_are_the_same_workspace(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    async with placed() as (_, place):
        paths = ["real", "link", "link/../real/.", "real/"]
        answers = [await place.http.post("/v1/workspaces", json={"path": f"{tmp_path}/{path}"}) for path in paths]
        assert len({answer.json()["id"] for answer in answers}) == 1
        assert answers[1].json()["path"] == str(tmp_path / "real")
        other = (await place.http.post("/v1/workspaces", json={"path": str(tmp_path)})).json()
        assert other["id"] != answers[0].json()["id"]
        listed = (await place.http.get("/v1/workspaces")).json()
        assert {place.id, other["id"], answers[0].json()["id"]} == {w["id"] for w in listed}
        assert (await place.http.get(f"/v1/workspaces/{other['id']}")).json() == other


async def test_a_path_that_is_opened_many_times_at_once_is_opened_once(tmp_path: Path) -> None:
    async with placed(tmp_path) as (_, place):
        answers = await asyncio.gather(*(place.http.post("/v1/workspaces", json={"path": "/x"}) for _ in range(10)))
        assert {a.status_code for a in answers} == {200}
        assert len({a.json()["id"] for a in answers}) == 1


async def test_workspaces_share_nothing_but_the_server() -> None:
    async with placed() as (server, place):
        other = await server.workspace(place.http, "/elsewhere")
        gate = server.holds("a")
        await place.send("a", "run-a")
        await gate.reached()
        async with other.watching() as watch:
            assert (await other.http.get(f"{other.url}/sessions/{place.session}")).status_code == 404
            assert (await other.do("cancel", place.session)).status_code == 404
            assert (await other.post("x", None, place.session)).status_code == 400
            await other.send("b", "run-a")
            assert (await watch.end("run-a"))["text"].startswith("You said: b")
        assert (await place.get())["is_busy"]
        gate.open()


@played
async def test_a_deleted_workspace_ends_its_prompts_and_comes_back_as_it_was(server: Server, place: Place) -> None:
    gate = server.holds("a")
    async with place.watching() as watch:
        await place.send("a", "run-a")
        await gate.reached()
        assert (await place.http.delete(place.url)).status_code == 200
        await watch.until(lambda w: w.over)
        assert watch.ends() == [("run-a", "canceled")], "the stream ends after the last event"
    assert (await place.http.get(place.url)).status_code == 404
    assert (await place.post("b")).status_code == 404
    assert (await place.http.delete(place.url)).status_code == 404


async def test_a_deleted_workspace_has_its_sessions_when_its_path_is_opened_again(tmp_path: Path) -> None:
    async with placed(tmp_path / "data") as (_, place):
        await place.send("a", "run-a")
        await until_idle(place)
        await place.http.delete(place.url)
        again = (await place.http.post("/v1/workspaces", json={"path": "/tmp/cancelmark-test"})).json()
        assert (again["id"], again["is_ready"]) == (place.id, True)
        assert await place.spoken() == [("user", None), ("assistant", "end_turn")]


@pytest.mark.rule("R26")
async def test_a_workspace_is_closed_a_grace_period_after_its_last_client_has_left_and_its_prompts_are_done() -> None:
    async with placed(grace=0.5) as (server, place):
        gate = server.holds("a")
        runtime = server.site.workspaces.get(place.id).runtime
        async with server.client() as other, place.seen_by(other).watching() as watch:
            await place.send("a", "run-a")
            await gate.reached()
            await asyncio.sleep(1.0)  # two grace periods: it stays while somebody is attached
            assert not runtime.closing
        await asyncio.sleep(1.5)  # and three more: it stays while a prompt is not done
        assert not runtime.closing
        gate.open()
        await until(lambda: runtime.closing)
        await until(lambda: not list(server.site.workspaces))
        assert watch.ends() == []
        assert (runtime.ended[Outcome.END_TURN], runtime.ended[Outcome.CANCELED]) == (1, 0)
        assert (await place.http.get(place.url)).status_code == 404


async def test_a_call_within_the_grace_period_keeps_the_workspace() -> None:
    async with placed(grace=1.0) as (_, place):
        loop = asyncio.get_running_loop()
        opened = loop.time()
        while loop.time() < opened + 2.5:  # more than two grace periods
            assert (await place.http.get(place.url)).status_code == 200
            await asyncio.sleep(0.05)


@played
async def test_a_released_client_has_no_claims_and_its_streams_end(server: Server, place: Place) -> None:
    mine, other = str(uuid4()), str(uuid4())
    opened = (await place.http.post("/v1/workspaces", json={"path": "/x", "client_id": mine.upper()})).json()
    assert opened["clients"] == [mine]
    x = Place(place.http, opened["id"])
    async with x.watching(mine) as watch, x.watching(other) as stays:
        assert set((await place.http.get(x.url)).json()["clients"]) == {mine, other}
        assert (await place.http.delete(f"/v1/clients/{mine}")).json() == {"released": 1}
        await watch.until(lambda w: w.over)
        assert (await place.http.get(x.url)).json()["clients"] == [other]
        assert not stays.over
    assert (await place.http.delete(f"/v1/clients/{mine}")).json() == {"released": 0}
    assert (await place.http.delete("/v1/clients/nobody")).status_code == 400


async def test_a_workspace_that_cannot_be_opened_after_a_restart_does_not_keep_the_others_down(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as http:
        bad, good = await server.workspace(http, "/bad"), await server.workspace(http, "/good")
    for file in (tmp_path / "workspaces").glob(f"{bad.id}.db*"):
        file.unlink()
    (tmp_path / "workspaces" / f"{bad.id}.db").write_bytes(b"no database" * 1000)
    async with serving(tmp_path) as server, server.client() as http:
        assert (await http.get(good.url)).status_code == 200
        assert (await http.get(bad.url)).status_code == 404
        refused = await http.post("/v1/workspaces", json={"path": "/bad"})
        assert refused.status_code == 503
        assert "not a database" in refused.json()["message"]
        assert str(tmp_path) not in refused.json()["message"], "where the server keeps its files is its own affair"


async def test_only_so_many_workspaces_are_open_at_a_time() -> None:
    async with placed(workspaces=2) as (_, place):
        assert (await place.http.post("/v1/workspaces", json={"path": "/a"})).status_code == 200
        refused = await place.http.post("/v1/workspaces", json={"path": "/b"})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        await place.http.delete(place.url)
        assert (await place.http.post("/v1/workspaces", json={"path": "/b"})).status_code == 200


async def test_two_servers_cannot_share_a_data_directory(tmp_path: Path) -> None:
    async with serving(tmp_path):
        with pytest.raises(Exception, match="another server uses"):
            async with serving(tmp_path):
                pass


# --- sessions and the agent

@played
async def test_sessions_are_made_listed_and_told_to_those_who_watch(server: Server, place: Place) -> None:
    async with place.watching() as watch:
        made = (await place.http.post(f"{place.url}/sessions", json={"title": "über ☃"})).json()
        await watch.until(lambda w: w.of("session"))
        assert watch.of("session")[0]["id"] == made["id"]
        assert watch.of("session")[0]["title"] == made["title"] == "über ☃"
    assert [s["id"] for s in (await place.http.get(f"{place.url}/sessions")).json()] == [place.session, made["id"]]
    assert (await place.http.get(f"{place.url}/sessions/{made['id']}")).json() == made
    assert made["created_at"] > 1_700_000_000


@played
async def test_a_summary_is_what_the_next_turn_goes_on_from(server: Server, place: Place) -> None:
    assert (await place.do("summarize")).status_code == 200, "there is nothing to summarize"
    assert server.model.calls == 0
    await place.send("a", "run-a")
    await until_idle(place)
    server.plays(SUMMARIZE, say("we talked about a"))
    async with place.watching() as watch:
        assert (await place.do("summarize")).status_code == 200
        await watch.until(lambda w: w.of("message"))
        assert watch.of("message")[0]["role"] == "system"
    assert (await place.spoken())[-1] == ("system", None)
    heard: list[Any] = []
    server.model._choose = lambda request: heard.extend(request.messages)
    await place.send("b", "run-b")
    await until_idle(place)
    assert [m.text for m in heard] == ["Summary of the conversation so far: we talked about a", "b"]


@played
async def test_a_busy_session_is_not_summarized_and_a_model_that_fails_is_502(server: Server, place: Place) -> None:
    gate = server.holds("a")
    await place.send("a", "run-a")
    await gate.reached()
    assert (await place.do("summarize")).status_code == 409
    gate.open()
    await until_idle(place)
    server.plays(SUMMARIZE, fails(Failure.UNAVAILABLE, "the model is down"))
    refused = await place.do("summarize")
    assert (refused.status_code, refused.json()) == (502, {"message": "the model is down"})


@played
async def test_a_prompt_that_comes_while_a_summary_is_made_wins(server: Server, place: Place) -> None:
    await place.send("a", "run-a")
    await until_idle(place)
    before = await place.spoken()
    server.plays(SUMMARIZE, (Wait("summary"), *say("short")))
    summarizing = asyncio.ensure_future(place.do("summarize"))
    await server.model.gate("summary").reached()
    gate = server.holds("b")
    await place.send("b", "run-b")
    await gate.reached()
    server.model.gate("summary").open()
    assert (await summarizing).status_code == 409
    gate.open()
    await until_idle(place)
    assert await place.spoken() == [*before, ("user", None), ("assistant", "end_turn")]


# --- limits

@pytest.mark.rule("R27b")
async def test_a_session_with_too_many_prompts_takes_no_more_until_some_are_done() -> None:
    async with placed(queue=3) as (server, place):
        gate = server.holds("a")
        await place.send("a", "run-a")
        await gate.reached()
        answers = await asyncio.gather(*(place.post("b", f"run-{n}") for n in range(8)))
        assert sorted(a.status_code for a in answers) == [202, 202, *[429] * 6], "also when they come at once"
        refused = next(a for a in answers if a.status_code == 429)
        assert refused.headers["retry-after"] == "1"
        assert "3 prompts that are not done" in refused.json()["message"]
        assert (await place.post("b", "other", await place.new_session())).status_code == 202
        gate.open()
        await until_idle(place)
        assert (await place.post("c", "run-c")).status_code == 202


async def test_bodies_and_prompts_have_a_limit_and_what_is_too_large_is_said_so() -> None:
    async with placed(limits=Limits(body=5000, prompt=100)) as (_, place):
        long = await place.post("x" * 101)
        assert long.status_code == 400
        assert "prompt: 101 characters exceed the limit of 100" in long.json()["message"]
        assert (await place.post("ü" * 100)).status_code == 202
        for size in (10_000, 100_000, 2_000_000, 50_000_000):  # read in part, or not at all
            large = await place.http.post(f"{place.url}/agent", content=b"x" * size)
            assert large.status_code == 413
            assert "larger than 5,000 bytes" in large.json()["message"]

        async def chunks() -> Any:
            for _ in range(100):
                yield b" " * 1000

        assert (await place.http.post(f"{place.url}/agent", content=chunks())).status_code == 413
        assert (await place.post("small")).status_code == 202


async def test_a_connection_too_many_is_told_so() -> None:
    """All places are taken by streams, and none of them has to go."""
    async with placed(limits=Limits(connections=3)) as (server, place), place.watching() as one, place.watching():
        async with place.watching() as three, server.client() as other:
            refused = await other.get("/v1/health")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert "too many connections" in refused.json()["message"]
            refused = await other.post("/v1/workspaces", json={"path": "/" + "x" * 4000})
            assert refused.status_code == 503
            assert not three.over
        async with asyncio.timeout(30), server.client() as other:
            while (await other.get("/v1/health")).status_code == 503:
                await asyncio.sleep(0.01)
            await place.seen_by(other).send("hello", "run-a")
            await one.end("run-a")


# --- the server itself

@played
async def test_the_server_says_that_it_is_well_and_which_it_is(server: Server, place: Place) -> None:
    assert (await place.http.get("/v1/health")).json() == {"status": "ok"}
    assert (await place.http.get("/v1/version")).json()["version"] == "0.2.0"


@played
async def test_metrics_count_what_was_answered_and_say_what_is_open(server: Server, place: Place) -> None:
    gate = server.holds("a")
    async with place.watching():
        await place.send("a", "run-a")
        await gate.reached()
        await place.http.get("/v1/workspaces/unknown")
        text = (await place.http.get("/metrics")).text
        for line in ('cancelmark_requests_total{call="send_prompt",method="POST",status="202"} 1.0',
                     'cancelmark_requests_total{call="get_workspace",method="GET",status="404"} 1.0',
                     "cancelmark_prompts_unfinished 1.0", "cancelmark_streams 1.0", "cancelmark_workspaces 1.0"):
            assert line in text.splitlines()
        await place.send("b", "run-b")
        await place.do("cancel")
        await place.until(lambda prompts: [p["state"] for p in prompts] == ["done", "done"])
        text = (await place.http.get("/metrics")).text
        assert 'cancelmark_prompts_ended_total{outcome="canceled"} 2.0' in text.splitlines()
        assert 'cancelmark_prompts_ended_total{outcome="end_turn"} 0.0' in text.splitlines()


@pytest.mark.rule("R27b")
async def test_a_store_that_cannot_be_written_is_503_and_says_to_try_again(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: SqliteStore, steps: Any) -> "asyncio.Future[Any]":
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.set_exception(StoreError(self.path, "the disk is full", "make room and try again"))
        return answer

    async with placed(tmp_path) as (_, place):
        with monkeypatch.context() as patch:
            patch.setattr(SqliteStore, "begin_commit", full)
            refused = await place.post("a", "run-a")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "the disk is full" in refused.json()["message"]
        assert str(tmp_path) not in refused.json()["message"]
        assert (await place.post("a", "run-a")).status_code == 202


async def test_what_nobody_foresaw_is_500_and_told_only_in_the_log(
        monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async with placed() as (server, place):
        def broken(id: str) -> None:
            raise ZeroDivisionError("the secret is 42")

        with monkeypatch.context() as patch:
            patch.setattr(server.site.workspaces, "get", broken)
            failed = await place.http.get(place.url)
        assert failed.status_code == 500
        assert "42" not in failed.text
    assert "the secret is 42" in caplog.text
