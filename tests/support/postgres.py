"""A private PostgreSQL: its own directory, its own socket, gone when the tests are. And a pgbouncer before it."""

import atexit
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from uuid import uuid4

import pytest
from support.tiers import REAL_PART

from cancelmark.impl.store import NewSession
from cancelmark.impl.store.postgres import Database, PostgresStore

FAST = ("fsync=off", "full_page_writes=off", "max_connections=200", "shared_buffers=32MB",
        "log_min_messages=fatal", "autovacuum=off")
USERS = ("postgres", "nobody")  # as whom a root starts it, since it does not run as root


def find_tool(name: str) -> str | None:
    """Where a program of PostgreSQL is: Debian keeps the server's outside of PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[4]))
    return str(found[-1]) if found else shutil.which(name)


def need_tool(name: str) -> str:
    """The program; without it the test is skipped, but not where everything must run."""
    if tool := find_tool(name):
        return tool
    why = f"needs {name} (Debian: postgresql, pgbouncer)"
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


def as_user() -> tuple[Sequence[str], str]:
    """What to put before a command so that it does not run as root, and who it then runs as."""
    if os.geteuid() != 0:
        return (), pwd.getpwuid(os.geteuid()).pw_name
    for user in USERS:
        try:
            known = pwd.getpwnam(user)
        except KeyError:
            continue
        return ("setpriv", f"--reuid={known.pw_uid}", f"--regid={known.pw_gid}", "--clear-groups"), user
    pytest.skip("PostgreSQL does not run as root, and there is no other user")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class PostgresServer:
    """One instance, on a socket and on a loopback port."""

    def __init__(self, settings: Sequence[str] = FAST) -> None:
        initdb = need_tool("initdb")
        self._postgres = need_tool("postgres")
        self._before, self.user = as_user()
        self.directory = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        if os.geteuid() == 0:
            shutil.chown(self.directory, self.user)
        self.directory.chmod(0o755)
        self.port, self._settings = free_port(), settings
        self._run([initdb, "-D", str(self.directory / "data"), "-U", self.user, "--auth=trust", "--no-sync",
                   "--encoding=UTF8", "--locale=C"])
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def _run(self, command: Sequence[str]) -> None:
        done = subprocess.run([*self._before, *command], cwd="/", capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        options = [f"-c{setting}" for setting in (
            *self._settings, f"port={self.port}", f"unix_socket_directories={self.directory}",
            "listen_addresses=127.0.0.1")]
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                [*self._before, self._postgres, "-D", str(self.directory / "data"), *options],
                cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.wait()

    def wait(self) -> None:
        import psycopg

        end = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(self.address(), connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                assert self._process, "it was never started"
                assert self._process.poll() is None, (self.directory / "log").read_text()
                assert time.monotonic() < end, "PostgreSQL does not answer"
                time.sleep(0.05)

    def stop(self, how: str = "immediate") -> None:
        """Stops it: immediately, as a crash would, or fast."""
        import signal

        if self._process and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT if how == "immediate" else signal.SIGINT)
            self._process.wait(30)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def address(self, database: str = "postgres", *, tcp: bool = False) -> str:
        host = "127.0.0.1" if tcp else str(self.directory)
        return f"host={host} port={self.port} user={self.user} dbname={database}"

    def url(self, database: str, port: int | None = None) -> str:
        return f"postgresql://{self.user}@127.0.0.1:{port or self.port}/{database}"

    def new_database(self) -> str:
        """The name of a new, empty database."""
        name = f"t{uuid4().hex[:12]}"
        self.execute(f"CREATE DATABASE {name}")
        return name

    def execute(self, query: str, database: str = "postgres") -> list[tuple[object, ...]]:
        import psycopg

        with psycopg.connect(self.address(database), autocommit=True) as connection:
            cursor = connection.execute(query.encode())
            result = cursor.pgresult
            assert result is not None
            return cursor.fetchall() if result.status == psycopg.pq.ExecStatus.TUPLES_OK else []


class Bouncer:
    """A pgbouncer in transaction mode: each statement may get another connection."""

    def __init__(self, server: PostgresServer) -> None:
        self.port = free_port()
        before, _ = as_user()
        config = server.directory / f"bouncer-{self.port}.ini"
        config.write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port} user={server.user}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nauth_type = any\n"
            f"pool_mode = transaction\ndefault_pool_size = 8\nmax_client_conn = 200\nunix_socket_dir =\n"
            f"logfile = {server.directory}/bouncer-{self.port}.log\n")
        config.chmod(0o644)
        self._process = subprocess.Popen([*before, need_tool("pgbouncer"), "-q", str(config)], cwd="/",
                                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        end = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert self._process.poll() is None, self._process.stderr
                assert time.monotonic() < end, "pgbouncer does not answer"
                time.sleep(0.05)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        assert self._process.stderr
        self._process.stderr.close()


POSTGRES = pytest.param("postgres", marks=pytest.mark.real)  # a parameter that chooses a database of `shared_server`


def shared_server() -> PostgresServer:
    """One instance for all tests of this process."""
    sys.audit(REAL_PART, "PostgreSQL")
    return _start_server()


@cache
def _start_server() -> PostgresServer:
    server = PostgresServer()
    atexit.register(server.remove)
    return server


def shared_database() -> str:
    """The address of a database for tests that make workspaces of their own in it."""
    return _make_database(shared_server())


@cache
def _make_database(server: PostgresServer) -> str:
    return server.address(server.new_database())


@asynccontextmanager
async def open_stores(databases: list[Database]) -> AsyncIterator[list[PostgresStore]]:
    """One workspace, as so many nodes see it."""
    workspace = uuid4()
    try:
        for database in databases:
            await database.open()
            await enroll(database)
        stores = [PostgresStore(database, workspace) for database in databases]
        await stores[0].make("/", "log")
        await stores[0].write([NewSession("s")])
        yield stores
    finally:
        for database in databases:
            await database.close()


async def enroll(database: Database) -> None:
    await database.fetch(
        "INSERT INTO cancelmark.nodes VALUES (%s, '', now(), now() + interval '1 hour', false, false)", database.node)
