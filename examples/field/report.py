"""What was seen in the field, as Markdown: one page an agent, and one table of all."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from textwrap import fill
from typing import Any

from examples.field.agents import Listed
from examples.field.plays import list_broken, reproduce

WIDTH, OFTEN = 120, 0.6  # the part of all plays in which something has to show
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
each run; in *stream*, with enqueue, they are heard of from the thread's stream. A cancel cancels each run of the thread
by its id.""",
    "a2a": """\
{package} from {registry}, on {day:%-d %B %Y}, over the Agent2Agent protocol, in a home of its own, with proxies that
lead nowhere, with the kit's language model ({wire}). {outside} Contexts are sessions and tasks are prompts. A cancel
cancels each task of the context whose id the server has said. Two ends mean that the stream says one, and the task,
asked at once, another.""",
}
TABLE = """\
Agents and servers that nobody here wrote, judged by `make field`. The cells say how the prompts ended, and count in how
many plays which guarantee did not hold. What showed is played again on a loaded machine, and counted apart. What
showed in fewer than {often:.0%} of either is in parentheses: a race that is hard to hit, or a busy machine; it is no
finding."""
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
}
MACHINE = """\
The machine had {cores} cores and a load of {load:.1f} when the agent was started. Loaded means: with {busy} processes
more, which did nothing but compute."""


@dataclass(frozen=True)
class Row:
    """A script that was played in one mode."""

    mode: str
    script: str
    times: int
    showed: Mapping[str, int]
    loaded: Mapping[str, int]
    """What showed on a loaded machine, in as many plays."""
    ends: Mapping[str, int]

    def is_finding(self, guarantee: str) -> bool:
        return min(self.showed.get(guarantee, 0), self.loaded.get(guarantee, 0)) >= OFTEN * self.times

    def tell(self, guarantee: str) -> str:
        quiet, loaded = self.showed.get(guarantee, 0), self.loaded.get(guarantee, 0)
        text = f"{guarantee} {quiet}/{self.times}, loaded {loaded}/{self.times}"
        return text if self.is_finding(guarantee) else f"({text})"

    @property
    def broken(self) -> list[str]:
        return [self.tell(guarantee) for guarantee in dict.fromkeys([*self.showed, *self.loaded])]

    @property
    def ended(self) -> list[str]:
        """How the prompts ended, with the number of plays if they did not always end so."""
        return [ends if n == self.times else f"{ends} ({n}/{self.times})" for ends, n in self.ends.items()]


def list_rows(seen: Mapping[str, Any]) -> Iterator[Row]:
    """What was played, as the list of scripts has it."""
    for mode, report in seen["reports"].items():
        again = {each["script"]: each["showed"] for each in seen["loaded"].get(mode, {}).get("scripts", ())}
        for each in report["scripts"]:
            yield Row(mode, each["script"], each["times"], each["showed"], again.get(each["script"], {}), each["ends"])


def page(agent: Listed, seen: Mapping[str, Any]) -> str:
    """The page of one agent."""
    return "\n".join(_page(agent, seen)).rstrip() + "\n"


def _page(agent: Listed, seen: Mapping[str, Any]) -> Iterator[str]:
    rows = list(list_rows(seen))
    yield f"# {agent.name}, judged from outside\n\n{NOTE}\n"
    packages = " with ".join([agent.package, *([", ".join(agent.also)] if agent.also else [])])
    yield _filled(INTRODUCTIONS[agent.judge].format(package=packages, registry=agent.registry, wire=agent.wire,
                                                    outside=OUTSIDE, day=date.fromisoformat(seen["day"]))) + "\n"
    yield _filled(MACHINE.format(**seen["machine"])) + "\n"
    if agent.about:
        yield _filled(agent.about) + "\n"
    yield "| clients | what was done | how the prompts ended | what did not hold |\n| --- | --- | --- | --- |"
    for row in rows:
        yield (f"| {row.mode} | `{row.script}` | {'<br>'.join(row.ended)} | {'<br>'.join(row.broken) or 'nothing'} |")
    yield ""
    for mode, report in seen["reports"].items():
        for finding in list_broken(report):
            row = next(row for row in rows if (row.mode, row.script) == (mode, finding["script"]))
            if row.is_finding(finding["id"]):
                yield from _finding(agent, row, finding)


def _finding(agent: Listed, row: Row, finding: Mapping[str, Any]) -> Iterator[str]:
    name = finding["id"]
    yield f"## {row.mode}: {name}\n"
    yield _filled(f"> {finding['says']}", "> ") + "\n"
    silent = finding["promise"].startswith(("the text is silent", "no promise"))
    yield _filled(f"{'What the text says' if silent else 'The text'}: {finding['promise']}.") + "\n"
    yield _filled(f"Seen in {row.showed[name]} of {row.times} plays of `{row.script}`, and in {row.loaded[name]} of "
                  f"{row.times} on a loaded machine: {finding['complaint']}") + "\n"
    yield f"```mermaid\n{finding['mermaid'].strip()}\n```\n"
    yield f"    {reproduce(agent, row.mode, row.script)}\n"


def table(judged: Mapping[str, tuple[Listed, Mapping[str, Any]]], skipped: Mapping[str, str]) -> str:
    """All agents and servers."""
    lines = [f"# The field\n\n{NOTE}\n", _filled(TABLE.format(often=OFTEN)) + "\n"]
    for judge, heading in TABLES.items():
        of_kind = {name: each for name, each in judged.items() if each[0].judge == judge}
        title, _, about = heading.partition("\n\n")
        lines += [title + "\n", _filled(about) + "\n", *_table_of(of_kind, apart=judge != "acp"), ""] if of_kind else []
    if skipped:
        lines += ["## Not judged\n", *(f"- **{name}**: {why}" for name, why in skipped.items()), ""]
    lines += ["## Again\n", "    make field                                   # all of it",
              "    python -m examples.field NAME                # one of them, installed and judged",
              "    python -m examples.field NAME --mode polite --script 'accept A, cancel'"]
    return "\n".join(lines) + "\n"


def _table_of(judged: Mapping[str, tuple[Listed, Mapping[str, Any]]], *, apart: bool) -> Iterator[str]:
    """A line for each, or for each mode of it; a column for each script."""
    def column(row: Row) -> str:
        return f"`{row.script}`" if apart else f"{row.mode}: `{row.script}`"

    rows = {name: list(list_rows(seen)) for name, (_, seen) in judged.items()}
    columns = list(dict.fromkeys(column(row) for each in rows.values() for row in each))
    yield "| agent | " + " | ".join(columns) + " |\n| --- |" + " --- |" * len(columns)
    for name, (agent, _) in judged.items():
        for mode in dict.fromkeys(row.mode if apart else "" for row in rows[name]):
            cells = {column(row): "<br>".join([*row.ended, *(f"**{text}**" for text in row.broken)])
                     for row in rows[name] if mode in ("", row.mode)}
            yield (f"| [{name}]({name}.md) {agent.version}{f', {mode}' if mode else ''} | "
                   + " | ".join(cells.get(column, "–") for column in columns) + " |")


def _filled(words: str, indent: str = "") -> str:
    return fill(" ".join(words.split()), WIDTH, subsequent_indent=indent, break_long_words=False,
                break_on_hyphens=False)
