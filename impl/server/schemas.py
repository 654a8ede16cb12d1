"""Pydantic models of the wire types: they validate requests, and the OpenAPI document is generated from them."""

import json
import re
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import cache
from types import NoneType
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from ..wire import Request, Rule, check_text

R = TypeVar("R", bound=Request)

SENT = ConfigDict(strict=True, extra="ignore")
ANSWERED = ConfigDict(extra="allow")  # a later server may add fields
VALUES = 10_000  # JSON values in one body: parsing one costs far more than a character and blocks the event loop


class BadInput(Exception):
    """The request is invalid; the message names the field."""


# --- from the wire's types to pydantic's

def _make_model(kind: Any) -> type[BaseModel]:
    sent = issubclass(kind, Request)
    hints = get_type_hints(kind, include_extras=True)
    left_out: Any = Field(default_factory=object)  # a default that schemas do not show: responses omit the field
    members: dict[str, Any] = {}
    for field in fields(kind):
        required = field.default is MISSING or field.metadata.get("said")
        default = ... if required else field.default if sent else left_out
        members[field.name] = (_with_rules(hints[field.name], sent), default)
    return create_model(kind.__name__, __config__=SENT if sent else ANSWERED, __doc__=kind.__doc__, **members)


model_of: Callable[[Any], type[BaseModel]] = cache(_make_model)
"""The pydantic model with the fields and rules of a type of the wire."""


def _with_rules(hint: Any, sent: bool) -> Any:
    if get_origin(hint) is not Annotated:
        if NoneType in get_args(hint):
            inner = _with_rules(get_args(hint)[0], sent)
            return inner | None if sent else inner  # responses omit unknown fields
        return hint
    kind, rule = get_args(hint)
    assert isinstance(rule, Rule)
    if get_origin(kind) is list:
        (item,) = get_args(kind)
        one: Any = Annotated[model_of(item), AfterValidator(lambda value: item(**dict(value)))]
        return Annotated[list[one], Field(max_length=rule.most, fail_fast=True)]
    if rule.schema and "enum" in rule.schema:
        return Literal[tuple(rule.schema["enum"])]
    made = [Field(min_length=rule.least, max_length=rule.most, json_schema_extra=dict(rule.schema or {}))]
    whole = [BeforeValidator(lambda text: check_text(text) if isinstance(text, str) else text)] if kind is str else []
    return Annotated[kind, *made, *whole, *([AfterValidator(rule.check)] if rule.check else [])]


# --- validating requests

def parse_body(data: bytes) -> Any:
    """The JSON value of a request body. Takes time linear in its size."""
    _refuse_many_values(data)
    try:
        return json.loads(data.decode(), object_pairs_hook=_make_object, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise BadInput(f"the body is not UTF-8: byte {error.start} is {data[error.start]:#04x}; send JSON in UTF-8"
                       ) from None
    except json.JSONDecodeError as error:
        raise BadInput(f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise BadInput("the body is nested too deeply; flatten it") from None
    except ValueError as error:
        raise BadInput(f"invalid body: {error}") from None


def check_request(kind: type[R], value: Any) -> R:
    """The value as a request. Raises `BadInput`, naming every invalid field."""
    model = model_of(kind)
    if not isinstance(value, dict):
        raise BadInput(f"the body is {_KINDS.get(type(value), 'null')}; send a JSON object with "
                       f"{', '.join(model.model_fields)}")
    try:
        return kind(**dict(model.model_validate(value)))
    except ValidationError as error:
        raise BadInput("; ".join(map(_complaint, error.errors(include_url=False, include_context=False)))) from None


_KINDS = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}


def _complaint(error: Any) -> str:
    where = ".".join(map(str, error["loc"]))
    what = error["msg"].removeprefix("Value error, ")
    return f"{where}: {what[:1].lower()}{what[1:]}"


def _refuse_many_values(data: bytes) -> None:
    if _count_values(data) > VALUES:  # an overestimate: strings may contain commas and brackets
        rest, texts = _TEXT.subn(b"", data, 2 * VALUES)
        if texts == 2 * VALUES or _count_values(rest) > VALUES:
            raise BadInput(f"the body has more than {VALUES:,} values; send less")


def _count_values(data: bytes) -> int:
    return data.count(b",") + data.count(b"[") + data.count(b"{")


_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)  # an unterminated string extends to the end


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"duplicate key {name!r:.80}")
            seen.add(name)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON")
