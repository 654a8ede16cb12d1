"""The judgement of an agent or a server of the list: which scripts, under which load, and for how long."""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from cancelmark.conformance.adapter.process import NotRunning, ServerProcess, free_port
from cancelmark.conformance.playing.scenarios import SCENARIOS
from cancelmark.impl.adapters.jail import DIRECT, PROXIES
from examples.field.agents import Listed, Skipped

STOP = 30  # seconds for a judgement that took too long to stop its processes
TRIES = 2  # of a judgement that stops before it has run all scripts
CIRCUMSTANCES = "examples.opencode.circumstances"
SERVED = ("accept A, cancel", "accept A; cancel", "accept A; accept B; release; release", "accept A; accept B; cancel",
          "accept A; cancel; accept B")
REVOKED = ("accept A; accept B; revoke B; release", "accept A; accept B; revoke A; release")
SCRIPTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "acp": {
        "polite": ("accept A + cancel", "accept A, cancel", "accept A; cancel", "accept A; cancel; accept B"),
        "free": ("accept A; accept B; release; release", "accept A; accept B; cancel", "accept A; cancel + accept B",
                 "cancel; accept A"),
    },
    "langgraph": {"enqueue": (*SERVED, *REVOKED), "stream": (*SERVED, *REVOKED), "reject": SERVED, "interrupt": SERVED,
                  "crash": ("accept A; restart",)},
    "a2a": {"tasks": SERVED},
    "opencode": {
        "in-use": ("accept A, cancel", "accept A, accept B", "accept A; accept B; cancel", "accept A; accept B; fail"),
        "just-started": ("accept A, cancel", "accept A, accept B, cancel"),
        "killed": ("accept A; restart",),
    },
}
"""The scripts for every agent, by the command that judges it and by mode. The first two for an ACP agent send a cancel
in the same write as the prompt, and right after it."""
WHOLE = {"opencode": "in-use"}
"""The mode in which an agent is also judged by scenarios and random histories. Their findings run as scripts too."""
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "polite": ("--mode", "polite"), "free": ("--mode", "free"), "enqueue": ("--policy", "enqueue"),
    "stream": ("--ends", "stream"), "reject": ("--policy", "reject"), "interrupt": ("--policy", "interrupt"),
    "crash": ("--adapter", "examples.field.crash:Crash"), "tasks": (),
    "in-use": ("--adapter", f"{CIRCUMSTANCES}:InUse"),
    "just-started": ("--adapter", f"{CIRCUMSTANCES}:JustStarted"), "killed": ("--adapter", f"{CIRCUMSTANCES}:Killed")}
MODES = tuple(OPTIONS)
PROGRAMS = "FIELD_PROGRAMS"
"""The environment variable with the directory of the programs, for an adapter that starts its server itself."""


@contextmanager
def busy(n: int) -> Iterator[None]:
    """Run this many busy processes inside the `with` block."""
    load = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for process in load:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Player:
    """Judges one installed agent, until its time limit."""

    agent: Listed
    programs: Path
    files: Path
    """A directory for its configuration files."""
    until: float

    def play(self, mode: str, times: int, scripts: tuple[str, ...]) -> dict[str, Any]:
        """The JSON report of one judgement, which runs in another process. It is retried once if it stops early."""
        words = ["--times", str(times), *(word for text in scripts for word in ("--script", text))]
        for _ in range(TRIES):
            report = self._judge(mode, words)
            if len(report["scripts"]) == len(scripts):
                return report
        raise Skipped(_short(report["stopped"], self.programs))

    def judge_whole(self, mode: str) -> tuple[dict[str, Any], list[str]]:
        """The report of a full judgement, and the scripts of its findings."""
        report = self._judge(mode, [])
        scenarios = [str(each.script) for each in SCENARIOS if report["scenarios"].get(each.name) == "broken"]
        return report, [*(each["script"] for each in report["guarantees"] if "script" in each), *scenarios]

    def _judge(self, mode: str, words: list[str]) -> dict[str, Any]:
        judge, options = self.agent.judge, [*OPTIONS[mode], "--json", *words]
        if judge == "acp":
            return dict(self._conform([judge, *options, *agent_words(self.agent, self.programs, self.files)]
                                      )["modes"][mode])
        if "--adapter" in options:
            return self._conform(options, {PROGRAMS: str(self.programs)})
        with serving(self.agent, self.programs) as (url, port):
            return self._conform([judge, url, "--llm-port", str(port), *options])

    def _conform(self, words: list[str], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
        judging = subprocess.Popen(
            [sys.executable, "-m", "cancelmark.impl.cli.main", "conform", *words], text=True,
            env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            answer, said = judging.communicate(timeout=max(self.until - monotonic(), 0))
            return dict(json.loads(answer))
        except subprocess.TimeoutExpired as error:
            raise Skipped(f"it took longer than {self.agent.limit} s") from error
        except ValueError as error:
            raise Skipped(_short(said.removeprefix("cancelmark: "), self.programs)) from error
        finally:
            _stop(judging)


def _stop(judging: subprocess.Popen[str]) -> None:
    """Interrupt a judgement that is still running, so that it stops its own processes."""
    if judging.poll() is None:
        judging.send_signal(signal.SIGINT)
        try:
            judging.communicate(timeout=STOP)
        except subprocess.TimeoutExpired:
            judging.kill()
            judging.communicate()


def agent_words(agent: Listed, programs: Path, files: Path) -> list[str]:
    """The command-line options and the command of an agent."""
    words = [word for name, value in agent.env.items() for word in ("--env", f"{name}={value}")]
    for path, text in agent.config.items():
        file = files / f"{agent.name}-{Path(path).name}"
        file.write_text(text)
        words += ["--config", f"{path}={file}"]
    words += ["--auth", agent.auth] if agent.auth else []
    return [*words, "--", *(word.replace("{bin}", str(programs)) for word in agent.start)]


@contextmanager
def serving(agent: Listed, programs: Path) -> Iterator[tuple[str, int]]:
    """Run the server inside the `with` block; yields its URL, and the port where it expects the language model."""
    port = free_port()
    server = make_server(agent, programs, f"http://127.0.0.1:{port}/v1")
    try:
        asyncio.run(server.start())
        yield agent.url.replace("{port}", str(server.port)), port
    except NotRunning as error:
        raise Skipped(_short(str(error), programs)) from error
    finally:
        asyncio.run(server.close())


def make_server(agent: Listed, programs: Path, model_url: str) -> ServerProcess:
    words = {"{bin}": str(programs), "{model_url}": model_url}
    environment = {name: _fill(value, words) for name, value in agent.env.items()}
    server = ServerProcess([_fill(word, words) for word in agent.start], environment=PROXIES | DIRECT | environment)
    for path, text in agent.config.items():
        (server.work / path).write_text(_fill(text, words))
    return server


def _fill(text: str, words: Mapping[str, str]) -> str:
    for name, value in words.items():
        text = text.replace(name, value)
    return text


def _short(said: str, programs: Path) -> str:
    """The first line of an error."""
    lines = [line.strip() for line in said.replace(f"{programs}/", "").splitlines() if line.strip()]
    return lines[0].partition("; its output:")[0].removesuffix("; the result is inconclusive") if lines else "no output"


def reproduce(agent: Listed, mode: str, script: str) -> str:
    return f"python -m examples.field {agent.name} --mode {mode} --script {shlex.quote(script)}"
