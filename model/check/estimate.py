"""How many states a search will meet: before it begins, and from the levels that it has been through.

A breadth-first search of a bounded protocol grows, turns and shrinks like a row of Pascal's triangle: from one level to
the next the number of states is multiplied by about q · (D - d) / (d + 1). Two factors that have been seen say what
q and D are, and so what is still to come. It is an estimate, is called one wherever it is shown, and is not given
before the search seems to be half as deep as it will get: earlier, it would be a guess.
"""

from collections.abc import Sequence

from ..properties import Bounds
from ..protocol import Behaviour

LEAST_DEPTH = 3


def magnitude(protocol: Behaviour, bounds: Bounds) -> float:
    """The decimal logarithm of the states to expect, by experience: good enough to choose an engine and a size by."""
    return (0.9 * bounds.prompts + 0.3 * bounds.total + 0.2 * bounds.crashes
            + 0.7 * (bounds.sessions - 1) + (0 if protocol.rows else 2))


def deepest(protocol: Behaviour, bounds: Bounds) -> int:
    """The depth that a search can get to, for a protocol that is made of rows; 0: unknown.

    A prompt is accepted, enters, and settles or finishes; a crash is followed by a recovery, a hold by a resume.
    """
    if not protocol.rows:
        return 0
    return 2 * bounds.prompts + bounds.crashes + bounds.holds + bounds.stops + bounds.total


def estimate(levels: Sequence[int], met: int, limit: int) -> int | None:
    """The states that a search will have met at its end; None while it is too early to tell.

    `levels` has the states of each level up to the one that is being expanded, `met` are those and more, `limit` is
    the depth that the search can get to.
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
