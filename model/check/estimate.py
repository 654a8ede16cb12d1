"""Estimates of how many states a search will visit: before it starts, and from the levels that it has completed.

The levels of a breadth-first search of a bounded protocol grow and then shrink like a row of Pascal's triangle: from
one level to the next the number of states is multiplied by about q · (D - d) / (d + 1). Two observed factors determine
q and D, and so the remaining levels. The result is always labelled as an estimate. It is withheld until the search
appears to have reached half its final depth; any earlier, it would be a guess.
"""

from collections.abc import Sequence

from ..properties import Bounds
from ..protocol import Behaviour

LEAST_DEPTH = 3


def magnitude(protocol: Behaviour, bounds: Bounds) -> float:
    """The expected number of states, as a decimal logarithm. A rule of thumb, good enough to choose an engine and a
    table size."""
    return (0.9 * bounds.prompts + 0.3 * bounds.total + 0.2 * bounds.crashes
            + 0.7 * (bounds.sessions - 1) + (0 if protocol.rows else 2))


def deepest(protocol: Behaviour, bounds: Bounds) -> int:
    """The maximum depth of a search for a table-driven protocol, or 0 if unknown.

    A prompt is accepted, enters, and settles or finishes; a crash is followed by a recovery, a hold by a resume, and a
    question by an answer and the start of its tool.
    """
    if not protocol.rows:
        return 0
    return 2 * bounds.prompts + bounds.crashes + bounds.holds + bounds.stops + 2 * bounds.asks + bounds.total


def estimate(levels: Sequence[int], met: int, limit: int) -> int | None:
    """The estimated total number of states, or None while it is too early to tell.

    `levels` has the number of states of each level up to the one being expanded, `met` is the number of states visited
    so far, and `limit` is the maximum depth.
    """
    depth = len(levels) - 1
    if not LEAST_DEPTH <= depth < limit:
        return None
    factor, before = levels[-1] / levels[-2], levels[-2] / levels[-3]
    share = factor * depth / (before * (depth - 1))
    left: float = limit - depth + 1  # D - d, where d is the level before the last
    if share < 1:
        left = min(left, share / (1 - share))
    if left > depth:
        return None
    scale = factor * depth / left
    total, level = float(sum(levels)), float(levels[-1])
    while left > 1 and level >= 1:
        left, depth = left - 1, depth + 1
        level *= scale * left / depth
        total += level
    return max(round(total), met)
