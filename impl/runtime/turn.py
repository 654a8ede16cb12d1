"""One turn: the user's message, the steps of a language model, and an ending whatever happens.

A turn writes messages and streams updates; it never touches the session. Before each step it asks for follow-ups to
fold in, and at the end it reports how it ended. `run` returns a `Result` for every way in which a turn can end: it may
be stopped at any point, and the model, a tool or the store may fail. Each way leaves the user's message, an assistant
message with a finish reason, and no tool call without a result. The turn returns its last messages with the ending, and
they are committed together with the end of the prompt.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import chain
from time import time
from typing import Any

from cancelmark.model.lifecycle import Outcome

from ..models import (
    ChatMessage,
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
from ..models import Part as SaidPart
from ..store import MessageRecord
from .conversation import LONGEST, Read, read_back, summarize
from .events import Feed
from .messages import finished, said, saying, since_summary, text_of, wire_message, wire_part
from .questions import AskUser, Verdict
from .result import Result
from .tasks import wait_through_cancel

SOON = 0.05  # seconds after which a partial answer is saved

# Starts to write messages, and retries with backoff while the second argument returns True.
Say = Callable[[Sequence[MessageRecord], Callable[[], bool]], "asyncio.Future[Any]"]

# The conversation before the message with this id, from the memory that the session's turns share.
Recall = Callable[[str], Awaitable[Conversation]]

# The messages of the prompts that fold into the turn now, and a cancellation that arrived meanwhile.
FollowUps = Callable[[], Awaitable[tuple[Sequence[MessageRecord], asyncio.CancelledError | None]]]


# Asks a question of the named tool, and waits for its end. None: the turn may not ask, because it is to stop.
Ask = Callable[[AskUser, str], Awaitable[Verdict | None]]

# Whether the tool of an allowed question may start: this is journaled first.
StartTool = Callable[[int], Awaitable[bool]]


@dataclass(frozen=True)
class ToolRunner:
    """A tool, and the function that runs it on the text of its arguments. If the function raises, the model
    receives the error. With `ask`, a turn asks what that returns for the arguments, if anything, before it runs the
    tool."""

    tool: Tool
    run: Callable[[str], Awaitable[str]]
    ask: Callable[[str], AskUser | None] | None = None


class Turn:
    """A turn in progress. It can be stopped, and then ends; or abandoned, and then its output is discarded.

    The user's message, `prompt`, must be in the store before the turn runs. A resumed turn (`is_resumed`, after a
    summary or a restart) finds there what it has written before.
    """

    def __init__(
        self,
        *,
        seq: int,
        run_id: str | None = None,
        prompt: MessageRecord,
        model: Model,
        tools: Mapping[str, ToolRunner],
        history: Read,
        recall: Recall,
        say: Say,
        follow_ups: FollowUps,
        feed: Feed,
        ask: Ask,
        start_tool: StartTool,
        is_resumed: bool = False,
    ) -> None:
        self.seq, self._run_id, self.model, self.tools = seq, run_id, model, tools
        self.abandoned = False
        self._history, self._recall, self._say, self._follow_ups, self._feed = history, recall, say, follow_ups, feed
        self._ask_user, self._start_tool = ask, start_tool
        self._prompt, self._is_resumed = prompt, is_resumed
        self._messages: dict[str, MessageRecord] = {}  # the session's, from the user's message on
        self._found = 0  # how many of these existed when the turn resumed, or was summarized
        self._unwritten: dict[str, MessageRecord] = {}
        self._handed: set[str] = set()  # ids handed over to another commit
        self._earlier: list[ChatMessage] | None = None  # the conversation before, as far as the model looks back
        self._task: asyncio.Task[object] | None = None  # the task that runs it
        self._stopping = False
        self._draft: Draft | None = None  # the assistant message that is being streamed

    # --- for the caller

    async def run(self) -> Result | None:
        """Run the turn in the caller's task, and return its result; None if it must go on after a summary. Raises
        `CancelledError` only if that task is canceled from elsewhere."""
        if not self._is_resumed:
            self._show(self._prompt)
        await self.look_back()
        self._task = asyncio.current_task()
        try:
            return await self._guarded()
        finally:
            self._task = None

    def stop(self) -> bool:
        """Ask the turn to stop, and return whether this was the first request. The turn ends as soon as the model
        returns, or as it was about to end anyway. Idempotent."""
        first = not self._stopping
        if first:
            self._break_off()
        return first

    def _break_off(self) -> None:
        self._stopping = True
        if self._task:  # a task canceled before it starts could not report its ending
            self._task.cancel()

    def abandon(self) -> None:
        """Discard everything that the turn does from now on: it is neither written nor shown."""
        self.abandoned = True
        self._break_off()

    @property
    def unwritten(self) -> tuple[MessageRecord, ...]:
        """The messages still to be written: with the prompt's end, or with its return to the queue."""
        return tuple(self._unwritten.values())

    async def look_back(self) -> None:
        """Load what the turn has written before it was interrupted. Required before the turn can end."""
        if not self._messages:
            found = [self._prompt]
            if self._is_resumed:
                found = list(await self._history(since=self._prompt.id))
            self._messages = {message.id: message for message in found}
            self._found = len(found) if self._is_resumed else 0

    def end(self, outcome: Outcome, error: str | None = None) -> Result:
        """End the turn: write the user's message, give the last answer its finish reason, and every tool call a result.
        Idempotent: a second call finds the answer of the first."""
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
                if self._stopping:  # the model, or a tool, has swallowed the cancel
                    raise asyncio.CancelledError
                self._put(self._new(Role.TOOL, [await self._use(call)]))
                await self._save()
            if self._stopping:
                raise asyncio.CancelledError

    async def _take_in(self) -> None:
        """Fold in the follow-ups that wait, and show them, even if the turn is stopped meanwhile."""
        messages, canceled = await self._follow_ups()
        for message in messages:
            self._messages[message.id] = message
            self._show(message)
        if canceled:
            raise canceled

    async def _step(self) -> MessageRecord:
        """One answer of the model, streamed to subscribers. A slow answer is saved before it is complete; a fast one is
        written with what follows it."""
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

    def _ask(self, conversation: Sequence[ChatMessage], tools: Sequence[Tool] = ()) -> AsyncGenerator[Delta, None]:
        """Start a step of the model, unless the turn is stopping: what was awaited before may have swallowed the
        cancel."""
        if self._stopping:
            raise asyncio.CancelledError
        return self.model.step(conversation, tools)

    async def _use(self, call: ToolCall) -> ToolResult:
        runner = self.tools.get(call.name)
        if runner is None:
            return ToolResult(call.id, call.name, f"unknown tool {call.name!r}; use an offered one", is_error=True)
        try:
            given, refused = await self._get_permission(call, runner)
            if refused:
                return ToolResult(call.id, call.name, refused, is_error=True)
            return ToolResult(call.id, call.name, await runner.run(given))
        except Exception as failed:
            return ToolResult(call.id, call.name, f"{type(failed).__name__}: {failed}", is_error=True)

    async def _get_permission(self, call: ToolCall, runner: ToolRunner) -> tuple[str, str]:
        """What the tool runs on, and why it must not run; the latter is empty if it may. It may have to ask."""
        question = runner.ask(call.input) if runner.ask else None
        if question is None:
            return call.input, ""
        verdict = await self._ask_user(question, call.name)
        if verdict is None:
            return "", "the turn is to stop"
        if not verdict.allowed:
            return "", verdict.reason
        if not await self._start_tool(verdict.number):
            return "", "permission was withdrawn"
        return json.dumps(verdict.question["value"]) if question.kind == "input" else call.input, ""

    async def _summarize(self, failed: ModelError) -> Result | None:
        """Replace a conversation that no longer fits by a summary. Returns None: the turn goes on from there."""
        try:
            summary = await summarize(self._ask, await self._conversation())
        except asyncio.CancelledError:
            return self._canceled()
        except Exception:
            return self.end(Outcome.ERROR, f"{failed.message} (and summarizing the conversation failed)")
        self.end(Outcome.ERROR, failed.message)
        self._put(self._new(Role.SYSTEM, [summary]))
        self._show_unwritten()
        return None

    def _canceled(self) -> Result:
        if self._stopping:
            return self.end(Outcome.CANCELED)
        if self._task and self._task.cancelling():
            raise asyncio.CancelledError  # the event loop is shutting down
        return self.end(Outcome.ERROR, "the model or a tool was canceled, but no cancel was requested")

    def _finish(self, outcome: Outcome, answer: MessageRecord, error: str | None = None) -> Result:
        """The result with this answer."""
        self._show_unwritten()
        return Result(self._prompt.session_id, self._run_id, outcome, text_of(answer), answer.id, error)

    def _show_unwritten(self) -> None:
        for message in self._unwritten.values():
            self._show(message)

    # --- messages

    async def _short_conversation(self) -> list[ChatMessage]:
        """The conversation for the model. A long one is replaced by a summary, and the turn goes on."""
        conversation = await self._conversation()
        if len(conversation) > LONGEST and self.model.hears is None:
            self._put(self._new(Role.SYSTEM, [await summarize(self._ask, conversation)]))
            await self._save()
            self._found = len(self._messages)
            conversation = await self._conversation()
        return conversation

    async def _conversation(self) -> list[ChatMessage]:
        """The conversation for the model: everything since the last summary, as far as the model looks back. If the
        summary has replaced the prompt, it is repeated after the messages that followed the summary before this turn
        resumed: the model must still see what it is to answer."""
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
            if limit is None and not self._is_resumed:
                self._earlier = await self._recall(self._prompt.id)
            else:
                self._earlier = await read_back(
                    self._history, self._prompt.id, None if limit is None else max(0, limit - len(heard)))
        if isinstance(self._earlier, Conversation):
            return Conversation(chain(self._earlier, heard), self._earlier.settled, self._earlier.kept)
        return self._earlier + heard

    def _answer(self) -> MessageRecord | None:
        """The last answer of this turn since the last summary."""
        return next((m for m in reversed(since_summary(list(self._messages.values())))
                     if m.role == Role.ASSISTANT and m.id.startswith(f"p{self.seq}-")), None)

    def _new(self, role: Role, parts: Sequence[SaidPart]) -> MessageRecord:
        """A new message of this turn. Messages are never removed, so their count makes the id unique."""
        now = int(time())
        mine = role is Role.ASSISTANT
        return MessageRecord(f"p{self.seq}-{len(self._messages) + 1}", self._prompt.session_id, role.value,
                       tuple(map(wire_part, parts)), self.model.name if mine else "",
                       self.model.provider if mine else "", now, now)

    def _put(self, message: MessageRecord) -> MessageRecord:
        """Add the message to the conversation, to be written."""
        self._messages[message.id] = self._unwritten[message.id] = message
        return message

    async def _save(self) -> None:
        """Write and show the unwritten messages, even if the turn is stopped meanwhile."""
        if self.abandoned:
            return
        messages = tuple(self._unwritten.values())
        self._unwritten.clear()
        written = self._say(messages, lambda: not self.abandoned)
        canceled = await wait_through_cancel(written)
        written.result()
        for message in messages:
            self._show(message)
        if canceled:
            raise canceled

    def _save_draft(self, draft: Draft) -> None:
        """Start to save the partial answer, without waiting. A failure is ignored: the whole answer is written
        later."""
        if messages := self.hand_over():
            written = self._say(messages, lambda: self._draft is draft and not self.abandoned)
            written.add_done_callback(lambda done: done.cancelled() or done.exception())

    def hand_over(self) -> tuple[MessageRecord, ...]:
        """The unwritten messages of the partial answer, to be written before anything later of the session. Idempotent:
        a caller whose write failed gets them again."""
        if self._draft is None or self.abandoned:
            return ()
        self._handed |= self._unwritten.keys()
        self._unwritten.clear()
        return tuple(self._messages[id] for id in sorted(self._handed))

    def _show(self, message: MessageRecord) -> None:
        if not self.abandoned and self._feed.watched:
            self._feed.publish("message", {**wire_message(message), "seq": self.seq})

    def _open_calls(self) -> list[ToolCall]:
        """Tool calls without a result. Only the last step that called tools can have left some: the model is not asked
        again before each call has its result. Ids are unique within a step, and may be reused in the next."""
        answered: set[str] = set()
        for message in reversed(self._messages.values()):
            parts = said(message).parts
            answered.update(part.tool_call_id for part in parts if isinstance(part, ToolResult))
            if calls := [part for part in parts if isinstance(part, ToolCall)]:
                return [call for call in calls if call.id not in answered]
        return []

    def _close_calls(self, why: str) -> None:
        """Give each open tool call an error as its result."""
        if calls := self._open_calls():
            self._put(self._new(Role.TOOL, [ToolResult(c.id, c.name, why, is_error=True) for c in calls]))


def _hear(messages: Iterable[MessageRecord]) -> list[ChatMessage]:
    """The messages as a model receives them."""
    return [heard for heard in map(said, messages) if heard.parts]
