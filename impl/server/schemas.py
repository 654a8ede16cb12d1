"""What goes over the wire, as types: they judge what is sent, and the OpenAPI document is made from them."""

import json
import re
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

ID = 200  # characters of a run id, a title or the like
PATH = 4096  # characters of a path
PROMPT = 200_000  # characters of a prompt, unless the server is told otherwise


class BadInput(Exception):
    """What was sent cannot be taken; the message names the field."""


def _whole(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("it has half a character in it (a lone surrogate); send whole ones") from None
    if "\0" in text:
        raise ValueError("it has a null character in it; leave it out")
    return text


def _said(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty; say something")
    return text


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError("it is relative, and the server does not know to what; give an absolute path")
    return path


def _none(attachments: list[Any]) -> list[Any]:
    if attachments:
        raise ValueError("this server takes none; put what they say into the prompt")
    return attachments


Whole = BeforeValidator(_whole)
Short = Annotated[str, Field(max_length=ID), Whole]
Client = Annotated[str, AfterValidator(lambda text: client_id(text)), Field(json_schema_extra={"format": "uuid"})]


class Sent(BaseModel):
    """What a client sends. Fields that this server does not know are left alone: the original's clients send more."""

    model_config = ConfigDict(strict=True, extra="ignore")


class Told(BaseModel):
    """What the server answers. It may say more later."""

    model_config = ConfigDict(extra="allow")


class OpenWorkspace(Sent):
    path: Annotated[str, Field(min_length=1, max_length=PATH, json_schema_extra={"pattern": "^/"}), Whole,
                    AfterValidator(_absolute)]
    client_id: Client | None = None


class CreateSession(Sent):
    title: Short = ""


class InitAgent(Sent):
    interactive: bool = False


class SendPrompt(Sent):
    """A prompt. The same again under the same run id is accepted once."""

    session_id: Annotated[str, Field(min_length=1, max_length=ID), Whole]
    prompt: Annotated[str, Whole, AfterValidator(_said), Field(json_schema_extra={"minLength": 1})]
    run_id: Short | None = None
    attachments: Annotated[list[Any], AfterValidator(_none), Field(json_schema_extra={"maxItems": 0})] | None = None


class Problem(Told):
    message: str


class Health(Told):
    status: Literal["ok", "closing"]


class Version(Told):
    version: str
    directory: str  # where the server was started: a workspace to begin with


class WorkspaceTold(Told):
    id: str
    path: str
    clients: list[str]
    is_ready: bool


class SessionTold(Told):
    id: str
    title: str
    created_at: int
    is_busy: bool


class MessageTold(Told):
    id: str
    role: Literal["user", "assistant", "system", "tool"]
    session_id: str
    parts: list[dict[str, Any]]
    model: str
    provider: str
    created_at: int
    updated_at: int


class AgentTold(Told):
    is_busy: bool
    is_ready: bool
    model: str
    provider: str


class Accepted(Told):
    session_id: str
    seq: int
    run_id: str | None = None


class PromptTold(Told):
    seq: int
    session_id: str
    text: str
    state: Literal["accepted", "canceled_on_entry", "queued", "active", "done"]
    run_id: str | None = None
    outcome: Literal["end_turn", "error", "canceled", "folded"] | None = None


class Released(Told):
    released: int


class Done(Told):
    pass


S = TypeVar("S", bound=Sent)


def parsed(data: bytes) -> Any:
    """The JSON value that was sent."""
    try:
        return json.loads(data.decode(), object_pairs_hook=_distinct, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise BadInput(f"the body is not UTF-8: byte {error.start} is {data[error.start]:#04x}; send JSON in UTF-8"
                       ) from None
    except json.JSONDecodeError as error:
        raise BadInput(f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise BadInput("the body is nested too deeply") from None
    except ValueError as error:
        raise BadInput(f"the body cannot be taken: {error}") from None


def checked(kind: type[S], value: Any) -> S:
    """The value as what it should be, or else every field that is wrong, and how."""
    if not isinstance(value, dict):
        raise BadInput(f"the body is {_kind(value)}; send a JSON object with {', '.join(kind.model_fields)}")
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise BadInput("; ".join(map(_complaint, error.errors(include_url=False, include_context=False)))) from None


def client_id(text: str) -> str:
    """The client's id in the form in which ids are compared. Raises ValueError if it is none."""
    if not re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", text):
        raise ValueError(f"{text!r:.80} is not a UUID; make one up and keep it")
    return text.lower()


def _complaint(error: Any) -> str:
    where = ".".join(map(str, error["loc"]))
    what = error["msg"].removeprefix("Value error, ")
    return f"{where}: {what[:1].lower()}{what[1:]}"


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it has the key {twice!r:.80} twice")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _kind(value: Any) -> str:
    kinds = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")
