"""Trouble in one place stays there: a session that stands still, and a workspace whose content is damaged. The others
go on, strangers learn what is wrong and not where the files are, and the log says both."""

import asyncio
import json
import logging
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from support.servers import PATIENCE, Place, serving


@contextmanager
def other_program(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None, timeout=PATIENCE)) as db:
        yield db


# --- a session that stands still --------------------------------------------------------------------------------------

@pytest.mark.rule("R20", "R22b", "R25b")
async def test_a_session_that_stands_still_is_unavailable_alone_and_does_not_say_where_the_files_are(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path / "data") as server, server.client() as http:
        stuck = await server.workspace(http)
        other = Place(http, stuck.id, await stuck.new_session("another"))
        gate = server.holds("a")
        await stuck.send("a", "run-a")
        await gate.reached()
        with other_program(tmp_path / "data" / "workspaces" / f"{stuck.id}.db") as db:
            db.execute(f"CREATE TRIGGER injected BEFORE UPDATE ON prompts WHEN new.session_id = '{stuck.session}'"
                       " AND new.state = 'done' BEGIN SELECT RAISE(ABORT, 'injected'); END")
        gate.open()
        session = f"{stuck.url}/agent/sessions/{stuck.session}"
        async with asyncio.timeout(PATIENCE):
            while (await http.get(session)).status_code == 200:
                await asyncio.sleep(0.01)
        answers = [await stuck.post("b", "run-b"), await stuck.do("cancel"), await stuck.do("prompts/clear"),
                   await http.get(session), await http.get(f"{session}/prompts/queued"),
                   await http.get(f"{session}/prompts/list"), await stuck.do("summarize")]
        for answer in answers[:-1]:
            assert answer.status_code == 503, (answer.url, answer.text)
            assert "restart the server" in answer.text
        assert answers[-1].status_code in (409, 503)
        for answer in answers:
            assert str(tmp_path) not in answer.text
        assert await stuck.send("a", "run-a") == 1, "what was accepted is"
        assert (await stuck.post("another text", "run-a")).status_code == 409

        for path in (f"{stuck.url}/sessions", f"{stuck.url}/agent", "/metrics", f"{session}/prompts",
                     f"{stuck.url}/sessions/{stuck.session}/messages"):
            answer = await http.get(path)
            assert answer.status_code == 200, (path, answer.text)
        busy = {s["id"]: s["is_busy"] for s in (await http.get(f"{stuck.url}/sessions")).json()}
        assert busy == {stuck.session: True, other.session: False}
        assert (await http.get(f"{stuck.url}/agent")).json()["is_busy"], "as its session is"
        async with other.watching() as watch:
            await other.send("c", "run-c")
            await watch.end("run-c")
        assert (await other.do("cancel")).status_code == 200
        assert (await http.delete(stuck.url)).status_code == 200


# --- damaged content --------------------------------------------------------------------------------------------------

DAMAGES = [
    ("UPDATE prompts SET state = 'strange' WHERE seq = 2", "prompt 2"),
    ("UPDATE prompts SET text = x'00ff' WHERE seq = 2", "prompt 2"),
    ("UPDATE sessions SET mark = 'high'", "session"),
    ("UPDATE sessions SET title = x'00'", "session"),
    ("UPDATE transitions SET state = 'strange' WHERE seq = 2", "prompt 2"),
    ("UPDATE messages SET parts = '[1, 2]'", ""),
    ("UPDATE messages SET parts = '{}'", ""),
    ("UPDATE messages SET parts = 'no JSON'", ""),
    ("""UPDATE messages SET parts = '[{"type": "text", "data": {"txt": 5}}]'""", ""),
    ("""UPDATE messages SET parts = '[{"type": "image", "data": {}}]'""", ""),
    ("UPDATE messages SET role = 'nobody'", ""),
    ("UPDATE lives SET name = x'00'", "life"),
]


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """What a crash leaves of a server with two workspaces, each with a prompt that is active, and their ids."""
    directory = tmp_path_factory.mktemp("crashed")

    async def main() -> list[str]:
        async with serving(directory / "data") as server, server.client() as http:
            places = [await server.workspace(http, f"/tmp/cancelmark-{name}") for name in ("damaged", "sound")]
            for number, place in enumerate(places, 1):
                await place.send("before", "before")
                await place.until(lambda told: all(prompt["state"] == "done" for prompt in told))
                gate = server.holds("active")
                await place.send("active", "active")
                await gate.reached(number)
            shutil.copytree(directory / "data", directory / "left")
            gate.open()
            return [place.id for place in places]

    return directory / "left", asyncio.run(main())


@pytest.mark.parametrize(("damage", "row"), DAMAGES, ids=[damage.partition("SET ")[2] for damage, _ in DAMAGES])
def test_damaged_content_keeps_one_workspace_from_opening_at_most_and_never_the_server(
    crashed: tuple[Path, list[str]], tmp_path: Path, damage: str, row: str, caplog: pytest.LogCaptureFixture,
) -> None:
    """`row` is what the refusal names. Without one the journal is sound, and the workspace opens."""
    left, (damaged, sound) = crashed
    data = tmp_path / "data"
    shutil.copytree(left, data)
    file = data / "workspaces" / f"{damaged}.db"
    with other_program(file) as db:
        assert db.execute(damage).rowcount > 0

    async def ends(http: httpx.AsyncClient, id: str) -> list[Any]:
        async with Place(http, id).watching(last_event_id="0") as watch:
            await watch.end("active")
            return watch.ends()

    async def main() -> None:
        async with serving(data) as server, server.client() as http:
            assert await ends(http, sound) == [("before", "end_turn"), ("active", "error")]
            opened = [workspace["id"] for workspace in (await http.get("/v1/workspaces")).json()]
            assert (damaged in opened) is not bool(row)
            if row:
                for _ in range(2):  # and nothing is left behind that would be in its own way
                    answer = await http.post("/v1/workspaces", json={"path": "/tmp/cancelmark-damaged"})
                    assert answer.status_code == 503, answer.text
                    assert f"damaged: {row}" in answer.json()["message"]
                    assert str(tmp_path) not in answer.text
            else:
                assert ("active", "error") in await ends(http, damaged)

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    if row:
        (told,) = [r for r in caplog.records if r.getMessage() == "workspace could not be opened"]
        problem = str(vars(told)["problem"])
        assert problem.startswith(f"{file}: ")
        assert row in problem


async def test_damaged_messages_and_events_are_named_to_whoever_reads_them(
    crashed: tuple[Path, list[str]], tmp_path: Path,
) -> None:
    left, (damaged, _) = crashed
    data = tmp_path / "data"
    shutil.copytree(left, data)
    with other_program(data / "workspaces" / f"{damaged}.db") as db:
        session = db.execute("SELECT id FROM sessions").fetchone()[0]
        db.execute("UPDATE messages SET parts = ? WHERE id = 'p1'", (json.dumps("text"),))
    async with serving(data) as server, server.client() as http:
        answer = await http.get(f"/v1/workspaces/{damaged}/sessions/{session}/messages")
        assert answer.status_code == 503
        assert "message 'p1': parts: expected a list" in answer.json()["message"]
        assert str(tmp_path) not in answer.text
