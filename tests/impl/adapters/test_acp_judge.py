"""The judge of ACP agents, on small agents of our own: the good one conforms, and each bad one is caught."""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from support import small_agent
from support.budget import long
from support.small_agent import FLAWS

from cancelmark.conformance.adapter import Declined, Ended
from cancelmark.conformance.adapter.process import NotRunning
from cancelmark.conformance.kit import PROFILES, JudgementStopped, judge
from cancelmark.conformance.playing.venue import NotSteered
from cancelmark.conformance.report import Decision, Report
from cancelmark.impl.acp.peer import RpcResponse
from cancelmark.impl.adapters.acp import CLAUSES, SILENT, AcpAdapter, acp_adapter
from cancelmark.impl.adapters.agents import AgentCommand
from cancelmark.impl.adapters.jail import NOWHERE
from cancelmark.impl.cli.conform.command import worst
from cancelmark.impl.cli.main import main

EXITS = (130, 1, 2, 0)  # of one judgement, the worst first
AGENT = (sys.executable, small_agent.__file__, "{model_url}")
SHORT = replace(PROFILES["quick"], histories=25, repeats=1, races=2, shrinks=0, limit=10, decisive=1)


def adapter(flaw: str, mode: str) -> type[AcpAdapter]:
    kind = acp_adapter(AgentCommand((*AGENT, flaw)), mode)
    kind.patience = 1.0
    return kind


def play(flaw: str, mode: str, *scripts: str, patience: float = 1.0) -> Report:
    kind = adapter(flaw, mode)
    kind.patience = patience
    return judge(kind, fake=kind.make_model, scripts=scripts, times=1)


@pytest.mark.real
@pytest.mark.parametrize("mode", ["polite", "free"])
def test_a_good_agent_conforms(mode: str) -> None:
    kind = adapter("", mode)
    report = judge(kind, fake=kind.make_model, profile=SHORT)
    assert report.untested == ([] if mode == "polite" else ["queue-dropped"]), report  # nobody can ask for the queue
    assert report.decision is (Decision.CONFORMS if mode == "polite" else Decision.NOTHING_BROKEN), report
    assert set(report.kept) >= {"no-lost-cancel", "cancel-stops", "attribution", "some-terminal", "no-poisoning"}
    assert ("fifo" in report.kept) == (mode == "free")
    assert ("failure of the language model were not checked" in report.verdict("attribution").about) == (
        mode == "polite")


@pytest.mark.real
@pytest.mark.smoke
@pytest.mark.parametrize(("flaw", "mode", "script", "guarantee"), [
    ("loses-early-cancel", "polite", "accept A, cancel", "no-lost-cancel"),
    ("error-for-cancelled", "polite", "accept A; cancel", "attribution"),
    ("error-for-cancelled", "polite", "accept A, cancel", "attribution"),
    ("poisons", "free", "cancel; accept A", "idle-cancel-noop"),
    ("poisons", "polite", "accept A; release; cancel; accept B", "no-poisoning"),
    ("crosses", "polite", "accept A; accept B @2; cancel", "isolation"),
    ("goes-on", "polite", "accept A; cancel", "cancel-stops"),
    ("leaves-open", "polite", "accept A; cancel", "cancel-stops"),
    ("leaves-open", "free", "accept A; cancel; accept B", "single-active"),
    ("answers-twice", "polite", "accept A; release", "one-terminal"),
    ("dies", "polite", "accept A; cancel", "progress"),
    long("swallows-second", "free", "accept A; accept B; release", "all-done"),
    ("interrupts", "free", "accept A; accept B", "no-poisoning"),
    ("withholds", "free", "accept A; accept B; release", "prompt-terminal"),
])
def test_a_bad_agent_is_caught(flaw: str, mode: str, script: str, guarantee: str) -> None:
    report = play(flaw, mode, script, patience=0.3)
    assert guarantee in report.broken, report
    story = report.verdict(guarantee).story
    assert "protocol text: " in story
    assert (guarantee in CLAUSES) == ("ACP v1" in story or "JSON-RPC" in story)
    if guarantee not in CLAUSES:
        assert SILENT in story


