"""Writing files so that a failure leaves either the old file or the new one, never half of one."""

import os
import tempfile
from pathlib import Path


class UsageError(Exception):
    """Something the user asked for that cannot be done; the message says what, and what to do instead."""


def write(path: Path, content: str | bytes) -> None:
    """Replaces `path` by `content` in one step."""
    data = content.encode() if isinstance(content, str) else content
    try:
        if path.is_dir():
            raise IsADirectoryError(21, "Is a directory")
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(13, "Permission denied")
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose another file with -o") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
