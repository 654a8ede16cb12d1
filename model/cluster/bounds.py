"""The bounds within which the cluster is explored, each with the number of states it visits"""

from dataclasses import dataclass

from ..protocol import FAMILY, REFERENCE, Protocol
from .budget import Budget
from .log import LogBudget


@dataclass(frozen=True)
class Bound:
    """One search of the design, in which every property holds: its budget and its number of states."""

    budget: Budget
    states: int
    protocol: Protocol = REFERENCE


BOUNDS: tuple[Bound, ...] = (
    Bound(Budget(2, cancels=2, endless=True), 361),
    Bound(Budget(2, kills=1, doubts=1, reposts=1, run_ids=True), 2149),
    Bound(Budget(3, cancels=1, kills=1), 3412),
    Bound(Budget(2, cancels=1, kills=1, wakeups=1), 1218),
    Bound(Budget(2, cancels=1, fails=1, kills=1), 964),
    Bound(Budget(1, cancels=1, doubts=1, kills=1), 895),
    # The other client calls, each with a lost or late response, and a killed node.
    Bound(Budget(2, clears=1, kills=1, doubts=1), 6293),
    Bound(Budget(1, closes=1, kills=1, doubts=1), 698),
    Bound(Budget(1, revokes=1, kills=1, doubts=1), 629, FAMILY),
    Bound(Budget(1, stops=1, kills=1, doubts=1), 2205, FAMILY),
    Bound(Budget(1, holds=1, kills=1, doubts=1), 1579, FAMILY),
    Bound(Budget(1, replaces=1, kills=1, doubts=1), 459, FAMILY),
    Bound(Budget(1, nexts=1, kills=1, doubts=1), 447, FAMILY),
    Bound(Budget(1, asks=1, cancels=1, kills=1), 252, FAMILY),
    Bound(Budget(1, asks=1, expiries=1), 147, FAMILY),
    Bound(Budget(1, asks=1, cancels=1, doubts=1), 1449, FAMILY),
    Bound(Budget(2, holds=1, nexts=1, drains=1), 3301, FAMILY),
    Bound(Budget(2, stops=1, expiries=1), 2493, FAMILY),
    Bound(Budget(2, modes=1, kills=1), 465, FAMILY),
    Bound(Budget(2, modes=1, expiries=1), 1221, FAMILY),
    Bound(Budget(2, modes=1, doubts=1), 2046, FAMILY),
    # Two unanswered steps at once, including claims.
    Bound(Budget(1, expiries=1, doubts=2), 1682),
    Bound(Budget(1, kills=1, restarts=1, doubts=2), 1306),
    # Three nodes: one dies, and two compete for its session.
    Bound(Budget(1, cancels=1, kills=2, nodes=3), 269),
)

# These take minutes in total.
DEEP_BOUNDS: tuple[Bound, ...] = (
    Bound(Budget(2, holds=1, expiries=1, drains=1), 8_487, FAMILY),
    Bound(Budget(3, cancels=1, expiries=1), 12_840),
    Bound(Budget(2, cancels=1, drains=1, expiries=1, requeues=1), 15_878),
    Bound(Budget(2, cancels=1, closes=1, drains=1, expiries=1), 18_487),
    Bound(Budget(2, cancels=1, expiries=2, requeues=1, messages=1), 20_072),
    Bound(Budget(2, cancels=1, drains=1, doubts=1), 22_157),
    Bound(Budget(2, cancels=1, kills=1, restarts=1, doubts=1), 28_107),
    Bound(Budget(2, cancels=1, expiries=1, doubts=1), 36_337),
    Bound(Budget(2, cancels=1, kills=1, pauses=1, expiries=1), 63_740),
    Bound(Budget(2, cancels=1, requeues=1, doubts=1, drains=1), 46_021),
    Bound(Budget(2, cancels=1, requeues=1, doubts=1, expiries=1), 72_339),
    Bound(Budget(2, cancels=1, pauses=1, doubts=1, messages=1), 115_954),
)

LOG_BOUND, LOG_STATES = LogBudget(), 586
