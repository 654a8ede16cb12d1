"""`cancelmark acp`, deliberately broken: `python broken_acp.py FLAW [OPTIONS]`."""

import sys

from cancelmark.impl.acp import agent
from cancelmark.impl.acp.agent import AcpAgent, Session
from cancelmark.impl.acp.peer import INTERNAL, RpcCall
from cancelmark.impl.cli.main import main
from cancelmark.impl.client import RunComplete


class CancelLostBeforeFirstToken(AcpAgent):
    """A cancel counts only when the turn has said something."""

    spoken: frozenset[str] = frozenset()  # sessions

    def hear(self, call: RpcCall) -> None:
        if call.method == "session/prompt":
            self.spoken -= {call.params["sessionId"]}
        if call.method != "session/cancel" or call.params["sessionId"] in self.spoken:
            super().hear(call)

    def _chunk(self, session: str, role: str, id: str, text: str) -> None:
        self.spoken |= {session} if role == "assistant" else set()
        super()._chunk(session, role, id, text)


class ErrorForCancelled(AcpAgent):
    """A canceled prompt is answered with an error."""

    def _answer(self, call: RpcCall, end: RunComplete) -> None:
        if end.outcome == "canceled":
            self.peer.refuse(call, INTERNAL, "Request was aborted.")
        else:
            super()._answer(call, end)


class SecondPromptSwallowed(AcpAgent):
    """A prompt that comes while another runs is forgotten."""

    async def _send(self, session: Session, call: RpcCall) -> None:
        if not any(other is session for other, _ in self._running.values()):
            await super()._send(session, call)


FLAWS: dict[str, type[AcpAgent]] = {
    kind.__name__: kind for kind in (CancelLostBeforeFirstToken, ErrorForCancelled, SecondPromptSwallowed)}

if __name__ == "__main__":
    agent.AcpAgent = FLAWS[sys.argv[1]]  # type: ignore[misc]
    sys.exit(main(["acp", *sys.argv[2:]]))
