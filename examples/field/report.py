"""The results of `make field` as Markdown: one page for each agent, and one table of all."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path
from textwrap import fill
from typing import Any

from examples.field.agents import Listed
from examples.field.editor import CLIENT
from examples.field.plays import reproduce
from examples.field.record import AGAIN, FIRST, OFTEN, Found, Row, list_findings, list_rows

WIDTH = 120
TABLE = "README.md"
NOTE = "<!-- Written by `make field`; examples/field/agents.toml lists the agents and servers. -->"
OUTSIDE = """\
The results are what clients and the language model observed; its code was not inspected."""
INTRODUCTIONS = {
    "acp": """\
{package} from {registry}, tested on {day:%-d %B %Y} over the Agent Client Protocol (ACP), with a private home
directory, no network, and the kit's language model ({wire}). {outside} *Polite* clients send one prompt at a time, as
the ACP specification describes. *Free* clients send prompts at any time, about which the specification is silent:
a guarantee that is broken only there does not violate the specification, but clients have to know it.""",
    "langgraph": """\
{package} from {registry}, tested on {day:%-d %B %Y} over the LangGraph API, with a private home directory, dead proxy
settings, and a graph of one node that calls the kit's language model ({wire}). {outside} Threads are sessions and runs
are prompts. *enqueue*, *reject* and *interrupt* are its strategies for a second run; in these modes the kit detects the
end of a run by joining it. In *stream*, with enqueue, it reads the thread's stream instead. In *crash*, with enqueue, a
restart kills the process and starts it again on the same storage. A cancel cancels each run of the thread by its id,
and a revoke one of them.""",
    "a2a": """\
{package} from {registry}, tested on {day:%-d %B %Y} over the Agent2Agent protocol (A2A), with a private home directory,
dead proxy settings, and the kit's language model ({wire}). {outside} Contexts are sessions and tasks are prompts. A
cancel cancels each task of the context whose id the server has published. Two outcomes mean that the stream reports
one, and the task itself, queried immediately after, another.""",
    "opencode": """\
{package} from {registry}, tested on {day:%-d %B %Y} over its own HTTP API, with a private home directory, the kit's
language model ({wire}), and with updates, sharing, downloads and default plugins disabled. {outside} It is a different
product with its own promises, and most of our guarantees are not among them. A guarantee that its description does not
promise is not a fault if it is broken, but clients have to know it. See
[the adapter](../../examples/opencode/adapter.py) for the mapping of its API. *in-use*: the server has answered a prompt
since its start; *just-started*: the server is
restarted for each history; *killed*: a restart kills the process and starts it again on the same data.""",
}
INTRODUCTION = """\
Results for third-party agents and servers, from `make field`. Each cell lists the outcomes of the prompts, and in how
many runs each guarantee was broken. Scripts that broke a guarantee run again on a loaded machine, and are counted
separately; so are the reruns of `make field-again`. A break in fewer than {often:.0%} of the runs of any of these is in
parentheses and does not count as a finding: it is a race that is hard to hit, or due to a busy machine. Nor does a
break count that was not observed both on a loaded machine and on one that was not. Loaded means that on average at
least two processes per core were runnable; each page has the figure.
"""
TABLES = {
    "acp": """\
## Agent Client Protocol (ACP) agents

The ACP specification covers *polite* clients. It is silent about *free* ones, so a break there is a different semantics
and not a violation.""",
    "langgraph": """\
## LangGraph API servers

The modes are the strategies for a second run; in *stream* the kit detects the end of a run by the thread's stream. A
break of something that its documentation does not promise is a different semantics; the page says which it is.""",
    "a2a": """\
## Agent2Agent (A2A) agents

The A2A specification does not guarantee that a cancel succeeds ("success is not guaranteed"), but the reported states
must be true.""",
    "opencode": """\
## opencode over its own HTTP API

