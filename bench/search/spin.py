"""SPIN and the explorer side by side: two models of one protocol, written apart, and what it costs to search each."""

import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from cancelmark.model.family import Feature
from cancelmark.model.properties import Bounds

from ..report import Goal, Report, Table
from ..setting import Setting
from .ours import check

SPEC = Path(__file__).resolve().parents[2] / "specs" / "cancelmark.pml"

BOUNDS = (
    Bounds(3, cancels=2, clears=1),
    Bounds(3, cancels=1, clears=1, sessions=2),
    Bounds(3, cancels=2, clears=1, requeues=1, crashes=1, closes=1),
    Bounds(4, cancels=2, clears=1),
    Bounds(4, cancels=2, clears=1, requeues=1),
)

HASH_TABLE = "-w22"  # 2^22 slots, 32 MiB; SPIN's own choice is four times that
CYCLE = "<<<<<START OF CYCLE>>>>>"  # in a trail
SAFETY = ("-DSAFETY", "-DNOCLAIM", "-DNOREDUCE")  # every state is stored, and no claim runs beside the model
FAST = (*SAFETY, "-O2")


def missing() -> str | None:
    """What a run of SPIN lacks on this machine, and the remedy."""
    if not SPEC.exists():
        return f"{SPEC.name} is not there: run this from a checkout, the package does not carry it"
    for tool in ("spin", "gcc"):
        if not shutil.which(tool):
            return f"{tool} is not installed (Debian: apt-get install spin gcc)"
    return None


@dataclass(frozen=True)
class Verifier:
    """The program that SPIN makes of the model at some bounds."""

    directory: Path
    defines: tuple[str, ...]
    seconds: float  # to generate and compile

    def run(self, *options: str) -> str:
        """What a search prints."""
        return _run(self.directory, "./pan", HASH_TABLE, "-m100000", *options)

    def trail(self) -> list[str]:
        """The calls of the counterexample that a search left, then the properties that the last of them breaks."""
        told = _run(self.directory, "spin", "-t", "-T", *self.defines, SPEC.name)
        return re.findall(rf"^(?:[a-z_]+(?:\(.*\))?(?:@\d)?|violated: .+|{CYCLE})$", told, re.MULTILINE)


def build(
    directory: Path, bounds: Bounds, options: tuple[str, ...], bug: str | None = None,
    features: frozenset[Feature] = frozenset(), *more: str,
) -> Verifier:
    """Generates and compiles. -o2 keeps variables that are only written: to SPIN, history may look like that.

    Without optimization tcc compiles, if it is there: sixty times as fast as gcc, which is most of a small search.
    """
    started = time.perf_counter()
    shutil.copy(SPEC, directory)
    defines = (*(f"-D{name.upper()}={n}" for name, n in vars(bounds).items()),
               *(f"-D{feature.name}" for feature in Feature if feature in features),
               *((f"-DBUG={bug}",) if bug else ()), *more)
    _run(directory, "spin", "-a", "-o2", *defines, SPEC.name)
    optimized = any(option.startswith("-O") for option in options)
    compiler = "gcc" if optimized or not shutil.which("tcc") else "tcc"
    _run(directory, compiler, "-w", *options, "-o", "pan", "pan.c")
    return Verifier(directory, defines, time.perf_counter() - started)


def _run(directory: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=directory, text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode and command[0] != "./pan":
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}")
    return done.stdout


@dataclass(frozen=True)
class Search:
    """What SPIN reports of a search that ran to its end."""

    states: int
    edges: int
    errors: int
    mebibytes: float

    @classmethod
    def of(cls, told: str) -> "Search":
        if "Search not completed" in told or "max search depth too small" in told:
            raise RuntimeError(f"SPIN did not search to the end:\n{told}")

        def figure(pattern: str) -> str:
            found = re.search(pattern, told)
            if not found:
                raise RuntimeError(f"SPIN did not say {pattern!r}:\n{told}")
            return found[1]

        # The first state is counted among the transitions: it was stored, but nothing led to it.
        return cls(int(figure(r"(\d+) states, stored")), int(figure(r"(\d+) transitions")) - 1,
                   int(figure(r"errors: (\d+)")), float(figure(r"([\d.]+)\s+total actual memory usage")))


def measure(setting: Setting) -> Report:
    """Both count, and both judge every safety property and quiescence on the way. Fastest of the rounds."""
    if reason := missing():
        return Report(remarks=[f"not measured: {reason}"])
    rows = []
    differences = 0
    for bounds in BOUNDS:
        with TemporaryDirectory() as directory:
            verifier = build(Path(directory), bounds, FAST)
            seconds = []
            for _ in range(setting.rounds):
                started = time.perf_counter()
                found = Search.of(verifier.run())
                seconds.append(time.perf_counter() - started)
        ours = min((check(bounds) for _ in range(setting.rounds)), key=lambda report: float(report["seconds"]))
        differences += (found.states, found.edges, found.errors) != (ours["states"], ours["edges"], 0)
        rows.append((str(bounds), found.states, ours["states"], verifier.seconds, min(seconds), ours["seconds"],
                     found.mebibytes, ours["states"] * ours["bytes_per_state"] / 2**20))
    columns = ("bounds", "states: SPIN", "explorer", "seconds: SPIN to compile", "to search", "explorer",
               "MiB: SPIN", "explorer")
    agreed = Goal("bounds at which they differ in states, edges or verdict", (float(differences),), "at most", 0, "")
    return Report([Table("SPIN and the explorer, one core each, fastest of the rounds", columns, rows)], [agreed])
