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

# The same of protocols whose turns can ask.
ASK_PINNED = (
    ((ASK,), (Bounds(1, cancels=1, asks=1), (80, 139, 6))),
    ((ASK,), (Bounds(2, cancels=1, asks=1), (1_740, 4_379, 9))),
    ((ASK,), (Bounds(2, cancels=1, requeues=1, crashes=1, asks=2), (40_410, 130_322, 15))),
    ((ASK,), (Bounds(2, cancels=1, crashes=1, asks=2, sessions=2), (109_086, 369_224, 14))),
    ((ASK,), (Bounds(3, cancels=1, crashes=1, asks=2), (345_582, 1_191_054, 16))),
    ((REVOKE, STOP, HOLD, ASK), (Bounds(2, cancels=1, revokes=1, stops=1, holds=1, asks=2), (166_892, 1_001_095, 16))),
    ((INTERRUPT, ASK), (Bounds(3, cancels=1, requeues=1, asks=1), (160_687, 610_928, 13))),
)
