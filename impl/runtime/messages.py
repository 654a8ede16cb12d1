"""Messages: as they are stored, as they are on the wire, and as a model hears them."""

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from time import time
from typing import Any

from ..models import Attachment, FinishReason, Reasoning, Role, Text, ToolCall, ToolResult
from ..models import Message as Said
from ..models import Part as SaidPart
from ..store import Json, Message

SUMMARY = "Summary of the conversation so far: "


def user_message(session_id: str, seq: int, text: str, attachments: Sequence[Json] = ()) -> Message:
    """The user's message of a prompt: its text, and its attachments as parts. Its id follows from the prompt, so that
    it is never written twice."""
    now = int(time())
    words = (wire_part(Text(text)),) if text or not attachments else ()
    return Message(f"p{seq}", session_id, Role.USER.value, (*words, *attachments), created_at=now, updated_at=now)


def canceled_messages(prompt: Message, seq: int) -> tuple[Message, Message]:
    """The record of a prompt that was canceled before it could run, given the user's message (R7a, R7b)."""
    now = int(time())
    answer = Message(f"p{seq}-canceled", prompt.session_id, Role.ASSISTANT.value, (), created_at=now, updated_at=now)
    return prompt, finished(answer, FinishReason.CANCELED)


def saying(message: Message, parts: Sequence[SaidPart]) -> Message:
    """The message with these parts in place of its own."""
    return Message(message.id, message.session_id, message.role, tuple(map(wire_part, parts)), message.model,
                   message.provider, message.created_at, message.updated_at)


def finished(message: Message, reason: FinishReason, details: str | None = None) -> Message:
    """The message with its finish part."""
    now = int(time())
    data: dict[str, Any] = {"reason": reason.value, "time": now}
    if details:
        data["message"] = details
    return Message(message.id, message.session_id, message.role, (*message.parts, {"type": "finish", "data": data}),
                   message.model, message.provider, message.created_at, now)


def emptied(message: Message, why: str) -> Message:
    """The message without what was said, for a store that will not take that."""
    return finished(saying(message, ()), FinishReason.ERROR, why)


def wire_part(part: SaidPart) -> Json:
    match part:
        case Text(text):
            return {"type": "text", "data": {"text": text}}
        case Reasoning(thinking):
            return {"type": "reasoning", "data": {"thinking": thinking}}
        case ToolCall():
            return {"type": "tool_call", "data": {"id": part.id, "name": part.name, "input": part.input,
                                                  "finished": part.finished}}
        case ToolResult():
            return {"type": "tool_result", "data": {"tool_call_id": part.tool_call_id, "name": part.name,
                                                    "content": part.content, "is_error": part.is_error}}
        case Attachment():
            data = b64encode(part.text.encode()).decode()
            return {"type": "binary", "data": {"Path": part.path, "MIMEType": part.mime_type, "Data": data}}


def wire_message(message: Message) -> Json:
    return {"id": message.id, "role": message.role, "session_id": message.session_id, "parts": list(message.parts),
            "model": message.model, "provider": message.provider, "created_at": message.created_at,
            "updated_at": message.updated_at}


def read_attachment(**data: str) -> Attachment:
    """What a part of type `binary` holds."""
    return Attachment(data["Path"], data["MIMEType"], b64decode(data["Data"]).decode())


SAID: Mapping[str, Callable[..., SaidPart]] = {
    "text": Text, "reasoning": Reasoning, "tool_call": ToolCall, "tool_result": ToolResult, "binary": read_attachment}


def said(message: Message) -> Said:
    """A stored message as a model hears it."""
    return Said(Role(message.role), tuple(SAID[p["type"]](**p["data"]) for p in message.parts if p["type"] in SAID))


def list_names(attachments: Sequence[Json]) -> list[str]:
    """What the attachments are called."""
    return [part["data"]["Path"] for part in attachments]


def text_of(message: Message) -> str:
    return "".join(part["data"]["text"] for part in message.parts if part["type"] == "text")


def is_summary(message: Message) -> bool:
    """Whether it stands for everything that was said before it."""
    return message.role == Role.SYSTEM and text_of(message).startswith(SUMMARY)


def since_summary(messages: Sequence[Message]) -> list[Message]:
    """The messages that a model is to hear: from the last summary on."""
    for i in range(len(messages) - 1, -1, -1):
        if is_summary(messages[i]):
            return list(messages[i:])
    return list(messages)
