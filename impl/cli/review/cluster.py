"""Several servers on the page: what breaks if a rule is left out.

Every history is searched for when the page is made. The figure of the wide searches is that of specs/cluster.md.
"""

from cancelmark.model.cluster.bounds import BOUNDS, DEEP_BOUNDS, LOG_STATES
from cancelmark.model.cluster.flaws import ALL_FLAWS
from cancelmark.views.drawing.render import inline
from cancelmark.views.pages.cluster import flaw_svg

DRAWN = ("finish-unfenced", "retry-cancels-twice", "place-from-sequence")  # a zombie, a lost answer, and the log


def cluster() -> str:
    """The section: some of the flaws, drawn."""
    first, *others = (
        f'<figure class="wide" tabindex="0" role="group" aria-label="{f.name}">{inline(flaw_svg(f))}</figure>'
        for f in ALL_FLAWS if f.name in DRAWN)
    return f'{first}<details class="more"><summary>{len(others)} more</summary>{"".join(others)}</details>'


def searched_bounds() -> str:
    """The most of everything that matters, over all searches."""
    budgets = [b.budget for b in (*BOUNDS, *DEEP_BOUNDS)]
    return f"one session, {max(b.nodes for b in budgets)} nodes and {max(b.prompts for b in budgets)} prompts at most"


def searched_states() -> str:
    """All searches together."""
    return f"{sum(b.states for b in (*BOUNDS, *DEEP_BOUNDS)) + LOG_STATES:,}"
