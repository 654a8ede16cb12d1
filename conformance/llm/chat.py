"""OpenAI chat completions: `POST /v1/chat/completions`, which most servers and agents can be pointed at."""

import json
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from .asked import ModelAnswer, ModelRequest, Response, json_response, stream, text_of


class ChatCompletions:
    """The OpenAI chat completions API."""

    name = "chat completions"

    def read(self, body: Mapping[str, Any]) -> ModelRequest:
        messages = [(message["role"], text_of(message.get("content"))) for message in body["messages"]]
        options = body.get("stream_options") or {}
        spoken = [message for message in body["messages"] if message["role"] == "assistant"][-1:]
        calls = tuple(str(call["id"]) for message in spoken for call in message.get("tool_calls") or ())
        return ModelRequest(
            model=str(body.get("model", "")), roles=tuple(role for role, _ in messages),
            texts=tuple(text for _, text in messages), tools=len(body.get("tools") or ()),
            stream=bool(body.get("stream")), usage=bool(options.get("include_usage")), calls=calls)

    def answer(self, asked: ModelRequest, said: ModelAnswer) -> Response:
        head = {"id": "chatcmpl-fake", "created": int(time.time()), "model": asked.model}
        spent = {"prompt_tokens": said.heard, "completion_tokens": 1, "total_tokens": said.heard + 1}
        reason = "tool_calls" if said.call else "stop"
        calls = [{"id": said.call.id, "type": "function",
                  "function": {"name": said.call.name, "arguments": said.call.arguments}}] if said.call else []
        if not asked.stream:
            message = {"role": "assistant", "content": said.text or None, **({"tool_calls": calls} if calls else {})}
            choice = {"index": 0, "message": message, "finish_reason": reason}
            return json_response({**head, "object": "chat.completion", "choices": [choice], "usage": spent})

        def event(delta: Mapping[str, Any] | None, finish: str | None = None, **more: Any) -> bytes:
            choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
            chunk = {**head, "object": "chat.completion.chunk", "choices": choices, **more}
            return f"data: {json.dumps(chunk)}\n\n".encode()

        return stream([
            event({"role": "assistant", "content": ""}), *(event({"content": piece}) for piece in said.pieces),
            *(event({"tool_calls": [{"index": n, **made}]}) for n, made in enumerate(calls)),
            event({}, reason), *([event(None, usage=spent)] if asked.usage else []), b"data: [DONE]\n\n"])

    def error(self, status: HTTPStatus, message: str, code: str | None = None) -> Response:
        return json_response({"error": {"message": message, "type": "invalid_request_error", "code": code}}, status)


def list_models(*names: str) -> Response:
    """The response to `GET /v1/models`."""
    models = [{"id": name, "object": "model", "created": 0, "owned_by": "cancelmark"} for name in names]
    return json_response({"object": "list", "data": models})
