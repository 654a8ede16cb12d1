"""The check of a trace: it accepts every behaviour of the model, and of others it names the first line that is wrong.

What a trace means is decided by `tracing.Plain`, which shares no code with the checker.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice, product
from random import Random
from typing import Any

import pytest
from support.budget import DEEP, effort, long
from support.judged_traces import accept, accepted_paths, act, checked, end, judged, lives, rejection
from support.tracing import (
    Line,
    Plain,
    delayed,
    logged,
    mutants,
    observed,
    paths,
    random_path,
    unnumbered,
    written,
)

from cancelmark.conformance.trace import candidates
from cancelmark.conformance.trace import check as trace
from cancelmark.conformance.trace.candidates import Candidate, imagine_step, moved_rows, why_impossible
from cancelmark.conformance.trace.candidates import _scope as scope
from cancelmark.conformance.trace.check import Undecided
from cancelmark.conformance.trace.records import Asked
from cancelmark.conformance.trace.seqs import Seqs
from cancelmark.model.check.plain import Explorer
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.properties import Bounds
from cancelmark.model.protocol import REFERENCE
from cancelmark.model.session import Prompt, Session

# --- every behaviour is accepted -------------------------------------------------------------------------------------

def without_steps(lines: list[Line]) -> list[Line]:
    return [line for line in unnumbered(lines) if line["action"] not in ("enter", "settle")]


STYLES: dict[str, Callable[[list[Line]], list[Line]]] = {
    "numbered": lambda lines: lines,
    "without numbers": unnumbered,
    "without enter and settle": without_steps,
    "as observed": observed,
}


@pytest.mark.parametrize(("bounds", "count"), [(Bounds(1, 1, 0, 1, 1, 1), 569), (Bounds(2, 1), 1478)], ids=str)
def test_every_path_of_a_bound_is_accepted_in_every_style(bounds: Bounds, count: int) -> None:
    every = [written(path) for path in paths(bounds)]
    assert len(every) == count
    for lines in every:
        for style in ("numbered", "without enter and settle", "as observed"):
            assert judged(STYLES[style](lines)) is None, (style, lines)


def test_every_path_is_accepted_with_acceptances_that_are_written_late() -> None:
    late = [lines for path in paths(Bounds(2, 1)) for lines in delayed(written(path))]
    assert len(late) == 5_444
    assert not any(map(judged, late))


@pytest.mark.parametrize(("style", "bounds", "count"), [
    ("numbered", Bounds(2, 1, 0, 1), 3_962), ("as observed", Bounds(2, 1, 0, 1), 3_962),
    long("numbered", Bounds(2, 1, 1, 1, 1, 1), 854_786), long("as observed", Bounds(2, 1, 1, 1, 0, 1), 155_344)])
def test_all_paths_of_larger_bounds_are_accepted(style: str, bounds: Bounds, count: int) -> None:
    assert accepted_paths(bounds, STYLES[style]) == count


@pytest.mark.parametrize("seed", range(effort(60)))
def test_random_paths_are_accepted_however_they_are_logged(seed: int) -> None:
    random = Random(seed)
    lines = written(random_path(random.choice(SEVERAL), random))
    for _ in range(5):
        assert judged(logged(unnumbered(lines), random)) is None


# --- every change of meaning is rejected, at the right line ----------------------------------------------------------

SEVERAL = (Bounds(2, 1, 1, 1, closes=1), Bounds(2, 2), Bounds(2, 1, sessions=2), Bounds(2, 1, 1, crashes=1))


def bases(style: str, number: int) -> Iterator[list[Line]]:
    """Good traces."""
    random = Random(style)
    for i in range(number):
        bounds = SEVERAL[i % (3 if style in ("numbered", "late") else 4)]  # a numbered trace of one life has no crash
        lines = written(random_path(bounds, random))
        yield (random.choice(list(delayed(lines))) if style == "late" else
               logged(unnumbered(lines), random) if style == "logged" else STYLES[style](lines))


MUTANTS = [  # of how many traces, and how many are rejected, and accepted since they mean the same
    ("numbered", 15, (1_996, 72)), long("numbered", 60, (8_692, 283)),
    ("late", 15, (2_276, 74)), long("late", 60, (8_543, 281)),
    ("without numbers", 3, (274, 32)), long("without numbers", 8, (823, 88)),
    ("without enter and settle", 3, (236, 26)), long("without enter and settle", 8, (617, 85)),
    ("as observed", 5, (160, 103)), long("as observed", 16, (405, 316)),
    ("logged", 4, (142, 57)), long("logged", 12, (597, 182)),
]


@pytest.mark.parametrize(("style", "number", "counts"), MUTANTS)
def test_a_mutant_is_rejected_at_the_line_where_no_behaviour_is_left(
    style: str, number: int, counts: tuple[int, int],
) -> None:
    """Every single-line mutation: what is still a behaviour is accepted, what is not is rejected at that line."""
    complete = style in ("numbered", "late")
    plain, verdicts = Plain(complete), Counter[bool]()
    for lines in bases(style, effort(number)):
        assert plain.first_wrong(lines) is judged(lines) is None
        for at, what, mutant in mutants(lines):
            wrong = plain.first_wrong(mutant, at)
            assert judged(mutant) == wrong, (at, what, mutant)
            verdicts[wrong is None] += 1
    assert DEEP or (verdicts[False], verdicts[True]) == counts


# --- lives -----------------------------------------------------------------------------------------------------------

def test_what_a_recovery_can_find_is_what_the_model_can_be_in() -> None:
    """Every state of a session with two prompts: reachable, or impossible and told why."""
    explorer = Explorer(REFERENCE, Bounds(2, cancels=2, clears=1, requeues=1))
    explorer.search()
    reachable = {(s.mark, tuple((p.seq, p.run_id, p.state) for p in s.live))
                 for situation in explorer.situations for s in situation.server.sessions if situation.server.seq == 2}
    verdicts = Counter[bool]()
    for mark, *states in product(range(3), State, State):
        for ids in product((False, True), repeat=2):
            prompts = [Prompt(seq, run_id, state) for seq, run_id, state in zip((1, 2), ids, states)
                       if state is not State.DONE]
            session = Session(mark, False, tuple(prompts))
            can_be = (mark, tuple((p.seq, p.run_id, p.state) for p in prompts)) in reachable
            assert (why_impossible(session) is None) is can_be, (session, why_impossible(session))
            verdicts[can_be] += 1
    assert verdicts[False] > 20
    assert verdicts[True] > 20


def recover(mark: int = 0, **states: str) -> Line:
    """A recovery that finds prompts of session s: `p1="active"`."""
    return {"action": "recover", "found": {"s": {"mark": mark, "prompts": [
        {"seq": int(name[1:]), "run_id": None, "state": state} for name, state in states.items()]}}}


FIRST = [accept(1), act("enter", seq=1), accept(2), act("enter", seq=2)]  # 1 is active, 2 is queued


@pytest.mark.parametrize(("found", "why"), [
    (recover(p1="active", p2="queued"), None),
    (recover(p1="active", p2="accepted"), None),
    (recover(p1="accepted", p2="accepted"), None),
    (recover(p1="active", p2="queued", p3="accepted"), None),  # accepted, and killed before the line was written
    (recover(p1="active"), "prompt 2 was accepted and has not ended, and was not found"),
    (recover(p1="queued", p2="active"), "prompt 1 was found queued in session s, where the trace has never had it"),
    (recover(p1="active", p2="queued", p3="queued"), None),  # or had entered
    (recover(3, p1="active", p2="accepted", p3="canceled_on_entry"), "prompt 3 was found canceled"),
    (recover(p1="active", p2="active"), "prompts 1 and 2 are active"),
    (recover(p2="queued"), "prompt 2 is queued, and none is active"),
    (recover(2, p1="active", p2="accepted"), "mark 2 was found in session s, which never had it"),
    (recover(2, p1="active", p2="queued"), "queued, though the mark covers it"),
    (recover(p1="active", p2="canceled_on_entry"), "though the mark does not cover it"),
    (recover(p1="active", p2="done"), "is done, and has no place"),
])
def test_a_journal_may_be_behind_the_trace_and_not_ahead_and_loses_nobody(found: Line, why: str | None) -> None:
    lines = lives(FIRST, [found])
    assert judged(lines) == (len(lines) if why else None)
    if why:
        assert why in str(rejection(lines))


def test_a_life_begins_with_what_it_has_found() -> None:
    assert judged(lives(FIRST, [act("cancel", session="s")])) == 5
    assert judged(lives(FIRST, [act("recover")])) == 5
    assert judged(lives([act("recover"), *FIRST])) is None
    assert judged(lives([*FIRST, recover(p1="active", p2="queued")])) == 5, "and nothing else does"


def test_an_end_that_was_not_journaled_comes_again_after_a_restart() -> None:
    ended = [*FIRST, act("finish", seq=1, outcome="end_turn")]
    assert judged(lives(ended, [recover(p1="active", p2="queued")])) is None
    assert judged(lives(ended, [recover(p2="active")])) is None
    assert judged(lives(ended, [recover()])) == 6


def test_after_a_restart_seqs_go_on_above_what_was_journaled() -> None:
    first = [accept(1), act("cancel", session="s", mark=3)]  # 2 and 3 were given out, and not journaled
    assert judged(lives(first, [recover(p1="accepted"), accept(2, after=1)])) is None
    assert judged(lives(first, [recover(3, p1="accepted"), accept(2, after=1)])) == 4
    assert judged(lives(first, [recover(3, p1="accepted"), accept(4, after=1)])) is None
    assert judged(lives(first, [recover(p1="accepted"), accept(1, after=1)])) == 4


@pytest.mark.parametrize("between", [0, 1, 2])
@pytest.mark.parametrize("seqs", [(1,), (1, 2), (2,), (1, 3), (3, 5)])
def test_no_seq_is_given_out_again_in_a_later_life(seqs: tuple[int, ...], between: int) -> None:
    """Whatever has ended is gone from the journal: what is found after a restart says nothing of it."""
    first = [line for seq in seqs for line in (accept(seq), act("enter", seq=seq),
                                               act("finish", seq=seq, outcome="end_turn"))]
    empty = [[recover()] for _ in range(between)]
    for seq in range(1, 8):
        lines = lives(first, *empty, [recover(), accept(seq, after=1)])
        assert judged(lines) == (None if seq > max(seqs) else len(lines)), (seqs, seq)


def test_a_restart_without_found_has_journaled_all() -> None:
    lines = [accept(1), accept(2), {"effect": "start", "seq": 1}, act("recover"), end(1, "error"), end(2)]
    assert judged(lines) is None
    assert judged([*lines[:4], end(1, "end_turn")]) is None  # it had ended before, and was told afterwards
    assert judged([*lines[:4], end(2)]) == 5, "the interrupted one ends first"


# --- what others log -------------------------------------------------------------------------------------------------

def test_a_cancel_does_not_reach_who_is_accepted_after_it() -> None:
    wrong = rejection([act("cancel", session="s"), accept(1), end(1, "canceled")])
    assert wrong.line.number == 3
    assert wrong.why == "prompt 1 is accepted, and cannot end in canceled"
    assert wrong.states == ["mark 0; 1 accepted"]
    assert wrong.nearest[0] == ("end 1 error", {"outcome": ("error", "canceled")})


def test_an_end_is_told_once_and_never_passed_over() -> None:
    assert judged([accept(1), end(1), end(1)]) == 3
    lines = [accept(1), act("enter", seq=1), accept(2), act("enter", seq=2), act("cancel", session="s"),
             act("finish", seq=1, outcome="canceled")]
    assert judged(lines, complete=True) == 6
    assert "the end of prompt 2 comes first, and no line has told it" in str(rejection(lines, complete=True))
    assert judged([*lines[:5], end(2, "canceled"), lines[5]], complete=True) is None
    assert judged([*lines[:3], *lines[4:]]) is None, "2 can have entered after the cancel, and ends later"


def test_two_turns_at_a_time_are_not_possible() -> None:
    lines = [accept(1), accept(2), {"effect": "start", "seq": 1}, {"effect": "start", "seq": 2}]
    assert judged(lines) == 4
    assert judged([*lines[:3], end(1), lines[3]]) is None


def test_a_complete_trace_leaves_nothing_out() -> None:
    lines = [accept(1), act("finish", seq=1, outcome="end_turn")]
    assert judged(lines) is None
    assert judged(lines, complete=True) == 2
    assert "prompt 1 is accepted; finish needs: p active" in rejection(lines, complete=True).why


def test_a_run_id_is_not_given_to_two_prompts_that_are_not_done() -> None:
    assert judged([accept(1, run_id="a"), accept(2, run_id="a")]) == 2
    assert judged([accept(1, run_id=""), accept(2, run_id="")]) is None, "an empty run id is none"
    assert judged([accept(1, run_id="a"), end(1), accept(2, run_id="a")]) is None, "who is done is forgotten"


WAITING = [accept(1), {"effect": "start", "seq": 1}, *map(accept, range(2, 16))]  # of whom nobody knows who entered


@pytest.mark.parametrize("call", ["clear_queue", "cancel"])
def test_of_too_many_possibilities_some_are_followed_which_can_only_accept(call: str) -> None:
    lines = [*WAITING, act(call, session="s"), *(end(seq, "canceled") for seq in range(2, 16)), end(1)]
    check = checked(lines)
    assert check.most >= candidates.MOST
    with pytest.raises(Undecided, match=r"line 18 may not be .* since line 17 session s could be in more .*log more"):
        checked([*lines[:17], end(2, "end_turn")])
    assert judged([*lines, accept(16), end(16, "canceled")]) == len(lines) + 2, "all is known again"


def test_a_line_that_says_whom_it_dropped_leaves_one_possibility() -> None:
    told = act("clear_queue", session="s", effects=[end(seq, "canceled") for seq in range(2, 16)])
    assert checked([*WAITING, told]).most == 1


def test_a_long_queue_that_nobody_disturbs_is_one_possibility() -> None:
    lines = [accept(1), {"effect": "start", "seq": 1}, *map(accept, range(2, 100)),
             *(line for seq in range(1, 99) for line in (end(seq), {"effect": "start", "seq": seq + 1}))]
    assert checked(lines).most == 1


# --- it can fail -----------------------------------------------------------------------------------------------------

def differs(style: str, number: int) -> bool:
    """Whether a checker is found out by the mutants of a few traces."""
    plain = Plain(style in ("numbered", "late"))
    some = islice(paths(Bounds(2, 1)), 0, None, 9)
    if style in STYLES and any(judged(STYLES[style](written(path))) for path in some):
        return True
    return any(judged(mutant) != plain.first_wrong(mutant, at) for lines in bases(style, number)
               for at, _, mutant in [(1, "", lines), *mutants(lines)])


def not_in_order(candidate: Candidate, line: Any) -> Candidate | None:
    """Tells an effect wherever it is owed, and forgets those before it."""
    for at, owed in enumerate(candidate.owed):
        if (owed.effect, owed.seq) == (line.effect, line.seq) and (not line.outcome or line.outcome in owed.outcomes):
            return Candidate(candidate.session, candidate.owed[at + 1:])
    return None


BUGS: dict[str, tuple[str, Any, str, Any]] = {
    "rows are not compared": ("numbered", candidates, "agrees", lambda line, session, move: (
        line.mark in (None, move.after.mark) and line.effects in (None, tuple(map(Asked.of, move.effects))))),
    "marks are not compared": ("numbered", candidates, "agrees", lambda line, session, move: (
        line.rows in (None, moved_rows(session, move)) and line.effects in (None, tuple(map(Asked.of, move.effects))))),
    "effects are not compared": ("numbered", candidates, "agrees", lambda line, session, move: (
        line.mark in (None, move.after.mark) and line.rows in (None, moved_rows(session, move)))),
    "a seq may have been given out at any time": ("late", Seqs, "reach", lambda seqs, mark, until, since: None),
    "ends are passed over": ("as observed", trace, "tell_effect", not_in_order),
    "nobody fails unseen": ("as observed", candidates, "imagine_step", lambda one, about=None: (
        after for after in imagine_step(one, about)
        if len(after.owed) != 1 or after.owed[0].outcomes != {Outcome.ERROR})),
    "the queue cannot be entered unseen": ("without enter and settle", candidates, "entrances",
                                           lambda session, line, limit: iter([session])),
    "nothing is left out before a cancel": ("as observed", candidates, "_scope", lambda line: (
        ([], set()) if line.action == "cancel" else scope(line))),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_seeded_bug_in_the_checker_is_found_out(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    style, where, name, value = BUGS[bug]
    monkeypatch.setattr(where, name, value)
    assert differs(style, 60 if style in ("numbered", "late") else 16)
