"""How the protocol appears on the wire: its actions as HTTP calls, its refusals as statuses, its ends as events.

This is the part of the original's surface that the rules speak of, as data: the tables of specs/protocol.md are made
from it, and the tests hold the runtime and the server to it. A workspace of the wire is what the rules call a server.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, get_args, get_type_hints

from .calls import CALLS, Call
from .lifecycle import Outcome, State

WORKSPACE = "/v1/workspaces/{id}"
AGENT = f"{WORKSPACE}/agent"
SESSION = f"{AGENT}/sessions/{{sid}}"
PROMPT = f"{SESSION}/prompts/{{prompt}}"


@dataclass(frozen=True)
class Request:
    """An HTTP request, what it does in the words of the protocol, and what it is answered when that is done."""

    method: str
    path: str
    does: str
    status: int
    answer: str = ""
    rules: tuple[str, ...] = ("R27a",)


def path_of(call: Call) -> str:
    return (PROMPT if call.names_prompt else SESSION) + call.path


REQUESTS = (
    Request("POST", AGENT,
            "the action `accept`, of the prompt in the body `{session_id, run_id?, prompt, attachments?, if_busy?}`",
            202, "when it is journaled; the same again is answered the same, also one that wants an idle session",
            ("R1d", "R22b", "R22c", "R22d", "R27a", "R27b", "R35a", "R35b")),
    *(Request(call.method, path_of(call), call.does, 200, call.answers, call.rules) for call in CALLS),
    Request("GET", f"{SESSION}/prompts/queued", "how many prompts are queued", 200, "a number"),
    Request("GET", f"{SESSION}/prompts/list", "what is queued", 200,
            "the texts, by place; with `?full=true` the prompts, with seq and version"),
    Request("GET", SESSION, "whether a prompt of the session is not done", 200,
            "`is_busy`, beside the session's fields"),
    Request("GET", f"{WORKSPACE}/events", "a subscription, from `Last-Event-ID` or from now on", 200,
            "server-sent events, each with an id; the first has no data", ("R29a", "R29b", "R29c")),
    Request("DELETE", WORKSPACE, "the action `close`", 200, "when every prompt is done"),
)


@dataclass(frozen=True)
class Refusal:
    """A status that says that nothing was accepted."""

    status: int
    when: str
    rules: tuple[str, ...] = ("R27b",)


REFUSALS = (
    Refusal(400, "the prompt is empty or malformed, names no session that exists, or attaches what is no text"),
    Refusal(404, "there is no such workspace"),
    Refusal(409, "the server is closing, the run id is in use by another prompt, or the prompt wants an idle session"),
    Refusal(429, "a limit of this server is reached; `Retry-After` says when to try again"),
    Refusal(503, "the acceptance cannot be journaled"),
)
UNKNOWN = 500  # the status that says that nobody knows whether the prompt is accepted


@dataclass(frozen=True)
class Field:
    """What a field of `run_complete` says, and when it is there. One that is not always there MAY be empty too."""

    says: str
    when: str = "always"
    there: "Callable[[RunComplete], bool]" = lambda end: True
    rules: tuple[str, ...] = ("R28a",)


@dataclass(frozen=True)
class RunComplete:
    """The terminal event of a prompt: it is done, and how. Without a run id it is that of a prompt that had none."""

    session_id: Annotated[str, Field("the session")] = ""
    seq: Annotated[int, Field("the prompt's seq")] = 0
    outcome: Annotated[str, Field("`end_turn`, `error` or `canceled`")] = ""
    run_id: Annotated[str, Field("the run id that the caller gave", "the caller gave one",
                                 lambda end: bool(end.run_id), ("R28a", "R28b"))] = ""
    message_id: Annotated[str, Field("the last assistant message of its turn", "it was active when it ended",
                                     lambda end: bool(end.message_id))] = ""
    text: Annotated[str, Field("the text of that message", "it has any", lambda end: bool(end.text))] = ""
    error: Annotated[str, Field("what went wrong", "the outcome is `error`",
                                lambda end: end.outcome == Outcome.ERROR.value)] = ""
    cancelled: Annotated[bool, Field("`true`", "the outcome is `canceled`",
                                     lambda end: end.outcome == Outcome.CANCELED.value)] = False


RUN_COMPLETE: Mapping[str, Field] = {
    name: get_args(hint)[1] for name, hint in get_type_hints(RunComplete, include_extras=True).items()}

# How a client can tell the state of a prompt.
SEEN: Mapping[State, str] = {
    State.ACCEPTED: "the POST is answered 202; the session is busy, and the prompt is not in its queue",
    State.CANCELED_ON_ENTRY: "as accepted; its two messages are being written",
    State.QUEUED: "its text is in `prompts/list`",
    State.ACTIVE: "its messages are streamed",
    State.DONE: "its `run_complete` is published; if it was folded, that of the turn that took it in",
}


@dataclass(frozen=True)
class EventType:
    """A type of event on the stream that says something about a prompt."""

    name: str
    says: str
    lost: str
    rules: tuple[str, ...]


EVENTS = (
    EventType("message", "a message of the session, so far: `{id, role, session_id, parts, …}`",
              "a slow subscriber MAY miss it", ("R18b",)),
    EventType("run_complete", "a prompt's terminal event; no message of its turn follows", "never",
              ("R14d", "R18a", "R28a", "R28b", "R29d")),
    EventType("agent_event", "`{type: \"error\", run_id, session_id, error}`: the `run_complete` of this run follows, "
              "with this error", "never", ("R29f",)),
    EventType("gap", "`{missed}` terminal events before this place are not kept any more", "told until it is heard",
              ("R18c", "R29e")),
)


@dataclass(frozen=True)
class FinishReason:
    """The finish reason of the last assistant message of a prompt that had a turn or was settled."""

    outcome: Outcome
    reason: str
    rules: tuple[str, ...] = ("R23a", "R23b")


FINISH_REASONS = (
    FinishReason(Outcome.END_TURN, "what the language model said, such as `end_turn`"),
    FinishReason(Outcome.ERROR, "`error`"),
    FinishReason(Outcome.CANCELED, "`canceled`"),
)
