"""The sections of the page, each as HTML."""

from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple

from cancelmark.model.delivery import DELIVERY, LOGGED
from cancelmark.model.examples import EXAMPLES, Example
from cancelmark.model.lifecycle import Row
from cancelmark.model.properties import Bounds, Property
from cancelmark.model.revisions.flaws import FLAWS, Flaw
from cancelmark.model.revisions.matrix import DELIVERY_BOUNDS, JUDGED, PROFILES
from cancelmark.views.drawing.plots import columns, growth, shares
from cancelmark.views.drawing.render import inline
from cancelmark.views.drawing.theme import PROMPT_LOOKS

from .dressing import draw_table
from .findings import CHECKED, GROWTH, LEVELS_PROFILE, REF, REVISIONS, Findings
from .payload import SENTENCES, change_traces, counterexample_traces, example_traces, flaw_traces
from .reading import bounds_text, cite, explain, explain_sentence
from .whatif import CHANGES, INSTEAD, SEEDED_CHANGES

# --- verdicts

def verdict(found: Findings) -> str:
    """The overall verdict, in figures."""
    wrong = found.wrong
    if wrong:
        items = "".join(f"<li>{escape(what)}</li>" for what in wrong)
        return f'<div class="verdict violated"><p><strong>The check failed.</strong></p><ul>{items}</ul></div>'
    broken = {flaw.name for flaw in FLAWS}
    figures = {
        f"{len(JUDGED)}": "properties of this protocol (the reference) verified",
        f"{found.checked[CHECKED[0]].states:,}": "states checked in the largest search for this page",
        f"{len(broken)}": f"named flaws found in {len(REVISIONS)} revisions of the original",
        "0": "of these flaws in this protocol",
    }
    items = "".join(f"<div><dt>{name}</dt><dd>{escape(figure)}</dd></div>" for figure, name in figures.items())
    reach = ('<a href="#holds">Within bounds</a>, every order of events was explored. All properties except delivery '
             'are also <a href="#checked-by-others">proved</a> for any number of prompts. Delivery (each client '
             f"receives each event once) was model-checked over {found.delivered[LOGGED.name].searched} states. Once "
             "clients make no more calls and every turn ends, every prompt is done.")
    return (f'<div class="verdict holds"><p><strong>All properties hold.</strong></p><dl>{items}</dl></div>'
            f'<p class="note">{reach}</p>')


class PropertyVerdict(NamedTuple):
    """The verdict on a property of the reference, and the largest search that checked it."""

    verdict: str
    states: int
    bounds: Bounds


def judge_property(found: Findings, property: Property) -> PropertyVerdict:
    if property is DELIVERY:
        verdict = "violated" if found.chapters[REF].cells[property.id].startswith("fails") else "holds"
        return PropertyVerdict(verdict, found.delivered[LOGGED.name].searched, DELIVERY_BOUNDS)
    searches = [c for c in found.checked.values() if c.verdicts[property.id] != "–"]
    broken = [c for c in searches if property.id in c.traces]
    widest = max(broken or searches, key=lambda c: c.states)
    return PropertyVerdict("violated" if broken else "holds", widest.states, widest.bounds)


HOLDS = '<span class="says good">✓<span class="unseen"> holds</span></span>'
DELIVERED = f"of a separate delivery model ({DELIVERY_BOUNDS.prompts} prompts, a subscriber that disconnects once)"


