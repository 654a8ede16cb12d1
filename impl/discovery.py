"""How clients find a running server: a file in its data directory says where it listens.

The data directory is the server's identity: clients that use the same directory find the same server. The default is
the user's data directory; the environment variable CANCELMARK_DATA_DIR or an option names another.
"""

import json
import os
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .files import UsageError

ENVIRONMENT = "CANCELMARK_DATA_DIR"
NAME = "server.json"


@dataclass(frozen=True)
class Running:
    """A running server. Only its user can read the file; the token itself is in a file of its own."""

    url: str  # such as http://127.0.0.1:4343; with a Unix socket, http://localhost
    pid: int
    unix: str | None = None  # the path of the Unix socket that it listens on instead of a port
    token_file: str | None = None  # the file with its bearer token, if it requires one
    version: str = ""


def data_directory(given: str | os.PathLike[str] | None = None) -> Path:
    """The data directory: the given one, the environment's, or the user's default."""
    if not (given := given or os.environ.get(ENVIRONMENT)):
        from platformdirs import user_data_path

        given = user_data_path("cancelmark", appauthor=False)
    return Path(given).absolute()


def announce(directory: Path, running: Running) -> Path:
    """Write the announcement of this server, readable by its user alone, and return its path. It replaces whatever was
    there; a symbolic link is not followed."""
    path = directory / NAME
    try:
        handle, temporary = tempfile.mkstemp(dir=directory, prefix=f".{NAME}.")
        try:
            with os.fdopen(handle, "w") as file:
                file.write(json.dumps(asdict(running), indent=2) + "\n")
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose another --data-dir") from error
    return path


def find(directory: Path) -> Running | None:
    """The server that runs on this data directory. None if there is none, or if it died without withdrawing its
    announcement."""
    try:
        running = Running(**_read(directory / NAME))
    except (OSError, ValueError, TypeError):
        return None
    return running if alive(running.pid) else None


def withdraw(directory: Path, pid: int | None = None) -> None:
    """Delete the announcement, unless another server has written one since."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        path = directory / NAME
        if _read(path)["pid"] == (pid or os.getpid()):
            path.unlink()


def _read(path: Path) -> Any:
    """The content of the file. A symbolic link is not followed."""
    with open(path, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
        return json.load(file)


def alive(pid: int) -> bool:
    """Whether there is a process with this id."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError, TypeError):
        return False
    return pid > 0
