"""What an older version has written: later versions open it and go on as that version did, and clients come back.

tests/fixtures/COMMIT has, for each fixture, what the commit left when it was killed, and what the same commit made of
that afterwards. tests/tools/write_fixtures.py writes them.
"""

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.commands import read_refusal, run_command
from support.paths import ROOT
from support.upgrades import Server, continue_from, unpack, without_later_times

from cancelmark.impl.files import UsageError
from cancelmark.impl.models.scripted import ScriptedModel
from cancelmark.impl.runtime.workspace import Workspaces
from cancelmark.impl.store import MIGRATIONS, SqliteStore, StoreError

COMMAND = [str(Path(sys.executable).parent / "cancelmark")]
ARCHIVES = sorted((ROOT / "tests" / "fixtures").glob("*/*.tar.xz"))


class Fixture:
    """One fixture, unpacked."""

    def __init__(self, archive: Path, directory: Path) -> None:
        self.directory = unpack(archive, directory)
        known = json.loads(archive.with_name(archive.name.replace(".tar.xz", ".json")).read_text())
        self.killed_at, self.left, self.continued = known["killed_at"], known["left"], known["continued"]
        self.databases = sorted((directory / "data" / "workspaces").glob("*.db"))
        self.traces = sorted((directory / "traces").glob("*.ndjson"))


@pytest.fixture(params=ARCHIVES, ids=lambda archive: f"{archive.parent.name}-{archive.name.partition('.')[0]}")
def fixture(request: pytest.FixtureRequest, tmp_path: Path) -> Fixture:
    return Fixture(request.param, tmp_path)


def version(path: Path) -> int:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


def assert_has(value: Any, expected: Any, where: str = "") -> None:
    """The value is as expected. Only fields that the older version did not know may come on top."""
    if isinstance(expected, dict):
        missing = expected.keys() - value.keys()
        assert not missing, f"{where} has no {missing}"
        for key, inner in expected.items():
            assert_has(value[key], inner, f"{where}/{key}")
    elif isinstance(expected, list):
        assert len(value) == len(expected), f"{where}: {value} instead of {expected}"
        for number, inner in enumerate(expected):
            assert_has(value[number], inner, f"{where}/{number}")
    else:
        assert value == expected, where


def test_there_are_fixtures_of_the_version_that_promised_to_be_opened() -> None:
    assert [f"{archive.parent.name}/{archive.name}" for archive in ARCHIVES] == [
        "e117825/held.tar.xz", "e117825/served.tar.xz"]


@pytest.mark.rule("R17a", "R17b", "R17c", "R17d", "R17e", "R29c")
def test_a_later_version_goes_on_exactly_as_the_version_that_was_killed(fixture: Fixture) -> None:
    """Sessions, prompts and messages; what each client sees that comes back with its Last-Event-ID; and the trace, now
    of two lives."""
    continued = continue_from(COMMAND, fixture.directory, fixture.left)
    assert_has(without_later_times(continued, fixture.killed_at), fixture.continued)
    assert fixture.traces
    for trace in fixture.traces:
        run_command("trace", "check", str(trace))


def test_what_the_same_version_made_of_it_has_one_end_for_each_prompt(fixture: Fixture) -> None:
    """The expectation itself: the clients together miss none, and none sees one twice."""
    for name, client in fixture.left["clients"].items():
        seen = [end["seq"] for ends in fixture.continued["clients"][name].values() for end in ends]
        prompts = [p for s in fixture.continued["workspaces"][client["path"]].values() for p in s["prompts"]]
        assert len(seen) == len(set(seen))
        assert {prompt["state"] for prompt in prompts} == {"done"}
        told = {prompt["seq"] for prompt in prompts if prompt["outcome"] != "folded"}
        assert set(seen) <= told
        if "beginning" in name or "another log" in name:
            assert set(seen) == told


def test_a_run_id_that_an_older_version_has_accepted_is_accepted_once(fixture: Fixture) -> None:
    with Server(COMMAND, fixture.directory, "--pace", "0") as server:
        for path, sessions in fixture.left["workspaces"].items():
            workspace = server.workspace(path)
            prompts = [prompt for session in sessions.values() for prompt in session["prompts"]]
            for prompt in prompts:
                if "run_id" in prompt:
                    assert workspace.send(prompt["session_id"], prompt["text"], prompt["run_id"]) == prompt["seq"]
            workspace.until_idle()
            assert workspace.send(prompts[0]["session_id"], "a new prompt") > max(p["seq"] for p in prompts)
            workspace.until_idle()


def test_a_trace_of_an_older_version_is_judged_as_it_was(fixture: Fixture) -> None:
    for trace in fixture.traces:
        run_command("trace", "check", str(trace))
        first, *_ = trace.read_text().splitlines()
        trace.write_text(first.replace('"v":1', '"v":2') + "\n")
        assert "v is 2" in read_refusal("trace", "check", str(trace))


def test_a_database_of_an_older_version_is_copied_before_it_is_migrated(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if no version has come since: the next one is invented here."""
    monkeypatch.setattr("cancelmark.impl.store.schema.MIGRATIONS", (*MIGRATIONS, "DROP TABLE messages"))
    for path in fixture.databases:
        before = content(path)
        old = version(path)
        SqliteStore(path).close()
        copy = Path(f"{path}-v{old}")
        assert (version(path), version(copy)) == (len(MIGRATIONS) + 1, old)
        assert content(copy) == before
        assert path.stat().st_mode == copy.stat().st_mode
        copy.unlink()
        SqliteStore(path).close()
        assert not copy.exists()
        assert not list(path.parent.glob("*incomplete*"))


def test_a_new_database_has_no_copy(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "new.db").close()
    assert not list(tmp_path.glob("*-v*"))


def test_a_migration_that_fails_leaves_the_copy_and_the_file_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "old.db"
    SqliteStore(path).close()
    before = content(path)
    monkeypatch.setattr("cancelmark.impl.store.schema.MIGRATIONS", (*MIGRATIONS, "DROP TABLE messages; nonsense"))
    with pytest.raises(StoreError):
        SqliteStore(path)
    assert content(path) == content(Path(f"{path}-v{len(MIGRATIONS)}")) == before


def content(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return list(db.iterdump())


def test_a_server_names_the_file_that_a_newer_version_has_written(fixture: Fixture) -> None:
    for path in fixture.databases:
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA user_version = 99")
    with Server(COMMAND, fixture.directory):
        pass
    log = (fixture.directory / "log").read_text()
    for path in fixture.databases:
        assert f"{path}: the database has schema version 99" in log


def test_an_index_that_a_newer_version_has_written_is_refused_by_name(fixture: Fixture) -> None:
    index = fixture.directory / "data" / "index.db"
    with closing(sqlite3.connect(index)) as db:
        db.execute("PRAGMA user_version = 1")
    with pytest.raises(UsageError, match=r"index\.db: written by a newer Cancelmark .*choose another --data-dir"):
        Workspaces(ScriptedModel(), fixture.directory / "data")
