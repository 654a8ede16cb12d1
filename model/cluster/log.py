"""The event log: transactions of two sessions take offsets and commit, and a subscriber moves from node to node.

A transaction takes its offset from the workspace's counter row as the last thing before the commit, so offsets are in
commit order and have no gaps. A subscriber resumes from the last offset it has seen, on any node.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .properties import ClusterProperty
from .sending import Edge
from .state import name_node


@dataclass(frozen=True)
class LogRules:
    """The rules of a log. The defaults are the design."""

    locks_counter: bool = True  # a transaction that has taken an offset locks the counter until its commit
    reads_below_open: bool = False  # the reader waits for every transaction that started earlier
    place_first: bool = False  # a transaction takes its offset before its session's lock
    asks_database: bool = True  # a resumed offset is checked against the database's latest offset, not the node's


LOG_DESIGN = LogRules()


@dataclass(frozen=True)
class LogBudget:
    """The bounds of a search. The two sessions are called s and t."""

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
    locked: bool = True  # it holds its session's lock


class Event(NamedTuple):
    """A committed event: its offset in the log, and its number among its session's commits."""

    place: int
    session: int
    number: int


class Log(NamedTuple):
    """The log, its writers, and one subscriber."""

    counter: int = 0
    open: tuple[Transaction, ...] = ()
    events: tuple[Event, ...] = ()
    heard: tuple[int, ...] = (0, 0)  # by node: the latest offset that it knows
    at: int = 0  # the subscriber's node
    cursor: int = 0  # the subscriber's offset
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
    """The possible steps of a log with these rules."""

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
        """A transaction takes its session's lock and an offset."""
        locked = any(t.session == session and t.locked for t in log.open)
        counted = self.rules.locks_counter and bool(log.open)
        if log.spent[0] >= self.budget.transactions or counted or (locked and not self.rules.place_first):
            return
        place = log.counter + 1
        new = Transaction(session, place, not self.rules.place_first)
        yield (Edge(None, f"{name_session(session)} takes offset {place}", fair=False),
               log.spend(0)._replace(counter=place, open=(*log.open, new)))

    def go_on(self, log: Log, transaction: Transaction) -> Iterator[tuple[Edge, Log]]:
        name, place = name_session(transaction.session), transaction.place
        rest = tuple(t for t in log.open if t != transaction)
        if not transaction.locked:
            if not any(t.session == transaction.session and t.locked for t in rest):
                yield (Edge(None, f"{name} with offset {place} gets its lock"),
                       log._replace(open=(*rest, transaction._replace(locked=True))))
            return
        number = 1 + sum(e.session == transaction.session for e in log.events)
        event = Event(place, transaction.session, number)
        yield (Edge(None, f"{name} commits offset {place}"),
               log._replace(open=rest, events=tuple(sorted((*log.events, event)))))
        if log.spent[1] < self.budget.rollbacks:
            counter = log.counter - 1 if self.rules.locks_counter else log.counter
            yield (Edge(None, f"{name} with offset {place} is rolled back", fault=True, fair=False),
                   log.spend(1)._replace(open=rest, counter=counter))

    def read(self, log: Log) -> Iterator[tuple[Edge, Log]]:
        """The subscriber reads the next event, or reconnects to another node."""
        limit = min((t.place for t in log.open), default=log.counter + 1) if self.rules.reads_below_open \
            else log.counter + 1
        following = next((e for e in log.events if log.cursor < e.place < limit), None)
        if following:
            heard = tuple(max(h, following.place) if n == log.at else h for n, h in enumerate(log.heard))
            yield (Edge(log.at, f"subscriber reads offset {following.place}"),
                   log._replace(cursor=following.place, heard=heard, seen=(*log.seen, following)))
        for n in range(self.budget.nodes):
            if n != log.at and log.spent[2] < self.budget.moves:
                known = log.latest if self.rules.asks_database else log.heard[n]
                yield (Edge(None, f"subscriber reconnects to {name_node(n)} with offset {log.cursor}", fair=False),
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
    ClusterProperty("dense", "Offsets have no gaps, so a gap always indicates an error.", dense),
    ClusterProperty("none-passed", "No event commits at an offset that a subscriber has already passed.", none_passed),
    ClusterProperty("in-order", "A subscriber receives a session's events in commit order.", in_order),
    ClusterProperty("seen-once", "A subscriber that reconnects to any node receives no event twice.", seen_once),
    ClusterProperty("all-seen",
                    "A subscriber eventually receives every committed event.",
                    reached=lambda log, endless: {e.place for e in log.seen} == {e.place for e in log.events}),
)
