"""The oracle: sentence by sentence, and against every order of effects that a concurrent history allows."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement
from math import inf
from typing import cast

import pytest
from support.budget import long
from support.histories import Scene, arrangements, lives, precedence

from cancelmark.model.lifecycle import Outcome
from cancelmark.model.oracle import RULES, Call, CallKind, End, Prompt, Span, certain, judge, may_end, possible

OUTCOMES = tuple(outcome.value for outcome in Outcome)


def at(time: float) -> Span:
    return Span(time, time)


def cancel(begin: float, end: float, session: str | None = None) -> Call:
    return Call(begin, end, "cancel", session)


def clear_queue(begin: float, end: float) -> Call:
    return Call(begin, end, "clear_queue")


def ended(time: float, outcome: str) -> tuple[End]:
    return (End(time, time, outcome),)


# --- Sentence by sentence ---------------------------------------------------------------------------------------

def test_the_oracle_uses_the_words_of_the_lifecycle() -> None:
    assert {*RULES} == {"start", *OUTCOMES}
    assert all(len(rule.split()) > 5 for rule in RULES.values())


def test_spans_that_overlap_may_have_taken_effect_in_either_order() -> None:
    early, long, late = Span(0, 1), Span(0, 3), Span(2, 3)
    assert certain(early, late)
    assert not possible(late, early)
    for one, other in [(early, long), (long, late), (early, early), (early, Span(1, 2)), (at(1), at(1))]:
        assert possible(one, other)
        assert possible(other, one)
        assert not certain(one, other)


def test_accepted_before_a_cancel_and_not_started_when_it_returned_must_end_canceled() -> None:
    assert may_end(Prompt("A", Span(0, 1)), [cancel(2, 3)]) == {"canceled"}


def test_and_at_once_if_it_was_queued() -> None:
    queued = Prompt("A", Span(0, 1), enter=at(1))
    assert judge([replace(queued, ends=ended(2.5, "canceled"))], [cancel(2, 3)]) == []
    assert judge([replace(queued, ends=ended(4, "canceled"))], [cancel(2, 3)]) == [
        f"A ends canceled without a start, but nothing more could happen to it. The rule: {RULES['canceled']}."]


def test_and_it_never_starts() -> None:
    prompt = Prompt("A", Span(0, 1), starts=(at(4),))
    assert judge([prompt], [cancel(2, 3)], complete=False) == [
        f"A starts, but could only end canceled. The rule: {RULES['start']}."]


def test_running_when_a_cancel_came_may_end_canceled_or_as_it_just_ended() -> None:
    assert may_end(Prompt("A", at(0), starts=(at(1),)), [cancel(2, 3)]) == {"canceled", "end_turn", "error"}


def test_accepted_after_every_cancel_had_returned_must_not_end_canceled() -> None:
    assert may_end(Prompt("A", Span(4, 5)), [cancel(0, 1), cancel(2, 3)]) == {"error", "folded"}
    assert may_end(Prompt("A", Span(4, 5), starts=(at(6),)), [cancel(2, 3)]) == {"end_turn", "error", "folded"}


def test_where_acceptance_and_cancel_overlap_either_is_allowed() -> None:
    assert may_end(Prompt("A", Span(0, 2)), [cancel(1, 3)]) == {"canceled", "error", "folded"}


def test_where_start_and_cancel_overlap_either_is_allowed() -> None:
    never = Prompt("A", at(0), ends=ended(5, "canceled"))
    ran = Prompt("B", at(0), starts=(Span(1, 3),), ends=ended(5, "end_turn"))
    assert judge([never, ran], [cancel(2, 4)]) == []


def test_a_call_that_has_not_returned_may_take_effect_at_any_time() -> None:
    assert may_end(Prompt("A", at(0), ends=ended(9, "?")), [cancel(1, inf)]) == {"canceled", "error", "folded"}


def test_clear_queue_cancels_only_what_ends_while_it_runs() -> None:
    assert may_end(Prompt("A", at(0), ends=ended(2, "?")), [clear_queue(1, 3)]) == {"canceled", "error", "folded"}
    assert may_end(Prompt("A", at(0), ends=ended(4, "?")), [clear_queue(1, 3)]) == {"error", "folded"}


def test_clear_queue_never_cancels_a_running_prompt() -> None:
    assert may_end(Prompt("A", at(0), starts=(at(1),), ends=ended(4, "?")), [clear_queue(2, 3)]) == {
        "end_turn", "error", "folded"}


def test_clear_queue_leaves_nothing_in_the_queue() -> None:
    queued = Prompt("A", at(0), enter=at(1), starts=(at(4),))
    assert judge([queued], [clear_queue(2, 3)], complete=False) == [
        f"A starts, but nothing more could happen to it. The rule: {RULES['start']}."]


def test_clear_queue_leaves_alone_what_has_not_entered() -> None:
    assert judge([Prompt("A", at(0), enter=at(4), starts=(at(5),))], [clear_queue(2, 3)], complete=False) == []


def test_a_run_id_is_never_folded() -> None:
    assert may_end(Prompt("A", at(0)), []) == {"error", "folded"}
    assert may_end(Prompt("A", at(0), run_id=True), []) == {"error"}


def test_a_prompt_that_went_back_to_the_queue_can_be_folded_or_dropped() -> None:
    assert may_end(Prompt("A", at(0), starts=(at(1),)), []) == {"end_turn", "error", "folded"}
    assert "canceled" in may_end(Prompt("A", at(0), starts=(at(1),), ends=ended(2, "?")), [clear_queue(2, 2)])


def test_a_cancel_between_two_starts_forbids_the_second() -> None:
    assert judge([Prompt("A", at(0), starts=(at(1), at(4)))], [cancel(2, 3)], complete=False) == [
        f"A starts again, but could only end canceled or end end_turn or end error. The rule: {RULES['start']}."]


def test_a_turn_that_ends_has_started() -> None:
    assert judge([Prompt("A", at(0), ends=ended(1, "end_turn"))], []) == [
        "A ends end_turn without a start, but could only start or end error or end folded. The rule: "
        f"{RULES['end_turn']}."]


def test_a_prompt_that_entered_cannot_fail_to_start() -> None:
    assert may_end(Prompt("A", at(0), enter=at(1)), []) == {"folded"}


def test_cancels_are_per_session() -> None:
    assert may_end(Prompt("A", at(0), session="here"), [cancel(1, 2, "there")]) == {"error", "folded"}
    assert may_end(Prompt("A", at(0), session="here"), [cancel(1, 2, "here")]) == {"canceled"}


def test_what_is_not_said_of_a_prompt_is_nothing_special() -> None:
    assert Prompt("A", at(0)) == Prompt("A", at(0), run_id=False, enter=None, starts=(), ends=(), session="")
    assert Prompt("A", at(0)).moments == [at(0), at(0), Span(inf, inf)]


def test_of_two_ends_the_first_counts() -> None:
    prompt = Prompt("A", at(0), enter=at(1), starts=(at(2),), ends=ended(3, "error") + ended(4, "error"))
    assert prompt.moments == [at(0), at(1), at(2), End(3, 3, "error")]


def test_a_close_cancels_every_session() -> None:
    close = Call(1, 2, "close")
    assert [may_end(Prompt("A", at(0), session=s), [close]) for s in ("one", "two")] == [{"canceled"}] * 2


def test_a_close_comes_after_every_acceptance() -> None:
    assert may_end(Prompt("A", Span(0, 9)), [Call(1, 2, "close")]) == {"canceled"}


def test_nothing_is_accepted_after_a_close_has_returned() -> None:
    prompts = [Prompt("A", Span(2, 4), ends=ended(3, "canceled")), Prompt("B", Span(4, 5), ends=ended(6, "error"))]
    assert judge(prompts, [Call(1, 3, "close")]) == [
        "B was accepted after a close, but had to be refused. The rule: a closed server accepts nothing until a "
        "restart.",
        f"B ends error without a start, but nothing more could happen to it. The rule: {RULES['error']}."]


def test_a_restart_opens_a_closed_server_again() -> None:
    calls = [Call(1, 2, "close"), Call(3, 4, "crash")]
    assert judge([Prompt("A", at(5), starts=(at(6),), ends=ended(7, "end_turn"))], calls) == []


def test_a_restart_before_the_close_or_after_the_acceptance_opens_nothing() -> None:
    for crash in (Call(0, 1, "crash"), Call(7, 8, "crash")):
        complaints = judge([Prompt("A", at(5), ends=ended(6, "error"))], [crash, Call(2, 3, "close")])
        assert complaints[0].startswith("A was accepted after a close")


def test_a_crash_ends_what_runs_with_an_error() -> None:
    running = Prompt("A", at(0), run_id=True, starts=(at(1),))
    crash = Call(2, 3, "crash")
    assert judge([Prompt("A", at(0), starts=(at(1),), ends=ended(2.5, "error"))], [crash]) == []
    assert may_end(running, [crash]) == set()


def test_a_prompt_that_outlived_a_crash_was_in_the_queue_from_the_first_one_on() -> None:
    prompt = Prompt("A", at(0), starts=(at(1), at(9)))
    crashes = [Call(6, 7, "crash"), Call(2, 3, "crash")]
    assert judge([prompt], crashes, complete=False) == []
    assert judge([prompt], [*crashes, clear_queue(4, 5)], complete=False) == [
        f"A starts again, but nothing more could happen to it. The rule: {RULES['start']}."]


def test_a_prompt_that_waits_survives_a_crash() -> None:
    assert judge([Prompt("A", at(0), starts=(at(4),), ends=ended(5, "end_turn"))], [Call(2, 3, "crash")]) == []


def test_every_prompt_of_a_complete_history_has_exactly_one_end() -> None:
    rule = "but must have exactly one. The rule: each prompt ends exactly once."
    none, two = Prompt("A", at(0)), Prompt("B", at(0), ends=ended(1, "error") * 2)
    assert judge([none, two], []) == [f"A has 0 ends, {rule}", f"B has 2 ends, {rule}"]
    assert judge([none, two], [], complete=False) == [f"B has 2 ends, {rule}"]


def test_nothing_happens_after_the_end() -> None:
    (complaint,) = judge([Prompt("A", at(0), starts=(at(3),), ends=ended(2, "error"))], [])
    assert complaint == ("A was seen out of order, but the order is accept, enter, starts, end. The rule: nothing "
                         "happens to a prompt before its acceptance or after its end.")


def test_an_outcome_that_does_not_exist_is_a_complaint() -> None:
    assert judge([Prompt("A", at(0), ends=ended(1, "cancelled"))], []) == [
        "A ends cancelled without a start, but could only start or end error or end folded. The rule: there is no such "
        "outcome."]


# --- Against every order of effects -----------------------------------------------------------------------------
#
# The model never sees when a call began or returned. So a run of the model explains a history if and only if things
# take effect in it in an order that the spans of the history allow. `lives` has all runs, `arrangements` all histories.

@dataclass
class Tally:
    histories: int = 0  # judged
    explained: int = 0  # of these, histories that some run explains
    runs: int = 0  # pairs of a history and a run that explains it
    unsound: list[str] = field(default_factory=list)  # complaints about a history that some run explains
    lenient: int = 0  # no complaint about a history that no run explains


def compare(scene: Scene, entry_known: bool, most: int, tally: Tally) -> None:
    """Judges every history of the scene, with every outcome, and compares the verdict with what runs explain it.

    A history has at most so many items: acceptance, entry if known, starts, end, and the calls.
    """
    groups: dict[tuple[str, ...], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for life in lives(scene):
        steps = [step if entry_known else step - {"enter"} for step in life.steps]
        when = {item: at(i) for i, step in enumerate(steps) for item in step}
        # One more requeue would give these lives more ends, and an entry that was not seen is an entry unknown.
        if f"start {scene.requeues + 1}" not in when and ("enter" in when) is entry_known and len(when) <= most:
            items = tuple(sorted(when))
            groups[items][life.outcome].add(precedence([when[i] for i in items]))
    for items, orders in groups.items():
        starts = [item for item in items if item.startswith("start")]
        for spans, order in arrangements(len(items)):
            seen = dict(zip(items, spans))
            calls = [Call(seen[c].begin, seen[c].end, cast(CallKind, c.split()[0])) for c in scene.calls]
            prompt = Prompt("A", seen["accept"], scene.run_id, seen.get("enter"), tuple(seen[s] for s in starts),
                            (End(seen["end"].begin, seen["end"].end, "?"),))
            # With its moments out of order, no outcome can be right: one is as good as four.
            for outcome in OUTCOMES if possible(*prompt.moments) else OUTCOMES[:1]:
                runs = sum(order & effects == order for effects in orders[outcome])
                complaints = judge([replace(prompt, ends=(replace(prompt.ends[0], outcome=outcome),))], calls)
                tally.histories += 1
                tally.runs += runs
                tally.explained += runs > 0
                tally.lenient += not runs and not complaints
                if runs:
                    tally.unsound += complaints


def scenes(*kinds: CallKind) -> Iterator[Scene]:
    """Every choice of up to two calls. With two, there is room for one start; a run id only matters to folding."""
    for n, company, requeues, run_ids in [(0, 2, 2, (False, True)), (1, 2, 2, (False, True)), (2, 1, 1, (False,))]:
        for chosen in combinations_with_replacement(kinds, n):
            calls = tuple(f"{kind} {chosen[:i + 1].count(kind)}" for i, kind in enumerate(chosen))
            if not {"close 2", "crash 2"} & {*calls}:
                yield from (Scene(run_id, calls, company, requeues) for run_id in run_ids)


def test_of_small_histories_the_oracle_misjudges_none() -> None:
    """The same as below in little time: what is wrong there mostly shows here, in a history that is easier to read."""
    without_crash, with_crash = Tally(), Tally()
    for scene in scenes("cancel", "clear_queue", "close", "crash"):
        if len(scene.calls) < 2:
            tally = with_crash if "crash 1" in scene.calls else without_crash
            compare(scene, False, 4, tally)
            compare(scene, True, 4, tally)
    assert (without_crash.unsound, without_crash.lenient, with_crash.unsound) == ([], 0, [])
    assert (without_crash.histories, without_crash.explained) == (7_086, 2_160)
    assert (with_crash.histories, with_crash.explained, with_crash.lenient) == (1_448, 487, 10)


@pytest.mark.parametrize(("most", "histories", "explained", "runs"), [
    (4, 17_000, 5_000, 11_000), long(5, 200_000, 50_000, 200_000)])
def test_without_a_crash_the_oracle_is_exact(most: int, histories: int, explained: int, runs: int) -> None:
    """It is silent about a history if and only if some order of effects that the history allows explains it."""
    tally = Tally()
    for scene in scenes("cancel", "clear_queue", "close"):
        compare(scene, False, most, tally)
        compare(scene, True, most, tally)
    compare(Scene(False, ("cancel 1", "clear_queue 1"), company=2, requeues=2), True, most + 1, tally)
    assert (tally.unsound, tally.lenient) == ([], 0)
    assert tally.histories > histories
    assert tally.explained > explained
    assert tally.runs > runs


def test_with_a_crash_the_oracle_is_sound() -> None:
    """It never complains about a history that some order of effects explains.

    It cannot be exact without following the others: a recovery queues all that was accepted, in order of seq, so that a
    prompt that survived it starts only when all before it are done, and then never goes back behind one of them. Nor
    does it insist that a recovery does so at once.
    """
    tally = Tally()
    for scene in scenes("cancel", "clear_queue", "close", "crash"):
        if "crash 1" in scene.calls:
            compare(scene, False, 5, tally)
            compare(scene, True, 5, tally)
    assert tally.unsound == []
    assert tally.explained > 20_000
    assert tally.lenient < tally.histories / 20
