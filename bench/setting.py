"""What a subject is measured with: how often, beside which earlier version, and beside which peer.

The earlier version is a commit of this repository. It is checked out into `build/baseline`, and installed into an
environment of its own there, once: with what it was pinned to then.
"""

import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from cancelmark.impl.files import UsageError

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "baseline"
EXTRAS = "openai,fast"  # that an earlier version is measured with


@dataclass(frozen=True)
class Baseline:
    """An earlier version in an environment of its own."""

    commit: str
    version: str
    python: Path

    @property
    def name(self) -> str:
        return f"{self.version} ({self.commit})"

    def list_command(self, *arguments: str) -> list[str]:
        """Its `cancelmark`."""
        return [str(self.python.with_name("cancelmark")), *arguments]


@dataclass(frozen=True)
class Setting:
    """How a subject is measured."""

    rounds: int = 3
    baseline: Baseline | None = None
    peer: Path | None = None  # another explorer, built from the same model


def install_baseline(commit: str, build: Path = BUILD) -> Baseline:
    """The version of that commit. What was installed before is used again."""
    short = _git("rev-parse", "--short=7", f"{commit}^{{commit}}", wanted=commit).strip()
    place = build / short
    checkout, python = place / "checkout", place / "venv/bin/python"
    if not (place / "ready").exists():
        checkout.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run(["git", "archive", short], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "-x"], cwd=checkout, input=archive.stdout, check=True)
        venv.create(place / "venv", with_pip=True, clear=True)
        print(f"installing {short} into {place}, once", file=sys.stderr)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint",
                        checkout / "constraints.txt", f"{checkout}[{EXTRAS}]"], check=True, stdout=sys.stderr)
        (place / "ready").touch()
    version = subprocess.run([python, "-c", "from importlib.metadata import version; print(version('cancelmark'))"],
                             text=True, stdout=subprocess.PIPE, check=True, cwd=place,
                             env={**os.environ, "PYTHONPATH": ""})
    return Baseline(short, version.stdout.strip(), python)


def find_peer(path: str) -> Path:
    """The peer's program."""
    found = Path(path).resolve()
    if not (found.is_file() and os.access(found, os.X_OK)):
        raise UsageError(f"PEER {path}: it is no program; build it, and give the path of its binary")
    return found


def find_commit() -> str:
    """The commit of this checkout; a plus says that it was changed since."""
    try:
        return _git("describe", "--always", "--dirty=+", "--exclude=*").strip()
    except UsageError:
        return "no checkout"


def _git(*arguments: str, wanted: str = "") -> str:
    try:
        return subprocess.run(["git", *arguments], cwd=ROOT, text=True, check=True, capture_output=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise UsageError(f"BASELINE {wanted}: it is no commit here; give one of a checkout's history") from error
