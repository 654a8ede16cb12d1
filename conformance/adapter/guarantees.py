"""The guarantees that a server can claim. `judging.guarantees` defines how the kit checks each."""

from cancelmark.model.delivery import DELIVERY
from cancelmark.model.family_properties import FAMILY_PROPERTIES
from cancelmark.model.properties import PROPERTIES, Property

RUN_IDS = Property(
    "run-ids", "A prompt that is resent under its run id is acknowledged again but runs once; no other prompt gets "
    "that run id.",
    clauses=("R22a", "R22b", "R22c"))
OUTLIVES_WATCHER = Property(
    "outlives-watcher", "A prompt continues when no client is subscribed, for however long.", clauses=("R26",))

ORDER: tuple[Property, ...] = (*PROPERTIES, DELIVERY, RUN_IDS, OUTLIVES_WATCHER, *FAMILY_PROPERTIES)
"""Every guarantee that a server can claim, in the order of reports. Those of an optional call apply to servers that
offer the call."""
