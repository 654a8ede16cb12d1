"""`cancelmark prove` as people and programs meet it."""

import json
import os
import re

import pytest
from support.commands import read_refusal, run_command, run_on_terminal

from cancelmark.impl.cli.main import main as cli
from cancelmark.model.properties import PROPERTIES

if os.environ.get("CI") != "true":
    pytest.importorskip("z3", reason="z3-solver is not installed: pip install 'cancelmark[prove]'")

from cancelmark.model.proof.actions import ACTIONS
from cancelmark.model.proof.invariant import CONSEQUENCES, INVARIANT, STEPS
from cancelmark.model.proof.prover import Judged, Obligation, Prover, Verdict

LAST_LINE = re.compile(r"obligations=(\d+) proved=(\d+) broken=(\d+) unknown=(\d+) seconds=[\d.]+ verdict=(\w+)")
OBLIGATIONS = len(INVARIANT) + len(ACTIONS) * (len(INVARIANT) + len(STEPS)) + len(CONSEQUENCES)


def test_every_property_is_proved_for_any_number_of_prompts_and_nothing_is_claimed_beside() -> None:
    done = run_command("prove", "--json")
    report = json.loads(done.stdout)
    assert done.stderr == "", "no progress bar in a pipe"
    assert (report["verdict"], report["obligations"], report["proved"]) == ("proved", OBLIGATIONS, OBLIGATIONS)
    assert {g["id"]: g["verdict"] for g in report["guarantees"]} == dict.fromkeys([p.id for p in PROPERTIES], "proved")
    assert [c["name"] for c in report["invariant"]] == [c.name for c in INVARIANT]
    assert report["empty"] == report["counterexamples"] == []
    assert set(report["not_proved"]) == {"delivery"}, "the guarantee of the specification that no property judges"


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


def test_what_the_solver_does_not_answer_is_no_proof(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    def judge(prover: Prover, obligation: Obligation) -> Judged:
        silent = obligation.claim.name == "apart" and obligation.action and obligation.action.name == "cancel"
        return Judged(obligation, Verdict.UNKNOWN if silent else Verdict.PROVED)

    monkeypatch.setattr(Prover, "judge", judge)
    assert cli(["prove"]) == 2
    out = capsys.readouterr().out
    assert re.search(r"isolation +unknown", out)
    assert "apart after cancel: no answer, and no small counterexample" in out
    last = LAST_LINE.fullmatch(out.splitlines()[-1])
    assert last
    assert last.groups()[2:] == ("0", "1", "unknown")


def test_an_empty_proof_is_no_proof(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Prover, "judge", lambda self, obligation: Judged(obligation, Verdict.PROVED))
    monkeypatch.setattr(Prover, "impossible_moves", lambda self: iter(["finish: active → done"]))
    assert cli(["prove"]) == 1
    assert "the proof is empty: never happens: finish: active → done" in capsys.readouterr().out


def test_bad_usage_is_refused_with_the_remedy() -> None:
    assert "--without nope: no such conjunct; choose one of seq-given, " in read_refusal("prove", "--without", "nope")
    for seconds in ("0", "nan", "inf"):
        assert "give a number of seconds from 0.001 to 86400" in read_refusal("prove", "--timeout", seconds)
    assert "cancelmark prove --without queue-has-a-turn" in run_command("prove", "--help").stdout
