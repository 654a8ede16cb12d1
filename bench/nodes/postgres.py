"""A PostgreSQL server for a measurement: an instance of its own on a loopback port, with the settings of a default
installation, so that a commit waits for the disk."""

import getpass
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import uuid4

START = 60.0  # seconds


def find_tool(name: str) -> str | None:
    """A program of PostgreSQL, which Debian does not put on the path."""
    known = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parent.parent.name))
    return shutil.which(name) or (str(known[-1]) if known else None)


@contextmanager
def instance() -> Iterator[str]:
    """The URL of a new instance, to which the name of a database is added. What was made is removed afterwards."""
    import psycopg

    root = os.geteuid() == 0  # as whom the server refuses to run
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
