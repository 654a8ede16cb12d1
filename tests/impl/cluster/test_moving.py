"""A workspace that moves from a file into a database: places, run ids and what was not done."""

import asyncio
import json
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from support.commands import COMMAND
from support.postgres import shared_server
from support.servers import Process, serving, web

from cancelmark.impl.cluster.node import Lease

NUL = "nul \0 here"


def migrate(file: Path, database: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*COMMAND, "migrate", str(file), database, "--json"], capture_output=True, text=True,
                          timeout=60)


def test_a_workspace_moves_with_its_places_and_what_was_not_done_goes_on(tmp_path: Path) -> None:
    server = shared_server()
    database = server.url(server.new_database())

    async def live_in_a_file() -> tuple[str, str, str]:
        async with serving(tmp_path / "data", stop=0.1) as one, one.client() as http:
            place = await one.workspace(http)
            async with place.watching() as watch:
                await place.send("one", "r1")
                await place.send("two", "r2")
                await watch.end("r2")
                return place.id, place.session, next(
                    id for id, e in zip(watch.ids, watch.seen) if e["type"] == "run_complete")

    async def live_in_the_database(id: str, session: str, seen: str) -> None:
        async with serving(database=database, lease=Lease(1.0, 0.1)) as one, one.client() as http:
            place = (await one.workspace(http)).seen_by(http)
            assert place.id == id
            place.session = session
            async with place.watching(last_event_id=seen) as watch:
                await watch.end("left")
                assert [run for run, _ in watch.ends()] == ["r2", "active", "left"], "from its place on, and once"
                seq = await place.send("after", "r3")
                await watch.end("r3")
            assert (await place.post("one", "r1")).json()["seq"] == 1, "a run id is known"
            prompts = await place.get("prompts")
            assert [(p["run_id"], p["outcome"]) for p in prompts] == [
                ("r1", "end_turn"), ("r2", "end_turn"), ("active", "error"), ("left", "end_turn"), ("r3", "end_turn")]
            assert seq > prompts[3]["seq"]
            assert prompts[1]["text"] == NUL.replace("\0", "\ufffd")

    async def leave_work(url: str, id: str, session: str) -> None:
        async with web(url) as http:
            for text, run in (("slow: " + "on and " * 99, "active"), ("fast: left", "left")):
                (await http.post(f"/v1/workspaces/{id}/agent", json={
                    "session_id": session, "prompt": text, "run_id": run})).raise_for_status()
            while (await http.get(f"/v1/workspaces/{id}/agent/sessions/{session}/prompts/queued")).json() != 1:
                await asyncio.sleep(0.01)

    id, session, seen = asyncio.run(live_in_a_file())
    file = tmp_path / "data" / "workspaces" / f"{id}.db"
    with Process(tmp_path / "data") as process:
        asyncio.run(leave_work(process.url, id, session))
        busy = migrate(file, database)
        assert busy.returncode == 2, "its server runs"
        process.kill()
    with closing(sqlite3.connect(file)) as written, written:  # a server of its own may have taken such a text
        written.execute("UPDATE prompts SET text = ? WHERE run_id = 'r2'", (NUL,))
    done = migrate(file, database)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["sessions"], told["prompts"], told["events"]) == (1, 4, 2)
    assert told["replaced"] == 1
    again = migrate(file, database)
    assert again.returncode == 2
    assert "already" in again.stderr
    asyncio.run(live_in_the_database(id, session, seen))


def test_a_file_that_is_no_workspace_is_refused(tmp_path: Path) -> None:
    assert "no such file" in migrate(tmp_path / "none.db", "postgresql://127.0.0.1:1/none").stderr
    stranger = tmp_path / "stranger.db"
    stranger.write_text("something")
    done = migrate(stranger, "postgresql://127.0.0.1:1/none")
    assert done.returncode == 2
    assert "data directory" in done.stderr
    assert "Traceback" not in done.stderr
