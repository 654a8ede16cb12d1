"""The model as Markdown: the tables and pages of specs/ that nobody writes by hand."""

from collections.abc import Iterable, Mapping, Sequence

from cancelmark.model.actions import Variant
from cancelmark.model.check.explore import Result
from cancelmark.model.effects import EFFECTS
from cancelmark.model.family import FAMILY_ACTIONS, FAMILY_GUARD_MEANING, FEATURE_OF
from cancelmark.model.family_properties import FAMILY_PROPERTIES, REWORDED
from cancelmark.model.lifecycle import GUARD_MEANING, Symbol
from cancelmark.model.protocol import REFERENCE, Protocol
from cancelmark.model.revisions.flaws import FLAWS, Flaw
from cancelmark.model.revisions.matrix import JUDGED, PROFILES, REFERENCE_PROFILE, Column, Rung, ladder
from cancelmark.model.wire import EVENTS, FINISH_REASONS, REFUSALS, REQUESTS, RUN_COMPLETE, SEEN

from ..traces.sequence import trace_mermaid


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], right: Iterable[int] = ()) -> str:
    """A Markdown table; columns in `right` are aligned to the right."""
    rule = ["---:" if i in set(right) else "---" for i in range(len(headings))]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (headings, rule, *rows)) + "\n"


def rows_table(protocol: Protocol = REFERENCE) -> str:
    return table(("trigger", "from", "to", "guards", "outcome", "rule"), (
        (f"`{r.trigger.value}`", r.source.value, r.dest.value, r.condition or "–",
         r.outcome.value if r.outcome else "–", r.rule) for r in protocol.rows))


def guards_table(meaning: Mapping[Symbol, str] = GUARD_MEANING) -> str:
    return table(("guard", "holds when"), ((f"`{guard.value}`", when) for guard, when in meaning.items()))


def family_guards_table() -> str:
    """The guards that the family answers otherwise, or adds."""
    return guards_table({guard: when for guard, when in FAMILY_GUARD_MEANING.items()
                         if GUARD_MEANING.get(guard) != when})


def actions_table(protocol: Protocol = REFERENCE) -> str:
    return table(("action", "taken by", "guard", "what it does", "rule"), (
        (f"`{a.name}`", a.actor.value, a.guard, a.effect, a.rule) for a in protocol.actions))


def family_actions_table() -> str:
    return table(("feature", "action", "taken by", "guard", "what it does", "rule"), (
        (FEATURE_OF[a.name].value, f"`{a.name}`", a.actor.value, a.guard, a.effect, a.rule)
        for a in FAMILY_ACTIONS))


def family_properties_table() -> str:
    """The properties that features reword or add."""
    return table(("property", "with", "what it says", "rules"), (
        (f"**{p.id}**", ", ".join(sorted(f.value for f in p.needs)), p.sentence, ", ".join(p.clauses))
        for p in (*REWORDED.values(), *FAMILY_PROPERTIES)))


DETAILS = {"into": " into *q*", "outcome": " with an outcome"}


def effects_table() -> str:
    return table(("effect", "what it asks for"), (
        (f"{effect.kind} *p*{''.join(DETAILS[name] for name in effect.details)}",
         f"{(effect.__doc__ or '').split('. ')[0].strip().rstrip('.')}.") for effect in EFFECTS))


def properties_table() -> str:
    return table(("property", "kind", "what it says", "rules"), (
        (f"**{p.id}**", p.kind.value, p.sentence, ", ".join(p.clauses)) for p in JUDGED))


# --- the wire

def requests_table() -> str:
    return table(("request", "what it does", "answer"), (
        (f"`{r.method} {r.path}`", r.does, f"{r.status}: {r.answer}") for r in REQUESTS))


def refusals_table() -> str:
    return table(("status", "nothing is accepted, because"), ((r.status, r.when) for r in REFUSALS))


def run_complete_table() -> str:
    return table(("field", "what it says", "when it is there"), (
        (f"`{name}`", field.says, field.when) for name, field in RUN_COMPLETE.items()))


def events_table() -> str:
    return table(("type", "what it says", "lost"), ((f"`{e.name}`", e.says, e.lost) for e in EVENTS))


