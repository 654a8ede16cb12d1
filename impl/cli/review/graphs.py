"""The state graphs that the page walks, packed."""

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass

from cancelmark.model.protocol import Behaviour
from cancelmark.model.revisions.matrix import Profile
from cancelmark.model.trace import Trace
from cancelmark.views.states.export import document, graph_of


@dataclass(frozen=True)
class PackedGraph:
    """What the page walks."""

    packed: bytes
    states: int
    steps: int


def pack_graph(
    behaviour: Behaviour, profiles: Sequence[Profile], traces: Sequence[Trace] = (), sessions: int = 1,
) -> tuple[PackedGraph, list[list[int]]]:
    """The graph as the page unpacks it, and the traces as walks in it."""
    graph = graph_of(behaviour, profiles, traces, sessions)
    text = json.dumps(document(graph), separators=(",", ":"), ensure_ascii=False)
    data = gzip.compress(text.encode(), mtime=0)
    return PackedGraph(data, len(graph.states), sum(map(len, graph.edges))), [graph.path(trace) for trace in traces]
