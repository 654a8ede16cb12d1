"""When a step is harmless: each condition of `reductions`, on sessions small enough to see it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cancelmark.model.actions import ACTIONS
from cancelmark.model.check.fast.reductions import Commuting
from cancelmark.model.check.fast.tables import Case, Option
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.properties import Bounds
from cancelmark.model.session import Prompt

ACTION = {action.name: action for action in ACTIONS}
CANCELED, FAILED = (Prompt(1, True, State.DONE, outcome) for outcome in (Outcome.CANCELED, Outcome.ERROR))


NAMES = "stuv"  # of sessions; a session's number is its place here


def move(name: str, live: str, **fields: Any) -> Option:
    """An action that leads to the session called `live`."""
    whole = {"action": ACTION[name], "seq": 1, "variant": None, "run_ids": (), "ended": (), "lost": frozenset(),
             "shows": ()}
    return Option(**{**whole, "changes": True, **fields}, live=NAMES.index(live))


class Graph:
    """Sessions that are nothing but names, and what they can do; by name and seq where that matters."""

    def __init__(
        self, moves: Mapping[Any, Sequence[Option]], unrest: Mapping[str, int] | None = None, sessions: int = 1,
    ) -> None:
        self.moves, self.unrest = moves, unrest or {}
        self.plain = SimpleNamespace(bounds=Bounds(2, sessions=sessions))

    def cases(self, number: int, seq: int) -> tuple[Case, ...]:
        name = NAMES[number]
        return (Case({}, tuple(self.moves.get((name, seq), self.moves.get(name, ()))), self.unrest.get(name, 0)),)


def taken_at_once(graph: Graph, name: str = "s", seq: int = 1) -> list[str]:
    [moves] = Commuting(graph).urgent(NAMES.index(name), seq)  # type: ignore[arg-type]
    return [f"{m.action.name} {NAMES[m.live]}" for m in moves]


#   s ──settle──▶ t
#   │cancel       │cancel
#   ▼             ▼
#   u ──settle──▶ v
SQUARE: dict[Any, Sequence[Option]] = {
    "s": [move("settle", "t"), move("cancel", "u")], "t": [move("cancel", "v")], "u": [move("settle", "v")], "v": []}


def test_a_step_that_commutes_with_everything_is_taken_at_once() -> None:
    assert taken_at_once(Graph(SQUARE)) == ["settle t"]
    assert taken_at_once(Graph(SQUARE), "t") == [], "a caller decides when to cancel"


def test_moves_that_come_to_the_same_are_taken_together() -> None:
    both = {**SQUARE, "s": [*SQUARE["s"], move("fail", "t", shows=("row fail",))],
            "u": [*SQUARE["u"], move("fail", "v", shows=("row fail",))]}
    assert taken_at_once(Graph(both)) == ["settle t", "fail t"]


@pytest.mark.parametrize(("why", "changed"), [
    ("a move is lost", {"t": []}),
    ("a later move is lost", {"u": [move("settle", "v"), move("crash", "v")]}),
    ("a move ends something else", {"s": [move("settle", "t"), move("cancel", "u", ended=(CANCELED,))],
                                    "t": [move("cancel", "v", ended=(FAILED,))]}),
    ("the step itself ends something else later", {"u": [move("settle", "v", ended=(FAILED,))]}),
    ("a move shows less", {"s": [move("settle", "t"), move("cancel", "u", shows=("broken",))]}),
    ("the step itself shows more later", {"u": [move("settle", "v", shows=("broken",))]}),
    ("a move changes nothing any more", {"t": [move("cancel", "v", changes=False)]}),
    ("a move forgets a prompt no more", {"s": [move("settle", "t"), move("cancel", "u", lost=frozenset({1}))]}),
    ("a move accepts a prompt without its run id", {"s": [move("settle", "t"), move("cancel", "u", run_ids=(2,))]}),
    ("a move has two results", {"t": [move("cancel", "v"), move("cancel", "t")]}),
    ("a move leads where more is possible", {"u": [move("settle", "v"), move("requeue", "u")]}),
    ("the system has more to do than before", {"u": [], "v": [move("settle", "t")]}),
    ("a caller comes to the same", {"s": [move("settle", "t"), move("cancel", "t")], "t": []}),
], ids=lambda value: value if isinstance(value, str) else "")
def test_a_step_by_which_something_is_lost_is_not(why: str, changed: dict[str, list[Option]]) -> None:
    assert taken_at_once(Graph({**SQUARE, **changed})) == []


def test_what_is_broken_at_rest_must_be_so_after_the_step() -> None:
    resting = {**SQUARE, "u": []}
    assert taken_at_once(Graph(resting, {"u": 1, "v": 0})) == []
    assert taken_at_once(Graph(resting, {"u": 1, "v": 2})) == []
    assert taken_at_once(Graph(resting, {"u": 1, "v": 3})) == ["settle t"]


def test_only_what_the_system_does_by_itself_and_to_itself_is_taken_at_once() -> None:
    for changed in ({"while_closing": False}, {"everywhere": True}, {"sets_closing": True}):
        settle = replace(ACTION["settle"], **changed)
        assert taken_at_once(Graph({**SQUARE, "s": [move("settle", "t", action=settle), move("cancel", "u")],
                                    "u": [move("settle", "v", action=settle)]})) == []


def test_steps_taken_at_once_never_go_round() -> None:
    ring = {"s": [move("enter", "t")], "t": [move("settle", "s")]}
    commuting = Commuting(Graph(ring))  # type: ignore[arg-type]
    taken = [moves for number in (0, 1) for moves in commuting.urgent(number, 1)]
    assert len([moves for moves in taken if moves]) == 1


def test_another_session_may_accept_before_the_step() -> None:
    later = {**SQUARE, ("t", 2): []}
    assert taken_at_once(Graph(later)) == ["settle t"]
    assert taken_at_once(Graph(later, sessions=2)) == []


def test_a_case_is_compared_only_with_cases_that_have_its_run_ids() -> None:
    class Split(Graph):
        """Where t has a case for each run id, and one of them lacks the move."""

        def cases(self, number: int, seq: int) -> tuple[Case, ...]:
            [case] = super().cases(number, seq)
            if NAMES[number] not in "st":
                return (case,)
            without = case._replace(known={1: True}, moves=tuple(m for m in case.moves if m.action.name != "cancel"))
            return case._replace(known={1: False}), without

    commuting = Commuting(Split(SQUARE))  # type: ignore[arg-type]
    assert [len(moves) for moves in commuting.urgent(0, 1)] == [1, 1]
