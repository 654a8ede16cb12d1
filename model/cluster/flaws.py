"""The violation that follows from disabling each safeguard: name, changed rules, a small budget, and the property."""

from dataclasses import dataclass

from ..protocol import FAMILY, REFERENCE, Protocol
from .budget import Budget
from .log import LogBudget, LogRules
from .properties import TOOL
from .rules import Claim, Retry, Rules
from .search import ClusterResult, Path, search_cluster, search_log


@dataclass(frozen=True)
class ClusterFlaw:
    """A cluster or a log without one safeguard, and the property that it violates."""

    name: str
    clause: str  # the clause of specs/cluster.md that it leaves out
    says: str  # what is left out, and the consequence
    property: str  # id of the property that it must violate
    rules: Rules | LogRules
    budget: Budget | LogBudget
    protocol: Protocol | None = REFERENCE  # None: a log has none

    def search(self) -> ClusterResult:
        """Search until a shortest history that violates the property is found."""
        if isinstance(self.rules, LogRules) and isinstance(self.budget, LogBudget):
            return search_log(self.budget, self.rules, until=self.property)
        assert isinstance(self.rules, Rules)
        assert isinstance(self.budget, Budget)
        return search_cluster(self.budget, self.rules, self.protocol or REFERENCE, until=self.property)


ONE = Budget(1)
EXPIRY = Budget(1, expiries=1)
DOUBT = Budget(1, doubts=1)

FLAWS: tuple[ClusterFlaw, ...] = (
    ClusterFlaw("version-ignored", "C2a",
         "The owner computes steps on its own copy, and versions are not compared: a canceled prompt starts.",
         "no-lost-cancel", Rules(compares_version=False), Budget(1, cancels=1)),
    ClusterFlaw("finish-unfenced", "C3a",
         "An unconditional UPDATE writes a turn's end: a zombie writes a second terminal event for a prompt.",
         "one-terminal", Rules(compares_version=False, compares_fence=False), EXPIRY),
    ClusterFlaw("message-unfenced", "C3b",
         "A message is written without checking the epoch: it appears after the prompt's terminal event.",
         "fenced", Rules(compares_message=False), Budget(1, expiries=1, messages=1)),
    ClusterFlaw("message-unlocked", "C3b",
         "A message is checked in one statement and written in the next: a claim comes in between.",
         "fenced", Rules(locks_messages=False), Budget(1, expiries=1, messages=1)),
    ClusterFlaw("claim-only", "C4b",
         "A claim does not recover: the dead owner's active prompt stays active forever.",
         "all-ends", Rules(claim=Claim.NOTHING), Budget(1, kills=1)),
    ClusterFlaw("claim-runs-again", "C4b",
         "A claim does not recover, and the new owner runs the active prompt: the prompt runs twice.",
         "runs-once", Rules(claim=Claim.RUN_AGAIN), Budget(1, kills=1)),
    ClusterFlaw("epoch-kept", "C4a",
         "A claim does not raise the epoch: a zombie's turn is as valid as the new owner's.",
         "one-turn", Rules(raises_epoch=False), Budget(2, expiries=1)),
    ClusterFlaw("claim-as-read", "C4c",
         "A claim trusts an earlier read that the owner is dead: it takes a session from a living owner.",
         "living-owner", Rules(compares_death=False), Budget(1, expiries=1, doubts=1)),
    ClusterFlaw("renew-takes-back", "C5b",
         "A heartbeat makes the node the owner of its sessions, without checking the epoch.",
         "living-owner", Rules(takes_back=True), EXPIRY),
    ClusterFlaw("renew-any-lease", "C5b",
         "A heartbeat renews the lease of the session's owner: a zombie keeps a dead owner's lease alive.",
         "replaced", Rules(renews_own_lease=False), Budget(1, expiries=1, kills=1)),
    ClusterFlaw("no-poll", "C6",
         "A node reads the row only when notified: after one lost notification, a canceled turn never stops.",
         "stop-reaches", Rules(polls=False), Budget(1, cancels=1, wakeups=1, endless=True)),
    ClusterFlaw("entry-by-acceptor", "C1b",
         "The node that accepts a prompt enters it: if that node dies while the owner lives, no node recovers it.",
         "all-ends", Rules(owner_enters=False), Budget(2, kills=1)),
    ClusterFlaw("retry-as-new", "C2b",
         "A node that gets no response retries the call as a new one: there are two prompts.",
         "once", Rules(retry=Retry.NEW_ID), DOUBT),
    ClusterFlaw("retry-cancels-twice", "C2b",
         "A node that gets no response retries a cancel as a new one: it cancels a prompt accepted since.",
         "no-echo", Rules(retry=Retry.NEW_ID), Budget(1, cancels=1, doubts=1)),
    ClusterFlaw("doubt-is-done", "C2c",
         "An unanswered call is assumed to be done: the client gets 202, but the prompt is lost.",
         "answered", Rules(retry=Retry.COMMITTED), DOUBT),
    ClusterFlaw("doubt-is-failed", "C2c",
         "An unanswered call is assumed to have failed: the client gets 503, but the prompt runs.",
         "answered", Rules(retry=Retry.FAILED), DOUBT),
    ClusterFlaw("retry-looked-up", "C2b",
         "Before a node retries a call, it looks the call up, without lock or id: the late commit arrives in between.",
         "once", Rules(retry=Retry.LOOKED_UP), DOUBT),
    ClusterFlaw("publish-first", "C2d",
         "A terminal event is published before it is committed: a zombie's is rejected, but subscribers saw it.",
         "one-end", Rules(commits_first=False), EXPIRY),
    ClusterFlaw("release-unfenced", "C3c",
         "A session is released without checking the epoch: a zombie releases a session that its successor runs.",
         "living-owner", Rules(compares_release=False), Budget(1, expiries=1, drains=1)),
    ClusterFlaw("release-running", "C7a",
         "A leaving node releases a session while its turn runs: the next owner runs the prompt again.",
         "runs-once", Rules(ends_before_release=False), Budget(1, drains=1)),
    ClusterFlaw("advisory-lock", "C3a",
         "A connection-level lock replaces the epoch: it is lost with the connection, and the zombie still writes.",
         "fenced", Rules(compares_fence=False, compares_version=False), EXPIRY),
    ClusterFlaw("advisory-lock-hangs", "C5a",
         "A connection-level lock replaces the lease: if a node hangs, no other node can take over its session.",
         "replaced", Rules(leases=False), Budget(1, pauses=1)),
    ClusterFlaw("run-ids-in-memory", "C1c",
         "Each node knows only the run ids that it has accepted itself: a prompt retried on another node runs twice.",
         "once", Rules(run_ids_in_database=False), Budget(1, kills=1, doubts=1, reposts=1, run_ids=True)),
    ClusterFlaw("id-kept", "C5c",
         "A node restarts under its old id, and is still the owner: its prompt runs twice.",
         "runs-once", Rules(id_per_life=False), Budget(1, kills=1, restarts=1)),
    ClusterFlaw("seqs-in-stock", "C1d",
         "Nodes preallocate seqs: a prompt is accepted below the mark, and an earlier cancel cancels it.",
         "above-mark", Rules(seqs_one_by_one=False), Budget(2, cancels=1)),
    ClusterFlaw("closing-in-memory", "C1c",
         "Only the node that closes the workspace knows that it is closing: another node accepts prompts.",
         "cluster-closed", Rules(closing_in_database=False), Budget(1, closes=1)),
    ClusterFlaw("no-adopt", "C4d",
         "No node claims a session without an owner: prompts that a leaving node hands over are stranded.",
         "all-ends", Rules(adopts=False), Budget(1, drains=1)),
    ClusterFlaw("held-keeps-owner", "C7b",
         "Only a session without unfinished prompts is released: a held session keeps its owner.",
         "released", Rules(releases_held=False), Budget(1, holds=1), FAMILY),
)

