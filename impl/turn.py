"""One turn: the user's message, the steps of a language model, and an ending that is written down whatever happens.

A turn writes messages and streams updates; it never touches the session. It asks for follow-ups to take in before each
step, and says at last how it ended. `run` returns an `Ending` for every way in which a turn can go: it may be stopped
at any point, and the model, a tool or the store may fail. Each leaves the user's message, an assistant message with a
finish reason, and no tool call without a result.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from copy import copy
from dataclasses import dataclass, replace
from time import time
from typing import Any, TypeVar

from cancelmark.model.lifecycle import Outcome

from .events import Feed
from .models import Draft, Failure, FinishReason, Model, ModelError, Reasoning, Role, Text, Tool, ToolCall, ToolResult
from .models import Message as Said
from .models import Part as SaidPart
from .store import Json, Message, Operation, PutMessage

T = TypeVar("T")

SUMMARIZE = "Summarize this conversation so that the work can go on from your summary alone. Leave nothing open out."
SUMMARY = "Summary of the conversation so far: "


@dataclass(frozen=True)
class ToolRunner:
    """A tool and what it does with the text of its arguments. What it raises is told to the model as an error."""

    tool: Tool
    run: Callable[[str], Awaitable[str]]


@dataclass(frozen=True)
class Ending:
    """How a turn ended. No outcome: it must go on after a summary, which has been written."""

    outcome: Outcome | None
    text: str = ""
    message_id: str | None = None
    error: str | None = None


class Turn:
    """A turn in the making. It can be stopped, which it answers by ending; or abandoned, and then nobody listens."""

    def __init__(
        self,
        *,
        seq: int,
        session_id: str,
        text: str,
        model: Model,
        tools: Mapping[str, ToolRunner],
        history: Callable[[], Sequence[Message]],
        write: Callable[[Sequence[Operation]], Awaitable[object]],
        follow_ups: Callable[[], Awaitable[Sequence[Message]]],
        feed: Feed,
    ) -> None:
        self.seq, self.session_id, self.text, self.model, self.tools = seq, session_id, text, model, tools
        self.messages: list[Message] = []
        self.abandoned = False
        self._history, self._write, self._follow_ups, self._feed = history, write, follow_ups, feed
        self._task: asyncio.Task[Ending] | None = None
        self._stopping = self._running = False
        self._draft: Draft | None = None  # of the assistant message that is being streamed
        self._pen = asyncio.Lock()  # one write after the other, also when one has to be tried again

    # --- from outside

    async def run(self) -> Ending:
        """Does the turn and returns its ending. Canceling the caller stops the turn."""
        self._task = asyncio.ensure_future(self._guarded())
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody else will look
            self.stop()
            raise

    def stop(self) -> None:
        """Asks the turn to stop. It ends as soon as the model lets go, or as it was just about to end."""
        self._stopping = True
        if self._task and self._running:  # canceled before its first step, it could not write its ending
            self._task.cancel()

    def abandon(self) -> "Turn":
        """From now on nothing that the turn does is written or shown. Returns a stand-in, which can be ended (R24b)."""
        stand_in = copy(self)
        self.abandoned = True
        return stand_in

    async def end(self, outcome: Outcome, error: str | None = None) -> Ending:
        """Writes an ending: the user's message is there, the last answer has its finish reason, and every tool call a
        result. Ending twice is ending once: a second attempt finds the answer of the first (R23a, R23b)."""
        if not self._running:
            self.messages = list(self._history())
        operations = [] if self._has_user_message() else [self._put(self._user_message())]
        reason = FinishReason.CANCELED if outcome is Outcome.CANCELED else FinishReason.ERROR
        answer = self._answer()
        if answer is None or answer.finish_reason not in (None, FinishReason.CANCELED, FinishReason.ERROR):
            answer = self._new(Role.ASSISTANT, [])
        elif self._draft:
            answer = replace(answer, parts=tuple(map(wire_part, self._draft.parts)))
        self._draft = None
        if answer.finish_reason is None:
            answer = finished(answer, reason, error)
            operations.append(self._put(answer))
        operations += self._closed_calls(error or "the turn was canceled")
        await self._save(*operations)
        return Ending(outcome, text_of(answer), answer.id, error)

    # --- the work

    async def _guarded(self) -> Ending:
        self._running = True
        try:
            self.messages = list(self._history())
            if self._stopping:
                return await self.end(Outcome.CANCELED)
            return await self._work()
        except asyncio.CancelledError:
            return await self._canceled()
        except ModelError as failed:
            if failed.kind is Failure.CONTEXT_TOO_LONG:
                return await self._summarized(failed)
            return await unhurried(self.end(Outcome.ERROR, failed.message))
        except Exception as failed:
            return await unhurried(self.end(Outcome.ERROR, f"{type(failed).__name__}: {failed}"))

    async def _work(self) -> Ending:
        if not self._has_user_message():  # it is there if the turn goes on after a summary
            await self._save(self._put(self._user_message()))
        while True:
            for message in await self._follow_ups():
                self.messages.append(message)
                self._show(message)
            answer = await self._step()
            if answer.finish_reason != FinishReason.TOOL_USE:
                return Ending(Outcome.END_TURN, text_of(answer), answer.id)
            for call in self._open_calls():
                if self._stopping:  # and the model, or a tool, has swallowed it
                    raise asyncio.CancelledError
                await self._save(self._put(self._new(Role.TOOL, [await self._use(call)])))
            if self._stopping:
                raise asyncio.CancelledError

    async def _step(self) -> Message:
        """One answer of the model, streamed to whoever watches and written down when it is complete."""
        message = self._new(Role.ASSISTANT, [])
        conversation = self._conversation()
        self._draft = draft = Draft()
        await self._save(self._put(message))
        async with aclosing(self.model.step(conversation, [t.tool for t in self.tools.values()])) as deltas:
            async for delta in deltas:
                draft.add(delta)
                self._show(replace(message, parts=tuple(map(wire_part, draft.parts))))
        assert draft.finish, "a step that succeeds ends with its finish"
        message = finished(replace(message, parts=tuple(map(wire_part, draft.parts))), draft.finish.reason)
        self._draft = None
        operations = [self._put(message)]
        if draft.finish.reason is not FinishReason.TOOL_USE:
            operations += self._closed_calls("the answer was cut off")
        await unhurried(self._save(*operations))  # what is complete is kept, and ends as it ended
        return message

    async def _use(self, call: ToolCall) -> ToolResult:
        runner = self.tools.get(call.name)
        if runner is None:
            return ToolResult(call.id, call.name, f"there is no tool {call.name!r}", is_error=True)
        try:
            return ToolResult(call.id, call.name, await runner.run(call.input))
        except Exception as failed:
            return ToolResult(call.id, call.name, f"{type(failed).__name__}: {failed}", is_error=True)

    async def _summarized(self, failed: ModelError) -> Ending:
        """The conversation no longer fits: a summary takes its place, and the turn goes on from there."""
        draft = Draft()
        try:
            request = Said(Role.USER, (Text(SUMMARIZE),))
            async with aclosing(self.model.step([*self._conversation(), request])) as deltas:
                async for delta in deltas:
                    draft.add(delta)
        except asyncio.CancelledError:
            return await self._canceled()
        except Exception:
            return await unhurried(self.end(Outcome.ERROR, f"{failed.message} (and no summary could be made)"))
        await unhurried(self.end(Outcome.ERROR, failed.message))
        await unhurried(self._save(self._put(self._new(Role.SYSTEM, [Text(SUMMARY + draft.message.text)]))))
        return Ending(None)

    async def _canceled(self) -> Ending:
        if self._stopping:
            return await unhurried(self.end(Outcome.CANCELED))
        return await unhurried(self.end(Outcome.ERROR, "the model or a tool was canceled, and nobody asked for it"))

    # --- messages

    def _conversation(self) -> list[Said]:
        """What the model is to hear: everything since the last summary, and the prompt even if it came before that."""
        messages = since_summary(self.messages)
        prompt = [m for m in self.messages if m.id == self._user_message().id and m not in messages]
        return [heard for heard in map(said, [*messages[:1], *prompt, *messages[1:]]) if heard.parts]

    def _answer(self) -> Message | None:
        """The last answer of this turn, since the last summary."""
        return next((m for m in reversed(since_summary(self.messages))
                     if m.role == Role.ASSISTANT and m.id.startswith(f"p{self.seq}-")), None)

    def _user_message(self) -> Message:
        return user_message(self.session_id, self.seq, self.text)

    def _has_user_message(self) -> bool:
        return any(m.id == self._user_message().id for m in self.messages)

    def _new(self, role: Role, parts: Sequence[SaidPart]) -> Message:
        """A message of this turn. Messages are never removed, so their number makes an id that no other has."""
        now = int(time())
        mine = role is Role.ASSISTANT
        return Message(f"p{self.seq}-{len(self.messages) + 1}", self.session_id, role.value,
                       tuple(map(wire_part, parts)), self.model.name if mine else "",
                       self.model.provider if mine else "", now, now)

    def _put(self, message: Message) -> PutMessage:
        """The message as a part of the conversation from now on, and the operation that stores it."""
        for i, old in enumerate(self.messages):
            if old.id == message.id:
                self.messages[i] = message
                break
        else:
            self.messages.append(message)
        return PutMessage(message)

    async def _save(self, *operations: PutMessage) -> None:
        await uncut(self._saved(operations))

    async def _saved(self, operations: Sequence[PutMessage]) -> None:
        async with self._pen:
            if not self.abandoned:
                await self._write(operations)
                for operation in operations:
                    self._show(operation.message)

    def _show(self, message: Message) -> None:
        if not self.abandoned:
            self._feed.publish("message", {**wire_message(message), "seq": self.seq})

    def _open_calls(self) -> list[ToolCall]:
        """Tool calls that no result follows. Ids are distinct within a step, and may be used again in the next."""
        calls: dict[str, ToolCall] = {}
        for part in (part for message in self.messages for part in said(message).parts):
            if isinstance(part, ToolCall):
                calls[part.id] = part
            elif isinstance(part, ToolResult):
                calls.pop(part.tool_call_id, None)
        return list(calls.values())

    def _closed_calls(self, why: str) -> list[PutMessage]:
        """What gives each open call an error for a result."""
        results = [ToolResult(call.id, call.name, why, is_error=True) for call in self._open_calls()]
        return [self._put(self._new(Role.TOOL, results))] if results else []


async def uncut(work: Awaitable[T]) -> T:
    """Does the work to its end even if the waiting task is canceled meanwhile, and only then is the task canceled."""
    task = asyncio.ensure_future(work)
    canceled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as request:
            canceled = request
        except Exception:
            break  # of the work's own, and raised below
    if canceled:
        raise canceled
    return task.result()


async def unhurried(work: Coroutine[Any, Any, T]) -> T:
    """Does the work to its end, whatever is asked of the waiting task meanwhile: it is ending already."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait((task,))
    return task.result()


