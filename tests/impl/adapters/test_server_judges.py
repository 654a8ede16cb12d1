"""The judges of the LangGraph API and of A2A, on a small server of our own: the good one conforms, and each bad one is
caught."""

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from support.budget import long
from support.small_server import FLAWS, small_server

from cancelmark.conformance.adapter import Adapter, Ended
from cancelmark.conformance.adapter.process import free_port
from cancelmark.conformance.judging.guarantees import OF_THE_FAMILY
from cancelmark.conformance.kit import PROFILES, judge
from cancelmark.conformance.profile import Profile
from cancelmark.conformance.report import Decision, Report, Status
from cancelmark.impl.adapters.a2a import a2a_adapter
from cancelmark.impl.adapters.langgraph import CLAUSES, OVERRULED, langgraph_adapter
from cancelmark.impl.cli.conform.servers import POLICIES
from cancelmark.impl.cli.main import main

SHORT = replace(PROFILES["quick"], histories=20, repeats=1, races=2, shrinks=0, limit=8, decisive=1)
WIRES = ("enqueue", "reject", "interrupt", "stream", "a2a")


def adapter_of(url: str, wire: str, patience: float = 1.0) -> type[Adapter]:
    if wire == "a2a":
        agent = a2a_adapter(f"{url}/rpc", "1.0")
        agent.naming = 0.5
        kind: type[Adapter] = agent
    else:
        ends = "stream" if wire == "stream" else "join"
        kind = langgraph_adapter(url, "agent", "enqueue" if wire == "stream" else wire, ends)
    kind.patience = patience
    return kind


def play(
    wire: str, flaw: str, *scripts: str, profile: Profile | str = "quick", patience: float = 1.0,
) -> Report:
    port = free_port()
    with small_server(f"http://127.0.0.1:{port}/v1", flaw) as url:
        return judge(
            adapter_of(url, wire, patience), llm_port=port, scripts=scripts or None, times=1, profile=profile)


@pytest.mark.parametrize("wire", WIRES)
def test_a_good_server_conforms(wire: str) -> None:
    report = play(wire, "", profile=SHORT)
    assert report.decision is (Decision.CONFORMS if wire in ("enqueue", "stream") else Decision.NOTHING_BROKEN), report
    assert set(report.kept) >= {"no-lost-cancel", "cancel-stops", "attribution", "some-terminal", "one-terminal"}


@pytest.mark.smoke
@pytest.mark.parametrize(("wire", "flaw", "script", "guarantee"), [
    ("enqueue", "loses-early-cancel", "accept A, cancel", "no-lost-cancel"),
    ("enqueue", "error-for-canceled", "accept A; cancel", "attribution"),
    ("enqueue", "swallows-second", "accept A; accept B; release", "all-done"),
    ("enqueue", "loses-early-cancel", "accept A, revoke A", "revoke-exact"),
    ("enqueue", "revokes-all", "accept A; accept B; revoke A; release", "revoke-exact"),
    ("reject", "only-enqueues", "accept A; accept B", "reject"),
    ("interrupt", "only-enqueues", "accept A; accept B", "send-now"),
    long("stream", "hides-waiting", "accept A; accept B; cancel", "some-terminal"),
    ("a2a", "loses-early-cancel", "accept A; accept B; cancel", "no-lost-cancel"),
    ("a2a", "error-for-canceled", "accept A; cancel", "attribution"),
    ("a2a", "says-completed", "accept A; cancel", "one-terminal"),
    long("a2a", "late-id", "accept A; accept B; cancel", "no-lost-cancel"),
])
def test_a_bad_server_is_caught(wire: str, flaw: str, script: str, guarantee: str) -> None:
    report = play(wire, flaw, script, patience=0.3)
    assert guarantee in report.broken, report
    assert "protocol text: " in report.verdict(guarantee).story


@pytest.mark.parametrize(("policy", "ends"), [
    ("enqueue", "A end_turn, B end_turn"), ("reject", "A end_turn, B refused"),
    ("interrupt", "A canceled, B end_turn")])
def test_a_policy_is_taken_for_what_it_is(policy: str, ends: str) -> None:
    report = play(policy, "", "accept A; accept B; release; release")
    assert not report.broken, report
    assert report.replays[0].ends == {ends: 1}


