"""A terminal to look at: tmux on a socket of its own."""

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

import pytest

PATIENCE = 60.0  # seconds: only so that nothing hangs for ever


class Terminal:
    """A shell in a terminal of this size. What is typed and shown is what a person would type and see."""

    def __init__(self, directory: Path, environment: Mapping[str, str], width: int = 80, height: int = 24) -> None:
        if shutil.which("tmux") is None:
            if os.environ.get("CI") == "true":
                pytest.fail("tmux is not installed")
            pytest.skip("tmux is not installed")
        self._socket = str(directory / "tmux")
        variables = {**environment, "PS1": "$ ", "HISTFILE": "", "LC_ALL": "C.UTF-8"}
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", str(height), "-c", str(directory),
                   "env", *(f"{name}={value}" for name, value in variables.items()), "bash", "--norc", "--noprofile")
        try:
            self.until(lambda text: text.startswith("$"))
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tmux("kill-server")

    def type(self, *keys: str) -> None:
        """Presses keys; a name such as Enter or C-c is one key."""
        self._tmux("send-keys", *keys)

    def run(self, *command: str, after: str = "") -> None:
        """Clears the screen and runs a command, and then something else."""
        self.type("clear", "Enter")
        self.until(lambda text: text == "$")
        self.type("-l", f"clear; {shlex.join(command)}{after}")
        self.type("Enter")

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    @property
    def text(self) -> str:
        """What is on the screen."""
        return self._tmux("capture-pane", "-p").rstrip()

    @property
    def colours(self) -> str:
        """What is on the screen, with the codes that colour it."""
        return self._tmux("capture-pane", "-p", "-e")

    def until(self, holds: Callable[[str], object] | str) -> str:
        """What is on the screen once that holds, or once it contains that."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            shown = self.text
            if holds in shown if isinstance(holds, str) else holds(shown):
                return shown
            time.sleep(0.03)
        pytest.fail(f"the terminal never showed what it should: {holds}\n{shown}")

    def _tmux(self, *arguments: str) -> str:
        return subprocess.run(["tmux", "-S", self._socket, *arguments], capture_output=True, text=True, check=True,
                              timeout=PATIENCE).stdout