# --- messages, as they are stored and on the wire

def user_message(session_id: str, seq: int, text: str) -> Message:
    """The user's message of a prompt. Its id follows from the prompt, so that it is never written twice."""
    now = int(time())
    return Message(f"p{seq}", session_id, Role.USER.value, (wire_part(Text(text)),), created_at=now, updated_at=now)


def canceled_messages(session_id: str, seq: int, text: str) -> tuple[Message, Message]:
    """The record of a prompt that was canceled before it could run (R7a, R7b)."""
    now = int(time())
    answer = Message(f"p{seq}-canceled", session_id, Role.ASSISTANT.value, (), created_at=now, updated_at=now)
    return user_message(session_id, seq, text), finished(answer, FinishReason.CANCELED)


def finished(message: Message, reason: FinishReason, details: str | None = None) -> Message:
    """The message with its finish part."""
    now = int(time())
    data: dict[str, Any] = {"reason": reason.value, "time": now} | ({"message": details} if details else {})
    return replace(message, parts=(*message.parts, {"type": "finish", "data": data}), updated_at=now)


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


def wire_message(message: Message) -> Json:
    return {"id": message.id, "role": message.role, "session_id": message.session_id, "parts": list(message.parts),
            "model": message.model, "provider": message.provider, "created_at": message.created_at,
            "updated_at": message.updated_at}


SAID: Mapping[str, type[Text | Reasoning | ToolCall | ToolResult]] = {
    "text": Text, "reasoning": Reasoning, "tool_call": ToolCall, "tool_result": ToolResult}


def said(message: Message) -> Said:
    """A stored message as a model hears it."""
    return Said(Role(message.role), tuple(SAID[p["type"]](**p["data"]) for p in message.parts if p["type"] in SAID))


def text_of(message: Message) -> str:
    return said(message).text


def since_summary(messages: Sequence[Message]) -> list[Message]:
    """The messages that a model is to hear: from the last summary on."""
    for i in range(len(messages) - 1, -1, -1):
        if messages[i].role == Role.SYSTEM and text_of(messages[i]).startswith(SUMMARY):
            return list(messages[i:])
    return list(messages)
