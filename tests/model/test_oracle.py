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


A, RAN = Prompt("A", at(0)), Prompt("A", at(0), starts=(at(1),))
CLOSE, CRASH = Call(1, 2, "close"), Call(2, 3, "crash")
MAY_END: dict[str, list[tuple[Prompt, list[Call], set[str]]]] = {
    "accepted before a cancel and not started when it returned: must end canceled": [
        (Prompt("A", Span(0, 1)), [cancel(2, 3)], {"canceled"})],
    "running when a cancel came: may end canceled, or as it just ended": [
        (RAN, [cancel(2, 3)], {"canceled", "end_turn", "error"})],
    "accepted after every cancel had returned: must not end canceled": [
        (Prompt("A", Span(4, 5)), [cancel(0, 1), cancel(2, 3)], {"error", "folded"}),
        (Prompt("A", Span(4, 5), starts=(at(6),)), [cancel(2, 3)], {"end_turn", "error", "folded"})],
    "where acceptance and cancel overlap, either is allowed": [
        (Prompt("A", Span(0, 2)), [cancel(1, 3)], {"canceled", "error", "folded"})],
    "a call that has not returned may take effect at any time": [
        (replace(A, ends=ended(9, "?")), [cancel(1, inf)], {"canceled", "error", "folded"})],
    "clear_queue cancels only what ends while it runs": [
        (replace(A, ends=ended(2, "?")), [clear_queue(1, 3)], {"canceled", "error", "folded"}),
        (replace(A, ends=ended(4, "?")), [clear_queue(1, 3)], {"error", "folded"})],
    "clear_queue never cancels a running prompt": [
        (replace(RAN, ends=ended(4, "?")), [clear_queue(2, 3)], {"end_turn", "error", "folded"})],
    "a run id is never folded": [(A, [], {"error", "folded"}), (replace(A, run_id=True), [], {"error"})],
    "a prompt that went back to the queue can be folded or dropped": [
        (RAN, [], {"end_turn", "error", "folded"}),
        (replace(RAN, ends=ended(2, "?")), [clear_queue(2, 2)], {"canceled", "end_turn", "error", "folded"})],
    "a prompt that entered cannot fail to start": [(replace(A, enter=at(1)), [], {"folded"})],
    "cancels are per session": [
        (replace(A, session="here"), [cancel(1, 2, "there")], {"error", "folded"}),
        (replace(A, session="here"), [cancel(1, 2, "here")], {"canceled"})],
    "a close cancels every session": [(replace(A, session=s), [CLOSE], {"canceled"}) for s in ("one", "two")],
    "a close comes after every acceptance": [(Prompt("A", Span(0, 9)), [CLOSE], {"canceled"})],
    "a crash leaves nothing to a prompt with a run id that runs": [(replace(RAN, run_id=True), [CRASH], set())],
}


@pytest.mark.parametrize("sentence", MAY_END)
def test_a_prompt_may_end(sentence: str) -> None:
    for prompt, calls, outcomes in MAY_END[sentence]:
        assert may_end(prompt, calls) == outcomes


def rule(complaint: str, of: str = "start") -> str:
    return f"{complaint}. The rule: {RULES.get(of, of)}."


QUEUED = Prompt("A", Span(0, 1), enter=at(1))
TWICE, TWO_CRASHES = replace(A, starts=(at(1), at(9))), [Call(6, 7, "crash"), Call(2, 3, "crash")]
NONE, TWO = A, Prompt("B", at(0), ends=ended(1, "error") * 2)
ONCE = "but must have exactly one. The rule: each prompt ends exactly once."
CLOSED = rule("B was accepted after a close, but should have been refused",
              "a closed server accepts no prompts until it restarts")
