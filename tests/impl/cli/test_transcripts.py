"""The transcripts in the pages are what happens: each is replayed, in as many shells as it has terminals.

In a transcript `NAME$ COMMAND` is typed in the terminal NAME, and below it is what that terminal shows next. `NAME:` is
what it shows later. A line `…` stands for any lines or none; an id, a time and a port for any other.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

import pytest
from support.docs import PAGES, code_blocks

from cancelmark.impl.client import Client
from cancelmark.impl.discovery import find

TERMINALS, *OTHERS = sorted((block for page in PAGES for block in code_blocks(page, "console")), key=len, reverse=True)
STEP = re.compile(r"(\w*)(?:\$ (.*)|(?<=\w):)")
PATIENCE = 60.0


class Shell:
    """A shell whose output, errors too, comes line by line."""

    def __init__(self, directory: Path, data: Path) -> None:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"], cwd=directory, text=True, bufsize=1, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "PATH": path, "CANCELMARK_DATA_DIR": str(data)})
        self._lines: Queue[str] = Queue()
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))

    def type(self, command: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(command + "\n")

    def line(self) -> str:
        try:
            return self._lines.get(timeout=PATIENCE)
        except Empty:
            return "(nothing more)"

    def rest(self) -> list[str]:
        """Ends it, as Ctrl-C and then leaving would; what it had still to show."""
        assert self._process.stdin
        assert self._process.stdout
        with self._process.stdin:
            os.killpg(self._process.pid, signal.SIGINT)
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        self._process.stdout.close()
        return list(self._lines.queue)


def steps(transcript: str) -> Iterator[tuple[str, str | None, list[str]]]:
    """Who, what is typed if anything is, and what is shown."""
    blocks: list[tuple[str, str | None, list[str]]] = []
    for line in transcript.splitlines():
        if step := STEP.fullmatch(line):
            blocks.append((step[1], step[2], []))
        elif line:
            blocks[-1][2].append(line)
    yield from blocks


def pattern(line: str) -> str:
    told = re.escape(line)
    told = re.sub(r"[0-9a-f]{8}(\\-[0-9a-f]{4}){3}\\-[0-9a-f]{12}", r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", told)
    told = re.sub(r"\d{4}\\-\d\d\\-\d\dT[\d:]+\\\.\d+Z", r"[-\\dT:.]+Z", told)
    return re.sub(r":\d+/", r":\\d+/", told)


def replayed(transcript: str, tmp_path: Path) -> None:
    shells: dict[str, Shell] = {}
    more: dict[str, bool] = {}  # whether anything may follow
    data = tmp_path / "data"
    try:
        for name, command, shown in steps(transcript):
            if name not in shells:
                shells[name] = Shell(tmp_path, data)
            shell = shells[name]
            if command is not None:
                shell.type(command)
            if command is not None and not shown:  # it shows something later: the others go on when it is under way
                asyncio.run(busy(tmp_path, data))
            skipping = False
            for expected in shown:
                if expected == "…":
                    skipping = True
                    continue
                line = shell.line()
                while skipping and not re.fullmatch(pattern(expected), line) and line != "(nothing more)":
                    line = shell.line()
                skipping = False
                assert re.fullmatch(pattern(expected), line), f"{name} shows {line!r} instead of {expected!r}"
            more = {**more, name: skipping}
    finally:
        rest = {name: shell.rest() for name, shell in reversed(shells.items())}
    assert not any(lines for name, lines in rest.items() if not more[name]), f"more than the page says: {rest}"


async def busy(directory: Path, data: Path) -> None:
    """Returns when a session of the directory has something to do."""
    running = find(data)
    assert running
    async with asyncio.timeout(PATIENCE), Client(running.url) as client:
        workspace = await client.open_workspace(str(directory))
        while not any(session.is_busy for session in await client.sessions(workspace.id)):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("transcript", [TERMINALS, *OTHERS])
def test_a_transcript_is_what_happens(transcript: str, tmp_path: Path) -> None:
    replayed(transcript, tmp_path)


def test_there_is_a_transcript_of_two_terminals_and_a_third() -> None:
    assert {name for name, _, _ in steps(TERMINALS)} == {"first", "second", "third"}


@pytest.mark.parametrize(("change", "into"), [
    ("exit code 3", "exit code 0"), ("You said: hello\n", "")])
def test_a_transcript_that_is_wrong_is_noticed(change: str, into: str, tmp_path: Path) -> None:
    assert change in TERMINALS
    with pytest.raises(AssertionError):
        replayed(TERMINALS.replace(change, into), tmp_path)
