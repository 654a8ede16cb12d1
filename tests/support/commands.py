"""The command `cancelmark`: in this process, where most of what it says is tested quickly, and in one of its own."""

import io
import os
import pty
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

import pytest

from cancelmark.impl.cli.main import main

COMMAND = [sys.executable, "-m", "cancelmark.impl.cli.main"]
LAST_LINE = re.compile(r"states=(\d+) edges=(\d+) depth=(\d+) seconds=[\d.]+ verdict=(\w+)")


@dataclass(frozen=True)
class Said:
    """What a command wrote."""

    stdout: str
    stderr: str


def run_command(*arguments: str, code: int = 0, given: bytes = b"") -> Said:
    """Runs the command in this process, with what it is given to read. It must exit with that code."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(given))))  # type: ignore[arg-type]
        try:
            returned: object = main(arguments)
        except SystemExit as stopped:
            returned = stopped.code
    assert returned == code, err.getvalue() + out.getvalue()
    return Said(out.getvalue(), err.getvalue())


def read_refusal(*arguments: str, **options: bytes) -> str:
    """The one line with which bad usage is refused."""
    said = run_command(*arguments, code=2, **options)
    assert said.stdout == ""
    [line] = said.stderr.splitlines()
    assert line.startswith("cancelmark")
    return line


def run_process(*arguments: str, code: int = 0) -> Said:
    """Runs the command in a process of its own."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    return Said(done.stdout, done.stderr)


def run_on_terminal(*arguments: str, code: int = 0) -> bytes:
    """All that a terminal is told to show while the command runs."""
    master, slave = pty.openpty()
    process = subprocess.Popen([*COMMAND, *arguments], stdout=slave, stderr=slave,
                               env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"})
    os.close(slave)
    shown = b""
    while True:
        try:
            shown += os.read(master, 4096)
        except OSError:  # the other end is closed
            break
    os.close(master)
    assert process.wait() == code
    return shown
