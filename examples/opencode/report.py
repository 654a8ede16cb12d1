"""The report of a field test, as Markdown. Every fact in it is from the trial; what it means is in `adapter`."""

from collections.abc import Iterable, Iterator
from datetime import date
from inspect import getdoc
from textwrap import fill

from cancelmark.conformance.report import Status, Verdict
from cancelmark.conformance.report.exchange import exchange_text
from examples.opencode import adapter
from examples.opencode.adapter import NOTES, PROMISES
from examples.opencode.circumstances import InUse, JustStarted, Killed
from examples.opencode.trial import TIMES, Shown, Trial

WIDTH = 120

INTRODUCTION = """\
This is the conformance kit on a server that we did not write: opencode {version}, `opencode-ai` in the npm
registry, as it was on {day:%-d %B %Y}, with the kit's fake language model, and with updates, sharing, downloads and
default plugins switched off. It is a different product with promises of its own, and most of our guarantees are not
among them. So this says of each guarantee whether opencode's own description promises it, and what was seen. What
is not promised and does not hold is not a fault; it is something that a client has to know."""

SEEN = """\
Seen is what clients and the language model saw, and nothing else: nobody has looked into opencode's code, and why
it does what it does is not said here. `make field OPENCODE={version}` does all of it again."""

COUNTS = """\
Promised means that we read it out of the server's description of itself; the readings are below. {histories}
histories were played on a server in use, and the right column counts those that put the guarantee to the test. What
did not hold has shown in at least {times} plays that were made after it was found."""

SELDOM = """\
It showed while the kit searched, or in a few plays, and in fewer than {times} of those that were made after it was
found. That may be a race that is hard to hit, or a machine that was too busy. It is not counted as something that
does not hold."""

QUOTES = """\
The words in quotes are those of `GET /doc` of the server that was judged. The readings are ours."""

EARLIER = """\
An earlier trial, of opencode 1.18.33, found what follows. Each was played again, by the line that stands with it."""

CIRCUMSTANCES = {kind.circumstances: (getdoc(kind) or "").partition(".")[0].lower()
                 for kind in (InUse, JustStarted, Killed)}


def markdown(trial: Trial, version: str, day: date) -> str:
    """The whole report."""
    return "\n".join(_lines(trial, version, day)).rstrip() + "\n"


def _lines(trial: Trial, version: str, day: date) -> Iterator[str]:
    yield "# opencode, judged from outside\n"
    yield "<!-- Written by `make field`. What it says about the facts is in examples/opencode/adapter.py. -->\n"
    yield from _text(INTRODUCTION.format(version=version, day=day))
    yield from _text(SEEN.format(version=version))
    yield "| guarantee | what it says | promised | seen |"
    yield "| --- | --- | --- | --- |"
    for verdict in trial.report.verdicts:
        promised = "yes" if verdict.guarantee in PROMISES else "no"
        yield f"| **{verdict.guarantee}** | {verdict.sentence} | {promised} | {_seen(verdict, trial)} |"
    yield ""
    yield from _text(COUNTS.format(histories=trial.report.histories, times=TIMES))
    broken = list(dict.fromkeys(shown.guarantee for shown in trial.shown))
    yield from _part("What is promised and did not hold", [g for g in broken if g in PROMISES], trial)
    yield from _part("What is not promised and does not hold", [g for g in broken if g not in PROMISES], trial)
    if trial.seldom:
        yield "## What was seen too seldom\n"
        yield from _text(SELDOM.format(times=TIMES))
        for shown in trial.seldom:
            yield f"### {shown.guarantee}, perhaps\n"
            yield from _history(shown)
    if trial.earlier:
        yield "## What an earlier trial found\n"
        yield from _text(EARLIER)
        for guarantee, line, times, of in trial.earlier:
            becomes = "shows again" if times else "is withdrawn, as it did not show"
            yield f"- **{guarantee}** {becomes}, in {times} of {of} plays:\n  `{line}`"
        yield ""
    yield "## What its description promises\n"
    yield from _text(QUOTES)
    for operation in dict.fromkeys(promise.operation for promise in PROMISES.values()):
        yield from _text(f"`{operation}`: “{trial.description[operation]}”")
        for guarantee, promise in PROMISES.items():
            if promise.operation == operation:
                yield _filled(f"- **{guarantee}**: {promise.reading}", "  ")
        yield ""
    yield "## How its wire was read\n"
    yield (getdoc(adapter) or "").partition("\n\n")[2] + "\n"
    yield from _text("A server is " + "; ".join(f"*{name}*: {what}" for name, what in CIRCUMSTANCES.items()) + ".")


def _seen(verdict: Verdict, trial: Trial) -> str:
    if where := _where(verdict.guarantee, trial.shown):
        return f"{'**broken**' if verdict.guarantee in PROMISES else 'does not hold'}: {where}"
    if where := _where(verdict.guarantee, trial.seldom):
        return f"held, in nearly all histories; see below: {where}"
    if verdict.status in (Status.NOT_OBSERVABLE, Status.NOT_TESTED):
        return f"not shown: {verdict.why}"
    return f"kept, in {verdict.shown} histories"


def _where(guarantee: str, shown: Iterable[Shown]) -> str:
    return ", ".join(dict.fromkeys(each.circumstances for each in shown if each.guarantee == guarantee))


def _part(title: str, guarantees: list[str], trial: Trial) -> Iterator[str]:
    yield f"## {title}\n"
    if not guarantees:
        yield "Nothing that was seen.\n"
    for guarantee in guarantees:
        yield f"### {guarantee}\n"
        yield from _text(f"> {trial.report.verdict(guarantee).sentence}", "> ")
        if promise := PROMISES.get(guarantee):
            quote = trial.description[promise.operation]
            yield from _text(f"opencode says of `{promise.operation}`: “{quote}” {promise.reading}")
        if note := NOTES.get(guarantee):
            yield from _text(note)
        for shown in trial.shown:
            if shown.guarantee == guarantee:
                yield from _history(shown)


def _history(shown: Shown) -> Iterator[str]:
    done, says = shown.finding.script.steps, shown.finding.says(shown.guarantee)
    yield from _text(f"A server {shown.circumstances}. What was done: `{done}`. What was seen, in {shown.times} of "
                     f"{shown.of} plays: {says}")
    yield f"```text\n{exchange_text(shown.finding.history.observations)}\n```\n"
    yield f"    {shown.finding.reproduce}\n"


def _text(words: str, indent: str = "") -> list[str]:
    return [_filled(words, indent), ""]


def _filled(words: str, indent: str) -> str:
    return fill(words, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
