"""A call that is made again: at once at first, and never in a hot loop."""

import asyncio

import pytest

from cancelmark.impl.runtime.refusals import PAUSES, pause


async def test_a_call_that_stays_in_vain_is_made_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    slept = list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    for attempts in range(1, 7):
        await pause(attempts)
    assert slept == [*PAUSES, PAUSES[-1], PAUSES[-1]]
    assert list(PAUSES) == sorted(PAUSES)
    assert PAUSES[-1] >= 50 * PAUSES[0]
