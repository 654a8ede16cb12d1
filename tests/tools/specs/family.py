"""Generates specs/family.md: every combination of features, the policies of known servers, and plausible mistakes.

`make family` writes it. It explores every combination of features, which takes minutes.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations, starmap
from pathlib import Path

from rich.console import Console
from rich.progress import track

from cancelmark.impl.files import write
from cancelmark.model.ask import ASK_ACTIONS
from cancelmark.model.check.explore import Result, explore_fully
from cancelmark.model.family import FAMILY_ACTIONS, FEATURE_OF, QUEUE_FEATURES, Feature
from cancelmark.model.family_properties import ASK_PROPERTIES, FAMILY_PROPERTIES, REWORDED, properties_for
from cancelmark.model.properties import Bounds
from cancelmark.model.protocol import FAMILY, Protocol
from cancelmark.model.trace import Trace
from cancelmark.model.variants.catalogue import ASK_MISTAKES, MISTAKES, VARIANTS
from cancelmark.views.pages.tables import table

from .tables import family_properties_table

BOUNDS = Bounds(2, cancels=1, revokes=1, stops=1, holds=1, replaces=1, nexts=1)


def subsets() -> Iterator[frozenset[Feature]]:
    """Every combination of features, the smaller ones first."""
    for size in range(len(QUEUE_FEATURES) + 1):
        yield from map(frozenset, combinations(QUEUE_FEATURES, size))


def name_features(features: Iterable[Feature]) -> str:
    return " ".join(f.value for f in Feature if f in set(features)) or "none: the reference"


def search_subset(features: frozenset[Feature]) -> Result:
    return explore_fully(Protocol(name_features(features), features=features), BOUNDS)


def subset_row(features: frozenset[Feature], result: Result) -> tuple[str, ...]:
    judged = properties_for(result.protocol)
    broken = [p.id for p in judged if p.id in result.violations]
    return (name_features(features), f"{result.states:,}", f"{result.edges:,}",
            f"all {len(judged)} hold" if result.verdict == "holds" else f"violated: {', '.join(broken)}")


WIDE = (
    Bounds(3, cancels=1, revokes=1, stops=1, holds=1, nexts=1),
    Bounds(2, cancels=1, clears=1, crashes=1, revokes=1, stops=1, holds=1, replaces=1, nexts=1),
    Bounds(2, cancels=1, requeues=1, closes=1, revokes=1, stops=1, holds=1, replaces=1, nexts=1),
    Bounds(2, requeues=1, crashes=1, revokes=1, stops=2, holds=2, nexts=2),
)


def wide_row(bounds: Bounds) -> tuple[str, ...]:
    """All features together within these bounds."""
    result = explore_fully(FAMILY, bounds)
    return str(bounds), f"{result.states:,}", f"{result.edges:,}", str(result.depth), result.verdict


ASK, ALL = Feature.ASK, frozenset(Feature)
WITH_ASK = (
    (frozenset({ASK}), Bounds(1, cancels=1, asks=1)),
    (frozenset({ASK}), Bounds(2, cancels=1, requeues=1, crashes=1, asks=2)),
    (frozenset({ASK}), Bounds(2, cancels=1, crashes=1, asks=2, sessions=2)),
    (frozenset({ASK}), Bounds(3, cancels=1, crashes=1, asks=2)),
    (frozenset({ASK, Feature.REVOKE, Feature.STOP, Feature.HOLD}),
     Bounds(2, cancels=1, revokes=1, stops=1, holds=1, asks=2)),
    (frozenset({ASK, Feature.INTERRUPT}), Bounds(3, cancels=1, requeues=1, asks=1)),
    (ALL, Bounds(2, cancels=1, revokes=1, stops=1, holds=1, replaces=1, nexts=1, asks=1)),
    (ALL, Bounds(2, requeues=1, crashes=1, revokes=1, stops=1, holds=1, asks=2)),
)


def ask_row(features: frozenset[Feature], bounds: Bounds) -> tuple[str, ...]:
    """A protocol whose turns can ask, within these bounds."""
    result = explore_fully(Protocol("ask", features=features), bounds)
    return (name_features(features), str(bounds), f"{result.states:,}", f"{result.edges:,}", str(result.depth),
            result.verdict)


def features_table() -> str:
    """Each feature with its calls, the properties that it adds, and the properties that it rewords."""
    return table(("feature", "calls", "adds", "rewords"), (
        (f.value,
         ", ".join(f"`{a.name}`" for a in (*FAMILY_ACTIONS, *ASK_ACTIONS)
                   if FEATURE_OF[a.name] is f) or f"`accept` with {f.value}",
         ", ".join(p.id for p in (*FAMILY_PROPERTIES, *ASK_PROPERTIES) if f in p.needs) or "–",
         ", ".join(p.id for p in REWORDED.values() if f in p.needs) or "–") for f in Feature))


def _steps(trace: Trace) -> str:
    return " · ".join(str(step.call) for step in trace.steps)


CANCEL = "What does a cancel do to the queue?"
BUSY = "What happens to a prompt that arrives while another is running?"
ANSWERS = (  # the question; the answer of the reference or of a policy; the equivalent in the family
    (CANCEL, "drop: prompts accepted before the cancel end as canceled", "`cancel`"),
    (CANCEL, VARIANTS["keep"], "`stop`"),
    (CANCEL, VARIANTS["hold"], "`stop` with hold"),
    (CANCEL, VARIANTS["merge"], "prompts without a run id"),
    (BUSY, "enqueue: the prompt waits in the queue", "`if_busy: queue`"),
    (BUSY, VARIANTS["reject"], "`if_busy: reject`"),
    (BUSY, VARIANTS["interrupt"], "`if_busy: interrupt`"),
)


def policies_table() -> str:
    rows = []
    for question, answer, in_family in ANSWERS:
        if isinstance(answer, str):
            rows.append((question, answer, "nothing", in_family))
            continue
        found = explore_fully(answer.protocol, answer.bounds).violations
        given_up = "<br>".join(f"**{id}** ({len(trace)}): {_steps(trace)}" for id, trace in found.items())
        rows.append((question, answer.title, given_up or "nothing", in_family))
    return table(("question", "policy", "reference properties that it violates", "equivalent in the family"), rows)


def mistakes_table() -> str:
    rows = []
    for mistake in (*MISTAKES, *ASK_MISTAKES):
        found = explore_fully(mistake.protocol, mistake.bounds).violations
        first = min(found, key=lambda id: (len(found[id]), id))
        rest = sorted(found.keys() - {first}, key=lambda id: (len(found[id]), id))
        others = ", ".join(f"{id} ({len(found[id])})" for id in rest)
        rows.append((mistake.title, name_features(mistake.protocol.features), f"**{first}** ({len(found[first])})",
                     _steps(found[first]), others or "–"))
    return table(("mistake", "features", "violates (steps)", "shortest trace", "also violates"), rows)


PAGE = """\
# The family of protocols

