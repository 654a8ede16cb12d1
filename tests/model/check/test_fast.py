"""The fast engine comes to the plain one's result wherever both can go, and reductions lose no verdict."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.budget import DEEP, long, one_for_each
from support.counts import PINNED
from support.engines import hide_compilers, loses_nothing, need_fast_engine, plainly, same

from cancelmark.model import actions
from cancelmark.model.actions import ACTIONS, Argument
from cancelmark.model.check.estimate import deepest, estimate
from cancelmark.model.check.explore import (
    ENGINES,
    Explorer,
    NoEngine,
    Progress,
    Reduction,
    engine_for,
    explore,
)
from cancelmark.model.check.fast import engine as fast
from cancelmark.model.check.fast import kernel
from cancelmark.model.delivery import DELIVERY, LOGGED, LOSSY
from cancelmark.model.effects import End
from cancelmark.model.lifecycle import ROWS, Outcome, State, Trigger
from cancelmark.model.properties import Bounds, Property
from cancelmark.model.protocol import REFERENCE, Behaviour
from cancelmark.model.revisions import REVISIONS
from cancelmark.model.revisions.matrix import PROFILES
from cancelmark.model.session import Step
from cancelmark.model.variants.catalogue import BUGS, VARIANTS, ProtocolVariant

need_fast_engine()

@pytest.fixture(autouse=True)
def share_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads share even few states, in small batches: where several are asked for, each has something to do."""
    monkeypatch.setattr(kernel, "WORTH_SHARING", 32)
    monkeypatch.setattr(kernel, "BATCH", 1 << 10)


SMALL = [Bounds(p, c, cl, r, cr, close, sessions=s) for p in (1, 2) for c in (0, 2) for cl in (0, 1) for r in (0, 1)
         for cr in (0, 1) for close in (0, 1) for s in (1, 2) if p + c + cr + close + s < 6]


@pytest.mark.parametrize("bounds", [bounds if bounds.total < 4 else long(bounds) for bounds in SMALL], ids=str)
def test_both_engines_agree_on_the_reference_and_no_reduction_loses_a_verdict(bounds: Bounds) -> None:
    same(REFERENCE, bounds)
    loses_nothing(REFERENCE, bounds)


@pytest.mark.parametrize("bounds", PINNED, ids=str)
@pytest.mark.parametrize("threads", [long(1), 2, long(8)])
def test_the_pinned_counts_are_the_fast_engines_too(
    bounds: Bounds, threads: int, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel, "BATCH", 1 << 12)
    result = fast.FastExplorer(REFERENCE, bounds, threads=threads).search()
    assert (result.states, result.edges, result.depth) == PINNED[bounds]
    assert (result.verdict, result.violations, result.unmet) == ("holds", {}, [])
    assert sum(result.levels) == result.states


@pytest.mark.parametrize("bug", one_for_each(lambda bug: bug.breaks, BUGS), ids=lambda b: b.name)
@pytest.mark.parametrize("sessions", [1, long(2)])
def test_both_engines_agree_on_seeded_bugs_and_no_reduction_loses_one(bug: ProtocolVariant, sessions: int) -> None:
    bounds = replace(bug.bounds, sessions=max(sessions, bug.bounds.sessions))
    same(bug.protocol, bounds)
    loses_nothing(bug.protocol, bounds)


SMALL_PROFILES = [p for p in PROFILES if p.bounds.total < 4 and p.bounds not in (Bounds(2, cancels=1), Bounds(3))]


@pytest.mark.parametrize("profile", PROFILES if DEEP else SMALL_PROFILES, ids=lambda p: p.why)
@pytest.mark.parametrize("revision", [*map(long, REVISIONS[:-1]), REVISIONS[-1]], ids=lambda r: r.name)
def test_both_engines_agree_on_revisions(revision, profile) -> None:  # type: ignore[no-untyped-def]
    same(replace(revision, accepts=profile.accepts), profile.bounds)


def test_both_engines_agree_on_delivery() -> None:
    for delivery in (LOGGED, LOSSY):
        same(delivery, Bounds(2, crashes=1), (DELIVERY,))


# --- reductions

def row_mutants() -> Iterator[Behaviour]:
    """The reference with one row left out, with one guard the less, or leading elsewhere."""
    for i, row in enumerate(ROWS):
        others = [replace(row, when=row.when[1:]), replace(row, unless=row.unless[1:]),
                  *(replace(row, dest=state, outcome=None) for state in State if state is not State.DONE),
                  *(replace(row, dest=State.DONE, outcome=outcome) for outcome in Outcome)]
        for n, mutant in enumerate([(), *((other,) for other in others)]):
            try:
                yield replace(REFERENCE, name=f"{row.name} {n}", rows=(*ROWS[:i], *mutant, *ROWS[i + 1:]))
            except ValueError:  # two rows would apply
                continue


