"""One turn: the user's message, the steps of a language model, and an ending whatever happens.

A turn writes messages and streams updates; it never touches the session. It asks for follow-ups to take in before each
step, and says at last how it ended. `run` returns a `Result` for every way in which a turn can end: it may be stopped
at any point, and the model, a tool or the store may fail. Each leaves the user's message, an assistant message with a
finish reason, and no tool call without a result. The last of these come with the ending, to be committed together with
the end of the prompt.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import chain
from time import time
from typing import Any

from cancelmark.model.lifecycle import Outcome

from ..models import (
    Conversation,
    Delta,
    Draft,
    Failure,
    FinishReason,
    Model,
    ModelError,
    Role,
    Tool,
    ToolCall,
    ToolResult,
)
from ..models import Message as Said
from ..models import Part as SaidPart
from ..store import Message
from .conversation import LONGEST, Read, read_back, summarize
from .events import Feed
from .messages import finished, said, saying, since_summary, text_of, wire_message, wire_part
from .result import Result
from .tasks import outlast

SOON = 0.05  # seconds after which an answer that is being given is written as far as that goes

# Begins to write messages, and tries again for as long as that may help and the second says that it is wanted.
Say = Callable[[Sequence[Message], Callable[[], bool]], "asyncio.Future[Any]"]

# What was said before the message with this id, as the session's latest turns have found it.
Recall = Callable[[str], Awaitable[Conversation]]

# The messages of the prompts that fold into the turn now, and the request to cancel that came meanwhile.
FollowUps = Callable[[], Awaitable[tuple[Sequence[Message], asyncio.CancelledError | None]]]


@dataclass(frozen=True)
class ToolRunner:
    """A tool and what it does with the text of its arguments. What it raises is told to the model as an error."""

    tool: Tool
    run: Callable[[str], Awaitable[str]]


class Turn:
    """A turn in the making. It can be stopped, which it answers by ending; or abandoned, and then nobody listens.

    The user's message, `prompt`, must be in the store before the turn is run. A turn that `goes_on`, after a summary or
    a restart, finds there what it has written before.
    """

    def __init__(
        self,
        *,
        seq: int,
        run_id: str | None = None,
        prompt: Message,
        model: Model,
        tools: Mapping[str, ToolRunner],
        history: Read,
        recall: Recall,
        say: Say,
        follow_ups: FollowUps,
        feed: Feed,
        goes_on: bool = False,
    ) -> None:
        self.seq, self._run_id, self.model, self.tools = seq, run_id, model, tools
        self.abandoned = False
        self._history, self._recall, self._say, self._follow_ups, self._feed = history, recall, say, follow_ups, feed
        self._prompt, self._goes_on = prompt, goes_on
        self._messages: dict[str, Message] = {}  # of the session, from the user's message on
        self._found = 0  # how many of these were there when it went on, or was summarized
        self._unwritten: dict[str, Message] = {}
        self._handed: set[str] = set()  # that were to be written with other things
        self._earlier: list[Said] | None = None  # what was said before, as far as the model looks back
        self._task: asyncio.Task[object] | None = None  # that runs it
        self._stopping = False
        self._draft: Draft | None = None  # of the assistant message that is being streamed

    # --- from outside

    async def run(self) -> Result | None:
        """Does the turn, in the task of the caller, and returns its result; None if it must go on after a summary. Only
        if somebody else cancels that task is there none either."""
        if not self._goes_on:
            self._show(self._prompt)
        await self.look_back()
        self._task = asyncio.current_task()
        try:
            return await self._guarded()
        finally:
            self._task = None

    def stop(self) -> bool:
        """Asks the turn to stop. It ends as soon as the model lets go, or as it was just about to end. Who asks again
        does not disturb it; the answer is whether nobody has asked before."""
        first = not self._stopping
        if first:
            self._break_off()
        return first

    def _break_off(self) -> None:
        self._stopping = True
        if self._task:  # canceled before it runs, it could not say how it ended
            self._task.cancel()

    def abandon(self) -> None:
        """From now on nothing that the turn does is written or shown (R24b)."""
        self.abandoned = True
        self._break_off()

    @property
    def unwritten(self) -> tuple[Message, ...]:
        """The messages that are still to be written: together with the prompt's end, or its return to the queue."""
        return tuple(self._unwritten.values())

    async def look_back(self) -> None:
        """Finds what the turn has written before it was interrupted. It must be done before the turn can end."""
        if not self._messages:
            found = [self._prompt]
            if self._goes_on:
                found = list(await self._history(since=self._prompt.id))
            self._messages = {message.id: message for message in found}
            self._found = len(found) if self._goes_on else 0

    def end(self, outcome: Outcome, error: str | None = None) -> Result:
        """An ending: the user's message is there, the last answer has its finish reason, and every tool call a result.
        Ending twice is ending once: a second attempt finds the answer of the first (R23a, R23b)."""
        if self._prompt.id not in self._messages:
            self._put(self._prompt)
        reason = FinishReason.CANCELED if outcome is Outcome.CANCELED else FinishReason.ERROR
        answer = self._answer()
        if answer is None or answer.finish_reason not in (None, FinishReason.CANCELED, FinishReason.ERROR):
            answer = self._new(Role.ASSISTANT, [])
        elif self._draft:
            answer = saying(answer, self._draft.parts)
        self._draft = None
        if answer.finish_reason is None:
            answer = self._put(finished(answer, reason, error))
        self._close_calls(error or "the turn was canceled")
        return self._finish(outcome, answer, error)

    # --- the work

    async def _guarded(self) -> Result | None:
        try:
            if self._stopping:
                return self.end(Outcome.CANCELED)
            return await self._work()
        except asyncio.CancelledError:
            return self._canceled()
        except ModelError as failed:
            if failed.kind is Failure.CONTEXT_TOO_LONG:
                return await self._summarize(failed)
            return self.end(Outcome.ERROR, failed.message)
        except Exception as failed:
            return self.end(Outcome.ERROR, f"{type(failed).__name__}: {failed}")

    async def _work(self) -> Result:
        while True:
            await self._take_in()
            answer = await self._step()
            if answer.finish_reason != FinishReason.TOOL_USE:
                return self._finish(Outcome.END_TURN, answer)
            await self._save()
            for call in self._open_calls():
                if self._stopping:  # and the model, or a tool, has swallowed it
                    raise asyncio.CancelledError
                self._put(self._new(Role.TOOL, [await self._use(call)]))
                await self._save()
            if self._stopping:
                raise asyncio.CancelledError

    async def _take_in(self) -> None:
        """Takes in the follow-ups that there are, and shows them, even if the turn is stopped meanwhile."""
        messages, canceled = await self._follow_ups()
        for message in messages:
            self._messages[message.id] = message
            self._show(message)
        if canceled:
            raise canceled

    async def _step(self) -> Message:
        """One answer of the model, streamed to whoever watches. An answer that takes a while has its place in the store
        before it is complete; one that comes at once is written with what follows it."""
        conversation = await self._short_conversation()
        message = self._put(self._new(Role.ASSISTANT, []))
        self._show(message)
        self._draft, self._handed = (draft := Draft()), set()
        saving = asyncio.get_running_loop().call_later(SOON, self._save_draft, draft)
        try:
            async with aclosing(self._ask(conversation, [t.tool for t in self.tools.values()])) as deltas:
                async for delta in deltas:
                    draft.add(delta)
                    if self._feed.watched:
                        self._show(saying(message, draft.parts))
        finally:
            saving.cancel()
        assert draft.finish, "a step that succeeds ends with its finish"
        self._draft = None
        message = self._put(finished(saying(message, draft.parts), draft.finish.reason))
        if draft.called and draft.finish.reason is not FinishReason.TOOL_USE:
            self._close_calls("the answer was cut off")
        return message

    def _ask(self, conversation: Sequence[Said], tools: Sequence[Tool] = ()) -> AsyncGenerator[Delta, None]:
        """Asks the model, unless the turn is to stop: whatever was awaited before may have swallowed that."""
        if self._stopping:
            raise asyncio.CancelledError
        return self.model.step(conversation, tools)

    async def _use(self, call: ToolCall) -> ToolResult:
        runner = self.tools.get(call.name)
        if runner is None:
            return ToolResult(call.id, call.name, f"there is no tool {call.name!r}", is_error=True)
        try:
            return ToolResult(call.id, call.name, await runner.run(call.input))
        except Exception as failed:
            return ToolResult(call.id, call.name, f"{type(failed).__name__}: {failed}", is_error=True)

    async def _summarize(self, failed: ModelError) -> Result | None:
        """The conversation no longer fits: a summary takes its place, and the turn goes on from there."""
        try:
            summary = await summarize(self._ask, await self._conversation())
        except asyncio.CancelledError:
            return self._canceled()
        except Exception:
            return self.end(Outcome.ERROR, f"{failed.message} (and no summary could be made)")
        self.end(Outcome.ERROR, failed.message)
        self._put(self._new(Role.SYSTEM, [summary]))
        self._show_unwritten()
        return None

    def _canceled(self) -> Result:
        if self._stopping:
            return self.end(Outcome.CANCELED)
        if self._task and self._task.cancelling():
            raise asyncio.CancelledError  # by the event loop, which ends
        return self.end(Outcome.ERROR, "the model or a tool was canceled, and nobody asked for it")

    def _finish(self, outcome: Outcome, answer: Message, error: str | None = None) -> Result:
        """The result with this answer."""
        self._show_unwritten()
        return Result(self._prompt.session_id, self._run_id, outcome, text_of(answer), answer.id, error)

    def _show_unwritten(self) -> None:
        for message in self._unwritten.values():
            self._show(message)

    # --- messages

    async def _short_conversation(self) -> list[Said]:
        """What the model is to hear. If that has become long, a summary takes its place, and the turn goes on."""
        conversation = await self._conversation()
        if len(conversation) > LONGEST and self.model.hears is None:
            self._put(self._new(Role.SYSTEM, [await summarize(self._ask, conversation)]))
            await self._save()
            self._found = len(self._messages)
            conversation = await self._conversation()
        return conversation

    async def _conversation(self) -> list[Said]:
        """What the model is to hear: everything since the last summary, as far as it looks back. If the prompt came
        before that it is put after what others have said since, because it is what the turn goes on with."""
        limit = self.model.hears
        if limit == 0:
            return []
        messages = list(self._messages.values())
        since = since_summary(messages)
        if len(since) < len(messages):
            own = self._found - (len(messages) - len(since))
            return _hear([*since[:own], self._prompt, *since[own:]])
        heard = _hear(messages)
        if self._earlier is None:
            if limit is None and not self._goes_on:
                self._earlier = await self._recall(self._prompt.id)
            else:
                self._earlier = await read_back(
                    self._history, self._prompt.id, None if limit is None else max(0, limit - len(heard)))
        if isinstance(self._earlier, Conversation):
            return Conversation(chain(self._earlier, heard), self._earlier.settled, self._earlier.kept)
        return self._earlier + heard

    def _answer(self) -> Message | None:
        """The last answer of this turn, since the last summary."""
        return next((m for m in reversed(since_summary(list(self._messages.values())))
                     if m.role == Role.ASSISTANT and m.id.startswith(f"p{self.seq}-")), None)

    def _new(self, role: Role, parts: Sequence[SaidPart]) -> Message:
        """A message of this turn. Messages are never removed, so their number makes an id that no other has."""
        now = int(time())
        mine = role is Role.ASSISTANT
        return Message(f"p{self.seq}-{len(self._messages) + 1}", self._prompt.session_id, role.value,
                       tuple(map(wire_part, parts)), self.model.name if mine else "",
                       self.model.provider if mine else "", now, now)

    def _put(self, message: Message) -> Message:
        """The message is a part of the conversation from now on, and is to be written."""
        self._messages[message.id] = self._unwritten[message.id] = message
        return message

    async def _save(self) -> None:
        """Writes what is to be written, and shows it, even if the turn is stopped meanwhile."""
        if self.abandoned:
            return
        messages = tuple(self._unwritten.values())
        self._unwritten.clear()
        written = self._say(messages, lambda: not self.abandoned)
        canceled = await outlast(written)
        written.result()
        for message in messages:
            self._show(message)
        if canceled:
            raise canceled

    def _save_draft(self, draft: Draft) -> None:
        """Begins to write the answer that is being given, which is not waited for: the turn's end is."""
        if messages := self.hand_over():
            written = self._say(messages, lambda: self._draft is draft and not self.abandoned)
            written.add_done_callback(lambda done: done.cancelled() or done.exception())

    def hand_over(self) -> tuple[Message, ...]:
        """What of the answer that is being given has to be written before anything else of the session is. Whoever asks
        again, since that was not kept, gets it again."""
        if self._draft is None or self.abandoned:
            return ()
        self._handed |= self._unwritten.keys()
        self._unwritten.clear()
        return tuple(self._messages[id] for id in sorted(self._handed))

    def _show(self, message: Message) -> None:
        if not self.abandoned and self._feed.watched:
            self._feed.publish("message", {**wire_message(message), "seq": self.seq})

    def _open_calls(self) -> list[ToolCall]:
        """Tool calls that no result follows. Only the last step that called tools can have left some: the model is not
        asked again before each call has its result. Ids are distinct within a step, and may be used again in the next.
        """
        answered: set[str] = set()
        for message in reversed(self._messages.values()):
            parts = said(message).parts
            answered.update(part.tool_call_id for part in parts if isinstance(part, ToolResult))
            if calls := [part for part in parts if isinstance(part, ToolCall)]:
                return [call for call in calls if call.id not in answered]
        return []

    def _close_calls(self, why: str) -> None:
        """Gives each open call an error for a result."""
        if calls := self._open_calls():
            self._put(self._new(Role.TOOL, [ToolResult(c.id, c.name, why, is_error=True) for c in calls]))


def _hear(messages: Iterable[Message]) -> list[Said]:
    """What a model hears of these messages."""
    return [heard for heard in map(said, messages) if heard.parts]
