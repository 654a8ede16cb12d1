"""An agent of the Agent Client Protocol behind the adapter of the conformance kit, over standard input and output.

| the kit says | the protocol says |
| --- | --- |
| a prompt is accepted | `session/prompt` is written: the pipe keeps the order, and nothing else says so |
| cancel | `session/cancel` is written |
| its terminal event | the answer to its `session/prompt` |
| `canceled` | stop reason `cancelled` |
| `error` | an error, or stop reason `refusal` |
| `end_turn` | any other stop reason |
| it is refused | an error, to a prompt that was sent while another one ran and whose turn never started |

The protocol says what happens to one prompt at a time, and is silent about a second one while the first runs. So an
agent is judged twice. *Polite*: clients send one prompt at a time, and what the text promises is judged. *Free*: they
send whatever they like, by all guarantees; what does not hold there breaks no promise, and clients have to know it.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from cancelmark.conformance.adapter import GUARANTEES, Adapter, Declined, Ended, Sent, ServerGone
from cancelmark.conformance.adapter.fake_llm import FakeModel, is_turn
from cancelmark.conformance.adapter.process import NotRunning
from cancelmark.conformance.llm import Asked
from cancelmark.conformance.playing.venue import NotSteered

from ..acp.peer import Answer
from .agents import Agent, AgentCommand

SILENT = "the text is silent"
CLAUSES: Mapping[str, str] = {
    "no-lost-cancel": "ACP v1, Prompt Turn, Cancellation: “Clients MAY cancel an ongoing prompt turn at any time”, "
                      "and a turn “begins when the Client sends a `session/prompt`”",
    "cancel-stops": "ACP v1, Prompt Turn, Cancellation: the agent “SHOULD stop all language model requests … as soon "
                    "as possible”",
    "attribution": "ACP v1, Prompt Turn, Cancellation: “Agents MUST catch these errors and return the semantically "
                   "meaningful `cancelled` stop reason”",
    "some-terminal": "ACP v1, Prompt Turn, Check for Completion: “the turn ends and the Agent MUST respond to the "
                     "original `session/prompt` request”",
    "one-terminal": "JSON-RPC 2.0, which ACP uses: each request has one response",
    "no-poisoning": "ACP v1, Prompt Turn: “Once a prompt turn completes, the Client may send another `session/prompt`”",
    "isolation": "ACP v1, Session Setup: “multiple independent interactions with the same Agent”",
    "progress": "ACP v1, Session Setup: “The Agent MUST respond with a unique Session ID”",
}
"""Where the text promises a guarantee, as long as one prompt runs at a time."""
STOPS = {"cancelled": "canceled", "refusal": "error"}
BUSY = re.compile(r"already|busy|in progress|running|concurrent|another (turn|prompt|request)", re.IGNORECASE)
LAST_WORDS = 2.0  # seconds for what a history has left behind to end


class TurnsWithTools:
    """Which requests are turns, of an agent that also asks for titles and summaries: those that offer tools, as soon as
    one has."""

    def __init__(self) -> None:
        self.offered = False

    def __call__(self, asked: Asked) -> bool:
        self.offered = self.offered or asked.tools > 0
        return is_turn(asked) and (asked.tools > 0 or not self.offered)


class AcpAdapter(Adapter):
    """One client of an agent. The process serves all histories of a judgement."""

    outside = True
    start_limit = 240.0
    how: ClassVar[AgentCommand]
    model: ClassVar[FakeModel]
    agent: ClassVar[Agent | None] = None
    promises: ClassVar[Mapping[str, str]] = {
        guarantee: f"{SILENT} about a second prompt while one runs; for one at a time, {CLAUSES[guarantee]}"
        if guarantee in CLAUSES else SILENT for guarantee in GUARANTEES}

    @classmethod
    def make_model(cls) -> FakeModel:
        cls.model = FakeModel(is_turn=TurnsWithTools())
        cls.model.breaks_off_for_good = True
        return cls.model

    @classmethod
    async def prepare(cls, model_url: str) -> None:
        cls.agent = Agent(cls.how, model_url, cls.model.serve)
        await cls.agent.start()
        session = await cls.agent.open_session()
        try:
            await cls.agent.warm_up(session)
        except NotRunning as error:
            if cls.model.asked:
                raise
            raise NotSteered(f"nothing has reached the kit's language model at {model_url}: {error}") from error

    @classmethod
    async def clean_up(cls) -> None:
        if cls.agent:
            await cls.agent.close()
            cls.agent = None

    async def open(self) -> None:
        assert self.agent
        self.names: dict[str, list[str]] = {}  # of the prompts that are not answered, by session
        self.texts: dict[str, str] = {}  # what was said in a session while one prompt was not answered
        self.crowded: set[str] = set()  # names of prompts that were sent while another one was not answered
        self.stopped: set[str] = set()  # names of prompts that a cancel was written after
        if not self.agent.running:
            await self.agent.stop()
            await self.agent.start()
        self.spawn(self._watch(), name="agent")

    async def _watch(self) -> None:
        assert self.agent
        await asyncio.wait([self.agent.gone])
        self.agent.gone.result()
        raise ServerGone("the agent has ended")

    async def close(self) -> None:
        """Cancels what is left. An agent that does not even end this is started anew."""
        assert self.agent
        for session in (session for session, names in self.names.items() if names):
            await self.cancel(session)
        loop = asyncio.get_running_loop()
        until = loop.time() + LAST_WORDS
        while self.agent.running and any(self.names.values()) and loop.time() < until:
            await asyncio.sleep(0.01)
        for task in self._tasks:
            task.cancel()
        if any(self.names.values()):
            self.agent.kill()
            await asyncio.wait([self.agent.gone])
        for session in self.names:
            self.agent.sessions.pop(session, None)

    async def session(self) -> str:
        assert self.agent
        try:
            id = await self.agent.open_session()
        except NotRunning as error:
            if self.agent.running:
                raise
            raise ServerGone("the agent has ended") from error
        self.names[id], self.texts[id] = [], ""
        self.agent.sessions[id] = lambda update: self._hear(id, update)
        return id

    async def accept(self, session: str, prompt: Sent) -> None:
        assert self.agent
        names = self.names[session]
        if names:
            self.crowded |= {prompt.name}
        else:
            self.texts[session] = ""
        names.append(prompt.name)
        said = {"sessionId": session, "prompt": [{"type": "text", "text": prompt.text}]}
        self.agent.peer.ask("session/prompt", said, lambda answer: self._answered(session, prompt.name, answer))

    async def cancel(self, session: str) -> None:
        assert self.agent
        self.stopped |= set(self.names[session])
        self.agent.peer.notify("session/cancel", {"sessionId": session})

    def _hear(self, session: str, update: dict[str, Any]) -> None:
        content = update.get("content")
        if update.get("sessionUpdate") == "agent_message_chunk" and isinstance(content, dict):
            self.texts[session] += str(content.get("text") or "")

    def _answered(self, session: str, name: str, answer: Answer) -> None:
        alone = self.names[session] == [name] and name not in self.crowded
        if name in self.names[session]:
            self.names[session].remove(name)
        self.model.finish(name)  # an agent may say what was canceled again, in one message with the next prompt
        if answer.error is not None:
            busy = name in self.crowded and (name not in self.stopped or BUSY.search(answer.error))
            self.tell(Declined(name, answer.error) if busy else Ended(name, "error", error=answer.error))
            return
        reason = str((answer.result or {}).get("stopReason"))
        self.tell(Ended(name, STOPS.get(reason, "end_turn"), self.texts[session] if alone else None))

    async def revive(self) -> None:
        """`open` starts it again."""


class PoliteAdapter(AcpAdapter):
    """A client that sends one prompt at a time, to an agent that is held to what the text promises."""

    claims = frozenset(CLAUSES)
    one_at_a_time = True
    model_fails = False
    promises = CLAUSES

    async def queued(self, session: str) -> int:
        """Who sends one at a time has nothing that waits."""
        return 0


MODES: Mapping[str, type[AcpAdapter]] = {"polite": PoliteAdapter, "free": AcpAdapter}


def acp_adapter(how: AgentCommand, mode: str) -> type[AcpAdapter]:
    """The adapter of an agent that is started so."""
    return type(f"{mode.capitalize()}Client", (MODES[mode],), {"how": how})
