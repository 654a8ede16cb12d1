"""`cancelmark conform`: which of the guarantees does a server keep?"""

import argparse
import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from ...files import UsageError, write
from ..terminal import output, progress_bar
from ..width import Help
from . import agents, servers
from .agents import MODES, find_agents
from .target import find_target

if TYPE_CHECKING:
    from cancelmark.conformance.kit import Progress
    from cancelmark.conformance.report import Report

    from .target import Target

DESCRIPTION = """\
Judge a server that speaks the wire of specs/wire.md, or with --adapter any other: several clients send it prompts,
cancel, clear and watch, and what they see is held against the guarantees of specs/protocol.md. A guarantee is kept
(enough histories could have broken it, and none did), broken (the shortest history found is shown, with the command
that plays it again), not tested (and how much was), not observable on this server (and why), or not claimed. What is
about a call that the server does not have, such as a hold of the queue, is not offered.

The last line has the verdict. conforms: all that a server of its kind must keep was tested, and is kept.
nothing-broken: something of that was not tested; kept=12/29 says how much is kept. broken. unknown: nothing is claimed.

Exit 0: conforms, or nothing-broken. 1: something is broken. 2: nothing was tested, something that is required was not,
or the server cannot be judged. 130: interrupted, by Ctrl-C or SIGTERM; what was found until then is reported.
"""

EPILOG = """\
how turns are steered:
  Most races need a turn that lasts as long as it has to. With --llm-port the kit serves a language model of its own,
  which the server has to use: at http://127.0.0.1:PORT/v1, OpenAI-compatible, any key, any model name. For our own:

    OPENAI_API_KEY=none cancelmark serve --model openai --model-name turn --base-url http://127.0.0.1:4545/v1
    cancelmark conform http://127.0.0.1:4343 --llm-port 4545

  Without it the server's own turns are waited for, and what cannot be seen that way is reported as not observable.

several nodes of one cluster:
  conform URL URL URL judges them as one server: each call goes to a node that is drawn, and events are read at another.
  All of them use the language model of --llm-port.

other servers:
  conform langgraph URL judges a server of the LangGraph API, and conform a2a URL an agent of the Agent2Agent protocol.
  Give --llm-port, and start the server so that its language model is there.

  Another wire takes an adapter, a Python class that the kit makes without arguments: --adapter mine:MyAdapter or
  --adapter mine.py:MyAdapter. docs/adapters.md has a whole one to copy, and
  python -m pydoc cancelmark.conformance.adapter lists everything that an adapter can offer.

playing a finding again:
  Each finding ends with the command that plays it again, such as --script "accept A; cancel" --times 5, or, of a race,
  --until 60s: then gaps and orders vary from play to play. The report counts in how many plays the finding shows. In a
  script, `;` waits until the server is quiet, `,` does not wait, and
  `+` is at the same time. python -m pydoc cancelmark.conformance.playing.script has all words of a script.

A server that speaks our wire gets one workspace, with sessions of its own for each history: an empty directory, removed
afterwards, if the server is on this machine, and otherwise the path /cancelmark-conform-…. Its other workspaces are
left alone; --keep-open spares it the histories that close that workspace.
"""

STYLE = {"kept": "green", "broken": "bold red", "not tested": "yellow", "not observable": "yellow",
         "not claimed": "dim", "not offered": "dim"}
EXITS = {"conforms": 0, "nothing-broken": 0, "broken": 1, "unknown": 2}
INTERRUPTED = 130
UNITS = {"s": 1, "m": 60}
PROFILES = ("quick", "deep")
TELL = ("Tell the agent with --env NAME={model_url} or --config PATH=FILE, where {model_url} stands for that address; "
        "docs/judge.md has examples. Nothing is claimed")
