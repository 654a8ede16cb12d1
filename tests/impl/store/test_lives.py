"""Event offsets over many lives of a store in a file, whatever the outcome of the first commits of each life.

One process plays all lives on one file, each in a fork that is killed at its end, on a disk whose syncs fail on command
(`support/disk.c`). PostgreSQL needs no such test: a database is one life, and no commit writes its name.
"""

import json
import os
import subprocess
import sys
import textwrap
from itertools import product
from pathlib import Path

import pytest
from support.budget import long
from support.disks import compile_disk, has_compiler
from support.paths import SUPPORT
from support.shared_fixture import once

pytestmark = pytest.mark.skipif(not has_compiler() and os.environ.get("CI") != "true",
                                reason="a C compiler and Linux are needed to make a disk fail")

LIVES = """
    import asyncio, json, os, signal, sys
    from pathlib import Path
    from cancelmark.impl.store import AcceptPrompt, AppendEvent, NewSession, SqliteStore, StoreError
    from cancelmark.impl.store.interface import ConstraintViolation, Unconfirmed
    from cancelmark.impl.store.offsets import Offsets
    from support.disks import Disk

    path, library, loses_power = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "power"
    disk = Disk(path.parent / "disk", library)
    os.environ.update(disk.environment)

    class Life:
        def __init__(self, store, lives):
            self.store, self.name, self.places, self.received = store, lives[-1].name, Offsets(lives, "older"), {}
            store.watch(self.receive)

        def receive(self, latest):
            self.received[self.places.name(latest)] = latest

        async def write(self, *operations):
            await self.store.write([*operations, AppendEvent("s", "event", {"life": self.name})])

        async def ok(self):
            await self.write()

        async def quiet(self):
            await self.store.write([NewSession(os.urandom(8).hex())])

        async def refused(self):
            try:
                await self.write(NewSession("s"))
            except ConstraintViolation:
                return
            raise AssertionError("a session was made twice")

        async def mixed(self):
            await asyncio.gather(self.refused(), self.ok(), self.ok(), self.quiet())

        async def failed(self):
            disk.fail_once()
            try:
                await self.write()
            except StoreError as error:
                assert not isinstance(error, Unconfirmed), error
                return
            raise AssertionError("the disk did not fail")

        async def doubtful(self):
            with disk.failing():
                try:
                    await self.write()
                except StoreError:
                    return
            raise AssertionError("the disk did not fail")

    async def live(received, commits):
        store = SqliteStore(path)
        lives, events = await store.incarnations(), {event.id: event.payload["life"] for event in await store.events()}
        life, latest = Life(store, lives), await store.latest_event()
        assert list(events) == [*range(1, latest + 1)]
        for id, name in events.items():
            assert life.places.name(id) == f"{name}-{id}", (id, name, life.places.name(id))
        for place, id in received.items():
            assert life.places.find(place, latest) == id, (place, id, latest)
        assert life.places.find(f"{life.name}-{latest}", latest) is None
        if not await store.sessions():
            await store.write([NewSession("s")])
        for commit in commits:
            await getattr(life, commit)()
        return life.received

    received = {}
    for commits in [*json.load(sys.stdin), ["ok"], []]:
        reader, writer = os.pipe()
        if os.fork() == 0:
            try:
                os.write(writer, json.dumps(asyncio.run(live(received, commits))).encode())
                os.kill(os.getpid(), signal.SIGKILL)
            except Exception as error:
                print(f"after {before}: {commits}: {error!r}", file=sys.stderr, flush=True)
                os._exit(1)
        os.close(writer)
        with os.fdopen(reader) as answer:
            written = answer.read()
        if os.waitstatus_to_exitcode(os.wait()[1]) != -signal.SIGKILL:
            sys.exit(1)
        received |= json.loads(written)
        before = commits
        if loses_power:
            disk.lose_power(path.parent)
    print(len(received))
"""
COMMITS = ("ok", "quiet", "refused", "mixed", "failed", "doubtful")


@pytest.mark.parametrize("die", ["killed", "power"])
@pytest.mark.parametrize("length", [2, long(3)])
def test_every_offset_that_a_subscriber_received_is_found_after_a_restart(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, length: int, die: str,
) -> None:
    """And each event has the name of the life that wrote it, so the offset of a lost event is never found."""
    library = once(tmp_path_factory, "disk", lambda: compile_disk(tmp_path_factory.mktemp("library")))
    lives = [*product(COMMITS, repeat=length)]
    played = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LIVES), str(tmp_path / "test.db"), str(library), die],
        input=json.dumps(lives), env=os.environ | {"LD_PRELOAD": str(library), "PYTHONPATH": str(SUPPORT.parent)},
        capture_output=True, text=True, check=False)
    assert played.returncode == 0, played.stderr
    assert int(played.stdout) >= 1 + sum(commit in ("ok", "mixed") for commits in lives for commit in commits)
