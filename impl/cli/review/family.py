"""The sections on optional calls (the family) and on clustering.

The figures come from specs/family.md and specs/cluster.md. Only the traces of the cluster flaws are computed here.
"""

import re
from collections.abc import Iterable
from html import escape

from cancelmark.model.calls import CALLS
from cancelmark.model.cluster.bounds import BOUNDS, DEEP_BOUNDS, LOG_STATES
from cancelmark.model.cluster.flaws import ALL_FLAWS
from cancelmark.model.family import QUEUE_FEATURES, Feature
from cancelmark.model.family_properties import FAMILY_PROPERTIES, REWORDED, FamilyProperty
from cancelmark.views.drawing.render import inline
from cancelmark.views.pages.cluster import flaw_svg

from .dressing import draw_table
from .reading import bounds_text, cite, read_bounds, specification

WORDS = {  # the features that are modes of accept, and not calls
    Feature.REJECT: ("Accept a prompt only if the session is idle", "R35"),
    Feature.INTERRUPT: ("Accept a prompt, move it to the front and stop the running turn", "R35"),
}


def describe(feature: Feature) -> tuple[str, str]:
    """What the feature does, and its rule."""
    calls = [call for call in CALLS if call.feature is feature]
    return (re.split(r"[.;] ", calls[0].says)[0], calls[0].rule) if calls else WORDS[feature]


def family() -> str:
    """The section."""
    told = specification()["family"]
    mistakes = list(told["mistakes"])
    return (
        draw_table("Optional calls", ("call", "effect", "rule"), (
            (f"<code>{feature.value}</code>", f"{escape(says)}.", cite(rule))
            for feature in QUEUE_FEATURES for says, rule in [describe(feature)]),
            "actions-table")
        + f'<details class="more"><summary>Properties added or restated</summary>{draw_properties()}</details>'
        + draw_wording()
        + '<details class="more"><summary>Policies of known servers, and what they give up</summary>'
        "<p>Each was checked against the reference’s own properties, so a deliberate difference also counts as a "
        "violation.</p>"
        + draw_policies(told["policies"]) + "</details>"
        + f'<p class="note">{len(mistakes)} plausible bugs in these calls were also model-checked, such as '
        f"“{escape(mistakes[0])}”. Each violates a property: <code>specs/family.md</code>.</p>")


def searched_sets() -> dict[str, str]:
    """The number of explored combinations of calls, their bounds, and their numbers of states."""
    told = specification()["family"]
    states = sorted(int(states.replace(",", "")) for states in told["sets"].values())
    return {"sets": str(len(told["sets"])), "family_bounds": bounds_text(read_bounds(told["bounds"])),
            "family_states": f"{states[0]:,} to {states[-1]:,}"}


def draw_properties() -> str:
    """For each property that changes: the features that add it, and those that restate it."""
    def cell(property: FamilyProperty, feature: Feature) -> str:
        if feature not in property.needs:
            return ""
        return "restated" if property.id in REWORDED else '<span class="says good">new</span>'

    changed = [*FAMILY_PROPERTIES, *REWORDED.values()]
    return draw_table("Properties by feature", ("property", *(f.value for f in QUEUE_FEATURES)), (
        (f'<code title="{escape(p.sentence)}">{p.id}</code>', *(cell(p, f) for f in QUEUE_FEATURES))
        for p in changed), "matrix family-matrix")


def draw_wording() -> str:
    """The properties whose sentence differs from that of the reference."""
    table = draw_table("Restated properties", ("property", "statement with optional calls"), (
        (f"<code>{p.id}</code>", escape(p.sentence)) for p in REWORDED.values()), "actions-table")
    return f'<details class="more"><summary>The {len(REWORDED)} restated properties</summary>{table}</details>'


def draw_policies(policies: Iterable[list[str]]) -> str:
    """The policies of known servers on two questions, and the properties that each gives up."""
    def given_up(text: str) -> str:
        found = re.findall(r"\*\*([\w-]+)\*\* \((\d+)\): ([^<]+)", text)
        return ", ".join(f'<span title="{escape(trace)}"><code>{id}</code> ✗ {steps}</span>'
                         for id, steps, trace in found) or "nothing"

    def question(text: str) -> str:
        return "on cancel" if "cancel" in text else "when busy"

    return draw_table("Policies of known servers", ("when", "policy", "gives up", "equivalent optional call"), (
        (question(asked), escape(answer), given_up(lost), re.sub(r"`([^`]+)`", r"<code>\1</code>", same))
        for asked, answer, lost, same in policies), "actions-table")


# --- clustering

DRAWN = ("finish-unfenced", "retry-cancels-twice", "place-from-sequence")  # a zombie, a lost answer, and the log


def cluster() -> str:
    """The section: some of the flaws, drawn."""
    first, *others = (
        f'<figure class="wide" tabindex="0" role="group" aria-label="{f.name}">{inline(flaw_svg(f))}</figure>'
        for f in ALL_FLAWS if f.name in DRAWN)
    return f'{first}<details class="more"><summary>{len(others)} more</summary>{"".join(others)}</details>'


def searched_bounds() -> str:
    """The largest bounds over all searches."""
    budgets = [b.budget for b in (*BOUNDS, *DEEP_BOUNDS)]
    return f"one session, at most {max(b.nodes for b in budgets)} nodes and {max(b.prompts for b in budgets)} prompts"


def searched_states() -> str:
    """The number of states of all searches together."""
    return f"{sum(b.states for b in (*BOUNDS, *DEEP_BOUNDS)) + LOG_STATES:,}"
