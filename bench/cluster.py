"""A cluster on one PostgreSQL: the cost of acceptance compared with a bare INSERT and with SQLite, the latency from a
cancel at one node to the end of a turn at another, and the duration of a failover.

The database is a separate instance that waits for the disk at each commit. A bare INSERT is one statement in its own
transaction, through the same connection pool. Compared figures are measured alternately within a minute.
"""

import asyncio
import getpass
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from uuid import uuid4

from cancelmark.impl.store import AcceptPrompt, CommitRequest, Committed, NewSession

from .frame import Goal, Report, Setting, Table
from .server import QUEUE, Connection, acceptance, opened, post, prompts, server

CALLERS = (16, 64)
COMMITS = 1500  # of each kind per round
SLICE = 250  # of one kind at a time
CANCELS, FAILOVERS = 8, 1  # per round
LEASE, POLL = 2.0, 0.5  # seconds
START = 60.0  # seconds for PostgreSQL to start
ABSENT = "There is no PostgreSQL on this machine (Debian: apt install postgresql)."

JOURNAL = "journaled acceptances per second, one workspace per connection, relative to single-row commits"
HTTP = "accepted prompts per second over HTTP, relative to the same server on SQLite"
POLLED = "from a cancel at one node to the terminal event at another, by polling, in poll intervals"
WOKEN = "from a cancel at one node to the terminal event at another, with notifications, in single-row commits"
FAILOVER = "from the death of a node to the terminal events of its turns, less lease and poll"


PROCESSORS = ("On an idle machine the disk is not the bottleneck; both kinds of commits wait for the two processors. "
              "An acceptance is a database function of a dozen statements, two to three times the work of an INSERT.")
WAYS = ("The path consists of three commits (the cancel, the notification and the terminal event) and two reads of the "
        "session: a test counts them. Each of the five is a statement of about a millisecond, most of it in Python; an "
        "INSERT that hardly waits for the disk takes a third of that. The two HTTP calls are the rest.")


# --- An instance of PostgreSQL with default settings: a commit waits for the disk.

def find_tool(name: str) -> str | None:
    """The path of a PostgreSQL program; Debian does not put it on PATH."""
    known = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parent.parent.name))
    return shutil.which(name) or (str(known[-1]) if known else None)


