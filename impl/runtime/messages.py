"""Messages in their three forms: stored, on the wire, and as a model receives them."""

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from time import time
from typing import Any

from ..models import Attachment, ChatMessage, FinishReason, Reasoning, Role, Text, ToolCall, ToolResult
from ..models import Part as SaidPart
from ..store import Json, MessageRecord

SUMMARY = "Summary of the conversation so far: "


def user_message(session_id: str, seq: int, text: str, attachments: Sequence[Json] = ()) -> MessageRecord:
    """The user's message of a prompt: its text, and its attachments as parts. The id follows from the prompt, so
    writing it is idempotent."""
    now = int(time())
    words = (wire_part(Text(text)),) if text or not attachments else ()
    return MessageRecord(f"p{seq}", session_id, Role.USER.value, (*words, *attachments), created_at=now, updated_at=now)


def canceled_messages(prompt: MessageRecord, seq: int) -> tuple[MessageRecord, MessageRecord]:
    """The record of a prompt that was canceled before it could run, given the user's message."""
    now = int(time())
    answer = MessageRecord(
        f"p{seq}-canceled", prompt.session_id, Role.ASSISTANT.value, (), created_at=now, updated_at=now)
    return prompt, finished(answer, FinishReason.CANCELED)


def saying(message: MessageRecord, parts: Sequence[SaidPart]) -> MessageRecord:
    """The message with these parts instead of its own."""
    return MessageRecord(message.id, message.session_id, message.role, tuple(map(wire_part, parts)), message.model,
                   message.provider, message.created_at, message.updated_at)


def finished(message: MessageRecord, reason: FinishReason, details: str | None = None) -> MessageRecord:
    """The message with its finish part."""
    now = int(time())
    data: dict[str, Any] = {"reason": reason.value, "time": now}
    if details:
        data["message"] = details
    parts = (*message.parts, {"type": "finish", "data": data})
    return MessageRecord(message.id, message.session_id, message.role, parts, message.model, message.provider,
                         message.created_at, now)


def emptied(message: MessageRecord, why: str) -> MessageRecord:
    """The message without its content, for a store that cannot take that."""
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


def wire_message(message: MessageRecord) -> Json:
    return {"id": message.id, "role": message.role, "session_id": message.session_id, "parts": list(message.parts),
            "model": message.model, "provider": message.provider, "created_at": message.created_at,
            "updated_at": message.updated_at}


def read_attachment(**data: str) -> Attachment:
    """The attachment in a part of type `binary`."""
    return Attachment(data["Path"], data["MIMEType"], b64decode(data["Data"]).decode())


SAID: Mapping[str, Callable[..., SaidPart]] = {
    "text": Text, "reasoning": Reasoning, "tool_call": ToolCall, "tool_result": ToolResult, "binary": read_attachment}


def said(message: MessageRecord) -> ChatMessage:
    """A stored message as a model receives it."""
    parts = (SAID[part["type"]](**part["data"]) for part in message.parts if part["type"] in SAID)
    return ChatMessage(Role(message.role), tuple(parts))


def list_names(attachments: Sequence[Json]) -> list[str]:
    """The names of the attachments."""
    return [part["data"]["Path"] for part in attachments]


def text_of(message: MessageRecord) -> str:
    return "".join(part["data"]["text"] for part in message.parts if part["type"] == "text")


def is_summary(message: MessageRecord) -> bool:
    """Whether the message is a summary of everything before it."""
    return message.role == Role.SYSTEM and text_of(message).startswith(SUMMARY)


def since_summary(messages: Sequence[MessageRecord]) -> list[MessageRecord]:
    """The messages from the last summary on."""
    for i in range(len(messages) - 1, -1, -1):
        if is_summary(messages[i]):
            return list(messages[i:])
    return list(messages)
