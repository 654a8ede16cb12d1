"""What goes over the wire (specs/wire.md), as plain data: the one definition.

The server validates requests against these types and answers with them, the OpenAPI document is generated from them,
and clients read responses into them. A field without a default is always present. A field with a default may be
omitted, and then means that default; if the default is `said`, our own server never omits it, and other servers may.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from functools import cache
from typing import Annotated, Any, TypeAlias, TypeVar

from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.questions import Question

T = TypeVar("T")
Json: TypeAlias = Mapping[str, Any]

ID = 200  # characters of a run id, a title or the like
PATH = 4096  # characters of a path
ATTACHMENTS = 100  # of one prompt
CLIENT = "client-id"  # the header with the client's id
IF_BUSY = ("queue", "reject", "interrupt")
PROTOCOL = 1
ROLES = ("user", "assistant", "system", "tool")  # as in `models.Role`


# --- validation rules

@dataclass(frozen=True, eq=False)
class Rule:
    """A constraint on a field beyond its type, and its JSON schema."""

    least: int | None = None
    most: int | None = None
    check: Callable[[Any], Any] | None = None
    """Returns the normalized value, or raises a ValueError that says what is wrong."""
    schema: Json | None = None


def check_text(text: str) -> str:
    """The text, if it is valid Unicode without NUL, as every text must be."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("it contains half a character (a lone surrogate); send valid Unicode") from None
    if "\0" in text:
        raise ValueError("it contains a null character; remove it")
    return text


def check_client_id(text: str) -> str:
    """The client's id, normalized for comparison."""
    if not re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", text):
        raise ValueError(f"{text!r:.80} is not a UUID; generate one and keep it")
    return text.lower()


def refuse(wrong: Callable[[Any], bool], why: str) -> Callable[[Any], Any]:
    """A check that refuses wrong values with `why`, and passes others unchanged."""
    def check(value: Any) -> Any:
        if wrong(value):
            raise ValueError(why)
        return value
    return check


def one_of(names: type[Enum] | Sequence[str]) -> Rule:
    """A rule that lists the names which this version knows. A client may receive others."""
    return Rule(schema={"enum": [name.value if isinstance(name, Enum) else name for name in names]})


def said(default: T, *, needed: bool = True) -> T:
    """A default for a field that our own server always sends. With `needed=False`, clients ignore a value of the wrong
    type."""
    made: T = field(default=default, metadata={"said": True, "needed": needed})
    return made


# --- requests

class Request:
    """What a client sends. A server ignores fields that it does not know: the original's clients send more."""


@dataclass(frozen=True)
class OpenWorkspace(Request):
    """The directory to work in, and the client that claims it."""

    path: Annotated[str, Rule(1, PATH, refuse(
        lambda path: not path.startswith("/"),
        "it is a relative path; give an absolute one"), {"pattern": "^/"})]
    client_id: Annotated[str, Rule(check=check_client_id, schema={"format": "uuid"})] | None = None


@dataclass(frozen=True)
class CreateSession(Request):
    """The title of the new session."""

    title: Annotated[str, Rule(most=ID)] = ""


@dataclass(frozen=True)
class InitAgent(Request):
    """How the agent is to work."""

    interactive: bool = False


def check_kind(mime_type: str) -> str:
    """The MIME type of an attachment, if it is text."""
    if not mime_type.lower().startswith("text/"):
        raise ValueError(f"{mime_type!r:.80} is not supported, only text/* is; send the content as "
                         "text/plain")
    return mime_type


def check_content(content: str) -> str:
    """The content of an attachment, if it is base64 of valid text."""
    check_text(decode_content(content))
    return content


def decode_content(content: str) -> str:
    try:
        return b64decode(content, validate=True).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not valid UTF-8 at byte {error.start}; send text") from None
    except ValueError:
        raise ValueError("it is not valid base64; encode it") from None


@dataclass(frozen=True)
class Attachment(Request):
    """A text that belongs to a prompt, such as a file."""

    mime_type: Annotated[str, Rule(1, ID, check_kind, {"pattern": "^[Tt][Ee][Xx][Tt]/"})]
    content: Annotated[str, Rule(check=check_content, schema={"contentEncoding": "base64"})]
    """The text in UTF-8, as base64."""
    file_path: Annotated[str, Rule(most=PATH)] | None = None
    file_name: Annotated[str, Rule(most=PATH)] | None = None

    @classmethod
    def of(cls, text: str, name: str, mime_type: str = "text/plain") -> "Attachment":
        return cls(mime_type, b64encode(text.encode()).decode(), name, name)

    @property
    def text(self) -> str:
        return decode_content(self.content)

    @property
    def name(self) -> str:
        return self.file_path or self.file_name or ""


