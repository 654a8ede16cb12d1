"""The fake language model server: over real sockets, to our own client of its wire, to a raw one, and to our server."""

import asyncio
import json
import socket
from collections.abc import Sequence
from typing import Any

import httpx2 as httpx
import pytest
from support.servers import web

from cancelmark.conformance.adapter.fake_llm import SIDE, TURN, Ending, FakeModel, ModelRequest
from cancelmark.impl.models import ChatMessage, Failure, Finish, FinishReason, ModelError, Role, Text, TextDelta
from cancelmark.impl.models.openai import OpenAIModel
from cancelmark.impl.runtime import Runtime
from cancelmark.impl.store import MemoryStore


async def ask(
    http: httpx.AsyncClient, *texts: str, model: str = TURN, stream: bool = False, **more: Any,
) -> httpx.Response:
    """Texts are the user's and the assistant's in turn, so that the last of an odd number is a prompt."""
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    return await http.post("chat/completions", json={"model": model, "stream": stream, "messages": messages, **more})


def said(response: httpx.Response) -> str:
    return str(response.json()["choices"][0]["message"]["content"])


async def step(model: OpenAIModel, *texts: str) -> tuple[str, Finish]:
    deltas = [delta async for delta in model.step([ChatMessage(Role.USER, (Text(text),)) for text in texts])]
    assert isinstance(deltas[-1], Finish)
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)), deltas[-1]


async def test_our_client_streams_an_answer_that_repeats_the_prompt() -> None:
    async with FakeModel() as fake:
        model = OpenAIModel("turn", base_url=fake.url, api_key="none")
        text, finish = await step(model, "hello  there\nt1 \N{GRINNING FACE}")
        await model.aclose()
        assert text == "I heard: hello  there\nt1 \N{GRINNING FACE}"
        assert finish.reason is FinishReason.END_TURN
        assert finish.usage is not None
        assert (fake.count_starts("t1"), fake.count_broken_off("t1")) == (1, 0)
        assert fake.turns_of("t1")[0].ending is Ending.ANSWERED
        assert fake.asked[0].stream


async def test_our_client_is_failed_in_a_way_that_is_not_tried_again() -> None:
    async with FakeModel() as fake:
        fake.fail("t1")
        model = OpenAIModel("turn", base_url=fake.url, api_key="none")
        with pytest.raises(ModelError, match="t1") as failure:
            await step(model, "hello t1")
        await model.aclose()
        assert failure.value.kind is Failure.BAD_REQUEST
        assert fake.count_starts("t1") == 1
        assert fake.turns_of("t1")[0].ending is Ending.FAILED


async def test_a_held_turn_says_nothing_until_it_is_released() -> None:
    async with FakeModel() as fake, web(fake.url) as http:
        fake.hold("t1")
        held = asyncio.create_task(ask(http, "one t1"))
        await fake.until_started("t1")
        assert said(await ask(http, "two t2")) == "I heard: two t2"
        assert not held.done()
        assert fake.turns_of("t1")[0].ending is None
        fake.release("t1")
        assert said(await held) == "I heard: one t1"
        assert said(await ask(http, "three t1")) == "I heard: three t1"
        assert fake.count_starts("t1") == 2


async def test_a_held_turn_can_be_failed_and_a_failing_one_released() -> None:
    async with FakeModel() as fake, web(fake.url) as http:
        fake.hold("t1")
        held = asyncio.create_task(ask(http, "one t1"))
        await fake.until_started("t1")
        fake.fail("t1")
        refused = await held
        assert refused.status_code == 400
        assert "one t1" in refused.json()["error"]["message"]
        fake.release("t1")
        assert (await ask(http, "one t1")).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_a_turn_that_the_client_drops_is_closed(stream: bool) -> None:
    async with FakeModel() as fake, web(fake.url) as http:
        fake.hold("t1")
        held = asyncio.create_task(ask(http, "one t1", stream=stream))
        await fake.until_started("t1")
        assert fake.count_broken_off("t1") == 0
        held.cancel()
        await fake.until_closed("t1")
        turn, = fake.turns_of("t1")
        assert turn.ending is Ending.CLOSED
        assert turn.end is not None
        assert turn.begin <= turn.end
        fake.release("t1")
        assert (await ask(http, "again t1", stream=stream)).status_code == 200
        assert (fake.count_starts("t1"), fake.count_broken_off("t1")) == (2, 1)