@contextmanager
def instance() -> Iterator[str]:
    """The URL of a new instance, without a database name. The instance is removed afterwards."""
    import psycopg

    root = os.geteuid() == 0  # PostgreSQL refuses to run as root
    user = "nobody" if root else getpass.getuser()
    before = ["setpriv", f"--reuid={user}", f"--regid={pwd.getpwnam(user).pw_gid}", "--clear-groups"] if root else []
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    with tempfile.TemporaryDirectory(prefix="cancelmark-pg-", ignore_cleanup_errors=True) as directory:
        if root:
            shutil.chown(directory, user)
        data = f"{directory}/data"
        subprocess.run([*before, find_tool("initdb") or "initdb", "-D", data, "-U", "bench", "--auth=trust"],
                       cwd="/", check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with subprocess.Popen(
                [*before, find_tool("postgres") or "postgres", "-D", data, f"-cport={port}", "-cmax_connections=200",
                 f"-cunix_socket_directories={directory}", "-clisten_addresses=127.0.0.1"],
                cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            url, end = f"postgresql://bench@127.0.0.1:{port}", time.monotonic() + START
            try:
                while True:
                    try:
                        psycopg.connect(f"{url}/postgres").close()
                        break
                    except psycopg.OperationalError:
                        if time.monotonic() > end or server.poll() is not None:
                            raise
                        time.sleep(0.1)
                yield url
            finally:
                server.terminate()
                server.wait()


def new_database(url: str) -> str:
    """The URL of a new, empty database of the instance."""
    import psycopg

    name = f"bench{uuid4().hex[:8]}"
    with psycopg.connect(f"{url}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return f"{url}/{name}"


# --- Measurements

async def compare_commits(url: str, callers: int) -> tuple[float, float]:
    """Commits per second of bare rows and of acceptances, each caller in its own workspace."""
    from cancelmark.impl.store.postgres import Database, PostgresStore

    database = Database(url, callers)
    await database.open()
    await database.fetch("CREATE TABLE IF NOT EXISTS public.bare (id text PRIMARY KEY, session_id text, body text)")
    stores = [PostgresStore(database, uuid4()) for _ in range(callers)]
    versions = [0] * callers
    for store in stores:
        await store.make(f"/bench/{store.workspace}", "log")
        await store.write([NewSession("s")])

    async def insert(caller: int) -> None:
        await database.fetch("INSERT INTO public.bare VALUES (%s, %s, %s)", uuid4().hex, "s", "a prompt")

    async def accept(caller: int) -> None:
        steps = CommitRequest(uuid4().hex, "s", versions[caller], [AcceptPrompt(0, "s", "a prompt", uuid4().hex)])
        answer = await stores[caller].commit(steps)
        assert isinstance(answer, Committed)
        versions[caller] = answer.version

    async def take(commit: Callable[[int], Awaitable[None]]) -> float:
        waiting = iter(range(SLICE))

        async def work(caller: int) -> None:
            for _ in waiting:
                await commit(caller)

        began = perf_counter()
        await asyncio.gather(*map(work, range(callers)))
        return perf_counter() - began

    bare = accepted = 0.0
    for _ in range(COMMITS // SLICE):
        bare += await take(insert)
        accepted += await take(accept)
    await database.close()
    return COMMITS / bare, COMMITS / accepted


def node(url: str, *options: str) -> AbstractContextManager[tuple[int, int]]:
    """A node of the cluster: its port and its process id."""
    return server("--database", url, "--lease", str(LEASE), "--poll", str(POLL), *options)


async def cancel_elsewhere(here: int, there: int) -> list[float]:
    """Seconds from cancels at one node to the terminal events at the node that runs the turns."""
    times = []
    async with asyncio.timeout(300), Connection.to(here) as one, Connection.to(there) as runs, \
            Connection.to(there) as watching:
        workspace, sessions = await opened(runs, CANCELS)
        await watching.watch(workspace)
        ends = watching.ends()
        for request in prompts(workspace, sessions, uuid4().hex, "slow: " + "word " * 400, CANCELS):
            await runs.call(request)
        for session in sessions:
            await asyncio.sleep(POLL / 3)  # at a different phase of the poll interval each time
            seen = asyncio.ensure_future(anext(ends))
            began = perf_counter()
            await one.call(post(f"/v1/workspaces/{workspace}/agent/sessions/{session}/cancel"))
            end = await seen
            times.append(perf_counter() - began)
            assert (end["session_id"], end["outcome"]) == (session, "canceled")
    return times


async def fail_over(here: int, there: int, process: int) -> float:
    """Seconds from killing the node that runs a turn to its terminal event at another node."""
    async with asyncio.timeout(120), Connection.to(here) as one, Connection.to(there) as runs:
        workspace, sessions = await opened(runs, 1)
        await one.watch(workspace)
        ends = one.ends()
        for request in prompts(workspace, sessions, uuid4().hex, "slow: " + "word " * 400, 1):
            await runs.call(request)
        await asyncio.sleep(2 * POLL + LEASE)  # a node declares another dead only after running for a lease itself
        began = perf_counter()
        os.kill(process, signal.SIGKILL)
        end = await anext(ends)
        assert end["outcome"] == "error"
        return perf_counter() - began


async def time_commit(url: str) -> float:
    """Median seconds of one bare INSERT."""
    from cancelmark.impl.store.postgres import Database

    database = Database(url, 1)
    await database.open()
    times = []
    for _ in range(100):
        began = perf_counter()
        await database.fetch("INSERT INTO public.bare VALUES (%s, %s, %s)", uuid4().hex, "s", "a prompt")
        times.append(perf_counter() - began)
    await database.close()
    return median(times)


def measure_cluster(setting: Setting) -> Report:
    """All goals of a cluster."""
    if find_tool("postgres") is None:
        return Report([], [Goal(JOURNAL, (), "at least", 0.4, why=ABSENT), Goal(HTTP, (), "at least", 0.7, why=ABSENT),
                           Goal(POLLED, (), "at most", 1, why=ABSENT), Goal(WOKEN, (), "at most", 3, why=ABSENT),
                           Goal(FAILOVER, (), "at most", 1, " s", ABSENT)])
    commits: list[tuple[object, ...]] = []
    accepted: list[tuple[object, ...]] = []
    delays: list[tuple[object, ...]] = []
    journal: dict[int, list[float]] = {callers: [] for callers in CALLERS}
    over_http, polled, woken, failovers = list[float](), list[float](), list[float](), list[float]()
    for n in range(1, setting.rounds + 1):
        with instance() as postgres:
            url = new_database(postgres)
            for callers in CALLERS:
                bare, steps = asyncio.run(compare_commits(url, callers))
                journal[callers].append(steps / bare)
                commits.append((n, callers, bare, steps, steps / bare))
            with server("--max-queue", QUEUE) as (port, _):
                _, alone = asyncio.run(acceptance(port))
            with server("--max-queue", QUEUE, "--database", new_database(postgres)) as (port, _):
                _, shared = asyncio.run(acceptance(port))
            over_http.append(shared / alone)
            accepted.append((n, alone, shared, shared / alone))
            commit = asyncio.run(time_commit(url))
            with node(url, "--wake-ups", "none") as (here, _), node(url, "--wake-ups", "none") as (there, _):
                polled.append(max(asyncio.run(cancel_elsewhere(here, there))) / POLL)
            with node(url) as (here, _), node(url) as (there, running):
                woken.append(median(asyncio.run(cancel_elsewhere(here, there))) / commit)
                failovers.append(asyncio.run(fail_over(here, there, running)) - LEASE - POLL)
            delays.append((n, commit * 1000, polled[-1] * POLL * 1000, woken[-1] * commit * 1000,
                           (failovers[-1] + LEASE + POLL) * 1000))
    return Report(
        [Table(f"Commits per second, {COMMITS:,} of each kind", ("round", "connections", "bare rows", "acceptances",
                                                               "ratio"), commits),
         Table("Prompts accepted per second over HTTP", ("round", "SQLite", "PostgreSQL", "ratio"), accepted),
         Table(f"Milliseconds; lease {LEASE:g} s, poll {POLL:g} s", (
             "round", "one bare commit", "cancel to end, polling (slowest)", "with notifications (median)", "failover"),
               delays)],
        [*(Goal(f"{JOURNAL} ({callers})", tuple(ratios), "at least", 0.4, why=PROCESSORS)
           for callers, ratios in journal.items()),
         Goal(HTTP, tuple(over_http), "at least", 0.7, why=(
             "A prompt takes one step, and concurrent steps share a statement; but each statement is a round trip to "
             "another process, and the database needs a processor too.")),
         Goal(POLLED, tuple(polled), "at most", 1),
         Goal(WOKEN, tuple(woken), "at most", 3, why=WAYS), Goal(FAILOVER, tuple(failovers), "at most", 1, " s")])
