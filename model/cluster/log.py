"""The log of events: transactions of two sessions take places and commit, and a subscriber roams from node to node.

A place is taken from the workspace's counter row as the last thing before the commit, so that places come in the order
of commits and without gaps. A subscriber reads onward from the place that it has seen, at whatever node.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .properties import ClusterProperty
from .sending import Edge
from .state import name_node


@dataclass(frozen=True)
class LogRules:
    """What a log keeps to. The defaults are the design."""

    locks_counter: bool = True  # who has taken a place keeps the counter until the commit
    reads_below_open: bool = False  # the reader waits for every transaction that began before
    place_first: bool = False  # the place is taken before the session's lock
    asks_database: bool = True  # where a subscriber goes on is judged by the database's latest place, not the node's


LOG_DESIGN = LogRules()


@dataclass(frozen=True)
class LogBudget:
    """How much happens. The two sessions are called s and t."""

    transactions: int = 3
    rollbacks: int = 1
    moves: int = 2  # of the subscriber, to another node
    nodes: int = 2

    def __str__(self) -> str:
        return f"transactions={self.transactions} rollbacks={self.rollbacks} moves={self.moves}"


class Transaction(NamedTuple):
    """An open transaction."""

    session: int
    place: int
    locked: bool = True  # it has its session's lock


class Event(NamedTuple):
    """A committed event: its place in the log, and which of its session's commits it is."""

    place: int
    session: int
    number: int


class Log(NamedTuple):
    """The log, those who write it, and the subscriber who reads it."""

    counter: int = 0
    open: tuple[Transaction, ...] = ()
    events: tuple[Event, ...] = ()
    heard: tuple[int, ...] = (0, 0)  # by node: the latest place that it knows of
    at: int = 0  # the node of the subscriber
    cursor: int = 0  # from where it reads on
    seen: tuple[Event, ...] = ()
    spent: tuple[int, int, int] = (0, 0, 0)  # transactions, rollbacks, moves

    @property
    def latest(self) -> int:
        return max((e.place for e in self.events), default=0)

    def spend(self, n: int) -> "Log":
        spent = list(self.spent)
        spent[n] += 1
        return self._replace(spent=(spent[0], spent[1], spent[2]))


def name_session(session: int) -> str:
    return "st"[session]


class LogBehaviour:
    """What can happen to a log with these rules."""

    endless = False

    def __init__(self, budget: LogBudget, rules: LogRules = LOG_DESIGN) -> None:
        self.budget, self.rules = budget, rules
        self.start = Log(heard=(0,) * budget.nodes)

    def normalize(self, log: Log) -> Log:
        return log

    def onward(self, log: Log) -> Iterator[tuple[Edge, Log]]:
        for session in (0, 1):
            yield from self.begin(log, session)
        for transaction in log.open:
            yield from self.go_on(log, transaction)
        yield from self.read(log)

    def begin(self, log: Log, session: int) -> Iterator[tuple[Edge, Log]]:
        """A transaction takes its session's lock and a place."""
        locked = any(t.session == session and t.locked for t in log.open)
        counted = self.rules.locks_counter and bool(log.open)
        if log.spent[0] >= self.budget.transactions or counted or (locked and not self.rules.place_first):
            return
        place = log.counter + 1
        new = Transaction(session, place, not self.rules.place_first)
        yield (Edge(None, f"{name_session(session)} takes place {place}", fair=False),
               log.spend(0)._replace(counter=place, open=(*log.open, new)))

    def go_on(self, log: Log, transaction: Transaction) -> Iterator[tuple[Edge, Log]]:
        name, place = name_session(transaction.session), transaction.place
        rest = tuple(t for t in log.open if t != transaction)
        if not transaction.locked:
            if not any(t.session == transaction.session and t.locked for t in rest):
                yield (Edge(None, f"{name} with place {place} has its lock"),
                       log._replace(open=(*rest, transaction._replace(locked=True))))
            return
        number = 1 + sum(e.session == transaction.session for e in log.events)
        event = Event(place, transaction.session, number)
        yield (Edge(None, f"{name} commits place {place}"),
               log._replace(open=rest, events=tuple(sorted((*log.events, event)))))
        if log.spent[1] < self.budget.rollbacks:
            counter = log.counter - 1 if self.rules.locks_counter else log.counter
            yield (Edge(None, f"{name} with place {place} is rolled back", fault=True, fair=False),
                   log.spend(1)._replace(open=rest, counter=counter))

    def read(self, log: Log) -> Iterator[tuple[Edge, Log]]:
        """The subscriber reads the next event, or comes back at another node."""
        limit = min((t.place for t in log.open), default=log.counter + 1) if self.rules.reads_below_open \
            else log.counter + 1
        following = next((e for e in log.events if log.cursor < e.place < limit), None)
        if following:
            heard = tuple(max(h, following.place) if n == log.at else h for n, h in enumerate(log.heard))
            yield (Edge(log.at, f"subscriber reads place {following.place}"),
                   log._replace(cursor=following.place, heard=heard, seen=(*log.seen, following)))
        for n in range(self.budget.nodes):
            if n != log.at and log.spent[2] < self.budget.moves:
                known = log.latest if self.rules.asks_database else log.heard[n]
                yield (Edge(None, f"subscriber comes back at {name_node(n)} with place {log.cursor}", fair=False),
                       log.spend(2)._replace(at=n, cursor=min(log.cursor, known)))


