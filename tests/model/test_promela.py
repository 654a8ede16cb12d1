"""Two models of one protocol, written apart, agree: as many states, as many edges, and the same bugs.

specs/cancelmark.pml is written from specs/protocol.md in another language, for another model checker. Where the counts
differ, one of the two is wrong.
"""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.budget import DEEP, long
from support.counts import ASK_PINNED, FAMILY_PINNED, PINNED

from cancelmark.bench import explorer, spin
from cancelmark.model.check.explore import explore
from cancelmark.model.family import Feature
from cancelmark.model.family_properties import ASK_PROPERTIES, FAMILY_PROPERTIES, properties_for
from cancelmark.model.properties import PROPERTIES, Bounds, ServerStep, SessionStep
from cancelmark.model.protocol import REFERENCE, Protocol
from cancelmark.model.server import Server, changes
from cancelmark.model.trace import call_text, replay
from cancelmark.model.variants.catalogue import VARIANTS

# Compiled without optimization: at small bounds compiling is what takes the time.
SHORTEST = (*spin.SAFETY, "-DREACH")
LIVENESS = ("-DNOREDUCE",)

QUICK = 50_000  # states
EVERYTHING = Bounds(2, cancels=2, clears=1, requeues=1, crashes=1, closes=1)

# The bugs of the Promela model, and the same bugs in model/variants/bugs.py.
SAME = {
    "MARK_NOT_ASKED": "the mark is not asked on entry",
    "BUSY_BEFORE_MARK": "busy is asked before the mark",
    "DOES_NOT_WAIT": "a prompt without a run id does not wait",
    "NO_RECORD": "nothing is written for a prompt canceled on entry",
    "TRIED_AGAIN": "a canceled prompt is tried again",
    "MARK_TOO_HIGH": "the mark is one too high",
    "QUEUE_SURVIVES": "a cancel leaves the queue",
    "SILENT_DROP": "a cancel drops the queue in silence",
    "EARLY_END": "a cancel publishes the end of a turn that still runs",
    "IDLE_CANCEL_ASKS": "an idle cancel asks for something",
    "CANCEL_EVERYWHERE": "a cancel reaches every session",
    "ACCEPTS_WHILE_CLOSING": "a closing server accepts",
    "FOLDS_RUN_IDS": "a step folds prompts with a run id",
    "STOPPING_TURN_FOLDS": "a stopping turn folds",
    "LAST_GOES_FIRST": "the last in the queue goes first",
    "ERROR_STRANDS": "an error does not hand off",
    "START_BEFORE_END": "the next turn starts before the end is published",
    "NEIGHBOURS_TEXT": "an end carries its neighbour's text",
    "RECOVERY_FORGETS_QUEUE": "recovery forgets the queue",
    "RECOVERY_FORGETS_MARK": "recovery forgets the mark",
    "CANCEL_STOPS_NOBODY": "a cancel does not ask the running turn to stop",
    "CLEAR_STOPS": "clear_queue asks the running turn to stop",
    "CLEAR_KEEPS_RUN_IDS": "clear_queue leaves prompts with a run id",
    "DROPPED_AT_HANDOFF": "a cancel leaves the queue to the next handoff",
}
# The same for the family: the mistakes of model/variants/mistakes.py.
SAME_IN_FAMILY = {
    "REVOKE_RAISES_MARK": "revoke raises the mark",
    "REVOKE_MISSES_ACCEPTED": "revoke looks at the queue and the turn only",
    "STOP_MISSES_ACCEPTED": "stop asks only what is active",
    "STOP_RAISES_MARK": "stop raises the mark",
    "ENTERS_WHILE_HELD": "hold is not asked on entry",
    "HANDS_OFF_WHILE_HELD": "hold is not asked when a turn ends",
    "REQUEUE_PARKS": "hold parks a turn that goes on",
    "FOLDS_WHILE_HELD": "a held queue folds",
    "RECOVERY_FORGETS_HOLD": "recovery forgets the hold",
    "RESUME_STRANDS": "resume forgets the handoff",
    "CANCEL_RESUMES": "cancel releases the hold",
    "REPLACES_WHAT_BEGAN": "replace is taken by a prompt that was requeued",
    "RECOVERY_FORGETS_TEXT": "replace is not journaled",
    "RECOVERY_FORGETS_PLACE": "next is not journaled",
    "HANDOFF_BY_SEQ": "the handoff goes by seq",
    "INTERRUPT_AT_ACCEPT": "an interrupt decides where it is accepted",
    "INTERRUPT_STOPS_ANYBODY": "an interrupt stops whoever is active",
    "COVERED_INTERRUPTS": "a covered interrupt interrupts",
    "FOLDS_PAST_INTERRUPT": "folding goes on while an interrupt is to enter",
    "REJECT_ASKS_BUSY": "reject asks whether the session is busy",
    "REJECT_FORGETS_HOLD": "reject forgets the hold",
}
# And for questions: the mistakes of model/variants/asking.py.
SAME_WITH_QUESTIONS = {
    "CANCEL_LEAVES_OPEN": "a cancel leaves the question open until the turn ends",
    "CLOSE_LEAVES_OPEN": "a close does not withdraw",
    "STOP_LEAVES_OPEN": "a stop does not withdraw",
    "REVOKE_LEAVES_OPEN": "a revoke does not withdraw",
    "INTERRUPT_LEAVES_OPEN": "an interrupt does not withdraw",
    "PERMISSION_OUTLIVES_CANCEL": "a permission outlives the cancel",
    "CANCELED_TURN_ASKS": "a canceled turn still asks",
    "END_LEAVES_OPEN": "the end of a turn leaves its question open",
    "QUESTION_SURVIVES_SUMMARY": "a question survives compaction",
    "PERMISSION_SURVIVES_SUMMARY": "a permission survives compaction",
    "ANSWERS_WHAT_IS_OPEN": "an answer goes to the question that is open now",
    "LAST_ANSWER_WINS": "the last answer wins until the tool starts",
    "LATE_ANSWER_CONFIRMED": "a late answer is confirmed as taken",
    "TIMEOUT_ALLOWS": "a timeout allows",
    "RUNS_WHILE_OPEN": "the tool runs while the question is open",
    "PERMISSION_NOT_USED_UP": "a permission is not used up",
    "DENY_STOPS": "a deny stops the turn",
    "RECOVERY_SILENT": "recovery does not report questions",
    "START_NOT_JOURNALED": "the start of a tool is not journaled before it",
    "RECOVERY_RUNS": "recovery runs what was allowed",
    "RECOVERY_DOUBTS_ALLOWED": "a tool that did not start is reported after a crash",
    "HOLD_WITHDRAWS": "a hold withdraws questions",
}
SAME_WITH_FEATURES = {**SAME_IN_FAMILY, **SAME_WITH_QUESTIONS}
ALL = frozenset(Feature)
PINNED_WITH_FEATURES = [(features, *pinned) for features, pinned in (*FAMILY_PINNED.items(), *ASK_PINNED)]


