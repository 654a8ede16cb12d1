"""The lines of a trace, as any server can write them: NDJSON, one action or one carried-out effect a line.

`FIELDS` says what a line can have, and `NEEDED` what it must have. Nothing else is asked for: a line need not say which
rows it fired, what it asked for, or what the mark was; what it does say is judged. A field of the writer's own begins
with `_`. Any other field is refused, so that a misspelt one is not overlooked.

Reading is a stream: one line at a time, from a file that may be compressed (told by its first bytes), and that may end
in the middle of a line, as after a crash of its writer.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from typing import Any, NamedTuple

from cancelmark.model.effects import EFFECTS, Effect, End, Start
from cancelmark.model.family import ALL_ACTIONS, Feature
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.protocol import FAMILY
from cancelmark.model.session import PLAIN, Traits

VERSION = 1
LONGEST = 64 * 1024 * 1024  # bytes of a line: what a recovery finds can be long

ACTION = {action.name: action for action in ALL_ACTIONS if action.name != "crash"}
ON_PROMPTS = frozenset({"accept", *(name for name, action in ACTION.items() if action.subject)})
ENDS = {outcome.value: outcome for outcome in Outcome}
OWN_LINE = (Start.kind, End.kind)  # the effects that can have a line of their own
ROW_NAMES = frozenset(row.name for row in FAMILY.rows)
STATES = {state.value: state for state in State}
MODES = {mode.value: mode for mode in (Feature.REJECT, Feature.INTERRUPT)}


class BadTrace(Exception):
    """What was read is no trace: which line, what is wrong with it, and what to do."""

    def __init__(self, line: int, wrong: str, remedy: str) -> None:
        super().__init__(f"line {line}: {wrong}; {remedy}" if line else f"{wrong}; {remedy}")
        self.line, self.wrong, self.remedy = line, wrong, remedy


class Asked(NamedTuple):
    """An effect as a line tells it."""

    effect: str
    seq: int
    into: int | None = None
    outcome: Outcome | None = None

    @classmethod
    def of(cls, effect: Effect) -> "Asked":
        return cls(effect.kind, effect.seq, **{name: getattr(effect, name) for name in effect.details})


class Moved(NamedTuple):
    """A row as a line tells it."""

    seq: int
    row: str


class Made(NamedTuple):
    """What an action has made of a prompt, as a line tells it."""

    seq: int
    revoked: bool
    front: int
    version: int
    urgent: bool

    @classmethod
    def of(cls, seq: int, traits: Traits) -> "Made":
        return cls(seq, traits.revoked, traits.front, traits.version, traits.urgent)


class Found(NamedTuple):
    """A prompt as a recovery has found it in the journal."""

    seq: int
    run_id: str | None
    state: State
    traits: Traits


class FoundSession(NamedTuple):
    """A session as a recovery has found it in the journal."""

    mark: int
    held: bool
    prompts: tuple[Found, ...]


@dataclass(frozen=True, slots=True)
class TraceLine:
    """One line. `None`: the line does not say."""

    number: int  # in the file, from 1
    action: str | None
    effect: str | None
    session: str | None
    seq: int | None
    names: bool  # whether it says anything about the run id
    run_id: str | None
    outcome: Outcome | None
    mark: int | None
    n: int | None
    after: int | None
    rows: tuple[Moved, ...] | None
    effects: tuple[Asked, ...] | None
    found: Mapping[str, FoundSession] | None
    if_busy: Feature | None
    hold: bool
    held: bool | None
    traits: tuple[Made, ...] | None

    def __str__(self) -> str:
        words = [self.action or self.effect or "", *([] if self.seq is None else [str(self.seq)]),
                 *([] if self.outcome is None else [self.outcome.value]),
                 *([] if self.if_busy is None else [self.if_busy.value]), *(["hold"] if self.hold else [])]
        return " ".join(words) + (f" in session {self.session}" if self.session is not None else "")


class Torn(NamedTuple):
    """A line that ends in the middle: its writer was killed, or is still writing."""

    number: int


# --- what a line can have ----------------------------------------------------------------------------------------

class Field(NamedTuple):
    """A field: what it must be, in words and as a check, and what it means."""

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
    traits = {"traits": lambda traits: _fields(traits, {**_TRAITS, "begun": _flag})}
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
_DETAILS = {"into": _SEQ, "outcome": _outcome}
_ASKED: Mapping[Any, Mapping[str, Callable[[Any], bool]]] = {
    effect.kind: {name: _DETAILS[name] for name in effect.details} for effect in EFFECTS}

FIELDS: Mapping[str, Field] = {
    "action": Field(f"one of {', '.join(ACTION)}", lambda value: _text(value) and value in ACTION,
                    "the action that was taken"),
    "effect": Field("start or end", lambda value: value in OWN_LINE,
                    "instead of an action: a turn was started, or a terminal event was published"),
    "session": Field("a text, or null where it happens everywhere", _run_id, "where"),
    "seq": Field("a whole number from 1", _SEQ,
                 "the prompt: its number in the order of acceptance, over all sessions"),
    "run_id": Field("a text, or null", _run_id, "the name that the caller gave the prompt; null: none"),
    "outcome": Field(f"one of {', '.join(ENDS)}", _outcome, "how the turn finished, or the prompt ended"),
    "mark": Field("a whole number from 0", _count(0),
                  "the mark of the session after the action; the highest one, where it happens everywhere"),
    "rows": Field('a list of {"seq": …, "row": …} with names of rows, such as "enter→active"', _rows,
                  "the moves of prompts, in order"),
    "effects": Field('a list of {"effect": …, "seq": …}, a fold with "into" and an end with "outcome"', _effects,
                     "everything that the action asks for, in order"),
    "if_busy": Field("queue, reject or interrupt", lambda value: value == "queue" or (_text(value) and value in MODES),
                     "what the caller wants if the session is busy; without it: queue"),
    "hold": Field("true or false", _flag, "whether a stop holds the session too"),
    "held": Field("true or false", _flag, "whether the session is held after the action"),
    "traits": Field('a list of {"seq": …, "revoked": …, "front": …, "version": …, "urgent": …}', _made,
                    "what the action has made of prompts, by seq: those that it has changed, with all four"),
    "found": Field('an object with {"mark": …, "prompts": […]} for each session', _is_found,
                   "what a recovery has found in the journal; of a session also `held`, of a prompt also `traits`, "
                   "with `begun`: whether its turn has ever started"),
    "n": Field("a whole number from 1", _count(1),
               "the number of the line, from 1 in each life of the server. A trace with it is complete"),
    "after": Field("a whole number from 0", _count(0),
                   "of an acceptance or a cancel that is written late: the number of the last line before it"),
    "time": Field("a number", lambda value: type(value) in (int, float), "seconds since 1970; not judged"),
    "v": Field(f"the number {VERSION}", lambda value: type(value) is int and value == VERSION,
               "the version of this format"),
}

NEEDED: Mapping[str, tuple[str, ...]] = {
    **{name: ("seq",) if action.subject else () for name, action in ACTION.items()},
    "accept": ("session", "seq"), "finish": ("seq", "outcome"),
    **dict.fromkeys(("cancel", "clear_queue", "stop", "hold", "resume"), ("session",)),
    "start": ("seq",), "end": ("seq", "outcome"),
}

_IN_ONE = frozenset(name for name, action in ACTION.items() if not action.everywhere)  # session

ONLY: Mapping[str, frozenset[str]] = {
    "seq": ON_PROMPTS | set(OWN_LINE), "run_id": ON_PROMPTS | set(OWN_LINE), "outcome": frozenset({"finish", "end"}),
    "after": frozenset({"accept", "cancel"}), "found": frozenset({"recover"}), "mark": frozenset(ACTION),
    "rows": frozenset(ACTION), "effects": frozenset(ACTION), "if_busy": frozenset({"accept"}),
    "hold": frozenset({"stop"}), "held": _IN_ONE, "traits": _IN_ONE,
}


def parse_line(number: int, value: Any) -> TraceLine:
    """The line that a JSON value is."""
    if type(value) is not dict:
        raise BadTrace(number, f"{_kind(value)}, and no JSON object", "each line is one object: one action")
    for name, inner in value.items():
        field = FIELDS.get(name)
        if field is None:
            if name.startswith("_"):
                continue
            raise BadTrace(number, f"there is no field {name!r}",
                           f"choose from {', '.join(FIELDS)}, or begin a field of your own with _")
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
            raise BadTrace(number, f"{kind} has the field {name}", f"only {', '.join(sorted(kinds))} can have it")
    everywhere = action is not None and ACTION[action].everywhere
    session = value.get("session")
    if everywhere and session is not None:
        raise BadTrace(number, f"{kind} has a session", "it happens everywhere: leave the session out, or make it null")
    if kind == "finish" and value["outcome"] == "folded":
        raise BadTrace(number, "finish has the outcome folded", "a turn ends in end_turn, error or canceled")
    rows, effects, found = value.get("rows"), value.get("effects"), value.get("found")
    traits = value.get("traits")
    return TraceLine(
        number, action, effect, session, value.get("seq"), "run_id" in value, value.get("run_id") or None,
        ENDS[value["outcome"]] if "outcome" in value else None, value.get("mark"), value.get("n"), value.get("after"),
        None if rows is None else tuple(Moved(row["seq"], row["row"]) for row in rows),
        None if effects is None else tuple(
            Asked(e["effect"], e["seq"], e.get("into"), ENDS[e["outcome"]] if "outcome" in e else None)
            for e in effects),
        None if found is None else {name: FoundSession(session["mark"], session.get("held", False), tuple(
            Found(p["seq"], p["run_id"] or None, STATES[p["state"]],
                  Traits(**p["traits"]) if "traits" in p else PLAIN) for p in session["prompts"]))
            for name, session in found.items()},
        MODES.get(value.get("if_busy")), value.get("hold", False), value.get("held"),
        None if traits is None else tuple(Made(**one) for one in traits))


def _kind(value: Any) -> str:
    return {list: "an array", str: "a text", bool: "true or false", type(None): "null"}.get(type(value), "a number")


def _format_value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"


# --- reading -----------------------------------------------------------------------------------------------------

GZIP = b"\x1f\x8b"


def read_lines(file: BufferedReader) -> Iterator[TraceLine | Torn]:
    """The lines of a file, one at a time. Raises `BadTrace` at the first that is none.

    A line that is no JSON is `Torn` if nothing follows it, not even the end of the line, or if the one after it begins
    another life of the writer; and if there is a line before it, since otherwise it is no trace at all.
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
                           "copy or compress it again; what came before was judged") from error
        if not raw:
            return
        number += 1
        if len(raw) > LONGEST:
            raise BadTrace(number, f"longer than {LONGEST >> 20} MiB", "a trace has one short line for each action")
        yield raw


def _parse_json(number: int, raw: bytes) -> TraceLine | BadTrace:
    """The line, or why it is not even JSON."""
    if b"\0" in raw:
        return BadTrace(number, "binary, with a zero byte", "a trace is text in UTF-8, one JSON object a line")
    try:
        value = json.loads(raw.decode())
    except UnicodeDecodeError as error:
        return BadTrace(number, f"not UTF-8 ({error.reason} at byte {error.start + 1})",
                        "a trace is text in UTF-8, one JSON object a line")
    except (ValueError, RecursionError) as error:
        return BadTrace(number, f"not JSON ({error})", "a trace is NDJSON: one object a line, as `jq -c .` writes it")
    return parse_line(number, value)
