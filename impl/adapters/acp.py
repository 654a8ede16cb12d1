"""The adapter for agents that speak the Agent Client Protocol (ACP) over standard input and output.

| the kit | ACP |
| --- | --- |
| a prompt is accepted | the client has written `session/prompt`: the pipe keeps the order, and ACP has no other sign |
| cancel | the client writes `session/cancel` |
| its terminal event | the response to its `session/prompt` |
| `canceled` | stop reason `cancelled` |
| `error` | an error response, or stop reason `refusal` |
| `end_turn` | any other stop reason |
| it is refused | an error response to a prompt that was sent while another ran, and whose turn never started |

ACP specifies one prompt at a time, and is silent about a second one while the first is running. So an agent is judged
in two modes. *Polite*: clients send one prompt at a time, and the guarantees of the specification are judged. *Free*:
clients send prompts at any time, and all guarantees are judged. A guarantee that is broken only in free mode does not
violate the specification, but clients have to know it.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from cancelmark.conformance.adapter import GUARANTEES, Adapter, Declined, Ended, Sent, ServerGone
from cancelmark.conformance.adapter.fake_llm import FakeModel, is_turn
from cancelmark.conformance.adapter.process import NotRunning
from cancelmark.conformance.llm import ModelRequest
from cancelmark.conformance.playing.venue import NotSteered

from ..acp.peer import RpcResponse
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
"""By guarantee, the clause of the specification that promises it, for one prompt at a time."""
STOPS = {"cancelled": "canceled", "refusal": "error"}
BUSY = re.compile(r"already|busy|in progress|running|concurrent|another (turn|prompt|request)", re.IGNORECASE)
LAST_WORDS = 2.0  # seconds for the remaining prompts of a history to end


class TurnsWithTools:
    """Distinguishes turns from requests for titles and summaries: once any request has offered tools, only requests
    with tools are turns."""

    def __init__(self) -> None:
        self.offered = False

    def __call__(self, asked: ModelRequest) -> bool:
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
            raise NotSteered(f"the agent did not call the kit's language model at {model_url}: {error}") from error

    @classmethod
    async def clean_up(cls) -> None:
        if cls.agent:
            await cls.agent.close()
            cls.agent = None

    async def open(self) -> None:
        assert self.agent
        self.names: dict[str, list[str]] = {}  # by session, the names of prompts without a response
        self.texts: dict[str, str] = {}  # by session, the text streamed since its last idle moment
        self.sent_while_busy: set[str] = set()  # names of prompts that were sent while another one was live
        self.stopped: set[str] = set()  # names of prompts that were live at a cancel
        if not self.agent.running:
            await self.agent.stop()
            await self.agent.start()
        self.spawn(self._watch(), name="agent")

    async def _watch(self) -> None:
        assert self.agent
        await asyncio.wait([self.agent.gone])
        self.agent.gone.result()
        raise ServerGone("the agent exited")

    async def close(self) -> None:
        """Cancel the remaining prompts. Kill an agent that does not end them; the next `open` restarts it."""
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
            raise ServerGone("the agent exited") from error
        self.names[id], self.texts[id] = [], ""
        self.agent.sessions[id] = lambda update: self._hear(id, update)
        return id

    async def accept(self, session: str, prompt: Sent) -> None:
        assert self.agent
        names = self.names[session]
        if names:
            self.sent_while_busy |= {prompt.name}
        else:
            self.texts[session] = ""
        names.append(prompt.name)
        said = {"sessionId": session, "prompt": [{"type": "text", "text": prompt.text}]}
        self.agent.peer.send_request("session/prompt", said,
                                     lambda answer: self._answered(session, prompt.name, answer))

    async def cancel(self, session: str) -> None:
        assert self.agent
        self.stopped |= set(self.names[session])
        self.agent.peer.notify("session/cancel", {"sessionId": session})

    def _hear(self, session: str, update: dict[str, Any]) -> None:
        content = update.get("content")
        if update.get("sessionUpdate") == "agent_message_chunk" and isinstance(content, dict):
            self.texts[session] += str(content.get("text") or "")

    def _answered(self, session: str, name: str, answer: RpcResponse) -> None:
        alone = self.names[session] == [name] and name not in self.sent_while_busy
        if name in self.names[session]:
            self.names[session].remove(name)
        self.model.finish(name)  # an agent may resend its text together with the next prompt's: then only that counts
        if answer.error is not None:
            busy = name in self.sent_while_busy and (name not in self.stopped or BUSY.search(answer.error))
            self.tell(Declined(name, answer.error) if busy else Ended(name, "error", error=answer.error))
            return
        reason = str((answer.result or {}).get("stopReason"))
        self.tell(Ended(name, STOPS.get(reason, "end_turn"), self.texts[session] if alone else None))

    async def revive(self) -> None:
        """Do nothing: `open` restarts the agent."""


class PoliteAdapter(AcpAdapter):
    """A client that sends one prompt at a time, and claims only the guarantees of the specification."""

    claims = frozenset(CLAUSES)
    one_at_a_time = True
    model_fails = False
    promises = CLAUSES

    async def queued(self, session: str) -> int:
        """0: with one prompt at a time, none is queued."""
        return 0


MODES: Mapping[str, type[AcpAdapter]] = {"polite": PoliteAdapter, "free": AcpAdapter}


def acp_adapter(how: AgentCommand, mode: str) -> type[AcpAdapter]:
    """The adapter class for an agent with this command, in this mode."""
    return type(f"{mode.capitalize()}Client", (MODES[mode],), {"how": how})
