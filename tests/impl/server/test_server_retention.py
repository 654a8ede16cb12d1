"""What is not kept for ever, as clients see it."""

import asyncio
from pathlib import Path
from time import time

import pytest
from support.commands import read_refusal
from support.servers import Place, Server, serving

from cancelmark.impl.client import Client, Events, RunStream
from cancelmark.impl.client import run as run_module
from cancelmark.impl.models.scripted import ScriptedModel
from cancelmark.impl.runtime.retention import Keep, Retention
from cancelmark.impl.runtime.workspace import Workspaces
from cancelmark.impl.wire import Gap

SHORT = Retention(events=Keep(number=2), prompts=Keep(number=2))


async def send_all(place: Place, number: int, first: int = 0) -> None:
    """Sends prompts and sees their ends."""
    async with place.watching() as watch:
        for each in range(first, first + number):
            await place.send(f"text {each}", f"run {each}")
            await watch.end(f"run {each}")


async def shorten(server: Server) -> None:
    """Waits until nobody holds the log, and shortens it."""
    for workspace in server.site.workspaces:
        broker = workspace.runtime.broker
        while broker.statistics().subscriptions:
            await asyncio.sleep(0.005)
        await SHORT.apply(workspace.runtime.store, broker, int(time()))


@pytest.mark.rule("R18c", "R29e")
@pytest.mark.parametrize("on_disk", [False, True])
async def test_whoever_comes_back_to_a_place_that_is_gone_is_told_of_the_gap_first(
    on_disk: bool, tmp_path: Path,
) -> None:
    async with serving(tmp_path if on_disk else None) as server, server.client() as http:
        place = await server.workspace(http)
        async with place.watching() as watch:
            await place.send("first", "first")
            await watch.end("first")
        await send_all(place, 4)
        await shorten(server)
        async with place.watching(last_event_id=watch.last_event_id) as back:
            await back.end("run 3")
            told = [envelope for envelope in back.seen if envelope["type"] in ("gap", "run_complete")]
            assert told[0] == {"type": "gap", "payload": {"type": "created", "payload": {"missed": 2}}}
            assert back.ends() == [("run 2", "end_turn"), ("run 3", "end_turn")]
        async with place.watching(last_event_id=back.last_event_id) as again:
            await place.send("last", "last")
            await again.end("last")
            assert (again.of("gap"), again.ends()) == ([], [("last", "end_turn")])


@pytest.mark.rule("R29e")
async def test_the_place_at_the_head_of_a_stream_is_the_old_one_until_the_gap_is_told() -> None:
    async with serving() as server, server.client() as http:
        place = await server.workspace(http)
        async with place.watching() as watch:
            await watch.until(lambda w: w.last_event_id)
        await send_all(place, 4)
        await shorten(server)
        async with http.stream("GET", f"{place.url}/events", params={"client_id": watch.client_id},
                               headers={"last-event-id": watch.last_event_id}) as answer:
            ids: list[str] = []
            async for line in answer.aiter_lines():
                ids += [line] if line.startswith("id: ") else []
                if len(ids) == 2:
                    break
        assert [id.rpartition("-")[2] for id in ids] == ["0", "2"]


@pytest.mark.rule("R28b", "R29e")
async def test_a_run_whose_end_is_gone_ends_as_its_record_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "GRACE", 0.05)
    async with serving() as server, server.client() as http, Client(server.url) as client:
        place = await server.workspace(http)
        await send_all(place, 6)
        await shorten(server)
        workspace = place.url.rpartition("/")[2]
        async with RunStream(client, workspace, place.session, "text 1", run_id="run 1") as run:
            end = await run.end()
        assert (end.outcome, end.run_id, end.seq, run.recorded) == ("end_turn", "run 1", 2, True)
        assert await client.prompt(workspace, place.session, "run 77") is None
        known = await client.prompt(workspace, place.session, "run 1")
        assert known is not None
        assert (known.text, known.outcome) == ("", "end_turn")
        async with Events(client, workspace, after="0") as events:
            first = await anext(events)
            assert first.payload == Gap(4)
            assert events.gap


@pytest.mark.rule("R22d")
async def test_a_prompt_that_is_forgotten_and_sent_again_is_answered_as_the_first_time() -> None:
    async with serving() as server, server.client() as http:
        place = await server.workspace(http)
        await send_all(place, 6)
        await shorten(server)
        assert [prompt["seq"] for prompt in await place.get("prompts")] == [5, 6]
        assert await place.send("text 0", "run 0") == 1
        assert (await place.post("another", "run 0")).status_code == 409
        await send_all(place, 1, first=6)


# --- a workspace that is forgotten

async def test_a_workspace_that_is_forgotten_leaves_no_file_and_begins_anew(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as http:
        place = await server.workspace(http)
        await send_all(place, 2)
        (tmp_path / "workspaces" / f"{place.url.rpartition('/')[2]}.db-v3").touch()  # the copy of an older version
        assert (await http.delete(place.url, params={"forget": "perhaps"})).status_code == 400
        assert (await http.delete(place.url, params={"forget": "true"})).status_code == 200
        assert list((tmp_path / "workspaces").iterdir()) == []
        assert (await http.delete(place.url)).status_code == 404
        place = await server.workspace(http)
        assert len((await http.get(f"{place.url}/sessions")).json()) == 1  # the one that was just made
        assert await place.send("text 0", "run 0") == 1


async def test_a_workspace_that_is_deleted_without_that_keeps_its_file(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as http:
        place = await server.workspace(http)
        await send_all(place, 2)
        assert (await http.delete(place.url, params={"forget": "false"})).status_code == 200
        place = await server.workspace(http)
        assert len((await http.get(f"{place.url}/sessions")).json()) == 2


async def test_a_workspace_that_is_forgotten_is_not_known_to_the_next_start(tmp_path: Path) -> None:
    workspaces = Workspaces(ScriptedModel(), tmp_path)
    await workspaces.start()
    workspace = await workspaces.open("/tmp")
    await workspaces.delete(workspace.id, forget=True)
    await workspaces.close()
    workspaces = Workspaces(ScriptedModel(), tmp_path)
    await workspaces.start()
    assert list(workspaces) == []
    assert workspaces._index.all() == {}
    await workspaces.close()


@pytest.mark.parametrize("option", ["--keep-events", "--keep-prompts"])
@pytest.mark.parametrize("value", ["0", "many", "30y"])
def test_how_much_is_kept_must_be_a_number_or_an_age(option: str, value: str) -> None:
    assert f"{option} '{value}': invalid limit; expected a count such as 10000" in read_refusal("serve", option, value)