@pytest.fixture(autouse=True)
def tools() -> None:
    if reason := spin.missing():
        assert os.environ.get("CI") != "true", reason
        pytest.skip(reason)


@pytest.mark.parametrize("bounds", [b for b, (states, *_) in PINNED.items() if DEEP or states < QUICK], ids=str)
def test_spin_counts_as_many_states_and_edges_as_the_explorer(bounds: Bounds, tmp_path: Path) -> None:
    told = spin.build(tmp_path, bounds, spin.SAFETY).run()
    found = spin.Search.of(told)
    assert (found.states, found.edges, found.errors) == (*PINNED[bounds][:2], 0)
    if bounds == EVERYTHING:
        [unreached] = re.findall(r"unreached in init\n((?:\t.*\n)*)", told)
        assert re.search(r'"-end-"\n\t\(1 of \d+ states\)\n$', unreached), "every action happens somewhere"


def test_three_sessions_count_alike(tmp_path: Path) -> None:
    bounds = Bounds(2, cancels=1, crashes=1, sessions=3)
    ours = explore(REFERENCE, bounds)
    found = spin.Search.of(spin.build(tmp_path, bounds, spin.SAFETY).run())
    assert (found.states, found.edges, found.errors) == (ours.states, ours.edges, 0)


@pytest.mark.parametrize(("features", "bounds", "counts"), [
    pytest.param(features, bounds, counts, id="+".join(f.value for f in features) + f" {bounds}")
    for features, bounds, counts in PINNED_WITH_FEATURES if DEEP or counts[0] < QUICK])
