"""The model of a cluster: the design holds within its bounds, and whatever is left out of it breaks something."""

import re

import pytest
from support.budget import DEEP, long
from support.paths import ROOT

from cancelmark.model.cluster.behaviour import OWNERS, ClusterBehaviour
from cancelmark.model.cluster.bounds import BOUNDS, DEEP_BOUNDS, LOG_BOUND, LOG_STATES, Bound
from cancelmark.model.cluster.budget import NAMES, Budget
from cancelmark.model.cluster.flaws import ALL_FLAWS, FLAWS, HARMLESS, LOG_FLAWS, LOG_HARMLESS, ClusterFlaw
from cancelmark.model.cluster.log import LOG_PROPERTIES
from cancelmark.model.cluster.properties import CLUSTER_PROPERTIES, TOOL
from cancelmark.model.cluster.rules import DESIGN, Rules
from cancelmark.model.cluster.search import search_cluster, search_log
from cancelmark.model.cluster.state import Intent, SessionRow, Write
from cancelmark.model.family import ALL_ACTIONS
from cancelmark.model.properties import PROPERTIES
from cancelmark.model.protocol import FAMILY

FEW = 1500  # states, which `make test` searches, too
CALLS_CLAUSE = "C1a"  # test_every_call_and_step_of_the_protocol_is_there, test_everything_happens_somewhere

# How long a history may be that shows what a flaw breaks: known from histories that people have found.
LONGEST = {
    "version-ignored": 3, "finish-unfenced": 5, "message-unfenced": 5, "message-unlocked": 6, "claim-only": 3,
    "claim-runs-again": 5, "epoch-kept": 6, "claim-as-read": 6, "renew-takes-back": 5, "renew-any-lease": 5,
    "no-poll": 4, "entry-by-acceptor": 3, "retry-as-new": 2, "retry-cancels-twice": 3, "doubt-is-done": 2,
    "doubt-is-failed": 2, "retry-looked-up": 4, "publish-first": 5, "release-unfenced": 5, "release-running": 5,
    "advisory-lock": 5, "advisory-lock-hangs": 3, "run-ids-in-memory": 3, "id-kept": 4, "seqs-in-stock": 3,
    "closing-in-memory": 2, "no-adopt": 2, "held-keeps-owner": 3,
    "place-from-sequence": 5, "place-unseen": 5, "place-rolled-back": 4, "xid-before-lock": 8, "place-clamped": 5,
}


@pytest.mark.parametrize(
    "bound", [b if b.states < FEW else long(b) for b in BOUNDS], ids=lambda b: str(b.budget))
def test_design_holds(bound: Bound) -> None:
    result = search_cluster(bound.budget, protocol=bound.protocol)
    assert (result.verdict, result.states) == ("holds", bound.states)


@pytest.mark.skipif(not DEEP, reason="some minutes: make test-deep")
@pytest.mark.parametrize("bound", DEEP_BOUNDS, ids=lambda b: str(b.budget))
def test_design_holds_deep(bound: Bound) -> None:
    test_design_holds(bound)


@pytest.mark.parametrize("flaw", FLAWS, ids=lambda f: f.name)
def test_flaw_breaks_its_property(flaw: ClusterFlaw) -> None:
    result = search_cluster(flaw.budget, flaw.rules, flaw.protocol, until=flaw.property)
    assert len(result.violations[flaw.property]) <= LONGEST[flaw.name]
    assert search_cluster(flaw.budget, protocol=flaw.protocol).verdict == "holds", "it is not the flaw"


@pytest.mark.parametrize("flaw", HARMLESS, ids=lambda f: f.name)
def test_what_is_harmless_holds(flaw: ClusterFlaw) -> None:
    assert search_cluster(flaw.budget, flaw.rules, flaw.protocol).verdict == "holds"


def test_every_property_has_a_flaw() -> None:
    of_sessions = {p.id for p in PROPERTIES}
    assert {f.property for f in FLAWS} - of_sessions == {p.id for p in CLUSTER_PROPERTIES}
    assert {f.property for f in LOG_FLAWS} == {p.id for p in LOG_PROPERTIES}
    assert {f.name for f in (*FLAWS, *LOG_FLAWS)} == set(LONGEST)


def test_every_precaution_has_a_flaw() -> None:
    design = vars(DESIGN)
    left_out = {name for f in (*FLAWS, *HARMLESS) for name, value in vars(f.rules).items() if value != design[name]}
    assert left_out == set(design)


def test_every_clause_is_left_out_by_a_flaw_or_has_a_test() -> None:
    page = (ROOT / "specs" / "cluster.md").read_text(encoding="utf-8")
    rules = page[page.index("## Rules"):page.index("## What must hold")]
    lettered = set(re.findall(r"\*\*(C\d+[a-z])\*\*", rules))
    whole = {id for id in re.findall(r"^\*\*(C\d+) ", rules, re.MULTILINE) if f"{id}a" not in lettered}
    assert {f.clause for f in (*ALL_FLAWS, *HARMLESS, *LOG_HARMLESS)} | {CALLS_CLAUSE} == lettered | whole


def test_log_holds() -> None:
    result = search_log(LOG_BOUND)
    assert (result.verdict, result.states) == ("holds", LOG_STATES)


@pytest.mark.parametrize("flaw", LOG_FLAWS, ids=lambda f: f.name)
def test_log_flaw_breaks_its_property(flaw: ClusterFlaw) -> None:
    result = search_log(flaw.budget, flaw.rules, until=flaw.property)
    assert len(result.violations[flaw.property]) <= LONGEST[flaw.name]
    assert search_log(flaw.budget).verdict == "holds"


