"""Cancelmark as others get it: a source distribution, and a plain install beside the packages of somebody's project."""

import os
import subprocess
import sys
import tarfile
import tomllib
import venv
from pathlib import Path

import pytest
from support.paths import ROOT
from support.shared_fixture import once

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FLOORS = tuple(needed.replace(">=", "==") for needed in PROJECT["dependencies"])
FIRST = ("fastapi==0.115.12", "pytest==8.*", *FLOORS)  # what somebody's project has already: all of it old
IGNORED = {".git", ".venv", "build", "dist", "node_modules", "__pycache__", "PKG-INFO", "setup.cfg"}


def pip(python: Path | str, *arguments: str) -> None:
    """Runs the pip of this process for that interpreter, which need not have one."""
    done = subprocess.run([sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check",
                           *arguments], capture_output=True, text=True, check=False, timeout=600)
    if done.returncode and "No matching distribution found" in done.stderr and os.environ.get("CI") != "true":
        pytest.skip(f"there is no package index: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr


def checkout() -> list[Path]:
    """The files of this source tree."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return [Path(name) for name in listed.split("\0") if name and os.path.lexists(ROOT / name)]
    files = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file() or path.is_symlink())
    return [file for file in files if not IGNORED & set(file.parts) and "egg-info" not in str(file)]


def source_distribution(factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    def build() -> Path:
        tools, source, built = (factory.mktemp(name) for name in ("tools", "source", "built"))
        pip(sys.executable, "install", "--no-compile", "--target", str(tools), "setuptools>=77")
        for file in checkout():  # a build leaves things behind
            (source / file).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / file).is_symlink():
                (source / file).symlink_to((ROOT / file).readlink())
            else:
                (source / file).write_bytes((ROOT / file).read_bytes())
        code = (f"import sys; sys.path.insert(0, {str(tools)!r})\n"
                f"from setuptools.build_meta import build_sdist; build_sdist({str(built)!r})")
        subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, check=True, timeout=300)
        (archive,) = built.glob("cancelmark-*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(built, filter="data")
        return built / archive.name.removesuffix(".tar.gz")
    return once(factory, "source_distribution", build)


def plain_install(factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a project that had its own packages, and then installed Cancelmark without any extra."""
    def install() -> Path:
        project = factory.mktemp("project")
        venv.create(project)
        python = project / "bin" / "python"
        pip(python, "install", "--no-compile", *FIRST)
        pip(python, "install", "--no-compile", str(source_distribution(factory)))
        return python
    return once(factory, "plain_install", install)


def run_in(python: Path | str, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python there, strictly, and without what this process has set for itself."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))}
    return subprocess.run([python, "-W", "error", *arguments], cwd=directory, env=environment, capture_output=True,
                          text=True, check=False, timeout=300)