def test_spin_counts_a_protocol_of_the_family_as_the_explorer_does(
    features: tuple[Feature, ...], bounds: Bounds, counts: tuple[int, int, int], tmp_path: Path,
) -> None:
    found = spin.Search.of(spin.build(tmp_path, bounds, spin.SAFETY, None, frozenset(features)).run())
    assert (found.states, found.edges, found.errors) == (*counts[:2], 0)


EVERY_CALL = Bounds(1, cancels=1, clears=1, requeues=1, crashes=1, closes=1, revokes=1, stops=1, holds=1, replaces=1,
                    nexts=1)


@pytest.mark.parametrize("bounds", [
    EVERY_CALL, Bounds(2, revokes=1, stops=1, holds=1, asks=1), Bounds(1, crashes=1, stops=1, holds=1, sessions=2),
    long(Bounds(1, crashes=1, stops=1, holds=1, asks=2, sessions=2)), long(replace(EVERY_CALL, asks=1)),
    *([Bounds(3, crashes=1, revokes=1, holds=1), Bounds(2, crashes=1, requeues=1, revokes=1, stops=2, holds=2, nexts=2)]
      if DEEP else [])], ids=str)
def test_spin_counts_the_whole_family_as_the_explorer_does(bounds: Bounds, tmp_path: Path) -> None:
    ours = explore(Protocol("all", features=ALL), bounds)
    found = spin.Search.of(spin.build(tmp_path, bounds, spin.SAFETY, None, ALL).run())
    assert (found.states, found.edges, found.errors) == (ours.states, ours.edges, 0)


def broken_by(protocol: Protocol, before: Server, call: str) -> set[str]:
    """The properties that the Python model says this call breaks."""
    properties = properties_for(protocol)
    [change] = [c for c in changes(protocol, before) if call_text(c.call, len(before.sessions)) == call]
    steps = [SessionStep.of(before.sessions[i], move) for i, move in change.moves]
    found = {p.id for p in properties if p.on_session and not all(map(p.on_session, steps))}
    found |= {p.id for p in properties if p.on_server and not p.on_server(ServerStep.of(before, change))}
    if not any(c.call.action.system for c in changes(protocol, change.after)):
        found |= {p.id for p in properties if p.at_rest and not all(map(p.at_rest, change.after.owed))}
    return found


def shortest_of(verifier: spin.Verifier) -> tuple[list[str], set[str]]:
    """The calls of SPIN's shortest counterexample, and the properties that the last of them breaks."""
    verifier.run("-i")
    trail = verifier.trail()
    calls = [line for line in trail if not line.startswith("violated")]
    return calls, {line.removeprefix("violated: ") for line in trail[len(calls):]}


@pytest.mark.parametrize("name", sorted(SAME.keys() - {"TRIED_AGAIN"}))
def test_spin_and_the_explorer_find_the_same_bug_as_soon_and_by_the_same_properties(name: str, tmp_path: Path) -> None:
    bug = VARIANTS[SAME[name]]
    calls, violated = shortest_of(spin.build(tmp_path, bug.bounds, SHORTEST, name))
    assert len(calls) == min(bug.breaks.values())
    bounded = tuple(a for a in bug.protocol.actions if a.bound is None or getattr(bug.bounds, a.bound))
    protocol = bug.protocol.limited(bounded)
    before = replay(protocol, calls[:-1], bug.bounds.sessions).states[-1]
    assert violated == broken_by(protocol, before, calls[-1]) <= set(bug.breaks)


@pytest.mark.parametrize("name", list(SAME_WITH_FEATURES))
def test_spin_and_the_explorer_find_the_same_mistake_in_the_family(name: str, tmp_path: Path) -> None:
    mistake = VARIANTS[SAME_WITH_FEATURES[name]]
    protocol = mistake.protocol
    calls, violated = shortest_of(spin.build(tmp_path, mistake.bounds, SHORTEST, name, protocol.features))
    assert len(calls) == min(mistake.breaks.values())
    before = replay(protocol, calls[:-1]).states[-1]
    assert violated == broken_by(protocol, before, calls[-1]) <= set(mistake.breaks)


