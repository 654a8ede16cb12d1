"""The model as Markdown: the generated tables and pages of specs/."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from cancelmark.model.ask import ASK_ACTIONS
from cancelmark.model.check.explore import Result
from cancelmark.model.cluster.bounds import BOUNDS, DEEP_BOUNDS, LOG_BOUND, LOG_STATES, Bound
from cancelmark.model.cluster.flaws import ALL_FLAWS, find_history, find_unfenced_tool
from cancelmark.model.cluster.flaws import ClusterFlaw as ClusterFlaw
from cancelmark.model.cluster.log import LOG_PROPERTIES
from cancelmark.model.cluster.properties import CLUSTER_PROPERTIES
from cancelmark.model.effects import ASK_EFFECTS, EFFECTS, Effect
from cancelmark.model.family import FAMILY_ACTIONS, FAMILY_GUARD_MEANING, FEATURE_OF
from cancelmark.model.family_properties import ASK_PROPERTIES, FAMILY_PROPERTIES, REWORDED
from cancelmark.model.lifecycle import GUARD_MEANING, Symbol
from cancelmark.model.protocol import REFERENCE, Protocol
from cancelmark.model.revisions.flaws import FLAWS, Flaw
from cancelmark.model.revisions.matrix import JUDGED, PROFILES, REFERENCE_PROFILE, Column, Rung, ladder
from cancelmark.model.wire import EVENTS, FINISH_REASONS, REFUSALS, REQUESTS, RUN_COMPLETE, SEEN
from cancelmark.views.pages.cluster import tell_history
from cancelmark.views.pages.tables import KINDS, matrix_table, table
from cancelmark.views.traces.sequence import trace_mermaid


def rows_table(protocol: Protocol = REFERENCE) -> str:
    return table(("trigger", "from", "to", "guards", "outcome", "rule"), (
        (f"`{r.trigger.value}`", r.source.value, r.dest.value, r.condition or "–",
         r.outcome.value if r.outcome else "–", r.rule) for r in protocol.rows))


def guards_table(meaning: Mapping[Symbol, str] = GUARD_MEANING) -> str:
    return table(("guard", "holds when"), ((f"`{guard.value}`", when) for guard, when in meaning.items()))


def actions_table(protocol: Protocol = REFERENCE) -> str:
    return table(("action", "actor", "guard", "what it does", "rule"), (
        (f"`{a.name}`", a.actor.value, a.guard, a.effect, a.rule) for a in protocol.actions))


def family_properties_table() -> str:
    """The properties that features reword or add."""
    return table(("property", "with", "statement", "rules"), (
        (f"**{p.id}**", ", ".join(sorted(f.value for f in p.needs)), p.sentence, ", ".join(p.clauses))
        for p in (*REWORDED.values(), *FAMILY_PROPERTIES, *ASK_PROPERTIES)))


DETAILS = {"into": " into *q*", "outcome": " with an outcome", "ask": ".*n*", "answer": " with an answer"}


def effects_table(effects: Iterable[type[Effect]]) -> str:
    return table(("effect", "what it does"), (
        (f"{effect.kind} *p*{''.join(DETAILS[name] for name in effect.details)}",
         f"{(effect.__doc__ or '').split('. ')[0].strip().rstrip('.')}.") for effect in effects))


def counts_table(results: Iterable[Result]) -> str:
    return table(("bounds", "states", "edges", "depth", "verdict"), (
        (r.bounds, f"{r.states:,}", f"{r.edges:,}", r.depth, r.verdict) for r in results), right=(1, 2, 3))


# --- revisions

def ladder_text(columns: Sequence[Column]) -> str:
    return "\n".join(_rung_text(rung) for rung in ladder(columns))


def _rung_text(rung: Rung) -> str:
    def join_names(names: Sequence[str]) -> str:
        return ", ".join(names) or "none"

    return f"""### {rung.before.name} → {rung.after.name}

{rung.after.title[0].upper()}{rung.after.title[1:]}.

- flaws fixed: {join_names([f"[{n}](flaws.md#{n})" for n in rung.flaws(before=True, after=False)])}
- flaws introduced: {join_names([f"[{n}](flaws.md#{n})" for n in rung.flaws(before=False, after=True)])}
- flaws remaining: {len(rung.flaws(before=True, after=True))}
- properties that now hold: {join_names(rung.properties(before=True, after=False))}
- properties that now fail: {join_names(rung.properties(before=False, after=True))}
- properties that still fail: {join_names(rung.properties(before=True, after=True))}
"""


def revisions_page(columns: Sequence[Column]) -> str:
    revisions = table(("revision", "description", "states explored"), (
        (c.name, c.title, f"{c.states:,}") for c in columns), right=(2,))
    profiles = table(("bounds", "prompts", "description"), (
        (p.bounds, ", ".join(KINDS[kind] for kind in p.accepts), p.why) for p in (*PROFILES, REFERENCE_PROFILE)))
    return f"""# Revisions of the original protocol, checked

The original protocol was fixed in several steps. Each revision is modelled at the granularity of its locks
(`model/revisions/`) and explored exhaustively within the profiles below. A number is the length of the shortest
counterexample; – means that the property does not apply to the revision. `cancelmark revisions` computes this table in
about a minute, and [flaws.md](flaws.md) describes the flaws.

{matrix_table(columns)}
{revisions}
## Profiles

