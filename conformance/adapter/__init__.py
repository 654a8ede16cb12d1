"""The interface between the kit and a server under test: an adapter, about a dozen lines.

    class Mine(Adapter):
        async def open(self) -> None:                          # a server, or a connection to one
            self.server = MyServer(model=self.turns, on_end=self.tell_end)

        async def accept(self, session: str, prompt: Sent) -> None:      # returns when the server has accepted it
            await self.server.post(session, prompt.text, prompt.run_id)

        async def cancel(self, session: str) -> None:
            await self.server.cancel(session)

        def tell_end(self, run_id: str, how: str) -> None:     # the server calls this for each terminal event
            self.tell(Ended(run_id, how))

    print(judge(Mine))

That is enough for a judgement. To declare what else the server offers, implement the method for it: `clear`, `queued`,
`messages`, `delete`, `shut`, `restart`, `attach`, `lose`, `slow` with `catch_up`, and `leave` with `come_back`; or set
`folds`, `outgrows`, `run_ids`, `grace` or `fails_early`. The kit never uses what the adapter does not declare, and
reports the guarantees that need it as not observable. Leave guarantees that the server does not intend to give out of
`claims`; they are reported as not claimed.

**Optional calls.** Some servers also have `revoke`, `stop`, `stop_hold`, `hold` with `resume`, `replace`, `next`, or
`if_busy`, which names what a client may request for a busy session. Each has guarantees of its own. If the server does
not have the call, they are reported as not offered.

**Turns.** The kit controls how long each turn takes and how it ends, because `self.turns` stands in for the language
model. A server in this process calls it: `answer = await self.turns(text)`. An external server uses a fake language
model that the kit serves on a port of this machine: `judge(Mine, llm_port=4545)`.

**Time.** A server in this process runs on a deterministic event loop with virtual time, where the kit chooses the
schedule (`cancelmark.conformance.schedule`). For a server that uses sockets, threads or the clock set `outside = True`.

**Connections.** Races are decided in microseconds. The adapter of an external server should keep its connections open
between calls, open as many as `warm` requests in advance, and send each request in one write.

**Other wire protocols.** The kit knows sessions, and a cancel of everything that a session has accepted.

- Threads or conversations are sessions.
- If the server cancels only by run id, `cancel` loops over the prompts that this adapter has sent and that have not
  ended.
- If the server has no queue and refuses prompts while it is busy, `accept` raises `Refused`.
- If the server assigns ids, keep a dictionary from its id to `prompt.name`.
"""

from .interface import (
    GUARANTEES,
    OPTIONAL,
    Adapter,
    Declined,
    Ended,
    Event,
    MakeAdapter,
    Notice,
    Refused,
    Sent,
    ServerGone,
    Spoken,
    is_gone,
)
from .turns import ContextFull, TurnFailed, Turns, answer_to, failure_of

__all__ = [
    "GUARANTEES", "OPTIONAL", "Adapter", "ContextFull", "Declined", "Ended", "Event", "MakeAdapter", "Notice",
    "Refused", "Sent", "ServerGone", "Spoken", "TurnFailed", "Turns", "answer_to", "failure_of", "is_gone",
]
