"""`cancelmark trace check`: whether a log is a behaviour of the model."""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from os import fstat
from stat import S_ISREG
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from cancelmark.conformance.trace.check import SHOWN, Rejected, TraceCheck, Undecided
from cancelmark.conformance.trace.records import BadTrace, Torn, TraceLine, read_lines
from cancelmark.model.calls import FAMILY as CALLS_OF_FAMILY
from cancelmark.model.protocol import FAMILY, REFERENCE

from ..files import UsageError
from .terminal import output
from .width import Help

DESCRIPTION = """\
Judge a log, line by line: is it something that the model can do? If not, the first line that is not is named, with the
states that the model could have been in before it, and what it would have allowed there.

The log is NDJSON, one JSON object a line, compressed with gzip or not; specs/trace.md has every field. Cancelmark's own
traces (`serve --trace`, `Runtime(trace=…)`) are complete. A log of another server needs five kinds of lines, with no
more fields than these:

  {"action": "accept", "session": "s", "seq": 1, "run_id": "a"}   seq: the number of the prompt, in order of acceptance
  {"action": "cancel", "session": "s"}                            and so clear_queue; close and recover have no session
  {"action": "requeue", "seq": 1}                                 if its turns can go on after a summary
  {"action": "hold", "session": "s"}                              and so resume, stop (and "hold": true); revoke, next
                                                                  and replace have a seq; accept may have "if_busy"
  {"effect": "end", "seq": 1, "outcome": "canceled"}              end_turn, error, canceled or folded: once a prompt

What else happened in between is inferred: {"action": "enter", "seq": 1}, fail, settle, step, finish (with an outcome;
instead of the end) and {"effect": "start", "seq": 1} may be there or not. The more there is, the more is judged.

The last line is  lines=… prompts=… unfinished=… lives=… states=… seconds=… verdict=…  with one of the verdicts
  accepted      it is a behaviour of the model
  rejected      it is not; exit 1
  undecided     too much is left out: nothing is claimed; exit 2
A file that is no such log is refused with the line and the remedy; exit 2.
"""

EPILOG = """\
examples:
  cancelmark trace check trace.ndjson
  cancelmark trace check --complete trace.ndjson.gz       nothing may have been left out
  journalctl -o cat -u my-server | my-converter | cancelmark trace check -
"""

PROTOCOLS = {protocol.name: protocol for protocol in (FAMILY, REFERENCE)}
EXIT = {"accepted": 0, "rejected": 1, "undecided": 2}
PAUSE = 2000  # lines between two looks at the progress


def add_parser(commands: Any) -> None:
    trace = commands.add_parser("trace", description="Judge the log of a server.")
    check = trace.add_subparsers(metavar="COMMAND", required=True).add_parser(
        "check", help="tell whether a log is a behaviour of the model", description=DESCRIPTION, epilog=EPILOG,
        formatter_class=Help)
    check.add_argument("file", metavar="FILE", help="the log; - for standard input")
    check.add_argument("--complete", action="store_true",
                       help="no step is left out (a log whose lines are numbered by n says so itself)")
    check.add_argument("--protocol", choices=PROTOCOLS, default=FAMILY.name,
                       help="what the server may do: family, which has every call (default), or ref, which has no "
                            f"{', '.join(CALLS_OF_FAMILY)} nor if_busy")
    check.add_argument("--json", action="store_true", help="report as JSON")
    check.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    name = "standard input" if arguments.file == "-" else arguments.file
    check = TraceCheck(arguments.complete, PROTOCOLS[arguments.protocol])
    wrong: Rejected | Undecided | None = None
    started = time.perf_counter()
    try:
        with open_file(arguments.file) as file, watch_lines(file) as lines:
            for line in lines:
                check.take(line)
    except (Rejected, Undecided) as reason:
        wrong = reason
    except BadTrace as bad:
        raise UsageError(f"{name}: {bad}") from bad
    if not check.lines:
        raise UsageError(f"{name}: there is no line in it; give the log of a server, one JSON object a line")
    told = report(name, check, wrong, time.perf_counter() - started)
    if arguments.json:
        print(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        show(told, wrong)
    return EXIT[told["verdict"]]


@contextmanager
def open_file(name: str) -> Iterator[BufferedReader]:
    if name == "-":
        yield sys.stdin.buffer  # type: ignore[misc]
        return
    try:
        file = open(name, "rb")  # noqa: SIM115
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}") from error
    with file:
        yield file


