"""The lines of a trace, which any server can write: NDJSON, one action or one executed effect per line.

`FIELDS` defines the fields of a line, and `NEEDED` the required ones. All others are optional: a line need not report
which rows fired, which effects it requested, or the mark; what it does report is checked. A field of the writer's own
starts with `_`. Any other field is an error, so that a misspelt one does not go unnoticed.

The file is read as a stream, one line at a time. It may be compressed (detected by its first bytes), and may end in the
middle of a line, as after a crash of its writer.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from typing import Any, NamedTuple

from cancelmark.model.effects import ASK_EFFECTS, EFFECTS, Effect, End, Start
from cancelmark.model.family import ALL_ACTIONS, Feature
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.protocol import FAMILY
from cancelmark.model.questions import ANSWERS, Question
from cancelmark.model.session import DEFAULT_TRAITS, Traits

VERSION = 1
LONGEST = 64 * 1024 * 1024  # bytes of a line: a recovery may find many prompts

ACTION = {action.name: action for action in ALL_ACTIONS if action.name != "crash"}
ON_PROMPTS = frozenset({"accept", *(name for name, action in ACTION.items() if action.subject)})
ENDS = {outcome.value: outcome for outcome in Outcome}
OWN_LINE = (Start.kind, End.kind)  # the effects that can have a line of their own
ROW_NAMES = frozenset(row.name for row in FAMILY.rows)
STATES = {state.value: state for state in State}
QUESTIONS = {question.value: question for question in Question}
MODES = {mode.value: mode for mode in (Feature.REJECT, Feature.INTERRUPT)}


class BadTrace(Exception):
    """The file is not a trace. The message says which line is wrong, why, and what to do."""

    def __init__(self, line: int, wrong: str, remedy: str) -> None:
        super().__init__(f"line {line}: {wrong}; {remedy}" if line else f"{wrong}; {remedy}")
        self.line, self.wrong, self.remedy = line, wrong, remedy


class TraceEffect(NamedTuple):
    """An effect in a line."""

    effect: str
    seq: int
    into: int | None = None
    outcome: Outcome | None = None
    ask: int | None = None
    answer: str | None = None

    @classmethod
    def of(cls, effect: Effect) -> "TraceEffect":
        return cls(effect.kind, effect.seq, **{name: getattr(effect, name) for name in effect.details})


class TraceRow(NamedTuple):
    """A row in a line, with the prompt that it moved."""

    seq: int
    row: str


class TraceTraits(NamedTuple):
    """The traits of a prompt after an action, in a line."""

    seq: int
    revoked: bool
    front: int
    version: int
    urgent: bool

    @classmethod
    def of(cls, seq: int, traits: Traits) -> "TraceTraits":
        return cls(seq, traits.revoked, traits.front, traits.version, traits.urgent)


class FoundPrompt(NamedTuple):
    """A prompt that a recovery found in the journal."""

    seq: int
    run_id: str | None
    state: State
    traits: Traits
    asks: tuple[Question, ...] = ()


class FoundSession(NamedTuple):
    """A session that a recovery found in the journal."""

    mark: int
    held: bool
    prompts: tuple[FoundPrompt, ...]


@dataclass(frozen=True, slots=True)
class TraceLine:
    """One line. None: the line does not have the field."""

    number: int  # in the file, from 1
    action: str | None
    effect: str | None
    session: str | None
    seq: int | None
    names: bool  # whether it has a run id, which may be null
    run_id: str | None
    outcome: Outcome | None
    mark: int | None
    n: int | None
    after: int | None
    rows: tuple[TraceRow, ...] | None
    effects: tuple[TraceEffect, ...] | None
    found: Mapping[str, FoundSession] | None
    if_busy: Feature | None
    hold: bool
    held: bool | None
    traits: tuple[TraceTraits, ...] | None
    ask: int | None = None
    answer: str | None = None

    def __str__(self) -> str:
        words = [self.action or self.effect or "", *([] if self.seq is None else [str(self.seq)]),
                 *([] if self.ask is None else [str(self.ask)]), *([] if self.answer is None else [self.answer]),
                 *([] if self.outcome is None else [self.outcome.value]),
                 *([] if self.if_busy is None else [self.if_busy.value]), *(["hold"] if self.hold else [])]
        return " ".join(words) + (f" in session {self.session}" if self.session is not None else "")


class Torn(NamedTuple):
    """A truncated line: its writer was killed, or is still writing."""

    number: int


# --- fields ------------------------------------------------------------------------------------------------------

class Field(NamedTuple):
    """A field: its expected value, as text and as a check, and its meaning."""

    expected: str
    good: Callable[[Any], bool]
    meaning: str


def _count(least: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value < 2 ** 53


def _text(value: Any) -> bool:
    return type(value) is str


def _flag(value: Any) -> bool:
    return type(value) is bool


def _fields(
    value: Any, needed: Mapping[str, Callable[[Any], bool]], optional: Mapping[str, Callable[[Any], bool]] = {},
) -> bool:
    return (type(value) is dict and needed.keys() <= value.keys() <= needed.keys() | optional.keys()
            and all({**needed, **optional}[name](inner) for name, inner in value.items()))


def _rows(value: Any) -> bool:
    return type(value) is list and all(
        _fields(row, {"seq": _SEQ, "row": lambda name: _text(name) and name in ROW_NAMES}) for row in value)


def _effects(value: Any) -> bool:
    return type(value) is list and all(_effect(effect) for effect in value)


def _effect(value: Any) -> bool:
    kind = value.get("effect") if type(value) is dict else None
    return kind in _ASKED and _fields(value, {"effect": _text, "seq": _SEQ, **_ASKED[kind]})


def _is_found(value: Any) -> bool:
    prompt = {"seq": _SEQ, "run_id": _run_id, "state": lambda state: _text(state) and state in STATES}
    traits = {"traits": lambda traits: _fields(traits, {**_TRAITS, "begun": _flag}), "asks": lambda asks: (
        type(asks) is list and all(_text(one) and one in QUESTIONS for one in asks))}
    return type(value) is dict and all(_fields(session, {
        "mark": _count(0),
        "prompts": lambda prompts: type(prompts) is list and all(_fields(p, prompt, traits) for p in prompts),
    }, {"held": _flag}) for session in value.values())


def _made(value: Any) -> bool:
    return type(value) is list and all(_fields(one, {"seq": _SEQ, **_TRAITS}) for one in value)


def _outcome(value: Any) -> bool:
    return _text(value) and value in ENDS


def _run_id(value: Any) -> bool:
    return value is None or type(value) is str


_SEQ = _count(1)
_TRAITS = {"revoked": _flag, "front": _count(0), "version": _count(0), "urgent": _flag}
_DETAILS = {"into": _SEQ, "outcome": _outcome, "ask": _SEQ, "answer": lambda value: _text(value) and value in ANSWERS}
_ASKED: Mapping[Any, Mapping[str, Callable[[Any], bool]]] = {
    effect.kind: {name: _DETAILS[name] for name in effect.details} for effect in (*EFFECTS, *ASK_EFFECTS)}

FIELDS: Mapping[str, Field] = {
    "action": Field(f"one of {', '.join(ACTION)}", lambda value: _text(value) and value in ACTION,
                    "the action that was taken"),
    "effect": Field("start or end", lambda value: value in OWN_LINE,
                    "instead of an action: a turn was started, or a terminal event was published"),
    "session": Field("a string; null for actions on all sessions", _run_id, "the session"),
    "seq": Field("an integer from 1", _SEQ,
                 "the prompt: its number in the order of acceptance, over all sessions"),
    "run_id": Field("a string or null", _run_id, "the run id that the caller gave the prompt; null: none"),
    "outcome": Field(f"one of {', '.join(ENDS)}", _outcome, "the outcome of the turn or the prompt"),
    "mark": Field("an integer from 0", _count(0),
                  "the mark of the session after the action; the highest mark for actions on all sessions"),
    "rows": Field('a list of {"seq": …, "row": …} with names of rows, such as "enter→active"', _rows,
                  "the moves of prompts, in order"),
    "effects": Field('a list of {"effect": …, "seq": …}, a fold with "into" and an end with "outcome"', _effects,
                     "all effects that the action requests, in order"),
    "if_busy": Field("queue, reject or interrupt", lambda value: value == "queue" or (_text(value) and value in MODES),
                     "what the caller wants if the session is busy (default: queue)"),
    "hold": Field("true or false", _flag, "whether a stop also holds the session"),
    "held": Field("true or false", _flag, "whether the session is held after the action"),
    "traits": Field('a list of {"seq": …, "revoked": …, "front": …, "version": …, "urgent": …}', _made,
                    "the prompts whose traits the action has changed, by seq, each with all four traits"),
    "ask": Field("an integer from 1", _SEQ, "the number of a question, in the order in which its prompt's turn asked"),
    "answer": Field(" or ".join(ANSWERS), _DETAILS["answer"], "the answer to the question"),
    "found": Field('an object with {"mark": …, "prompts": […]} for each session', _is_found,
                   "the sessions that a recovery found in the journal; a session may have `held`, and a prompt "
                   "`traits` including `begun`: whether its turn has ever started, and `asks`: the states of its "
                   "questions"),
    "n": Field("an integer from 1", _count(1),
               "the number of the line, from 1 in each life of the server; a numbered trace is complete"),
    "after": Field("an integer from 0", _count(0),
                   "for a late line of an acceptance or a cancel: the number of the last line before it happened"),
    "time": Field("a number", lambda value: type(value) in (int, float), "seconds since 1970; not checked"),
    "v": Field(f"the number {VERSION}", lambda value: type(value) is int and value == VERSION,
               "the version of this format"),
}

NEEDED: Mapping[str, tuple[str, ...]] = {
    **{name: ("seq",) if action.subject else () for name, action in ACTION.items()},
    "accept": ("session", "seq"), "finish": ("seq", "outcome"),
    "answer": ("seq", "ask", "answer"), "run": ("seq", "ask"), "withdraw": ("seq", "ask"),
    **dict.fromkeys(("cancel", "clear_queue", "stop", "hold", "resume"), ("session",)),
    "start": ("seq",), "end": ("seq", "outcome"),
}

_IN_ONE = frozenset(name for name, action in ACTION.items() if not action.everywhere)  # session

ONLY: Mapping[str, frozenset[str]] = {
    "seq": ON_PROMPTS | set(OWN_LINE), "run_id": ON_PROMPTS | set(OWN_LINE), "outcome": frozenset({"finish", "end"}),
    "after": frozenset({"accept", "cancel"}), "found": frozenset({"recover"}), "mark": frozenset(ACTION),
    "rows": frozenset(ACTION), "effects": frozenset(ACTION), "if_busy": frozenset({"accept"}),
    "hold": frozenset({"stop"}), "held": _IN_ONE, "traits": _IN_ONE,
    "ask": frozenset({"answer", "run", "withdraw"}), "answer": frozenset({"answer"}),
}


def parse_line(number: int, value: Any) -> TraceLine:
    """Parse the JSON value of a line."""
    if type(value) is not dict:
        raise BadTrace(number, f"{_kind(value)}, not a JSON object", "write one object per line")
    for name, inner in value.items():
        field = FIELDS.get(name)
        if field is None:
            if name.startswith("_"):
                continue
            raise BadTrace(number, f"unknown field {name!r}",
                           f"choose from {', '.join(FIELDS)}, or start the name of your own field with _")
        if not field.good(inner):
            raise BadTrace(number, f"{name} is {_format_value(inner)}", f"it must be {field.expected}")
    action, effect = value.get("action"), value.get("effect")
    if (action is None) == (effect is None):
        raise BadTrace(number, "both an action and an effect" if action else "no action",
                       'each line is one action, {"action": "accept", …}, or one effect, {"effect": "end", …}')
    kind = str(action or effect)
    for name in NEEDED[kind]:
        if value.get(name) is None:
            raise BadTrace(number, f"{kind} has no {name}", f"it must be {FIELDS[name].expected}")
    for name, kinds in ONLY.items():
        if name in value and kind not in kinds:
            raise BadTrace(number, f"{kind} must not have the field {name}", f"only {', '.join(sorted(kinds))} may")
    everywhere = action is not None and ACTION[action].everywhere
    session = value.get("session")
    if everywhere and session is not None:
        raise BadTrace(number, f"{kind} has a session", "it applies to all sessions: omit the session, or make it null")
    if kind == "finish" and value["outcome"] == "folded":
        raise BadTrace(number, "finish has the outcome folded", "the outcome of a turn is end_turn, error or canceled")
    rows, effects, found = value.get("rows"), value.get("effects"), value.get("found")
    traits = value.get("traits")
    return TraceLine(
        number, action, effect, session, value.get("seq"), "run_id" in value, value.get("run_id") or None,
        ENDS[value["outcome"]] if "outcome" in value else None, value.get("mark"), value.get("n"), value.get("after"),
        None if rows is None else tuple(TraceRow(row["seq"], row["row"]) for row in rows),
        None if effects is None else tuple(
            TraceEffect(e["effect"], e["seq"], e.get("into"), ENDS[e["outcome"]] if "outcome" in e else None,
                        e.get("ask"), e.get("answer")) for e in effects),
        None if found is None else {name: FoundSession(session["mark"], session.get("held", False), tuple(
            FoundPrompt(p["seq"], p["run_id"] or None, STATES[p["state"]],
                        Traits(**p["traits"]) if "traits" in p else DEFAULT_TRAITS,
                        tuple(QUESTIONS[one] for one in p.get("asks", ()))) for p in session["prompts"]))
            for name, session in found.items()},
        MODES.get(value.get("if_busy")), value.get("hold", False), value.get("held"),
        None if traits is None else tuple(TraceTraits(**one) for one in traits), value.get("ask"), value.get("answer"))


def _kind(value: Any) -> str:
    return {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")


def _format_value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"


# --- reading -----------------------------------------------------------------------------------------------------

GZIP = b"\x1f\x8b"


def read_lines(file: BufferedReader) -> Iterator[TraceLine | Torn]:
    """The lines of a file, one at a time. Raises `BadTrace` at the first malformed one.

    A line that is not JSON is `Torn` if nothing follows it, not even a newline, or if the next line starts another life
    of the server. The first line of a file is never `Torn`, because then the file may not be a trace at all.
    """
    number, good, cut, whole = 0, 0, None, False
    for raw in _raw_lines(file):
        number += 1
        if raw.isspace():
            continue
        line = _parse_json(number, raw)
        if cut:
            if isinstance(line, BadTrace) or line.n != 1:
                raise cut
            yield Torn(cut.line)
            cut = None
        if isinstance(line, TraceLine):
            good += 1
            yield line
        else:
            cut, whole = line, raw.endswith(b"\n")
    if cut:
        if whole or not good:
            raise cut
        yield Torn(cut.line)


def _raw_lines(file: BufferedReader) -> Iterator[bytes]:
    compressed = file.peek(2)[:2] == GZIP
    stream = gzip.GzipFile(fileobj=file) if compressed else file
    number = 0
    while True:
        try:
            raw = stream.readline(LONGEST + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise BadTrace(0, f"the compressed file is damaged after line {number} ({error})",
                           "copy or compress it again; the lines before were checked") from error
        if not raw:
            return
        number += 1
        if len(raw) > LONGEST:
            raise BadTrace(number, f"longer than {LONGEST >> 20} MiB", "write one short line for each action")
        yield raw


def _parse_json(number: int, raw: bytes) -> TraceLine | BadTrace:
    """Parse a line; return `BadTrace` if it is not JSON."""
    if b"\0" in raw:
        return BadTrace(number, "binary data with a zero byte", "a trace is UTF-8 text with one JSON object per line")
    try:
        value = json.loads(raw.decode())
    except UnicodeDecodeError as error:
        return BadTrace(number, f"not UTF-8 ({error.reason} at byte {error.start + 1})",
                        "a trace is UTF-8 text with one JSON object per line")
    except (ValueError, RecursionError) as error:
        return BadTrace(number, f"not JSON ({error})", "a trace is NDJSON, one object per line, as `jq -c .` writes it")
    return parse_line(number, value)