{profiles}
## Flaws per revision

A property can fail for several reasons, so a fix can remove a flaw before the property holds in the matrix.

{ladder_text(columns)}"""


# --- flaws

def flaws_page() -> str:
    index = table(("flaw", "violates", "in"), (
        (f"[{f.name}](#{f.name})", f.breaks, f.where) for f in FLAWS))
    stories = "\n".join(_flaw_text(f) for f in FLAWS)
    return f"""# Flaws of the original protocol, by name

Each diagram shows the shortest interleaving that exhibits the flaw, found by exploring the model of the latest affected
revision. `cancelmark explain NAME` shows it in the terminal. The reference protocol has none of these flaws:
`cancelmark check` explores it exhaustively.

{index}
{stories}"""


def _flaw_text(flaw: Flaw) -> str:
    trace = flaw.trace(flaw.latest)
    assert trace is not None, f"{flaw.name} is not found in {flaw.latest}"
    repaired = f"fixed in {flaw.repaired}" if flaw.repaired else "never fixed"
    return f"""## {flaw.name}

Violates **{flaw.breaks}** · in {flaw.where} · {repaired}

**{flaw.says}** {flaw.tale}

*Ruled out by:* {flaw.ruled_out}

```mermaid
{trace_mermaid(trace).rstrip()}
```
"""


TABLES: Mapping[str, Callable[[], str]] = {
    "guards": guards_table,
    "rows": rows_table,
    "actions": actions_table,
    "family_guards": lambda: guards_table({guard: when for guard, when in FAMILY_GUARD_MEANING.items()
                         if GUARD_MEANING.get(guard) != when}),
    "family_actions": lambda: table(("feature", "action", "actor", "guard", "what it does", "rule"), (
        (FEATURE_OF[a.name].value, f"`{a.name}`", a.actor.value, a.guard, a.effect, a.rule)
        for a in (*FAMILY_ACTIONS, *ASK_ACTIONS))),
    "family_properties": family_properties_table,
    "effects": lambda: effects_table(EFFECTS),
    "ask_effects": lambda: effects_table(ASK_EFFECTS),
    "requests": lambda: table(("request", "meaning", "response"), (
        (f"`{r.method} {r.path}`", r.does, f"{r.status}: {r.answer}") for r in REQUESTS)),
    "refusals": lambda: table(("status", "the prompt is not accepted because"), ((r.status, r.when) for r in REFUSALS)),
    "run_complete": lambda: table(("field", "meaning", "present if"), (
        (f"`{name}`", field.says, field.when) for name, field in RUN_COMPLETE.items())),
    "events": lambda: table(("type", "content", "can be lost"), ((f"`{e.name}`", e.says, e.lost) for e in EVENTS)),
    "finish_reasons": lambda: table(("outcome", "finish reason of the last assistant message"), (
        (f.outcome.value, f.reason) for f in FINISH_REASONS)),
    "seen": lambda: table(("state", "how a client can tell"), ((state.value, how) for state, how in SEEN.items())),
    "properties": lambda: table(("property", "kind", "statement", "rules"), (
        (f"**{p.id}**", p.kind.value, p.sentence, ", ".join(p.clauses)) for p in JUDGED)),
}
"""The generated sections of specs/protocol.md, by the names of their markers."""


# --- the cluster

def cluster_properties_table() -> str:
    broken_by = {p.id: [f"[{f.name}](#{f.name})" for f in ALL_FLAWS if f.property == p.id]
                 for p in (*CLUSTER_PROPERTIES, *LOG_PROPERTIES)}
    return table(("property", "kind", "statement", "violated by"), (
        (f"`{p.id}`", p.kind.value, p.sentence, ", ".join(broken_by[p.id]))
        for p in (*CLUSTER_PROPERTIES, *LOG_PROPERTIES)))


def cluster_bounds_table() -> str:
    def row(bound: Bound, where: str) -> tuple[str, str, str, str]:
        return str(bound.budget), bound.protocol.name, f"{bound.states:,}", where

    return table(("bounds", "protocol", "states", "explored by"), (
        *(row(b, "`make test`") for b in BOUNDS), *(row(b, "`make test-deep`") for b in DEEP_BOUNDS),
        (f"the log: {LOG_BOUND}", "–", f"{LOG_STATES:,}", "`make test`")), right=[2])


def cluster_flaws_text() -> str:
    index = table(("flaw", "leaves out", "violates", "steps"), (
        (f"[{f.name}](#{f.name})", f.clause, f"`{f.property}`", str(len(find_history(f)))) for f in ALL_FLAWS),
        right=[3])
    return index + "".join(map(_cluster_flaw_text, ALL_FLAWS))


def _cluster_flaw_text(flaw: ClusterFlaw) -> str:
    return f"""
### {flaw.name}

Leaves out **{flaw.clause}** and violates `{flaw.property}`: {flaw.says}

![{flaw.name}: the shortest history](diagrams/cluster/{flaw.name}.svg)
"""


def unfenced_tool_text() -> str:
    return f"```text\n{tell_history(find_unfenced_tool())}```\n"


CLUSTER_SECTIONS: Mapping[str, Callable[[], str]] = {
    "properties": cluster_properties_table,
    "bounds": cluster_bounds_table,
    "flaws": cluster_flaws_text,
    "tool": unfenced_tool_text,
}
"""The generated sections of specs/cluster.md, by the names of their markers."""