@contextmanager
def watch_lines(file: BufferedReader) -> Iterator[Iterable[TraceLine | Torn]]:
    """The lines of the file; on a terminal, with a bar that shows how far it is read."""
    if not sys.stderr.isatty():
        yield read_lines(file)
        return
    status = fstat(file.fileno())
    size = status.st_size if S_ISREG(status.st_mode) else None
    bar = Progress(TextColumn("{task.fields[lines]:,} lines"), BarColumn(), TimeElapsedColumn(),
                   console=Console(stderr=True), transient=True)
    with bar:
        task = bar.add_task("", total=size, lines=0)

        def moving() -> Iterator[TraceLine | Torn]:
            for number, line in enumerate(read_lines(file)):
                if number % PAUSE == 0:
                    bar.update(task, lines=number, completed=file.tell() if size else 0)
                yield line

        yield moving()


def report(name: str, check: TraceCheck, wrong: Rejected | Undecided | None, seconds: float) -> dict[str, Any]:
    """The result for programs."""
    verdict = "accepted" if wrong is None else "rejected" if isinstance(wrong, Rejected) else "undecided"
    told: dict[str, Any] = {
        "file": name, "verdict": verdict, "lines": check.lines, "complete": check.complete, "prompts": check.accepted,
        "unfinished": len(check.unfinished), "lives": check.lives, "states": check.most, "torn": check.torn,
        "seconds": round(seconds, 3)}
    if isinstance(wrong, Rejected):
        told["rejected"] = {
            "line": wrong.line.number, "says": str(wrong.line), "why": wrong.why, "session": wrong.session,
            "states": list(wrong.states), "nearest": [{"line": near.line, "differs": {
                field: {"model": model, "line": line} for field, (model, line) in near.differs.items()}}
                for near in wrong.nearest]}
    elif wrong:
        told["undecided"] = {"line": wrong.line.number, "session": wrong.session, "why": str(wrong)}
    return told


def show(told: dict[str, Any], wrong: Rejected | Undecided | None) -> None:
    """The result for people."""
    console = output()

    def say(text: str = "", style: str | None = None) -> None:
        console.print(text, markup=False, style=style)

    if isinstance(wrong, Rejected):
        say(f"{told['file']}: line {wrong.line.number} is not what the model can do: {wrong.line}", "bold red")
        say(wrong.why)
        if wrong.states:
            more = f", or one of {len(wrong.states) - SHOWN:,} others" if len(wrong.states) > SHOWN else ""
            say(f"\nbefore it, session {wrong.session} {'was' if len(wrong.states) == 1 else 'could have been'}:")
            for number, state in enumerate(wrong.states[:SHOWN], 1):
                say(f"  {state}{more if number == SHOWN else ''}")
        if wrong.nearest:
            say("\nwhat the model allows there, the nearest first:")
            width = max(len(near.line) for near in wrong.nearest)
            for near in wrong.nearest:
                differs = [f"{field}: {model}, and not {line}" for field, (model, line) in near.differs.items()]
                say(f"  {near.line:<{width}}  {'; '.join(differs)}".rstrip())
        say()
    elif wrong:
        say(f"{told['file']}: {wrong}", "yellow")
    else:
        kind = "complete" if told["complete"] else "steps that it leaves out inferred"
        say(f"{told['file']} is a behaviour of the model ({kind})", "green")
    for line in told["torn"]:
        say(f"line {line} ends in the middle, as after a crash; it is not judged")
    say(" ".join(f"{name}={told[name]}" for name in ("lines", "prompts", "unfinished", "lives", "states"))
        + f" seconds={told['seconds']:.2f} verdict={told['verdict']}")