async def test_tokens_are_whole_words() -> None:
    async with FakeModel() as fake, web(fake.url) as http:
        fake.hold("t1")
        for text in ("t10", "xt1", "t1-1", "T1"):
            assert (await ask(http, text)).status_code == 200
        assert fake.count_starts("t1") == 0
        fake.release("t1")
        await ask(http, "(t1)…")
        assert fake.count_starts("t1") == 1


@pytest.mark.parametrize("token", ["", "two words", "a.b", " t1"])
def test_a_token_that_is_no_word_is_refused(token: str) -> None:
    fake = FakeModel()
    for steer in (fake.hold, fake.release, fake.fail, fake.count_starts, fake.count_broken_off):
        with pytest.raises(ValueError, match="invalid token"):
            steer(token)


async def test_the_last_user_message_says_whose_turn_it_is() -> None:
    async with FakeModel() as fake, web(fake.url) as http:
        fake.hold("t1")
        assert said(await ask(http, "one t1", "an answer to t1", "two t2")) == "I heard: two t2"
        assert (fake.count_starts("t1"), fake.count_starts("t2")) == (0, 1)
        parts = [{"type": "text", "text": "three t3"}, {"type": "image_url", "image_url": {"url": "data:,"}},
                 {"type": "text", "text": "four t4"}]
        unanswered = [{"role": "user", "content": "one t1"}, {"role": "user", "content": parts}]
        await ask(http, messages=[{"role": "system", "content": "t5"}, *unanswered])
        assert [fake.count_starts(t) for t in ("t1", "t3", "t4", "t5")] == [0, 1, 1, 0]
        assert fake.turns[-1].asked.unanswered == ("one t1", "three t3\nfour t4")


async def test_several_prompts_in_one_message_are_held_while_one_is() -> None:
    async with FakeModel() as fake, web(fake.url) as http:
        fake.hold("t1")
        fake.hold("t2")
        both = asyncio.create_task(ask(http, "t1 and t2"))
        await fake.until_started("t1")
        fake.release("t1")
        await ask(http, "something else")
        assert not both.done()
        fake.release("t2")
        assert said(await both) == "I heard: t1 and t2"


@pytest.mark.parametrize("over", [True, False])
async def test_the_answer_of_a_tool_goes_on_with_its_turn_unless_that_is_over(over: bool) -> None:
    """With the words of another prompt behind it, as after a cancel, or as after folding."""
    async with FakeModel() as fake, web(fake.url) as http:
        fake.is_over = lambda token, texts: over and "two t2" in texts
        fake.hold("t1")
        fake.hold("t2")
        fake.again("t1")
        called = (await ask(http, "one t1")).json()["choices"][0]["message"]
        fake.release("t1")
        fake.release("t2")
        answer = {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "done"}
        both = [{"role": "user", "content": "one t1"}, called, answer, {"role": "user", "content": "two t2"}]
        await http.post("chat/completions", json={"model": "turn", "messages": both})
        assert (fake.count_starts("t1"), fake.count_starts("t2")) == ((1, 1) if over else (2, 0))
        assert fake.heard("t2") == "two t2"


async def test_who_has_ended_is_conversation_in_one_message_with_another_and_alone_is_started_again() -> None:
    async with FakeModel() as fake, web(fake.url) as http:
        fake.hold("t1")
        fake.finish("t1")
        assert said(await ask(http, "one t1\ntwo t2 t3", model="turn")) == "I heard: one t1\ntwo t2 t3"
        assert fake.count_starts("t1") == 1  # nobody steers t2 or t3: they are words as any other
        fake.release("t2")
        assert said(await ask(http, "one t1\ntwo t2")) == "I heard: t2"
        assert (fake.count_starts("t1"), fake.count_starts("t2")) == (1, 2)
        await ask(http, "one t1")
        assert fake.count_starts("t1") == 2


