"""The built-in model as one plays with it, without waiting: its pauses are counted and not slept."""

import asyncio
from typing import Any

import pytest

from cancelmark.impl.models import ChatMessage, Failure, ModelError, Role, Text, TextDelta
from cancelmark.impl.models.scripted import demo_model


def played(prompt: str, pace: float = 1.0) -> tuple[str, float]:
    """What it says, and how long it pauses on the way."""
    paused: list[float] = []
    model = demo_model(pace)

    async def sleep(seconds: float) -> None:
        paused.append(seconds)

    async def main() -> str:
        model._sleep = sleep
        steps: Any = model.step([ChatMessage(Role.USER, (Text(prompt),))])
        return "".join([delta.text async for delta in steps if isinstance(delta, TextDelta)])

    return asyncio.run(main()), sum(paused)


def test_it_repeats_what_it_hears_and_takes_its_time() -> None:
    said, seconds = played("hello there")
    assert said.startswith("You said: hello there")
    assert seconds >= 4
    assert played("hello there", pace=0.5) == (said, seconds / 2)


def test_slow_takes_ten_times_as_long_and_fast_takes_none() -> None:
    said, seconds = played("hello")
    assert played("slow: hello") == (said, 10 * seconds)
    assert played("Fast:hello") == (said, 0)


def test_it_fails_in_the_middle_if_it_is_told_to() -> None:
    with pytest.raises(ModelError, match="because it was told to") as failed:
        played("fail: hello")
    assert failed.value.kind is Failure.UNAVAILABLE


def test_a_colon_alone_is_no_directive() -> None:
    assert played("note: this")[0].startswith("You said: note: this")
    assert played("slow")[0].startswith("You said: slow")


async def test_a_stubborn_answer_does_not_let_itself_be_stopped() -> None:
    model = demo_model(0.001)
    steps = model.step([ChatMessage(Role.USER, (Text("stubborn: hello"),))])
    first = asyncio.ensure_future(anext(steps))
    await asyncio.sleep(0)
    first.cancel()
    assert isinstance(await first, TextDelta)
    assert model.ignored == 1
    async for _ in steps:
        pass