@dataclass(frozen=True)
class SendPrompt(Request):
    """A prompt: a text, or text attachments, or both. Idempotent under a run id."""

    session_id: Annotated[str, Rule(1, ID)]
    prompt: Annotated[str, Rule()]
    """May be empty if there are attachments."""
    run_id: Annotated[str, Rule(most=ID)] | None = None
    attachments: Annotated[list[Attachment], Rule(most=ATTACHMENTS)] | None = None
    if_busy: Annotated[str, one_of(IF_BUSY)] | None = None
    """What to do if the session is busy; `queue` by default."""


@dataclass(frozen=True)
class StopPrompt(Request):
    """Stops the prompt in front; with `seq`, only if it is that prompt. With `hold`, also holds the session."""

    hold: bool = False
    seq: int | None = None


@dataclass(frozen=True)
class ReplaceText(Request):
    """A new text for a prompt that has not started. With `if_version`, only if its text is at that version."""

    prompt: Annotated[str, Rule()]
    if_version: int | None = None


@dataclass(frozen=True)
class AnswerAsk(Request):
    """An answer to a question of a turn: `allow` or `deny`. The first answer wins."""

    answer: Annotated[str, one_of(("allow", "deny"))]
    option: Annotated[str, Rule(most=ID)] | None = None
    """Of several ways to allow it, the one chosen."""
    value: Any = None
    """For a question that asks for a value."""
    text: Annotated[str, Rule(most=PATH)] | None = None
    """For the model; with a denial, the reason."""


# --- answers

@dataclass(frozen=True)
class Health:
    """Whether the server accepts new work."""

    status: Annotated[str, one_of(("ok", "closing"))]


@dataclass(frozen=True)
class Ready:
    """Whether the server can do work now."""

    status: Annotated[str, one_of(("ok", "away", "closing"))]


@dataclass(frozen=True)
class Version:
    """The server's name and version. A server without a name and protocol may be the original."""

    version: str
    name: str = said("")
    protocol: int = said(0)
    directory: str = said("", needed=False)
    """Where the server was started: the default workspace."""


@dataclass(frozen=True)
class Workspace:
    """A directory whose sessions clients share. The same resolved path is the same workspace."""

    id: str
    path: str
    clients: tuple[str, ...] = said((), needed=False)
    is_ready: bool = said(False, needed=False)


@dataclass(frozen=True)
class Session:
    """A conversation. It is busy while it has a prompt that is not done; its mark is the seq up to which a cancel has
    reached. Some answers omit these."""

    id: str
    title: str = said("")
    created_at: int = said(0, needed=False)
    is_busy: bool | None = said(None)
    held: bool = False
    mark: int = said(0, needed=False)


@dataclass(frozen=True)
class Message:
    """A message of a session as it is now. Some servers omit the prompt that it belongs to."""

    id: str
    role: Annotated[str, one_of(ROLES)]
    session_id: str
    parts: tuple[Json, ...] = said(())
    model: str = said("", needed=False)
    provider: str = said("", needed=False)
    created_at: int = said(0, needed=False)
    updated_at: int = said(0, needed=False)
    run_id: str = ""
    seq: int = 0


@dataclass(frozen=True)
class Agent:
    """Whether prompts can be sent, and whether any prompt is not done."""

    is_busy: bool
    is_ready: bool
    model: str = said("", needed=False)
    provider: str = said("", needed=False)


@dataclass(frozen=True)
class Accepted:
    """An accepted prompt. Events report its end. In a held session it waits."""

    session_id: str
    seq: int
    run_id: str = ""
    held: bool = False


@dataclass(frozen=True)
class Prompt:
    """A prompt in its present state; `outcome` says how it ended, once it is done."""

    seq: int
    session_id: str
    state: Annotated[str, one_of(State)]
    text: str = said("")
    run_id: str = ""
    outcome: Annotated[str, one_of(Outcome)] = ""
    attachments: tuple[str, ...] = ()
    """The names of its attachments."""
    stopping: bool = False
    """It was asked to stop; only in updates."""
    version: int = 0
    """How often its text was replaced."""
    front: int = 0
    """Its position: of two queued prompts the higher front is ahead; with the same front, the lower seq."""
    node: str = ""
    """In a cluster, the node that runs an active prompt."""
    asks: tuple[str, ...] = ()
    """The open questions of its turn; only in lists."""