@pytest.mark.real
def test_a_polite_client_sends_one_prompt_at_a_time() -> None:
    for flaw in ("swallows-second", "interrupts", "refuses", "withholds"):
        assert not play(flaw, "polite", "accept A; accept B; release", "accept A, cancel, accept B").broken, flaw


@pytest.mark.real
def test_an_agent_that_refuses_a_second_prompt_has_refused_it_and_owes_it_nothing() -> None:
    report = play("refuses", "free", "accept A; accept B; release", "accept A, accept B, cancel")
    assert not report.broken, report


@pytest.mark.parametrize(("crowded", "stopped", "error", "refused"), [
    (True, False, "Internal error", True), (True, False, "A turn is already running", True),
    (True, True, "A turn is already running", True), (True, True, "Request was aborted.", False),
    (False, False, "Internal error", False), (False, False, "A turn is already running", False),
    (False, True, "Request was aborted.", False), (False, True, "A turn is already running", False),
])
def test_an_error_refuses_a_second_prompt_unless_it_was_canceled(
        crowded: bool, stopped: bool, error: str, refused: bool) -> None:
    """Whoever sends a second prompt and cancels it hears of a cancel, unless the agent says that it is busy."""
    async def scene() -> object:
        kind = adapter("", "free")
        kind.make_model()
        made = kind()
        made.names, made.texts = {"s": ["A"]}, {"s": ""}
        made.sent_while_busy, made.stopped = {"A"} if crowded else set(), {"A"} if stopped else set()
        made._answered("s", "A", RpcResponse(None, error))
        return await anext(made.events())

    told = asyncio.run(scene())
    assert told == (Declined("A", error) if refused else Ended("A", "error", error=error))


@pytest.mark.parametrize("exits", list(product(EXITS, repeat=2)))
def test_of_two_modes_the_worst_counts(exits: tuple[int, int]) -> None:
    assert worst(exits) == min(exits, key=EXITS.index)


@pytest.mark.real
def test_an_agent_that_says_a_canceled_prompt_again_with_the_next_has_not_started_it_again() -> None:
    for mode in ("polite", "free"):
        report = play("repeats", mode, "accept A; cancel; accept B; release", "accept A + cancel; accept B")
        assert not report.broken, report


@pytest.mark.real
def test_lines_that_are_no_messages_are_not_taken_for_the_end() -> None:
    assert not play("talks", "polite", "accept A; cancel").broken


@pytest.mark.real
def test_an_agent_that_never_asks_the_language_model_is_not_judged() -> None:
    with pytest.raises(NotSteered, match="the server did not call the kit's language model"):
        play("never-asks", "polite", "accept A")


@pytest.mark.real
def test_an_agent_that_wants_a_login_is_told_with_its_ways_to_log_in() -> None:
    with pytest.raises(JudgementStopped, match=r"Authentication required.*--auth.*by-hand") as stopped:
        play("wants-login", "polite", "accept A")
    assert isinstance(stopped.value.__cause__, NotRunning)


def test_every_flaw_is_tried_somewhere() -> None:
    assert all(f'"{flaw}"' in Path(__file__).read_text() for flaw in FLAWS if flaw)


# --- its place

PROBE = """
import json, os, socket, sys, urllib.request
home = os.environ["HOME"]
found = {"home": home, "key": os.environ.get("KEY"), "config": open(home + "/c/f.json").read(),
         "proxy": os.environ.get("https_proxy")}
probe = socket.socket()
probe.settimeout(2)
try:
    probe.connect(("192.0.2.1", 80))
    found["network"] = "reached"
except OSError as error:
    found["network"] = type(error).__name__ if not isinstance(error, TimeoutError) else "timeout"
try:
    found["parent"] = probe.connect(("127.0.0.1", int(sys.argv[1]))) or "reached"
except OSError:
    found["parent"] = "none"
found["model"] = urllib.request.urlopen(os.environ["KEY"] + "/models").status
open(sys.argv[2], "w").write(json.dumps(found))
"""


