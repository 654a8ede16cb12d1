"""Error notices: for clients that listen to them, right before the terminal event, and never instead of it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.servers import Place, Process, Watch, check_notices, serving, web

from cancelmark.impl.client import Client, RunStream
from cancelmark.impl.models import Failure, ModelError
from cancelmark.impl.models.scripted import Fail, say

BOOM = Fail(ModelError(Failure.UNAVAILABLE, "boom"))


def types(watch: Watch) -> list[tuple[str, str | None]]:
    return [(e["type"], e["payload"]["payload"].get("run_id")) for e in watch.seen
            if e["type"] in ("agent_event", "run_complete")]


@pytest.mark.rule("R29f")
async def test_a_failed_run_is_announced_under_its_run_id_right_before_its_end() -> None:
    async with serving() as server, server.client() as http:
        place = await server.workspace(http)
        for text in ("fails", "too"):
            server.plays(text, (*say("half "), BOOM))
        gate = server.holds("canceled")
        async with place.watching() as watch:
            await place.send("fails", "run-1")
            await place.send("fine", "run-2")
            await watch.end("run-2")
            await place.send("too")  # without a run id
            await watch.until(lambda w: len(w.of("run_complete")) == 3)
            await place.send("canceled", "run-4")
            await place.do("cancel")
            await watch.end("run-4")
            gate.open()
            assert types(watch) == [("agent_event", "run-1"), ("run_complete", "run-1"), ("run_complete", "run-2"),
                                    ("run_complete", None), ("run_complete", "run-4")]
            assert watch.of("agent_event") == [
                {"type": "error", "session_id": place.session, "run_id": "run-1", "error": "boom"}]
            check_notices(watch.seen)


@pytest.mark.rule("R29f", "R29c")
async def test_a_client_that_left_between_notice_and_end_gets_both_again() -> None:
    async with serving() as server, server.client() as http:
        place = await server.workspace(http)
        server.plays("fails", (BOOM,))
        async with place.watching() as watch:
            await place.send("before", "run-0")
            await watch.end("run-0")
            await place.send("fails", "run-1")
            await watch.end("run-1")
        frames = await read_frames(place, "0")
        (notice,) = [number for number, (_, kind) in enumerate(frames) if kind == "agent_event"]
        assert [kind for _, kind in frames[notice:]] == ["agent_event", "run_complete"]
        again = await read_frames(place, frames[notice][0])
        assert [kind for _, kind in again] == ["agent_event", "run_complete"]
        assert await read_frames(place, frames[notice + 1][0]) == []


async def read_frames(place: Place, after: str) -> list[tuple[str, str]]:
    """The ids and types of what is in the log after that place, as far as it is here."""
    async with place.watching(last_event_id=after) as watch:
        last = await place.send("the last", f"last-{after}")
        await watch.until(lambda w: any(end["seq"] == last for end in w.of("run_complete")))
        return [(id, e["type"]) for id, e in zip(watch.ids, watch.seen) if e["type"] in ("agent_event", "run_complete")
                and not e["payload"]["payload"]["run_id"].startswith("last")]


@pytest.mark.rule("R16c", "R29f")
def test_a_run_that_a_kill_interrupted_is_announced_once_it_has_failed(tmp_path: Path) -> None:
    async def main(server: Process) -> None:
        async with web(server.url) as http:
            told = (await http.post("/v1/workspaces", json={"path": "/tmp"})).json()
            place = Place(http, told["id"])
            await http.post(f"{place.url}/agent/init", json={})
            place.session = await place.new_session()
            await place.send("slow: one two three four five six", "run-1")
            await place.until(lambda prompts: prompts[0]["state"] == "active")
        server.kill()
        server.start()
        async with web(server.url) as http, Place(http, told["id"], place.session).watching(last_event_id="0") as watch:
            await watch.end("run-1")
            assert types(watch) == [("agent_event", "run-1"), ("run_complete", "run-1")]
            check_notices(watch.seen)

    with Process(tmp_path / "data", "--pace", "0.5") as server:
        asyncio.run(main(server))


@pytest.mark.rule("R28b", "R29f")
async def test_a_client_that_waits_shows_the_notice_and_ends_with_the_end() -> None:
    async with serving() as server:
        server.plays("fails", (*say("half "), BOOM))
        async with Client(server.url) as client:
            workspace = await client.open_workspace("/tmp")
            await client.init_agent(workspace.id)
            session = await client.create_session(workspace.id, "s")
            async with RunStream(client, workspace.id, session.id, "fails") as run:
                seen = [notice.type async for notice in run.events()]
            end = await run.end()
            assert (end.outcome, end.error, end.text) == ("error", "boom", "half ")
            assert seen[-2:] == ["agent_event", "run_complete"]


def notice(run_id: str = "r", error: str = "boom") -> dict[str, Any]:
    return {"type": "agent_event", "payload": {"payload": {
        "type": "error", "session_id": "s", "run_id": run_id, "error": error}}}


def end(outcome: str = "error", **fields: Any) -> dict[str, Any]:
    failed = {"error": "boom"} if outcome == "error" else {}
    return {"type": "run_complete", "payload": {"payload": {
        "session_id": "s", "run_id": "r", "outcome": outcome, **failed, **fields}}}


WRONG = {
    "after the end": [end(), notice()], "instead of the end": [notice()], "missing": [end()],
    "of another run": [notice("x"), end()], "twice": [notice(), notice(), end()],
    "of a run that succeeds": [notice(), end("end_turn")], "of a canceled run": [notice(), end("canceled")],
    "without a run id": [notice(""), end(run_id="")], "another error": [notice(error="bang"), end()],
    "not right before": [notice(), end("end_turn", run_id="x"), end()],
}


@pytest.mark.parametrize("seen", WRONG.values(), ids=WRONG)
def test_a_server_that_tells_notices_otherwise_is_found_out(seen: list[dict[str, Any]]) -> None:
    check_notices([notice(), end()])
    with pytest.raises(AssertionError, match="right before its end"):
        check_notices(seen)


async def test_a_server_in_which_nothing_is_named_sends_no_notice() -> None:
    async with serving() as server, server.client() as http:
        place = await server.workspace(http)
        server.plays("fails", (BOOM,))
        async with place.watching() as watch:
            await place.send("fails")
            await watch.until(lambda w: w.of("run_complete"))
            assert not watch.of("agent_event")
