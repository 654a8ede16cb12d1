"""A disk that fails on command under a process of its own, and what is left on it when the power fails.

    disk = Disk(tmp_path / "disk", library)      library: `compile_disk`, a fixture's once a run
    Process(data, environment=disk.environment)  whose syncs fail while disk.failing()
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.paths import SUPPORT

SOURCE = SUPPORT / "disk.c"


def compile_disk(directory: Path) -> Path:
    """The library that stands between a program and its disk."""
    library = directory / "disk.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl", "-lpthread"], check=True)
    return library


class Disk:
    """What one process after the other writes to."""

    def __init__(self, directory: Path, library: Path) -> None:
        self.directory = directory
        (directory / "disk").mkdir(parents=True)
        self.environment = {"LD_PRELOAD": str(library), "FAILING_DISK": str(directory)}

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Each sync fails, until this is left."""
        control = self.directory / "fail"
        control.touch()
        try:
            yield
        finally:
            control.unlink(missing_ok=True)

    def fail_once(self) -> None:
        """The next sync fails."""
        incomplete = self.directory / "incomplete"
        incomplete.write_text("1")
        incomplete.rename(self.directory / "fail")

    def lose_power(self, data: Path) -> None:
        """What was never synced is gone from the data directory, the page cache with it. No process may use it."""
        for file in [*data.glob("*.db*"), *data.glob("workspaces/*.db*")]:
            medium = self.directory / "disk" / file.name
            if medium.exists():
                shutil.copyfile(medium, file)
            else:
                file.unlink()


def has_compiler() -> bool:
    return os.uname().sysname == "Linux" and shutil.which("cc") is not None