def test_what_a_policy_says_is_judged_and_a_run_is_canceled_alone() -> None:
    """With the guarantees of the family that are judged with each policy."""
    for policy, script, kept in (("enqueue", "accept A; accept B; accept C; revoke B", {"revoke-exact"}),
                                 ("reject", "accept A; accept B; revoke A", {"revoke-exact", "reject"}),
                                 ("interrupt", "accept A; accept B", {"send-now"})):
        report = play(policy, "", script)
        assert not report.broken, report
        assert kept <= set(report.kept), report
        offered = {"enqueue": {"revoke-exact"}}.get(policy, {"revoke-exact"} | kept)
        assert set(report.of(Status.NOT_OFFERED)) == OF_THE_FAMILY - offered


RUN_STATUS = ("pending", "running", "error", "success", "timeout", "interrupted")  # of the API's schema


@pytest.mark.parametrize("status", [*RUN_STATUS, "paused"])
def test_every_status_of_a_run_is_an_end_or_is_waited_for_or_is_refused(status: str) -> None:
    class Looked(langgraph_adapter("http://x", "agent", "enqueue", "join")):  # type: ignore[misc]
        async def _look(self, thread: str, run: str) -> str:
            looks.append(status)
            return status if len(looks) < 3 else "success"

    async def scene() -> Ended:
        made = Looked()
        made.running, made.names = {"t": {"r"}}, {"r": "A"}
        await made._tell_end("t", "r")
        assert made.running == {"t": set()}
        return await anext(made.events())

    looks: list[str] = []
    if status not in RUN_STATUS:
        with pytest.raises(ValueError, match="'paused', which the API does not define"):
            asyncio.run(scene())
        return
    end = asyncio.run(scene())
    waited = status in ("pending", "running")
    outcomes = {"error": "error", "timeout": "error", "interrupted": "canceled"}
    assert (end.name, end.outcome) == ("A", outcomes.get(status, "end_turn"))
    assert len(looks) == (3 if waited else 1)


def test_who_interrupts_promises_no_end_to_the_first() -> None:
    assert set(POLICIES) == set(CLAUSES)
    assert all(OVERRULED.isdisjoint(adapter_of("http://x", wire).claims) == (wire == "interrupt") for wire in WIRES)


def test_a_cancel_that_is_not_supported_is_refused_and_nothing_was_canceled() -> None:
    report = play("a2a", "no-cancel", "accept A; cancel")
    assert not report.broken, report
    assert report.replays[0].ends == {"A end_turn": 1}


def test_every_flaw_is_tried_somewhere() -> None:
    assert all(f'"{flaw}"' in Path(__file__).read_text() for flaw in FLAWS if flaw)


# --- the commands

def conform(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["conform", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize("kind", ["langgraph", "a2a"])
def test_the_commands_say_what_is_broken_and_how_to_see_it_again(
        capsys: pytest.CaptureFixture[str], kind: str) -> None:
    port = free_port()
    with small_server(f"http://127.0.0.1:{port}/v1", "error-for-canceled") as url:
        code, out, _ = conform(capsys, kind, url, "--llm-port", str(port), "--script", "accept A; cancel", "--times",
                               "1")
    assert code == 1
    assert "attribution is broken" in out
    assert f"reproduce with: cancelmark conform {kind} {url} --llm-port {port} --script 'accept A; cancel'" in out


@pytest.mark.parametrize(("arguments", "says"), [
    (["langgraph"], "the server's URL is missing or invalid"),
    (["a2a", "127.0.0.1:4"], "the server's URL is missing or invalid"),
    (["langgraph", "{dead}"], "does not respond (ConnectError); check the URL"),
    (["langgraph", "{url}", "--assistant", "nobody"], "--assistant nobody: unknown at {url}; choose from agent"),
    (["langgraph", "{url}/x"], "is not a LangGraph API server"),
    (["langgraph", "{url}", "--token", "x"], "--token does not apply to conform langgraph"),
    (["a2a", "{url}", "--policy", "reject"], "--policy does not apply to conform a2a"),
    (["a2a", "{url}"], "does not support streaming, according to its agent card"),
    (["a2a", "{url}/x"], "does not support streaming"),
    (["langgraph", "{url}", "{url}"], "give exactly one URL"),
    (["acp", "{url}"], "give the agent's command after --"),
    (["{url}", "--ends", "join"], "--ends applies only to LangGraph"),
])
def test_what_cannot_be_judged_is_refused_with_the_remedy(
        capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    with small_server("http://127.0.0.1:1/v1", "no-streaming") as url, socket.create_server(("127.0.0.1", 0)) as dead:
        dead_url = f"http://127.0.0.1:{dead.getsockname()[1]}"
        dead.close()
        names = {"{url}": url, "{dead}": dead_url}
        code, _, err = conform(capsys, *[_filled(word, names) for word in arguments])
    assert code == 2
    assert _filled(says, names) in err


def _filled(text: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(name, value)
    return text
