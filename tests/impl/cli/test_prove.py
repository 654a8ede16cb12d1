"""`cancelmark prove` as people and programs meet it."""

import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from support.commands import COMMAND, Said, read_refusal, run_command, run_on_terminal

from cancelmark.impl.cli import prove
from cancelmark.impl.cli.main import main as cli
from cancelmark.impl.cli.solver import open_solver
from cancelmark.impl.files import UsageError
from cancelmark.model.family_properties import ASK_PROPERTIES, FAMILY_PROPERTIES
from cancelmark.model.properties import PROPERTIES

if os.environ.get("CI") != "true":
    pytest.importorskip("z3", reason="z3-solver is not installed: pip install 'cancelmark[prove]'")

import z3

from cancelmark.model.proof import prover as prover_module
from cancelmark.model.proof.actions import ACTIONS
from cancelmark.model.proof.invariant import CONSEQUENCES, INVARIANT
from cancelmark.model.proof.prover import Hollow, Obligation, ObligationResult, Prover, Verdict
from cancelmark.model.proof.steps import STEPS

LAST_LINE = re.compile(r"obligations=(\d+) proved=(\d+) broken=(\d+) unknown=(\d+) seconds=[\d.]+ verdict=(\w+)")
OBLIGATIONS = len(INVARIANT) + len(ACTIONS) * (len(INVARIANT) + len(STEPS)) + len(CONSEQUENCES)


@pytest.mark.real
def test_every_property_is_proved_for_any_number_of_prompts_and_nothing_is_claimed_beside(proof: Said) -> None:
    assert proof.stderr == "", "no progress bar in a pipe"
    verdicts = re.findall(r"^([\w-]+) +(proved|unproved|broken|unknown) ", proof.stdout, re.MULTILINE)
    assert verdicts == [(name, "proved") for name in (
        *(claim.name for claim in (*INVARIANT, *STEPS, *CONSEQUENCES)),
        *(p.id for p in (*PROPERTIES, *FAMILY_PROPERTIES, *ASK_PROPERTIES)))]
    assert "not vacuous: every action and every transition is possible in some state" in proof.stdout
    assert re.findall(r"^not proved: (\w+)", proof.stdout, re.MULTILINE) == ["delivery"], (
        "the guarantee of the specification that no property judges")
    last = LAST_LINE.fullmatch(proof.stdout.splitlines()[-1])
    assert last
    assert last.groups() == (str(OBLIGATIONS), str(OBLIGATIONS), "0", "0", "proved")


def test_without_a_conjunct_a_person_at_a_terminal_sees_what_it_was_good_for() -> None:
    shown = run_on_terminal("prove", "--without", "queue-has-a-turn", code=1)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode()).replace("\r\n", "\n")
    assert f"/{OBLIGATIONS - len(ACTIONS) - 1}" in text, "a bar, out of so many"
    assert b"\x1b[1;31mbroken" in shown
    assert re.search(r"fifo +broken", text)
    assert re.search(r"single-active +proved", text)
    assert "  A  seq 1     queued     queued\n  B  seq 2     accepted   active\n" in text
    last = LAST_LINE.fullmatch(text.splitlines()[-1])
    assert last
    assert last.groups()[2:] == ("3", "0", "broken")


# --- what is not known is not proved, and not broken

def proved(obligation: Obligation) -> ObligationResult:
    return ObligationResult(obligation, Verdict.PROVED)


