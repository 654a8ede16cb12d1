"""`cancelmark conform`: test which guarantees a server keeps."""

import argparse
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from ...files import UsageError, write
from ..terminal import output, plain_table, progress_bar
from ..text import print_json
from . import agents, servers
from .agents import MODES, find_agents
from .target import find_target

if TYPE_CHECKING:
    from cancelmark.conformance.kit import Progress
    from cancelmark.conformance.report import Report

    from .target import Target

DESCRIPTION = """\
Test which guarantees of specs/protocol.md a server keeps. Several clients send it prompts, cancel, clear and subscribe,
and the kit checks what they observe. The server must speak the wire protocol of specs/wire.md, or have an adapter
(--adapter).

verdicts on a guarantee:
  kept            enough histories could have broken it, and none did
  broken          a history broke it; the report shows how to reproduce it
  not tested      too few histories could have broken it
  not observable  the server or the adapter does not expose what is needed
  not claimed     the adapter does not claim it
  not offered     the server does not have the call that it is about

verdicts on the server, in the last line:
  conforms        every guarantee that it must keep was tested and is kept
  nothing-broken  nothing is broken, but not everything was tested
  broken          at least one guarantee is broken
  unknown         inconclusive: nothing was tested, or not what is required

exit codes:
  0    conforms or nothing-broken
  1    broken
  2    unknown, bad usage, or the server cannot be judged
  130  interrupted by Ctrl-C or SIGTERM, after reporting the findings so far
"""

EPILOG = """\
controlling turns:
  To provoke a race, the kit must control how long a turn takes. With --llm-port it serves a fake language model at
  http://127.0.0.1:PORT/v1 (OpenAI-compatible; any key, any model name). Configure the server to use it. For our server:

    OPENAI_API_KEY=none cancelmark serve --model openai --model-name turn --base-url http://127.0.0.1:4545/v1
    cancelmark conform http://127.0.0.1:4343 --llm-port 4545

  Without --llm-port the kit waits for the server's own turns, and reports what it cannot check that way as not
  observable.

several nodes of one cluster:
  conform URL URL URL judges the nodes as one server: each call goes to a random node, and events are read from another.
  All nodes must use the language model of --llm-port.

other servers:
  conform langgraph URL judges a LangGraph API server, and conform a2a URL an Agent2Agent (A2A) agent. Give --llm-port,
  and start the server with that language model.

  For any other wire protocol write an adapter, a Python class that the kit instantiates without arguments:
  --adapter mine:MyAdapter or --adapter mine.py:MyAdapter. See docs/adapters.md for a complete example;
  python -m pydoc cancelmark.conformance.adapter documents the interface.

reproducing a finding:
  Each finding ends with the command that reproduces it, such as --script "accept A; cancel" --times 5. The command for
  a race has --until 60s instead: it repeats the script for a minute with varying gaps and orders. The report counts the
  runs that broke each guarantee. In a script, `;` waits until the server is quiet, `,` waits only for the response, and
  `+` starts the next step at the same time. python -m pydoc cancelmark.conformance.playing.script documents scripts.

effects on the server:
  On a server that speaks our wire protocol the kit uses one workspace, and new sessions for each history. The workspace
  is a temporary directory if the server is on this machine, and otherwise the path /cancelmark-conform-…. Other
  workspaces are not touched. With --keep-open the kit skips the histories that close its workspace.
"""

STYLE = {"kept": "green", "broken": "bold red", "not tested": "yellow", "not observable": "yellow",
         "not claimed": "dim", "not offered": "dim"}
EXITS = {"conforms": 0, "nothing-broken": 0, "broken": 1, "unknown": 2}
INTERRUPTED = 130
UNITS = {"s": 1, "m": 60}
PROFILES = ("quick", "deep")
TELL = ("Pass the address with --env NAME={model_url} or --config PATH=FILE, where {model_url} stands for it; see "
        "docs/judge.md for examples. The result is inconclusive")
EXPLAIN = {
    "polite": "Polite mode: clients send one prompt at a time. Only the guarantees of the ACP specification are "
              "judged.",
    "free": "Free mode: clients send prompts at any time. The ACP specification does not define a second prompt while "
            "one is\nrunning, so guarantees that are broken here are not violations of the specification.",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", nargs="?",
                        help="server address: http://HOST:PORT, https://HOST or unix:PATH; or acp, with the agent's "
                        "command after --; or langgraph or a2a, followed by a URL")
    parser.add_argument("others", metavar="URL", nargs="*", help="further nodes of the same cluster; or the LangGraph "
                        "server or A2A agent")
    parser.add_argument("--adapter", metavar="NAME", help="use this adapter: module:Class or file.py:Class")
    parser.add_argument("--token", metavar="TOKEN", help="bearer token for the server")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="file with the bearer token")
    parser.add_argument("--workspace", metavar="PATH", help="workspace to use on the server (default: see below)")
    parser.add_argument("--llm-port", type=int, metavar="PORT", help="serve the kit's fake language model on this port")
    parser.add_argument("--profile", default="quick", choices=PROFILES,
                        help="quick: about a minute (default); deep: about five minutes, more histories")
    parser.add_argument("--only", action="append", metavar="GUARANTEE",
                        help="judge only this guarantee; repeatable")
    parser.add_argument("--scenario", action="append", metavar="NAME",
                        help="run only this scenario; repeatable")
    parser.add_argument("--script", action="append", metavar="TEXT",
                        help="run only this script, and count what it breaks; repeatable")
    parser.add_argument("--times", type=int, metavar="N", help="how often to run each --script (default: 5)")
    parser.add_argument("--until", type=seconds, metavar="60s", help="instead of --times: repeat each --script for "
                        "this long, with varying gaps and orders in its races")
    parser.add_argument("--list", action="store_true", help="list guarantees and scenarios, then exit")
    parser.add_argument("--require", action="append", metavar="GUARANTEE,…", default=[],
                        help="exit 2 unless these guarantees were tested")
    parser.add_argument("--grace", type=float, metavar="SECONDS",
                        help="how long the server waits without subscribers (serve --grace); enables the test of "
                        "outlives-watcher")
    parser.add_argument("--keep-open", action="store_true", help="never close the workspace that the kit uses")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="also write the report as JUnit XML")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write the report as an HTML page")
    agents.add_options(parser)
    servers.add_options(parser)


