"""The protocol on the wire: actions as HTTP requests, refusals as status codes, terminal events as stream events.

This is the part of the original's HTTP interface that the rules cover, as data. The tables in specs/protocol.md are
generated from it, and tests check the runtime and the server against it. The rules' *server* is a workspace on the
wire.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_type_hints

from .calls import CALLS, ClientCall
from .lifecycle import Outcome, State

WORKSPACE = "/v1/workspaces/{id}"
AGENT = f"{WORKSPACE}/agent"
SESSION = f"{AGENT}/sessions/{{sid}}"
PROMPT = f"{SESSION}/prompts/{{prompt}}"


@dataclass(frozen=True)
class Request:
    """An HTTP request, its meaning in the protocol, and the response to a successful request."""

    method: str
    path: str
    does: str
    status: int
    answer: str = ""
    rules: tuple[str, ...] = ("R27a",)


def path_of(call: ClientCall) -> str:
    return (PROMPT if call.names_prompt else SESSION) + call.path


REQUESTS = (
    Request("POST", AGENT,
            "the action `accept`, with the prompt in the body `{session_id, run_id?, prompt, attachments?, if_busy?}`",
            202, "when it is journaled; a retry gets the same response, even if it requires an idle session",
            ("R1d", "R22b", "R22c", "R22d", "R27a", "R27b", "R35a", "R35b")),
    *(Request(call.method, path_of(call), call.does, 200, call.answers, call.rules) for call in CALLS),
    Request("GET", f"{SESSION}/asks", "the open questions of the session's turns", 200,
            "`{ask, seq, status, kind, title, …}` each, where `ask` is `SEQ.N`; with `?all=true` also ended ones",
            ("R36k",)),
    Request("POST", f"{SESSION}/asks/{{ask}}", "the action `answer`, with `{answer, option?, value?, text?}`", 200,
            "`{ask, status, effect, by?, started?}`; a repeated answer has effect `none`, another one is 409 with the "
            "question", ("R36b", "R36c", "R36k")),
    Request("GET", f"{SESSION}/prompts/queued", "the number of queued prompts", 200, "a number"),
    Request("GET", f"{SESSION}/prompts/list", "the queued prompts", 200,
            "the texts in queue order; with `?full=true` the prompts, with seq and version"),
    Request("GET", SESSION, "whether the session has an unfinished prompt", 200,
            "`is_busy`, with the session's other fields"),
    Request("GET", f"{WORKSPACE}/events", "a subscription that starts at `Last-Event-ID` or, without it, now", 200,
            "server-sent events, each with an id; the first has no data", ("R29a", "R29b", "R29c")),
    Request("DELETE", WORKSPACE, "the action `close`", 200, "when every prompt is done"),
)


@dataclass(frozen=True)
class Refusal:
    """A status code that means that no prompt was accepted."""

    status: int
    when: str
    rules: tuple[str, ...] = ("R27b",)


REFUSALS = (
    Refusal(400, "the prompt is empty or malformed, its session does not exist, or an attachment is not text"),
    Refusal(404, "the workspace does not exist"),
    Refusal(409, "the server is closing, another prompt uses the run id, or the prompt requires an idle session"),
    Refusal(429, "a limit of this server is reached; `Retry-After` gives the time to wait"),
    Refusal(503, "the acceptance cannot be journaled, or this server is shutting down while others keep running"),
)
UNKNOWN = 500  # the status code that leaves open whether the prompt was accepted


@dataclass(frozen=True)
class Field:
    """The meaning of a field of `run_complete`, and when it is present. A field that is not always present MAY be empty
    instead."""

    says: str
    when: str = "always"
    there: "Callable[[RunComplete], bool]" = lambda end: True
    rules: tuple[str, ...] = ("R28a",)


@dataclass(frozen=True)
class RunComplete:
    """The terminal event of a prompt: that it is done, and its outcome. `run_id` is empty if the prompt had none."""

    session_id: Annotated[str, Field("the session")] = ""
    seq: Annotated[int, Field("the prompt's seq")] = 0
    outcome: Annotated[str, Field("`end_turn`, `error` or `canceled`")] = ""
    run_id: Annotated[str, Field("the run id that the caller gave", "the caller gave one",
                                 lambda end: bool(end.run_id), ("R28a", "R28b"))] = ""
    message_id: Annotated[str, Field("the last assistant message of its turn", "it was active when it ended",
                                     lambda end: bool(end.message_id))] = ""
    text: Annotated[str, Field("the text of that message", "the message has text", lambda end: bool(end.text))] = ""
    error: Annotated[str, Field("the error message", "the outcome is `error`",
                                lambda end: end.outcome == Outcome.ERROR.value)] = ""
    asks: Annotated[tuple[Mapping[str, Any], ...], Field(
        "the questions of its turn: `{ask, status, started}`", "its turn has asked one", lambda end: bool(end.asks),
        ("R36k",))] = ()
    cancelled: Annotated[bool, Field("`true`", "the outcome is `canceled`",
                                     lambda end: end.outcome == Outcome.CANCELED.value)] = False


RUN_COMPLETE: Mapping[str, Field] = {
    name: get_args(hint)[1] for name, hint in get_type_hints(RunComplete, include_extras=True).items()}

# How a client can tell which state a prompt is in.
SEEN: Mapping[State, str] = {
    State.ACCEPTED: "the POST has returned 202, the session is busy, and the prompt is not in its queue",
    State.CANCELED_ON_ENTRY: "as for accepted; the server is writing its two messages",
    State.QUEUED: "its text is in `prompts/list`",
    State.ACTIVE: "its messages are streamed",
    State.DONE: "its `run_complete` is published; for a folded prompt, the `run_complete` of the turn it folded into",
}


@dataclass(frozen=True)
class EventType:
    """A type of stream event that concerns a prompt."""

    name: str
    says: str
    lost: str
    rules: tuple[str, ...]


EVENTS = (
    EventType("message", "the current content of a message of the session: `{id, role, session_id, parts, …}`",
              "a slow subscriber MAY miss it", ("R18b",)),
    EventType("run_complete", "a prompt's terminal event; no message of its turn follows", "never",
              ("R14d", "R18a", "R28a", "R28b", "R29d")),
    EventType("ask", "a question of a turn, when it opens and when it ends: `{ask, seq, status, …}`", "never",
              ("R36a", "R36b", "R36g", "R36k")),
    EventType("agent_event", "`{type: \"error\", run_id, session_id, error}`: the `run_complete` of this run follows, "
              "with this error", "never", ("R29f",)),
    EventType("gap", "`{missed}` terminal events before this offset are no longer stored", "repeated until received",
              ("R18c", "R29e")),
)


@dataclass(frozen=True)
class FinishReason:
    """The finish reason of the last assistant message of a prompt that had a turn or was settled."""

    outcome: Outcome
    reason: str
    rules: tuple[str, ...] = ("R23a", "R23b")


FINISH_REASONS = (
    FinishReason(Outcome.END_TURN, "the language model's own reason, such as `end_turn`"),
    FinishReason(Outcome.ERROR, "`error`"),
    FinishReason(Outcome.CANCELED, "`canceled`"),
)
