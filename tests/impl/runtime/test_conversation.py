"""What a model hears: everything since the last summary, and no more of it is read than is looked at."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cancelmark.impl.models import Delta, Failure, Finish, FinishReason, ModelError, TextDelta, Tool
from cancelmark.impl.models import Message as Said
from cancelmark.impl.runtime import Runtime
from cancelmark.impl.runtime.conversation import PAGE, Conversation, Earlier
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

    def messages(self, session_id: str, *, since: str | None = None, before: str | None = None,
                 last: int | None = None) -> list[Message]:
        found = super().messages(session_id, since=since, before=before, last=last)
        self.read += len(found)
        return found


def conversation(store: Counting, own: int) -> Conversation:
    """That of a turn whose own messages are the last so many."""
    everything = MemoryStore.messages(store, "s")
    before, since = everything[:len(everything) - own], everything[len(everything) - own:]
    return Conversation(Earlier(lambda **how: store.messages("s", **how), since[0].id) if before else None, since)


@given(st.lists(st.sampled_from(["word", "word", "empty", "system", "summary"]), min_size=1, max_size=3 * PAGE),
       st.integers(1, 5))
def test_it_is_everything_since_the_last_summary_in_order(kinds: list[str], own: int) -> None:
    messages = [message(number, kind) for number, kind in enumerate([*kinds, *["word"] * own])]
    heard = [said(m) for m in since_summary(messages) if said(m).parts]
    store = Counting(messages)
    assert list(conversation(store, own)) == heard
    assert list(reversed(conversation(store, own))) == heard[::-1]
    assert len(conversation(store, own)) == len(heard)
    assert conversation(store, own)[0] == heard[0]
    assert conversation(store, own)[-1] == heard[-1]
    assert conversation(store, own)[1:-1] == heard[1:-1]


def test_no_more_is_read_than_is_looked_at() -> None:
    store = Counting([message(number, "word") for number in range(10 * PAGE)])
    talk = conversation(store, own=2)
    assert (talk[-1].text, talk[-2].text, store.read) == (f"word {10 * PAGE - 1}", f"word {10 * PAGE - 2}", 0)
    latest = reversed(talk)
    assert [next(latest).text for _ in range(3)][-1] == f"word {10 * PAGE - 3}"
    assert store.read == PAGE
    assert len(talk) == 10 * PAGE
    assert store.read == 10 * PAGE - 2, "and nothing is read twice"


def test_nothing_is_read_beyond_the_summary() -> None:
    store = Counting([message(number, "summary" if number == 10 * PAGE else "word") for number in range(11 * PAGE)])
    assert len(conversation(store, own=1)) == PAGE
    assert store.read <= 2 * PAGE


class Listener:
    """A model that looks at the last so many messages."""

    name, provider = "listener", "test"

    def __init__(self, looks_at: int, window: int = 10**9) -> None:
        self.looks_at, self.window = looks_at, window

    async def step(self, messages: Sequence[Said], tools: Sequence[Tool] = ()) -> AsyncGenerator[Delta, None]:
        for _, _ in zip(range(self.looks_at), reversed(messages)):
            pass
        if self.looks_at > self.window and len(messages) > self.window and "Summarize" not in messages[-1].text:
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
    assert reads(Listener(5), 5000, 5) == PAGE


def test_a_model_that_hears_everything_is_bounded_by_its_window() -> None:
    """Each prompt adds two messages. When they are too many a summary takes their place, and reading starts anew."""
    assert reads(Listener(10**9, window=PAGE), 5000, 200) < 3 * PAGE + 5000 / 200 * 3
