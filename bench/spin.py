"""SPIN on the Promela model: builds a verifier, runs it, and parses its output."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cancelmark.model.family import Feature
from cancelmark.model.properties import Bounds

SPEC = Path(__file__).resolve().parents[1] / "specs" / "cancelmark.pml"

HASH_TABLE = "-w22"  # 2^22 slots, 32 MiB; SPIN's default is four times that
CYCLE = "<<<<<START OF CYCLE>>>>>"  # marks a cycle in a trail
SAFETY = ("-DSAFETY", "-DNOCLAIM", "-DNOREDUCE")  # store every state, and run no never claim
FAST = (*SAFETY, "-O2")


def missing() -> str | None:
    """What SPIN needs and this machine lacks, with the remedy; None if nothing is missing."""
    if not SPEC.exists():
        return f"{SPEC.name} is missing: run this from a checkout; the package does not contain it"
    for tool in ("spin", "gcc"):
        if not shutil.which(tool):
            return f"{tool} is not installed (Debian: apt-get install spin gcc)"
    return None


@dataclass(frozen=True)
class Verifier:
    """The verifier that SPIN generates from the model for some bounds."""

    directory: Path
    defines: tuple[str, ...]

    def run(self, *options: str) -> str:
        """Runs a search and returns its output."""
        return _run(self.directory, "./pan", HASH_TABLE, "-m100000", *options)

    def trail(self) -> list[str]:
        """The calls of the counterexample that a search found, then the properties that the last call violates."""
        told = _run(self.directory, "spin", "-t", "-T", *self.defines, SPEC.name)
        return re.findall(rf"^(?:[a-z_]+(?:\(.*\))?(?:@\d)?|violated: .+|{CYCLE})$", told, re.MULTILINE)


def build(
    directory: Path, bounds: Bounds, options: tuple[str, ...], bug: str | None = None,
    features: frozenset[Feature] = frozenset(), *more: str,
) -> Verifier:
    """Generates and compiles a verifier. -o2 keeps write-only variables, which history variables seem to be to SPIN.

    Without optimization, tcc is used if available: it compiles sixty times as fast as gcc, and compiling takes most of
    the time of a small search.
    """
    shutil.copy(SPEC, directory)
    defines = (*(f"-D{name.upper()}={n}" for name, n in vars(bounds).items()),
               *(f"-D{feature.name}" for feature in Feature if feature in features),
               *((f"-DBUG={bug}",) if bug else ()), *more)
    _run(directory, "spin", "-a", "-o2", *defines, SPEC.name)
    optimized = any(option.startswith("-O") for option in options)
    compiler = "gcc" if optimized or not shutil.which("tcc") else "tcc"
    _run(directory, compiler, "-w", *options, "-o", "pan", "pan.c")
    return Verifier(directory, defines)


def _run(directory: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=directory, text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode and command[0] != "./pan":
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}")
    return done.stdout


@dataclass(frozen=True)
class Search:
    """SPIN's report of a complete search."""

    states: int
    edges: int
    errors: int
    mebibytes: float

    @classmethod
    def of(cls, told: str) -> "Search":
        if "Search not completed" in told or "max search depth too small" in told:
            raise RuntimeError(f"SPIN did not complete the search; raise its limits (-m, -w):\n{told}")

        def figure(pattern: str) -> str:
            found = re.search(pattern, told)
            if not found:
                raise RuntimeError(f"SPIN's output does not match {pattern!r}:\n{told}")
            return found[1]

        # SPIN counts the initial state as a transition.
        return cls(int(figure(r"(\d+) states, stored")), int(figure(r"(\d+) transitions")) - 1,
                   int(figure(r"errors: (\d+)")), float(figure(r"([\d.]+)\s+total actual memory usage")))