@pytest.mark.parametrize("protocol", [
    mutant if mutant.name.endswith(" 0") else long(mutant) for mutant in row_mutants()], ids=lambda p: p.name)
def test_both_engines_and_all_reductions_agree_on_mutated_rows(protocol: Behaviour) -> None:
    bounds = Bounds(2, cancels=1, requeues=1, crashes=1)
    plain = plainly(protocol, bounds)
    if plain.stopped:  # its actions need the row
        told = "an action does something that its rows do not allow: prompt"
        assert plain.stopped.startswith(told)
        assert (explore(protocol, bounds, engine="fast").stopped or "").startswith(told)
        return
    same(protocol, bounds)
    for reductions in ({Reduction.FINISHED}, {Reduction.COMMUTING}, Reduction):
        result = explore(protocol, bounds, reductions=reductions)
        assert (result.verdict, result.unmet, result.stopped) == (plain.verdict, plain.unmet, plain.stopped)
        assert (result.violations.keys(), result.met.keys()) == (plain.violations.keys(), plain.met.keys()), reductions


def with_action(name: str, **fields: Any) -> Behaviour:
    """The reference with one action changed."""
    return replace(REFERENCE, actions=tuple(replace(a, **fields) if a.name == name else a for a in ACTIONS))


def test_reductions_leave_out_what_they_promise() -> None:
    bounds = Bounds(3, cancels=1, clears=1, sessions=2)
    states = {r: explore(REFERENCE, bounds, reductions={r}).states for r in Reduction}
    whole = PINNED[bounds][0]
    assert states[Reduction.FINISHED] < whole / 5
    assert whole / 2 <= states[Reduction.SYMMETRY] < whole * 0.6
    assert states[Reduction.COMMUTING] < whole * 0.9


def test_sessions_that_are_not_alike_are_not_confused() -> None:
    choosy = with_action("crash", variants=(None, "hard"))
    bounds = Bounds(2, crashes=1, sessions=2)
    same(choosy, bounds)
    result = explore(choosy, bounds, reductions=Reduction)
    assert result.reductions == {Reduction.FINISHED, Reduction.COMMUTING}
    assert explore(REFERENCE, bounds, reductions=Reduction).reductions == set(Reduction)


def test_what_happens_everywhere_must_be_possible_everywhere() -> None:
    for engine in ENGINES:
        with pytest.raises(RuntimeError):
            explore(with_action("crash", everywhere=False), Bounds(1, crashes=1, sessions=2), engine=engine)


@pytest.mark.parametrize(("kind", "holds"), [
    ("on_session", lambda step: [p.seq for p in step.before.live] != [2]),
    ("on_server", lambda step: len(step.changed) != 1), ("on_server", lambda step: len(step.changed) != 2),
    ("on_server", lambda step: not step.closing[0]),
], ids=["second", "one", "both", "closing"])
@pytest.mark.parametrize("call", ["close", long("crash"), long("recover")])
def test_what_happens_everywhere_is_judged_in_every_session(
        call: str, kind: str, holds: Callable[[Any], bool]) -> None:
    """The shortest traces to a second prompt alone, and to a close that changes one session, show it in the last."""
    judged: dict[str, Any] = {kind: lambda step: step.call != call or holds(step)}
    picky = (Property("picky", "Less happens.", **judged),)
    bounds = Bounds(2, cancels=call == "close", crashes=call != "close", closes=1, sessions=2)
    same(REFERENCE, bounds, picky)
    loses_nothing(REFERENCE, bounds, picky)


# --- hidden run ids

def test_only_what_asks_for_run_ids_is_worked_out_for_both_answers() -> None:
    explorer = fast.FastExplorer(REFERENCE, Bounds(3, cancels=1))
    explorer.search()
    asked = [case for cases in explorer.sessions._cases.values() for case in cases if case.known]
    assert asked
    for number, seq in explorer.sessions._cases:
        session = explorer.sessions.known[number]
        asks = any(case.known for case in explorer.sessions.cases(number, seq))
        assert asks == (bool(session.queue) and any(not session.covered(p) for p in session.active)), session


