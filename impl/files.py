"""Writing files so that a failure leaves either the old file or the new one, never half of one."""

import errno
import os
import tempfile
from pathlib import Path


class UsageError(Exception):
    """Something the user asked for that cannot be done; the message says what, and what to do instead."""


def write(path: Path, content: str | bytes) -> None:
    """Replaces a file by `content` in one step, through a link to it, and with the mode it had. What is no file, such
    as a device or a pipe, is written to as it is."""
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