def properties(found: Findings) -> str:
    """The properties, by the search that checked them."""
    searches: dict[PropertyVerdict, list[Property]] = {}
    for p in JUDGED:
        searches.setdefault(judge_property(found, p)._replace(verdict=""), []).append(p)
    headings = ("property", "statement", "rules", "holds")
    head = "".join(f'<th scope="col">{heading}</th>' for heading in headings)
    body = ""
    for (_, states, bounds), judged_by_it in searches.items():
        within = DELIVERED if bounds is DELIVERY_BOUNDS else f"within {bounds_text(bounds)}"
        body += (f'<tbody><tr class="search"><th colspan="{len(headings)}" scope="rowgroup"><strong>{states:,} '
                 f"states</strong> {within}</th></tr>")
        for p in judged_by_it:
            good = judge_property(found, p).verdict == "holds"
            says = HOLDS if good else '<span class="says bad">✗ violated</span>'
            body += (f'<tr><th scope="row"><code>{p.id}</code></th><td>{explain_sentence(p.sentence)}</td>'
                     f'<td data-head="rules">{cite(", ".join(p.clauses))}</td><td>{says}</td></tr>')
        body += "</tbody>"
    widest = found.checked[CHECKED[0]]
    happen = f"{widest.possible - len(widest.unmet)} of the" if widest.unmet else "All"
    reach = (f"{happen} {widest.possible} transitions, outcomes and actions are reached in the largest search. "
             "Each check can fail: every property is violated by at least one change in the "
             'section <a href="#whatif">What if …</a>, and delivery by <a href="#history">r0–r4</a>.')
    traces = "".join(
        f'<details open><summary>{id} is violated within {bounds_text(c.bounds)}</summary><pre tabindex="0">'
        f"{escape(text)}</pre></details>" for c in found.checked.values() for id, text in c.traces.items())
    return (f'<table class="properties-table"><caption class="unseen">The properties of the reference</caption>'
            f'<thead><tr>{head}</tr></thead>{body}</table><p class="note">{reach}</p>{traces}')


# --- guarantees

REPEATED = "cancel-on-entry"  # "Why it works" has already shown it
FIRST = 3  # examples that are always visible


def guarantees(found: Findings) -> str:
    drawn = {trace.id for trace in example_traces(found)}

    def article(e: Example) -> str:
        return (f'<article><h3>{escape(e.title)} <small>{cite(e.rule)}</small></h3><p>{escape(e.says)}</p>'
                f'<div class="sequence still" data-draw="example/{e.name}" tabindex="0" role="group" '
                f'aria-label="{escape(e.title)}, as a sequence diagram"></div></article>')

    shown = [article(e) for e in EXAMPLES if f"example/{e.name}" in drawn and e.name != REPEATED]
    return (f'<div class="stories-grid">{"".join(shown[:FIRST])}</div>'
            f'<details class="more"><summary>{len(shown) - FIRST} more</summary>'
            f'<div class="stories-grid">{"".join(shown[FIRST:])}</div></details>')


# --- history

def matrix(found: Findings) -> str:
    def cell(name: str, property: str) -> str:
        says, _, steps = found.chapters[name].cells[property].partition(" ")
        if says == "holds":
            return HOLDS
        if says == "–":
            return '<span class="says none" title="not modelled there">–</span>'
        trace = f"{name}/{property}"
        if trace not in known:
            return f'<span class="says bad">✗ {steps}</span>'
        return (f'<button type="button" class="fails" data-show="{trace}"><span aria-hidden="true">✗</span> {steps}'
                f'<span class="unseen"> steps: how {name} violates {property}</span></button>')

    known = {trace.id for trace in counterexample_traces(found)}
    heads = [f'<abbr title="{escape(c.column.title)}">{c.name}</abbr>' for c in found.chapters.values()]
    table = draw_table("The verdict matrix: properties by revision", ("property", *heads), (
        (f'<code title="{escape(p.sentence)}">{p.id}</code>', *(cell(name, p.id) for name in found.chapters))
        for p in JUDGED), "matrix")
    revisions = "".join(f"<div><dt>{c.name}</dt><dd>{escape(c.column.title)} <span>{c.column.states:,} states</span>"
                        "</dd></div>" for c in found.chapters.values())
    lead = ('<h3>Violated properties</h3><p class="note">The number is the length of the shortest counterexample; '
            "click it to step through. “–” means not modelled: r0–r4 are modelled with one session and without "
            f"crashes, r0–r3 without {explain('[[close]]')}, r0 without cancel on entry. All columns, including ref, "
            "use smaller bounds than the table above.</p>")
    return f'{lead}{table}<dl class="revisions">{revisions}</dl>'