class LogStep(NamedTuple):
    before: Log
    edge: Edge
    after: Log


def dense(step: LogStep) -> bool:
    return [e.place for e in step.after.events] == list(range(1, len(step.after.events) + 1))


def none_passed(step: LogStep) -> bool:
    return all(e.place > step.before.cursor for e in step.after.events if e not in step.before.events)


def seen_once(step: LogStep) -> bool:
    return len(set(step.after.seen)) == len(step.after.seen)


def in_order(step: LogStep) -> bool:
    of_session = [[e.number for e in step.after.seen if e.session == s] for s in (0, 1)]
    return all(numbers == sorted(numbers) for numbers in of_session)


LOG_PROPERTIES: tuple[ClusterProperty, ...] = (
    ClusterProperty("dense", "Places have no gaps: who finds one has found an error.", dense),
    ClusterProperty("none-passed", "No event commits at a place that a subscriber has passed already.", none_passed),
    ClusterProperty("in-order", "A subscriber sees a session's events in the order of their commits.", in_order),
    ClusterProperty("seen-once", "A subscriber that comes back at any node sees no event twice.", seen_once),
    ClusterProperty("all-seen",
                    "Every committed event can be seen.",
                    reached=lambda log, endless: {e.place for e in log.seen} == {e.place for e in log.events}),
)


SMALL = LogBudget(2, rollbacks=0, moves=0)


@dataclass(frozen=True)
class LogFlaw:
    """A log that somebody could build, and what it breaks."""

    name: str
    clause: str  # of specs/cluster.md, that is left out
    says: str
    property: str
    rules: LogRules
    budget: LogBudget = SMALL


LOG_FLAWS: tuple[LogFlaw, ...] = (
    LogFlaw("place-from-sequence", "C8a",
            "Places come from a sequence: transaction s commits after t, at a place that the subscriber has passed.",
            "none-passed", LogRules(locks_counter=False)),
    LogFlaw("place-unseen", "C8a",
            "The same, and the subscriber has gone on: the event is in the log and nobody sees it.",
            "all-seen", LogRules(locks_counter=False)),
    LogFlaw("place-rolled-back", "C8a",
            "Places come from a sequence, and a transaction is rolled back: the gap stays.",
            "dense", LogRules(locks_counter=False), LogBudget(2, rollbacks=1, moves=0)),
    LogFlaw("xid-before-lock", "C8a",
            "The reader waits for all that began before, but a transaction begins before it has its session's lock: "
            "the order of a session's events is inverted.",
            "in-order", LogRules(locks_counter=False, reads_below_open=True, place_first=True)),
    LogFlaw("place-clamped", "C8b",
            "A node clamps a subscriber's place to what it has heard of itself: events come twice.",
            "seen-once", LogRules(asks_database=False), LogBudget(1, rollbacks=0, moves=1)),
)

# Another way that holds, but for the gaps: the price is that one long transaction holds up all readers.
LOG_HARMLESS: tuple[LogFlaw, ...] = (
    LogFlaw("xid-after-lock", "C8a",
            "The reader waits for all that began before, and a transaction begins after it has its session's lock: "
            "nothing is passed, and order holds. There are gaps, and a long transaction holds up all readers.",
            "dense", LogRules(locks_counter=False, reads_below_open=True), LogBudget()),
)
