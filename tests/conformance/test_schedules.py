"""The whole runtime under schedules that Hypothesis chooses: any clients, any order of whatever is ready to run."""

import pytest
from hypothesis import given, settings
from support.budget import effort
from support.random_clients import CHOICES, CLIENTS, SCHEDULES, STORE
from support.scheduled import Do, File, Memory, accept, cancel, clear_queue, close, play, play_all

from cancelmark.conformance.schedule import Choose
from cancelmark.impl.store import Store


@settings(max_examples=effort(SCHEDULES), deadline=None)
@given(CLIENTS, CHOICES, STORE)
def test_no_schedule_breaks_a_promise(clients: list[Do], choose: Choose, store: type[Store]) -> None:
    played = play(clients, choose, store)
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
    count = 0
    for played in play_all(clients, store, preemptions):
        count += 1
        assert not played.complaints, str(played)
    assert count == schedules