STORY = (
    "r0 gave prompts no number and used no lock. A cancel found only running and queued prompts, and missed those that "
    "had not entered. Prompts ran concurrently, were stranded in the queue, or finished without an event.",
    "r1 recorded a cancel as a flag, r2–r4 as a mark. But a mark needs a number on every prompt: [[in-process "
    "prompts|in process]] (e.g. of sub-agents) had none, and a [[requeued|requeue]] turn lost its own. Also, "
    "[[handoff]] and [[clear_queue]] were not atomic, so other calls could interleave.",
    "r4 never starts the prompts that are queued when a turn fails, lets clear_queue end a prompt that then runs, and "
    "publishes a prompt's terminal event only after all prompts queued behind it have run.",
    "The reference gives every prompt a seq, makes every action atomic, and writes the terminal event in the step in "
    "which the prompt finishes.",
)
TOLD = "queue-stranded-by-error"  # the easiest flaw of the merged version to understand


def story() -> str:
    """What was wrong, and what the reference adds."""
    lines = "".join(f"<p>{explain(escape(line))}</p>" for line in STORY)
    return (f'<h3>What was wrong</h3><div class="story">{lines}</div><button type="button" data-show="flaw/{TOLD}">'
            f"See how {REVISIONS[-1]} strands a prompt in the queue</button>")


def flaws_of(name: str) -> set[str]:
    return {flaw.name for flaw in FLAWS if name in flaw.revisions}


def ladder() -> str:
    """How many flaws each revision has, which of them its repair ended, and which came with the repair."""
    def links(names: set[str]) -> str:
        listed = [f'<a href="#flaw-{flaw.name}">{flaw.name}</a>' for flaw in FLAWS if flaw.name in names]
        return ", ".join(listed) or "none"

    rows, was = [], set[str]()
    for name in (*REVISIONS, REF):
        now = flaws_of(name)
        first = name == REVISIONS[0]
        repaired = "–" if first else links(was - now) if name != REF else f"all {len(was)}"
        new = f"{len(now)}, from the start" if first else links(now - was)
        rows.append((name, str(len(now)), str(len(now - was)) if not first else "–", repaired, new))
        was = now
    returned = [flaw.name for flaw in FLAWS if ", " in flaw.where]
    again = f"{', '.join(returned)} was fixed and later reintroduced." if returned else ""
    last = REVISIONS[-1]
    merged, before = flaws_of(last), set[str]().union(*map(flaws_of, REVISIONS[:-1]))
    return ("<h3>Flaws per revision</h3><p class=\"note\">"
            f"The merged version, {last}, has {len(merged)} flaws: {len(merged & before)} from earlier revisions, and "
            f"{len(merged - before)} introduced by the last fix. {again}</p>" + draw_table(
                "Number of flaws per revision", ("revision", "flaws", "new"), (row[:3] for row in rows),
                "ladder brief", right=(1, 2))
            + '<details class="more"><summary>Flaws fixed and introduced by each revision</summary>'
            + draw_table("Flaws fixed and introduced", ("revision", "fixed", "introduced"),
                         ((row[0], *row[3:]) for row in rows), "ladder") + "</details>")


def flaws(found: Findings) -> str:
    drawn = {trace.id: trace for trace in flaw_traces(found)}
    last = REVISIONS[-1]

    def article(flaw: Flaw) -> str:
        trace = drawn.get(f"flaw/{flaw.name}")
        show = "" if trace is None else (
            f'<button type="button" data-show="flaw/{flaw.name}">{len(trace.path)} steps'
            f'<span class="unseen"> of {flaw.name}</span></button>')
        still = " data-still" if last in flaw.revisions else ""
        return (f'<article id="flaw-{flaw.name}"{still}><h4>{flaw.name}</h4><p class="says-it">{escape(flaw.says)}</p>'
                f'<p class="tags"><span>in {flaw.where}</span></p>'
                f'<p class="told" data-told="flaw/{flaw.name}"></p>{show}</article>')

    order = [p.id for p in JUDGED]
    ordered = groupby(sorted(FLAWS, key=lambda f: order.index(f.breaks)), key=lambda f: f.breaks)
    still = (f'<p class="filter"><label><input type="checkbox" id="still"> only the {len(flaws_of(last))} in '
             f"{last}, the merged version</label></p>")
    return still + "".join(
        f'<details class="broken-by"><summary><h3 class="breaks-title"><code>{id}</code> '
        f'<span>{escape(SENTENCES[id])}</span> <small>{len(group)}</small></h3></summary>'
        f'<div class="flaws-grid">{"".join(map(article, group))}</div></details>'
        for id, group in ((id, list(group)) for id, group in ordered))


