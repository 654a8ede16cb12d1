"""How many states, edges and levels the explorer must find."""

from cancelmark.model.family import Feature
from cancelmark.model.properties import Bounds

# A changed count is a changed protocol: say in the commit what changed and why.
PINNED = {
    Bounds(1, cancels=1): (34, 41, 4),
    Bounds(2, cancels=1, clears=1): (1_236, 2_640, 8),
    Bounds(2, cancels=2, clears=1, requeues=1, crashes=1, closes=1): (29_566, 76_879, 13),
    Bounds(2, cancels=1, clears=1, sessions=2): (5_540, 16_112, 8),
    Bounds(2, cancels=1, crashes=1, closes=1, sessions=2): (19_950, 45_166, 10),
    Bounds(3, cancels=2, clears=1): (42_282, 124_573, 12),
    Bounds(3, cancels=1, clears=1, sessions=2): (174_380, 599_528, 11),
    Bounds(3, cancels=2, clears=1, requeues=1, crashes=1, closes=1): (542_262, 1_614_723, 16),
    Bounds(4, cancels=2, clears=1): (722_026, 2_459_421, 15),
}

REVOKE, STOP, HOLD, REPLACE, NEXT, REJECT, INTERRUPT, ASK = Feature

# The same of protocols with these features.
FAMILY_PINNED = {
    (REVOKE,): (Bounds(2, cancels=1, clears=1, requeues=1, crashes=1, revokes=2), (40_140, 105_376, 13)),
    (STOP, HOLD): (Bounds(2, cancels=1, requeues=1, crashes=1, closes=1, stops=1, holds=1), (87_034, 320_543, 14)),
    (REPLACE,): (Bounds(2, cancels=1, requeues=1, crashes=1, replaces=2), (15_630, 33_894, 12)),
    (NEXT, HOLD): (Bounds(3, crashes=1, holds=1, nexts=2), (60_969, 225_158, 14)),
    (INTERRUPT,): (Bounds(3, cancels=1, crashes=1), (57_753, 146_892, 12)),
    (REJECT, HOLD): (Bounds(3, cancels=1, holds=1), (27_626, 99_377, 12)),
}