The modes are conditions of the server. The page says which guarantees its own description promises.""",
}
FIRST_OF_ALL = """\
A finding endangers users if an attacker can exploit it, or if the agent keeps working after its user was told that it
has stopped. Such a finding is marked *to be reported first*, and its page omits how to reproduce it."""
LEFT_OUT = "left out"
SERIES = {FIRST: "machine as it was", "loaded": "broken scripts, on a loaded machine", AGAIN: "findings, rerun"}
SILENT = ("the text is silent", "no promise")


def write_pages(agents: Mapping[str, Listed], record: Mapping[str, Any], output: Path) -> None:
    """Write the pages of all agents with results, and the table, in the order of the list."""
    judged: dict[str, tuple[Listed, dict[str, Any]]] = {}
    skipped: dict[str, str] = {}
    for name, agent in agents.items():
        seen = record.get(name, {})
        if seen.get("package") != agent.package:
            skipped[name] = "not run yet"
        elif "series" in seen:
            judged[name] = agent, seen
            (output / f"{name}.md").write_text(page(agent, seen))
        else:
            skipped[name] = seen["skipped"]
    (output / TABLE).write_text(table(judged, skipped, record.get(CLIENT.name, {})))


def page(agent: Listed, seen: Mapping[str, Any]) -> str:
    """The page of one agent."""
    return "\n".join(_page(agent, seen)).rstrip() + "\n"


def _page(agent: Listed, seen: Mapping[str, Any]) -> Iterator[str]:
    rows = list(list_rows(seen))
    yield f"# {agent.name}: conformance results\n\n{NOTE}\n"
    packages = " with ".join([agent.package, *([", ".join(agent.also)] if agent.also else [])])
    yield _filled(INTRODUCTIONS[agent.judge].format(package=packages, registry=agent.registry, wire=agent.wire,
                                                    outside=OUTSIDE, day=date.fromisoformat(seen["day"]))) + "\n"
    if agent.about:
        yield _filled(agent.about) + "\n"
    yield "| mode | script | outcomes | broken guarantees |\n| --- | --- | --- | --- |"
    for row in rows:
        ended, broken = "<br>".join(row.ended), "<br>".join(row.broken) or "none"
        yield f"| {row.mode} | {_done(agent, row)} | {ended} | {broken} |"
    yield f"\nTo rerun any line: `python -m examples.field {agent.name} --mode … --script '…'`.\n"
    yield from _conditions(seen)
    if "whole" in seen:
        yield from _whole(seen["whole"], rows)
    for found in list_findings(seen):
        yield from _finding(agent, found)


def _conditions(seen: Mapping[str, Any]) -> Iterator[str]:
    yield (f"| runs, on {seen['cores']} cores | runnable processes, on average | of these, busy processes |\n"
           "| --- | --- | --- |")
    for series in seen["series"]:
        yield f"| {SERIES[series['name']]} | {series['load']:.1f} | {series['busy'] or 'none'} |"
    yield ""


def _whole(whole: Mapping[str, Any], rows: Iterable[Row]) -> Iterator[str]:
    """The results for every guarantee, from scenarios and random histories."""
    yield "## All guarantees\n"
    yield _filled(f"The kit ran {whole['histories']} histories in the mode *in-use*. The table counts those that could "
                  "have broken the guarantee. Scripts that did were run again; their results are in the table above.")
    yield "\n| guarantee | meaning | promised | result |\n| --- | --- | --- | --- |"
    for each in whole["guarantees"]:
        name, promised = each["id"], not each["promise"].startswith(SILENT)
        modes = ", ".join(dict.fromkeys(row.mode for row in rows if row.is_finding(name)))
        seldom = ", ".join(dict.fromkeys(row.mode for row in rows if name in row.showed))
        often = ", ".join(dict.fromkeys(row.mode for row in rows if name in row.showed and row.is_often(name)))
        if modes:
            saw = f"{'**broken**' if promised else 'broken, not promised'}: {modes}"
        elif often:
            saw = f"broken, but not yet run both on a loaded machine and on one that is not: {often}"
        elif seldom or each["status"] == "broken":
            saw = f"kept in nearly all histories{f'; rarely broken: {seldom}' if seldom else ''}"
        else:
            saw = f"kept in {each['histories']} histories" if each["status"] == "kept" else (
                f"{each['status']}: {each['why']}")
        yield f"| **{name}** | {each['says']} | {'yes' if promised else 'no'} | {saw} |"
    yield "\nThe server's own description promises these, as we read it:\n"
    for each in whole["guarantees"]:
        if not each["promise"].startswith(SILENT):
            yield _filled(f"- **{each['id']}**: {each['promise']}", "  ")
    yield ""


def _finding(agent: Listed, found: Found) -> Iterator[str]:
    name, row = found.guarantee["id"], found.row
    yield f"## {row.mode}: {name}\n"
    yield _filled(f"> {found.guarantee['says']}", "> ") + "\n"
    promise = found.guarantee["promise"]
    yield _filled(f"Protocol text: {promise}{'' if promise.endswith('.') else '.'}") + "\n"
    if note := agent.notes.get(name):
        yield _filled(note) + "\n"
    counts = ", and ".join(f"{count.showed[name]} of {count.times}{_when(count.series)}" for count in row.counts)
    done = _done(agent, row)
    yield _filled(f"Broken in runs{'' if done == LEFT_OUT else f' of {done}'}, {counts}: "
                  f"{found.complaint}") + "\n"
    if why := agent.first.get(f"{row.mode} {name}"):
        yield _filled(f"**To be reported first**: {why}") + "\n"
    if done == LEFT_OUT:
        return
    yield f"```mermaid\n{found.mermaid.strip()}\n```\n"
    yield f"    {reproduce(agent, row.mode, row.script)}\n"


def _done(agent: Listed, row: Row) -> str:
    """The script, unless it would show how to reproduce a finding that is to be reported first."""
    return LEFT_OUT if _is_first(agent, row) else f"`{row.script}`"


def _is_first(agent: Listed, row: Row) -> bool:
    """Whether it shows a finding that is to be reported first, however rarely."""
    return any(f"{row.mode} {name}" in agent.first for name in row.showed)


def _when(series: str) -> str:
    return {FIRST: "", AGAIN: " in the rerun"}.get(series, " on a loaded machine")


def table(judged: Mapping[str, tuple[Listed, Mapping[str, Any]]], skipped: Mapping[str, str],
          client: Mapping[str, Any]) -> str:
    """The table of all agents and servers, and the result for the TypeScript client."""
    lines = [f"# Third-party agents and servers\n\n{NOTE}\n", _filled(INTRODUCTION.format(often=OFTEN)) + "\n",
             _filled(FIRST_OF_ALL) + "\n"]
    for judge, heading in TABLES.items():
        of_kind = {name: each for name, each in judged.items() if each[0].judge == judge}
        title, _, about = heading.partition("\n\n")
        lines += [title + "\n", _filled(about) + "\n", *_table_of(of_kind, apart=judge != "acp"), ""] if of_kind else []
    if skipped:
        lines += ["## Not judged\n", *(f"- **{name}**: {why}" for name, why in skipped.items()), ""]
    if "told" in client:
        told = "; ".join(f"{how}: {', '.join(ends)}" for how, ends in client["told"].items())
        lines += ["## TypeScript client\n", _filled(
            f"The official TypeScript client, {client['package']} from npm, was connected to `cancelmark acp`. One "
            "prompt was running and another queued; the client canceled both, and sent a third right after that. The "
            f"stop reasons that it received, {told}."), ""]
    lines += ["## Rerun\n", "    make field                                   # all of it, about an hour",
              "    make field FROM=NAME                         # resume an interrupted run from this agent",
              "    make field LOADED=1                          # only the broken scripts, on a loaded machine",
              "    make field ONLY=NAME                         # install and judge only this agent",
              "    make field-again                             # only the findings, in minutes: which recur?",
              "    python -m examples.field NAME --mode polite --script 'accept A, cancel'"]
    return "\n".join(lines) + "\n"


def _table_of(judged: Mapping[str, tuple[Listed, Mapping[str, Any]]], *, apart: bool) -> Iterator[str]:
    """A table with a line for each agent, or for each of its modes, and a column for each script."""
    def column(agent: Listed, row: Row) -> str:
        return _done(agent, row) if apart else f"{row.mode}: {_done(agent, row)}"

    def cell(agent: Listed, row: Row) -> str:
        first = ["to be reported first"] if _is_first(agent, row) else []
        return "<br>".join([*row.ended, *(f"**{text}**" for text in [*row.broken, *first])])

    rows = {name: list(list_rows(seen)) for name, (_, seen) in judged.items()}
    columns = list(dict.fromkeys(column(agent, row) for name, (agent, _) in judged.items() for row in rows[name]))
    yield "| agent | " + " | ".join(columns) + " |\n| --- |" + " --- |" * len(columns)
    for name, (agent, _) in judged.items():
        for mode in dict.fromkeys(row.mode if apart else "" for row in rows[name]):
            cells: dict[str, list[str]] = {}
            for row in rows[name]:
                if mode in ("", row.mode):
                    cells.setdefault(column(agent, row), []).append(cell(agent, row))
            yield (f"| [{name}]({name}.md) {agent.version}{f', {mode}' if mode else ''} | "
                   + " | ".join("<br>".join(cells.get(column, ["–"])) for column in columns) + " |")


def _filled(words: str, indent: str = "") -> str:
    return fill(" ".join(words.split()), WIDTH, subsequent_indent=indent, break_long_words=False,
                break_on_hyphens=False)
