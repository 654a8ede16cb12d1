"""The agents and servers of `agents.toml`, and their installation."""

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
    """The agent cannot run here; the message says why."""


@dataclass(frozen=True)
class Listed:
    """An agent or a server of the list."""

    name: str
    start: tuple[str, ...]
    wire: str
    """The API of its language model."""
    judge: str = "acp"
    """How it is judged: conform acp, langgraph or a2a, or the adapter of opencode."""
    url: str = ""
    """The URL of a server, with a placeholder for the port."""
    npm: str = ""
    pip: str = ""
    also: tuple[str, ...] = ()
    """Additional packages to install."""
    like: str = ""
    """The name of another entry from which it inherits all fields that it does not set, and its installation."""
    python: str = ""
    auth: str = ""
    skip: str = ""
    """Why it is not judged; empty if it is."""
    limit: int = 1200
    """Time limit in seconds for its runs on the machine as it is, and again for those on a loaded one."""
    about: str = ""
    """An introduction for its page."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """By guarantee, the context of a finding, and what a client can do."""
    first: Mapping[str, str] = field(default_factory=dict)
    """By mode and guarantee, why the maintainers must hear of a finding first: its page omits how to reproduce it."""
    env: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    """File contents by path, relative to its home; for a server, to its working directory."""

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
    """The entries of agents.toml, by name."""
    told: dict[str, dict[str, Any]] = tomllib.loads(LIST.read_text())
    whole = {name: {**told.get(about.get("like", ""), {}), **about} for name, about in told.items()}
    return {name: Listed(name, tuple(about.pop("start")), also=tuple(about.pop("also", ())), **about)
            for name, about in whole.items()}


def install(agent: Listed, cache: Path) -> Path:
    """Install it unless it is installed, and return the directory of its programs."""
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
    """A Python that runs. For a version that is not selected, pyenv's program on the PATH only prints an error."""
    name, pyenv = f"python{version}", Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for python in filter(None, [shutil.which(name), *map(str, pyenv.glob(f"versions/{version}*/bin/{name}"))]):
        if subprocess.run([python, "--version"], capture_output=True, check=False).returncode == 0:
            return python
    raise Skipped(f"{name} is not on the PATH")
