"""The life of a turn: it is started when its prompt's start is stored, and asks for its end.

A turn that ignores a stop is abandoned after a grace period: its prompt ends, once, and what it says then goes nowhere.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from cancelmark.model.lifecycle import Outcome, State

from ..models import Model
from ..store import Answer, Committed, Lost, Message
from .conversation import Memory
from .intents import Enter, Fail, Finish, Requeue, Settle, TakeIn
from .outbox import Environment, Outbox, Ready
from .refusals import Refusal
from .result import Result
from .run import Run
from .tasks import has_succeeded, outlast
from .turn import ToolRunner, Turn

log = logging.getLogger("cancelmark")

class Turns:
    """The turns of one runtime."""

    def __init__(self, home: Environment, model: Model, tools: Iterable[ToolRunner], grace: float) -> None:
        self.home, self.model, self.grace = home, model, grace
        self.tools = {runner.tool.name: runner for runner in tools}
        self._memory = Memory()

    def let_in(self, box: Outbox, run: Run) -> None:
        """An accepted prompt enters, as soon as it can start."""
        if ready := self.home.ready:
            self.home.spawn(self._enter_if_ready(box, run, ready))
        else:
            box.tell(Enter(run))

    async def _enter_if_ready(self, box: Outbox, run: Run, ready: Ready) -> None:
        try:
            await ready(box.session.id)
        except Exception as error:
            run.said = run.fail(str(error) or type(error).__name__)
            box.tell(Fail(run))
        else:
            box.tell(Enter(run))

    def settle(self, box: Outbox, run: Run) -> None:
        """The prompt was canceled on entry."""
        box.tell(Settle(run))

    def start(self, box: Outbox, run: Run) -> None:
        """The prompt is active: its turn begins."""
        if run.trouble:
            asyncio.get_running_loop().call_soon(box.tell, Finish(run, run.fail(run.trouble)))
            return
        run.turn = self._make(box, run)
        if run.prompt.covered and not box.may_stop(run.prompt):  # since the step that started it
            run.turn.stop()
        run.task = self.home.spawn(self._run(box, run, run.turn))

    async def _run(self, box: Outbox, run: Run, turn: Turn) -> None:
        """The active prompt's task: its turn, and then its end or its return to the queue."""
        try:
            result, messages = await turn.run(), turn.unwritten
        except asyncio.CancelledError:
            return  # the event loop ends: for the prompt that is a crash
        except Exception as failed:  # it cannot even say how it ended
            result, messages = run.fail(f"{type(failed).__name__}: {failed}"), ()
        while result is None and box.may_stop(run.prompt) and not self.home.over.is_set():
            with suppress(Refusal):
                await box.drained()
        if not turn.abandoned:
            box.tell(Requeue(run, turn) if result is None else Finish(run, result, messages))

    def _make(self, box: Outbox, run: Run) -> Turn:
        prompt, session = run.prompt, box.session
        history = partial(self.home.store.messages, session.id)
        return Turn(
            seq=prompt.seq, run_id=prompt.run_id, prompt=run.message, model=self.model, tools=self.tools,
            history=history, recall=partial(self._memory.recall, session.id, history), say=partial(self._say, box),
            follow_ups=partial(self._take_in, box, run), feed=run.feed, goes_on=run.goes_on)

    async def _take_in(self, box: Outbox, run: Run) -> tuple[Sequence[Message], asyncio.CancelledError | None]:
        """The messages of the prompts that fold into the turn now, and the request to cancel that came meanwhile."""
        if not box.session.can("step", run.prompt):
            return (), None
        folding = box.ask(TakeIn(run))
        canceled = await outlast(folding)
        return [guest.message for guest in folding.result()], canceled

    # --- what it says

    def _say(self, box: Outbox, messages: Sequence[Message], wanted: Callable[[], bool]) -> "asyncio.Future[Any]":
        """Begins to write what a turn has said, and tries again for as long as that may help and is wanted."""
        answer = self.home.store.begin_say(box.session.id, messages, box.epoch)
        if has_succeeded(answer) and isinstance(answer.result(), Committed):
            return answer
        return asyncio.ensure_future(self._complete_say(box, messages, answer, wanted))

    async def _complete_say(self, box: Outbox, messages: Sequence[Message], begun: "asyncio.Future[Answer]",
                            wanted: Callable[[], bool]) -> None:
        begin_again = partial(self.home.store.begin_say, box.session.id, messages, box.epoch)
        if isinstance(await self.home.writer.say(begun, begin_again, wanted), Lost):
            box.lose()

    # --- when it is to stop

    def begin_grace(self, box: Outbox, run: Run) -> None:
        """Asks the turn to stop, if nobody has, and gives it its grace period, if it has not ended already."""
        if run.prompt.state is State.ACTIVE and run.grace is None:
            if run.turn:
                run.turn.stop()
            box.show_stopping(run.prompt)
            run.grace = asyncio.get_running_loop().call_later(
                self.grace, lambda: self.home.spawn(self.abandon(box, run)))

    async def abandon(self, box: Outbox, run: Run) -> None:
        """Ends a prompt whose turn does not stop (R24a)."""
        if run.turn:
            await self.home.writer.read(run.turn.look_back)
        if run.turn and self._goes_on(box, run):
            log.warning("prompt %s: its turn did not stop and is abandoned", run.prompt)
            result = run.turn.end(Outcome.CANCELED, "the turn did not stop in time")
            messages = run.turn.unwritten
            self.let_go(run)
            box.tell(Finish(run, result, messages))

    def _goes_on(self, box: Outbox, run: Run) -> bool:
        """Whether the prompt's turn has neither ended, which may not be applied yet, nor been abandoned."""
        return (run.prompt.state is State.ACTIVE and run.turn is not None and not run.turn.abandoned
                and not any(isinstance(entry.intent, Finish | Requeue) and entry.intent.of is run
                            for entry in box.entries))

    def let_go(self, run: Run) -> None:
        """Nobody waits for its turn any more."""
        if run.grace:
            run.grace.cancel()
        if run.task:
            self.home.tasks.discard(run.task)
            self.home.left.add(run.task)
        if run.turn:
            run.turn.abandon()

    async def interrupt(self, box: Outbox, run: Run) -> None:
        """Ends a turn that has not ended by itself, once its task has: the server leaves."""
        turn = run.turn  # None: it has ended meanwhile
        if turn is None or not self._goes_on(box, run):
            return
        task, (result, messages) = run.task, await self._end_interrupted(run, turn)
        self.let_go(run)
        if task:
            await asyncio.wait([task], timeout=self.grace)
        box.tell(Finish(run, result, messages))

    # --- what another life has left

    async def take_up(self, box: Outbox, prompts: Iterable[Any]) -> None:
        """Prompts that the last life has left: what was active ends, and what its turn has begun to say is ended."""
        for prompt in prompts:
            run = box.register(prompt)
            run.goes_on = any(move.state is State.ACTIVE for move in await self.home.store.transitions(prompt.seq))
            if prompt.state is State.ACTIVE:
                run.said, run.messages = await self._end_interrupted(run, self._make(box, run))

    async def _end_interrupted(self, run: Run, turn: Turn) -> tuple[Result, Sequence[Message]]:
        """How the turn ends whose server is gone, or leaves, and what is still to be written."""
        why = self.home.ownership.interrupted
        try:
            await turn.look_back()
            return turn.end(Outcome.ERROR, why), turn.unwritten
        except Exception as error:  # what its turn has written cannot be read: it ends all the same
            log.error("prompt %s: its messages cannot be ended: %s", run.prompt, error)
            return run.fail(why), ()
