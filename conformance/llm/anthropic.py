"""Anthropic Messages: `POST /v1/messages`.

In this API user and assistant messages alternate. A client with two prompts in a row, because the first was canceled,
sends both as blocks of one message. So each text block is read as a message, and the last block is the prompt. A block
that a client adds for its own purposes, marked by a tag (`ASIDE`), is not a prompt.
"""

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from json import loads
from typing import Any

from .asked import ModelAnswer, ModelRequest, Response, json_response, named_event, stream

ASIDE = ("<system-reminder>", "<local-command", "<command-")


class Messages:
    """The Anthropic Messages API."""

    name = "messages"

    def read(self, body: Mapping[str, Any]) -> ModelRequest:
        said = [each for message in body["messages"] for each in _read_message(message)]
        spoken = [message for message in body["messages"] if message["role"] == "assistant"][-1:]
        calls = tuple(str(block["id"]) for message in spoken for block in _blocks(message)
                      if block.get("type") == "tool_use")
        return ModelRequest(
            model=str(body.get("model", "")), roles=tuple(role for role, _ in said),
            texts=tuple(text for _, text in said), tools=len(body.get("tools") or ()), stream=bool(body.get("stream")),
            usage=True, calls=calls)

    def answer(self, asked: ModelRequest, said: ModelAnswer) -> Response:
        reason = "tool_use" if said.call else "end_turn"
        spent = {"input_tokens": said.heard, "output_tokens": 1}
        block: dict[str, Any] = {"type": "text", "text": said.text}
        if said.call:
            block = {"type": "tool_use", "id": said.call.id, "name": said.call.name,
                     "input": loads(said.call.arguments)}
        head = {"id": "msg-fake", "type": "message", "role": "assistant", "model": asked.model, "stop_sequence": None}
        if not asked.stream:
            return json_response({**head, "content": [block], "stop_reason": reason, "usage": spent})
        empty: dict[str, Any] = {**block, ("input" if said.call else "text"): {} if said.call else ""}
        deltas = ([{"type": "input_json_delta", "partial_json": said.call.arguments}] if said.call else
                  [{"type": "text_delta", "text": piece} for piece in said.pieces])
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": {**head, "content": [], "stop_reason": None, "usage": spent}},
            {"type": "content_block_start", "index": 0, "content_block": empty},
            *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": spent},
            {"type": "message_stop"}]
        return stream([named_event(event) for event in events])

    def error(self, status: HTTPStatus, message: str, code: str | None = None) -> Response:
        says = f"prompt is too long: {message}" if code == "context_length_exceeded" else message
        return json_response({"type": "error", "error": {"type": "invalid_request_error", "message": says}}, status)


def _blocks(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _read_message(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each block of the message as a role and a text."""
    for block in _blocks(message):
        if block.get("type") == "text" and not block["text"].lstrip().startswith(ASIDE):
            yield str(message["role"]), block["text"]
        elif block.get("type") == "tool_result":
            yield "tool", ""
        elif message["role"] == "assistant":
            yield "assistant", ""
