"""What breaks when a precaution is left out: each a name, the rules without it, a small budget and the property."""

from dataclasses import dataclass

from ..protocol import FAMILY, REFERENCE, Protocol
from .budget import Budget
from .log import LOG_FLAWS, LogFlaw
from .properties import TOOL
from .rules import Claim, Retry, Rules
from .search import Path, search_cluster, search_log


@dataclass(frozen=True)
class Flaw:
    """A cluster that somebody could build, and what it breaks."""

    name: str
    clause: str  # of specs/cluster.md, that is left out
    says: str  # what is left out, and what that leads to
    property: str  # id of the property that it must break
    rules: Rules
    budget: Budget
    protocol: Protocol = REFERENCE


ONE = Budget(1)
EXPIRY = Budget(1, expiries=1)
DOUBT = Budget(1, doubts=1)

FLAWS: tuple[Flaw, ...] = (
    Flaw("version-ignored", "C2a",
         "The owner steps on what it remembers, and nobody compares versions: a canceled prompt starts.",
         "no-lost-cancel", Rules(compares_version=False), Budget(1, cancels=1)),
    Flaw("finish-unfenced", "C3a",
         "A turn's end is written by an UPDATE without conditions: a zombie gives a prompt its second end.",
         "one-terminal", Rules(compares_version=False, compares_fence=False), EXPIRY),
    Flaw("message-unfenced", "C3b",
         "A message is written without a look at the epoch: it comes after the prompt's end.",
         "fenced", Rules(compares_message=False), Budget(1, expiries=1, messages=1)),
    Flaw("message-unlocked", "C3b",
         "A message is compared in one statement and written in the next: a claim comes in between.",
         "fenced", Rules(locks_messages=False), Budget(1, expiries=1, messages=1)),
    Flaw("claim-only", "C4b",
         "A claim does not recover: what ran at the dead owner stays active for ever.",
         "all-ends", Rules(claim=Claim.NOTHING), Budget(1, kills=1)),
    Flaw("claim-runs-again", "C4b",
         "A claim does not recover, and the new owner runs what is active: a prompt runs twice.",
         "runs-once", Rules(claim=Claim.RUN_AGAIN), Budget(1, kills=1)),
    Flaw("epoch-kept", "C4a",
         "A claim keeps the epoch: the turn of a zombie counts beside that of the new owner.",
         "one-turn", Rules(raises_epoch=False), Budget(2, expiries=1)),
    Flaw("claim-as-read", "C4c",
         "A claim trusts what was read before, that the owner is dead: a session is taken from its living owner.",
         "living-owner", Rules(compares_death=False), Budget(1, expiries=1, doubts=1)),
    Flaw("renew-takes-back", "C5b",
         "A beat writes the node into its sessions as their owner, without a look at the epoch.",
         "living-owner", Rules(takes_back=True), EXPIRY),
    Flaw("renew-any-lease", "C5b",
         "A beat renews the lease of whoever owns the session: a zombie keeps a dead owner's lease alive.",
         "replaced", Rules(renews_own_lease=False), Budget(1, expiries=1, kills=1)),
    Flaw("no-poll", "C6",
         "A node looks only when it is woken: one lost wake-up, and a canceled turn never stops.",
         "stop-reaches", Rules(polls=False), Budget(1, cancels=1, wakeups=1, endless=True)),
    Flaw("entry-by-acceptor", "C1b",
         "Whoever accepts a prompt takes it in: when that node dies, the owner lives and nobody recovers.",
         "all-ends", Rules(owner_enters=False), Budget(2, kills=1)),
    Flaw("retry-as-new", "C2b",
         "A node that gets no answer makes the call again as a new one: two prompts.",
         "once", Rules(retry=Retry.NEW_ID), DOUBT),
    Flaw("retry-cancels-twice", "C2b",
         "A node that gets no answer makes the cancel again as a new one: a prompt accepted since is canceled.",
         "no-echo", Rules(retry=Retry.NEW_ID), Budget(1, cancels=1, doubts=1)),
    Flaw("doubt-is-done", "C2c",
         "A call that was not answered is taken for done: 202, and the prompt is lost.",
         "answered", Rules(retry=Retry.COMMITTED), DOUBT),
    Flaw("doubt-is-failed", "C2c",
         "A call that was not answered is taken for failed: 503, and the prompt runs.",
         "answered", Rules(retry=Retry.FAILED), DOUBT),
    Flaw("retry-looked-up", "C2b",
         "Before it makes a call again, a node looks whether it is there, without lock or id: the late commit "
         "arrives in between.",
         "once", Rules(retry=Retry.LOOKED_UP), DOUBT),
    Flaw("publish-first", "C2d",
         "An end is published before it is committed: a zombie's is refused, and was seen.",
         "one-end", Rules(commits_first=False), EXPIRY),
    Flaw("release-unfenced", "C3c",
         "A session is given up without a look at the epoch: a zombie gives up what its successor runs.",
         "living-owner", Rules(compares_release=False), Budget(1, expiries=1, drains=1)),
    Flaw("release-running", "C7a",
         "A node that leaves gives a session up while its turn runs: the next owner runs it again.",
         "runs-once", Rules(ends_before_release=False), Budget(1, drains=1)),
    Flaw("advisory-lock", "C3a",
         "A lock of the connection stands in place of the epoch: it is lost with the connection, and the zombie "
         "steps.",
         "fenced", Rules(compares_fence=False, compares_version=False), EXPIRY),
    Flaw("advisory-lock-hangs", "C5a",
         "A lock of the connection stands in place of the lease: a node hangs, and nobody can have its session.",
         "replaced", Rules(leases=False), Budget(1, pauses=1)),
    Flaw("run-ids-in-memory", "C1c",
         "Each node knows the run ids that it has taken: a prompt that is posted again elsewhere becomes two.",
         "once", Rules(run_ids_in_database=False), Budget(1, kills=1, doubts=1, reposts=1, run_ids=True)),
    Flaw("id-kept", "C5c",
         "A node starts again under its old id, as the owner: its prompt runs twice.",
         "runs-once", Rules(id_per_life=False), Budget(1, kills=1, restarts=1)),
    Flaw("seqs-in-stock", "C1d",
         "Nodes take seqs in advance: a prompt is accepted below the mark, and dies of an earlier cancel.",
         "above-mark", Rules(seqs_one_by_one=False), Budget(2, cancels=1)),
    Flaw("closing-in-memory", "C1c",
         "A node remembers that it closed the workspace, and the row does not: another accepts.",
         "cluster-closed", Rules(closing_in_database=False), Budget(1, closes=1)),
    Flaw("no-adopt", "C4d",
         "Nobody claims a session without owner: what a leaving node hands over is stranded.",
         "all-ends", Rules(adopts=False), Budget(1, drains=1)),
    Flaw("held-keeps-owner", "C7b",
         "Only an empty session is given up: a held one binds its node.",
         "released", Rules(releases_held=False), Budget(1, holds=1), FAMILY),
)

