"""OpenAI Responses: `POST /v1/responses`. The conversation is a list of items; an answer is a list of items too."""

import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from itertools import count
from typing import Any

from .asked import ModelAnswer, ModelRequest, Response, json_response, named_event, stream, text_of

TEXTS = ("input_text", "output_text", "text")


class Responses:
    """The OpenAI Responses API."""

    name = "responses"

    def read(self, body: Mapping[str, Any]) -> ModelRequest:
        given = body["input"]
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        said = [_read_item(item) for item in items]
        end = max((n for n, (role, _) in enumerate(said) if role == "assistant"), default=-1)
        begin = end
        while begin > 0 and said[begin - 1][0] in ("assistant", "tool"):
            begin -= 1
        calls = tuple(str(item["call_id"]) for item in items[max(begin, 0):end + 1]
                      if item.get("type") == "function_call")
        return ModelRequest(
            model=str(body.get("model", "")), roles=tuple(role for role, _ in said),
            texts=tuple(text for _, text in said), tools=len(body.get("tools") or ()), stream=bool(body.get("stream")),
            usage=True, calls=calls)

    def answer(self, asked: ModelRequest, said: ModelAnswer) -> Response:
        item = _item(said, "completed")
        whole = _response(asked, "completed", [item]) | {"usage": {
            "input_tokens": said.heard, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 1,
            "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": said.heard + 1}}
        if not asked.stream:
            return json_response(whole)
        number = count()
        return stream([named_event({**event, "sequence_number": next(number)})
                       for event in _events(asked, said, item, whole)])

    def error(self, status: HTTPStatus, message: str, code: str | None = None) -> Response:
        return json_response({"error": {"message": message, "type": "invalid_request_error", "code": code}}, status)


def _read_item(item: Mapping[str, Any]) -> tuple[str, str]:
    """The role and the text of an item."""
    match item.get("type", "message"):
        case "message":
            return str(item["role"]), text_of(item.get("content"), TEXTS)
        case "function_call" | "custom_tool_call" | "local_shell_call" | "reasoning":
            return "assistant", ""
        case _:
            return "tool", text_of(item.get("output"), TEXTS)


def _item(said: ModelAnswer, status: str) -> dict[str, Any]:
    if said.call:
        return {"type": "function_call", "id": f"fc-{said.call.id}", "call_id": said.call.id, "name": said.call.name,
                "arguments": said.call.arguments if status == "completed" else "", "status": status}
    content = [{"type": "output_text", "text": said.text, "annotations": []}] if status == "completed" else []
    return {"type": "message", "id": "msg-fake", "role": "assistant", "status": status, "content": content}


def _response(asked: ModelRequest, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": "resp-fake", "object": "response", "created_at": int(time.time()), "status": status, "error": None,
            "incomplete_details": None, "instructions": None, "model": asked.model, "output": output,
            "parallel_tool_calls": False, "tool_choice": "auto", "tools": [], "metadata": {}}


def _events(
    asked: ModelRequest, said: ModelAnswer, item: dict[str, Any], whole: dict[str, Any],
) -> Iterator[dict[str, Any]]:
    at = {"item_id": item["id"], "output_index": 0}
    yield {"type": "response.created", "response": _response(asked, "in_progress", [])}
    yield {"type": "response.output_item.added", "output_index": 0, "item": _item(said, "in_progress")}
    if said.call:
        yield {"type": "response.function_call_arguments.delta", **at, "delta": said.call.arguments}
        yield {"type": "response.function_call_arguments.done", **at, "arguments": said.call.arguments}
    else:
        part = {"type": "output_text", "text": "", "annotations": []}
        at["content_index"] = 0
        yield {"type": "response.content_part.added", **at, "part": part}
        for piece in said.pieces:
            yield {"type": "response.output_text.delta", **at, "delta": piece}
        yield {"type": "response.output_text.done", **at, "text": said.text}
        yield {"type": "response.content_part.done", **at, "part": {**part, "text": said.text}}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    yield {"type": "response.completed", "response": whole}