def test_what_does_not_ask_for_run_ids_is_worked_out_once_for_all_answers() -> None:
    explorer = fast.FastExplorer(REFERENCE, Bounds(3, cancels=1))
    explorer.search()
    several = [cases for cases in explorer.sessions._cases.values() if len(cases) > 1]
    assert several
    for cases in several:
        others = [[id(move) for move in case.moves if move.action.name != "step"] for case in cases]
        assert others == [others[0]] * len(cases)


def test_a_protocol_that_asks_for_run_ids_anywhere_is_understood() -> None:
    def enter(step: Step, arg: Argument) -> None:
        step.fire(arg.subject, Trigger.FAIL if arg.subject.run_id else Trigger.ENTER)

    same(with_action("enter", apply=enter), Bounds(2, cancels=1, requeues=1))
    picky = Property("picky", "Prompts with a run id do not fail.",
                     at_rest=lambda p: not p.run_id or p.outcome is not Outcome.ERROR)
    same(REFERENCE, Bounds(2, cancels=1), (picky,))
    loses_nothing(REFERENCE, Bounds(2, cancels=1), (picky,))


def test_a_run_id_that_is_not_read_by_its_name_is_noticed() -> None:
    def enter(step: Step, arg: Argument) -> None:
        step.fire(arg.subject, Trigger.FAIL if arg.subject[1] else Trigger.ENTER)

    with pytest.raises(TypeError, match="use the field run_id"):
        explore(with_action("enter", apply=enter), Bounds(1), engine="fast")


# --- protocols and properties that look at seqs

def enters(why: Callable[[Step, Argument], object]) -> Behaviour:
    """A protocol in which a prompt fails instead of entering, for a reason that is found in seqs."""
    def enter(step: Step, arg: Argument) -> None:
        step.fire(arg.subject, Trigger.FAIL if why(step, arg) else Trigger.ENTER)

    return with_action("enter", apply=enter)


def remember(step: Step, arg: Argument) -> None:
    step.fire(arg.subject, Trigger.FAIL if step.memory == arg.subject.seq - 1 else Trigger.ENTER)
    step.memory = arg.subject.seq


@pytest.mark.parametrize("protocol", [
    enters(lambda step, arg: arg.subject.seq % 2), enters(lambda step, arg: arg.subject.seq < step.mark),
    enters(lambda step, arg: 3 in {p.seq for p in step.live}), with_action("enter", apply=remember),
])
def test_a_protocol_that_computes_with_seqs_is_understood(protocol: Behaviour) -> None:
    same(protocol, Bounds(3, cancels=1))


@pytest.mark.parametrize("judged", [
    {"at_rest": lambda p: p.seq != 2 or p.outcome is not Outcome.ERROR},
    {"at_rest": lambda p: p.seq not in {2} or p.outcome is not Outcome.ERROR},
    {"at_rest": lambda p: p.label != "B" or p.outcome is not Outcome.ERROR},
    {"at_rest": lambda p: p.seq != 2 or p.state is not State.DONE},
    {"on_session": lambda step: not any(p.seq in {2} and p.outcome for p in step.after.prompts)},
    {"on_session": lambda step: {e.seq for e in step.ended} != {2}},
])
def test_a_property_that_looks_at_seqs_is_judged(judged: dict[str, Any]) -> None:
    bounds, picky = Bounds(2, cancels=1), (Property("picky", "The second prompt is another.", **judged),)
    assert plainly(REFERENCE, bounds, picky).verdict == "violated"
    same(REFERENCE, bounds, picky)
    loses_nothing(REFERENCE, bounds, picky)


# --- words

def test_every_word_is_a_state_and_every_state_a_word() -> None:
    bounds = Bounds(2, cancels=1, crashes=1, closes=1, sessions=2)
    explorer = fast.FastExplorer(REFERENCE, bounds)
    explorer.search()
    plain = Explorer(REFERENCE, bounds)
    plain.search()
    explorer.plain = plain
    assert explorer.met.words.view[:explorer.met.size].tolist() == list(map(explorer.word, plain.parent))


def test_more_kinds_of_ends_than_expected_begin_anew_with_wider_words() -> None:
    def finish(step: Step, arg: Argument) -> None:
        actions.finish(step, arg)
        step.effects += [e for e in step.effects if isinstance(e, End)] * (arg.subject.seq % 2)

    sloppy = with_action("finish", apply=finish)
    same(sloppy, Bounds(2, cancels=1, clears=1))
    explorer = fast.FastExplorer(sloppy, Bounds(2, cancels=1, clears=1))
    before = explorer.layout.end_bits
    explorer.search()
    assert explorer.layout.end_bits > before


