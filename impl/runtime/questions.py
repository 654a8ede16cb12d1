"""The questions of turns, in their forms: as a tool asks them, as they are journaled, and as subscribers receive them.

A turn can ask before it runs a tool. A question is journaled with its prompt, as one of a list: what the tool asks, the
question's `status`, and once it has ended, its answer (`answer`, `by` …) or the reason (`why`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from cancelmark.model.questions import Question

from .. import wire
from ..store import Json
from .refusals import NoQuestion, QuestionClosed, Refusal

Kind = Literal["permission", "input"]


@dataclass(frozen=True)
class AskUser:
    """What a turn asks before it runs a tool.

    - Kind `permission`: may the tool run? `options` are names of ways to allow it, for clients to choose from.
    - Kind `input`: the tool needs a value, and runs on its JSON instead of its own input. `schema` is the value's JSON
      Schema.
    - After `timeout` seconds without an answer the question is withdrawn, and the tool does not run.
    """

    title: str
    kind: Kind = "permission"
    options: tuple[str, ...] = ()
    schema: Json | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("permission", "input"):
            raise ValueError(f"kind {self.kind!r} is not known; use permission or input")
        if self.timeout is not None and self.timeout <= 0:
            raise ValueError(f"timeout {self.timeout} is not positive; leave it out to wait without a limit")
        if self.schema is not None:
            _validator(self.schema)

    def describe(self, tool: str, now: float) -> Json:
        """The question as it is journaled when it is asked."""
        told = {"kind": self.kind, "title": self.title, "tool": tool, "options": list(self.options),
                "json_schema": self.schema, "expires_at": int(now + self.timeout) if self.timeout else 0}
        return {name: value for name, value in told.items() if value}


@dataclass(frozen=True)
class Reply:
    """A client's answer to a question. A denial may carry a text for the model."""

    allow: bool
    option: str = ""
    value: Any = None
    text: str = ""

    @property
    def answer(self) -> str:
        return "allow" if self.allow else "deny"

    def describe(self, by: str) -> Json:
        """What the answer adds to the question's journal."""
        told = {"answer": self.answer, "option": self.option, "value": self.value, "text": self.text, "by": by}
        return {name: value for name, value in told.items() if value not in ("", None)}

    def check(self, question: Json) -> None:
        """Raise `Refusal` if the question does not take this answer. It stays open then."""
        if not self.allow:
            return
        if question.get("kind") != "input":
            options = question.get("options", ())
            if self.option and self.option not in options:
                raise Refusal(f"option: {self.option!r:.80} is not an option of this question; "
                              + (f"choose one of {', '.join(options)}" if options else "leave it out"))
            if self.value is not None:
                raise Refusal("value: this question asks for permission only; leave the value out")
            return
        if self.value is None:
            raise Refusal("value: this question asks for a value; give one, or deny")
        if (schema := question.get("json_schema")) is not None:
            error = next(iter(_validator(schema).iter_errors(self.value)), None)
            if error is not None:
                where = ".".join(map(str, ["value", *error.absolute_path]))
                raise Refusal(f"{where}: {error.message:.200}; give a value that fits the question's schema")


def _validator(schema: Json) -> Any:
    try:
        from jsonschema import Draft202012Validator, SchemaError
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "a question with a schema needs jsonschema; pip install 'cancelmark[serve]'") from None
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"schema: {error.message:.200}; give a valid JSON Schema") from None
    return Draft202012Validator(schema)


class Verdict(NamedTuple):
    """What a turn learns of its question."""

    number: int
    question: Json

    @property
    def allowed(self) -> bool:
        return bool(self.question["status"] == Question.ALLOWED.value)

    @property
    def reason(self) -> str:
        """Why the tool must not run, for the model."""
        if self.question["status"] == Question.DENIED.value:
            text = self.question.get("text", "")
            return f"the user denied permission{': ' if text else ''}{text}"
        why = "no answer in time" if self.question.get("why") == "timeout" else self.question.get("why", "withdrawn")
        return f"permission was not given: {why}"


# --- names

def name_question(seq: int, n: int) -> str:
    """The name of a question on the wire: `SEQ.N`."""
    return f"{seq}.{n}"


def parse_question(name: str) -> tuple[int, int]:
    """The seq and the number of a question. Raises `NoQuestion`."""
    seq, _, n = name.partition(".")
    if not all(part.isascii() and part.isdigit() and len(part) < 19 for part in (seq, n)):
        raise NoQuestion(f"ask: {name!r:.80} does not name a question; give SEQ.N, as in the list of questions")
    return int(seq), int(n)


# --- for callers and subscribers

def show_question(session_id: str, seq: int, run_id: str | None, n: int, question: Json) -> wire.Ask:
    """The question as callers and subscribers receive it."""
    known: Mapping[str, Any] = {name: question[name] for name in SHOWN if name in question}
    return wire.Ask(name_question(seq, n), session_id, seq, run_id=run_id or "", **{
        **known, "options": tuple(known.get("options", ())), "started": question["status"] == Question.RAN.value})


SHOWN = ("kind", "title", "tool", "options", "json_schema", "expires_at", "status", "answer", "option", "value", "text",
         "by", "why")


def summarize_questions(seq: int, questions: Sequence[Json]) -> tuple[Json, ...]:
    """The questions as a terminal event reports them. One that has `started` may have run."""
    return tuple({"ask": name_question(seq, n), "status": question["status"],
                  "started": question["status"] == Question.RAN.value} for n, question in enumerate(questions, 1))


def list_open(questions: Sequence[Json]) -> Iterator[int]:
    """The numbers of the open questions."""
    return (n for n, question in enumerate(questions, 1) if question["status"] == Question.OPEN.value)


def repeat_answer(shown: wire.Ask, reply: Reply) -> wire.AskAnswered:
    """The answer to a late caller, whose question is closed: a repeated answer has no effect. Raises
    `QuestionClosed`."""
    if shown.status in (Question.WITHDRAWN.value, Question.VOID.value):
        raise QuestionClosed(f"question {shown.ask} no longer takes an answer: it was withdrawn ({shown.why})", shown)
    if (shown.answer, shown.option, shown.value) != (reply.answer, reply.option, reply.value):
        raise QuestionClosed(f"question {shown.ask} was answered: {shown.answer}", shown)
    return wire.AskAnswered(shown.ask, shown.status, "none", shown.by, shown.started)
