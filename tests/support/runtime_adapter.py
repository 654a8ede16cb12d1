"""Our own runtime under the conformance kit, in this process: every schedule of it can be chosen and played again."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any, ClassVar, TypeVar

from cancelmark.conformance.adapter import ContextFull, Ended, Event, Refused, Sent, Spoken, TurnFailed, Turns
from cancelmark.conformance.adapter.table import TableAdapter
from cancelmark.impl import wire
from cancelmark.impl.models import ChatMessage, Delta, Failure, Finish, FinishReason, ModelError, Role, TextDelta, Tool
from cancelmark.impl.models.scripted import call
from cancelmark.impl.runtime import Refusal, Runtime
from cancelmark.impl.runtime.conversation import SUMMARIZE
from cancelmark.impl.runtime.events import Subscription
from cancelmark.impl.runtime.turn import ToolRunner
from cancelmark.impl.runtime.workspace import GRACE, QUEUE, Workspace
from cancelmark.impl.store import CommitAnswer, CommitRequest, MemoryStore
from cancelmark.impl.store import Event as Published
from cancelmark.impl.store.index import Record
from cancelmark.impl.store.offsets import Offsets
from cancelmark.model.calls import ClientCall
from cancelmark.model.family import QUEUE_FEATURES, Feature
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.protocol import FAMILY, Protocol

T = TypeVar("T")


class KitModel:
    """A language model that does what the kit says. Whose turn it is, and who was taken in, is in the journal."""

    name = provider = "conformance"
    hears = None  # everything

    def __init__(self, turns: Turns, store: MemoryStore) -> None:
        self.turns, self.store = turns, store

    async def step(self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = ()) -> AsyncGenerator[Delta, None]:
        asked = {name_in(message.text): message.text for message in messages if message.role is Role.USER}
        (owner,) = [record for session in await self.store.load_all() for record in session.prompts
                    if record.state is State.ACTIVE and name_in(record.text) in asked]
        folded = {name_in(record.text): record.text for record in await self.store.prompts(
            owner.session_id, finished=1000) if record.outcome is Outcome.FOLDED}
        taken_in = [asked.get(name, text) for name, text in folded.items() if name not in self.turns.taken_in]
        try:
            if messages[-1].text == SUMMARIZE:
                answer: str | None = await self.turns.make_summary(owner.text)
            else:
                answer = await self.turns.step(asked[name_in(owner.text)], *taken_in)
        except TurnFailed as failed:
            raise ModelError(Failure.BAD_REQUEST, str(failed)) from None
        except ContextFull as full:
            raise ModelError(Failure.CONTEXT_TOO_LONG, str(full)) from None
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
        self.commits: list[CommitRequest] = []

    def _commit_now(self, steps: CommitRequest) -> CommitAnswer:
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


FAMILY_CALLS = {feature.value for feature in QUEUE_FEATURES}
FAILS: ContextVar[bool] = ContextVar("fails", default=False)  # the prompt that is being accepted cannot start


async def fail_if_told(_: str) -> None:
    if FAILS.get():
        raise LookupError("the kit wants it to fail before it starts")


class RuntimeAdapter(TableAdapter):
    """`cancelmark.impl.runtime`: a workspace with a store in memory."""

    folds = run_ids = fails_early = True
    outgrows = "error"
    grace = GRACE
    protocol: ClassVar[Protocol] = FAMILY

    def __init__(self) -> None:
        self.features = {feature.value for feature in self.protocol.features}
        self.if_busy = frozenset({"reject", "interrupt"} & self.features)
        self.seqs: dict[str, int] = {}  # of prompts, by name

    def offers(self, what: str) -> bool:
        """The calls of the family that its protocol has."""
        needs = {"stop", "hold"} if what == "stop_hold" else {what} & FAMILY_CALLS
        return super().offers(what) and needs <= self.features

    async def open(self) -> None:
        self.others, self.claim, self.calls = ExitStack(), ExitStack(), set[asyncio.Future[object]]()
        await self.start(Journal())
        self.subscription: Subscription = self.runtime.broker.subscribe()

    async def start(self, store: Journal) -> None:
        self.store = store
        tools = [ToolRunner(Tool("wait", "does nothing", {"type": "object"}), nothing)]
        self.runtime = Runtime(KitModel(self.turns, store), store, tools=tools, ready=fail_if_told,
                               protocol=self.protocol)
        await self.runtime.start()
        self.workspace = Workspace(Record("kit", "/kit", "log", True, True), self.runtime,
                                   Offsets(await store.incarnations(), "log"), await store.sessions(), GRACE, QUEUE,
                                   lambda left: self.go_on_with(left.close()))
        self.watch()

    def watch(self) -> None:
        """This client keeps the workspace open from now on. What it reads is its subscription."""
        self.claim.enter_context(self.workspace.watch("kit", None)).rest()

    def go_on_with(self, call: Awaitable[object]) -> None:
        """Nobody waits for the call."""
        going = asyncio.ensure_future(call)
        self.calls.add(going)
        going.add_done_callback(self.calls.discard)

    async def close(self) -> None:
        self.subscription.close()
        self.claim.close()
        self.others.close()
        await self.workspace.close()
        await asyncio.gather(*self.calls, return_exceptions=True)

    async def session(self) -> str:
        return (await self.workspace.create_session("conformance")).id

    async def accept(self, session: str, prompt: Sent) -> None:
        FAILS.set(prompt.fails)
        mode = Feature(prompt.if_busy) if prompt.if_busy else None
        self.seqs[prompt.name] = (await self.asked(
            self.workspace.accept(session, prompt.text, prompt.run_id, mode=mode))).seq

    async def lose(self, session: str, prompt: Sent) -> None:
        FAILS.set(prompt.fails)
        self.go_on_with(self.workspace.accept(session, prompt.text, prompt.run_id))

    async def make_call(self, call: ClientCall, session: str, prompt: Sent | None = None, **arguments: Any) -> Any:
        key = [self.key_of(prompt)] if prompt else []
        return await self.asked(getattr(self.runtime, call.name)(session, *key, **arguments))

    async def name_stopped(self, answer: wire.Stopped) -> str:
        record = await self.store.prompt(answer.stopped) if answer.stopped else None
        return name_in(record.text) if record else ""

    def key_of(self, prompt: Sent) -> int | str:
        """By what the runtime knows a prompt."""
        return prompt.run_id or self.seqs[prompt.name]

    async def asked(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except Refusal as refusal:
            raise Refused(str(refusal)) from refusal

    async def queued(self, session: str) -> int:
        return len(self.runtime.queued(session))

    async def messages(self, session: str) -> Sequence[Spoken]:
        return [Spoken(m.role, "".join(p["data"]["text"] for p in m.parts if p["type"] == "text"), m.finish_reason)
                for m in await self.store.messages(session)]

    async def shut(self) -> None:
        await self.workspace.close()

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
        self.offset = self.subscription.offset
        self.subscription.close()
        self.claim.close()

    async def come_back(self) -> None:
        self.watch()
        self.subscription = self.runtime.broker.subscribe(after=self.offset)

    async def slow(self) -> None:
        """The kit does not read `events`, and so nobody reads the subscription."""

    async def attach(self) -> None:
        self.others.enter_context(self.workspace.watch(f"another {len(self.workspace.clients)}", None)).rest()
        for session in self.workspace.sessions():
            await self.store.messages(session.id)

    async def restart(self) -> None:
        """The journal as it is at this moment is all that the next life knows. The old one is closed out of sight."""
        found = await self.store.found()
        place, old = self.subscription.offset, self.runtime
        self.subscription.close()
        self.claim.close()
        self.others.close()
        await old.close(0)
        await self.start(found)
        self.subscription = self.runtime.broker.subscribe(after=place)
