"""The request body for a chat completions endpoint.

A conversation may be long. Its settled messages are encoded once and cached for the next request. Encoding yields to
the event loop between chunks.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence

from ..models import ChatMessage, Conversation, Role, Tool, ToolCall, ToolResult

PIECE = 65_536  # bytes encoded before yielding to the event loop

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


async def encode_request(model: str, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> bytes:
    """The request body for one step, streamed and with usage."""
    head = {"model": model, "stream": True, "stream_options": {"include_usage": True},
            **({"tools": [_tool(tool) for tool in tools]} if tools else {})}
    settled = b""
    if isinstance(messages, Conversation) and messages.kept.number <= messages.settled:
        kept, first = messages.kept, messages.kept.number
        more = await _encode_messages(messages[first:messages.settled])
        settled = b",".join(filter(None, (kept.encoded, more)))
        kept.number, kept.encoded = messages.settled, settled
        messages = messages[messages.settled:]
    body = b",".join(filter(None, (settled, await _encode_messages(messages))))
    return b'%s,"messages":[%s]}' % (_encode(head)[:-1].encode("utf-8", "replace"), body)


async def _encode_messages(messages: Sequence[ChatMessage]) -> bytes:
    encoded: list[bytes] = []
    size = 0
    for message in _conversation(messages):
        encoded.append(_encode(message).encode("utf-8", "replace"))
        size += len(encoded[-1])
        if size > PIECE:
            await asyncio.sleep(0)
            size = 0
    return b",".join(encoded)


def _tool(tool: Tool) -> dict[str, object]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def _conversation(messages: Sequence[ChatMessage]) -> Iterator[dict[str, object]]:
    """The messages in the format of the endpoint. It requires the results of tool calls right after the calls, but here
    another prompt's message may come in between. It refuses tool calls without results and empty messages, both of
    which a canceled turn leaves, so they are omitted. Reasoning is never sent."""
    for message, results in zip(messages, _results(messages)):
        content = _clean(message.text)
        calls = [
            {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": _clean(part.input)}}
            for part in message.parts if isinstance(part, ToolCall) and part.id in results
        ]
        if calls:
            yield {"role": "assistant", "content": content or None, "tool_calls": calls}
            for id, result in results.items():
                yield {"role": "tool", "tool_call_id": id, "content": _clean(result.content)}
        elif content and message.role is not Role.TOOL:
            yield {"role": message.role.value, "content": content}


def _results(messages: Sequence[ChatMessage]) -> list[dict[str, ToolResult]]:
    """For each message, the results of its calls by their ids: for each call, the first result that follows."""
    following: dict[str, ToolResult] = {}
    found: list[dict[str, ToolResult]] = []
    for message in reversed(messages):
        following |= {part.tool_call_id: part for part in reversed(message.parts) if isinstance(part, ToolResult)}
        called = [part.id for part in message.parts if isinstance(part, ToolCall)]
        found.append({id: following.pop(id) for id in called if id in following})
    return found[::-1]


def _clean(text: str) -> str:
    """The text without lone surrogates, which cannot be sent."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