def test_what_does_not_fit_into_a_word_is_refused_or_left_to_the_plain_engine() -> None:
    huge = Bounds(8, 9, 9, 9, 9, 9, sessions=4)
    with pytest.raises(NoEngine, match="needs more than 63 bits"):
        engine_for(REFERENCE, huge, engine="fast")
    assert isinstance(engine_for(REFERENCE, huge), Explorer)


# --- stopped searches, and growing ones

def test_limits_watchers_and_interrupts_stop_the_fast_engine_too() -> None:
    bounds = Bounds(3, cancels=2)
    limited = explore(REFERENCE, bounds, engine="fast", max_states=500)
    assert (limited.verdict, limited.stopped) == ("incomplete", "more than 500 states")
    seen: list[Progress] = []

    def watch(progress: Progress) -> str | None:
        seen.append(progress)
        return "enough" if progress.depth > 5 else None

    watched = explore(REFERENCE, bounds, engine="fast", watch=watch)
    assert (watched.verdict, watched.stopped, watched.unmet) == ("incomplete", "enough", [])
    assert [p.depth for p in seen] == sorted(p.depth for p in seen)
    assert all(0 < p.frontier <= p.states for p in seen)

    def interrupt(progress: Progress) -> None:
        if progress.states > 1000:
            raise KeyboardInterrupt

    interrupted = explore(REFERENCE, bounds, engine="fast", watch=interrupt)
    assert interrupted.verdict == "interrupted"
    assert interrupted.states > 1000
    assert sum(interrupted.levels) <= interrupted.states


def test_a_violation_found_before_the_stop_is_still_a_violation() -> None:
    bug = VARIANTS["the mark is one too high"]
    result = explore(bug.protocol, Bounds(3, cancels=2), max_states=500, engine="fast")
    assert result.stopped
    assert "no-poisoning" in result.violations


def test_room_is_made_as_states_come_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "LEAST", 1 << 8)
    monkeypatch.setattr(fast, "CHUNK", 1 << 7)
    same(REFERENCE, Bounds(2, cancels=2, clears=1, requeues=1, crashes=1, closes=1))


def test_the_engine_is_chosen_by_what_there_is_to_search(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(engine_for(REFERENCE, Bounds(2, cancels=1)), Explorer)
    assert isinstance(engine_for(REFERENCE, Bounds(4, cancels=2, clears=1)), fast.FastExplorer)
    assert isinstance(engine_for(REFERENCE, Bounds(1), reductions=[Reduction.FINISHED]), fast.FastExplorer)
    with pytest.raises(ValueError, match="no reductions"):
        engine_for(REFERENCE, Bounds(1), reductions=[Reduction.FINISHED], engine="plain")
    with pytest.raises(ValueError, match="choose one of plain, fast"):
        engine_for(REFERENCE, Bounds(1), engine="slow")


def test_without_a_compiler_the_plain_engine_does_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hide_compilers(monkeypatch, tmp_path)
    assert isinstance(engine_for(REFERENCE, Bounds(4, cancels=2, clears=1)), Explorer)
    with pytest.raises(NoEngine, match=r"needs a C compiler: pip install 'cancelmark\[fast\]'"):
        engine_for(REFERENCE, Bounds(1), engine="fast")


# --- the estimate

@pytest.mark.parametrize(("bounds", "reductions"), [
    (Bounds(3, cancels=2, clears=1), ()),
    (Bounds(3, cancels=2, clears=1, requeues=1, crashes=1, closes=1), ()),
    long(Bounds(4, cancels=2, clears=1), ()),
    long(Bounds(3, cancels=2, clears=1, requeues=1, crashes=1, sessions=2), ()),
    (Bounds(3, cancels=2, clears=1, requeues=1, crashes=1, sessions=2), tuple(Reduction)),
    long(Bounds(4, cancels=2, clears=1, requeues=1, crashes=1, closes=1), tuple(Reduction)),
], ids=str)
def test_the_estimate_is_within_a_factor_of_two(bounds: Bounds, reductions: tuple[Reduction, ...]) -> None:
    result = explore(REFERENCE, bounds, engine="fast", reductions=reductions)
    limit = deepest(REFERENCE, bounds)
    assert result.depth <= limit
    given = []
    for depth in range(1, len(result.levels) + 1):
        seen = result.levels[:depth]
        if (told := estimate(seen, sum(seen), limit)) is not None:
            assert 0.5 < told / result.states < 2, (depth, told)
            given.append(sum(seen) / result.states)
    assert given
    assert given[0] < 0.5, "given before half of the work is done"
