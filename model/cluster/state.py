"""The state of a cluster, as immutable values: one session's row in the database, the nodes, and writes in flight."""

from enum import Enum
from typing import NamedTuple

from ..actions import Reach, Variant
from ..lifecycle import Outcome
from ..protocol import Move
from ..session import ACCEPTED, ACTIVE, CANCELED_ON_ENTRY, DONE, Prompt, Session
from .budget import NOTHING_SPENT


class Id(NamedTuple):
    """The id of a node in one of its lives: `a`, and after a restart `a2`."""

    node: int
    life: int = 1

    def __str__(self) -> str:
        return name_node(self.node) + (str(self.life) if self.life > 1 else "")


def name_node(node: int) -> str:
    return chr(ord("a") + node)


class SessionRow(NamedTuple):
    """The session's row in the database. Versions and epochs are relative to the current one, because they are only
    ever compared for equality."""

    session: Session = Session()
    version: int = 0
    epoch: int = 0
    owner: Id | None = None
    closing: bool = False
    # The ids of committed calls that a node or client may retry, each with the latest seq at its commit.
    steps: tuple[tuple[int, int], ...] = ()
    dead: frozenset[Id] = frozenset()

    @property
    def latest(self) -> int:
        """The latest seq that was assigned."""
        return max((p.seq for p in self.session.prompts), default=0)

    def knows(self, id: int) -> bool:
        return any(known == id for known, _ in self.steps)


class Intent(NamedTuple):
    """The purpose of a step, independent of the state that it is applied to."""

    action: str
    seq: int | None = None
    variant: Variant = None


class Write(NamedTuple):
    """A step as a node sends it: computed on the state that the node has read, with the values to compare."""

    id: int
    by: Id
    intent: Intent
    fence: int | None  # the owner's epoch; None: a client's call, which any node accepts
    version: int
    before: Session  # the state that it was computed on
    moves: tuple[Move, ...]
    words: str
    new: bool = False  # sent as a new call, although it was sent before


class PendingMessage(NamedTuple):
    """A turn's message that was checked and is not yet written. Exists only if messages are written without a lock."""

    by: Id
    turn: "NodeTurn"


class NodeTurn(NamedTuple):
    """A turn running on a node."""

    seq: int
    epoch: int


class Hold(NamedTuple):
    """A node's copy of a session that it believes it owns."""

    epoch: int
    version: int
    read: Session
    turn: NodeTurn | None = None


class Doubt(NamedTuple):
    """A call that the database has not answered yet."""

    write: Write
    looked: bool = False  # the node has looked it up and has not found it


class Status(Enum):
    UP = "up"
    PAUSED = "hangs"
    DOWN = "down"

    __hash__ = object.__hash__


class NodeState(NamedTuple):
    """One server."""

    life: int = 1
    status: Status = Status.UP
    draining: bool = False
    woken: bool = False
    hold: Hold | None = None
    doubt: Doubt | None = None
    entering: tuple[int, ...] = ()  # prompts that it has accepted and will enter: only without `owner_enters`
    closing: bool = False  # it has closed the workspace: only without `closing_in_database`
    stock: int = 0  # how many preallocated seqs it has used: only without `seqs_one_by_one`


class Cluster(NamedTuple):
    """The whole state."""

    row: SessionRow = SessionRow()
    nodes: tuple[NodeState, ...] = (NodeState(), NodeState())
    flight: tuple[Write | PendingMessage, ...] = ()  # sent, but not yet at the database
    orphans: tuple[int, ...] = ()  # calls whose node died before it responded
    begun: frozenset[int] = frozenset()  # history: prompts whose turn has started
    closed: bool = False  # history: the workspace has been closed
    spent: tuple[int, ...] = NOTHING_SPENT

    def id_of(self, node: int) -> Id:
        return Id(node, self.nodes[node].life)

    def with_node(self, node: int, **fields: object) -> "Cluster":
        changed = self.nodes[node]._replace(**fields)  # type: ignore[arg-type]
        return self._replace(nodes=(*self.nodes[:node], changed, *self.nodes[node + 1:]))

    @property
    def turns(self) -> list[NodeTurn]:
        """The turns running on any node."""
        return [n.hold.turn for n in self.nodes if n.status is not Status.DOWN and n.hold and n.hold.turn]

    def is_up(self, node: int) -> bool:
        return self.nodes[node].status is Status.UP

    @property
    def up(self) -> list[int]:
        return [i for i in range(len(self.nodes)) if self.is_up(i)]


def has_work(session: Session) -> bool:
    """Whether the session needs an owner. A held session without an active prompt does not."""
    return any(p.state in (ACCEPTED, ACTIVE, CANCELED_ON_ENTRY) or (p.state is not DONE and not session.held)
               for p in session.prompts)


def forget_ended(session: Session) -> Session:
    """The session with its finished prompts reduced to their seq and their number of terminal events."""
    return session.with_sorted_prompts([
        Prompt(p.seq, False, DONE, Outcome.END_TURN, Reach.NOTHING, p.ends) if p.state is DONE else p
        for p in session.prompts])


def normalize(cluster: Cluster, refuses_stale: bool = True) -> Cluster:
    """A canonical form of the state: versions and epochs are relative to the row's, and unobservable data is removed,
    including the contents of writes that can only be refused."""
    row = cluster.row

    def age(hold: Hold) -> Hold:
        turn = hold.turn and hold.turn._replace(epoch=max(-1, hold.turn.epoch - row.epoch))
        return hold._replace(epoch=max(-1, hold.epoch - row.epoch), version=max(-1, hold.version - row.version),
                             turn=turn)

    def age_write(write: Write) -> Write:
        fence = None if write.fence is None else max(-1, write.fence - row.epoch)
        version = max(-1, write.version - row.version)
        if version and refuses_stale:
            write = write._replace(before=Session(), moves=())
        return write._replace(fence=fence, version=version)

    def age_node(node: NodeState) -> NodeState:
        return node._replace(hold=node.hold and age(node.hold),
                             doubt=node.doubt and node.doubt._replace(write=age_write(node.doubt.write)))

    flight = tuple(age_write(w) if isinstance(w, Write)
                   else w._replace(turn=w.turn._replace(epoch=max(-1, w.turn.epoch - row.epoch)))
                   for w in cluster.flight)
    asked = {w.id for w in flight if isinstance(w, Write)} | {n.doubt.write.id for n in cluster.nodes if n.doubt}
    asked.update(cluster.orphans)
    lives = {row.owner, *(late.by for late in flight),
             *(cluster.id_of(i) for i, n in enumerate(cluster.nodes) if n.status is not Status.DOWN)}
    live = {p.seq for p in row.session.prompts if p.state is not DONE}
    return cluster._replace(
        row=row._replace(version=0, epoch=0, session=forget_ended(row.session), dead=row.dead & lives,
                         steps=tuple(s for s in row.steps if s[0] in asked)),
        nodes=tuple(map(age_node, cluster.nodes)), flight=tuple(sorted(flight, key=_order)),
        begun=cluster.begun & live)


def _order(late: Write | PendingMessage) -> tuple[object, ...]:
    return (late.id, late.by, late.intent.action, late.version) if isinstance(late, Write) else (0, late.by, "", 0)
