"""A call that is made again: at once at first, and never in a hot loop."""

import asyncio

import pytest

from cancelmark.impl.runtime.refusals import PAUSES, Closing, Stale, repeated_on


def test_a_call_that_stays_in_vain_is_made_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    slept, refusals = list[float](), iter([Stale("")] * 6)

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    @repeated_on(Stale)
    async def call() -> str:
        for refusal in refusals:
            raise refusal
        return "done"

    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert asyncio.run(call()) == "done"
    assert slept == [*PAUSES, PAUSES[-1], PAUSES[-1]]
    assert list(PAUSES) == sorted(PAUSES)
    assert PAUSES[-1] >= 50 * PAUSES[0]


def test_any_other_refusal_is_told_at_once() -> None:
    @repeated_on(Stale)
    async def call() -> None:
        raise Closing("the server closes")

    with pytest.raises(Closing):
        asyncio.run(call())
