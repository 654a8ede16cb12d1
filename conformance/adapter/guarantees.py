"""What a server can promise. `judging.guarantees` has how the kit sees whether it is kept."""

from cancelmark.model.delivery import DELIVERY
from cancelmark.model.family_properties import FAMILY_PROPERTIES
from cancelmark.model.properties import PROPERTIES, Property

RUN_IDS = Property(
    "run-ids", "A prompt that is sent again under its run id is answered and runs once; no other gets that run id.",
    clauses=("R22a", "R22b", "R22c"))
OUTLIVES_WATCHER = Property(
    "outlives-watcher", "A prompt goes on when nobody watches any more, however long.", clauses=("R26",))

ORDER: tuple[Property, ...] = (*PROPERTIES, DELIVERY, RUN_IDS, OUTLIVES_WATCHER, *FAMILY_PROPERTIES)
"""Everything that a server can claim, in the order in which reports have it. Those of a call of the family are
about servers that offer this call."""
