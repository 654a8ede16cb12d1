"""The properties of a cluster, in addition to those of a session: each has an id, one plain sentence, and a check.

Every commit is a step of the session and is checked against the protocol's properties. The properties here are about
nodes. *Safety* properties are checked on every edge. A *liveness* property requires that from every state, steps that
happen on their own can reach a state in which it holds. A node that hangs or is down need not resume while another is
up.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from ..family_properties import properties_for
from ..properties import Property
from ..protocol import Protocol
from ..session import ACTIVE, DONE
from .sending import Edge
from .state import Cluster, Status, has_work


class ClusterStep(NamedTuple):
    """One edge, with the states before and after it."""

    before: Cluster
    edge: Edge
    after: Cluster


class Kind(Enum):
    SAFETY = "safety"
    LIVENESS = "liveness"


@dataclass(frozen=True)
class ClusterProperty:
    """A property of a cluster, with its check."""

    id: str
    sentence: str
    on_step: Callable[[Any], bool] | None = None
    reached: Callable[[Any, bool], bool] | None = None  # (state, endless): whether it holds in this state

    @property
    def kind(self) -> Kind:
        return Kind.SAFETY if self.on_step else Kind.LIVENESS


def fenced(step: ClusterStep) -> bool:
    return step.edge.turn is None or step.edge.turn.epoch == step.before.row.epoch


def one_turn(step: ClusterStep) -> bool:
    return sum(turn.epoch == step.after.row.epoch for turn in step.after.turns) <= 1


def runs_once(step: ClusterStep) -> bool:
    requeued = {move.seq for _, move in step.edge.moves if move.action.name == "requeue"}
    return step.before.begun.isdisjoint(set(step.edge.began) - requeued)


def one_end(step: ClusterStep) -> bool:
    ended = {p.seq for p in step.before.row.session.prompts if p.state is DONE}
    return ended.isdisjoint(step.edge.published)


def living_owner(step: ClusterStep) -> bool:
    before, after = step.before.row, step.after.row
    own = step.edge.by is not None and before.owner == step.before.id_of(step.edge.by)
    return (before.owner in (None, after.owner) or before.owner in before.dead or own
            or (after.owner is None and not has_work(after.session)))


def once(step: ClusterStep) -> bool:
    return step.edge.call is None or not step.before.row.knows(step.edge.call)


def no_echo(step: ClusterStep) -> bool:
    known = dict(step.before.row.steps)
    if step.edge.call not in known:
        return True
    since = {p.seq for p in step.before.row.session.live if p.seq > known[step.edge.call]}
    return not any(step.after.row.session.covered(p) for p in step.after.row.session.prompts if p.seq in since)


def answered(step: ClusterStep) -> bool:
    return step.edge.told is None or step.edge.asked is None or step.edge.told == step.after.row.knows(step.edge.asked)


def above_mark(step: ClusterStep) -> bool:
    before = step.before.row.session
    there = {p.seq for p in before.prompts}
    return all(p.seq > before.mark for p in step.after.row.session.prompts if p.seq not in there)


def closed(step: ClusterStep) -> bool:
    return not step.before.closed or len(step.after.row.session.prompts) == len(step.before.row.session.prompts)


def all_done(cluster: Cluster, endless: bool) -> bool:
    session = cluster.row.session
    return all(p.state is DONE or (endless and not session.covered(p)) for p in session.owed) and not any(
        n.doubt and n.status is Status.UP for n in cluster.nodes)


def stop_reaches(cluster: Cluster, endless: bool) -> bool:
    session = cluster.row.session
    return not any(p.state is ACTIVE and session.covered(p) for p in session.prompts)


def replaced(cluster: Cluster, endless: bool) -> bool:
    owner = cluster.row.owner
    return not has_work(cluster.row.session) or (owner is not None and (
        owner not in cluster.row.dead and cluster.id_of(owner.node) == owner and cluster.is_up(owner.node)))


def released(cluster: Cluster, endless: bool) -> bool:
    return cluster.row.owner is None or has_work(cluster.row.session)


CLUSTER_PROPERTIES: tuple[ClusterProperty, ...] = (
    ClusterProperty("fenced", "A fenced turn leaves no visible results: no message, no terminal event, no fold.",
                    fenced),
    ClusterProperty("one-turn", "No two turns run in the session's current epoch.", one_turn),
    ClusterProperty("runs-once", "No prompt's turn starts twice, except to resume after compaction.", runs_once),
    ClusterProperty("one-end", "Subscribers see exactly one terminal event of a prompt: the committed one.", one_end),
    ClusterProperty("living-owner",
                    "A session is taken from its owner only if the owner is dead. Otherwise only the owner releases "
                    "it, or it has no work left.",
                    living_owner),
    ClusterProperty("once", "A call takes effect once, however often it is sent and to whichever nodes.", once),
    ClusterProperty("no-echo",
                    "A retried call affects no prompt that was accepted after the call first took effect.",
                    no_echo),
    ClusterProperty("answered", "A client is told that its call is done if and only if it is committed.", answered),
    ClusterProperty("above-mark", "Every prompt is accepted above the mark of its session.", above_mark),
    ClusterProperty("cluster-closed", "Once a workspace is closed on one node, no node accepts prompts for it.",
                    closed),
    ClusterProperty("all-ends",
                    "Every prompt that is not held eventually finishes, and every client eventually gets a response.",
                    reached=all_done),
    ClusterProperty("stop-reaches", "A cancel eventually stops a running turn, whichever node runs it.",
                    reached=stop_reaches),
    ClusterProperty("replaced", "A failed owner is eventually replaced.", reached=replaced),
    ClusterProperty("released",
                    "A session without work eventually has no owner, even a held session without an active prompt.",
                    reached=released),
)

TOOL = ClusterProperty("tool-fenced", "No tool of a fenced turn acts.",
                       lambda step: step.edge.tool is None or step.edge.tool.epoch == step.before.row.epoch)


def session_properties(protocol: Protocol) -> list[Property]:
    """The protocol's own properties, which are checked on every commit."""
    return [p for p in properties_for(protocol) if p.on_session]
