"""The behaviour of a cluster: clients call any node, the owner takes steps, all nodes poll, and faults happen"""

from collections.abc import Iterator

from ..actions import Variant
from ..lifecycle import Outcome
from ..protocol import Move
from ..session import label
from .database import ADOPT, RECOVER, RELEASE, Response
from .sending import OF_TURN, Edge, Sending, Transition
from .state import Cluster, Hold, Id, Intent, NodeState, PendingMessage, Status, Write, has_work, name_node

OWNERS = ("enter", "fail", "settle", "step", "requeue", "finish", "ask", "run", "withdraw")


class ClusterBehaviour(Sending):
    """A cluster with these rules, in which callers and faults act within the budget."""

    def onward(self, cluster: Cluster) -> Iterator[Transition]:
        """Every possible next step. States with the same canonical form behave in the same way."""
        for i, node in enumerate(cluster.nodes):
            if node.status is Status.UP:
                if node.doubt:
                    yield from self.resolve(cluster, i, node.doubt)
                else:
                    yield from self.call(cluster, i)
                    yield from self.own(cluster, i)
                    yield from self.claim(cluster, i)
                yield from self.run_turn(cluster, i)
                yield from self.look(cluster, i)
                yield from self.beat(cluster, i)
            yield from self.fail_node(cluster, i)
        yield from self.arrive(cluster)
        yield from self.expire_old(cluster)

    # --- client calls, on any node

    def call(self, cluster: Cluster, i: int) -> Iterator[Transition]:
        """Any node accepts any call: it reads the row, computes the step and sends it (C1a)."""
        if cluster.nodes[i].draining:
            return
        row = cluster.row
        for action in self.calls:
            paid = self.spend(cluster, action.bound)
            if paid is None or (action.name == "resume" and not row.session.held):
                continue
            if action.name in ("accept", "close") and (row.closing or cluster.nodes[i].closing):
                continue
            variants: tuple[Variant, ...] = action.variants if action.name != "accept" else (
                self.budget.run_ids, *(v for v in action.variants if isinstance(v, str)))
            seqs = [None] if action.subject is None else [p.seq for p in row.session.live]
            for seq in seqs:
                for variant in variants:
                    intent = Intent(action.name, seq, variant)
                    latest = self.next_seq(cluster, i) if action.name == "accept" else row.latest
                    moves = self.compute(row.session, intent, latest)
                    payer = self.spend(paid, "modes" if action.name == "accept" and isinstance(variant, str) else None)
                    if moves is not None and payer is not None:
                        yield from self.send(payer, i, self.write(cluster, i, intent, moves))
        if (paid := self.spend(cluster, "reposts")) is not None:
            yield from self.repost(paid, i)

    def repost(self, cluster: Cluster, i: int) -> Iterator[Transition]:
        """A client whose node has died retries its prompt under the same run id."""
        row = cluster.row
        for id in cluster.orphans:
            intent = Intent("accept", None, True)
            moves = self.compute(row.session, intent, row.latest)
            assert moves is not None
            write = self.write(cluster, i, intent, moves)._replace(id=id, new=not self.rules.run_ids_in_database)
            if row.knows(id) and not write.new:
                write = write._replace(words="accept")
            answered = cluster._replace(orphans=tuple(o for o in cluster.orphans if o != id))
            for edge, after in self.send(answered, i, write):
                yield edge._replace(what=f"{edge.what}, reposted"), after

    # --- the owner

    def own(self, cluster: Cluster, i: int) -> Iterator[Transition]:
        """The owner's steps: it enters and settles prompts, and writes the results of its turns."""
        node = cluster.nodes[i]
        hold = node.hold
        if hold is None:
            if not self.rules.owner_enters:
                yield from self.enter_own(cluster, i, node)
            return
        if node.draining and (hold.turn is None or not self.rules.ends_before_release):
            yield from self.send(cluster, i, self.owners_write(cluster, i, hold, Intent(RELEASE), ()))
        read = cluster.row.session if self.rules.steps_from_rows else hold.read
        for action in self.protocol.actions:
            if (name := action.name) not in OWNERS:
                continue
            for variant in action.variants:
                for prompt in read.live:
                    intent = Intent(name, prompt.seq, variant)
                    if not self.steps_now(cluster, node, hold, intent):
                        continue
                    bound = {"requeue": "requeues", "fail": "fails", "ask": "asks"}.get(name)
                    paid = self.spend(cluster, bound) if bound else cluster
                    moves = self.compute(read, intent, cluster.row.latest) if paid else None
                    if paid and moves is not None:
                        yield from self.send(paid, i, self.owners_write(cluster, i, hold, intent, moves))

    def enter_own(self, cluster: Cluster, i: int, node: NodeState) -> Iterator[Transition]:
        """Only without `owner_enters`: the node that accepted a prompt enters it."""
        row = cluster.row
        for seq in node.entering:
            moves = self.compute(row.session, Intent("enter", seq), row.latest)
            if moves:
                yield from self.send(cluster, i, self.write(cluster, i, Intent("enter", seq), moves))

    def steps_now(self, cluster: Cluster, node: NodeState, hold: Hold, intent: Intent) -> bool:
        """Whether the owner takes this step now."""
        name, seq, variant = intent
        if name in OF_TURN and (hold.turn is None or hold.turn.seq != seq):
            return False
        if name in ("enter", "fail"):
            return not node.draining and (self.rules.owner_enters or seq in node.entering)
        if name == "finish":
            if variant is Outcome.ERROR:
                return node.draining
            return not self.budget.endless if variant is Outcome.END_TURN else True
        return True

    def owners_write(self, cluster: Cluster, i: int, hold: Hold, intent: Intent, moves: tuple[Move, ...]) -> Write:
        write = self.write(cluster, i, intent, moves)._replace(fence=hold.epoch)
        return write if self.rules.steps_from_rows else write._replace(version=hold.version, before=hold.read)

    def run_turn(self, cluster: Cluster, i: int) -> Iterator[Transition]:
        """A running turn writes a message, or its tool acts."""
        hold = cluster.nodes[i].hold
        if hold is None or hold.turn is None:
            return
        turn, row, me = hold.turn, cluster.row, cluster.id_of(i)
        current = turn.epoch == row.epoch and row.owner == me
        if (paid := self.spend(cluster, "messages")) is not None:
            what = f"message of {label(turn.seq)}"
            if current or not self.rules.compares_message:
                if self.rules.locks_messages:
                    yield Edge(i, what, turn=turn, fair=False), paid
                else:
                    pending = paid._replace(flight=(*paid.flight, PendingMessage(me, turn)))
                    yield Edge(i, what, "compared", fair=False), pending
            else:
                after, began = self.read_row(paid, i)
                yield Edge(i, what, Response.LOST.value, fair=False, began=began), after
        if (paid := self.spend(cluster, "tools")) is not None:
            yield Edge(i, f"tool of {label(turn.seq)} acts", to_database=False, fair=False, tool=turn), paid

    def look(self, cluster: Cluster, i: int) -> Iterator[Transition]:
        """A node that polls, or was notified, reads the row."""
        node = cluster.nodes[i]
        if node.doubt or not (node.hold or cluster.row.owner == cluster.id_of(i)):
            return
        if self.rules.polls or node.woken:
            after, began = self.read_row(cluster, i)
            if after != cluster:
                yield Edge(i, "poll", began=began), after

    # --- ownership

    def claim(self, cluster: Cluster, i: int) -> Iterator[Transition]:
        """A node claims a session that needs an owner and has none, or whose owner is dead."""
        row, node = cluster.row, cluster.nodes[i]
        if node.hold or node.draining:
            return
        if row.owner is None and self.rules.adopts and has_work(row.session):
            yield from self.send(cluster, i, self.claims_write(cluster, i, ADOPT))
        elif row.owner in row.dead:
            yield from self.send(cluster, i, self.claims_write(cluster, i, RECOVER))

    def claims_write(self, cluster: Cluster, i: int, action: str) -> Write:
        row = cluster.row
        moves = self.compute(row.session, Intent(action), row.latest)
        assert moves is not None
        return self.write(cluster, i, Intent(action), moves)

    def beat(self, cluster: Cluster, i: int) -> Iterator[Transition]:
        """A node declared dead learns it: it drops its turns, and continues under a new id."""
        me, node = cluster.id_of(i), cluster.nodes[i]
        if me not in cluster.row.dead or (node.hold and not self.rules.renews_own_lease):
            return
        if self.rules.takes_back and node.hold:
            yield (Edge(i, "heartbeat", "takes the session back"),
                   cluster._replace(row=cluster.row._replace(owner=me, dead=cluster.row.dead - {me})))
            return
        doubt = node.doubt if node.doubt and node.doubt.write.fence is None else None
        yield (Edge(i, "heartbeat", "is dead; continues under a new id"),
               cluster.with_node(i, life=node.life + 1, hold=None, doubt=doubt, woken=False, draining=False))

    # --- faults

    def fail_node(self, cluster: Cluster, i: int) -> Iterator[Transition]:
        """Faults of a node: it is killed, restarts, hangs, resumes, loses its lease, or has to leave."""
        node, name = cluster.nodes[i], name_node(i)
        down = {"status": Status.DOWN, "hold": None, "doubt": None, "woken": False, "draining": False, "entering": (),
                "closing": False}
        others_up = [j for j in cluster.up if j != i]
        if node.status is not Status.DOWN and (paid := self.spend(cluster, "kills")) is not None:
            orphans = paid.orphans
            if node.doubt and node.doubt.write.intent.action == "accept" and self.budget.reposts:
                orphans = (*orphans, node.doubt.write.id)
            yield (Edge(None, f"{name} is killed", to_database=False, fault=True, fair=False),
                   paid.with_node(i, **down)._replace(orphans=orphans))
        if node.status is Status.UP:
            if (paid := self.spend(cluster, "pauses")) is not None:
                yield (Edge(None, f"{name} hangs", to_database=False, fault=True, fair=False),
                       paid.with_node(i, status=Status.PAUSED))
            if not node.draining and (paid := self.spend(cluster, "drains")) is not None:
                yield (Edge(None, f"{name} is told to leave", to_database=False, fault=True, fair=False),
                       paid.with_node(i, draining=True))
            if node.draining and node.hold is None and node.doubt is None:
                yield Edge(i, "leave", to_database=False), cluster.with_node(i, **down)
        if node.status is Status.PAUSED:
            yield (Edge(None, f"{name} resumes", to_database=False, fault=True, fair=not others_up),
                   cluster.with_node(i, status=Status.UP))
        if node.status is Status.DOWN:
            paid = cluster if not cluster.up else self.spend(cluster, "restarts")
            if paid is not None:
                life = node.life + 1 if self.rules.id_per_life else node.life
                after, began = self.read_row(paid.with_node(i, status=Status.UP, life=life), i)
                yield Edge(None, f"{name} restarts", fault=True, fair=not cluster.up, began=began), after
        me = cluster.id_of(i)
        if me not in cluster.row.dead and (node.status is not Status.DOWN or self.may_own(cluster, me)):
            yield from self.expire(cluster, me, free=node.status is not Status.UP)

    def may_own(self, cluster: Cluster, id: Id) -> bool:
        """Whether a node that is down owns the session, or has a write in flight that may claim it."""
        return cluster.row.owner == id or any(late.by == id for late in cluster.flight)

    def expire_old(self, cluster: Cluster) -> Iterator[Transition]:
        """The lease of a node's earlier life expires."""
        owner = cluster.row.owner
        if owner is not None and owner != cluster.id_of(owner.node) and owner not in cluster.row.dead:
            yield from self.expire(cluster, owner, free=True)

    def expire(self, cluster: Cluster, id: Id, free: bool) -> Iterator[Transition]:
        paid = cluster if free else self.spend(cluster, "expiries")
        node = cluster.nodes[id.node]
        if paid is None or (not self.rules.leases and node.status is Status.PAUSED):
            return
        if not self.rules.renews_own_lease and cluster.row.owner == id and any(
                n.hold and n.status is Status.UP for j, n in enumerate(cluster.nodes) if j != id.node):
            return  # another node keeps the owner's lease alive
        yield (Edge(None, f"{id}'s lease expires", fault=True, fair=free),
               paid._replace(row=paid.row._replace(dead=paid.row.dead | {id})))