def test_spin_and_the_explorer_find_the_same_circle(tmp_path: Path) -> None:
    bug = VARIANTS[SAME["TRIED_AGAIN"]]
    verifier = spin.build(tmp_path, bug.bounds, LIVENESS, "TRIED_AGAIN")
    assert "acceptance cycle" in verifier.run("-a")
    trail = verifier.trail()
    start = trail.index(spin.CYCLE)
    calls = trail[:start] + trail[start + 1:]
    states = replay(bug.protocol, calls).states
    assert states[start] == states[-1], "SPIN's circle is one of the Python model"
    trace = explore(bug.protocol, bug.bounds).violations["progress"]
    assert trace.loop is not None
    circle = [str(step.call) for step in trace.steps[trace.loop:]]
    assert circle in (calls[start:], [*calls[start + 1:], calls[start]])


@pytest.mark.parametrize(("bounds", "features"), [
    (EVERYTHING, frozenset[Feature]()), (Bounds(2, cancels=1, clears=1, sessions=2), frozenset[Feature]()),
    (EVERY_CALL, ALL), (Bounds(1, cancels=1, requeues=1, crashes=1, asks=2), frozenset({Feature.ASK}))],
    ids=["everything", "two sessions", "family", "questions"])
def test_every_run_comes_to_rest_with_everything_ended(
    bounds: Bounds, features: frozenset[Feature], tmp_path: Path,
) -> None:
    told = spin.build(tmp_path, bounds, LIVENESS, None, features, "-DIDLE_RESUMES=0").run("-a")
    assert "acceptance   cycles \t+" in told
    assert "never claim         \t+ (progress)" in told
    assert spin.Search.of(told).errors == 0


def test_every_bug_of_the_promela_model_is_compared_and_every_property_is_broken() -> None:
    _, listed = spin.SPEC.read_text().split("Seeded bugs")
    named = re.findall(r"^#define ([A-Z_]+) [1-9]\d*$", listed, re.MULTILINE)
    assert set(named) == {*SAME, *SAME_WITH_FEATURES}
    assert {id for name in SAME.values() for id in VARIANTS[name].breaks} == {p.id for p in PROPERTIES}
    broken = {id for name in SAME_WITH_FEATURES.values() for id in VARIANTS[name].breaks}
    assert {p.id for p in (*FAMILY_PROPERTIES, *ASK_PROPERTIES)} <= broken
    judged = set(re.findall(r" JUDGE\(([a-z-]+),", spin.SPEC.read_text())) - {"property"}
    assert judged | {"progress"} == {p.id for p in (*PROPERTIES, *FAMILY_PROPERTIES, *ASK_PROPERTIES)}


def test_a_search_that_was_cut_short_is_no_count(tmp_path: Path) -> None:
    verifier = spin.build(tmp_path, Bounds(2, cancels=1, clears=1), spin.SAFETY)
    with pytest.raises(RuntimeError, match="did not complete the search"):
        spin.Search.of(verifier.run("-m3"))


def test_a_bug_that_the_model_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="NO_SUCH_BUG"):
        spin.build(tmp_path, Bounds(1), spin.SAFETY, "NO_SUCH_BUG")


def test_the_benchmark_searches_with_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spin, "FAST", spin.SAFETY)
    [found] = explorer.spins(Bounds(1, cancels=1), 1)
    assert found.found.states == explorer.ours(Bounds(1, cancels=1)).report["states"] == 34
    assert found.searching < found.command


def test_without_spin_the_benchmark_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert spin.missing() == "spin is not installed (Debian: apt-get install spin gcc)"
    assert explorer.spins(Bounds(1), 1) == []


def test_the_published_counts_are_those_that_were_compared() -> None:
    published = (spin.SPEC.parent / "formal.md").read_text()
    for bounds, (states, edges, _) in PINNED.items():
        assert f"| {bounds} | {states:,} | {edges:,} |\n" in published
    for features, bounds, (states, edges, _) in PINNED_WITH_FEATURES:
        assert f"| {', '.join(f.value for f in features)} | {bounds} | {states:,} | {edges:,} |\n" in published
