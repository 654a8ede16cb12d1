"""Safe writes: a failed write leaves the old file or the new one, and other users cannot replace ours."""

import errno
import os
import stat
import tempfile
from pathlib import Path


class UsageError(Exception):
    """A user's request that cannot be done. The message says what is wrong, and what to do instead."""


def write(path: Path, content: str | bytes) -> None:
    """Replace a file by `content` atomically, following a symbolic link and keeping the file's mode. A device or a pipe
    is written to directly."""
    data = content.encode() if isinstance(content, str) else content
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():
            target.write_bytes(data)
            return
        mode = target.stat().st_mode & 0o7777 if target.exists() else 0o666 & ~_umask()
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(temporary, mode)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose another file with -o") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def make_directory(directory: Path, option: str) -> None:
    """Create the directory if it does not exist, and take the write permission from other users, who could replace our
    files. A directory with the sticky bit, such as /tmp, protects each user's files itself and is left alone. Raises
    `UsageError` that names the option."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = directory.stat().st_mode
        if mode & 0o022 and not mode & stat.S_ISVTX:
            directory.chmod(stat.S_IMODE(mode) & ~0o022)
    except PermissionError as error:
        problem = "other users can write to it" if directory.is_dir() else error.strerror
        raise UsageError(f"cannot use {directory}: {problem}; choose another {option}") from error
    except OSError as error:
        raise UsageError(f"cannot create {directory}: {error.strerror}; choose another {option}") from error
