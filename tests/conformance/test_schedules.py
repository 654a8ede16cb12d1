"""The whole runtime under schedules that Hypothesis chooses: any clients, any order of whatever is ready to run."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.budget import effort, long
from support.flawed_family import FLAWS, Flaw
from support.random_clients import CHOICES, CLIENTS, FAMILY_CLIENTS, FAMILY_SCHEDULES, SCHEDULES, STORE
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
    hold,
    move_up,
    play,
    play_all,
    replace_text,
    resume,
    revoke,
    stop,
    watch,
)

from cancelmark.conformance.schedule import Choose, fifo
from cancelmark.impl.store import Store
from cancelmark.model.protocol import FAMILY

READY = Parts(ready=True)
WITH_FAMILY = Parts(protocol=FAMILY)


@settings(max_examples=effort(SCHEDULES // 16, SCHEDULES), deadline=None)
@given(CLIENTS, CHOICES, STORE, st.sampled_from([REAL, REAL, READY]))
def test_no_schedule_breaks_a_promise(clients: list[Do], choose: Choose, store: type[Store], parts: Parts) -> None:
    played = play(clients, choose, store, parts)
    assert not played.complaints, str(played)


@settings(max_examples=effort(FAMILY_SCHEDULES // 4, FAMILY_SCHEDULES), deadline=None)
@given(FAMILY_CLIENTS, CHOICES, STORE, st.sampled_from([WITH_FAMILY, WITH_FAMILY, Parts(ready=True, protocol=FAMILY)]))
@example([accept(), accept(), close("accept"), revoke("queued", of=2)], fifo, File, WITH_FAMILY)
def test_no_schedule_of_the_familys_calls_breaks_a_promise(
    clients: list[Do], choose: Choose, store: type[Store], parts: Parts,
) -> None:
    played = play(clients, choose, store, parts)
    assert not played.complaints, str(played)


# --- all schedules of small scenarios

A, B = accept(run_id=True), accept()


@pytest.mark.parametrize(("clients", "store", "preemptions", "schedules"), [
    ([A, cancel()], Memory, None, 126),
    ([A, B, cancel()], Memory, 2, 69),
    long([A, B, cancel()], Memory, 3, 311),
    ([accept(turn="grows too long"), cancel("requeue")], Memory, 2, 87),
    long([accept(turn="grows too long"), cancel("requeue")], Memory, 3, 338),
    ([accept(turn="calls a tool"), B, cancel("step")], Memory, 2, 72),
    long([accept(turn="calls a tool"), B, cancel("step")], Memory, 3, 249),
    ([A, A, clear_queue("queued")], Memory, 3, 98),
    ([accept(turn="grows too long"), accept("requeue"), close("accept", nth=2)], File, 1, 50),
    long([A, close(), cancel(), cancel()], Memory, 2, 425),
    long([A, cancel()], File, 2, 180),
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
@pytest.mark.parametrize(("store", "preemptions", "schedules"), [(Memory, 2, 18), (File, 1, 43)])
def test_what_is_accepted_while_the_server_closes_does_not_run(
    store: type[Store], preemptions: int, schedules: int,
) -> None:
    """A prompt that waits until it may enter is out of sight for long."""
    assert count_kept([A, close()], store, preemptions, READY) == schedules


@pytest.mark.rule("R16c")
@pytest.mark.parametrize(("clients", "store", "schedules"), [
    ([accept(turn="ignores a stop"), cancel("asked")], Memory, 39),
    long([accept(turn="ignores a stop"), cancel("asked")], File, 81),
    long([accept(turn="stops late"), cancel("asked")], File, 73),
    ([B, cancel("active")], File, 55),  # who watches is told of the cancel, too
    long([B, B, cancel("step")], File, 78),
], ids=str)
def test_who_watches_is_told_of_what_is_durable_and_sees_every_message_as_it_was_written(
    clients: list[Do], store: type[Store], schedules: int,
) -> None:
    """However a turn ends: abandoned, late, before it began, or with a prompt that was just folded into it."""
    assert count_kept([*clients, watch()], store, 1) == schedules


# --- and of the family's calls

INTERRUPT, REJECT = accept("active", mode="interrupt", run_id=True), accept(mode="reject")


@pytest.mark.parametrize(("clients", "store", "preemptions", "schedules"), [
    long([A, B, revoke(of=2)], Memory, 3, 56),
    ([A, A, revoke("queued", of=2)], Memory, 2, 37),
    long([A, A, stop("queued")], Memory, 2, 55),
    ([A, A, stop("queued", hold=True)], Memory, 2, 47),
    long([A, A, stop("active"), stop("active")], Memory, 2, 96),
    ([A, hold("accept")], Memory, None, 20),
    ([A, hold(), resume("queued"), hold("resume")], Memory, 2, 51),
    long([accept(turn="grows too long"), A, hold("requeue"), resume("finish")], Memory, 2, 132),
    ([A, A, replace_text("queued", of=2)], Memory, 2, 41),
    ([A, hold(), replace_text("hold", of=1), resume("replace")], Memory, 2, 56),
    ([A, A, move_up("queued", of=2), cancel("next")], Memory, 2, 92),
    ([A, INTERRUPT], Memory, 3, 19),
    ([A, INTERRUPT, B], Memory, 2, 32),
    ([A, INTERRUPT, revoke("active", of=2)], Memory, 2, 27),
    ([A, REJECT], Memory, None, 60),
    ([REJECT, REJECT], Memory, None, 36),
    ([A, hold(), REJECT], Memory, 2, 21),
    long([A, B, hold("active"), close("hold")], Memory, 2, 71),
    ([A, revoke("active", of=1)], File, 1, 30),
    long([A, A, replace_text("queued", of=2), watch()], File, 1, 91),
    ([A, INTERRUPT, watch()], File, 1, 55),
], ids=lambda value: getattr(value, "__name__", str(value)))
def test_every_schedule_of_the_familys_calls_keeps_every_promise(
    clients: list[Do], store: type[Store], preemptions: int | None, schedules: int,
) -> None:
    assert count_kept(clients, store, preemptions, WITH_FAMILY) == schedules


@pytest.mark.parametrize("flaw", FLAWS.values(), ids=FLAWS)
def test_some_schedule_shows_the_flaw(flaw: Flaw) -> None:
    """And none of the same clients complains of a runtime without it."""
    preemptions = 1 if flaw.store is File else 2
    schedules = play_all(flaw.clients, flaw.store, preemptions, flaw.parts)
    assert any(complaint.property == flaw.breaks for played in schedules for complaint in played.complaints)
    played = play(flaw.clients, store=flaw.store, parts=WITH_FAMILY)
    assert not played.complaints, str(played)
