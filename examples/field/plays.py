"""How an agent or a server of the list is judged: what is played, and under which load."""

import asyncio
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cancelmark.conformance.adapter.process import NotRunning, ServerProcess, free_port
from cancelmark.impl.adapters.jail import DIRECT, PROXIES
from examples.field.agents import Listed, Skipped

JUDGE = 1200  # seconds
SERVED = ("accept A, cancel", "accept A; cancel", "accept A; accept B; release; release", "accept A; accept B; cancel",
          "accept A; cancel; accept B")
SCRIPTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "acp": {
        "polite": ("accept A + cancel", "accept A, cancel", "accept A; cancel", "accept A; cancel; accept B"),
        "free": ("accept A; accept B; release; release", "accept A; accept B; cancel", "accept A; cancel + accept B",
                 "cancel; accept A"),
    },
    "langgraph": {"enqueue": SERVED, "stream": SERVED, "reject": SERVED, "interrupt": SERVED},
    "a2a": {"tasks": SERVED},
}
"""What is played on every agent, by the command that judges it and by mode. To an agent, the first two send a prompt
and a cancel in one write, and right behind."""
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "polite": ("--mode", "polite"), "free": ("--mode", "free"), "enqueue": ("--policy", "enqueue"),
    "stream": ("--ends", "stream"), "reject": ("--policy", "reject"), "interrupt": ("--policy", "interrupt"),
    "tasks": ()}
MODES = tuple(OPTIONS)


@contextmanager
def busy(n: int) -> Iterator[None]:
    """So many processes that do nothing but compute."""
    load = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for process in load:
            process.kill()
            process.wait()


def play(agent: Listed, programs: Path, mode: str, files: Path, times: int, scripts: tuple[str, ...]) -> dict[str, Any]:
    """The report of one judgement, in a process of its own, as JSON."""
    options = [*OPTIONS[mode], "--json", "--times", str(times), *(w for text in scripts for w in ("--script", text))]
    if agent.judge == "acp":
        report: dict[str, Any] = conform(programs, [*options, *agent_words(agent, programs, files)], agent.judge)
        return dict(report["modes"][mode])
    with serving(agent, programs) as (url, port):
        return conform(programs, [url, "--llm-port", str(port), *options], agent.judge)


def agent_words(agent: Listed, programs: Path, files: Path) -> list[str]:
    """The options and the command of an agent."""
    words = [word for name, value in agent.env.items() for word in ("--env", f"{name}={value}")]
    for path, text in agent.config.items():
        file = files / f"{agent.name}-{Path(path).name}"
        file.write_text(text)
        words += ["--config", f"{path}={file}"]
    words += ["--auth", agent.auth] if agent.auth else []
    return [*words, "--", *(word.replace("{bin}", str(programs)) for word in agent.start)]


@contextmanager
def serving(agent: Listed, programs: Path) -> Iterator[tuple[str, int]]:
    """The address of a server that runs, and the port on which it looks for the language model."""
    port = free_port()
    words = {"{bin}": str(programs), "{model_url}": f"http://127.0.0.1:{port}/v1"}
    environment = {name: _fill(value, words) for name, value in agent.env.items()}
    server = ServerProcess([_fill(word, words) for word in agent.start], environment=PROXIES | DIRECT | environment)
    for path, text in agent.config.items():
        (server.work / path).write_text(_fill(text, words))
    try:
        asyncio.run(server.start())
        yield agent.url.replace("{port}", str(server.port)), port
    except NotRunning as error:
        raise Skipped(_short(str(error), programs)) from error
    finally:
        asyncio.run(server.close())


def _fill(text: str, words: Mapping[str, str]) -> str:
    for name, value in words.items():
        text = text.replace(name, value)
    return text


def conform(programs: Path, words: list[str], judge: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "cancelmark.impl.cli.main", "conform", judge, *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=JUDGE)
        report: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise Skipped(f"a judgement took longer than {JUDGE} s") from error
    except ValueError as error:
        raise Skipped(_short(done.stderr.removeprefix("cancelmark: "), programs)) from error
    return report


def _short(said: str, programs: Path) -> str:
    """The first line of an error."""
    lines = [line.strip() for line in said.replace(f"{programs}/", "").splitlines() if line.strip()]
    return lines[0].partition("; it wrote:")[0].removesuffix("; nothing is claimed") if lines else "it says nothing"


def reproduce(agent: Listed, mode: str, script: str) -> str:
    return f"python -m examples.field {agent.name} --mode {mode} --script {shlex.quote(script)}"


def list_broken(report: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What did not hold."""
    return (each for each in report["guarantees"] if each["status"] == "broken")
