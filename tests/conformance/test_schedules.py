"""The whole runtime under schedules that Hypothesis chooses: any clients, any order of whatever is ready to run."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import effort
from support.random_clients import CHOICES, CLIENTS, SCHEDULES, STORE
from support.scheduled import (
    REAL,
    Do,
    File,
    Memory,
    Parts,
    accept,
    cancel,
    clear_queue,
    close,
    play,
    play_all,
    watch,
)

from cancelmark.conformance.schedule import Choose
from cancelmark.impl.store import Store

READY = Parts(ready=True)


@settings(max_examples=effort(SCHEDULES), deadline=None)
@given(CLIENTS, CHOICES, STORE, st.sampled_from([REAL, REAL, READY]))
def test_no_schedule_breaks_a_promise(clients: list[Do], choose: Choose, store: type[Store], parts: Parts) -> None:
    played = play(clients, choose, store, parts)
    assert not played.complaints, str(played)


# --- all schedules of small scenarios

A, B = accept(run_id=True), accept()


@pytest.mark.parametrize(("clients", "store", "preemptions", "schedules"), [
    ([A, cancel()], Memory, None, 1014),
    ([A, B, cancel()], Memory, 3, 545),
    ([accept(turn="grows too long"), cancel("requeue")], Memory, 3, 645),
    ([accept(turn="calls a tool"), B, cancel("step")], Memory, 3, 481),
    ([A, A, clear_queue("queued")], Memory, 3, 98),
    ([A, close(), cancel(), cancel()], Memory, 2, 1311),
    ([A, cancel()], File, 2, 440),
    ([close(), cancel(), cancel()], File, 2, 21),
], ids=lambda value: getattr(value, "__name__", str(value)))
def test_every_schedule_keeps_every_promise(
    clients: list[Do], store: type[Store], preemptions: int | None, schedules: int,
) -> None:
    """The number of schedules is pinned: a changed one says that the runtime waits elsewhere, or more often."""
    assert count_kept(clients, store, preemptions) == schedules


def count_kept(clients: list[Do], store: type[Store], preemptions: int | None, parts: Parts = REAL) -> int:
    count = 0
    for played in play_all(clients, store, preemptions, parts):
        count += 1
        assert not played.complaints, str(played)
    return count


@pytest.mark.rule("R15a", "R15b")
@pytest.mark.parametrize(("store", "preemptions", "schedules"), [(Memory, 2, 18), (File, 1, 30)])
def test_what_is_accepted_while_the_server_closes_does_not_run(
    store: type[Store], preemptions: int, schedules: int,
) -> None:
    """A prompt that waits until it may enter is out of sight for long."""
    assert count_kept([A, close()], store, preemptions, READY) == schedules


@pytest.mark.rule("R16c")
@pytest.mark.parametrize(("clients", "store", "schedules"), [
    ([accept(turn="ignores a stop"), cancel("asked")], Memory, 44),
    ([accept(turn="ignores a stop"), cancel("asked")], File, 87),
    ([accept(turn="stops late"), cancel("asked")], File, 79),
    ([B, cancel("active")], File, 51),  # who watches is told of the cancel, too
    ([B, B, cancel("step")], File, 96),
], ids=str)
def test_who_watches_is_told_of_what_is_durable_and_sees_every_message_as_it_was_written(
    clients: list[Do], store: type[Store], schedules: int,
) -> None:
    """However a turn ends: abandoned, late, before it began, or with a prompt that was just folded into it."""
    assert count_kept([*clients, watch()], store, 1) == schedules
