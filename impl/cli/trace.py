"""`cancelmark trace check`: checks whether the model allows a log."""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from os import fstat
from stat import S_ISREG
from typing import Any

from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

from cancelmark.conformance.trace.check import SHOWN, Rejected, TraceCheck, Undecided
from cancelmark.conformance.trace.records import BadTrace, Torn, TraceLine, read_lines
from cancelmark.model.calls import FAMILY as CALLS_OF_FAMILY
from cancelmark.model.protocol import FAMILY, REFERENCE

from ..files import UsageError
from .terminal import output, progress_bar
from .text import print_json
from .width import Help

DESCRIPTION = "Check the log of a server against the model."
CHECK = """\
Check a log, line by line, against the model. If the model does not allow the log, the output names the first offending
line, the states that the model could have been in before it, and the steps that it would have allowed there.

The log is NDJSON (one JSON object per line), optionally compressed with gzip; specs/trace.md documents every field.
Cancelmark's own traces (`serve --trace`, `Runtime(trace=…)`) are complete. The log of another server needs only these
five kinds of lines, with only these fields:

  {"action": "accept", "session": "s", "seq": 1, "run_id": "a"}   seq numbers the prompts in order of acceptance
  {"action": "cancel", "session": "s"}                            same for clear_queue; close and recover: no session
  {"action": "requeue", "seq": 1}                                 if a turn can be requeued after compaction
  {"action": "hold", "session": "s"}                              same for resume and stop
  {"effect": "end", "seq": 1, "outcome": "canceled"}              end_turn, error, canceled or folded; once per prompt

For the optional calls: stop may have "hold": true, accept may have "if_busy", and revoke, next and replace have a seq.

The steps in between are inferred. The log may also contain {"action": "enter", "seq": 1}, fail, settle, step, finish
(with an outcome, in place of the end) and {"effect": "start", "seq": 1}: the more lines, the stricter the check.

The last line is  lines=… prompts=… unfinished=… lives=… states=… seconds=… verdict=…  with one of the verdicts
  accepted      the model allows the log
  rejected      the model does not allow the log; exit 1
  undecided     the log omits too much: the result is inconclusive; exit 2
A malformed log is reported with the line and the remedy; exit 2.
"""

EXAMPLES = """\
examples:
  cancelmark trace check trace.ndjson
  cancelmark trace check --complete trace.ndjson.gz       the log omits no step
  journalctl -o cat -u my-server | my-converter | cancelmark trace check -
"""

PROTOCOLS = {protocol.name: protocol for protocol in (FAMILY, REFERENCE)}
EXIT = {"accepted": 0, "rejected": 1, "undecided": 2}
PAUSE = 2000  # lines between two updates of the progress bar


def add_options(parser: argparse.ArgumentParser) -> None:
    check = parser.add_subparsers(metavar="COMMAND", required=True).add_parser(
        "check", help="check whether the model allows a log", description=CHECK, epilog=EXAMPLES,
        formatter_class=Help)
    check.add_argument("file", metavar="FILE", help="the log; - for standard input")
    check.add_argument("--complete", action="store_true",
                       help="the log omits no step (implied if its lines are numbered with n)")
    check.add_argument("--protocol", choices=PROTOCOLS, default=FAMILY.name,
                       help="the calls that the server supports: family, every call (default), or ref, without "
                            f"{', '.join(CALLS_OF_FAMILY)} and if_busy")
    check.add_argument("--json", action="store_true", help="report as JSON")


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
        raise UsageError(f"{name}: the log is empty; expected one JSON object per line")
    told = report(name, check, wrong, time.perf_counter() - started)
    if arguments.json:
        print_json(told)
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
    """The lines of the file, with a progress bar on a terminal."""
    if not sys.stderr.isatty():
        yield read_lines(file)
        return
    status = fstat(file.fileno())
    size = status.st_size if S_ISREG(status.st_mode) else None
    bar = progress_bar(TextColumn("{task.fields[lines]:,} lines"), BarColumn(), TimeElapsedColumn())
    with bar:
        task = bar.add_task("", total=size, lines=0)

        def moving() -> Iterator[TraceLine | Torn]:
            for number, line in enumerate(read_lines(file)):
                if number % PAUSE == 0:
                    bar.update(task, lines=number, completed=file.tell() if size else 0)
                yield line

        yield moving()


def report(name: str, check: TraceCheck, wrong: Rejected | Undecided | None, seconds: float) -> dict[str, Any]:
    """The result as data for `--json`."""
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
    """Prints the result."""
    console = output()

    def say(text: str = "", style: str | None = None) -> None:
        console.print(text, markup=False, style=style)

    if isinstance(wrong, Rejected):
        say(f"{told['file']}: the model does not allow line {wrong.line.number}: {wrong.line}", "bold red")
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
                differs = [f"{field}: {model}, not {line}" for field, (model, line) in near.differs.items()]
                say(f"  {near.line:<{width}}  {'; '.join(differs)}".rstrip())
        say()
    elif wrong:
        say(f"{told['file']}: {wrong}", "yellow")
    else:
        kind = "complete log" if told["complete"] else "omitted steps were inferred"
        say(f"the model allows {told['file']} ({kind})", "green")
    for line in told["torn"]:
        say(f"line {line} is truncated, as after a crash; it was not checked")
    say(" ".join(f"{name}={told[name]}" for name in ("lines", "prompts", "unfinished", "lives", "states"))
        + f" seconds={told['seconds']:.2f} verdict={told['verdict']}")
