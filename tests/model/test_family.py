"""The family of protocols: its counts, its properties, and the mistakes that they must catch."""

import re
from collections.abc import Callable
from itertools import combinations
from typing import Any, NamedTuple

import pytest
from support.budget import DEEP
from support.counts import FAMILY_PINNED

from cancelmark.model.actions import Action, Variant
from cancelmark.model.check.explore import explore
from cancelmark.model.effects import Fold
from cancelmark.model.family import ALL_ACTIONS, FAMILY_ACTIONS, QUEUE_FEATURES, Feature
from cancelmark.model.family_properties import (
    ALL_PROPERTIES,
    ASK_PROPERTIES,
    FAMILY_PROPERTIES,
    REWORDED,
    properties_for,
)
from cancelmark.model.lifecycle import ROWS, Guard, Row, State, Trigger
from cancelmark.model.observer import wish_of
from cancelmark.model.properties import PROPERTIES, Bounds
from cancelmark.model.protocol import FAMILY, REFERENCE, Move, Protocol
from cancelmark.model.session import Prompt, Session
from cancelmark.model.trace import replay
from cancelmark.model.variants.catalogue import BUGS, MISTAKES

ALL = frozenset(QUEUE_FEATURES)


class HostWish(NamedTuple):
    """The observer's notes of a prompt whose turn has taken others in."""

    place: int
    version: int
    now: bool
    ran: bool
    host: bool = True

    def write(self) -> "HostWish":
        return self


class Remembering(Protocol):
    """A protocol whose observer remembers which turns have taken others in."""

    def apply(self, action: Action, session: Session, prompt: Prompt | None, variant: Variant, seq: int) -> Move:
        move = super().apply(action, session, prompt, variant, seq)
        hosts = {effect.into for effect in move.effects if isinstance(effect, Fold)}
        if not hosts:
            return move
        seen: Any = move.after
        after = seen.with_sorted_prompts(
            p._replace(wish=HostWish(*wish_of(p)[:4])) if p.seq in hosts else p for p in seen.prompts)
        live, ended = after.retire()
        return move._replace(after=after, live=live, ended=ended)


def remembering(features: frozenset[Feature]) -> Protocol:
    return Remembering("remembering", features=features)


def parking(features: frozenset[Feature]) -> Protocol:
    rows = [row for row in ROWS if row.trigger is not Trigger.REQUEUE]
    parks = Row(Trigger.REQUEUE, State.ACTIVE, State.QUEUED, unless=(Guard.COVERED,))
    return Protocol("parking", rows=(*rows, parks), features=features)


class Counted(NamedTuple):
    """A search of the prototype, and the choice that explains its counts."""

    choice: Callable[[frozenset[Feature]], Protocol]
    features: frozenset[Feature]
    bounds: Bounds
    states: int
    edges: int


PROTOTYPE = (
    Counted(remembering, frozenset({Feature.INTERRUPT}), Bounds(3, cancels=1, crashes=1), 58_500, 148_718),
    Counted(remembering, ALL, Bounds(3, crashes=1, revokes=1, holds=1), 114_993, 413_180),
    Counted(parking, frozenset({Feature.STOP, Feature.HOLD}),
            Bounds(2, cancels=1, requeues=1, crashes=1, closes=1, stops=1, holds=1), 87_494, 322_187),
    Counted(parking, ALL, Bounds(2, requeues=1, crashes=1, revokes=1, stops=2, holds=2, nexts=2), 492_048, 2_236_945),
    Counted(parking, ALL, Bounds(2, cancels=1, requeues=1, closes=1, revokes=1, stops=1, holds=1, replaces=1, nexts=1),
            640_487, 3_811_452),
    Counted(remembering, ALL, Bounds(3, cancels=1, revokes=1, stops=1, holds=1, nexts=1), 2_758_059, 16_395_234),
)


REVOKE, STOP, HOLD, REPLACE, NEXT, REJECT, INTERRUPT, ASK = Feature


def having(*features: Feature) -> Protocol:
    return Protocol("family:" + ",".join(f.value for f in features), features=frozenset(features))


@pytest.mark.parametrize("features", FAMILY_PINNED, ids=lambda fs: "+".join(f.value for f in fs))
def test_a_protocol_of_the_family_holds_and_has_its_counts(features: tuple[Feature, ...]) -> None:
    bounds, counts = FAMILY_PINNED[features]
    result = explore(having(*features), bounds)
    assert (result.verdict, result.violations, result.unmet) == ("holds", {}, [])
    assert (result.states, result.edges, result.depth) == counts


@pytest.mark.parametrize("counted", PROTOTYPE if DEEP else PROTOTYPE[:1] + PROTOTYPE[2:3], ids=lambda c: str(c.bounds))
def test_with_its_choice_put_back_the_search_counts_what_the_prototype_counted(counted: Counted) -> None:
    """So nothing else differs: each count that is not ours is explained by one choice, searched at just its bounds."""
    result = explore(counted.choice(counted.features), counted.bounds)
    assert (result.states, result.edges, result.stopped) == (counted.states, counted.edges, None)