@dataclass(frozen=True)
class Ask:
    """A question of a turn, named SEQ.N. An open one takes one answer, unless it is withdrawn first. One that has
    `started` may have run its tool, and does not run it again."""

    ask: str
    session_id: str
    seq: int
    status: Annotated[str, one_of(Question)]
    kind: Annotated[str, one_of(("permission", "input"))] = said("permission")
    title: str = said("")
    run_id: str = ""
    tool: str = ""
    options: tuple[str, ...] = ()
    """Ways to allow it."""
    json_schema: Json | None = None
    """The JSON Schema of the value that it asks for."""
    expires_at: int = 0
    """When it is withdrawn, in seconds since 1970."""
    answer: Annotated[str, one_of(("allow", "deny"))] = ""
    option: str = ""
    value: Any = None
    text: str = ""
    by: str = ""
    """The client that answered."""
    why: Annotated[str, one_of(("canceled", "ended", "requeued", "timeout", "turn", "crash"))] = ""
    """Why it was withdrawn."""
    started: bool = False


@dataclass(frozen=True)
class Problem:
    """Why the call was refused. A late caller also gets the present state of its prompt, or the question that has
    ended."""

    message: str
    code: Annotated[str, one_of(("busy", "too_late", "other_version", "answered", "withdrawn"))] = ""
    state: Annotated[str, one_of(State)] = ""
    outcome: Annotated[str, one_of(Outcome)] = ""
    version: int = 0
    ask: Json | None = None
    """The question, as in lists."""


@dataclass(frozen=True)
class AskAnswered:
    """The outcome of an answer: it was `taken`, or had the effect `none`, because the question already had this answer.
    `by` is the client whose answer counts."""

    ask: str
    status: Annotated[str, one_of(Question)]
    effect: Annotated[str, one_of(("taken", "none"))]
    by: str = ""
    started: bool = False


EFFECTS = ("canceled", "asked", "none")


@dataclass(frozen=True)
class Revoked:
    """The outcome of a revoke: the prompt is or will be `canceled`; it was `asked` to stop, and may still end
    otherwise; or `none`, because it had ended before."""

    seq: int
    effect: Annotated[str, one_of(EFFECTS)]
    state: Annotated[str, one_of(State)]
    text: str = said("")
    outcome: Annotated[str, one_of(Outcome)] = ""
    into: int = 0
    """Of a folded prompt: the prompt into whose turn it was folded."""


@dataclass(frozen=True)
class Stopped:
    """The prompt in front, which was asked to stop or will be canceled; 0 if there was none."""

    stopped: int
    held: bool


@dataclass(frozen=True)
class Held:
    """Whether the session is held."""

    held: bool


@dataclass(frozen=True)
class Replaced:
    """The version of the prompt's text now."""

    seq: int
    version: int


@dataclass(frozen=True)
class Placed:
    """How many prompts are ahead of it."""

    ahead: int


@dataclass(frozen=True)
class Released:
    """How many claims were released."""

    released: int


@dataclass(frozen=True)
class Done:
    """Success, without further information."""


# --- events

@dataclass(frozen=True)
class AgentEvent:
    """A notice of the agent; with an error, that something failed."""

    type: str = ""
    session_id: str = ""
    run_id: str = ""
    error: str = ""


@dataclass(frozen=True)
class Called:
    """A call that had an effect: what, on which prompt, and by which client, if it has identified itself."""

    session_id: str
    call: str
    """Its name in `model.calls`, such as cancel."""
    mark: int = said(0)
    """The session's mark after the call."""
    seq: int = 0
    held: bool = False
    """The call has held the session."""
    client_id: str = ""


@dataclass(frozen=True)
class TakenOver:
    """A node of a cluster has taken a session over from a dead one: what was active there has ended with an error, and
    what waits goes on here."""

    session_id: str
    node: str
    gone: str


@dataclass(frozen=True)
class Gap:
    """How many events between the last offset and this one have been deleted from the log."""

    missed: int


# --- as JSON

def to_json(value: Any) -> dict[str, Any]:
    """The fields to send. A request omits None, an answer omits defaults."""
    given = value.__dict__  # faster than `getattr` for each field
    return {name: told for name, left_out in _left_out(value.__class__) if (told := given[name]) != left_out}


@cache
def _left_out(kind: Any) -> Sequence[tuple[str, Any]]:
    if issubclass(kind, Request):
        return [(f.name, None) for f in fields(kind)]
    return [(f.name, MISSING if f.metadata.get("said") else f.default) for f in fields(kind)]
