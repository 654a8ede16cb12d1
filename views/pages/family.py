"""The page of the family: its features beside each other, what others do, and what one could get wrong."""

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations

from cancelmark.model.check.explore import Result, explore_fully
from cancelmark.model.family import FAMILY_ACTIONS, FEATURE_OF, Feature
from cancelmark.model.family_properties import FAMILY_PROPERTIES, REWORDED, properties_for
from cancelmark.model.properties import Bounds
from cancelmark.model.protocol import FAMILY, Protocol
from cancelmark.model.trace import Trace
from cancelmark.model.variants.catalogue import MISTAKES, VARIANTS

from .tables import family_properties_table, table

BOUNDS = Bounds(2, cancels=1, revokes=1, stops=1, holds=1, replaces=1, nexts=1)


def subsets() -> Iterator[frozenset[Feature]]:
    """Every set of features, the smaller ones first."""
    for size in range(len(Feature) + 1):
        yield from map(frozenset, combinations(Feature, size))


def name_features(features: Iterable[Feature]) -> str:
    return " ".join(f.value for f in Feature if f in set(features)) or "none: the reference"


def search_subset(features: frozenset[Feature]) -> Result:
    return explore_fully(Protocol(name_features(features), features=features), BOUNDS)


def subset_row(features: frozenset[Feature], result: Result) -> tuple[str, ...]:
    judged = properties_for(result.protocol)
    broken = [p.id for p in judged if p.id in result.violations]
    return (name_features(features), f"{result.states:,}", f"{result.edges:,}",
            f"all {len(judged)} hold" if result.verdict == "holds" else f"broken: {', '.join(broken)}")


WIDE = (
    Bounds(3, cancels=1, revokes=1, stops=1, holds=1, nexts=1),
    Bounds(2, cancels=1, clears=1, crashes=1, revokes=1, stops=1, holds=1, replaces=1, nexts=1),
    Bounds(2, cancels=1, requeues=1, closes=1, revokes=1, stops=1, holds=1, replaces=1, nexts=1),
    Bounds(2, requeues=1, crashes=1, revokes=1, stops=2, holds=2, nexts=2),
)


def wide_row(bounds: Bounds) -> tuple[str, ...]:
    """The whole family within these bounds."""
    result = explore_fully(FAMILY, bounds)
    return str(bounds), f"{result.states:,}", f"{result.edges:,}", str(result.depth), result.verdict


def features_table() -> str:
    """Each feature with its calls, the properties that it adds, and those that it rewords."""
    return table(("feature", "calls", "adds", "rewords"), (
        (f.value,
         ", ".join(f"`{a.name}`" for a in FAMILY_ACTIONS if FEATURE_OF[a.name] is f) or f"`accept` with {f.value}",
         ", ".join(p.id for p in FAMILY_PROPERTIES if f in p.needs) or "–",
         ", ".join(p.id for p in REWORDED.values() if f in p.needs) or "–") for f in Feature))


def _steps(trace: Trace) -> str:
    return " · ".join(str(step.call) for step in trace.steps)


CANCEL = "What does a cancel do to the queue?"
BUSY = "What happens to a prompt that comes while another runs?"
ANSWERS = (  # the question; the answer, of the reference or of a policy; how to ask the family for it
    (CANCEL, "drop: what was accepted before the cancel ends canceled", "`cancel`"),
    (CANCEL, VARIANTS["keep"], "`stop`"),
    (CANCEL, VARIANTS["hold"], "`stop` with hold"),
    (CANCEL, VARIANTS["merge"], "prompts without a run id"),
    (BUSY, "enqueue: it waits", "`if_busy: queue`"),
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
    return table(("question", "answer", "what it gives up, in the reference's words", "the same in the family"), rows)


def mistakes_table() -> str:
    rows = []
    for mistake in MISTAKES:
        found = explore_fully(mistake.protocol, mistake.bounds).violations
        first = min(found, key=lambda id: (len(found[id]), id))
        rest = sorted(found.keys() - {first}, key=lambda id: (len(found[id]), id))
        others = ", ".join(f"{id} ({len(found[id])})" for id in rest)
        rows.append((mistake.name, name_features(mistake.protocol.features), f"**{first}** ({len(found[first])})",
                     _steps(found[first]), others or "–"))
    return table(("mistake", "features", "breaks (steps)", "shortest trace", "and"), rows)


PAGE = """\
# The family of protocols

Made by `make family`. The rules of the family are [R30 to R35](protocol.md#the-family).

A feature is a call that agent servers are asked for. A protocol of the family has any set of features. This page
shows that the features fit together, what the answers of known servers give up, and which mistakes are tempting.

## The features

{features}
The properties that features add or reword:

{properties}
## Every set of features

Each of the {count} sets was searched to its end with {bounds}. A set without a feature does not use that feature's
bound.

{subsets}
## The whole family, further

All features together, each search to its end. A prototype had the same counts in the second search and others in the
rest. Two choices explain them. With one choice put back the search counts exactly what the prototype counted, at the
same bounds (`tests/support/prototype.py`).

- The first search had 2,758,059 states and 16,395,234 edges there: its observer remembered of a turn that it has taken
  others in, and judged when an interrupt stops the turn. Here folding past an interrupt is judged where the fold
  happens, so that nothing has to be remembered. The same holds for interrupt alone (prompts=3 cancels=1 crashes=1:
  58,500 and 148,718) and for all features with prompts=3 crashes=1 revokes=1 holds=1 (114,993 and 413,180).
- The third had 640,487 and 3,811,452, the fourth 492,048 and 2,236,945: its hold parked a turn that goes on after a
  summary. Here the turn stays active. The same holds for stop with hold (prompts=2 cancels=1 requeues=1 crashes=1
  closes=1 stops=1 holds=1: 87,494 and 322,187).

{wide}
## What known servers do

Four answers to what a cancel does to a queue and three to a prompt that finds the session busy are in use. Each is a
value here: the reference with one call changed, judged by the reference's words. Nothing is wrong with a policy that
gives a promise up, as long as the call says so; the calls of the family do.

{policies}
## Tempting mistakes

Each is a protocol that somebody could build. The explorer refutes it; the number of steps is that of the shortest
trace.

{mistakes}
## Mistakes of clients

No protocol can prevent these two. They are recipes instead.

- **A stop that is sent again reaches another prompt.** `accept(A) · accept(B) · stop · enter(A) · stop` stops A, then
  B: a stop goes by position. A client that repeats a stop names the prompt it means, or revokes it by name.
- **To send a queued prompt now, name whom to stop.** `accept(A) · accept(B) · next(B) · stop` stops B itself, because
  B is in front now. Send `next(B)` and then `revoke(A)`.
"""


def family_page(search: Callable[[frozenset[Feature]], Result] = search_subset) -> str:
    sets = list(subsets())
    return PAGE.format(
        features=features_table(), properties=family_properties_table(), count=len(sets), bounds=BOUNDS,
        subsets=table(("features", "states", "edges", "properties"),
                      (subset_row(features, search(features)) for features in sets), right=(1, 2)),
        wide=table(("bounds", "states", "edges", "depth", "verdict"), map(wide_row, WIDE), right=(1, 2, 3)),
        policies=policies_table(), mistakes=mistakes_table())
