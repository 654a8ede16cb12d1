"""A project that has nothing but the installed wheel gets the whole suite in a test file of five lines."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from support.paths import ROOT

from cancelmark.conformance.report import ORDER
from cancelmark.conformance.scenarios import SCENARIOS

TEST_FILE = """\
from cancelmark.conformance.naive import NaiveAdapter
from cancelmark.conformance.suite import ConformanceSuite

class TestMine(ConformanceSuite):
    adapter = NaiveAdapter
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheel is installed, and nothing else."""
    built, target = tmp_path_factory.mktemp("built"), tmp_path_factory.mktemp("installed")
    source = tmp_path_factory.mktemp("source") / "cancelmark"  # pip builds in place, and would leave things behind here
    unneeded = shutil.ignore_patterns(".*", "build", "tests", "specs", "*.egg-info", "node_modules")
    shutil.copytree(ROOT, source, symlinks=True, ignore=unneeded)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(built), str(source)], check=True, timeout=300)
    (wheel,) = built.glob("cancelmark-*.whl")
    with zipfile.ZipFile(wheel) as file:
        assert "cancelmark/conformance/suite.py" in file.namelist()
        file.extractall(target)
    return target


def run(installed: Path, project: Path, *arguments: str) -> str:
    """Runs pytest there, with the wheel and with what it depends on, and not with this source tree."""
    libraries = sysconfig.get_path("purelib")  # without a site (-S), which would read the .pth file of this source tree
    environment = {**os.environ, "PYTHONPATH": f"{installed}{os.pathsep}{libraries}", "PYTEST_ADDOPTS": ""}
    done = subprocess.run([sys.executable, "-S", "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", "-rfs",
                           *arguments],
                          cwd=project, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.stderr == ""
    return done.stdout


def test_five_lines_are_a_suite(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TEST_FILE)
    where = run(installed, tmp_path, "--collect-only", "-q")
    assert f"{len(ORDER) + len(SCENARIOS)} tests collected" in where
    out = run(installed, tmp_path, "-q")
    assert "FAILED test_mine.py::TestMine::test_guarantee[no-lost-cancel]" in out
    assert "FAILED test_mine.py::TestMine::test_scenario[queue-stranded-by-error]" in out
    assert "no-lost-cancel is broken: A was accepted before a cancel that was answered, and its turn goes on." in out
    assert "what was done: accept A, cancel" in out
    assert "turn of A starts ─" in out
    assert "the adapter cannot close the server" in out
    assert "Traceback" not in out


def test_it_is_the_wheel_that_was_tested(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "test_where.py").write_text(
        "from cancelmark import conformance\n\n"
        f"def test_where():\n    assert conformance.__file__.startswith({str(installed)!r})\n")
    assert "1 passed" in run(installed, tmp_path, "-q")


def test_without_pytest_it_says_what_to_install(installed: Path) -> None:
    code = "import sys; sys.modules['pytest'] = None; import cancelmark.conformance.suite"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'cancelmark[conform]'" in done.stderr
