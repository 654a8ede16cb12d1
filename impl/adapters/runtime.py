"""Our own runtime under the conformance kit, in this process: every schedule of it can be chosen and played again."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence

from cancelmark.conformance.adapter import Adapter, Ended, Event, Refused, Sent, Spoken, TurnFailed, Turns
from cancelmark.model.lifecycle import Outcome, State

from ..models import Delta, Failure, Finish, FinishReason, Message, ModelError, Role, TextDelta, Tool
from ..models.scripted import call
from ..runtime import Refusal, Runtime
from ..runtime.events import Subscription
from ..runtime.turn import ToolRunner
from ..store import Answer, MemoryStore, Steps
from ..store import Event as Published


class KitModel:
    """A language model that does what the kit says. Whose turn it is, and who was taken in, is in the journal."""

    name = provider = "conformance"
    hears = None  # everything

    def __init__(self, turns: Turns, store: MemoryStore) -> None:
        self.turns, self.store = turns, store

    async def step(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> AsyncGenerator[Delta, None]:
        asked = {message.text for message in messages if message.role is Role.USER}
        (owner,) = [record for session in await self.store.load_all() for record in session.prompts
                    if record.state is State.ACTIVE and record.text in asked]
        taken_in = [record.text for record in await self.store.prompts(owner.session_id, finished=1000)
                    if record.outcome is Outcome.FOLDED and name_in(record.text) not in self.turns.taken_in]
        try:
            answer = await self.turns.step(owner.text, *taken_in)
        except TurnFailed as failed:
            raise ModelError(Failure.BAD_REQUEST, str(failed)) from None
        if answer is None:
            for delta in call("again", "wait", {}):
                yield delta
            yield Finish(FinishReason.TOOL_USE)
        else:
            yield TextDelta(answer)
            yield Finish(FinishReason.END_TURN)

    async def aclose(self) -> None:
        """Nothing is held."""


class Journal(MemoryStore):
    """A store in memory that a restart can find again."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[Steps] = []

    def _commit_now(self, steps: Steps) -> Answer:
        answer = super()._commit_now(steps)
        self.commits.append(steps)
        return answer

    async def found(self) -> "Journal":
        """What a restart finds: all that was written so far."""
        copy = Journal()
        for steps in self.commits:
            await copy.commit(steps)
        return copy


def name_in(text: str) -> str:
    """The name of the prompt, which is the last word of its text."""
    return text.split()[-1]


async def nothing(_: str) -> str:
    return "done"


class RuntimeAdapter(Adapter):
    """`cancelmark.impl.runtime`, with a store in memory."""

    folds = True

    async def open(self) -> None:
        await self.start(Journal())
        self.subscription: Subscription = self.runtime.broker.subscribe()

    async def start(self, store: Journal) -> None:
        self.store = store
        tools = [ToolRunner(Tool("wait", "does nothing", {"type": "object"}), nothing)]
        self.runtime = Runtime(KitModel(self.turns, store), store, tools=tools)
        await self.runtime.start()

    async def close(self) -> None:
        self.subscription.close()
        await self.runtime.close()

    async def session(self) -> str:
        id = await super().session()
        await self.runtime.create_session(id)
        return id

    async def accept(self, session: str, prompt: Sent) -> None:
        await self.asked(self.runtime.accept(session, prompt.text, prompt.run_id))

    async def cancel(self, session: str) -> None:
        await self.asked(self.runtime.cancel(session))

    async def clear(self, session: str) -> None:
        await self.asked(self.runtime.clear_queue(session))

    async def asked(self, call: Awaitable[object]) -> None:
        try:
            await call
        except Refusal as refusal:
            raise Refused(str(refusal)) from refusal

    async def queued(self, session: str) -> int:
        return len(self.runtime.queued(session))

    async def messages(self, session: str) -> Sequence[Spoken]:
        return [Spoken(m.role, "".join(p["data"]["text"] for p in m.parts if p["type"] == "text"), m.finish_reason)
                for m in await self.store.messages(session)]

    async def shut(self) -> None:
        await self.runtime.close()

    async def events(self) -> AsyncIterator[Event]:
        async for notice in self.subscription:
            if isinstance(notice, Published) and notice.terminal:
                end = notice.payload
                name = notice.run_id or await self.name_of(notice)
                yield Ended(name, end["outcome"], end.get("text"), end.get("error"))

    async def name_of(self, event: Published) -> str:
        """A prompt without a run id is found in the journal, by its seq."""
        record = await self.store.prompt(event.payload["seq"])
        assert record is not None
        return name_in(record.text)

    # --- coming and going

    async def leave(self) -> None:
        self.place = self.subscription.place
        self.subscription.close()

    async def come_back(self) -> None:
        self.subscription = self.runtime.broker.subscribe(after=self.place)

    async def restart(self) -> None:
        """The journal as it is at this moment is all that the next life knows. The old one is closed out of sight."""
        found = await self.store.found()
        place, old = self.subscription.place, self.runtime
        self.subscription.close()
        await old.close(0)
        await self.start(found)
        self.subscription = self.runtime.broker.subscribe(after=place)
