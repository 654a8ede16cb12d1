"""Lives of the server in `killed.py`, one after the other on one file, and what their callers were told."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

from support.paths import SUPPORT
from support.runtimes import PATIENCE

SCRIPT = SUPPORT / "killed.py"


class Observer:
    """What the callers of all those lives were told."""

    def __init__(self) -> None:
        self.accepted: set[str] = set()
        self.covered: set[str] = set()
        self.ends: Counter[str] = Counter()  # how the lives ended

    def live(self, path: Path, seed: int, random: Random) -> None:
        """One life, killed at a random time or at a chosen write, unless it closes before."""
        phase = random.choice(["time", "time", "start", "run", "close"])
        write = random.randint(1, 4 if phase == "start" else 12)
        fate = () if phase == "time" else (phase, str(write), random.choice(["before", "after"]))
        command = [sys.executable, "-W", "error", str(SCRIPT), str(path), str(seed), *fate]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            left = random.randint(1, 15) if phase == "time" else 0  # lines to be heard before the kill
            for line in process.stdout:
                self.hear(line)
                left -= 1
                if left == 0:
                    process.kill()
            returned = process.wait(PATIENCE)
        assert returned in (0, -9)
        self.ends["closed" if returned == 0 else phase] += 1

    def hear(self, line: str) -> None:
        if not line.endswith("\n"):
            return  # killed in the middle of a word
        said, *run_ids = line.split()
        if said == "accepted":
            self.accepted.update(run_ids)
        elif said == "covered":
            self.covered.update(run_ids)

    @property
    def kills(self) -> int:
        return self.ends.total() - self.ends["closed"]
