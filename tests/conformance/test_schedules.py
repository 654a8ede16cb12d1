"""The whole runtime under schedules that Hypothesis chooses: any clients, any order of whatever is ready to run."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import effort
from support.scheduled import TURNS, Do, File, Memory, accept, cancel, clear_queue, close, play, play_all, watch

from cancelmark.conformance.schedule import Choose, departing, rankings
from cancelmark.impl.store import Store

T = TypeVar("T")

SCHEDULES = 2000  # what is tried of them


MOMENTS = {
    "accept": ("", "done", "accept", "queued"),
    "cancel": ("", "done", "queued", "accept", "step", "clear_queue", "requeue"),
    "clear_queue": ("", "queued", "queued"),
    "close": ("", "done", "accept"),
}
TURN = ("speaks", "calls a tool", "speaks", "grows too long", *TURNS)
FIRST, LATER = 3, 3  # clients that begin with a prompt, and that come at the worst moment
SIZE = 7  # bytes a client


def client(drawn: bytes, first: bool) -> Do | None:
    """What a client does. A zero stands for the simplest, and at the beginning for nobody."""
    there, which, when, nth, where, named, turn = drawn
    if not there % 4:
        return None
    what = "accept" if first else list(MOMENTS)[which % len(MOMENTS)]
    do = Do(what, "" if first else one_of(MOMENTS[what], when), one_of((1, 1, 2, 3), nth))
    if what == "accept":
        return replace(do, session=one_of("ssssssst", where), run_id=bool(named % 2), turn=one_of(TURN, turn))
    return do


def one_of(options: Sequence[T], byte: int) -> T:
    return options[byte % len(options)]


def scenario(drawn: bytes) -> list[Do]:
    """Some prompts to begin with, calls that come when it hurts, and sometimes somebody who watches."""
    clients = [client(drawn[n * SIZE:(n + 1) * SIZE], n < FIRST) for n in range(FIRST + LATER)]
    return [do for do in clients if do] + [watch()] * (drawn[-1] % 4 == 3)


# Drawn as bytes: of what is made of many parts, Hypothesis mostly tries one part in another's place.
BYTES = (FIRST + LATER) * SIZE + 1
CLIENTS = st.binary(min_size=BYTES, max_size=BYTES).map(scenario)
DEPARTURES = st.binary(min_size=16, max_size=16).map(lambda drawn: departing((b % 8, b // 8 % 4) for b in drawn))
CHOICES = st.one_of(DEPARTURES, rankings(24), rankings(24))
STORE = st.sampled_from([Memory, Memory, File])


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
    ([A, cancel()], File, 2, 899),
    ([close(), cancel(), cancel()], File, 2, 81),
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
