"""The life cycle of turns: a turn starts when its prompt's start is stored, and submits the prompt's end.

A turn that ignores a stop is abandoned after a grace period. Its prompt then ends, once, and later output of the turn
is discarded.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from time import time
from typing import Any

from cancelmark.model.family import Feature
from cancelmark.model.lifecycle import Outcome, State

from ..models import Model
from ..store import CommitAnswer, Committed, Json, Lost, MessageRecord
from .conversation import ConversationCache
from .environment import Environment, Ready
from .intents import Ask, Enter, Fail, Finish, OnQuestion, Requeue, Settle, TakeIn
from .outbox import Outbox
from .questions import AskUser, Verdict
from .refusals import Refusal
from .result import Result
from .run import Run
from .tasks import has_succeeded, wait_through_cancel
from .turn import ToolRunner, Turn

log = logging.getLogger("cancelmark")

class Turns:
    """Starts and ends the turns of one runtime."""

    def __init__(self, home: Environment, model: Model, tools: Iterable[ToolRunner], grace: float) -> None:
        self.home, self.model, self.grace = home, model, grace
        self.tools = {runner.tool.name: runner for runner in tools}
        if Feature.ASK not in home.protocol.features and any(runner.ask for runner in self.tools.values()):
            names = ", ".join(name for name, runner in self.tools.items() if runner.ask)
            raise ValueError(f"protocol {home.protocol.name} has no questions, and these tools ask: {names}; use a "
                             "protocol with the feature ask, such as FAMILY")
        self._memory = ConversationCache()

    def admit(self, box: Outbox, run: Run) -> None:
        """Let an accepted prompt enter as soon as it can start."""
        if ready := self.home.ready:
            self.home.spawn(self._enter_if_ready(box, run, ready))
        else:
            box.submit_nowait(Enter(run))

    async def _enter_if_ready(self, box: Outbox, run: Run, ready: Ready) -> None:
        try:
            await ready(box.session.id)
        except Exception as error:
            run.pending_result = run.fail(str(error) or type(error).__name__)
            box.submit_nowait(Fail(run))
        else:
            box.submit_nowait(Enter(run))

    def settle(self, box: Outbox, run: Run) -> None:
        """Settle a prompt that was canceled on entry."""
        box.submit_nowait(Settle(run))

    def start(self, box: Outbox, run: Run) -> None:
        """Start the turn of an active prompt."""
        if run.trouble:
            asyncio.get_running_loop().call_soon(box.submit_nowait, Finish(run, run.fail(run.trouble)))
            return
        run.turn = self._make(box, run)
        if run.prompt.covered and not box.may_stop(run.prompt):  # canceled after the step that started it
            run.turn.stop()
        run.task = self.home.spawn(self._run(box, run, run.turn))

    async def _run(self, box: Outbox, run: Run, turn: Turn) -> None:
        """The active prompt's task: run its turn, then submit its end or its return to the queue."""
        try:
            result, messages = await turn.run(), turn.unwritten
        except asyncio.CancelledError:
            return  # the event loop is shutting down: for the prompt that is a crash
        except Exception as failed:  # it could not report its ending
            result, messages = run.fail(f"{type(failed).__name__}: {failed}"), ()
        while result is None and box.may_stop(run.prompt) and not self.home.over.is_set():
            with suppress(Refusal):
                await box.drained()
        if not turn.abandoned:
            box.submit_nowait(Requeue(run, turn) if result is None else Finish(run, result, messages))

    def _make(self, box: Outbox, run: Run) -> Turn:
        prompt, session = run.prompt, box.session
        history = partial(self.home.store.messages, session.id)
        return Turn(
            seq=prompt.seq, run_id=prompt.run_id, prompt=run.message, model=self.model, tools=self.tools,
            history=history, recall=partial(self._memory.recall, session.id, history),
            say=partial(self._store_messages, box, run),
            follow_ups=partial(self._fold_in, box, run), feed=run.feed, ask=partial(self._ask, box, run),
            start_tool=partial(self._start_tool, box, run), is_resumed=run.is_resumed)

    async def _fold_in(self, box: Outbox, run: Run) -> tuple[Sequence[MessageRecord], asyncio.CancelledError | None]:
        """The messages of the prompts that fold into the turn now, and a cancellation that arrived meanwhile."""
        if not box.session.can("step", run.prompt):
            return (), None
        folding = box.submit(TakeIn(run))
        canceled = await wait_through_cancel(folding)
        return [guest.message for guest in folding.result()], canceled

    # --- questions

    async def _ask(self, box: Outbox, run: Run, question: AskUser, tool: str) -> Verdict | None:
        """Ask a question of the turn, and wait for its end. None if the turn may not ask: it is to stop."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Json] = loop.create_future()
        n = await box.submit(Ask(run, question.describe(tool, time()), waiter))
        if not n:
            return None
        expiry = loop.call_later(question.timeout, lambda: box.submit_nowait(
            OnQuestion("withdraw", run, n, {"why": "timeout"}))) if question.timeout else None
        try:
            return Verdict(n, await waiter)
        finally:
            if expiry:
                expiry.cancel()

    async def _start_tool(self, box: Outbox, run: Run, n: int) -> bool:
        """Journal that the tool of an allowed question starts. False if its permission is void."""
        started: bool = await box.submit(OnQuestion("run", run, n, {}))
        return started

    # --- writing messages

    def _store_messages(self, box: Outbox, run: Run, messages: Sequence[MessageRecord], wanted: Callable[[], bool],
                        ) -> "asyncio.Future[Any]":
        """Start to write a turn's messages, and retry with backoff while they are wanted."""
        begin = partial(self.home.store.begin_append_messages, box.session.id, messages, box.epoch, run.prompt.seq)
        answer = begin()
        if has_succeeded(answer) and isinstance(answer.result(), Committed):
            return answer
        return asyncio.ensure_future(self._complete_store(box, answer, begin, wanted))

    async def _complete_store(
        self, box: Outbox, begun: "asyncio.Future[CommitAnswer]", begin: "Callable[[], asyncio.Future[CommitAnswer]]",
        wanted: Callable[[], bool],
    ) -> None:
        if isinstance(await self.home.writer.say(begun, begin, wanted), Lost):
            box.lose()

    # --- stopping

    def begin_grace(self, box: Outbox, run: Run) -> None:
        """If the prompt is active and has no grace period yet, ask its turn to stop and start the grace period."""
        if run.prompt.state is State.ACTIVE and run.grace is None:
            if run.turn:
                run.turn.stop()
            box.publisher.publish_stopping(run.prompt, self.home.ownership.name_node(box))
            run.grace = asyncio.get_running_loop().call_later(
                self.grace, lambda: self.home.spawn(self.abandon(box, run)))

    async def abandon(self, box: Outbox, run: Run) -> None:
        """End a prompt whose turn does not stop."""
        if run.turn:
            await self.home.writer.read(run.turn.look_back)
        if run.turn and self._continues(box, run):
            log.warning("prompt %s: turn abandoned, it did not stop in its grace period", run.prompt)
            result = run.turn.end(Outcome.CANCELED, "the turn did not stop in time")
            messages = run.turn.unwritten
            self.release(run)
            box.submit_nowait(Finish(run, result, messages))

    def _continues(self, box: Outbox, run: Run) -> bool:
        """Whether the prompt's turn is still running: not abandoned, and without an ending that waits to be stored."""
        return (run.prompt.state is State.ACTIVE and run.turn is not None and not run.turn.abandoned
                and not any(isinstance(entry.intent, Finish | Requeue) and entry.intent.of is run
                            for entry in box.entries))

    def release(self, run: Run) -> None:
        """Abandon the turn of the prompt."""
        if run.grace:
            run.grace.cancel()
        if run.task:
            self.home.tasks.discard(run.task)
            self.home.left.add(run.task)
        if run.turn:
            run.turn.abandon()

    async def interrupt(self, box: Outbox, run: Run) -> None:
        """End a turn that has not ended by itself, and wait for its task: the server is closing."""
        turn = run.turn  # None: it has ended already
        if turn is None or not self._continues(box, run):
            return
        task, (result, messages) = run.task, await self._end_interrupted(run, turn)
        self.release(run)
        if task:
            await asyncio.wait([task], timeout=self.grace)
        box.submit_nowait(Finish(run, result, messages))

    # --- what a previous owner has left

    async def adopt(self, box: Outbox, prompts: Iterable[Any]) -> None:
        """Register the prompts that a previous owner has left. A turn that was active ends, and so does its last
        message."""
        for prompt in prompts:
            run = box.register(prompt)
            run.is_resumed = any(move.state is State.ACTIVE for move in await self.home.store.transitions(prompt.seq))
            if prompt.state is State.ACTIVE:
                run.pending_result, run.messages = await self._end_interrupted(run, self._make(box, run))

    async def _end_interrupted(self, run: Run, turn: Turn) -> tuple[Result, Sequence[MessageRecord]]:
        """The ending of a turn whose server is gone or closing, and the messages still to be written."""
        why = self.home.ownership.interrupted
        try:
            await turn.look_back()
            return turn.end(Outcome.ERROR, why), turn.unwritten
        except Exception as error:  # its messages cannot be read; the prompt must end anyway
            log.error("prompt %s: could not complete its last message: %s", run.prompt, error)
            return run.fail(why), ()