# With each sentence: prompts, calls, and the complaints about them; a history in which a prompt has no end goes on.
JUDGED: dict[str, list[tuple[list[Prompt], list[Call], list[str]]]] = {
    "what was queued when a cancel came ends at once": [
        ([replace(QUEUED, ends=ended(2.5, "canceled"))], [cancel(2, 3)], []),
        ([replace(QUEUED, ends=ended(4, "canceled"))], [cancel(2, 3)],
         [rule("A ends canceled without a start, but nothing more could happen to it", "canceled")])],
    "what a cancel has reached never starts": [
        ([Prompt("A", Span(0, 1), starts=(at(4),))], [cancel(2, 3)], [rule("A starts, but could only end canceled")])],
    "where start and cancel overlap, either is allowed": [
        ([replace(A, ends=ended(5, "canceled")),
          Prompt("B", at(0), starts=(Span(1, 3),), ends=ended(5, "end_turn"))], [cancel(2, 4)], [])],
    "clear_queue leaves nothing in the queue": [
        ([replace(A, enter=at(1), starts=(at(4),))], [clear_queue(2, 3)],
         [rule("A starts, but nothing more could happen to it")])],
    "clear_queue leaves alone what has not entered": [
        ([replace(A, enter=at(4), starts=(at(5),))], [clear_queue(2, 3)], [])],
    "a cancel between two starts forbids the second": [
        ([replace(A, starts=(at(1), at(4)))], [cancel(2, 3)],
         [rule("A starts again, but could only end canceled or end end_turn or end error")])],
    "a turn that ends has started": [
        ([replace(A, ends=ended(1, "end_turn"))], [],
         [rule("A ends end_turn without a start, but could only start or end error or end folded", "end_turn")])],
    "nothing is accepted after a close has returned": [
        ([Prompt("A", Span(2, 4), ends=ended(3, "canceled")), Prompt("B", Span(4, 5), ends=ended(6, "error"))],
         [Call(1, 3, "close")],
         [CLOSED, rule("B ends error without a start, but nothing more could happen to it", "error")])],
    "a restart opens a closed server again": [
        ([Prompt("A", at(5), starts=(at(6),), ends=ended(7, "end_turn"))], [CLOSE, Call(3, 4, "crash")], [])],
    "a crash ends what runs with an error": [([replace(RAN, ends=ended(2.5, "error"))], [CRASH], [])],
    "a prompt that outlived a crash was in the queue from the first one on": [
        ([TWICE], TWO_CRASHES, []),
        ([TWICE], [*TWO_CRASHES, clear_queue(4, 5)], [rule("A starts again, but nothing more could happen to it")])],
    "a prompt that waits survives a crash": [
        ([replace(A, starts=(at(4),), ends=ended(5, "end_turn"))], [CRASH], [])],
    "nothing happens after the end": [
        ([replace(A, starts=(at(3),), ends=ended(2, "error"))], [],
         [rule("A was observed out of order, but the order must be accept, enter, starts, end",
               "nothing happens to a prompt before its acceptance or after its end")])],
    "an outcome that does not exist is a complaint": [
        ([replace(A, ends=ended(1, "cancelled"))], [],
         [rule("A ends cancelled without a start, but could only start or end error or end folded",
               "no such outcome exists")])],
}


@pytest.mark.parametrize("sentence", JUDGED)
def test_a_history_is_judged(sentence: str) -> None:
    for prompts, calls, complaints in JUDGED[sentence]:
        assert judge(prompts, calls, complete=all(prompt.ends for prompt in prompts)) == complaints


def test_every_prompt_of_a_complete_history_has_exactly_one_end() -> None:
    assert judge([NONE, TWO], []) == [f"A has 0 terminal events, {ONCE}", f"B has 2 terminal events, {ONCE}"]
    assert judge([NONE, TWO], [], complete=False) == [f"B has 2 terminal events, {ONCE}"]


def test_a_restart_before_the_close_or_after_the_acceptance_opens_nothing() -> None:
    for crash in (Call(0, 1, "crash"), Call(7, 8, "crash")):
        complaints = judge([Prompt("A", at(5), ends=ended(6, "error"))], [crash, Call(2, 3, "close")])
        assert complaints[0].startswith("A was accepted after a close")


def test_what_is_not_said_of_a_prompt_is_nothing_special() -> None:
    assert Prompt("A", at(0)) == Prompt("A", at(0), run_id=False, enter=None, starts=(), ends=(), session="")
    assert Prompt("A", at(0)).moments == [at(0), at(0), Span(inf, inf)]
    prompt = replace(A, enter=at(1), starts=(at(2),), ends=ended(3, "error") + ended(4, "error"))
    assert prompt.moments == [at(0), at(1), at(2), End(3, 3, "error")], "of two ends the first counts"


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
