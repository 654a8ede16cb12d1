"""The verdict matrix says of each revision what its history says of it."""

import pytest

from cancelmark.model.check.explore import StoppedError, explore
from cancelmark.model.properties import Bounds
from cancelmark.model.revisions import REVISIONS
from cancelmark.model.revisions.matrix import JUDGED, PROFILES, Column, ladder, search

MUST_FAIL = {
    "r0": "no-lost-cancel some-terminal all-done fifo no-poisoning one-terminal no-late-fold cancel-stops "
          "queue-dropped",
    "r1": "no-poisoning no-lost-cancel some-terminal all-done one-terminal no-late-fold cancel-stops queue-dropped",
    "r2": "no-lost-cancel no-absorption some-terminal all-done no-poisoning one-terminal no-late-fold cancel-stops "
          "queue-dropped",
    "r3": "no-absorption some-terminal all-done no-poisoning one-terminal no-late-fold cancel-stops queue-dropped",
    "r4": "all-done some-terminal one-terminal fifo single-active attribution prompt-terminal no-poisoning "
          "no-late-fold cancel-stops queue-dropped delivery",
    "ref": "",
}
MUST_HOLD = {
    "r0": "idle-cancel-noop progress",
    "r1": "record idle-cancel-noop progress",
    "r2": "record idle-cancel-noop progress",
    "r3": "record idle-cancel-noop progress",
    "r4": "record no-absorption closed idle-cancel-noop progress",
    "ref": " ".join(p.id for p in JUDGED),
}


@pytest.mark.parametrize("name", MUST_FAIL)
def test_each_revision_fails_what_it_must_and_keeps_what_its_commit_pinned(
    columns: dict[str, Column], name: str,
) -> None:
    failed = set(columns[name].violations)
    assert failed >= set(MUST_FAIL[name].split())
    assert failed.isdisjoint(MUST_HOLD[name].split())
    assert not any(columns[name].cell(id) == "–" for id in MUST_HOLD[name].split()), "what must hold can fail"


def test_the_matrix_covers_every_revision_and_the_reference(columns: dict[str, Column]) -> None:
    assert list(columns) == list(MUST_FAIL)
    assert all(column.states > 1000 for column in columns.values())


def test_every_repair_repairs_something_and_the_reference_everything(columns: dict[str, Column]) -> None:
    rungs = ladder(list(columns.values()))
    assert all(rung.flaws(before=True, after=False) for rung in rungs)
    assert rungs[-1].flaws(before=True, after=True) == rungs[-1].properties(before=True, after=True) == []


def test_a_search_that_was_stopped_is_no_verdict() -> None:
    with pytest.raises(StoppedError, match="the search of r4 was stopped: enough"):
        search(REVISIONS[-1], PROFILES[0], watch=lambda progress: "enough")


def test_several_cancels_and_clears_at_once_do_not_confuse_a_revision() -> None:
    """Calls of more than one step can overlap each other, and each still comes to its end."""
    for revision in (REVISIONS[0], REVISIONS[-1]):
        result = explore(revision, Bounds(1, cancels=2, clears=2))
        assert result.stopped is None
        assert "progress" not in result.violations
