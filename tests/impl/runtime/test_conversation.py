"""What a model hears: everything since the last summary, and no more of it is read than is looked at."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cancelmark.impl.models import (
    ChatMessage,
    Conversation,
    Delta,
    Failure,
    Finish,
    FinishReason,
    Model,
    ModelError,
    Role,
    Text,
    TextDelta,
    Tool,
)
from cancelmark.impl.models.chat_request import encode_request
from cancelmark.impl.models.scripted import ScriptedModel, demo_model
from cancelmark.impl.runtime import Runtime
from cancelmark.impl.runtime.conversation import LONGEST, PAGE, READ, SUMMARIZE, ConversationCache, read_back, summarize
from cancelmark.impl.runtime.messages import SUMMARY, said, since_summary, user_message
from cancelmark.impl.store import MemoryStore, MessageRecord, NewSession, PutMessage
from cancelmark.model.lifecycle import Outcome


def message(number: int, kind: str) -> MessageRecord:
    text = {"summary": SUMMARY + str(number), "system": f"be kind {number}", "empty": ""}.get(kind, f"word {number}")
    role = "system" if kind in ("summary", "system") else "assistant" if kind == "empty" else "user"
    parts = ({"type": "text", "data": {"text": text}},) if text else ()
    return MessageRecord(f"m{number}", "s", role, parts)


class Counting(MemoryStore):
    """A store that counts how many messages were read."""

    def __init__(self, messages: Sequence[MessageRecord] = ()) -> None:
        super().__init__()
        self.read = 0
        asyncio.run(self.write([NewSession("s"), *map(PutMessage, messages)]))

    async def messages(self, session_id: str, *, since: str | None = None, before: str | None = None,
                       last: int | None = None) -> list[MessageRecord]:
        found = await super().messages(session_id, since=since, before=before, last=last)
        self.read += len(found)
        return found


def heard(store: Counting, before: str, limit: int | None = None) -> list[ChatMessage]:
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
    """A model that hears the last so many messages, or all of them, and takes no more than its window."""

    name, provider = "listener", "test"

    def __init__(self, hears: int | None, window: int = 10**9) -> None:
        self.hears, self.window = hears, window
        self.heard: list[Sequence[ChatMessage]] = []

    async def step(self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = ()) -> AsyncGenerator[Delta, None]:
        self.heard.append(messages)
        if len(messages) > self.window:
            raise ModelError(Failure.CONTEXT_TOO_LONG, "too long")
        yield TextDelta("all of it" if messages[-1].text == SUMMARIZE else "yes")
        yield Finish(FinishReason.END_TURN)

    async def aclose(self) -> None:
        """Nothing is held."""


def reads(model: Model, past: int, prompts: int) -> float:
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


@pytest.mark.parametrize("model", [demo_model(pace=0), ScriptedModel(), ScriptedModel({"hello": []})])
def test_the_models_that_are_built_in_cost_the_same_in_a_long_session(model: Model) -> None:
    assert reads(model, 5000, 5) == 0


def test_a_conversation_that_has_become_long_is_summarized_before_the_model_has_to_say_so() -> None:
    model = Listener(None)
    reads(model, 10 * LONGEST, 3)
    first, answered, *others = model.heard
    assert (len(first), first[-1].text) == (READ + 2, SUMMARIZE)
    assert [said.text for said in answered] == [SUMMARY + "all of it", "hello"]
    assert [len(heard) for heard in others] == [3, 5], "and the next prompts go on from there"


def test_a_long_session_reads_no_more_than_a_shorter_one() -> None:
    assert reads(Listener(None), 10 * READ, 1) == reads(Listener(None), READ, 1)


def said_by(role: Role, text: str) -> ChatMessage:
    return ChatMessage(role, (Text(text),))


@pytest.mark.parametrize("window", [2, 3, 10, 50, 99])
def test_a_summary_is_made_of_as_much_as_fits(window: int) -> None:
    model = Listener(None, window)
    before = said_by(Role.SYSTEM, SUMMARY + "what came before")
    conversation = [before, *(said_by(Role.USER, f"word {number}") for number in range(100))]
    assert asyncio.run(summarize(model.step, conversation)) == Text(SUMMARY + "all of it")
    *_, last = model.heard
    assert last[0] is before, "what an earlier summary says is kept"
    assert list(last[1:-1]) == conversation[len(conversation) - len(last) + 2:], "the latest of the rest"
    assert window / 2 <= len(last) <= window


def test_a_summary_that_cannot_fit_at_all_is_given_up() -> None:
    model = Listener(None, 0)
    with pytest.raises(ModelError, match="too long"):
        asyncio.run(summarize(model.step, [said_by(Role.USER, "word")] * 100))
    assert [len(heard) for heard in model.heard] == [101, 51, 26, 13, 7, 4, 2, 1]


def test_others_run_while_a_long_session_is_read() -> None:
    store = Counting([message(number, "word") for number in range(10 * PAGE)])
    most = 0

    async def main() -> None:
        async def other() -> None:
            nonlocal most
            while True:
                before = store.read
                await asyncio.sleep(0)
                most = max(most, store.read - before)

        running = asyncio.ensure_future(other())
        await read_back(partial(store.messages, "s"))
        running.cancel()

    asyncio.run(main())
    assert 0 < most <= PAGE


# --- what is remembered from turn to turn

TURN = st.tuples(st.lists(st.sampled_from(["word", "word", "empty", "system", "summary"]), max_size=5),
                 st.sampled_from(["s", "other"]), st.booleans())


@settings(deadline=None)
@given(st.lists(TURN, min_size=1, max_size=12), st.sampled_from([0, 300, 10_000]))
async def test_what_is_remembered_is_what_would_be_read(turns: list[tuple[list[str], str, bool]], limit: int) -> None:
    """Whatever others have said meanwhile, whoever asks for an earlier place, and however little is remembered; and
    what a model has encoded of it is what it would encode."""
    store, memory, number = MemoryStore(), ConversationCache(limit), 0
    await store.write([NewSession("s"), NewSession("other")])
    for kinds, session, earlier in turns:
        prompts = []
        for kind in [*kinds, "word"]:
            number += 1
            said_now = message(number, kind)
            await store.write([PutMessage(MessageRecord(said_now.id, session, said_now.role, said_now.parts))])
            prompts.append(said_now.id)
        read = partial(store.messages, session)
        for prompt in (prompts[0], prompts[-1]) if earlier else (prompts[-1],):
            recalled = await memory.recall(session, read, prompt)
            expected = await read_back(read, prompt)
            assert list(recalled) == expected
            asked = ChatMessage(Role.USER, (Text("and now?"),))
            steps = Conversation([*recalled, asked], recalled.settled, recalled.kept)
            assert await encode_request("m", steps, []) == await encode_request("m", [*expected, asked], [])


def test_the_next_turn_reads_what_is_new_alone() -> None:
    async def main() -> list[int]:
        read = []
        async with Runtime(Listening(), store) as runtime:
            for number in range(50):
                before = store.read
                await (await runtime.accept("s", f"word {number}"))
                read.append(store.read - before)
        return read
    store = Counting()
    read = asyncio.run(main())
    assert max(read[2:]) == 3, "the last that is known, and the answer and the prompt that came after it"


class Listening:
    """A model that hears everything, and says yes."""

    name, provider, hears = "listening", "test", None

    async def step(self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = ()) -> AsyncGenerator[Delta, None]:
        yield TextDelta("yes")
        yield Finish(FinishReason.END_TURN)

    async def aclose(self) -> None:
        """Nothing is held."""
