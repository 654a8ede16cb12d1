"""Clients, schedules and stores that Hypothesis draws for a whole runtime."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from hypothesis import strategies as st
from support.scheduled import TURNS, Do, File, Memory, watch

from cancelmark.conformance.schedule import departing, rankings

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
