"""The family on the page: its calls, which property each adds or rewords, and every set of them.

Nothing is searched here: the figures are those of specs/family.md, as `make specs` has taken them along.
"""

import re
from collections.abc import Iterable
from html import escape
from itertools import combinations

from cancelmark.model.lifecycle import Feature
from cancelmark.model.properties import FAMILY_PROPERTIES, PROPERTIES, Property
from cancelmark.views.pages.family import name_features

from .reading import cite, specification
from .tables import draw_table

CALLS = {
    Feature.REVOKE: ("Cancel one prompt.", "R30"),
    Feature.STOP: ("Cancel what runs, and keep the queue; or hold the queue in the same step.", "R31"),
    Feature.HOLD: ("Nothing that waits starts until a resume. What runs goes on.", "R32"),
    Feature.REPLACE: ("Give a prompt that has not begun another text.", "R33"),
    Feature.NEXT: ("Move a waiting prompt to the front.", "R34"),
    Feature.REJECT: ("Accept a prompt only if the session is idle.", "R35"),
    Feature.INTERRUPT: ("Accept a prompt, put it to the front, and stop what runs.", "R35"),
}
ACROSS, DOWN = (Feature.REVOKE, Feature.STOP, Feature.HOLD), (
    Feature.REPLACE, Feature.NEXT, Feature.REJECT, Feature.INTERRUPT)


def family() -> str:
    """The section."""
    told = specification()["family"]
    mistakes = list(told["mistakes"])
    return (
        draw_table("The calls of the family", ("call", "what it does", "rule"), (
            (f"<code>{feature.value}</code>", escape(says), cite(rule)) for feature, (says, rule) in CALLS.items()),
            "actions-table")
        + f'<details class="more"><summary>Which properties change</summary>{draw_properties()}</details>'
        + draw_wording()
        + f'<details class="more"><summary>All {len(told["sets"])} sets of calls, with the states of each '
        f"search</summary>{draw_sets(told['sets'])}</details>"
        + '<details class="more"><summary>What known servers do, and what they give up</summary>'
        + draw_policies(told["policies"]) + "</details>"
        + f'<p class="note">{len(mistakes)} tempting mistakes were searched too, such as “{escape(mistakes[0])}”. '
        "Each breaks a property. Numbers in brackets count steps. All figures here are committed with the project.</p>")


def draw_properties() -> str:
    """For each property that changes: the features that add it, and those for which its sentence is another."""
    def cell(property: Property, feature: Feature) -> str:
        if property.feature is feature:
            return '<span class="says good">new</span>'
        return "reworded" if feature in property.reworded_for else ""

    changed = [*FAMILY_PROPERTIES, *(p for p in PROPERTIES if p.reworded_for)]
    return draw_table("Properties by feature", ("property", *(f.value for f in Feature)), (
        (f'<code title="{escape(p.in_family or p.sentence)}">{p.id}</code>', *(cell(p, f) for f in Feature))
        for p in changed), "matrix family-matrix")


def draw_wording() -> str:
    """The sentences that differ from those of the reference."""
    reworded = [p for p in PROPERTIES if p.reworded_for]
    table = draw_table("Properties as reworded", ("property", "what it says in the family"), (
        (f"<code>{p.id}</code>", escape(p.in_family or p.sentence)) for p in reworded), "actions-table")
    return f'<details class="more"><summary>How the {len(reworded)} reworded ones read</summary>{table}</details>'


def sets_of(features: Iterable[Feature]) -> list[tuple[Feature, ...]]:
    """Every set, the smaller ones first."""
    features = tuple(features)
    return [found for size in range(len(features) + 1) for found in combinations(features, size)]


def draw_sets(states: dict[str, str]) -> str:
    """A table of all sets: some features across, the others down, and in each cell how many states were searched."""
    def name(features: Iterable[Feature]) -> str:
        return " ".join(f.value for f in features) or "–"

    return draw_table("States of every set", ("with", *map(name, sets_of(ACROSS))), (
        (name(down), *(states[name_features((*across, *down))] for across in sets_of(ACROSS)))
        for down in sets_of(DOWN)), "counts", right=range(1, 9))


def draw_policies(policies: Iterable[list[str]]) -> str:
    """What known servers answer to two questions, and what each answer gives up."""
    def given_up(text: str) -> str:
        found = re.findall(r"\*\*([\w-]+)\*\* \((\d+)\): ([^<]+)", text)
        return ", ".join(f'<span title="{escape(trace)}"><code>{id}</code> ({steps})</span>'
                         for id, steps, trace in found) or "nothing"

    def question(text: str) -> str:
        return "on cancel" if "cancel" in text else "when busy"

    return draw_table("What known servers do", ("when", "answer", "gives up", "in the family"), (
        (question(asked), escape(answer), given_up(lost), re.sub(r"`([^`]+)`", r"<code>\1</code>", same))
        for asked, answer, lost, same in policies), "actions-table")
