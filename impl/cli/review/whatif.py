"""What if…: the reference with one change. Each is checked, and the explorer can compare it with the reference."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cancelmark.model.check.explore import explore_fully
from cancelmark.model.family import FEATURE_OF, QUEUE_FEATURES, Feature
from cancelmark.model.properties import Bounds
from cancelmark.model.protocol import Protocol
from cancelmark.model.revisions.matrix import Profile
from cancelmark.model.trace import Trace
from cancelmark.model.variants.catalogue import BUGS, IN_PLACE_OF_THE_MARK, ProtocolVariant
from cancelmark.views.states.export import graph_of

from .dressing import PackedGraph, pack_graph


@dataclass(frozen=True)
class Change:
    """A changed protocol, its title, and its bounds."""

    id: str
    title: str
    protocol: Protocol
    bounds: Bounds
    play: str | None  # its name for `--protocol`


def _change(variant: ProtocolVariant) -> Change:
    return Change(variant.slug, variant.title, variant.protocol, variant.bounds, f"seeded:{variant.slug}")


INSTEAD = tuple(map(_change, IN_PLACE_OF_THE_MARK))
SEEDED_CHANGES = tuple(map(_change, BUGS))


def _policy(feature: Feature) -> Change:
    """The reference with one optional call."""
    protocol = Protocol(f"with {feature.value}", features=frozenset({feature}))
    spent = {action.bound: 1 for action in protocol.actions if FEATURE_OF.get(action.name) is feature and action.bound}
    return Change(f"with-{feature.value}", f"there is also {feature.value}", protocol,
                  replace(Bounds(2, cancels=1), **spent), None)


POLICIES = tuple(map(_policy, QUEUE_FEATURES))
CHANGES: Mapping[str, Change] = {change.id: change for change in (*INSTEAD, *POLICIES, *SEEDED_CHANGES)}


@dataclass(frozen=True)
class ChangeFindings:
    """The findings on a changed protocol."""

    id: str
    states: int
    verdict: str
    broken: dict[str, list[int]]  # by property id: the shortest counterexample as a walk; empty if the page has no walk
    unmet: list[str]  # goals that are no longer reachable
    graph: PackedGraph


def search_change(id: str) -> ChangeFindings:
    return search_protocol(id, CHANGES[id].protocol, CHANGES[id].bounds)


def limit_actions(protocol: Protocol, bounds: Bounds) -> Protocol:
    """The protocol without the actions that the bounds exclude."""
    return protocol.limited(tuple(a for a in protocol.actions if a.bound is None or getattr(bounds, a.bound)))


def walks_in(protocol: Protocol, trace: Trace) -> bool:
    """Whether the page can walk the trace: its graph drops finished prompts, which some bugs bring back."""
    try:
        graph_of(protocol, [], [trace], len(trace.start.sessions))
    except LookupError:
        return False
    return True


def search_protocol(id: str, protocol: Protocol, bounds: Bounds) -> ChangeFindings:
    """The verdicts within the bounds, and the state graph."""
    within = limit_actions(protocol, bounds)
    result = explore_fully(protocol, bounds)
    told = {name: trace for name, trace in result.violations.items() if trace.loop is None and walks_in(within, trace)}
    everything = Profile(bounds, protocol.action("accept").variants, "the searched states")
    graph, walks = pack_graph(within, [everything], list(told.values()), bounds.sessions)
    broken: dict[str, list[int]] = {name: [] for name in result.violations} | dict(zip(told, walks))
    return ChangeFindings(id, result.states, result.verdict, broken, result.unmet, graph)