@dataclass
class Answers:
    """What the command is told instead of asking a solver, and what it says then."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, code: int, *arguments: str, judged: Callable[[Prover], list[ObligationResult]] | None = None,
                 hollows: Sequence[Hollow] = ()) -> str:
        judge_all = judged or (lambda prover: [proved(o) for o in prover.obligations()])
        self.monkeypatch.setattr(prove, "ask_solver", lambda prover: (judge_all(prover), list(hollows)))
        assert cli(["prove", *arguments]) == code
        return self.capsys.readouterr().out


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Answers:
    return Answers(monkeypatch, capsys)


def verdict_of(out: str) -> tuple[str | Any, ...]:
    last = LAST_LINE.fullmatch(out.splitlines()[-1])
    assert last
    return last.groups()[2:]


def test_a_proof_as_data(answers: Answers) -> None:
    report = json.loads(answers(0, "--json"))
    assert (report["verdict"], report["obligations"], report["proved"]) == ("proved", OBLIGATIONS, OBLIGATIONS)
    assert {g["id"]: g["verdict"] for g in report["guarantees"]} == dict.fromkeys(
        [p.id for p in (*PROPERTIES, *FAMILY_PROPERTIES, *ASK_PROPERTIES)], "proved")
    assert [c["name"] for c in report["invariant"]] == [c.name for c in INVARIANT]
    assert report["empty"] == report["counterexamples"] == []
    assert set(report["not_proved"]) == {"delivery"}


def test_what_the_solver_does_not_answer_is_no_proof(answers: Answers) -> None:
    def judged(prover: Prover) -> list[ObligationResult]:
        return [ObligationResult(o, Verdict.UNKNOWN if str(o) == "apart after cancel" else Verdict.PROVED)
                for o in prover.obligations()]

    out = answers(2, judged=judged)
    assert re.search(r"isolation +unknown", out)
    assert "apart after cancel: the solver gave no answer, and no small counterexample" in out
    assert verdict_of(out) == ("0", "1", "unknown")


def test_a_solver_that_never_knows_proves_nothing_and_breaks_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    class Silent(z3.Solver):
        def check(self, *_: object) -> z3.CheckSatResult:
            return z3.unknown

    monkeypatch.setattr(z3, "Solver", Silent)
    monkeypatch.setattr(Prover, "question", lambda *_: (z3.BoolVal(True), None))  # nobody reads the formulas
    monkeypatch.setattr(prover_module, "ROUNDS", 1)
    monkeypatch.setattr(prover_module, "instances", lambda universe, question, rounds: [question])
    monkeypatch.setattr(prover_module, "SIZES", ((1, 1),))
    monkeypatch.setattr(prove, "ask_solver", lambda prover: (
        [prover.judge(o) for o in prover.obligations()], list(prover.hollows())))
    assert cli(["prove", "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert (report["verdict"], report["unknown"], report["proved"]) == ("unknown", OBLIGATIONS, 0)
    assert {g["verdict"] for g in report["guarantees"]} == {"unknown"}
    assert report["empty"] == []
    assert {"never happens: cancel", "holds of anything: apart"} <= set(report["perhaps_empty"])


def about(name: str) -> Callable[[Obligation], bool]:
    return lambda o: o.claim.name == name


@pytest.mark.parametrize(("without", "missing"), [
    (about("apart"), len(ACTIONS)), (about("seq-given"), len(ACTIONS) + 1), (about("rest-is-done"), 1),
    (lambda o: str(o) == "one-active after enter", 1), (lambda o: True, OBLIGATIONS)],
    ids=["a step", "a conjunct", "a consequence", "one action", "everything"])
def test_a_claim_without_a_verdict_is_unknown(
    answers: Answers, without: Callable[[Obligation], bool], missing: int,
) -> None:
    out = answers(2, judged=lambda prover: [proved(o) for o in prover.obligations() if not without(o)])
    assert verdict_of(out) == ("0", str(missing), "unknown")


def test_a_guarantee_that_lacks_a_claim_is_not_proved(answers: Answers) -> None:
    out = answers(2, "--without", "folded-has-no-id")
    assert re.search(r"no-absorption +unproved", out)
    assert verdict_of(out) == ("0", "0", "unknown")


def test_an_empty_proof_is_no_proof_and_one_that_may_be_is_none_either(answers: Answers) -> None:
    move = "never happens: finish: active → done"
    out = answers(1, hollows=[Hollow(move, Verdict.BROKEN)])
    assert f"the proof is vacuous: {move}" in out
    assert verdict_of(out)[-1] == "broken"
    out = answers(2, hollows=[Hollow(move, Verdict.UNKNOWN)])
    assert f"the solver cannot rule out that the proof is vacuous: {move}" in out
    assert "not vacuous:" not in out
    assert verdict_of(out) == ("0", "0", "unknown")


# --- the solver's process

def dies(pipe: Connection, invariant: Sequence[str], timeout: float) -> None:
    pipe.send((Verdict.PROVED, None))
    pipe.close()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.real
def test_a_solver_that_is_killed_is_noticed() -> None:
    with open_solver([], 1, dies) as told:
        assert next(told)[0] is Verdict.PROVED
        with pytest.raises(UsageError, match="was killed, perhaps for lack of memory; the result is inconclusive"):
            next(told)


def solvers_of(pid: int) -> list[int]:
    done = subprocess.run(["ps", "-ww", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True, text=True,
                          check=False)
    return [int(line.split()[0]) for line in done.stdout.splitlines() if "spawn_main" in line]


@pytest.mark.parametrize("everywhere", [False, True], ids=["the command", "its whole group, as a terminal does"])
@pytest.mark.parametrize("stuck", [False, True], ids=["between questions", "in a question that has no end"])
def test_ctrl_c_ends_it_at_once_and_claims_nothing(everywhere: bool, stuck: bool) -> None:
    master, slave = pty.openpty()
    running = subprocess.Popen([*COMMAND, "prove"], stdout=slave, stderr=slave, start_new_session=True,
                               env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"})
    os.close(slave)
    shown = b""
    while b" after " not in shown:  # the bar speaks of a step: the solver is at work
        shown += os.read(master, 4096)
    [solver] = solvers_of(running.pid)
    if stuck:
        os.kill(solver, signal.SIGSTOP)
    (os.killpg if everywhere else os.kill)(running.pid, signal.SIGINT)
    with suppress(OSError):  # the other end is closed
        while more := os.read(master, 4096):
            shown += more
    os.close(master)
    assert running.wait(60) == 130
    assert b"cancelmark: interrupted" in shown
    assert b"verdict=" not in shown
    assert b"Traceback" not in shown
    assert not Path(f"/proc/{solver}").exists()


def test_bad_usage_is_refused_with_the_remedy() -> None:
    assert "--without nope: no such conjunct; choose one of seq-given, " in read_refusal("prove", "--without", "nope")
    for seconds in ("0", "nan", "inf"):
        assert "must be from 0.001 to 86400 seconds" in read_refusal("prove", "--timeout", seconds)
    assert "cancelmark prove --without queue-has-a-turn" in run_command("prove", "--help").stdout
