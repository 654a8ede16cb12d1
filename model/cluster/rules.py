"""The safeguards of a cluster. Each can be disabled, and then a property is violated (`flaws`).

Nodes compute steps; the database compares and writes. The rules state what the database compares, and what nodes can
rely on from each other.
"""

from dataclasses import dataclass
from enum import Enum


class Retry(Enum):
    """What a node does if the database does not respond."""

    SAME_ID = "it retries the call under the same step id"
    NEW_ID = "it retries the call as a new one"
    COMMITTED = "it assumes that the call was committed"
    FAILED = "it assumes that the call failed"
    LOOKED_UP = "it looks the call up and, if it is not there, retries it as a new one"
    LOOKED_UP_ID = "it looks the call up and, if it is not there, retries it under the same step id"

    __hash__ = object.__hash__


class Claim(Enum):
    """What happens to the active prompt of a dead owner."""

    RECOVER = "it ends with an error, and the waiting prompts continue"
    NOTHING = "nothing"
    RUN_AGAIN = "its turn starts again on the new owner"

    __hash__ = object.__hash__


@dataclass(frozen=True)
class Rules:
    """The rules of a cluster. The defaults are the design; a flaw changes one of them."""

    compares_version: bool = True  # a step is written only if the session is still at the version it was computed on
    compares_fence: bool = True  # an owner's step is written only in its epoch, while the node is the owner
    steps_from_rows: bool = False  # the owner reads the row before each step, instead of using its own copy
    locks_messages: bool = True  # a message is checked and written in one statement, under the session's lock
    compares_message: bool = True  # a message is written only in its turn's epoch
    claim: Claim = Claim.RECOVER
    raises_epoch: bool = True  # a claim starts a new epoch
    compares_death: bool = True  # a claim is written only if the owner is dead at that moment
    adopts: bool = True  # a session that has work and no owner is claimed
    renews_own_lease: bool = True  # a heartbeat renews the node's own lease, not that of its sessions' owners
    takes_back: bool = False  # a heartbeat makes the node the owner of its sessions
    polls: bool = True  # a node reads the row even without a notification
    owner_enters: bool = True  # the owner enters every accepted prompt, whichever node accepted it
    retry: Retry = Retry.SAME_ID
    commits_first: bool = True  # a terminal event is published after its commit, not before
    compares_release: bool = True  # a session is released only in the owner's epoch
    ends_before_release: bool = True  # a node ends a session's turn before it releases the session
    releases_held: bool = True  # a held session without an active prompt has no owner
    leases: bool = True  # a node that hangs loses its sessions, even if its connection stays open
    run_ids_in_database: bool = True  # all nodes know every run id
    id_per_life: bool = True  # a node gets a new id when it restarts
    seqs_one_by_one: bool = True  # a seq is assigned when its prompt is accepted; nodes do not preallocate seqs
    closing_in_database: bool = True  # the closing flag is in the row, not in the memory of the node that closes


DESIGN = Rules()