def seconds(text: str) -> float:
    """Parse `60s` or `2m` into seconds."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in UNITS else (text, "s")
    if not number.isdecimal() or not int(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration; give one such as 60s or 2m")
    return float(int(number) * UNITS[unit])


def run(arguments: argparse.Namespace) -> int:
    if arguments.list:
        show_list()
        return 0
    check_options(arguments)
    if arguments.url == "acp":
        if arguments.others:
            raise UsageError(f"conform acp: unexpected {arguments.others[0]:.80}; give the agent's command after --")
        return judge_agent(arguments)
    if given := [name for name in (*agents.OPTIONS, "started") if getattr(arguments, name)]:
        what = f"--{given[0]}" if given[0] != "started" else f"-- {arguments.started[0]}"
        raise UsageError(f"{what:.80} applies only to agents: cancelmark conform acp [OPTIONS] -- COMMAND …")
    if arguments.url in servers.KINDS:
        report = judge_target(servers.find_server(arguments), arguments)
    else:
        if given := [name for name in servers.OPTIONS if getattr(arguments, name)]:
            raise UsageError(f"--{given[0]} applies only to LangGraph: cancelmark conform langgraph URL")
        with find_target(arguments) as target:
            report = judge_target(target, arguments)
    if arguments.json:
        print_json(report.json())
    else:
        show(report)
    write_files(report, arguments)
    return exit_code(report)


def exit_code(report: "Report") -> int:
    return INTERRUPTED if report.interrupted else EXITS[report.decision.value]


def judge_agent(arguments: argparse.Namespace) -> int:
    """Judge the agent in each requested mode, and return the worst exit code."""
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
        print_json({"modes": {mode: report.json() for mode, report in reports.items()}})
    return worst({exit_code(report) for report in reports.values()})


def worst(exits: Collection[int]) -> int:
    """The exit code of several judgements: interrupted, else broken, else unknown, else success."""
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
    """Raise `UsageError` for options that are wrong for every kind of server."""
    from cancelmark.conformance.adapter import GUARANTEES
    from cancelmark.conformance.playing.scenarios import check_names
    from cancelmark.conformance.playing.script import read_scripts

    for option, file in (("--junit", arguments.junit), ("--html", arguments.html)):
        if file and not file.resolve().parent.is_dir():
            raise UsageError(f"{option} {file}: there is no directory {file.parent}; create it first")
    for option, names in (("--only", arguments.only or ()), ("--require", required(arguments))):
        if unknown := set(names) - GUARANTEES:
            raise UsageError(f"{option} {sorted(unknown)[0]}: unknown guarantee; choose from "
                             f"{', '.join(sorted(GUARANTEES))}")
    if arguments.only and (unasked := set(required(arguments)) - set(arguments.only)):
        raise UsageError(f"--require {sorted(unasked)[0]}: --only excludes it; add --only {sorted(unasked)[0]}")
    if arguments.llm_port is not None and not (arguments.adapter is None) <= arguments.llm_port < 65536:
        raise UsageError(f"--llm-port {arguments.llm_port}: give the port that the server is configured to use, from 1 "
                         "to 65535")
    if arguments.script and arguments.scenario:
        raise UsageError("--script and --scenario are mutually exclusive")
    if arguments.times is not None and not arguments.script:
        raise UsageError(f"--times {arguments.times} requires --script; for more histories use --profile deep")
    if arguments.until is not None and (arguments.times is not None or not arguments.script):
        raise UsageError("--until requires --script, and excludes --times")
    if arguments.times is not None and arguments.times < 1:
        raise UsageError(f"--times {arguments.times}: must be at least 1")
    try:
        check_names(arguments.scenario or ())
        if arguments.script:
            read_scripts(arguments.script)
    except ValueError as error:
        option = "--scenario" if arguments.scenario else "--script"
        hint = "; cancelmark conform --list lists the scenarios" if arguments.scenario else ""
        raise UsageError(f"{option}: {error}{hint}") from error


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
        raise UsageError(f"{error} See cancelmark conform --help, or omit --llm-port") from error
    except JudgementInterrupted as error:
        if not error.report.histories:
            raise
        report = replace(error.report, interrupted=True)
    except JudgementStopped as error:
        if not error.report.broken:
            raise UsageError(f"{target.explain(error)}; the result is inconclusive") from error
        report = error.report
    return replace(report, name=target.name)


@contextmanager
def progress() -> "Iterator[Progress]":
    """A progress bar, on a terminal."""
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
    table = plain_table("guarantee", "verdict", "", wrapped=[""])
    for verdict in report.rows:
        status = verdict.status.value
        table.add_row(verdict.guarantee, f"[{STYLE[status]}]{status}[/]", escape(verdict.about))
    console.print(table, soft_wrap=False)
    if report.unoffered:
        console.print(report.unoffered, markup=False)
    if any(verdict.promise for verdict in report.verdicts):
        console.print("\nprotocol text:", markup=False)
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
