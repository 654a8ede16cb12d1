"""What was seen in the field, as Markdown: one page an agent, and one table of all."""

from collections.abc import Iterator, Mapping
from datetime import date
from textwrap import fill
from typing import Any

from examples.field.agents import Listed, list_broken, reproduce

WIDTH, OFTEN = 120, 0.6  # the part of all plays in which something has to show
NOTE = "<!-- Written by `make field`; what is judged is in examples/field/agents.toml. -->"
INTRODUCTION = """\
{package} from {registry}, on {day:%-d %B %Y}, over the Agent Client Protocol, in a home of its own, without a network,
with the kit's language model ({wire}). Seen is what an editor and the language model saw; nobody has looked into its
code. *Polite* clients send one prompt at a time, and the protocol's text promises them something. About what *free*
clients do the text is silent: what does not hold there breaks no promise, and a client has to know it."""
TABLE = """\
Agents of the Agent Client Protocol that nobody here wrote, judged by `make field`. Each script was played {times}
times; the cells count in how many plays which guarantee did not hold. *Polite* is what the protocol's text promises. In
*free* the text is silent, so a count there is a difference of meaning and not a broken promise. What showed in fewer
than {often:.0%} of the plays is in parentheses: a race that is hard to hit, or a busy machine; it is no finding."""

Judged = Mapping[str, Mapping[str, Any]]  # reports by mode


def page(agent: Listed, reports: Judged, day: date) -> str:
    """The page of one agent."""
    return "\n".join(_page(agent, reports, day)).rstrip() + "\n"


def _page(agent: Listed, reports: Judged, day: date) -> Iterator[str]:
    yield f"# {agent.name}, judged from outside\n\n{NOTE}\n"
    about = INTRODUCTION.format(package=agent.package, registry=agent.registry, day=day, wire=agent.wire)
    yield _filled(about) + "\n"
    yield "| clients | what was done | what did not hold |\n| --- | --- | --- |"
    for mode, report in reports.items():
        for script in report["scripts"]:
            yield f"| {mode} | `{script['script']}` | {_count(script, ', ') or 'nothing'} |"
    yield ""
    for mode, report in reports.items():
        for finding in list_broken(report):
            script = next(each for each in report["scripts"] if each["script"] == finding["script"])
            if not _is_often(script["showed"].get(finding["id"], 0), script["times"]):
                continue
            yield f"## {mode}: {finding['id']}\n"
            yield _filled(f"> {finding['says']}", "> ") + "\n"
            yield _filled(f"{'The text' if mode == 'polite' else 'What the text says'}: {finding['promise']}.") + "\n"
            showed = f"{script['showed'][finding['id']]} of {script['times']} plays of `{script['script']}`"
            yield _filled(f"Seen in {showed}: {finding['complaint']}") + "\n"
            yield f"```mermaid\n{finding['mermaid'].strip()}\n```\n"
            yield f"    {reproduce(agent, mode, script['script'])}\n"


def _is_often(showed: int, times: int) -> bool:
    return showed >= OFTEN * times


def _count(script: Mapping[str, Any], between: str) -> str:
    told = [f"{name} {n}/{script['times']}" for name, n in script["showed"].items()]
    often = [_is_often(n, script["times"]) for n in script["showed"].values()]
    return between.join(text if is_often else f"({text})" for text, is_often in zip(told, often))


def table(judged: Mapping[str, tuple[Listed, Judged]], skipped: Mapping[str, str], times: int) -> str:
    """All agents."""
    lines = [f"# The field\n\n{NOTE}\n", _filled(TABLE.format(times=times, often=OFTEN)) + "\n"]
    scripts = [(mode, each["script"]) for _, reports in list(judged.values())[:1] for mode, report in reports.items()
               for each in report["scripts"]]
    lines += ["| agent | " + " | ".join(f"{mode}: `{script}`" for mode, script in scripts) + " |",
              "| --- |" + " --- |" * len(scripts)]
    for name, (agent, reports) in judged.items():
        cells = [_count(each, "<br>") or "holds" for report in reports.values() for each in report["scripts"]]
        lines.append(f"| [{name}]({name}.md) {agent.package.rpartition('@' if agent.npm else '==')[2]} | "
                     + " | ".join(cells) + " |")
    if skipped:
        lines += ["\n## Not judged\n", *(f"- **{name}**: {why}" for name, why in skipped.items())]
    lines += ["\n## Again\n", "    make field                                   # all of it",
              "    python -m examples.field NAME                # one agent, installed and judged",
              "    python -m examples.field NAME --mode polite --script 'accept A, cancel'"]
    return "\n".join(lines) + "\n"


def _filled(words: str, indent: str = "") -> str:
    return fill(" ".join(words.split()), WIDTH, subsequent_indent=indent, break_long_words=False,
                break_on_hyphens=False)