@pytest.mark.parametrize("for_good", [True, False])
async def test_who_was_broken_off_for_good_is_conversation_in_one_message_with_another(for_good: bool) -> None:
    async with FakeModel() as fake, web(fake.url) as http:
        fake.breaks_off_for_good = for_good
        fake.hold("t1")
        held = asyncio.create_task(ask(http, "one t1"))
        await fake.until_started("t1")
        held.cancel()
        await fake.until_closed("t1")
        fake.release("t1")
        fake.release("t2")
        await ask(http, "one t1\ntwo t2")
        assert (fake.count_starts("t1"), fake.count_starts("t2")) == (1 if for_good else 2, 1)
        await ask(http, "one t1")
        assert fake.count_starts("t1") == (2 if for_good else 3)


async def test_who_has_no_turn_of_its_own_is_taken_in_by_the_first_that_brings_its_text() -> None:
    def user(*texts: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": text} for text in texts]

    async with FakeModel() as fake, web(fake.url) as http:
        for token in ("t1", "t2", "t3", "t4", "t5"):
            fake.release(token)
        await ask(http, messages=user("one t1"))
        await ask(http, messages=user("one t1", "two t2 and more", "three t3"))
        assert fake.taken_in == {"t2": "t3"}  # t1 had a turn of its own, and nobody steers "more"
        await ask(http, messages=user("two t2", "nobody's"))
        await ask(http, messages=[*user("four t4"), {"role": "assistant", "content": "yes"}, *user("five t5")])
        await ask(http, messages=user("two t2", "five t5"))
        assert fake.taken_in == {"t2": "t3"}


async def test_titles_and_steps_after_a_tool_call_are_no_turns() -> None:
    async with FakeModel() as fake, web(fake.url) as http:
        fake.hold("t1")
        assert said(await ask(http, "a title for: one t1", model=SIDE)) == "A side answer."
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        messages = [{"role": "user", "content": "one t1"},
                    {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "c", "content": "found t1"}]
        assert said(await ask(http, messages=messages)) == "A side answer."
        assert fake.count_starts("t1") == 0
        assert [asked.model for asked in fake.asked] == [SIDE, TURN]


async def test_a_server_with_one_model_for_everything_needs_a_judge_of_its_own() -> None:
    async with FakeModel(is_turn=lambda asked: asked.tools > 0) as fake, web(fake.url) as http:
        await ask(http, "a title for t1")
        await ask(http, "t1", tools=[{"type": "function", "function": {"name": "f"}}])
        assert fake.count_starts("t1") == 1


async def test_the_wire_is_as_others_expect_it() -> None:
    async with FakeModel() as fake, web(fake.url) as http:
        assert fake.url.startswith("http://127.0.0.1:")
        assert fake.url.endswith("/v1")
        models = (await http.get("models")).json()
        assert [model["id"] for model in models["data"]] == [TURN, SIDE]
        for usage in (False, True):
            streamed = await ask(http, "a b", stream=True, stream_options={"include_usage": usage})
            assert streamed.headers["content-type"].startswith("text/event-stream")
            *events, done = streamed.text.removesuffix("\n\n").split("\n\n")
            assert done == "data: [DONE]"
            chunks = [json.loads(event.removeprefix("data: ")) for event in events]
            assert ("usage" in chunks[-1]) is usage
            finish, = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]
                       if choice["finish_reason"]]
            assert finish == "stop"
            assert len(chunks) > 4  # the answer comes in pieces


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"messages": 1}', b'{"messages": [1]}', b"\xff",
                                  b'{"messages": [{"content": "no role"}]}'])
async def test_what_is_no_request_is_refused_and_counts_for_nothing(body: bytes) -> None:
    async with FakeModel() as fake, web(fake.url) as http:
        refused = await http.post("chat/completions", content=body)
        assert refused.status_code == 400
        assert "malformed chat completions request" in refused.json()["error"]["message"]
        assert not fake.asked
        assert (await http.get("nothing")).json()["error"]["message"] == "GET /v1/nothing: Not Found"
        assert (await http.get("chat/completions")).status_code == 405


CHUNKED = (b"POST /v1/chat/completions?a=b HTTP/1.1\r\nhost: x\r\nTransfer-Encoding: chunked\r\n"
           b"Expect: 100-continue\r\n\r\n")
