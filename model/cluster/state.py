"""The state of a cluster, as immutable values: one session's row in the database, the nodes, and what is on its way."""

from enum import Enum
from typing import NamedTuple

from ..actions import Reach, Variant
from ..lifecycle import Outcome
from ..protocol import Move
from ..session import ACCEPTED, ACTIVE, CANCELED_ON_ENTRY, DONE, Prompt, Session
from .budget import NOTHING_SPENT


class Id(NamedTuple):
    """A node in one of its lives: `a`, and after a restart `a2`."""

    node: int
    life: int = 1

    def __str__(self) -> str:
        return name_node(self.node) + (str(self.life) if self.life > 1 else "")


def name_node(node: int) -> str:
    return chr(ord("a") + node)


class Row(NamedTuple):
    """What the database has of the session. Versions and epochs count from the current one back: only whether two are
    the same is ever asked."""

    session: Session = Session()
    version: int = 0
    epoch: int = 0
    owner: Id | None = None
    closing: bool = False
    steps: tuple[tuple[int, int], ...] = ()  # ids of committed calls that somebody may send again, each with the
    # latest seq of then
    dead: frozenset[Id] = frozenset()

    @property
    def latest(self) -> int:
        """The latest seq given out."""
        return max((p.seq for p in self.session.prompts), default=0)

    def knows(self, id: int) -> bool:
        return any(known == id for known, _ in self.steps)


class Intent(NamedTuple):
    """What a step is to do, whatever it finds."""

    action: str
    seq: int | None = None
    variant: Variant = None


class Write(NamedTuple):
    """A step as a node sends it: computed on what the node has read, with what the database is to compare."""

    id: int
    by: Id
    intent: Intent
    fence: int | None  # the owner's epoch; None: a client's call, which any node takes
    version: int
    before: Session  # what it was computed on
    moves: tuple[Move, ...]
    words: str
    new: bool = False  # sent as a call of its own, though it was sent before


class Message(NamedTuple):
    """A message that was compared and is not yet written: only without a lock."""

    by: Id
    turn: "Turn"


class Turn(NamedTuple):
    """A turn that runs at a node."""

    seq: int
    epoch: int


class Hold(NamedTuple):
    """What a node knows of a session that it takes for its own."""

    epoch: int
    version: int
    read: Session
    turn: Turn | None = None


class Doubt(NamedTuple):
    """A call that the database has not answered."""

    write: Write
    looked: bool = False  # the node has looked, and has not found it


class Status(Enum):
    UP = "up"
    PAUSED = "hangs"
    DOWN = "down"

    __hash__ = object.__hash__


class Node(NamedTuple):
    """One server."""

    life: int = 1
    status: Status = Status.UP
    draining: bool = False
    woken: bool = False
    hold: Hold | None = None
    doubt: Doubt | None = None
    entering: tuple[int, ...] = ()  # prompts that it has accepted and means to take in: only if the owner does not
    closing: bool = False  # it has closed the workspace: only if the row does not say so
    stock: int = 0  # seqs that it has used of its stock: only if it has one


class Cluster(NamedTuple):
    """Everything."""

    row: Row = Row()
    nodes: tuple[Node, ...] = (Node(), Node())
    flight: tuple[Write | Message, ...] = ()  # sent, and not yet at the database
    orphans: tuple[int, ...] = ()  # calls whose node died before it answered
    begun: frozenset[int] = frozenset()  # history: prompts of which a turn has run
    closed: bool = False  # history: somebody has closed the workspace
    spent: tuple[int, ...] = NOTHING_SPENT

    def id_of(self, node: int) -> Id:
        return Id(node, self.nodes[node].life)

    def with_node(self, node: int, **fields: object) -> "Cluster":
        changed = self.nodes[node]._replace(**fields)  # type: ignore[arg-type]
        return self._replace(nodes=(*self.nodes[:node], changed, *self.nodes[node + 1:]))

    @property
    def turns(self) -> list[Turn]:
        """The turns that run somewhere."""
        return [n.hold.turn for n in self.nodes if n.status is not Status.DOWN and n.hold and n.hold.turn]

    def is_up(self, node: int) -> bool:
        return self.nodes[node].status is Status.UP

    @property
    def up(self) -> list[int]:
        return [i for i in range(len(self.nodes)) if self.is_up(i)]


def has_work(session: Session) -> bool:
    """Whether the session needs an owner: a held session with nothing active does not."""
    return any(p.state in (ACCEPTED, ACTIVE, CANCELED_ON_ENTRY) or (p.state is not DONE and not session.held)
               for p in session.prompts)


def forget_ended(session: Session) -> Session:
    """The session with finished prompts that differ in nothing but their seq and their number of ends."""
    return session.holding([
        Prompt(p.seq, False, DONE, Outcome.END_TURN, Reach.NOTHING, p.ends) if p.state is DONE else p
        for p in session.prompts])


def normalize(cluster: Cluster, refuses_stale: bool = True) -> Cluster:
    """The same state with versions and epochs counted back from the row's, and without what nobody can ask for: not
    even what a step would write that can only be refused."""
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

    def age_node(node: Node) -> Node:
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


def _order(late: Write | Message) -> tuple[object, ...]:
    return (late.id, late.by, late.intent.action, late.version) if isinstance(late, Write) else (0, late.by, "", 0)
