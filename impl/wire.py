"""What goes over the wire (specs/wire.md), as plain data: the one definition.

The server judges requests by these types and answers with them, the OpenAPI document is made from them, and clients
read answers into them. A field without a default is always there. One with a default may be left out, and then means
that default; if the default is `said`, our own server does not leave it out, and others may.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from functools import cache
from typing import Annotated, Any, TypeAlias, TypeVar

from cancelmark.model.lifecycle import Outcome, State

T = TypeVar("T")
Json: TypeAlias = Mapping[str, Any]

ID = 200  # characters of a run id, a title or the like
PATH = 4096  # characters of a path
ATTACHMENTS = 100  # of one prompt
CLIENT = "client-id"  # a header: who calls
IF_BUSY = ("queue", "reject", "interrupt")
PROTOCOL = 1
ROLES = ("user", "assistant", "system", "tool")  # those of `models.Role`


# --- rules for what is sent

@dataclass(frozen=True, eq=False)
class Rule:
    """What a field must be beyond its type, and what a schema says of that."""

    least: int | None = None
    most: int | None = None
    check: Callable[[Any], Any] | None = None
    """Returns the value in the form in which it is used, or raises a ValueError that says what is wrong."""
    schema: Json | None = None


def check_text(text: str) -> str:
    """The text, if it is whole: so must be every text that is sent."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("it has half a character in it (a lone surrogate); send whole ones") from None
    if "\0" in text:
        raise ValueError("it has a null character in it; leave it out")
    return text


def check_client_id(text: str) -> str:
    """The client's id in the form in which ids are compared."""
    if not re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", text):
        raise ValueError(f"{text!r:.80} is not a UUID; make one up and keep it")
    return text.lower()


def refuse(wrong: Callable[[Any], bool], why: str) -> Callable[[Any], Any]:
    """A check that refuses what is wrong, and lets the rest pass as it is."""
    def check(value: Any) -> Any:
        if wrong(value):
            raise ValueError(why)
        return value
    return check


def one_of(names: type[Enum] | Sequence[str]) -> Rule:
    """One of these names, as far as this version knows: a client may hear of others."""
    return Rule(schema={"enum": [name.value if isinstance(name, Enum) else name for name in names]})


def said(default: T, *, needed: bool = True) -> T:
    """A default for what our own server always says. Clients do not insist on the kind of what they do not need."""
    made: T = field(default=default, metadata={"said": True, "needed": needed})
    return made


# --- requests

class Request:
    """What a client sends. Fields that a server does not know are left alone: the original's clients send more."""


@dataclass(frozen=True)
class OpenWorkspace(Request):
    """The directory to work in, and who claims it."""

    path: Annotated[str, Rule(1, PATH, refuse(
        lambda path: not path.startswith("/"),
        "it is relative, and the server does not know to what; give an absolute path"), {"pattern": "^/"})]
    client_id: Annotated[str, Rule(check=check_client_id, schema={"format": "uuid"})] | None = None


@dataclass(frozen=True)
class CreateSession(Request):
    """What the session is to be called."""

    title: Annotated[str, Rule(most=ID)] = ""


@dataclass(frozen=True)
class InitAgent(Request):
    """How the agent is to work."""

    interactive: bool = False


def check_kind(mime_type: str) -> str:
    """The kind of an attachment, if it is text."""
    if not mime_type.lower().startswith("text/"):
        raise ValueError(f"{mime_type!r:.80} is no text, and this server takes text alone; send what it says as "
                         "text/plain")
    return mime_type


def check_content(content: str) -> str:
    """The content of an attachment, if it is base64 of text."""
    check_text(decode_content(content))
    return content


def decode_content(content: str) -> str:
    try:
        return b64decode(content, validate=True).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 at byte {error.start}; send text") from None
    except ValueError:
        raise ValueError("it is not base64; encode it") from None


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
    """A prompt: a text, or text attachments, or both. The same again under the same run id is accepted once."""

    session_id: Annotated[str, Rule(1, ID)]
    prompt: Annotated[str, Rule()]
    """May be empty if there are attachments."""
    run_id: Annotated[str, Rule(most=ID)] | None = None
    attachments: Annotated[list[Attachment], Rule(most=ATTACHMENTS)] | None = None
    if_busy: Annotated[str, one_of(IF_BUSY)] | None = None
    """What to do in a session that is busy; `queue` if nothing is said."""


@dataclass(frozen=True)
class StopPrompt(Request):
    """Whom to stop: whoever is in front, or only that prompt if it is; and whether to hold the session too."""

    hold: bool = False
    seq: int | None = None


@dataclass(frozen=True)
class ReplaceText(Request):
    """Another text for a prompt that has not begun. With `if_version`, only in place of that version."""

    prompt: Annotated[str, Rule()]
    if_version: int | None = None


# --- answers

@dataclass(frozen=True)
class Problem:
    """Why nothing was done. A call that comes too late for its prompt is told where the prompt is."""

    message: str
    code: Annotated[str, one_of(("busy", "too_late", "other_version"))] = ""
    state: Annotated[str, one_of(State)] = ""
    outcome: Annotated[str, one_of(Outcome)] = ""
    version: int = 0


