"""The agents and servers of `agents.toml`: what each is, and how it is installed."""

import os
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CACHE = Path("build/field")
LIST = Path(__file__).with_name("agents.toml")
INSTALL = 900  # seconds


class Skipped(Exception):
    """The agent cannot run here; says why."""


@dataclass(frozen=True)
class Listed:
    """One agent of the list, or a server."""

    name: str
    start: tuple[str, ...]
    wire: str
    """Of the language model."""
    judge: str = "acp"
    """By which command: conform acp, langgraph, a2a, or the adapter of opencode."""
    url: str = ""
    """Where a server is judged."""
    npm: str = ""
    pip: str = ""
    also: tuple[str, ...] = ()
    """Packages that are installed beside it."""
    like: str = ""
    """The name of another, which it is like in all that is not said: it is installed once for both."""
    python: str = ""
    auth: str = ""
    skip: str = ""
    """Why it is not judged, if it is not."""
    limit: int = 1200
    """Seconds for its plays on the machine as it is, and as many on a loaded one; then it is skipped."""
    about: str = ""
    """What a reader of its page has to know."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """By guarantee, what was seen around a finding, and what a client can do."""
    first: Mapping[str, str] = field(default_factory=dict)
    """By mode and guarantee, why a finding is to be reported first: its page keeps short of a recipe."""
    env: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    """Texts by their paths from its home, or for a server from where it works."""

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
    told: dict[str, dict[str, Any]] = tomllib.loads(LIST.read_text())
    whole = {name: {**told.get(about.get("like", ""), {}), **about} for name, about in told.items()}
    return {name: Listed(name, tuple(about.pop("start")), also=tuple(about.pop("also", ())), **about)
            for name, about in whole.items()}


def install(agent: Listed, cache: Path) -> Path:
    """Installs it once, and returns where its programs are."""
    if agent.skip:
        raise Skipped(agent.skip)
    place = cache.resolve() / f"{agent.like or agent.name}-{agent.version}"
    programs = place / ("node_modules/.bin" if agent.npm else "bin")
    if (place / "installed").exists():
        return programs
    if agent.npm:
        commands = [[_find("npm"), "install", "--prefix", str(place), "--no-audit", "--no-fund", "--loglevel=error",
                     agent.npm]]
    else:
        commands = [[_find_python(agent.python), "-m", "venv", str(place)],
                    [str(place / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", agent.pip,
                     *agent.also]]
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