def finish_reasons_table() -> str:
    return table(("outcome", "finish reason of the last assistant message"), (
        (f.outcome.value, f.reason) for f in FINISH_REASONS))


def seen_table() -> str:
    return table(("state", "how a client can tell"), ((state.value, how) for state, how in SEEN.items()))


def counts_table(results: Iterable[Result]) -> str:
    return table(("bounds", "states", "edges", "depth", "verdict"), (
        (r.bounds, f"{r.states:,}", f"{r.edges:,}", r.depth, r.verdict) for r in results), right=(1, 2, 3))


# --- revisions

KINDS: dict[Variant, str] = {False: "no run id", True: "run id", "in process": "in process"}


def matrix_table(columns: Sequence[Column]) -> str:
    """Property by revision; a number is the length of the shortest counterexample."""
    return table(("property", *(c.name for c in columns)), (
        (p.id, *(c.cell(p.id).replace("fails", "**fails**") for c in columns)) for p in JUDGED))


def ladder_text(columns: Sequence[Column]) -> str:
    return "\n".join(_rung_text(rung) for rung in ladder(columns))


def _rung_text(rung: Rung) -> str:
    def join_names(names: Sequence[str]) -> str:
        return ", ".join(names) or "nothing"

    return f"""### {rung.before.name} → {rung.after.name}

{rung.after.title[0].upper()}{rung.after.title[1:]}.

- flaws repaired: {join_names([f"[{n}](flaws.md#{n})" for n in rung.flaws(before=True, after=False)])}
- flaws that came with it: {join_names([f"[{n}](flaws.md#{n})" for n in rung.flaws(before=False, after=True)])}
- flaws left: {len(rung.flaws(before=True, after=True))}
- properties that hold from here on: {join_names(rung.properties(before=True, after=False))}
- properties that fail from here on: {join_names(rung.properties(before=False, after=True))}
- properties that still fail: {join_names(rung.properties(before=True, after=True))}
"""


def revisions_page(columns: Sequence[Column]) -> str:
    revisions = table(("revision", "what it is", "states searched"), (
        (c.name, c.title, f"{c.states:,}") for c in columns), right=(2,))
    profiles = table(("bounds", "prompts", "why"), (
        (p.bounds, ", ".join(KINDS[kind] for kind in p.accepts), p.why) for p in (*PROFILES, REFERENCE_PROFILE)))
    return f"""# The protocol's history, checked

The original protocol was repaired step by step. Each step is modelled at the granularity of its locks
(`model/revisions/`) and searched exhaustively within the profiles below. A number is the length of the shortest
counterexample, and – stands where a property cannot fail, because what it speaks of is not there. `cancelmark
revisions` computes this table in about a minute, and [flaws.md](flaws.md) tells the stories behind it.

{matrix_table(columns)}
{revisions}
## What was searched

{profiles}
## The repair ladder

A property can fail for several reasons, so a repair shows in the flaws before it shows in the matrix.

{ladder_text(columns)}"""


# --- flaws

def flaws_page() -> str:
    index = table(("flaw", "breaks", "in"), (
        (f"[{f.name}](#{f.name})", f.breaks, f.where) for f in FLAWS))
    stories = "\n".join(_flaw_text(f) for f in FLAWS)
    return f"""# Flaws of the original protocol, by name

Each flaw is a story. Its diagram is the shortest interleaving that tells it, found by searching the model of the
latest revision that has it; `cancelmark explain NAME` shows it in the terminal. The reference protocol has none of
them: `cancelmark check` searches it exhaustively.

{index}
{stories}"""


def _flaw_text(flaw: Flaw) -> str:
    trace = flaw.trace(flaw.latest)
    assert trace is not None, f"{flaw.name} is not found in {flaw.latest}"
    repaired = f"repaired in {flaw.repaired}" if flaw.repaired else "never repaired"
    return f"""## {flaw.name}

Breaks **{flaw.breaks}** · in {flaw.where} · {repaired}

**{flaw.says}** {flaw.tale}

*Ruled out by:* {flaw.ruled_out}

```mermaid
{trace_mermaid(trace).rstrip()}
```
"""
