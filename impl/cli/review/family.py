"""The family on the page: its calls, which property each adds or rewords, and what was searched.

Nothing is searched here: the figures are those of specs/family.md, as `make specs` has taken them along.
"""

import re
from collections.abc import Iterable
from html import escape

from cancelmark.model.calls import CALLS
from cancelmark.model.family import Feature
from cancelmark.model.family_properties import FAMILY_PROPERTIES, REWORDED, FamilyProperty

from .reading import bounds_text, cite, read_bounds, specification
from .tables import draw_table

WORDS = {  # what a feature is that is no call of its own
    Feature.REJECT: ("Accept a prompt only if the session is idle", "R35"),
    Feature.INTERRUPT: ("Accept a prompt, put it to the front, and stop what runs", "R35"),
}


def describe(feature: Feature) -> tuple[str, str]:
    """What it does, and the rule that says so."""
    calls = [call for call in CALLS if call.feature is feature]
    return (re.split(r"[.;] ", calls[0].says)[0], calls[0].rule) if calls else WORDS[feature]


def family() -> str:
    """The section."""
    told = specification()["family"]
    mistakes = list(told["mistakes"])
    return (
        draw_table("The calls of the family", ("call", "what it does", "rule"), (
            (f"<code>{feature.value}</code>", f"{escape(says)}.", cite(rule))
            for feature in Feature for says, rule in [describe(feature)]),
            "actions-table")
        + f'<details class="more"><summary>Which properties change</summary>{draw_properties()}</details>'
        + draw_wording()
        + '<details class="more"><summary>What known servers do, and what they give up</summary>'
        "<p>Judged by the words of the reference, which know none of these calls.</p>"
        + draw_policies(told["policies"]) + "</details>"
        + f'<p class="note">{len(mistakes)} tempting mistakes in these calls were searched too, such as '
        f"“{escape(mistakes[0])}”. Each breaks a property. These figures are committed with the project: "
        "<code>specs/family.md</code>.</p>")


def searched_sets() -> dict[str, str]:
    """How many sets of calls were searched, within which bounds, and how many states they have."""
    told = specification()["family"]
    states = sorted(int(states.replace(",", "")) for states in told["sets"].values())
    return {"sets": str(len(told["sets"])), "family_bounds": bounds_text(read_bounds(told["bounds"])),
            "family_states": f"{states[0]:,} to {states[-1]:,}"}


def draw_properties() -> str:
    """For each property that changes: the features that add it, and those for which its sentence is another."""
    def cell(property: FamilyProperty, feature: Feature) -> str:
        if feature not in property.needs:
            return ""
        return "reworded" if property.id in REWORDED else '<span class="says good">new</span>'

    changed = [*FAMILY_PROPERTIES, *REWORDED.values()]
    return draw_table("Properties by feature", ("property", *(f.value for f in Feature)), (
        (f'<code title="{escape(p.sentence)}">{p.id}</code>', *(cell(p, f) for f in Feature))
        for p in changed), "matrix family-matrix")


def draw_wording() -> str:
    """The sentences that differ from those of the reference."""
    table = draw_table("Properties as reworded", ("property", "what it says in the family"), (
        (f"<code>{p.id}</code>", escape(p.sentence)) for p in REWORDED.values()), "actions-table")
    return f'<details class="more"><summary>How the {len(REWORDED)} reworded ones read</summary>{table}</details>'


def draw_policies(policies: Iterable[list[str]]) -> str:
    """What known servers answer to two questions, and what each answer gives up."""
    def given_up(text: str) -> str:
        found = re.findall(r"\*\*([\w-]+)\*\* \((\d+)\): ([^<]+)", text)
        return ", ".join(f'<span title="{escape(trace)}"><code>{id}</code> ✗ {steps}</span>'
                         for id, steps, trace in found) or "nothing"

    def question(text: str) -> str:
        return "on cancel" if "cancel" in text else "when busy"

    return draw_table("What known servers do", ("when", "answer", "gives up", "in the family"), (
        (question(asked), escape(answer), given_up(lost), re.sub(r"`([^`]+)`", r"<code>\1</code>", same))
        for asked, answer, lost, same in policies), "actions-table")
