"""What was seen in the field, as Markdown: one page an agent, and one table of all."""

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
NOTE = "<!-- Written by `make field`; what is judged is in examples/field/agents.toml. -->"
OUTSIDE = """\
Seen is what clients and the language model saw; nobody has looked into its code."""
INTRODUCTIONS = {
    "acp": """\
{package} from {registry}, on {day:%-d %B %Y}, over the Agent Client Protocol, in a home of its own, without a network,
with the kit's language model ({wire}). {outside} *Polite* clients send one prompt at a time, and the protocol's text
promises them something. About what *free* clients do the text is silent: what does not hold there breaks no promise,
and a client has to know it.""",
    "langgraph": """\
{package} from {registry}, on {day:%-d %B %Y}, over the LangGraph API, in a home of its own, with proxies that lead
nowhere, with a graph of one node that asks the kit's language model ({wire}). {outside} Threads are sessions and runs
are prompts. *enqueue*, *reject* and *interrupt* are its strategies for a second run, and ends are heard of by joining
each run; in *stream*, with enqueue, they are heard of from the thread's stream. In *crash*, with enqueue, the process
is killed and started again on what it has stored, which the histories call a restart. A cancel cancels each run of the
thread by its id, and a revoke one of them.""",
    "a2a": """\
{package} from {registry}, on {day:%-d %B %Y}, over the Agent2Agent protocol, in a home of its own, with proxies that
lead nowhere, with the kit's language model ({wire}). {outside} Contexts are sessions and tasks are prompts. A cancel
cancels each task of the context whose id the server has said. Two ends mean that the stream says one, and the task,
asked at once, another.""",
    "opencode": """\
{package} from {registry}, on {day:%-d %B %Y}, over its own HTTP, in a home of its own, with the kit's language model
({wire}), and with updates, sharing, downloads and default plugins switched off. {outside} It is a different product
with promises of its own, and most of our guarantees are not among them. What its own description does not promise and
does not hold is not a fault; it is something that a client has to know. How its wire is read is in
[the adapter](../../examples/opencode/adapter.py). *in-use*: it has answered a prompt since it was started;
*just-started*: it was started for this history alone; *killed*: the process is killed and started again on the same
data, which the histories call a restart.""",
}
INTRODUCTION = """\
Agents and servers that nobody here wrote, judged by `make field`. The cells say how the prompts ended, and count in how
many plays which guarantee did not hold. What showed is played again on a loaded machine, and counted apart; so is what
`make field-again` has played since. What showed in fewer than {often:.0%} of any of these is in parentheses: a race
that is hard to hit, or a busy machine; it is no finding. Nor is what was not played both on a loaded machine and on one
that was not. Loaded means that on average at least two processes wanted to run for each core; each page has the figure.
"""
TABLES = {
    "acp": """\
## Agents of the Agent Client Protocol

*Polite* is what the protocol's text promises. In *free* the text is silent, so a count there is a difference of meaning
and not a broken promise.""",
    "langgraph": """\
## Servers of the LangGraph API

The modes are the strategies for a second run; in *stream* ends are heard of from the thread's stream. What its text
does not promise is a difference of meaning, and the page says which it is.""",
    "a2a": """\
## Agents of the Agent2Agent protocol

The text promises no cancel ("success is not guaranteed"), but the states it tells are to be true.""",
    "opencode": """\
## opencode over its own HTTP

The modes are its circumstances. The page says which guarantees its own description promises.""",
}
FIRST_OF_ALL = """\
A finding endangers users if somebody else can use it against them, or if the agent works on after its user was told
that it has stopped. Such a finding is marked *to be reported first*, and its page keeps short of a recipe."""
LEFT_OUT = "left out"
SERIES = {FIRST: "as the machine was", "loaded": "what showed, on a loaded machine", AGAIN: "findings, again"}
SILENT = ("the text is silent", "no promise")


def write_pages(agents: Mapping[str, Listed], record: Mapping[str, Any], output: Path) -> None:
    """Of all that were tried, now or before, as the list has them."""
    judged: dict[str, tuple[Listed, dict[str, Any]]] = {}
    skipped: dict[str, str] = {}
    for name, agent in agents.items():
        seen = record.get(name, {})
        if seen.get("package") != agent.package:
            skipped[name] = "not tried yet"
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
    yield f"# {agent.name}, judged from outside\n\n{NOTE}\n"
    packages = " with ".join([agent.package, *([", ".join(agent.also)] if agent.also else [])])
    yield _filled(INTRODUCTIONS[agent.judge].format(package=packages, registry=agent.registry, wire=agent.wire,
                                                    outside=OUTSIDE, day=date.fromisoformat(seen["day"]))) + "\n"
    if agent.about:
        yield _filled(agent.about) + "\n"
    yield "| clients | what was done | how the prompts ended | what did not hold |\n| --- | --- | --- | --- |"
    for row in rows:
        ended, broken = "<br>".join(row.ended), "<br>".join(row.broken) or "nothing"
        yield f"| {row.mode} | {_done(agent, row)} | {ended} | {broken} |"
    yield f"\nAny line is played again by `python -m examples.field {agent.name} --mode … --script '…'`.\n"
    yield from _conditions(seen)
    if "whole" in seen:
        yield from _whole(seen["whole"], rows)
    for found in list_findings(seen):
        yield from _finding(agent, found)