# --- what if

def whatif(found: Findings) -> str:
    """The changed protocols, each with the properties that it violates."""
    known = {trace.id for trace in change_traces(found)}

    def broken(id: str) -> str:
        result = found.changed[id]
        cells = [f'<button type="button" class="fails" data-show="{id}/{p}">{p} <span aria-hidden="true">✗</span> '
                 f'{len(walk)}<span class="unseen"> step{"s" if len(walk) > 1 else ""}</span></button>'
                 if f"{id}/{p}" in known else
                 f'<span class="says bad">{p} ✗</span>' for p, walk in result.broken.items()]
        also = "" if result.broken else "violates no property, but "
        goals = [goal.replace("row ", "transition ", 1) for goal in result.unmet]
        cells += [f'<span class="says none">{also}{escape(goal)} is unreachable</span>' for goal in goals]
        return " ".join(cells) or HOLDS

    def rows(ids: Iterable[str]) -> Iterable[Sequence[str]]:
        return ((f'<a href="#play/{id}/">{escape(CHANGES[id].title)}</a>', broken(id)) for id in ids)

    shown = [change.id for change in (*INSTEAD, *SEEDED_CHANGES)]
    return (f'<details class="more"><summary>{len(shown)} changes, and what each violates</summary>' + draw_table(
        "Changed protocols, and what each violates", ("what if …", "violates"), rows(shown), "whatif-table")
        + "</details>")


# --- rows, figures, limits

def rows_table(rows: Iterable[Row]) -> str:
    """The transition table that the lifecycle diagram is drawn from."""
    return draw_table("Transition table", ("trigger", "from", "to", "when", "outcome", "rule"), (
        (f"<code>{row.trigger.value}</code>", row.source.value.replace("_", " "), row.dest.value.replace("_", " "),
         escape(row.condition) or "–", row.outcome.value if row.outcome else "–", cite(row.rule)) for row in rows),
        "actions-table")


def figures(found: Findings) -> str:
    widest = found.checked[CHECKED[0]]
    series = {name: [found.checked[b].states for b in bounds] for name, bounds in GROWTH.items()}
    legend = "".join(f'<li><span class="swatch {kind}"></span>{kind.replace("_", " ")}</li>' for kind in PROMPT_LOOKS)
    depth = columns("States by depth", widest.levels, "steps from the start", "states")
    doing = shares("States of prompts by depth", [level.prompts for level in found.levels], [*PROMPT_LOOKS],
                   "steps from the start", "prompts")
    grows = growth("States by the number of prompts", series, "prompts", "states")
    return f"""<details class="more"><summary>Charts of {len(found.checked)} searches of the reference</summary>
<div class="plots">
<figure>{inline(depth)}<figcaption>States by depth in the largest search: {widest.states:,}.</figcaption>
</figure>
<figure>{inline(doing)}<figcaption>States of prompts by depth, in the
{sum(level.states for level in found.levels):,} states within {bounds_text(LEVELS_PROFILE.bounds)}.
<ul class="legend">{legend}</ul></figcaption></figure>
<figure>{inline(grows)}<figcaption>States by the number of prompts (log scale).</figcaption></figure>
</div></details>"""


def limits(found: Findings) -> dict[str, str]:
    """The largest bounds checked, for the section "Not checked"."""
    return {
        "most_prompts": str(max(b.prompts for b in found.checked)),
        "most_sessions": str(max(b.sessions for b in found.checked)),
        "profiles": f"{len(PROFILES)} sets of bounds, each of at most {max(p.bounds.prompts for p in PROFILES)} "
                    f"prompts (such as {bounds_text(PROFILES[0].bounds)})",
    }
