"""The server beside an earlier version of it, by turns in one run: a model that answers at once, two subscribers to
each workspace, kept on disk with full sync. Each server has a process and a data directory of its own.

Rates depend on the machine, and on what else it does; what a server computes for a prompt depends on that much less.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ..report import Goal, Report
from ..setting import Setting
from . import llm
from .peer import WORKSPACES, Server, compare, find_ratios, tabulate

SECONDS = 3.0  # for each rate
OURS = "now"

COMPUTING = ("Two thirds of a prompt's processor time are the event loop's, where by profile no function has a "
             "twentieth: the model's client and the event streams have a sixth each, h11 an eighth and JSON a "
             "twentieth. One third are the stores' threads: three commits that no other prompt shares, and a dozen "
             "waits for the interpreter lock in each.")
WAITING = ("The end is in the commit of the cancel, and is sent at once. Of the time that passes inside the server a "
           "bare writer on the same disk takes about half.")
GOALS = (  # what, which figure, relation, limit, why it is missed if it is
    ("completed prompts a second, one session", "one session: prompts/s", "at least", 3.5, COMPUTING),
    (f"completed prompts a second, {WORKSPACES} workspaces", "workspaces: prompts/s", "at least", 3.3, COMPUTING),
    ("cancel to the end at another client", "cancel to end, ms", "at most", 0.7, WAITING),
)


@contextmanager
def serving(name: str, command: Sequence[str], model: str) -> Iterator[Server]:
    """A server that is up, with this model."""
    with tempfile.TemporaryDirectory(prefix="cancelmark-bench-") as directory:
        whole = [*command, "serve", "--port", "0", "--data-dir", directory, "--log-level", "error", "--model", "openai",
                 "--model-name", "turn", "--base-url", model]
        with subprocess.Popen(whole, stdout=subprocess.PIPE, text=True, env={
                **os.environ, "OPENAI_API_KEY": "none", "PYTHONPATH": ""}) as process:
            assert process.stdout is not None
            try:
                port = process.stdout.readline().split(":")[2].split("/")[0]
                yield Server(name, f"http://127.0.0.1:{port}", process.pid)
            finally:
                process.kill()


def measure(setting: Setting) -> Report:
    """This version, and the earlier one if there is one."""
    ours = [sys.executable, "-m", "cancelmark.impl.cli.main"]
    with ExitStack() as stack:
        model = stack.enter_context(llm.running())
        servers = [stack.enter_context(serving(setting.baseline.version, setting.baseline.list_command(), model))
                   ] if setting.baseline else []
        servers.append(stack.enter_context(serving(OURS, ours, model)))
        asyncio.run(compare(servers, setting.rounds, SECONDS))
    return Report([tabulate(servers)], [_judge(servers, *goal) for goal in GOALS])


def _judge(servers: Sequence[Server], what: str, figure: str, relation: str, limit: float, why: str) -> Goal:
    if len(servers) == 1:
        return Goal(f"{what}, beside 0.1.0", (), relation, limit, why="No earlier version was given: BASELINE=e117825.")
    first, ours = servers
    return Goal(f"{what}, beside {first.name}", tuple(find_ratios(ours, first, figure)), relation, limit, why=why)
