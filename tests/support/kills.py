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

    def __init__(self, protocol: str = "reference") -> None:
        self.protocol = protocol
        self.held: dict[str, bool | None] = {}  # sessions, as far as their callers know
        self.founds = 0  # sessions that were found held, because somebody had been told so
        self.revoked: set[str] = set()
        self.texts: dict[str, tuple[int, str]] = {}  # the latest version of a text that a caller was told is taken
        self.accepted: set[str] = set()
        self.covered: set[str] = set()
        self.ends: Counter[str] = Counter()  # how the lives ended

    def live(self, path: Path, seed: int, random: Random) -> None:
        """One life, killed at a random time or at a chosen write, unless it closes before."""
        phase = random.choice(["time", "time", "start", "run", "close"])
        write = random.randint(1, 4 if phase == "start" else 12)
        fate = () if phase == "time" else (phase, str(write), random.choice(["before", "after"]))
        command = [sys.executable, "-W", "error", str(SCRIPT), str(path), str(seed), self.protocol, *fate]
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
        if said in ("found", "maybe", "held", "free"):
            self.hear_hold(said, *run_ids)
        elif said == "revoked":
            self.revoked.update(run_ids)
        elif said == "replaced":
            run_id, version, text = run_ids
            self.texts[run_id] = max(self.texts.get(run_id, (0, "")), (int(version), text))
        elif said == "accepted":
            self.accepted.update(run_ids)
        elif said == "covered":
            self.covered.update(run_ids)

    def hear_hold(self, said: str, session: str, found: str = "") -> None:
        if said != "found":
            self.held[session] = {"held": True, "free": False}.get(said)
            return
        known = self.held.get(session, False)
        assert known in (None, found == "held"), f"session {session} was {known}, and a restart finds it {found}"
        self.founds += known is True
        self.held[session] = found == "held"

    @property
    def kills(self) -> int:
        return self.ends.total() - self.ends["closed"]
