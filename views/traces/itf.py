"""Traces in the Informal Trace Format (ITF), a JSON format shared by model checkers and tools (Apalache's ADR-015).

Each state has the call that led to it in the variable `call`, so that a document can be replayed. Integers are
`{"#bigint": "3"}`, because the format no longer allows plain numbers. An ITF loop is a repeating sequence of states,
calls included; it therefore starts at the state that the first repeated step leads to.
"""

from collections.abc import Mapping
from typing import Any

from cancelmark.model.protocol import Behaviour
from cancelmark.model.server import Server
from cancelmark.model.session import AnySession, Prompt
from cancelmark.model.trace import Trace, replay

from . import content

VARS = ("call", "seq", "closing", "sessions")
INIT = "init"  # the call of the first state

Json = dict[str, Any]


def trace_itf(trace: Trace, protocol: str | None = None) -> Json:
    """The trace as an ITF document, ready for `json.dumps`, optionally with the name of its protocol."""
    document: Json = {
        "#meta": {"format": "ITF", "format-description": "https://apalache-mc.org/docs/adr/015adr-trace.html",
                  "source": "cancelmark", **({"protocol": protocol} if protocol else {})},
        "vars": list(VARS),
        "states": [{"#meta": {"index": scene.number}, "call": scene.title or INIT, **_server(scene.after)}
                   for scene in content.scenes(trace)],
    }
    if trace.loop is not None:
        document["loop"] = trace.loop + 1
    return document


def _integer(number: int) -> Json:
    return {"#bigint": str(number)}


def _server(server: Server) -> Json:
    return {"seq": _integer(server.seq), "closing": server.closing, "sessions": [_session(s) for s in server.sessions]}


def _session(session: AnySession) -> Json:
    return {"mark": _integer(session.mark), "down": session.down, "prompts": [_prompt(p) for p in session.prompts]}


def _prompt(prompt: Prompt) -> Json:
    return {"seq": _integer(prompt.seq), "run_id": prompt.run_id, "state": prompt.state.value,
            "outcome": prompt.outcome.value if prompt.outcome else "none",
            "reach": prompt.reach.value, "ends": _integer(prompt.ends)}


def itf_calls(document: object) -> list[str]:
    """The calls of an ITF document, in order, as input for `replay`. Raises ValueError for an invalid document."""
    if not isinstance(document, Mapping):
        raise ValueError(f"an ITF trace is a JSON object, not {type(document).__name__}")
    names, states = document.get("vars"), document.get("states")
    if not isinstance(names, list) or "call" not in names:
        raise ValueError('"vars" must be a list with the variable "call" in it')
    if not isinstance(states, list) or not states:
        raise ValueError('"states" must be a list of at least one state')
    for index, state in enumerate(states):
        if not isinstance(state, Mapping) or not isinstance(state.get("call"), str):
            raise ValueError(f'state {index} must be an object with a text for "call"')
    first, *calls = [str(state["call"]) for state in states]
    if first != INIT:
        raise ValueError(f'state 0 must have "{INIT}" for its call, not "{first}": it is the start')
    return calls


def itf_trace(protocol: Behaviour, document: Json) -> Trace:
    """Replay the trace of an ITF document with the protocol, and compare it state by state. Raises ValueError at the
    first state that differs."""
    calls = itf_calls(document)
    states = document["states"]

    def agrees(number: int, server: Server) -> bool:
        told = _server(server)
        return all(states[number].get(name) == value for name, value in told.items())

    sessions = states[0].get("sessions")
    count = len(sessions) if isinstance(sessions, list) and sessions else 1
    if not agrees(0, Server(sessions=(protocol.start,) * count)):
        raise ValueError(f"state 0 is not the initial state of protocol {protocol.name}")
    return replay(protocol, calls, count, agrees=agrees)
