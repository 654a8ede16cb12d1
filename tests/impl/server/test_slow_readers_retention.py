"""A reader of a stream that is slow, and not away, gets each end once while the log is shortened; it is told no gap."""

import asyncio
import re
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from starlette.types import Message
from support.budget import effort

from cancelmark.conformance.schedule import run
from cancelmark.impl.models.scripted import ScriptedModel
from cancelmark.impl.runtime.events import PAGE, Broker, Subscription
from cancelmark.impl.runtime.retention import Keep, drop_events
from cancelmark.impl.runtime.workspace import Watch, Workspaces
from cancelmark.impl.server.stream import BRIEF, STALL, EventStream, WorkspaceStreams
from cancelmark.impl.store import TERMINAL, AppendEvent

# Seconds that the reader takes for its next pieces; below STALL, so that it is never disconnected.
DELAYS = st.lists(st.sampled_from([0, BRIEF / 2, 2 * BRIEF, STALL - 1]), max_size=8)
# How many ends are published, how many events are kept then, and how long nothing happens.
ROUNDS = st.lists(st.tuples(st.integers(0, PAGE + 3), st.integers(1, 9), st.sampled_from([0, 1, 2 * BRIEF, STALL])),
                  min_size=1, max_size=8)


def play(delays: list[float], rounds: list[tuple[int, int, float]]) -> None:
    async def main() -> None:
        got, gone, waits = b"", asyncio.Event(), list(delays)

        async def receive() -> Message:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            nonlocal got
            if "body" in message:
                await asyncio.sleep(waits.pop(0) if waits else 0)
                got += message["body"]

        workspaces = Workspaces(ScriptedModel())
        workspace = await workspaces.open("/a")
        await workspaces.ready(workspace)
        session = (await workspace.create_session("s")).id
        store, broker = workspace.runtime.store, workspace.runtime.broker
        stream = EventStream(workspace, WorkspaceStreams(workspace.offsets), "reader", None)
        reading = asyncio.ensure_future(stream({"type": "http", "state": {"abort": gone.set}}, receive, send))
        await asyncio.sleep(0.1)
        seq = 0
        for number, kept, pause in rounds:
            await store.write([AppendEvent(session, TERMINAL, {"seq": seq + n}, "r") for n in range(number)])
            seq += number
            await drop_events(store, broker, Keep(number=kept), 0)
            await asyncio.sleep(pause)
        await asyncio.sleep(STALL * (len(delays) + 1))
        assert not gone.is_set(), "it is slow, and was disconnected"
        gone.set()
        await reading
        await workspaces.close()
        assert b'"gap"' not in got, "a gap was told to a reader that was not away"
        assert [int(n) for n in re.findall(rb'run_complete.*?"seq":(\d+)', got)] == list(range(seq)), "each end once"

    run(main(), max_steps=200_000)


@pytest.mark.rule("R18c", "R29e")
@settings(max_examples=effort(40, 400), suppress_health_check=[HealthCheck.too_slow])
@given(DELAYS, ROUNDS)
def test_a_slow_reader_gets_each_end_however_the_log_is_shortened(
    delays: list[float], rounds: list[tuple[int, int, float]],
) -> None:
    play(delays, rounds)


def hold_for_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Broker, "raise_floor", lambda self, wanted: setattr(self, "floor", max(self.floor, min(
        wanted, self.latest - 1))) or self.floor)


def hold_for_the_quick(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Broker, "pause", Broker.unsubscribe)


def leave_when_slow(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Subscription, "pause", Subscription.close)


def stay_at_rest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Watch, "resume", lambda self: None)


@pytest.mark.parametrize("bug", [hold_for_nobody, hold_for_the_quick, leave_when_slow, stay_at_rest])
def test_a_stream_that_loses_ends_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch,
) -> None:
    bug(monkeypatch)
    search = settings(max_examples=effort(40), database=None, derandomize=True, phases=[Phase.generate],
                      suppress_health_check=list(HealthCheck))(given(DELAYS, ROUNDS)(play))
    with pytest.raises(AssertionError, match=r"a gap was told|each end once"):
        search()
