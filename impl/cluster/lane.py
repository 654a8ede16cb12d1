"""A session as one of several nodes sees it: owned by this node, owned by another, or by nobody."""

import asyncio
from collections.abc import Iterable, Mapping

from cancelmark.model.lifecycle import State

from ..runtime.events import Broker
from ..runtime.lane import Lane, LaneStep
from ..runtime.run import Run
from ..runtime.session import Effects, Prompt, Session
from ..store import Snapshot


class SharedLane(Lane):
    """A session, and what this node has to do with it. It is this node's own while it has an epoch."""

    __slots__ = ("_feed", "_waiting", "claim", "free", "release")

    def __init__(self, session: Session, broker: Broker) -> None:
        super().__init__(session, -1)
        self.epoch = None
        self.free = False  # nobody owns it
        self.claim = self.release = ""  # what the commit that is under way asks for
        self._waiting: list[asyncio.Future[None]] = []
        self._feed = broker.feed(session.id)
        self._feed.close()

    @property
    def owned(self) -> bool:
        return self.epoch is not None

    def reload(self, snapshot: Snapshot, since: Iterable[Prompt]) -> None:
        super().reload(snapshot, since)
        self.epoch = snapshot.epoch if snapshot.owned else None
        self.free = snapshot.free
        counter = self.session.counter
        counter.latest = max([counter.latest, snapshot.mark, *self.session.prompts])

    def take_again(self, step: LaneStep) -> Effects:
        """Takes the step on the session that was loaded. A cancel reaches what others have accepted meanwhile: whoever
        has called may have been told of that."""
        first = step.effects
        if first.action == "cancel":
            return self.session.take("cancel")
        return super().take_again(step)

    def needs_owner(self) -> bool:
        """Whether somebody has something to do in it: a prompt runs, is still to enter, or is next (C7b)."""
        prompts = self.session.prompts.values()
        return bool(prompts) and (not self.session.held or any(p.state is not State.QUEUED for p in prompts))

    def _all_runs(self) -> Mapping[int, Run]:
        moved = [prompt for step in self.steps for prompt, _ in step.effects.moved]
        if all(prompt.seq in self.runs for prompt in moved):
            return self.runs
        return {**{p.seq: self.make_run(p) for p in moved}, **self.runs}

    def list_actions(self) -> list[list[object]]:
        """What the steps are, for the journal."""
        return [[effects.action, effects.prompt.seq if effects.prompt else None, _name(effects.variant), mark, held]
                for effects, mark, held, *_ in self.steps if effects.action]

    def make_run(self, prompt: Prompt) -> Run:
        """What is known of a prompt that another node runs, or that nobody does."""
        run = Run(prompt, self._feed, 0)
        run.goes_on = self.had_begun(prompt)
        return run

    # --- one at a time

    async def take(self) -> None:
        """Waits until nothing is under way in it, and keeps others out."""
        while self.working:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting
        self.working = True

    def wake(self) -> None:
        """Nothing is under way any more: those who wait look again."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)


def _name(variant: object) -> object:
    return getattr(variant, "value", variant)
