"""The check of a trace with the family's calls, as in `test_trace_check`. What such a trace means is decided by
`family_tracing.PlainFamily`, which shares no code with the checker."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import pytest
from support.budget import DEEP, effort, long
from support.family_tracing import PlainFamily, change_family_line, line_of
from support.judged_traces import accept, accepted_paths, act, end, judged, lives, rejection
from support.tracing import Line, delayed, logged, mutants, observed, paths, random_path, unnumbered, written

from cancelmark.conformance.trace import candidates
from cancelmark.conformance.trace.candidates import why_impossible
from cancelmark.conformance.trace.idleness import Idleness
from cancelmark.model.check.plain import Explorer
from cancelmark.model.lifecycle import State
from cancelmark.model.properties import Bounds
from cancelmark.model.protocol import FAMILY
from cancelmark.model.session import Prompt, Session, Traits


def without_enter(lines: list[Line]) -> list[Line]:
    return [line for line in unnumbered(lines) if line["action"] != "enter"]


STYLES: dict[str, Callable[[list[Line]], list[Line]]] = {
    "numbered": lambda lines: lines,
    "without numbers": unnumbered,
    "without enter": without_enter,
    "as observed": observed,
}


# --- every behaviour is accepted -------------------------------------------------------------------------------------

@pytest.mark.parametrize(("bounds", "count"), [
    (Bounds(1, 0, 0, 1, revokes=1, stops=1), 745), (Bounds(2), 698)], ids=str)
def test_every_path_of_a_bound_is_accepted_in_every_style(bounds: Bounds, count: int) -> None:
    every = [written(path, line_of) for path in paths(bounds, FAMILY)]
    assert len(every) == count
    for lines in every:
        for style in ("numbered", "without enter", "as observed"):
            assert judged(STYLES[style](lines)) is None, (style, lines)


@pytest.mark.parametrize(("style", "bounds", "count"), [
    ("numbered", Bounds(2, crashes=1, holds=1), 52_277), ("as observed", Bounds(2, holds=1), 11_580), *([
        ("numbered", Bounds(2, 1, 0, 1, revokes=1, holds=1), 3_137_098),
        ("numbered", Bounds(2, stops=1, holds=1, nexts=1), 2_459_057),
        ("numbered", Bounds(2, 0, 0, 0, 1, 1, stops=1), 504_858),
        ("as observed", Bounds(2, revokes=1, stops=1), 163_913)] if DEEP else [])])
def test_all_paths_of_larger_bounds_are_accepted(style: str, bounds: Bounds, count: int) -> None:
    assert accepted_paths(bounds, STYLES[style], FAMILY, line_of) == count


# --- every change of meaning is rejected, at the right line ----------------------------------------------------------

SEVERAL = (
    Bounds(2, 0, revokes=1, stops=1), Bounds(2, 0, holds=1, nexts=1), Bounds(2, 1, stops=1, holds=1),
    Bounds(2, 0, 0, 1, holds=1, replaces=1), Bounds(3, 0, nexts=1), Bounds(2, 0, stops=1, sessions=2),
    Bounds(2, 0, crashes=1, revokes=1, holds=1))


def bases(style: str, number: int) -> Iterator[list[Line]]:
    """Good traces; of those with late acceptances, some are none: a stop or a place has met a prompt too early."""
    random = Random(style)
    for i in range(number):
        bounds = SEVERAL[i % (6 if style in ("numbered", "late") else 7)]  # a numbered trace of one life has no crash
        lines = written(random_path(bounds, random, FAMILY), line_of)
        yield (random.choice(list(delayed(lines))) if style == "late" else
               logged(unnumbered(lines), random) if style == "logged" else STYLES[style](lines))


@pytest.mark.parametrize(("style", "number", "counts"), [
    ("numbered", 4, (774, 19)), long("numbered", 12, (2_479, 56)), ("late", 12, (1_612, 42)),
    ("without numbers", 1, (172, 8)), ("without enter", 2, (256, 16)), ("as observed", 3, (131, 92)),
    ("logged", 2, (148, 43))])
def test_a_mutant_is_rejected_at_the_line_where_no_behaviour_is_left(
    style: str, number: int, counts: tuple[int, int],
) -> None:
    plain, verdicts = PlainFamily(style in ("numbered", "late")), Counter[bool]()
    for lines in bases(style, effort(number)):
        wrong = plain.first_wrong(lines)
        assert judged(lines) == wrong, lines
        assert wrong is None or style == "late"
        for at, what, mutant in mutants(lines, change_family_line) if wrong is None else ():
            wrong = plain.first_wrong(mutant, at)
            assert judged(mutant) == wrong, (at, what, mutant)
            verdicts[wrong is None] += 1
    assert DEEP or (verdicts[False], verdicts[True]) == counts, "rejected, and accepted since they mean the same"


def differs(style: str, number: int) -> bool:
    """Whether a checker is found out by the mutants of a few traces."""
    plain = PlainFamily(style in ("numbered", "late"))
    return any(judged(mutant) != plain.first_wrong(mutant, at) for lines in bases(style, number)
               for at, _, mutant in [(1, "", lines), *mutants(lines, change_family_line)])


def agrees_but_for(field: str) -> Callable[..., bool]:
    original = candidates.agrees
    return lambda line, session, move: original(replace(line, **{field: None}), session, move)


BUGS: dict[str, tuple[str, Any, str, Any]] = {
    "traits are not compared": ("numbered", candidates, "agrees", agrees_but_for("traits")),
    "holds are not compared": ("numbered", candidates, "agrees", agrees_but_for("held")),
    "reject is not asked": ("numbered", Idleness, "reject", lambda idleness, seq, after: None),
    "who comes before a reject is not asked": ("late", Idleness, "accept", lambda idleness, seq: None),
    "a stop that holds is a stop": ("numbered", candidates, "HOLD", None),
    "nobody stops another unseen": ("cases", candidates, "is_simple", lambda session: True),
    "nobody is taken in unseen": ("cases", candidates, "_can_fold", lambda session, prompt: False),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_seeded_bug_in_the_checker_is_found_out(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    style, where, name, value = BUGS[bug]
    monkeypatch.setattr(where, name, value)
    assert any(judged(lines) != wrong for lines, wrong in CASES) if style == "cases" else differs(style, 40)


# --- lives -----------------------------------------------------------------------------------------------------------

def test_what_a_recovery_can_find_is_what_the_model_can_be_in() -> None:
    """Every state of a session with two prompts, but for places and versions: reachable, or impossible and told why.
    Only those who have begun and wait again need more calls to be reached than there are here."""
    explorer = Explorer(FAMILY, Bounds(2, cancels=1, requeues=1, revokes=2, holds=1))
    explorer.search()
    reachable = {seen(s) for situation in explorer.situations for s in situation.server.sessions
                 if situation.server.seq == 2 and isinstance(s, Session)}
    verdicts = Counter[bool]()
    for mark, held, *states in product(range(3), (False, True), State, State):
        for flags in product(product((False, True), repeat=3), repeat=2):
            prompts = tuple(Prompt(seq, False, state, traits=Traits(revoked, int(urgent), 0, begun, urgent))
                            for seq, state, (revoked, begun, urgent) in zip((1, 2), states, flags)
                            if state is not State.DONE)
            if any(p.state is State.ACTIVE and not p.begun for p in prompts):
                continue  # whoever found it says what is active has begun
            session = Session(mark, False, prompts, held=held)
            can_be = seen(session) in reachable
            if can_be or not any(p.begun and p.state is State.QUEUED for p in prompts):
                assert (why_impossible(session) is None) is can_be, (session, why_impossible(session))
            verdicts[can_be] += 1
    assert verdicts[False] > 100
    assert verdicts[True] > 100


def seen(session: Session) -> Any:
    return session.mark, session.held, tuple((p.seq, p.state, p.revoked, p.begun, p.urgent) for p in session.live)


def recover(held: bool = False, **prompts: tuple[str, dict[str, Any]]) -> Line:
    """A recovery that finds prompts of session s: `p1=("active", {"begun": True})`."""
    plain = Traits()._asdict()
    return {"action": "recover", "found": {"s": {"mark": 0, "held": held, "prompts": [
        {"seq": int(name[1:]), "run_id": None, "state": state, "traits": {**plain, **traits}}
        for name, (state, traits) in prompts.items()]}}}


FIRST = [accept(1), act("enter", seq=1), accept(2), act("enter", seq=2), act("hold", session="s"),
         act("replace", seq=2), act("next", seq=2), act("revoke", seq=1)]
FULL = {"front": 1, "version": 1}


@pytest.mark.parametrize(("found", "why"), [
    (recover(True, p1=("active", {"revoked": True, "begun": True}), p2=("queued", FULL)), None),
    (recover(p1=("active", {"begun": True}), p2=("queued", {})), None),
    (recover(True, p1=("active", {"begun": True}), p2=("queued", {"version": 1})), None),
    (recover(True, p1=("active", {"begun": True}), p2=("queued", {"version": 2})), "no line has given it"),
    (recover(True, p1=("active", {"begun": True}), p2=("queued", {"front": 2})), "no line has given it"),
    (recover(True, p1=("active", {"begun": True}), p2=("accepted", {"revoked": True})), "no line has given it"),
    (recover(True, p1=("active", {"begun": True}), p2=("queued", {"urgent": True, "front": 1})), "no line has given"),
    (recover(True, p1=("active", {}), p2=("queued", {"revoked": True})), "prompt 2 is queued, though it is revoked"),
    (recover(True, p1=("active", {}), p2=("accepted", {"begun": True})), "prompt 2 has begun, and is accepted"),
    (recover(p2=("queued", FULL)), "prompt 2 is queued, and none is active"),
])
def test_a_journal_may_be_behind_the_trace_and_not_ahead(found: Line, why: str | None) -> None:
    lines = lives(FIRST, [found])
    assert judged(lines) == (len(lines) if why else None)
    if why:
        assert why in str(rejection(lines))


def test_a_hold_that_nobody_asked_for_is_not_found() -> None:
    assert judged(lives(FIRST[:4], [recover(p1=("active", {}), p2=("queued", {}))])) is None
    assert judged(lives(FIRST[:4], [recover(True, p1=("active", {}), p2=("queued", {}))])) == 5
    both = [*FIRST[:5], act("resume", session="s")]
    assert judged(lives(both, [recover(True, p1=("active", {}), p2=("queued", {}))])) is None


def test_a_hold_is_found_and_kept_after_a_restart() -> None:
    first = lives(FIRST[:5], [recover(True, p1=("active", {}), p2=("queued", {}))])
    go_on = [end(1, "error"), act("resume", session="s"), {"effect": "start", "seq": 2}]
    assert judged([*first, *({**line, "n": n} for n, line in enumerate(go_on, 2))]) is None
    early = [end(1, "error"), {"effect": "start", "seq": 2}]
    assert judged([*first, *({**line, "n": n} for n, line in enumerate(early, 2))]) == 8


# --- what others log -------------------------------------------------------------------------------------------------

START = {"effect": "start", "seq": 1}
CASES: list[tuple[list[Line], int | None]] = [
    ([accept(1), accept(2), START, act("revoke", seq=2), end(2, "canceled"), end(1)], None),
    ([accept(1), accept(2), START, act("revoke", seq=2), end(1, "canceled")], 5),
    ([accept(1), act("revoke", seq=1, effects=[]), START], 3),  # it was not asked to stop, so it had not started
    ([accept(1), act("stop", session="s"), end(1, "canceled")], None),
    ([accept(1), accept(2), START, act("stop", session="s"), end(2, "canceled")], 5),
    ([act("stop", session="s"), accept(1), end(1, "canceled")], 3),
    ([act("hold", session="s"), accept(1), START], 3),
    ([act("hold", session="s"), accept(1), act("resume", session="s"), START, end(1)], None),
    ([act("resume", session="s"), accept(1), START], None),
    ([accept(1), START, act("stop", session="s", hold=True), accept(2), end(1, "canceled"), end(2, "canceled")], 6),
    ([accept(1), START, act("replace", seq=1)], 3),
    ([accept(1), act("replace", seq=1), START], None),
    ([accept(1), START, accept(2), accept(3), act("next", seq=3), end(1), {"effect": "start", "seq": 2}], None),
    ([accept(1), START, accept(2, if_busy="reject")], None),  # it may have ended unseen; it is told later
    ([accept(1), START, accept(2, if_busy="reject"), {"effect": "start", "seq": 2}], 4),
    ([accept(1), START, accept(2, if_busy="interrupt"), end(1, "canceled"), {"effect": "start", "seq": 2}], None),
    ([accept(1, if_busy="interrupt"), accept(2), {"effect": "start", "seq": 2}, end(2, "canceled")], 4),
    ([accept(1), START, accept(2), accept(3), end(2, "folded"), act("hold", session="s"), end(3, "folded")], None),
    ([accept(1), START, accept(2), act("hold", session="s", rows=[]), accept(3), end(3, "folded")], 6),
    ([accept(1), START, accept(2, if_busy="interrupt", run_id="b"), accept(3), end(3, "folded"), end(1, "canceled")],
     5),
]


@pytest.mark.parametrize(("lines", "wrong"), CASES)
def test_what_callers_and_ends_tell_is_judged(lines: list[Line], wrong: int | None) -> None:
    assert judged(lines) == wrong


def test_a_rejection_names_the_hold_the_place_and_what_differs() -> None:
    told = rejection([accept(1), act("hold", session="s"), act("enter", seq=1, held=True, traits=[
        {"seq": 1, "revoked": False, "front": 2, "version": 0, "urgent": False}])], complete=True)
    assert told.states == ["mark 0; held; 1 accepted"]
    assert told.nearest[0] == ("enter 1", {"traits": ("nothing", "1 front 2")})
    late = [accept(1, after=0), act("enter", seq=1), accept(2, after=0, if_busy="reject")]
    assert "prompt 1 was being accepted" in rejection(lives(late)).why
    late = [accept(1), act("enter", seq=1), accept(2, after=2, if_busy="reject")]
    assert "after line 2 the session was not idle" in rejection(lives(late)).why
    assert "seq 1 was given out before 2" in rejection(lives([accept(2, after=0, if_busy="reject"), accept(1, after=0)])
                                                       ).why