@dataclass(frozen=True)
class Health:
    """Whether the server takes new work."""

    status: Annotated[str, one_of(("ok", "closing"))]


@dataclass(frozen=True)
class Ready:
    """Whether the server can take work now."""

    status: Annotated[str, one_of(("ok", "away", "closing"))]


@dataclass(frozen=True)
class Version:
    """Which server it is. One that does not say its name and protocol may be the original."""

    version: str
    name: str = said("")
    protocol: int = said(0)
    directory: str = said("", needed=False)
    """Where the server was started: a workspace to begin with."""


@dataclass(frozen=True)
class Workspace:
    """A directory whose sessions clients share. The same resolved path is the same workspace."""

    id: str
    path: str
    clients: tuple[str, ...] = said((), needed=False)
    is_ready: bool = said(False, needed=False)


@dataclass(frozen=True)
class Session:
    """A conversation. It is busy while it has a prompt that is not done, and its mark is the seq up to which a cancel
    has reached; not every answer says so."""

    id: str
    title: str = said("")
    created_at: int = said(0, needed=False)
    is_busy: bool | None = said(None)
    held: bool = False
    mark: int = said(0, needed=False)


@dataclass(frozen=True)
class Message:
    """A message of a session as it is now. Not every server says which prompt it belongs to."""

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
    """Whether prompts can be sent, and whether any is not done."""

    is_busy: bool
    is_ready: bool
    model: str = said("", needed=False)
    provider: str = said("", needed=False)


@dataclass(frozen=True)
class Accepted:
    """A prompt that is accepted: how it ends is told by the events. In a session that is held it waits."""

    session_id: str
    seq: int
    run_id: str = ""
    held: bool = False


@dataclass(frozen=True)
class Prompt:
    """A prompt has come to this state; `outcome` says how it ended, once it is done."""

    seq: int
    session_id: str
    state: Annotated[str, one_of(State)]
    text: str = said("")
    run_id: str = ""
    outcome: Annotated[str, one_of(Outcome)] = ""
    attachments: tuple[str, ...] = ()
    """What its attachments are called."""
    stopping: bool = False
    """It was asked to stop; only updates say so."""
    version: int = 0
    """How often its text was replaced."""
    front: int = 0
    """Its place: of two that are queued the higher front is ahead; of the same front, the lower seq."""
    node: str = ""
    """Of one that is active in a cluster: the node that runs it."""


EFFECTS = ("canceled", "asked", "none")


@dataclass(frozen=True)
class Revoked:
    """What a revoke has come to: the prompt is or will be `canceled`; it was `asked` to stop, and may still end
    otherwise; or `none`, because it had ended before."""

    seq: int
    effect: Annotated[str, one_of(EFFECTS)]
    state: Annotated[str, one_of(State)]
    text: str = said("")
    outcome: Annotated[str, one_of(Outcome)] = ""
    into: int = 0
    """Of a prompt that was folded: whose turn has taken it in."""


@dataclass(frozen=True)
class Stopped:
    """Who was in front, and was asked to stop or will be canceled; 0: nobody."""

    stopped: int
    held: bool


@dataclass(frozen=True)
class Held:
    """Whether the session is held."""

    held: bool


@dataclass(frozen=True)
class Replaced:
    """The version of the text that the prompt has now."""

    seq: int
    version: int


@dataclass(frozen=True)
class Placed:
    """How many prompts are ahead."""

    ahead: int


@dataclass(frozen=True)
class Released:
    """How many claims were given up."""

    released: int


@dataclass(frozen=True)
class Done:
    """It is done, and there is nothing else to say."""


# --- events

@dataclass(frozen=True)
class AgentEvent:
    """Something that the agent has to say; with an error, that something failed."""

    type: str = ""
    session_id: str = ""
    run_id: str = ""
    error: str = ""


@dataclass(frozen=True)
class Called:
    """Somebody has called, and something was done: what, to which prompt, and by which client, if it has said so."""

    session_id: str
    call: str
    """Its name in `model.calls`, such as cancel."""
    mark: int = said(0)
    """The session's, as it is then."""
    seq: int = 0
    held: bool = False
    """The call has held the session."""
    client_id: str = ""


@dataclass(frozen=True)
class TakenOver:
    """A node of a cluster has taken a session over from one that is gone: what was active there has ended with an
    error, and what waits goes on here."""

    session_id: str
    node: str
    gone: str


@dataclass(frozen=True)
class Gap:
    """Events between the last place and this one are not kept any more."""

    missed: int


# --- as JSON

def to_json(value: Any) -> dict[str, Any]:
    """The fields that are there. A request leaves out what is None, an answer what means its default."""
    return {name: told for name, left_out in _left_out(value.__class__) if (told := getattr(value, name)) != left_out}


@cache
def _left_out(kind: Any) -> Sequence[tuple[str, Any]]:
    if issubclass(kind, Request):
        return [(f.name, None) for f in fields(kind)]
    return [(f.name, MISSING if f.metadata.get("said") else f.default) for f in fields(kind)]
