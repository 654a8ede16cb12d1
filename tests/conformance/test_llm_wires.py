"""The fake language model on each of its wires: held, answered, failed, and with a tool call, streamed and not."""

import asyncio
import json
from typing import Any

import httpx2 as httpx
import openai
import pytest

from cancelmark.conformance.adapter.fake_llm import FakeModel
from cancelmark.conformance.llm import WIRES

PATHS = {wire.name: path.removeprefix("/v1/") for path, wire in WIRES.items()}


def body(wire: str, *texts: str, stream: bool = False, calls: str | None = None) -> dict[str, Any]:
    """A request: the user's and the assistant's texts in turn; with `calls`, the answer to that tool call last."""
    roles = ("user", "assistant")
    said: list[dict[str, Any]] = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    behind: dict[str, list[dict[str, Any]]] = {
        "chat completions": [{"role": "assistant", "content": None, "tool_calls": [
            {"id": calls, "type": "function", "function": {"name": "t", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": calls, "content": "done"}],
        "responses": [{"type": "function_call", "call_id": calls, "name": "t", "arguments": "{}"},
                      {"type": "function_call_output", "call_id": calls, "output": "done"}],
        "messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": calls, "name": "t", "input": {}}]},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": calls, "content": "done"}]}],
    }
    said += behind[wire] if calls else []
    return {"model": "turn", "stream": stream, ("input" if wire == "responses" else "messages"): said}


def text_in(wire: str, response: httpx.Response, stream: bool) -> str:
    if not stream:
        told = response.json()
        match wire:
            case "chat completions":
                return str(told["choices"][0]["message"]["content"])
            case "responses":
                return str(told["output"][0]["content"][0]["text"])
        return str(told["content"][0]["text"])
    events = [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines()
              if line.startswith("data: {")]
    match wire:
        case "chat completions":
            deltas = [choice["delta"].get("content") or "" for event in events for choice in event["choices"]]
        case "responses":
            deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        case _:
            deltas = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    return "".join(deltas)


def call_in(wire: str, told: dict[str, Any]) -> str:
    match wire:
        case "chat completions":
            return str(told["choices"][0]["message"]["tool_calls"][0]["id"])
        case "responses":
            return str(told["output"][0]["call_id"])
    return str(told["content"][0]["id"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wire", PATHS)
async def test_a_turn_is_held_answered_and_failed_on_every_wire(wire: str, stream: bool) -> None:
    async with FakeModel() as fake, httpx.AsyncClient(base_url=fake.url + "/", timeout=20) as http:
        fake.hold("a1")
        asking = asyncio.create_task(http.post(PATHS[wire], json=body(wire, "say a1", stream=stream)))
        await asyncio.wait_for(fake.until_started("a1"), 20)
        assert not asking.done()
        fake.release("a1")
        assert text_in(wire, await asking, stream) == "I heard: say a1"
        fake.fail("b2")
        failed = await http.post(PATHS[wire], json=body(wire, "say a1", "I heard", "say b2", stream=stream))
        assert failed.status_code == 400
        assert "b2" in failed.json()["error"]["message"]
        assert (fake.count_starts("a1"), fake.count_starts("b2")) == (1, 1)


@pytest.mark.parametrize("wire", PATHS)
async def test_what_answers_a_tool_call_goes_on_with_its_turn(wire: str) -> None:
    async with FakeModel() as fake, httpx.AsyncClient(base_url=fake.url + "/", timeout=20) as http:
        fake.hold("a1")
        fake.again("a1")
        first = await http.post(PATHS[wire], json=body(wire, "say a1"))
        fake.release("a1")
        again = body(wire, "say a1", calls=call_in(wire, first.json()))
        assert text_in(wire, await http.post(PATHS[wire], json=again), False) == "I heard: a1"
        assert fake.count_starts("a1") == 2


@pytest.mark.parametrize("wire", PATHS)
async def test_what_is_no_request_of_a_wire_is_refused(wire: str) -> None:
    async with FakeModel() as fake, httpx.AsyncClient(base_url=fake.url + "/", timeout=20) as http:
        refused = await http.post(PATHS[wire], json={"messages": 1, "input": 1})
        assert refused.status_code == 400
        assert wire in refused.json()["error"]["message"]
        assert not fake.asked


async def test_the_official_client_reads_a_stream_of_responses() -> None:
    async with FakeModel() as fake:
        client = openai.AsyncOpenAI(base_url=fake.url, api_key="none", max_retries=0)
        async with client.responses.stream(model="turn", input="say a1") as stream:
            final = await stream.get_final_response()
        fake.hold("b2")
        fake.again("b2")
        async with client.responses.stream(model="turn", input="say b2") as stream:
            called = await stream.get_final_response()
        await client.close()
        assert final.output_text == "I heard: say a1"
        assert called.output[0].type == "function_call"


async def test_two_prompts_in_one_message_are_told_apart_by_their_blocks() -> None:
    """A canceled prompt stays before the next one, in the same message: only the last block is the prompt."""
    blocks = [{"type": "text", "text": text} for text in ("say a1", "<system-reminder>a1 b2</system-reminder>",
                                                          "say b2", "<system-reminder>a1</system-reminder>")]
    async with FakeModel() as fake, httpx.AsyncClient(base_url=fake.url + "/", timeout=20) as http:
        fake.hold("a1")
        await http.post("messages", json={"model": "turn", "messages": [{"role": "user", "content": blocks}]})
        assert (fake.count_starts("a1"), fake.count_starts("b2")) == (0, 1)
        assert (await http.post("messages/count_tokens", json={})).json() == {"input_tokens": 1}
