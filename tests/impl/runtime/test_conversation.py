"""What a model hears: everything since the last summary, and no more of it is read than is looked at."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cancelmark.impl.models import Delta, Failure, Finish, FinishReason, ModelError, TextDelta, Tool
from cancelmark.impl.models import Message as Said
from cancelmark.impl.runtime import Runtime
from cancelmark.impl.runtime.conversation import PAGE, read_back
from cancelmark.impl.runtime.messages import SUMMARY, said, since_summary, user_message
from cancelmark.impl.store import MemoryStore, Message, NewSession, PutMessage
from cancelmark.model.lifecycle import Outcome


def message(number: int, kind: str) -> Message:
    text = {"summary": SUMMARY + str(number), "system": f"be kind {number}", "empty": ""}.get(kind, f"word {number}")
    role = "system" if kind in ("summary", "system") else "assistant" if kind == "empty" else "user"
    parts = ({"type": "text", "data": {"text": text}},) if text else ()
    return Message(f"m{number}", "s", role, parts)


class Counting(MemoryStore):
    """A store that counts how many messages were read."""

    def __init__(self, messages: Sequence[Message] = ()) -> None:
        super().__init__()
        self.read = 0
        asyncio.run(self.write([NewSession("s"), *map(PutMessage, messages)]))

    async def messages(self, session_id: str, *, since: str | None = None, before: str | None = None,
                       last: int | None = None) -> list[Message]:
        found = await super().messages(session_id, since=since, before=before, last=last)
        self.read += len(found)
        return found


def heard(store: Counting, before: str, limit: int | None = None) -> list[Said]:
    return asyncio.run(read_back(partial(store.messages, "s"), before, limit))


@given(st.lists(st.sampled_from(["word", "word", "empty", "system", "summary"]), min_size=1, max_size=3 * PAGE),
       st.one_of(st.none(), st.integers(0, 2 * PAGE)))
def test_it_is_everything_since_the_last_summary_in_order(kinds: list[str], limit: int | None) -> None:
    messages = [message(number, kind) for number, kind in enumerate([*kinds, "word"])]
    expected = [said(m) for m in since_summary(messages[:-1]) if said(m).parts]
    if limit is not None:
        expected = expected[max(0, len(expected) - limit):]
    assert heard(Counting(messages), messages[-1].id, limit) == expected


def test_no_more_is_read_than_is_looked_at() -> None:
    store = Counting([message(number, "word") for number in range(10 * PAGE)])
    assert [m.text for m in heard(store, f"m{10 * PAGE - 1}", 3)] == [f"word {10 * PAGE - n}" for n in (4, 3, 2)]
    assert store.read == 3
    assert heard(store, f"m{10 * PAGE - 1}", 0) == []
    assert store.read == 3
    assert len(heard(store, f"m{10 * PAGE - 1}")) == 10 * PAGE - 1
    assert store.read == 10 * PAGE + 2, "and nothing is read twice"


def test_nothing_is_read_beyond_the_summary() -> None:
    store = Counting([message(number, "summary" if number == 10 * PAGE else "word") for number in range(11 * PAGE)])
    assert len(heard(store, f"m{11 * PAGE - 1}")) == PAGE - 1
    assert store.read <= 2 * PAGE


class Listener:
    """A model that hears the last so many messages, or all of them."""

    name, provider = "listener", "test"

    def __init__(self, hears: int | None, window: int = 10**9) -> None:
        self.hears, self.window = hears, window

    async def step(self, messages: Sequence[Said], tools: Sequence[Tool] = ()) -> AsyncGenerator[Delta, None]:
        if len(messages) > self.window and "Summarize" not in messages[-1].text:
            raise ModelError(Failure.CONTEXT_TOO_LONG, "too long")
        yield TextDelta("yes")
        yield Finish(FinishReason.END_TURN)

    async def aclose(self) -> None:
        """Nothing is held."""


def reads(model: Listener, past: int, prompts: int) -> float:
    """Messages that are read for each prompt in a session with so many messages before."""
    store = Counting([user_message("s", 10**6 + number, "x") for number in range(past)])

    async def main() -> None:
        async with Runtime(model, store) as runtime:
            for _ in range(prompts):
                assert (await (await runtime.accept("s", "hello"))).outcome is Outcome.END_TURN

    asyncio.run(main())
    return store.read / prompts


@pytest.mark.parametrize("past", [0, 10, 5000])
def test_a_prompt_reads_nothing_of_its_session_if_its_model_does_not_look(past: int) -> None:
    assert reads(Listener(1), past, 5) == 0


def test_a_model_that_looks_a_little_back_costs_the_same_in_a_long_session() -> None:
    assert reads(Listener(5), 5000, 5) == 4, "all but the prompt"


def test_a_model_that_hears_everything_is_bounded_by_its_window() -> None:
    """Each prompt adds two messages. When they are too many a summary takes their place, and reading starts anew."""
    assert reads(Listener(None, window=PAGE), 5000, 200) < 3 * PAGE + 5000 / 200 * 3
