"""`cancelmark prove`: the guarantees for any number of prompts, by induction."""

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from cancelmark.model.family_properties import EVERY_PROPERTY

from ..files import UsageError
from .solver import open_solver
from .terminal import output, plain_table, progress_bar
from .text import print_json

if TYPE_CHECKING:
    from cancelmark.model.proof.prover import Hollow, ObligationResult, Prover

DESCRIPTION = """\
Prove the guarantees without bounds: for any number of prompts, cancels, sessions and crashes, and for any combination
of the features that the server offers; with the feature ask, for any number of questions that turns ask. An SMT solver
shows that an invariant holds initially, that every action preserves it, and that it implies each guarantee.
specs/formal.md explains the proof and its limits.

The last line is  obligations=… proved=… broken=… unknown=… seconds=… verdict=…  with one of the verdicts
  proved        every obligation is discharged, every guarantee follows, and the proof is not vacuous
  broken        an obligation fails (a smallest counterexample to induction is printed), or the proof is vacuous; exit 1
  unknown       the solver timed out, or a guarantee lacks a claim: the result is inconclusive; exit 2
Ctrl-C stops the proof: the result is inconclusive; exit 130.
"""

EPILOG = """\
examples:
  cancelmark prove
  cancelmark prove --without queue-has-a-turn     show why the invariant needs that conjunct
  cancelmark prove --json
"""


EXIT = {"proved": 0, "broken": 1, "unknown": 2}
STYLE = {"proved": "green", "broken": "bold red", "unproved": "yellow", "unknown": "yellow"}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--without", action="append", default=[], metavar="CONJUNCT",
                        help="drop this conjunct from the invariant and show what breaks; may be repeated")
    parser.add_argument("--timeout", type=float, default=20, metavar="SECONDS",
                        help="time limit per solver query (default: 20)")
    parser.add_argument("--json", action="store_true", help="report as JSON")


def run(arguments: argparse.Namespace) -> int:
    from cancelmark.model.proof.invariant import INVARIANT
    from cancelmark.model.proof.prover import Prover

    known = [claim.name for claim in INVARIANT]
    for name in arguments.without:
        if name not in known:
            raise UsageError(f"--without {name}: no such conjunct; choose one of {', '.join(known)}")
    if not 0.001 <= arguments.timeout <= 86400:
        raise UsageError(f"--timeout {arguments.timeout:g}: must be from 0.001 to 86400 seconds")

    prover = Prover(invariant=[claim for claim in INVARIANT if claim.name not in arguments.without],
                    timeout=arguments.timeout)
    started = time.perf_counter()
    judged, hollows = ask_solver(prover)
    told = report(prover, prover.complete(judged), hollows, time.perf_counter() - started)
    if arguments.json:
        print_json(told)
    else:
        show(judged, told)
    return EXIT[told["verdict"]]