@pytest.mark.parametrize("alone", [True, False])
def test_an_agent_has_a_home_of_its_own_and_no_network_but_the_language_model(tmp_path: Path, alone: bool) -> None:
    import json
    import socket

    from cancelmark.impl.adapters.agents import Agent

    async def scene() -> str:
        model = AcpAdapter.make_model()
        async with model:
            with socket.create_server(("127.0.0.1", 0)) as other:
                command = (sys.executable, "-c", PROBE, str(other.getsockname()[1]), str(tmp_path / "found"))
                files = {"c/f.json": '{"url": "{model_root}"}'}
                agent = Agent(AgentCommand(command, {"KEY": "{model_url}"}, files, alone=alone), model.url, model.serve)
                with pytest.raises(NotRunning, match="exited before it responded to initialize"):
                    await agent.start()
                home = agent.home.home
                await agent.close()
                assert not home.exists()
                found = json.loads((tmp_path / "found").read_text())
                assert found["home"] == str(home)
                assert found["key"] == model.url
                assert json.loads(found["config"]) == {"url": model.url.removesuffix("/v1")}
                assert found["model"] == 200
                if agent.network == "alone":
                    assert found["network"] not in ("reached", "timeout")
                    assert found["parent"] == "none"
                else:
                    assert found["proxy"] == NOWHERE
                return agent.network

    network = asyncio.run(scene())
    if alone and network != "alone":  # proxies that lead nowhere were there instead, which is less
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"no network namespace here: {network}")
    assert (network == "alone") == alone


# --- the command

def conform(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["conform", "acp", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.real
def test_the_command_says_what_is_broken_by_which_clause_and_how_to_see_it_again(
        capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = conform(capsys, "--mode", "polite", "--script", "accept A; cancel", "--times", "1", "--", *AGENT,
                           "error-for-cancelled")
    assert code == 1
    assert "Agents MUST catch these errors" in out
    assert "reproduce with: cancelmark conform acp --mode polite --script 'accept A; cancel' --times 5 -- " in out
    assert "'{model_url}' error-for-cancelled" in out


@pytest.mark.real
@pytest.mark.parametrize(("arguments", "says"), [
    ([], "the agent's command is missing"),
    (["--"], "the agent's command is missing"),
    (["--", "no-such-program"], "'no-such-program' is not on the PATH"),
    (["--env", "NAME", "--", "python3"], "--env NAME: expected NAME=VALUE"),
    (["--config", "../x=y", "--", "python3"], "--config ../x=y: expected PATH=FILE"),
    (["--config", "x=no-such-file", "--", "python3"], "--config: cannot read no-such-file: No such file"),
    (["--llm-port", "4", "--", "python3"], "--llm-port does not apply to conform acp"),
    (["--html", "x.html", "--", "python3"], "add --mode polite or --mode free"),
    (["--mode", "polite", "--", "true"], "true exited before it responded to initialize"),
    (["--mode", "polite", "--", *AGENT, "never-asks"], "--env NAME={model_url}"),
    (["--mode", "polite", "--", *AGENT[:-1], "http://127.0.0.1:9/v1"], "--env NAME={model_url}"),
])
def test_what_cannot_be_judged_is_refused_with_the_remedy(
        capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    code, _, err = conform(capsys, *arguments)
    assert code == 2
    assert says in err


def test_options_of_agents_are_refused_for_servers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "http://127.0.0.1:1", "--mode", "free"]) == 2
    assert "--mode applies only to agents" in capsys.readouterr().err


def test_the_jail_says_why_it_is_none(tmp_path: Path) -> None:
    """Where no namespace is made, the command gets proxies that lead nowhere, and the parent is told."""
    import socket

    from cancelmark.impl.adapters.agents import JAIL

    mine, its = socket.socketpair()
    with mine, its:
        done = subprocess.run(
            [sys.executable, "-I", JAIL, str(its.fileno()), "-1", sys.executable, "-c",
             "import os; print(os.environ['HTTPS_PROXY'], os.environ['NO_PROXY'])"],
            pass_fds=[its.fileno()], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["http://127.0.0.1:9", "127.0.0.1,localhost"]
        assert mine.recv(100) == b"not alone: the network was asked for"
