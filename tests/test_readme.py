"""The examples in the README run as they stand."""

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from support.commands import run_command
from support.paths import ROOT

README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
SAYS = ["holds", "Outcome.CANCELED", "single-active is broken"]


@pytest.mark.parametrize(("example", "says"), list(zip(EXAMPLES, SAYS, strict=True)), ids=SAYS)
def test_an_example_runs_and_says_what_it_should(example: str, says: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", example], cwd=tmp_path, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout


def test_the_trace_in_the_readme_is_what_the_command_prints() -> None:
    calls = ["accept A", "cancel", "accept B", "enter B", "enter A"]
    printed = run_command("diagram", "trace", *calls).stdout
    assert all(f"    {line}\n" in README for line in printed.splitlines())


def test_the_history_in_the_readme_is_what_the_example_prints() -> None:
    (told,) = re.findall(r"^    some-terminal is broken.*?within 3 s$", README, re.DOTALL | re.MULTILINE)
    printed = subprocess.run([sys.executable, "-c", EXAMPLES[2]], capture_output=True, text=True, check=True).stdout
    assert dedent(told) in printed
