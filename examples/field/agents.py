"""The agents of `agents.toml`: how each is installed, started and judged."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LIST = Path(__file__).with_name("agents.toml")
INSTALL, JUDGE = 900, 600  # seconds
SCRIPTS = {
    "polite": ("accept A + cancel", "accept A, cancel", "accept A; cancel", "accept A; cancel; accept B"),
    "free": ("accept A; accept B; release; release", "accept A; accept B; cancel", "accept A; cancel + accept B",
             "cancel; accept A"),
}
"""What is played on every agent, by mode. The first two send a prompt and a cancel in one write, and right behind."""


class Skipped(Exception):
    """The agent cannot run here; says why."""


@dataclass(frozen=True)
class Listed:
    """One agent of the list."""

    name: str
    start: tuple[str, ...]
    wire: str
    npm: str = ""
    pip: str = ""
    python: str = ""
    auth: str = ""
    skip: str = ""
    """Why it is not judged, if it is not."""
    about: str = ""
    """What a reader of its page has to know."""
    env: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def package(self) -> str:
        return self.npm or self.pip

    @property
    def version(self) -> str:
        return self.package.rpartition("@" if self.npm else "==")[2]

    @property
    def registry(self) -> str:
        return "npm" if self.npm else "PyPI"


def read_list() -> dict[str, Listed]:
    """By name."""
    told: dict[str, Any] = tomllib.loads(LIST.read_text())
    return {name: Listed(name, tuple(about.pop("start")), **about) for name, about in told.items()}


def install(agent: Listed, cache: Path) -> Path:
    """Installs it once, and returns where its programs are."""
    if agent.skip:
        raise Skipped(agent.skip)
    place = cache / f"{agent.name}-{agent.version}"
    programs = place / ("node_modules/.bin" if agent.npm else "bin")
    if (place / "installed").exists():
        return programs
    if agent.npm:
        commands = [[_find("npm"), "install", "--prefix", str(place), "--no-audit", "--no-fund", "--loglevel=error",
                     agent.npm]]
    else:
        commands = [[_find_python(agent.python), "-m", "venv", str(place)],
                    [str(place / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", agent.pip]]
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Skipped(f"{agent.package} cannot be installed: {error}") from error
        if done.returncode:
            raise Skipped(f"{agent.package} cannot be installed: {done.stderr.strip()[-300:]}")
    (place / "installed").touch()
    return programs


def _find(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise Skipped(f"{program} is not on the PATH")
    return found


def _find_python(version: str) -> str:
    """One that runs: what pyenv puts on the PATH for a version that is not chosen only says so."""
    name, pyenv = f"python{version}", Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for python in filter(None, [shutil.which(name), *map(str, pyenv.glob(f"versions/{version}*/bin/{name}"))]):
        if subprocess.run([python, "--version"], capture_output=True, check=False).returncode == 0:
            return python
    raise Skipped(f"{name} is not on the PATH")


@contextmanager
def busy(n: int) -> Iterator[None]:
    """So many processes that do nothing but compute."""
    load = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for process in load:
            process.kill()
            process.wait()


def command_of(agent: Listed, programs: Path, mode: str, files: Path) -> list[str]:
    """The options and the command behind `cancelmark conform`."""
    words = ["acp", "--mode", mode]
    for name, value in agent.env.items():
        words += ["--env", f"{name}={value}"]
    for path, text in agent.config.items():
        file = files / f"{agent.name}-{Path(path).name}"
        file.write_text(text)
        words += ["--config", f"{path}={file}"]
    words += ["--auth", agent.auth] if agent.auth else []
    return [*words, "--", *(word.replace("{bin}", str(programs)) for word in agent.start)]


def play(agent: Listed, programs: Path, mode: str, files: Path, times: int, scripts: tuple[str, ...]) -> dict[str, Any]:
    """The report of one judgement, in a process of its own, as JSON."""
    words = command_of(agent, programs, mode, files)
    at = words.index("--")
    played = [word for script in scripts for word in ("--script", script)]
    command = [sys.executable, "-m", "cancelmark.impl.cli.main", "conform", *words[:at], "--json", "--times",
               str(times), *played, *words[at:]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=JUDGE)
        report: dict[str, Any] = json.loads(done.stdout)["modes"][mode]
    except subprocess.TimeoutExpired as error:
        raise Skipped(f"the judgement, {mode}, took longer than {JUDGE} s") from error
    except (ValueError, KeyError) as error:
        raise Skipped(_short(done.stderr.replace(f"{programs}/", "").removeprefix("cancelmark: "))) from error
    return report


def _short(said: str) -> str:
    """The first line of an error."""
    lines = [line.strip() for line in said.strip().splitlines() if line.strip()]
    return lines[0].partition("; it wrote:")[0].removesuffix("; nothing is claimed") if lines else "it says nothing"


def reproduce(agent: Listed, mode: str, script: str) -> str:
    return f"python -m examples.field {agent.name} --mode {mode} --script {shlex.quote(script)}"


def list_broken(report: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What did not hold."""
    return (each for each in report["guarantees"] if each["status"] == "broken")
