"""A workspace that moves from a file into a database: places, run ids and what was not done."""

import asyncio
import json
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from support.commands import COMMAND
from support.postgres import shared_server
from support.servers import Process, serving, web

from cancelmark.impl.cluster.moving import move
from cancelmark.impl.cluster.node import Lease
from cancelmark.impl.store import (
    TERMINAL,
    AcceptPrompt,
    AppendEvent,
    CommitRequest,
    Committed,
    DropEvent,
    ForgetPrompt,
    HoldSession,
    MessageRecord,
    MovePrompt,
    NewSession,
    Operation,
    PutMessage,
    RaiseMark,
    ReplaceText,
    SqliteStore,
    Store,
    make_digest,
)
from cancelmark.impl.store.index import Index, Record
from cancelmark.impl.store.postgres import Database, PostgresStore
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.session import Traits

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


async def fill(store: Store, random: Random) -> None:
    """A journal with gaps in its seqs, marks above them, prompts in every state, forgotten and edited ones, and a log
    whose beginning is gone."""
    sessions = [f"s{number}" for number in range(random.randint(1, 4))]
    await store.write([NewSession(id, f"title of {id}", 7) for id in sessions])
    seq, events, done = 0, 0, []
    for _ in range(random.randint(0, 25)):
        seq += random.choice([1, 1, 2, 40])
        session, run_id = random.choice(sessions), random.choice([None, f"run-{seq}"])
        traits = Traits(front=random.randint(0, 3), urgent=random.random() < 0.2)
        batch: list[Operation] = [AcceptPrompt(seq, session, f"text {seq}", run_id, traits=traits)]
        if random.random() < 0.3:
            batch += [ReplaceText(seq, f"edited {seq}", make_digest(f"text {seq}", ()))]
        if random.random() < 0.7:
            outcome = random.choice([Outcome.END_TURN, Outcome.CANCELED, Outcome.ERROR])
            batch += [MovePrompt(seq, State.DONE, outcome), AppendEvent(session, TERMINAL, {"seq": seq}, run_id)]
            events += 1
            done.append((seq, run_id))
        elif random.random() < 0.5:
            batch += [MovePrompt(seq, State.QUEUED)]
        if random.random() < 0.3:
            batch += [RaiseMark(session, seq + random.choice([0, 0, 500]))]
        if random.random() < 0.2:
            batch += [HoldSession(session, random.random() < 0.5)]
        batch += [PutMessage(MessageRecord(f"m{seq}", session, "user", ({"type": "text", "data": {"text": "hi"}},)))]
        await store.write(batch)
    for number in range(1, random.randint(1, max(1, events))):
        await store.write([DropEvent(number)])
    for number, run_id in done:
        if number < seq and random.random() < 0.3:
            await store.write([ForgetPrompt(number, make_digest(f"text {number}", ()) if run_id else None)])


async def describe(store: Store) -> dict[str, Any]:
    """Everything that a store tells of its workspace, but for who owns what."""
    sessions = await store.sessions()
    prompts = [prompt for session in sessions for prompt in await store.prompts(session.id, 1000)]
    return {"sessions": sessions, "prompts": prompts, "marks": {s.session_id: (s.mark, s.held, s.prompts)
                                                               for s in await store.load_all()},
            "messages": [message for session in sessions for message in await store.messages(session.id)],
            "transitions": {prompt.seq: [(t.state, t.outcome) for t in await store.transitions(prompt.seq)]
                            for prompt in prompts},
            "log": (await store.first_event(), await store.latest_event(), await store.events(0))}


@pytest.mark.real
@pytest.mark.parametrize("seed", range(6))
async def test_whatever_a_file_has_is_in_the_database_and_every_session_goes_on(seed: int, tmp_path: Path) -> None:
    """Two files in one database, whose seqs have been given out in both."""
    random, server = Random(seed), shared_server()
    address = server.url(server.new_database())
    database, moved = Database(address), []
    for name in ("one", "two"):
        id, data = uuid4(), tmp_path / name
        file = data / "workspaces" / f"{id}.db"
        file.parent.mkdir(parents=True)
        with closing(Index(data)) as index:
            index.put(Record(str(id), f"/{name}", "log", True, True))
        with closing(SqliteStore(file)) as store:
            await fill(store, random)
            before = await describe(store)
        await move(file, address)
        if not moved:
            await database.open()
        moved.append(PostgresStore(database, id))
        assert await describe(moved[-1]) == before
        for one in moved:
            await go_on(one)
    for one in moved:
        one.close()
    await database.close()


async def go_on(store: Store) -> None:
    """Accepts a prompt in every session, and lets go of the oldest event."""
    for snapshot in await store.load_all():
        last, highest = await store.latest_event(), max(await store.latest_seq(), snapshot.mark)
        answer = await store.begin_commit(CommitRequest(uuid4().hex, snapshot.session_id, snapshot.version, [
            AcceptPrompt(0, snapshot.session_id, "after", None), AppendEvent(snapshot.session_id, TERMINAL, {})]))
        assert isinstance(answer, Committed)
        assert answer.seqs[0] > highest
        assert answer.events[0] == last + 1, "a place follows the last one"
    if await store.first_event() < await store.latest_event():
        await store.write([DropEvent(await store.first_event())])