Generated by `make family`. The rules of the family are [R30 to R36](protocol.md#the-family).

A feature is an optional call that users of agent servers ask for. A protocol of the family has any combination of
features. This page shows that the features work together, which guarantees the policies of known servers give up, and
which mistakes are plausible.

## The features

{features}
The properties that features add or reword:

{properties}
## Every set of features

Each of the {count} sets of features that the server offers was explored exhaustively with {bounds}. A set without a
feature does not use that feature's bound.

{subsets}
## All features, larger bounds

All features together, each search exhaustive. An earlier prototype had the same counts in the second search and
different counts in the others. Two design choices explain the differences. With either choice reverted, the search
counts exactly what the prototype counted at the same bounds (`tests/model/test_family.py`).

- The prototype's first search had 2,758,059 states and 16,395,234 edges. Its observer remembered that a turn had folded
  other prompts, and checked this when an interrupt stopped the turn. The current observer checks folding past an
  interrupt when the fold happens, so it has nothing to remember. The same choice explains the counts for interrupt
  alone (prompts=3 cancels=1 crashes=1: 58,500 and 148,718) and for all features with prompts=3 crashes=1 revokes=1
  holds=1 (114,993 and 413,180).
- The prototype's third search had 640,487 states and 3,811,452 edges, and its fourth 492,048 and 2,236,945. Its hold
  queued a turn that had to resume after compaction. Now the turn stays active. The same choice explains the counts for
  stop with hold (prompts=2 cancels=1 requeues=1 crashes=1 closes=1 stops=1 holds=1: 87,494 and 322,187).

{wide}
## Questions

The feature `ask` was explored alone and with the other features. The prototype had the same counts in every search.

{asks}
## Policies of known servers

Known servers have four policies for what a cancel does to the queue, and three for a prompt that arrives in a busy
session. Each policy is modelled as the reference with one call changed, and checked against the reference's properties.
A policy may give up a guarantee, as long as its call says so; the calls of the family do.

{policies}
## Plausible mistakes

Each mistake is a complete protocol. The explorer refutes it; the number of steps is the length of the shortest trace.

{mistakes}
## Client mistakes

No protocol can prevent these two mistakes, so clients need to follow these recipes.

- **A retried stop can stop a different prompt.** `accept(A) · accept(B) · stop · enter(A) · stop` stops A, then B,
  because a stop targets a position. A client that retries a stop should name the prompt, or revoke it by name.
- **To run a queued prompt now, name the prompt to stop.** `accept(A) · accept(B) · next(B) · stop` stops B itself,
  because B is now in front. Send `next(B)` and then `revoke(A)`.
"""


def family_page(search: Callable[[frozenset[Feature]], Result] = search_subset) -> str:
    sets = list(subsets())
    return PAGE.format(
        features=features_table(), properties=family_properties_table(), count=len(sets), bounds=BOUNDS,
        subsets=table(("features", "states", "edges", "properties"),
                      (subset_row(features, search(features)) for features in sets), right=(1, 2)),
        asks=table(("features", "bounds", "states", "edges", "depth", "verdict"), starmap(ask_row, WITH_ASK),
                   right=(2, 3, 4)),
        wide=table(("bounds", "states", "edges", "depth", "verdict"), map(wide_row, WIDE), right=(1, 2, 3)),
        policies=policies_table(), mistakes=mistakes_table())


def main() -> None:
    shown = sys.stderr.isatty()
    sets = track(list(subsets()), "searching sets of features", console=Console(stderr=True, quiet=not shown),
                 transient=True, disable=not shown)
    found = {features: search_subset(features) for features in sets}
    write(Path("specs/family.md"), family_page(found.__getitem__))


if __name__ == "__main__":
    main()