EXPLAIN = {
    "polite": "Polite clients send one prompt at a time. Judged is what the text of the protocol promises.",
    "free": "Free clients send whatever they like. The text of the protocol is silent about a second prompt while one "
            "runs:\nwhat does not hold here breaks no promise.",
}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "conform", description=DESCRIPTION, epilog=EPILOG,
        formatter_class=Help)
    parser.add_argument("url", metavar="URL", nargs="?",
                        help="http://HOST:PORT, https://HOST or unix:PATH; or acp, and after -- how an agent starts; "
                        "or langgraph or a2a, and its URL")
    parser.add_argument("others", metavar="URL", nargs="*", help="of other nodes of the same cluster; or of a server "
                        "of the LangGraph API, or of an A2A agent")
    parser.add_argument("--adapter", metavar="NAME", help="judge the server behind module:Class or file.py:Class")
    parser.add_argument("--token", metavar="TOKEN", help="that the server wants")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="the same, in a file")
    parser.add_argument("--workspace", metavar="PATH", help="the server's workspace to use (default: see below)")
    parser.add_argument("--llm-port", type=int, metavar="PORT", help="serve the kit's language model here; see below")
    parser.add_argument("--profile", default="quick", choices=PROFILES,
                        help="quick: about a minute (default); deep: about five minutes, and what was left out is said")
    parser.add_argument("--only", action="append", metavar="GUARANTEE",
                        help="judge only this one; can be given more than once")
    parser.add_argument("--scenario", action="append", metavar="NAME",
                        help="try only this one; can be given more than once")
    parser.add_argument("--script", action="append", metavar="TEXT",
                        help="play only this, and count what shows; can be given more than once")
    parser.add_argument("--times", type=int, metavar="N", help="how often to play each --script (default: 5)")
    parser.add_argument("--until", type=seconds, metavar="60s", help="instead of --times: play each --script for so "
                        "long, its races with other gaps and in other orders")
    parser.add_argument("--list", action="store_true", help="list guarantees and scenarios, and judge nothing")
    parser.add_argument("--require", action="append", metavar="GUARANTEE,…", default=[],
                        help="exit 2 if nobody knows whether the server keeps these")
    parser.add_argument("--grace", type=float, metavar="SECONDS",
                        help="how long the server waits when nobody watches (serve --grace): watchers leave for longer")
    parser.add_argument("--keep-open", action="store_true", help="never close the workspace that the kit uses")
    parser.add_argument("--json", action="store_true", help="the report for programs")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the report as JUnit XML too")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as one page with pictures too")
    agents.add_options(parser)
    servers.add_options(parser)
    parser.set_defaults(run=run)