def test_log_by_transaction_ids_breaks_density_alone() -> None:
    flaw, = LOG_HARMLESS
    assert set(search_log(flaw.budget, flaw.rules).violations) == {flaw.property}


def test_tool_of_a_zombie_is_not_fenced() -> None:
    """What cannot be promised shows in the design itself, and within this history."""
    result = search_cluster(Budget(1, expiries=1, tools=1), properties=[TOOL])
    assert result.violations[TOOL.id].calls == [
        "a: accept A", "a: enter A", "a's lease expires", "b: recover", "a: tool of A acts"]


# --- that the model is made of the protocol, and has room for everything

def edges_of(budget: Budget, rules: Rules = DESIGN, family: bool = False) -> set[str]:
    """What happens somewhere within a budget."""
    behaviour = ClusterBehaviour(budget, rules, *([FAMILY] if family else []))
    seen, todo, words = {behaviour.start}, [behaviour.start], set()
    for cluster in todo:
        for edge, after in behaviour.onward(cluster):
            words.add(f"{edge.what} ({edge.how})")
            if (state := behaviour.normalize(after)) not in seen:
                seen.add(state)
                todo.append(state)
    return words


@pytest.mark.parametrize(("budget", "family", "wanted"), [
    (Budget(2, cancels=1, requeues=1, drains=1), False,
     ["enter A ()", "settle A ()", "step A ()", "requeue A ()", "finish A end_turn ()", "finish A canceled ()",
      "finish A error ()", "cancel ()", "a is told to leave ()", "release ()", "adopt ()", "leave ()", "poll ()"]),
    (Budget(1, kills=1, restarts=1, doubts=1, expiries=1), False,
     ["accept A (response lost)", "accept A (late)", "accept A (arrives)", "accept A (arrives: duplicate)",
      "finish A end_turn (arrives: fenced)", "finish A end_turn (fenced)", "accept A, retried ()", "recover ()",
      "accept A, retried (duplicate)", "a is killed ()", "a restarts ()", "a's lease expires ()",
      "recover (response lost)", "heartbeat (is dead; continues under a new id)"]),
    (Budget(1, pauses=1, messages=1, tools=1, fails=1), False,
     ["a hangs ()", "a resumes ()", "message of A ()", "message of A (fenced)", "tool of A acts ()", "fail A ()"]),
    (Budget(1, kills=1, doubts=1, reposts=1, cancels=1, wakeups=1, run_ids=True), False,
     ["accept, reposted (duplicate)", "accept A, reposted ()", "cancel (notification lost)"]),
    (Budget(1, revokes=1, stops=1, holds=1), True, ["revoke A ()", "stop ()", "stop hold ()", "hold ()", "resume ()"]),
    (Budget(1, nexts=1, replaces=1, clears=1, closes=1), True,
     ["next A ()", "replace A ()", "clear_queue ()", "close ()"]),
    (Budget(2, modes=1), True, ["accept A reject ()", "accept B interrupt ()"]),
], ids=["owner", "doubts", "pauses", "reposts", "holds", "edits", "modes"])
def test_everything_happens_somewhere(budget: Budget, family: bool, wanted: list[str]) -> None:
    assert set(wanted) <= edges_of(budget, family=family)


def test_every_call_and_step_of_the_protocol_is_there() -> None:
    """Any node takes every call (C1a): the model's nodes ask for nothing but a call that is possible."""
    calls = {a.name for a in ClusterBehaviour(Budget(1), protocol=FAMILY).calls}
    owners = {"enter", "fail", "settle", "step", "requeue", "finish", "ask", "run", "withdraw"}
    assert calls | owners | {"crash", "recover"} == {a.name for a in ALL_ACTIONS}
    assert owners == set(OWNERS)


def test_every_bound_of_a_budget_is_searched() -> None:
    searched = {name for b in (*BOUNDS, *DEEP_BOUNDS) for name in NAMES if getattr(b.budget, name)}
    assert searched == set(NAMES) - {"tools"}, "tools are not promised"


def test_database_compares_before_it_writes() -> None:
    """Each comparison alone, without the nodes: what differs decides the answer."""
    behaviour = ClusterBehaviour(Budget(1))
    step = behaviour.database.take_step
    accept = behaviour.write(behaviour.start, 0, Intent("accept", None, False),
                             behaviour.compute(SessionRow().session, Intent("accept", None, False), 0) or ())
    row = step(SessionRow(), accept).row
    assert (row.owner, row.epoch, row.knows(accept.id)) == (accept.by, 1, True)
    assert step(row, accept).answer.value == "duplicate"
    assert step(row, accept._replace(id=9)).answer.value == "stale"

    def enter(**fields: object) -> Write:
        moves = behaviour.compute(row.session, Intent("enter", 1), 1) or ()
        made = Write(2, accept.by, Intent("enter", 1), row.epoch, row.version, row.session, moves, "enter A")
        return made._replace(**fields)  # type: ignore[arg-type]

    assert step(row, enter()).answer.value == "ok"
    assert step(row, enter(fence=row.epoch - 1)).answer.value == "fenced"
    assert step(row, enter(by=accept.by._replace(life=2))).answer.value == "fenced"
    assert step(row, enter(version=row.version - 1)).answer.value == "stale"