def _conditions(seen: Mapping[str, Any]) -> Iterator[str]:
    yield (f"| plays, on {seen['cores']} cores | processes that wanted to run, on average | computed beside |\n"
           "| --- | --- | --- |")
    for series in seen["series"]:
        yield f"| {SERIES[series['name']]} | {series['load']:.1f} | {series['busy'] or 'none'} |"
    yield ""


def _whole(whole: Mapping[str, Any], rows: Iterable[Row]) -> Iterator[str]:
    """Every guarantee, as it came out of scenarios and random histories."""
    yield "## Every guarantee\n"
    yield _filled(f"{whole['histories']} histories were played on it in use; counted are those that put the guarantee "
                  "to the test. What did not hold there was played again by its script, and is in the table above.")
    yield "\n| guarantee | what it says | promised | seen |\n| --- | --- | --- | --- |"
    for each in whole["guarantees"]:
        name, promised = each["id"], not each["promise"].startswith(SILENT)
        modes = ", ".join(dict.fromkeys(row.mode for row in rows if row.is_finding(name)))
        seldom = ", ".join(dict.fromkeys(row.mode for row in rows if name in row.showed))
        often = ", ".join(dict.fromkeys(row.mode for row in rows if name in row.showed and row.is_often(name)))
        if modes:
            saw = f"{'**broken**' if promised else 'does not hold'}: {modes}"
        elif often:
            saw = f"did not hold, and was not yet played on a loaded machine and on one that was not: {often}"
        elif seldom or each["status"] == "broken":
            saw = f"held, in nearly all histories{f'; seldom not: {seldom}' if seldom else ''}"
        else:
            saw = f"kept, in {each['histories']} histories" if each["status"] == "kept" else f"not shown: {each['why']}"
        yield f"| **{name}** | {each['says']} | {'yes' if promised else 'no'} | {saw} |"
    yield "\nPromised means that we read it out of the server's description of itself:\n"
    for each in whole["guarantees"]:
        if not each["promise"].startswith(SILENT):
            yield _filled(f"- **{each['id']}**: {each['promise']}", "  ")
    yield ""


def _finding(agent: Listed, found: Found) -> Iterator[str]:
    name, row = found.guarantee["id"], found.row
    yield f"## {row.mode}: {name}\n"
    yield _filled(f"> {found.guarantee['says']}", "> ") + "\n"
    promise = found.guarantee["promise"]
    yield _filled(f"{'What the text says' if promise.startswith(SILENT) else 'The text'}: {promise}"
                  f"{'' if promise.endswith('.') else '.'}") + "\n"
    if note := agent.notes.get(name):
        yield _filled(note) + "\n"
    counts = ", and ".join(f"{count.showed[name]} of {count.times}{_when(count.series)}" for count in row.counts)
    done = _done(agent, row)
    yield _filled(f"Seen in plays{'' if done == LEFT_OUT else f' of {done}'}, {counts}: "
                  f"{found.complaint}") + "\n"
    if why := agent.first.get(f"{row.mode} {name}"):
        yield _filled(f"**To be reported first**: {why}") + "\n"
    if done == LEFT_OUT:
        return
    yield f"```mermaid\n{found.mermaid.strip()}\n```\n"
    yield f"    {reproduce(agent, row.mode, row.script)}\n"


def _done(agent: Listed, row: Row) -> str:
    """What was done, unless that is a recipe for something that is to be reported first."""
    return LEFT_OUT if _is_first(agent, row) else f"`{row.script}`"


def _is_first(agent: Listed, row: Row) -> bool:
    """However seldom it showed."""
    return any(f"{row.mode} {name}" in agent.first for name in row.showed)


def _when(series: str) -> str:
    return {FIRST: "", AGAIN: " again"}.get(series, " on a loaded machine")


def table(judged: Mapping[str, tuple[Listed, Mapping[str, Any]]], skipped: Mapping[str, str],
          client: Mapping[str, Any]) -> str:
    """All agents and servers, and the client of another language."""
    lines = [f"# The field\n\n{NOTE}\n", _filled(INTRODUCTION.format(often=OFTEN)) + "\n", _filled(FIRST_OF_ALL) + "\n"]
    for judge, heading in TABLES.items():
        of_kind = {name: each for name, each in judged.items() if each[0].judge == judge}
        title, _, about = heading.partition("\n\n")
        lines += [title + "\n", _filled(about) + "\n", *_table_of(of_kind, apart=judge != "acp"), ""] if of_kind else []
    if skipped:
        lines += ["## Not judged\n", *(f"- **{name}**: {why}" for name, why in skipped.items()), ""]
    if "told" in client:
        told = "; ".join(f"{how}: {', '.join(ends)}" for how, ends in client["told"].items())
        lines += ["## A client\n", _filled(
            f"{client['package']} from npm, the official TypeScript client, spoke to `cancelmark acp`. A prompt ran, "
            f"another waited, both were canceled, and a third came right behind the cancel. It was told, {told}."), ""]
    lines += ["## Again\n", "    make field                                   # all of it, about an hour",
              "    make field FROM=NAME                         # those from this one on in the list, after a stop",
              "    make field LOADED=1                          # what showed, on a loaded machine alone",
              "    make field ONLY=NAME                         # one of them, installed and judged",
              "    make field-again                             # the findings alone, in minutes: which show?",
              "    python -m examples.field NAME --mode polite --script 'accept A, cancel'"]
    return "\n".join(lines) + "\n"


def _table_of(judged: Mapping[str, tuple[Listed, Mapping[str, Any]]], *, apart: bool) -> Iterator[str]:
    """A line for each, or for each mode of it; a column for each script."""
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