def test_every_pair_of_features_holds() -> None:
    """Two prompts and one of each call: features that are right alone must be right beside each other."""
    bounds = Bounds(2, cancels=int(DEEP), requeues=1, revokes=1, stops=1, holds=1, replaces=1, nexts=1, asks=1)
    for pair in combinations(Feature, 2):
        result = explore(having(*pair), bounds)
        assert (result.verdict, result.violations) == ("holds", {}), pair


def test_without_a_feature_the_family_is_the_reference() -> None:
    plain = Protocol("plain", features=frozenset())
    assert plain.actions == REFERENCE.actions
    assert plain.rows == REFERENCE.rows
    assert properties_for(plain) == PROPERTIES
    assert {a.name for a in REFERENCE.actions}.isdisjoint(a.name for a in FAMILY_ACTIONS)
    assert REFERENCE.action("accept").variants == (False, True)
    assert REFERENCE.rows == ROWS


def test_with_every_feature_the_family_has_every_action_row_and_property() -> None:
    assert FAMILY.actions == ALL_ACTIONS
    assert all(len(action.effect.splitlines()) == 1 for action in ALL_ACTIONS), "a cell of a table"
    assert {row.rule for row in FAMILY.rows} - {row.rule for row in ROWS} == {"R32c"}
    assert [p.id for p in properties_for(FAMILY)] == [p.id for p in (*PROPERTIES, *FAMILY_PROPERTIES, *ASK_PROPERTIES)]
    assert properties_for(FAMILY) == (*ALL_PROPERTIES, *ASK_PROPERTIES)
    assert {p.id for p, q in zip(properties_for(having(HOLD)), PROPERTIES) if p.sentence != q.sentence} == {
        "idle-cancel-noop", "all-done", "some-terminal"}


def test_every_property_that_a_feature_adds_or_rewords_is_broken_by_a_mistake() -> None:
    broken = {id for mistake in MISTAKES for id in mistake.breaks}
    assert {p.id for p in FAMILY_PROPERTIES} <= broken
    assert set(REWORDED) <= broken | {id for bug in BUGS for id in bug.breaks}


def test_a_property_that_is_reworded_says_for_which_features() -> None:
    for p in PROPERTIES:
        if told := REWORDED.get(p.id):
            assert told.needs
            assert told.sentence != p.sentence
            assert (told.id, told.clauses, told.kind) == (p.id, p.clauses, p.kind)


@pytest.mark.rule("R30a", "R30b", "R31a", "R31b", "R31c", "R32a", "R32b", "R32c", "R32d", "R33a", "R34a", "R34b",
                  "R35a", "R35b", "R35c")
@pytest.mark.parametrize(("calls", "effects"), [
    ("accept(A), accept(B), revoke(B), enter(A), enter(B), settle(B)", "start 1, record 2, end 2"),
    ("accept(A), enter(A), accept(B), enter(B), revoke(B)", "start 1, end 2"),
    ("accept(A), enter(A), accept(B), enter(B), stop, finish(A, canceled)", "start 1, stop 1, end 1, start 2"),
    ("accept(A), accept(B), stop, enter(A), enter(B)", "start 2"),
    ("accept(A), enter(A), accept(B), enter(B), stop(hold), finish(A, canceled), resume",
     "start 1, stop 1, end 1, start 2"),
    ("accept(A), hold, enter(A), crash, recover, resume", "start 1"),
    ("accept(A), enter(A), accept(B), enter(B), hold, requeue(A), finish(A, end_turn)",
     "start 1, start 1, end 1"),
    ("accept(A), accept(B), hold, enter(A), enter(B), next(B), resume", "start 2"),
    ("accept(A), enter(A), accept(B), enter(B), accept(C), next(C), cancel, enter(C)", "start 1, stop 1, end 2"),
    ("accept(A), enter(A), accept(B, interrupt), enter(B), finish(A, canceled)", "start 1, stop 1, end 1, start 2"),
    ("accept(A, interrupt), accept(B), enter(B), enter(A)", "start 2"),
    ("accept(A), enter(A), accept(B), enter(B), accept(C, interrupt), enter(C), finish(A, canceled)",
     "start 1, stop 1, end 1, start 3"),
], ids=str)
def test_what_the_calls_of_the_family_ask_for(calls: str, effects: str) -> None:
    """Written by hand: model and runtime run the same actions, and cannot judge each other."""
    trace = replay(FAMILY, re.split(r", (?=[a-z])(?![a-z_]+\))", calls))
    asked = [f"{e.kind} {e.seq}" for step in trace.steps for e in step.effects if e.kind != "acknowledge"]
    assert asked == effects.split(", ")
