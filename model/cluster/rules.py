"""The precautions of a cluster: each can be left out, and then something breaks (`flaws`).

Nodes compute, the database compares and writes. What it compares, and what nodes promise each other, stands here.
"""

from dataclasses import dataclass
from enum import Enum


class Retry(Enum):
    """What a node does when the database has not answered."""

    SAME_ID = "the same call under the same step id"
    NEW_ID = "the call once more, as a new one"
    COMMITTED = "it takes the call for committed"
    FAILED = "it takes the call for failed"
    LOOKED_UP = "it looks whether the call is there, and if not makes it again, as a new one"
    LOOKED_UP_ID = "it looks whether the call is there, and if not makes it again under the same step id"

    __hash__ = object.__hash__


class Claim(Enum):
    """What becomes of the running prompt of a dead owner."""

    RECOVER = "it ends with an error, and what waits goes on"
    NOTHING = "nothing"
    RUN_AGAIN = "its turn starts again at the new owner"

    __hash__ = object.__hash__


@dataclass(frozen=True)
class Rules:
    """What a cluster keeps to. All defaults together are the design; a flaw is a value with another."""

    compares_version: bool = True  # a step is written only onto what it was computed on
    compares_fence: bool = True  # an owner's step is written only in its epoch, while it is the owner
    steps_from_rows: bool = False  # the owner reads before each step, and does not compute on what it remembers
    locks_messages: bool = True  # a message is compared and written in one statement, under the session's lock
    compares_message: bool = True  # a message is written only in its turn's epoch
    claim: Claim = Claim.RECOVER
    raises_epoch: bool = True  # a claim begins a new epoch
    compares_death: bool = True  # a claim is written only if the owner is dead when it is written
    adopts: bool = True  # a session without owner that has something to do is claimed
    renews_own_lease: bool = True  # a beat renews the node's own lease, not that of whoever owns its sessions
    takes_back: bool = False  # a beat writes the node into its sessions as their owner
    polls: bool = True  # a node looks also if nothing has woken it
    owner_enters: bool = True  # the owner takes every accepted prompt in, whichever node has accepted it
    retry: Retry = Retry.SAME_ID
    commits_first: bool = True  # an end is published when it is committed, not before
    compares_release: bool = True  # a session is given up only in the owner's epoch
    ends_before_release: bool = True  # no turn runs any more when a node gives a session up
    releases_held: bool = True  # a held session with nothing active has no owner
    leases: bool = True  # a node that hangs loses its sessions, though its connection is open
    run_ids_in_database: bool = True  # a run id is known to all nodes
    id_per_life: bool = True  # a node that starts again has a new id
    seqs_one_by_one: bool = True  # a seq is taken when its prompt is accepted; nodes keep none in stock
    closing_in_database: bool = True  # the row says that a session is closing; not the memory of the node that closes


DESIGN = Rules()