BODY = b'{"messages": [{"role": "user", "content": "one t1"}]}'


async def exchange(fake: FakeModel, *pieces: bytes) -> bytes:
    """All that is answered on one connection to these pieces, each sent by itself."""
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(fake.url).port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_a_body_may_come_in_chunks_after_the_head_was_taken() -> None:
    async with FakeModel() as fake:
        chunks = (b"%x;why=not\r\n%b\r\n" % (len(piece), piece) for piece in (BODY[:7], BODY[7:]))
        answer = await exchange(fake, CHUNKED[:9], CHUNKED[9:], *chunks, b"0\r\nTrailer: 1\r\n\r\n", b"more")
        assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
        assert b"I heard: one t1" in answer
        assert fake.count_starts("t1") == 1


@pytest.mark.parametrize("sent", [
    b"\r\n\r\n", b"nonsense\r\n\r\n", b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
    CHUNKED + b"nothing\r\n"])
async def test_what_is_no_http_is_refused(sent: bytes) -> None:
    async with FakeModel() as fake:
        assert b"HTTP/1.1 400 Bad Request\r\n" in await exchange(fake, sent)
        assert not fake.asked


async def test_who_has_asked_for_nothing_does_not_hold_up_the_leaving() -> None:
    for sent in (b"", CHUNKED + b"5\r\n"):
        async with FakeModel() as fake:
            reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(fake.url).port)
            writer.write(sent)
            assert (await ask_once(fake)).status_code == 200
            leaving = asyncio.create_task(reader.read())
        await leaving
        writer.close()


async def ask_once(fake: FakeModel) -> httpx.Response:
    async with web(fake.url) as http:
        return await ask(http, "hello")


async def test_leaving_ends_what_is_held_and_frees_the_port() -> None:
    fake = FakeModel()
    async with fake, web(fake.url) as http:
        fake.hold("t1")
        held = asyncio.create_task(ask(http, "t1"))
        await fake.until_started("t1")
        await fake.__aexit__(None, None, None)
        assert (await held).status_code == 400
    port = httpx.URL(fake.url).port
    assert port is not None
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    async with FakeModel(port) as again:
        assert again.url == fake.url
        with pytest.raises(OSError, match=f"port {port}.*choose another port, or 0"):
            await FakeModel(port).__aenter__()


async def test_our_runtime_is_steered_from_outside() -> None:
    async with FakeModel() as fake:
        model = OpenAIModel("turn", base_url=fake.url, api_key="none")
        async with Runtime(model, MemoryStore()) as runtime:
            await runtime.create_session("s")
            for token in ("t1", "t2", "t3"):
                fake.hold(token)
            first = await runtime.accept("s", "one t1", run_id="r1")
            await fake.until_started("t1")
            second = await runtime.accept("s", "two t2", run_id="r2")
            await runtime.cancel("s")
            third = await runtime.accept("s", "three t3", run_id="r3")
            assert [(await end).outcome.value for end in (first, second)] == ["canceled", "canceled"]
            await fake.until_closed("t1")
            await fake.until_started("t3")
            fake.fail("t3")
            assert "t3" in ((await third).error or "")
            fourth = await runtime.accept("s", "four t4", run_id="r4")
            assert (await fourth).text == "I heard: four t4"
            assert [fake.count_starts(t) for t in ("t1", "t2", "t3", "t4")] == [1, 0, 1, 1]
            assert [fake.count_broken_off(t) for t in ("t1", "t2", "t3", "t4")] == [1, 0, 0, 0]
        await model.aclose()


def test_what_was_asked_last_is_the_prompt() -> None:
    def asked(*roles: str) -> ModelRequest:
        return ModelRequest("m", roles, tuple(f"{role}{n}" for n, role in enumerate(roles)), 0, True, False)

    def told(roles: Sequence[str]) -> tuple[str, tuple[str, ...]]:
        return asked(*roles).prompt, asked(*roles).unanswered

    assert told(()) == ("", ())
    assert told(("system", "user", "system")) == ("user1", ("user1",))
    assert told(("user", "assistant", "tool")) == ("user0", ())
    assert told(("user", "assistant", "user", "user")) == ("user3", ("user2", "user3"))