def ask_solver(prover: "Prover") -> tuple[list["ObligationResult"], list["Hollow"]]:
    """The verdict on every obligation, and any reason why the proof is vacuous. Shows a bar on a terminal."""
    from cancelmark.model.proof.prover import ObligationResult

    obligations = prover.obligations()
    judged: list[ObligationResult] = []
    bar = progress_bar(TextColumn("proving"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                       TextColumn("{task.fields[now]}"))
    with bar, open_solver([claim.name for claim in prover.invariant], prover.timeout) as answers:
        task = bar.add_task("proving", total=len(obligations), now="")
        for obligation in obligations:
            bar.update(task, now=str(obligation))
            judged.append(ObligationResult(obligation, *next(answers)))
            bar.advance(task)
        bar.update(task, now="checking that the proof is not vacuous")
        return judged, next(answers)


def report(
    prover: "Prover", judged: Sequence["ObligationResult"], hollows: Sequence["Hollow"], seconds: float,
) -> dict[str, Any]:
    """The result as data for `--json`."""
    from cancelmark.model.proof.invariant import CONSEQUENCES, GUARANTEES, REMARKS, UNPROVED
    from cancelmark.model.proof.steps import STEPS

    counts = Counter(one.verdict.value for one in judged)
    guarantees = prover.guarantees(judged)
    found = {*counts, *(one.verdict.value for one in hollows), *(v.value for v in guarantees.values())}
    verdict = "broken" if "broken" in found else "proved" if found == {"proved"} else "unknown"

    def claims(chosen: Sequence[Any]) -> list[dict[str, str]]:
        return [{"name": c.name, "sentence": c.sentence, "verdict": claim_verdict(c.name, judged)} for c in chosen]

    return {
        "verdict": verdict, "obligations": len(judged), "proved": counts["proved"], "broken": counts["broken"],
        "unknown": counts["unknown"], "seconds": round(seconds, 3),
        "invariant": claims(prover.invariant), "steps": claims(STEPS), "consequences": claims(CONSEQUENCES),
        "guarantees": [{"id": p.id, "sentence": p.sentence, "verdict": guarantees[p.id].value,
                        "claims": list(GUARANTEES[p.id]), "remark": REMARKS.get(p.id)}
                       for p in EVERY_PROPERTY],
        "not_proved": dict(UNPROVED), "empty": [one.what for one in hollows if one.verdict.value == "broken"],
        "perhaps_empty": [one.what for one in hollows if one.verdict.value != "broken"],
        "counterexamples": [
            {"obligation": str(one.obligation), "action": c.action, "before": picture(c.before),
             "after": picture(c.after), "asked": list(c.asked)} for one in judged if (c := one.counterexample)],
    }


def picture(state: Any) -> dict[str, Any]:
    return {**state._asdict(), "prompts": [p._asdict() for p in state.prompts],
            "questions": [x._asdict() for x in state.questions]}


def claim_verdict(name: str, judged: Sequence["ObligationResult"]) -> str:
    verdicts = {one.verdict.value for one in judged if one.obligation.claim.name == name}
    return next(v for v in ("broken", "unknown", "proved") if v in verdicts)


def show(judged: Sequence["ObligationResult"], told: dict[str, Any]) -> None:
    """Prints the result."""
    console = output()

    def table(heading: str, rows: Sequence[dict[str, Any]], name: str) -> None:
        shown = plain_table(heading, "verdict", "what it says", wrapped=["what it says"])
        for row in rows:
            shown.add_row(row[name], f"[{STYLE[row['verdict']]}]{row['verdict']}[/]", row["sentence"])
        console.print(shown, soft_wrap=False)
        console.print()

    table("invariant", told["invariant"], "name")
    table("each step", told["steps"], "name")
    table("follows", told["consequences"], "name")
    table("guarantee", told["guarantees"], "id")
    for row in told["guarantees"]:
        if row["remark"]:
            console.print(f"{row['id']}: {row['remark']}")
    for id, reason in told["not_proved"].items():
        console.print(f"not proved: {id}: {reason}")
    for line in told["empty"]:
        console.print(f"[bold red]the proof is vacuous:[/] {line}", markup=True)
    for line in told["perhaps_empty"]:
        console.print(f"[yellow]the solver cannot rule out that the proof is vacuous:[/] {line}", markup=True)
    if not told["empty"] and not told["perhaps_empty"]:
        console.print("not vacuous: every action and every transition is possible in some state that satisfies the "
                      "invariant, and every claim can fail")
    for one in judged:
        if one.counterexample:
            console.print(f"\n[bold red]{one.obligation}[/]: a smallest counterexample to induction")
            console.print(one.counterexample.text, markup=False, end="")
        elif one.verdict.value == "unknown":
            console.print(f"\n[yellow]{one.obligation}[/]: the solver gave no answer, and no small counterexample was "
                          "found; raise --timeout")
    console.print(f"obligations={told['obligations']} proved={told['proved']} broken={told['broken']} "
                  f"unknown={told['unknown']} seconds={told['seconds']:.2f} verdict={told['verdict']}")
