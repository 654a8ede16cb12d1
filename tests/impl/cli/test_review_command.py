"""The review as a command: how it is asked for, watched and interrupted."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.commands import COMMAND, read_refusal

from cancelmark.impl.cli.review.workers import open_workers
from cancelmark.impl.files import UsageError
from cancelmark.model.check.explore import StoppedError, explore
from cancelmark.model.properties import Bounds
from cancelmark.model.protocol import REFERENCE

WORK = """\
from cancelmark.impl.cli.review.workers import open_workers
if __name__ == "__main__":
    with open_workers({jobs}) as workers:
        asked = [workers.begin(pow, 2, n) for n in range(3)]
        found = [ask() for ask in asked]
    print(found)
"""


def stopped() -> None:
    raise StoppedError(explore(REFERENCE, Bounds(2, cancels=1), max_states=3))


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("jobs", [1, 2])
def test_progress_is_shown_on_a_terminal_and_not_in_a_pipe(jobs: int, tmp_path: Path) -> None:
    script = tmp_path / "work.py"
    script.write_text(WORK.format(jobs=jobs))
    quiet = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert (quiet.stdout, quiet.stderr) == ("[1, 2, 4]\n", "")
    ours, theirs = pty.openpty()
    done = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, stderr=theirs, text=True, check=True,
                          env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert done.stdout == "[1, 2, 4]\n"
    assert "3/3" in shown


@pytest.mark.real
def test_a_search_that_is_stopped_in_another_process_claims_nothing() -> None:
    stopped_early = r"the search of ref was stopped: .*; the result is inconclusive"
    with pytest.raises(UsageError, match=stopped_early), open_workers(2) as workers:
        workers.begin(stopped)()


@pytest.mark.real
def test_a_process_that_is_killed_is_noticed() -> None:
    with pytest.raises(UsageError, match="was killed, perhaps for lack of memory"), open_workers(2) as workers:
        workers.begin(killed)()


def test_work_that_is_interrupted_is_not_waited_for(tmp_path: Path) -> None:
    script = tmp_path / "long.py"
    script.write_text("import time\nfrom cancelmark.impl.cli.review.workers import open_workers\n"
                      "if __name__ == '__main__':\n    with open_workers(2) as workers:\n"
                      "        asked = [workers.begin(time.sleep, seconds) for seconds in (0.1, 3600, 3600)]\n"
                      "        asked[0]()\n        raise KeyboardInterrupt\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=120)
    assert "KeyboardInterrupt" in done.stderr


def children(pid: int) -> list[int]:
    done = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in done.stdout.split()]


@pytest.mark.parametrize("processes", [1, 2, 3])  # one that tracks the others comes first, then the two workers
def test_ctrl_c_ends_every_process_whichever_is_starting(processes: int, tmp_path: Path) -> None:
    path = tmp_path / "review.html"
    running = subprocess.Popen([*COMMAND, "review", "-o", str(path), "--jobs", "2"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while len(started := children(running.pid)) < processes and time.monotonic() < deadline:
        time.sleep(0.001)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert said == "cancelmark: interrupted\n"
    assert not path.exists()
    while any(Path(f"/proc/{pid}").exists() for pid in started) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize(("arguments", "problem"), [
    (("--jobs", "0"), "--jobs 0: must be at least 1"),
    (("-o", "no/such/directory/review.html"), "no such directory no/such/directory; create it first"),
])
def test_bad_usage_is_refused_before_any_work(arguments: tuple[str, ...], problem: str) -> None:
    assert problem in read_refusal("review", *arguments)
