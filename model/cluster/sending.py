"""The round trip of a step: a node computes it with the protocol's actions on the state it has read, the database
compares and writes, and the node receives the response.

Without faults, the whole round trip is one edge. That is enough: a step that was computed on a stale state reads again
and reapplies its intent, with no observable difference. Faults split the round trip: the response is lost after the
commit, or the step arrives after its node has stopped waiting.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from ..actions import Actor, Variant
from ..lifecycle import Outcome
from ..protocol import REFERENCE, Move, Protocol
from ..session import ACTIVE, Session, label
from .budget import NAMES, Budget
from .database import ADOPT, RECOVER, RELEASE, Database, Response, Written
from .rules import DESIGN, Claim, Retry, Rules
from .state import (
    Cluster,
    Doubt,
    Hold,
    Intent,
    NodeState,
    NodeTurn,
    PendingMessage,
    SessionRow,
    Status,
    Write,
    name_node,
    normalize,
)

CALLS = (Actor.CLIENT, Actor.OPERATOR)
OF_TURN = ("step", "requeue", "finish", "ask", "run", "withdraw")


class Edge(NamedTuple):
    """One step of the cluster, with the facts that the properties need."""

    by: int | None  # the node; None: not a node's step
    what: str
    how: str = ""
    to_database: bool = True
    client: bool = False  # a client requested it
    fault: bool = False
    fair: bool = True  # it eventually happens on its own
    answer: Response | None = None
    moves: tuple[tuple[Session, Move], ...] = ()
    call: int | None = None  # the client call that was committed
    told: bool | None = None  # the response to a client: done, or not done
    asked: int | None = None  # the call that this response is for
    turn: NodeTurn | None = None  # the turn that it wrote for
    published: tuple[int, ...] = ()  # terminal events that were published without a commit
    began: tuple[int, ...] = ()  # prompts whose turns start
    tool: NodeTurn | None = None  # the turn whose tool acted

    def __str__(self) -> str:
        who = "" if self.by is None else f"{name_node(self.by)}: "
        return who + self.what + (f" ({self.how})" if self.how else "")


Transition = tuple[Edge, Cluster]



class Sending:
    """Computes, sends, writes and answers the steps of a cluster's nodes."""

    def __init__(self, budget: Budget, rules: Rules = DESIGN, protocol: Protocol = REFERENCE) -> None:
        self.budget, self.rules, self.protocol = budget, rules, protocol
        self.database = Database(rules)
        self.limits = tuple(getattr(budget, name) for name in NAMES)
        self.calls = [a for a in protocol.actions if a.actor in CALLS]
        self.apply = lru_cache(maxsize=None)(self._apply)
        self.start = Cluster(nodes=(NodeState(),) * budget.nodes)

    @property
    def endless(self) -> bool:
        return self.budget.endless

    def normalize(self, cluster: Cluster) -> Cluster:
        return normalize(cluster, self.rules.compares_version)

    # --- computing a step

    def _apply(self, session: Session, name: str, seq: int | None, variant: Variant, latest: int) -> Move | None:
        """The protocol's action on a session, or None if it is not enabled there."""
        action = self.protocol.action(name)
        prompt = None if seq is None else next((p for p in session.prompts if p.seq == seq), None)
        if not self.protocol.allows(action, session, prompt, variant):
            return None
        return self.protocol.apply(action, session, prompt, variant, latest)

    def compute(self, session: Session, intent: Intent, latest: int) -> tuple[Move, ...] | None:
        """The moves that carry out an intent on this session. A claim consists of the protocol's crash and recover. A
        requeue of a turn that was canceled in the meantime becomes the end of the turn."""
        if intent.action in (ADOPT, RELEASE):
            return ()
        if intent.action == RECOVER:
            moves: list[Move] = []
            for name in ("crash", "recover") if self.rules.claim is Claim.RECOVER else ():
                move = self.apply(moves[-1].after if moves else session, name, None, None, latest)
                assert move is not None
                moves.append(move)
            return tuple(moves)
        move = self.apply(session, intent.action, intent.seq, intent.variant, latest)
        if move is None and intent.action == "requeue":
            move = self.apply(session, "finish", intent.seq, Outcome.CANCELED, latest)
        return None if move is None else (move,)

    def write(self, cluster: Cluster, i: int, intent: Intent, moves: tuple[Move, ...]) -> Write:
        """A step that was computed on the current row."""
        row = cluster.row
        return Write(self.free_id(cluster), cluster.id_of(i), intent, None, row.version, row.session, moves,
                     name_step(intent, row.session, moves))

    def next_seq(self, cluster: Cluster, node: int) -> int:
        """One less than the seq of the next accepted prompt."""
        if self.rules.seqs_one_by_one:
            return cluster.row.latest
        return 2 * node + cluster.nodes[node].stock  # each node has preallocated two

    def free_id(self, cluster: Cluster) -> int:
        used = {w.id for w in cluster.flight if isinstance(w, Write)} | set(cluster.orphans)
        used |= {n.doubt.write.id for n in cluster.nodes if n.doubt}
        return next(id for id in range(1, len(used) + 2) if id not in used)

    def spend(self, cluster: Cluster, bound: str | None) -> Cluster | None:
        """The cluster with one more of these spent, or None if the budget is used up."""
        if bound is None:
            return cluster
        n = NAMES.index(bound)
        if cluster.spent[n] >= self.limits[n]:
            return None
        return cluster._replace(spent=(*cluster.spent[:n], cluster.spent[n] + 1, *cluster.spent[n + 1:]))

    # --- the round trip of a step

    def send(self, cluster: Cluster, i: int, write: Write) -> Iterator[Transition]:
        """The possible results of sending a step: answered; committed with the response lost; or late. A node with a
        stale copy reads the row and reapplies its intent."""
        written = self.database.take_step(cluster.row, write)
        if written.answer is Response.STALE:
            written, write = self.again(cluster.row, write)
        for woken, lost in self.wake(cluster._replace(row=written.row), cluster, i, written.answer):
            yield self.answered(woken, i, write, written, lost)
        if written.answer is Response.OK and (paid := self.spend(cluster, "doubts")) is not None:
            for woken, lost in self.wake(paid._replace(row=written.row), cluster, i, written.answer):
                after = self.in_doubt(woken, i, write)
                yield self.edge(i, write, written, lost or "response lost", fault=True), self.note(after, written)
        if (paid := self.spend(cluster, "doubts")) is not None:
            after = self.in_doubt(paid, i, write)
            yield (Edge(i, write.words, "late", client=self.is_call(write), fault=True, fair=False),
                   after._replace(flight=(*after.flight, write)))

    def answered(self, cluster: Cluster, i: int, write: Write, written: Written, how: str = "") -> Transition:
        """The database's response reaches the node."""
        if write.intent.action == "close" and not self.rules.closing_in_database:
            cluster = cluster.with_node(i, closing=True)
        told = written.answer in (Response.OK, Response.DUP) if self.is_call(write) else None
        edge = self.edge(i, write, written, how)._replace(told=told, asked=write.id)
        cluster = cluster.with_node(i, doubt=None)
        cluster, began = self.refresh(self.note(cluster, written), i, write, written)
        return edge._replace(began=began), cluster

    def again(self, row: SessionRow, write: Write) -> tuple[Written, Write]:
        """Reapply the intent of a step to the current row."""
        moves = self.compute(row.session, write.intent, row.latest)
        if moves is None:
            return Written(Response.REFUSED, row), write
        write = write._replace(version=row.version, before=row.session, moves=moves,
                               words=name_step(write.intent, row.session, moves))
        return self.database.take_step(row, write), write

    def edge(self, i: int, write: Write, written: Written, how: str = "", fault: bool = False) -> Edge:
        ok = written.answer is Response.OK
        turn = None
        if ok and write.intent.action in OF_TURN and write.fence is not None:
            turn = NodeTurn(write.intent.seq or 0, write.fence)
        published: tuple[int, ...] = ()
        if not self.rules.commits_first and write.intent.action == "finish" and not ok and write.intent.seq:
            published = (write.intent.seq,)
        said = how or ("" if ok else written.answer.value)
        fair = not self.is_call(write) and not fault and write.intent.action not in ("requeue", "fail")
        return Edge(i, write.words, said, client=self.is_call(write), fault=fault, fair=fair, answer=written.answer,
                    moves=written.moves, call=write.id if ok and self.is_call(write) else None, turn=turn,
                    published=published)

    def is_call(self, write: Write) -> bool:
        """Whether it is a client's call."""
        return any(action.name == write.intent.action for action in self.calls)

    def in_doubt(self, cluster: Cluster, i: int, write: Write) -> Cluster:
        """The node waits for a response. A turn whose end it has sent is over."""
        node = cluster.nodes[i]
        hold = node.hold
        if hold and hold.turn and write.intent.action in ("finish", "requeue") and hold.turn.seq == write.intent.seq:
            hold = hold._replace(turn=None)
        return cluster.with_node(i, hold=hold, doubt=Doubt(write))

    def note(self, cluster: Cluster, written: Written) -> Cluster:
        """Update the history: a requeued turn may start again, and a committed close has closed the workspace."""
        actions = {(move.action.name, move.seq) for _, move in written.moves}
        begun = cluster.begun - {seq for name, seq in actions if name == "requeue" and seq}
        return cluster._replace(begun=begun, closed=cluster.closed or any(name == "close" for name, _ in actions))

    def wake(self, cluster: Cluster, before: Cluster, i: int, answer: Response) -> Iterator[tuple[Cluster, str]]:
        """The other nodes are notified of a commit, or the notification is lost."""
        others = [j for j, n in enumerate(cluster.nodes) if j != i and n.hold and n.status is not Status.DOWN]
        if answer is not Response.OK or not others or not self.budget.wakeups:
            yield cluster, ""
            return
        woken = cluster
        for j in others:
            woken = woken.with_node(j, woken=True)
        yield woken, ""
        if (paid := self.spend(cluster, "wakeups")) is not None:
            yield paid, "notification lost"

    def resolve(self, cluster: Cluster, i: int, doubt: Doubt) -> Iterator[Transition]:
        """Retry an unanswered call under the same step id until the database responds."""
        retry, write = self.rules.retry, doubt.write
        client = self.is_call(write)
        if client and retry in (Retry.COMMITTED, Retry.FAILED):
            told = retry is Retry.COMMITTED
            edge = Edge(i, f"{write.words}: {'assumed done' if told else 'assumed failed'}",
                        to_database=False, told=told, asked=write.id)
            yield edge, cluster.with_node(i, doubt=None)
            return
        if client and retry in (Retry.LOOKED_UP, Retry.LOOKED_UP_ID) and not doubt.looked:
            if cluster.row.knows(write.id):
                yield (Edge(i, f"look up {write.words}", "found", told=True, asked=write.id),
                       cluster.with_node(i, doubt=None))
            else:
                yield (Edge(i, f"look up {write.words}", "not found"),
                       cluster.with_node(i, doubt=doubt._replace(looked=True)))
            return
        if client and retry in (Retry.NEW_ID, Retry.LOOKED_UP):
            write = write._replace(new=True)
            written, write = self.again(cluster.row, write)
        else:
            written = self.database.take_step(cluster.row, write)
            if written.answer is Response.STALE:
                written, write = self.again(cluster.row, write)
        edge, after = self.answered(cluster._replace(row=written.row), i, write, written)
        yield edge._replace(what=f"{edge.what}, retried", client=False, fair=True), after

    def arrive(self, cluster: Cluster) -> Iterator[Transition]:
        """A late step arrives, whatever has happened to its node."""
        for late in dict.fromkeys(cluster.flight):
            rest = list(cluster.flight)
            rest.remove(late)
            left = cluster._replace(flight=tuple(rest))
            if isinstance(late, PendingMessage):
                yield Edge(late.by.node, f"message of {label(late.turn.seq)}", "arrives", turn=late.turn), left
                continue
            written = self.database.take_step(cluster.row, late)
            edge = self.edge(late.by.node, late, written, fault=True)._replace(client=False)
            how = "arrives" + ("" if written.answer is Response.OK else f": {written.answer.value}")
            for woken, lost in self.wake(left._replace(row=written.row), cluster, late.by.node, written.answer):
                yield edge._replace(how=", ".join(filter(None, (how, lost))), fair=True), self.note(woken, written)

    # --- what a node knows

    def refresh(self, cluster: Cluster, i: int, write: Write, written: Written) -> tuple[Cluster, tuple[int, ...]]:
        """Update the node's copy after a response. The owner then acts on that copy."""
        node, row = cluster.nodes[i], cluster.row
        if write.intent.action == "accept" and written.answer is Response.OK:
            new = row.latest if self.rules.seqs_one_by_one else self.next_seq(cluster, i) + 1
            cluster = cluster.with_node(
                i, entering=() if self.rules.owner_enters else (*node.entering, new),
                stock=0 if self.rules.seqs_one_by_one else node.stock + 1)
        if not self.rules.compares_version and node.hold and write.fence is not None and \
                written.answer is Response.OK and row.owner == cluster.id_of(i):
            return self.remember(cluster, i, node.hold, write)
        return self.read_row(cluster, i, ended=write.intent if write.fence is not None else None)

    def remember(self, cluster: Cluster, i: int, hold: Hold, write: Write) -> tuple[Cluster, tuple[int, ...]]:
        """Only without `compares_version`: the node continues with its own copy."""
        turn = hold.turn
        if turn and write.intent.action in ("finish", "requeue"):
            turn = None
        read = write.moves[-1].after if write.moves else hold.read
        return self.reconcile(cluster, i, hold._replace(read=read, turn=turn))  # type: ignore[arg-type]

    def read_row(self, cluster: Cluster, i: int, ended: Intent | None = None) -> tuple[Cluster, tuple[int, ...]]:
        """The node reads the row: the session's owner, and its work. (Without `renews_own_lease`, the node takes the
        renewed lease as evidence that it is still the owner.)"""
        node, row, me = cluster.nodes[i], cluster.row, cluster.id_of(i)
        hold = node.hold
        cluster = cluster.with_node(i, woken=False)
        if row.owner != me and not (hold and not self.rules.renews_own_lease):
            return cluster.with_node(i, hold=None), ()
        if hold is None or (hold.epoch != row.epoch and self.rules.renews_own_lease):
            hold = Hold(row.epoch, row.version, row.session)
        turn = hold.turn
        if turn and ended and ended.action in ("finish", "requeue") and ended.seq == turn.seq:
            turn = None
        return self.reconcile(cluster, i, hold._replace(version=row.version, read=row.session, turn=turn))

    def reconcile(self, cluster: Cluster, i: int, hold: Hold) -> tuple[Cluster, tuple[int, ...]]:
        """Start the turn of an active prompt that is not running, and drop a turn whose prompt is no longer active."""
        node = cluster.nodes[i]
        active = {p.seq for p in hold.read.prompts if p.state is ACTIVE}
        turn = hold.turn if hold.turn and hold.turn.seq in active else None
        began: tuple[int, ...] = ()
        if turn is None and active and not node.draining:
            seq = min(active)
            if not (self.rules.claim is Claim.NOTHING and seq in cluster.begun):
                turn, began = NodeTurn(seq, hold.epoch), (seq,)
        after = cluster.with_node(i, hold=hold._replace(turn=turn))
        return after._replace(begun=after.begun | set(began)), began



def name_step(intent: Intent, before: Session, moves: tuple[Move, ...]) -> str:
    """The step as display text: `accept A`, `finish A error`."""
    action, seq, variant = intent
    if action == "accept":
        there = {p.seq for p in before.prompts}
        seq = next((p.seq for move in moves for p in move.after.prompts if p.seq not in there), None)
    words = [action, *([label(seq)] if seq else [])]
    if isinstance(variant, Outcome):
        words.append(variant.value)
    elif isinstance(variant, str):
        words.append(variant)
    return " ".join(words)