# Left out, and nothing breaks.
HARMLESS: tuple[Flaw, ...] = (
    Flaw("finish-from-rows", "C3a",
         "Steps that are computed on rows just read, compared by version, and not by epoch: recover has ended "
         "whatever a zombie could run.",
         "", Rules(compares_fence=False, steps_from_rows=True), Budget(2, cancels=1, expiries=1)),
    Flaw("retry-looked-up-by-id", "C2b",
         "A node looks whether a call is there, without the lock, and makes it again under the same id.",
         "", Rules(retry=Retry.LOOKED_UP_ID), Budget(2, cancels=1, doubts=1)),
)

ALL_FLAWS: tuple[Flaw | LogFlaw, ...] = (*FLAWS, *LOG_FLAWS)


def find_history(flaw: Flaw | LogFlaw) -> Path:
    """The shortest history in which the flaw breaks its property."""
    if isinstance(flaw, LogFlaw):
        return search_log(flaw.budget, flaw.rules, until=flaw.property).violations[flaw.property]
    return search_cluster(flaw.budget, flaw.rules, flaw.protocol, until=flaw.property).violations[flaw.property]


def find_unfenced_tool() -> Path:
    """What nobody can promise: the shortest history in which a tool of a zombie acts."""
    return search_cluster(Budget(1, expiries=1, tools=1), properties=[TOOL]).violations[TOOL.id]
