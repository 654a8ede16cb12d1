"""Clients, schedules and stores that Hypothesis draws for a whole runtime."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from hypothesis import strategies as st
from support.scheduled import TURNS, Do, File, Memory, watch

from cancelmark.conformance.schedule import departing, rankings

T = TypeVar("T")

SCHEDULES, FAMILY_SCHEDULES = 2000, 500  # what is tried of them

MOMENTS = {
    "accept": ("", "done", "accept", "queued"),
    "cancel": ("", "done", "queued", "accept", "step", "clear_queue", "requeue"),
    "clear_queue": ("", "queued", "queued"),
    "close": ("", "done", "accept"),
}
FAMILY_MOMENTS = {
    **MOMENTS,
    "revoke": ("", "queued", "active", "accept", "requeue"),
    "stop": ("", "active", "accept", "queued", "finish"),
    "hold": ("", "accept", "active", "queued", "resume", "requeue"),
    "resume": ("hold", "hold", "queued", "stop", ""),
    "replace": ("", "queued", "accept", "hold", "active"),
    "next": ("", "queued", "hold", "accept"),
}
MODE = ("", "", "interrupt", "reject")
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


def family_client(drawn: bytes, first: bool) -> Do | None:
    """The same of the family's calls: prompts are named by their seqs, and may have a mode."""
    there, which, when, nth, where, named, turn = drawn
    what = "accept" if first else list(FAMILY_MOMENTS)[which % len(FAMILY_MOMENTS)]
    if what in MOMENTS:
        do = client(drawn if first else bytes((there, list(MOMENTS).index(what), *drawn[2:])), first)
        return replace(do, mode=one_of(MODE, named // 2)) if do and what == "accept" else do
    if not there % 4:
        return None
    return Do(what, one_of(FAMILY_MOMENTS[what], when), one_of((1, 1, 2, 3), nth), of=0 if what == "stop" else (
        1 + where % FIRST), turn=one_of(TURN, turn), hold=what == "stop" and bool(named % 2))


def family_scenario(drawn: bytes) -> list[Do]:
    clients = [family_client(drawn[n * SIZE:(n + 1) * SIZE], n < FIRST) for n in range(FIRST + LATER)]
    return [do for do in clients if do] + [watch()] * (drawn[-1] % 4 == 3)


# Drawn as bytes: of what is made of many parts, Hypothesis mostly tries one part in another's place.
BYTES = (FIRST + LATER) * SIZE + 1
CLIENTS = st.binary(min_size=BYTES, max_size=BYTES).map(scenario)
FAMILY_CLIENTS = st.binary(min_size=BYTES, max_size=BYTES).map(family_scenario)
DEPARTURES = st.binary(min_size=16, max_size=16).map(lambda drawn: departing((b % 8, b // 8 % 4) for b in drawn))
CHOICES = st.one_of(DEPARTURES, rankings(24), rankings(24))
STORE = st.sampled_from([Memory, Memory, File])
