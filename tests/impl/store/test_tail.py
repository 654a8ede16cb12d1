"""The end of the log, in memory: what it answers is what the whole log would."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cancelmark.impl.store import TERMINAL, AppendEvent, DropEvent, Event, NewSession, SqliteStore, tail
from cancelmark.impl.store.tail import Tail

SIZES = st.sampled_from((1, 10, tail.SIZE // 2, tail.SIZE, tail.SIZE + 1))
STEPS = st.lists(st.tuples(st.sampled_from((1, 1, 1, 2)), SIZES, st.sampled_from(("s", "t")), st.booleans()))


@given(STEPS, st.integers(0, 9), st.integers(0, 9), st.sampled_from((None, "s")), st.booleans(),
       st.none() | st.integers(0, 3))
def test_a_tail_answers_as_the_log_or_not_at_all(
    steps: list[tuple[int, int, str, bool]], after: int, until: int, session: str | None, terminal: bool,
    limit: int | None,
) -> None:
    end, log, latest = Tail(), list[Event](), 0
    for step, size, name, is_end in steps:
        latest += step
        log.append(Event(latest, name, None, TERMINAL if is_end else "other", {}))
        end = end.grow([(log[-1], size)])
        assert sum(step[1] for step in steps[len(log) - len(end.events):len(log)]) == end.size <= tail.SIZE
        assert end.latest == latest
        assert end.find(latest, latest, None, False, None) == []
    found = end.find(after, until, session, terminal, limit)
    assert found is None or found == [
        event for event in log if after < event.id <= until and session in (None, event.session_id)
        and (event.terminal or not terminal)][:limit]
    assert end.find(after, None, session, terminal, limit) is None


async def test_the_latest_events_are_found_without_the_database_and_what_is_dropped_is_not(tmp_path: Path) -> None:
    store, read = SqliteStore(tmp_path / "a.db"), list[str]()
    store._reader.set_trace_callback(read.append)
    await store.write([NewSession("s")])
    for number in range(1, 4):
        await store.write([AppendEvent("s", TERMINAL, {"n": number})])
        (event,) = await store.events(number - 1, until=number, session="s")
        assert event.payload == {"n": number}
    assert read == []
    await store.write([DropEvent(1)])
    assert [event.id for event in await store.events(0, until=3)] == [2, 3]
    assert len(read) == 1
    await store.write([AppendEvent("s", TERMINAL, {"n": 4})])
    assert [event.id for event in await store.events(0, until=4)] == [2, 3, 4]
    store.close()
    with pytest.raises(Exception, match="closed"):
        await store.events(3, until=4)