# Safeguards whose absence violates nothing.
HARMLESS: tuple[ClusterFlaw, ...] = (
    ClusterFlaw("finish-from-rows", "C3a",
         "Steps are computed on rows just read and compared by version, not by epoch: recovery has already ended "
         "every prompt that a zombie could run.",
         "", Rules(compares_fence=False, steps_from_rows=True), Budget(2, cancels=1, expiries=1)),
    ClusterFlaw("retry-looked-up-by-id", "C2b",
         "A node looks a call up without the lock, and retries it under the same id.",
         "", Rules(retry=Retry.LOOKED_UP_ID), Budget(2, cancels=1, doubts=1)),
)

SMALL_LOG = LogBudget(2, rollbacks=0, moves=0)

LOG_FLAWS: tuple[ClusterFlaw, ...] = (
    ClusterFlaw("place-from-sequence", "C8a",
         "Offsets come from a sequence: transaction s commits after t, at an offset that the subscriber has passed.",
         "none-passed", LogRules(locks_counter=False), SMALL_LOG, None),
    ClusterFlaw("place-unseen", "C8a",
         "Offsets come from a sequence, and the subscriber has moved on: it never receives a logged event.",
         "all-seen", LogRules(locks_counter=False), SMALL_LOG, None),
    ClusterFlaw("place-rolled-back", "C8a",
         "Offsets come from a sequence, and a transaction is rolled back: it leaves a gap.",
         "dense", LogRules(locks_counter=False), LogBudget(2, rollbacks=1, moves=0), None),
    ClusterFlaw("xid-before-lock", "C8a",
         "The reader waits for all earlier transactions, but a transaction starts before it has its session's lock: "
         "a session's events arrive in the wrong order.",
         "in-order", LogRules(locks_counter=False, reads_below_open=True, place_first=True), SMALL_LOG, None),
    ClusterFlaw("place-clamped", "C8b",
         "A node clamps a subscriber's offset to the latest one that the node knows: events are delivered twice.",
         "seen-once", LogRules(asks_database=False), LogBudget(1, rollbacks=0, moves=1), None),
)

# An alternative that is correct except for gaps. Its cost is that one long transaction delays all readers.
LOG_HARMLESS: tuple[ClusterFlaw, ...] = (
    ClusterFlaw("xid-after-lock", "C8a",
         "The reader waits for all earlier transactions, and a transaction starts after it has its session's lock: no "
         "event is missed, and the order is right. But there are gaps, and a long transaction delays all readers.",
         "dense", LogRules(locks_counter=False, reads_below_open=True), LogBudget(), None),
)

ALL_FLAWS = (*FLAWS, *LOG_FLAWS)


def find_history(flaw: ClusterFlaw) -> Path:
    """The shortest history in which the flaw violates its property."""
    return flaw.search().violations[flaw.property]


def find_unfenced_tool() -> Path:
    """The limit of fencing: the shortest history in which a zombie's tool acts."""
    return search_cluster(Budget(1, expiries=1, tools=1), properties=[TOOL]).violations[TOOL.id]
