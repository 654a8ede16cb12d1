"""What a long conversation costs a model: counted in functions that are called, and in turns that others get."""

import asyncio
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from contextlib import aclosing

import pytest
import support.openai_server as wire
from support.openai_server import Server

from cancelmark.impl.models import ChatMessage, Conversation, EncodingCache, Role, Text
from cancelmark.impl.models.chat_request import PIECE, encode_request
from cancelmark.impl.models.openai import OpenAIModel

needs_openai = pytest.mark.skipif(
    importlib.util.find_spec("h11") is None and os.environ.get("CI") != "true", reason="needs cancelmark[openai]")


def user(text: str) -> ChatMessage:
    return ChatMessage(Role.USER, (Text(text),))


def calls_of_a_step(messages: Sequence[ChatMessage]) -> int:
    """How many functions of Python a step calls that is given these messages."""
    async def main() -> int:
        counted = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal counted
            counted += event == "call"

        async with (Server(wire.text("ok"), wire.text("ok")) as server,
                    aclosing(OpenAIModel("m", base_url=server.url)) as model):
            [_ async for _ in model.step(messages)]  # what is imported or made once is there after this
            sys.setprofile(count)
            try:
                [_ async for _ in model.step(messages)]
            finally:
                sys.setprofile(None)
        return counted
    return asyncio.run(main())


@needs_openai
def test_a_message_of_a_long_conversation_costs_a_few_calls_of_functions() -> None:
    """The client's own `create` walks the types of each message, with fifty times as many."""
    few, many = (calls_of_a_step([user("hello"), ChatMessage(Role.ASSISTANT, (Text("yes"),))] * n) for n in (50, 250))
    assert 1 < (many - few) / 400 < 20


@needs_openai
def test_what_has_settled_of_a_conversation_costs_nothing_more() -> None:
    """Counted in the second step, the first has encoded it."""
    few, many = (calls_of_a_step(Conversation([user("hello")] * n, n, EncodingCache())) for n in (50, 250))
    assert many - few < 20


async def test_others_run_while_a_long_conversation_is_encoded() -> None:
    ran = 0

    async def other() -> None:
        nonlocal ran
        while True:
            ran += 1
            await asyncio.sleep(0)

    running = asyncio.ensure_future(other())
    body = await encode_request("m", [user("x" * PIECE)] * 20, [])
    running.cancel()
    assert ran >= 19
    assert len(json.loads(body)["messages"]) == 20
