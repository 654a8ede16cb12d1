"""A runtime to test: with a model that a test writes the script for, and with what a caller can see of it all."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from support.scenes import Scenes
from support.stores import at_once, unfinished

from cancelmark.impl.models import Failure, Finish, FinishReason, Model, ModelError, Tool
from cancelmark.impl.models.scripted import Beat, Fail, Gate, call
from cancelmark.impl.runtime import Handle, Outbox, Run, Runtime
from cancelmark.impl.runtime.intents import Enter
from cancelmark.impl.runtime.turn import ToolRunner
from cancelmark.impl.runtime.turns import Turns
from cancelmark.impl.store import Json, Store
from cancelmark.model.lifecycle import State
from cancelmark.model.protocol import REFERENCE, Protocol

PATIENCE = 30.0
OpenStore = Callable[[], Store]


class Doors(Turns):
    """Prompts stay accepted until they are let in, if `holding`."""

    holding = False

    def __init__(self, *made_of: Any) -> None:
        super().__init__(*made_of)
        self._doors: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def door(self, text: str) -> asyncio.Event:
        """Set, it lets in the prompt with this text."""
        return self._doors[text]

    def open_all(self) -> None:
        for door in self._doors.values():
            door.set()

    def admit(self, box: Outbox, run: Run) -> None:
        if self.holding:
            self.home.spawn(self._admit_when_open(box, run, self.door(run.prompt.text)))
        else:
            super().admit(box, run)

    async def _admit_when_open(self, box: Outbox, run: Run, door: asyncio.Event) -> None:
        await door.wait()
        box.submit_nowait(Enter(run))


async def at_once_ready(session_id: str) -> None:
    """Whoever enters may."""


class Held(Runtime):
    """A runtime whose prompts stay accepted until they are let in, if `holding`."""

    def __init__(
        self, model: Model, store: Store, *, tools: Iterable[ToolRunner], grace: float, protocol: Protocol = REFERENCE,
    ) -> None:
        super().__init__(model, store, tools=tools, grace=grace, protocol=protocol)
        self.doors = self.turns = self.ownership.turns = Doors(self, model, tools, grace)  # type: ignore[attr-defined]

    @property
    def holding(self) -> bool:
        return self.doors.holding

    @holding.setter
    def holding(self, holding: bool) -> None:
        self.doors.holding = holding
        self.ready = at_once_ready if holding else None

    def door(self, text: str) -> asyncio.Event:
        return self.doors.door(text)

    def let_all_in(self) -> None:
        self.holding = False
        self.doors.open_all()


class World(Scenes):
    """A runtime with sessions s and t, and the scenes that its model plays for each prompt's text; others it echoes."""

    def __init__(
        self, store: Store, tools: Iterable[ToolRunner] = (), grace: float = PATIENCE, protocol: Protocol = REFERENCE,
    ) -> None:
        super().__init__()
        self.store = store
        self.runtime = Held(self.model, store, tools=tools, grace=grace, protocol=protocol)

    async def accept(self, text: str, run_id: str | None = None, session: str = "s") -> Handle:
        return await self.runtime.accept(session, text, run_id)

    async def active(self, text: str, run_id: str | None = None, session: str = "s") -> tuple[Handle, Gate]:
        """A prompt whose turn is held, and the gate that holds it."""
        gate = self.holds(text)
        handle = await self.accept(text, run_id, session)
        await gate.reached()
        return handle, gate

    async def queued(self, text: str, run_id: str | None = None, session: str = "s") -> Handle:
        """A prompt that has come to the queue."""
        handle = await self.accept(text, run_id, session)
        await until(lambda: at_once(self.store.transitions(handle.seq))[-1].state is State.QUEUED)
        return handle

    def states(self) -> list[State]:
        """The states of the prompts that are not done, by seq, as the journal has them."""
        return [prompt.state for prompt in at_once(unfinished(self.store))]

    def messages(self, session: str = "s") -> list[tuple[str, str | None]]:
        """Who said something, and why that ended."""
        return [(message.role, message.finish_reason) for message in at_once(self.store.messages(session))]

    def ends(self, session: str = "s") -> list[tuple[str | None, str]]:
        """The terminal events: run id and outcome."""
        events = at_once(self.store.events(session=session, terminal=True))
        return [(event.run_id, event.payload["outcome"]) for event in events]

    def end(self, run_id: str) -> Json:
        """The one terminal event of this run id."""
        (event,) = [event for event in at_once(self.store.events(terminal=True)) if event.run_id == run_id]
        return event.payload


async def until(holds: Callable[[], bool]) -> None:
    """Returns as soon as it holds."""
    while not holds():
        await asyncio.sleep(0.001)


@asynccontextmanager
async def world(
    store: Store, tools: Iterable[ToolRunner] = (), grace: float = PATIENCE, held: Iterable[str] = (),
    protocol: Protocol = REFERENCE,
) -> AsyncIterator[World]:
    """A world that is closed at the end, and that left nothing behind. Turns of the `held` texts wait at their gates
    from the beginning, for what a restart brings back."""
    async with asyncio.timeout(PATIENCE):
        made = World(store, tools, grace, protocol)
        for text in held:
            made.holds(text)
        async with made.runtime:
            for session in ("s", "t"):
                await made.runtime.create_session(session)
            yield made
            made.runtime.let_all_in()
        for gate in made.scenes:
            made.model.gate(gate).open()  # what was abandoned may go now
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})


Story = Callable[[World], Awaitable[None]]


def tool(name: str, run: Callable[[str], Awaitable[str]]) -> ToolRunner:
    return ToolRunner(Tool(name, f"the tool {name}", {"type": "object"}), run)


def calls(*ids: str, name: str = "read") -> tuple[Beat, ...]:
    """A scene that calls the tool, once for each id."""
    return (*(beat for id in ids for beat in call(id, name, {"n": id})), Finish(FinishReason.TOOL_USE))


def fails(kind: Failure = Failure.UNAVAILABLE, message: str = "the model is down") -> tuple[Beat, ...]:
    """A scene that fails."""
    return (Fail(ModelError(kind, message)),)
