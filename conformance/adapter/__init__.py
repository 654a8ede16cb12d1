"""What the kit needs of a server that it judges: an adapter, about a dozen lines.

    class Mine(Adapter):
        async def open(self) -> None:                          # a server, or a connection to one
            self.server = MyServer(model=self.turns, on_end=self.tell_end)

        async def accept(self, session: str, prompt: Sent) -> None:      # returns when the server has accepted it
            await self.server.post(session, prompt.text, prompt.run_id)

        async def cancel(self, session: str) -> None:
            await self.server.cancel(session)

        def tell_end(self, run_id: str, how: str) -> None:     # called by the server, for each terminal event
            self.tell(Ended(run_id, how))

    print(judge(Mine))

That is enough to be judged. What else a server offers is told by writing the method for it: `clear`, `queued`,
`messages`, `delete`, `shut`, `restart`, `attach`, `lose`, `slow` with `catch_up`, and `leave` with `come_back`; or by
setting `folds`, `outgrows`, `run_ids`, `grace` or `fails_early`. What it does not offer is never asked for, and
guarantees that need it are reported as not observable. Guarantees that it does not mean to give are left out of
`claims`, and reported as not claimed.

Some servers also have calls of the family: `revoke`, `stop`, `stop_hold`, `hold` with `resume`, `replace`, `next`, and
`if_busy`, which names what a prompt may want of a busy session. Each has guarantees of its own. A server without the
call has nothing to keep there, and is reported so: not offered.

**Turns.** The kit decides how long each turn takes and how it ends, because `self.turns` stands in for the language
model. A server in this process calls it: `answer = await self.turns(text)`. A server elsewhere uses a fake language
model server on a port of this machine, which the kit serves: `judge(Mine, llm_port=4545)`.

**Time.** A server in this process runs on a deterministic event loop, where the kit chooses who comes first and waiting
costs nothing (`cancelmark.conformance.schedule`). One that uses sockets, threads or the clock says `outside = True`.

**Connections.** Races are decided in microseconds. An adapter of a server outside keeps its connections open from one
call to the next, opens as many as `warm` asks for before anything is played, and sends each request in one write.

**Other wires.** The kit speaks of sessions, and of a cancel that reaches all that a session has accepted. If the server
has threads or conversations, those are sessions. If it cancels by run id alone, `cancel` is a loop over the run ids
that this adapter has had accepted and whose end it has not told. If it has no queue and refuses while it is busy,
`accept` raises `Refused`. If it gives out ids instead of taking them, keep a dictionary from its id to `prompt.name`.
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
    Steering,
    is_gone,
)
from .turns import ContextFull, TurnFailed, Turns, answer_to, failure_of

__all__ = [
    "GUARANTEES", "OPTIONAL", "Adapter", "ContextFull", "Declined", "Ended", "Event", "MakeAdapter", "Notice",
    "Refused", "Sent", "ServerGone", "Spoken", "Steering", "TurnFailed", "Turns", "answer_to", "failure_of", "is_gone",
]