def seconds(text: str) -> float:
    """`60s` or `2m`, in seconds."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in UNITS else (text, "s")
    if not number.isdecimal() or not int(number):
        raise argparse.ArgumentTypeError(f"{text!r}: give a time such as 60s or 2m")
    return float(int(number) * UNITS[unit])


def run(arguments: argparse.Namespace) -> int:
    if arguments.list:
        show_list()
        return 0
    check_options(arguments)
    if arguments.url == "acp":
        if arguments.others:
            raise UsageError(f"conform acp: {arguments.others[0]:.80} is no agent: give its command after --")
        return judge_agent(arguments)
    if given := [name for name in (*agents.OPTIONS, "started") if getattr(arguments, name)]:
        what = f"--{given[0]}" if given[0] != "started" else f"-- {arguments.started[0]}"
        raise UsageError(f"{what:.80} is for agents: cancelmark conform acp [OPTIONS] -- COMMAND …")
    if arguments.url in servers.KINDS:
        report = judge_target(servers.find_server(arguments), arguments)
    else:
        if given := [name for name in servers.OPTIONS if getattr(arguments, name)]:
            raise UsageError(f"--{given[0]} is for other wires: cancelmark conform langgraph URL, or conform a2a URL")
        with find_target(arguments) as target:
            report = judge_target(target, arguments)
    if arguments.json:
        print(json.dumps(report.json(), indent=2))
    else:
        show(report)
    write_files(report, arguments)
    return exit_code(report)


def exit_code(report: "Report") -> int:
    return INTERRUPTED if report.interrupted else EXITS[report.decision.value]


def judge_agent(arguments: argparse.Namespace) -> int:
    """In each mode that is asked for. The worst of them counts."""
    reports = {}
    for target in find_agents(arguments):
        mode = next(mode for mode in MODES if f"--mode {mode}" in target.options)
        reports[mode] = judge_target(target, arguments)
        if not arguments.json:
            output().print(f"\n{EXPLAIN[mode]}\n", markup=False)
            show(reports[mode])
        write_files(reports[mode], arguments)
        if reports[mode].interrupted:
            break
    if arguments.json:
        print(json.dumps({"modes": {mode: report.json() for mode, report in reports.items()}}, indent=2))
    return worst({exit_code(report) for report in reports.values()})


def worst(exits: Collection[int]) -> int:
    """Of several judgements: interrupted, then broken, then not known, then well."""
    return next(code for code in (INTERRUPTED, 1, 2, 0) if code in exits)


def write_files(report: "Report", arguments: argparse.Namespace) -> None:
    from .junit import junit

    if arguments.junit:
        write(arguments.junit, junit(report))
    if arguments.html:
        from cancelmark.conformance.report.page import report_page

        write(arguments.html, report_page(report))


def required(arguments: argparse.Namespace) -> list[str]:
    return [name.strip() for names in arguments.require for name in names.split(",")]


def check_options(arguments: argparse.Namespace) -> None:
    """What can be wrong with the options whatever is judged."""
    from cancelmark.conformance.adapter import GUARANTEES
    from cancelmark.conformance.playing.scenarios import check_names
    from cancelmark.conformance.playing.script import read_scripts

    for option, file in (("--junit", arguments.junit), ("--html", arguments.html)):
        if file and not file.resolve().parent.is_dir():
            raise UsageError(f"{option} {file}: there is no directory {file.parent}; make it first")
    for option, names in (("--only", arguments.only or ()), ("--require", required(arguments))):
        if unknown := set(names) - GUARANTEES:
            raise UsageError(f"{option} {sorted(unknown)[0]}: there is no such guarantee; choose from "
                             f"{', '.join(sorted(GUARANTEES))}")
    if arguments.only and (unasked := set(required(arguments)) - set(arguments.only)):
        raise UsageError(f"--require {sorted(unasked)[0]}: --only leaves it out")
    if arguments.llm_port is not None and not (arguments.adapter is None) <= arguments.llm_port < 65536:
        raise UsageError(f"--llm-port {arguments.llm_port}: give a port that the server is told, from 1 to 65535")
    if arguments.script and arguments.scenario:
        raise UsageError("give --script or --scenario, not both")
    if arguments.times is not None and not arguments.script:
        raise UsageError(f"--times {arguments.times} is for --script; for more of everything, --profile deep")
    if arguments.until is not None and (arguments.times is not None or not arguments.script):
        raise UsageError("--until is for --script, in place of --times")
    if arguments.times is not None and arguments.times < 1:
        raise UsageError(f"--times {arguments.times}: play a script at least once")
    try:
        check_names(arguments.scenario or ())
        if arguments.script:
            read_scripts(arguments.script)
    except ValueError as error:
        option = "--scenario" if arguments.scenario else "--script"
        raise UsageError(f"{option}: {error}; cancelmark conform --list has what there is") from error


def judge_target(target: "Target", arguments: argparse.Namespace) -> "Report":
    from cancelmark.conformance.kit import TIMES, JudgementInterrupted, JudgementStopped, judge
    from cancelmark.conformance.playing.venue import NotSteered

    try:
        with progress() as bar:
            report = judge(target.make, profile=arguments.profile, only=arguments.only, llm_port=arguments.llm_port,
                           scenarios=arguments.scenario, scripts=arguments.script, times=arguments.times or TIMES,
                           progress=bar, reproduce=target.reproduce, require=required(arguments), fake=target.fake,
                           until=arguments.until)
    except NotSteered as error:
        if target.fake:
            raise UsageError(f"{target.name}: {error}\n{TELL}") from error
        raise UsageError(f"{error} `cancelmark conform --help` says how; or leave --llm-port out") from error
    except JudgementInterrupted as error:
        if not error.report.histories:
            raise
        report = replace(error.report, interrupted=True)
    except JudgementStopped as error:
        if not error.report.broken:
            raise UsageError(f"{target.explain(error)}; nothing is claimed") from error
        report = error.report
    return replace(report, name=target.name)


@contextmanager
def progress() -> "Iterator[Progress]":
    """How far it is, on a terminal."""
    bar = progress_bar(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    task = bar.add_task("", total=None)
    with bar:
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def show_list() -> None:
    from cancelmark.conformance.adapter.guarantees import ORDER
    from cancelmark.conformance.playing.scenarios import SCENARIOS

    lists: dict[str, list[tuple[str, ...]]] = {
        "guarantees": [(p.id, p.sentence) for p in ORDER],
        "scenarios": [(s.name, s.guarantee, s.text) for s in SCENARIOS],
    }
    for title, rows in lists.items():
        widths = [max(map(len, column)) for column in zip(*rows)]
        output().print(f"{title}:", markup=False)
        for row in rows:
            words = "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths))
            output().print(f"  {words.rstrip()}", markup=False)


def show(report: "Report") -> None:
    from cancelmark.conformance.report import LEGEND, counted

    console = output()
    console.print(f"{report.name}, {counted(report.histories)}\n", markup=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("guarantee", "verdict", ""):
        table.add_column(heading, no_wrap=bool(heading))
    for verdict in report.rows:
        status = verdict.status.value
        table.add_row(verdict.guarantee, f"[{STYLE[status]}]{status}[/]", escape(verdict.about))
    console.print(table, soft_wrap=False)
    if report.unoffered:
        console.print(report.unoffered, markup=False)
    if any(verdict.promise for verdict in report.verdicts):
        console.print("\nwhat the text says:", markup=False)
    for promise in dict.fromkeys(verdict.promise for verdict in report.verdicts if verdict.promise):
        names = ", ".join(verdict.guarantee for verdict in report.verdicts if verdict.promise == promise)
        console.print(f"  {names}: {promise}", markup=False)
    for said in filter(None, (*report.replays, *report.notes, report.stopped)):
        console.print(str(said), markup=False)
    for verdict in report.verdicts:
        if verdict.finding:
            console.print(f"\n{verdict.story}", markup=False)
    console.print(LEGEND if report.broken else "", markup=False)
    console.print(report.summary, markup=False)
