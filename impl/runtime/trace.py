"""The trace: one line of JSON for each action of a runtime, enough to replay it on the model.

**Order.** A line is written when its step is taken, and the lines of a session are in the order of its steps. The
effects are applied after that, so the last lines before a crash may describe steps that were never journaled. The lines
of an acceptance, and of an `enter` in the same commit, are written once they are durable, and the lines of later steps
of the session after them. `after` names the line that was last when the seq was given out, or when the cancel arrived.

**Crashes.** A crash writes nothing, but may leave a torn line. The next process starts with line 1, `recover`, and what
it found in the journal.

`SCHEMA` describes a line; specs/trace.schema.json is generated from it. specs/trace.md has the format for other
servers, of which these traces use every part, and `cancelmark trace check` judges both.
"""

import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from os import SEEK_END, PathLike
from pathlib import Path
from time import time
from typing import Any, Self, TextIO

from cancelmark.model.effects import ASK_EFFECTS, EFFECTS, encode_effect
from cancelmark.model.family import ALL_ACTIONS, HOLD, Feature, accepted_as
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.protocol import FAMILY
from cancelmark.model.questions import ANSWERS, Question
from cancelmark.model.session import DEFAULT_TRAITS

from ..store import Json
from .session import Session, TakenStep

log = logging.getLogger("cancelmark")

VERSION = 1
ON_QUESTION = ("answer", "run", "withdraw")
MODES = (Feature.REJECT, Feature.INTERRUPT)


def _object(properties: Mapping[str, Any], optional: Iterable[str] = ()) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "additionalProperties": False,
            "required": [name for name in properties if name not in set(optional)]}


_SEQ = {"type": "integer", "minimum": 1}
_MARK = {"type": "integer", "minimum": 0}
_RUN_ID = {"type": ["string", "null"]}
_FLAG = {"type": "boolean"}
_COUNT = {"type": "integer", "minimum": 0}
_TRAITS = {
    "revoked": {**_FLAG, "description": "a call that names the prompt, a stop or an interrupt has canceled it"},
    "front": {**_COUNT, "description": "how far it was moved to the front; 0: its position follows from its seq"},
    "version": {**_COUNT, "description": "how often its text was replaced"},
    "urgent": {**_FLAG, "description": "it was accepted with interrupt"}}

SCHEMA: Mapping[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "A line of a Cancelmark trace",
    "description": "One action of a runtime, in NDJSON: one line, one action.",
    **_object({
        "v": {"const": VERSION, "description": "the version of this schema"},
        "n": {"type": "integer", "minimum": 1, "description": "the number of the line, from 1"},
        "time": {"type": "number", "description": "seconds since 1970, by the clock of the machine"},
        "action": {"enum": [action.name for action in ALL_ACTIONS if action.name != "crash"]},
        "session": {"type": ["string", "null"], "description": "null: everywhere"},
        "seq": {**_SEQ, "description": "of the prompt that the action is taken on"},
        "run_id": {**_RUN_ID, "description": "of that prompt; null if the caller gave none"},
        "outcome": {"enum": [outcome.value for outcome in Outcome], "description": "how a turn finished"},
        "mark": {**_MARK, "description": "of the session, or the highest one, when the line was written"},
        "after": {"type": "integer", "minimum": 0,
                  "description": "of an acceptance or a cancel that is written late: the last line before it"},
        "rows": {"type": "array", "description": "the moves of prompts, in order", "items": _object({
            "seq": _SEQ, "row": {"enum": sorted({row.name for row in FAMILY.rows})}})},
        "effects": {"type": "array", "description": "what the action asks for, in order", "items": _object({
            "effect": {"enum": [effect.kind for effect in (*EFFECTS, *ASK_EFFECTS)]}, "seq": _SEQ,
            "into": {**_SEQ, "description": "of a fold: the prompt whose turn takes it in"},
            "outcome": {"enum": [outcome.value for outcome in Outcome], "description": "of an end"},
            "ask": {**_SEQ, "description": "of an effect on a question: its number"},
            "answer": {"enum": [*ANSWERS], "description": "of the effect answered"},
        }, optional=("into", "outcome", "ask", "answer"))},
        "ask": {**_SEQ, "description": "of an action on a question: its number"},
        "answer": {"enum": [*ANSWERS], "description": "of an answer"},
        "if_busy": {"enum": ["queue", *(mode.value for mode in MODES)],
                    "description": "of an acceptance: what the caller wants if the session is busy; queue if absent"},
        "hold": {**_FLAG, "description": "of a stop: whether it holds the session too; not if absent"},
        "held": {**_FLAG, "description": "whether the session is held after the action"},
        "traits": {"type": "array", "description": "the prompts whose traits the action has changed",
                   "items": _object({"seq": _SEQ, **_TRAITS})},
        "found": {"type": "object", "description": "of a recovery: the journal, by session", "additionalProperties":
                  _object({"mark": _MARK, "held": _FLAG, "prompts": {"type": "array", "items": _object({
                      "seq": _SEQ, "run_id": _RUN_ID, "state": {"enum": [state.value for state in State]},
                      "traits": _object({**_TRAITS, "begun": {**_FLAG, "description": "its turn has started once"}}),
                      "asks": {"type": "array", "description": "the states of its questions, by number",
                               "items": {"enum": [question.value for question in Question]}},
                  }, optional=("traits", "asks"))}}, optional=("held",))},
    }, optional=("seq", "run_id", "outcome", "after", "found", "if_busy", "hold", "held", "traits", "ask",
                 "answer")),
}


def schema() -> str:
    """The schema as the text of a file."""
    return json.dumps(SCHEMA, indent=2) + "\n"


class TraceWriter:
    """Appends the trace of this process to a file that may hold those of earlier ones. Close it, or use it as a context
    manager. Each line is passed to the operating system at once. A full disk ends the trace, and affects nothing
    else."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self.n = 0  # lines written
        torn = _torn(self.path)
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._file: TextIO | None = os.fdopen(handle, "a", encoding="utf-8", buffering=1)
        if torn:
            self._file.write("\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop writing. Idempotent."""
        if self._file:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def step(
        self, session: Session, effects: TakenStep, after: int | None = None,
    ) -> None:
        """Write a step of one session. `after` is given if the line is late: the last line when an acceptance got its
        seq, or when a cancel arrived."""
        line: dict[str, Any] = {}
        if effects.prompt:
            line |= {"seq": effects.prompt.seq, "run_id": effects.prompt.run_id}
        if isinstance(effects.variant, Outcome):
            line["outcome"] = effects.variant.value
        if effects.action in ON_QUESTION:
            n, _, answer = str(effects.variant).partition(" ")
            line |= {"ask": int(n), **({"answer": answer} if answer else {})}
        if after is not None:
            line["after"] = after
        for mode in MODES:
            if effects.action == "accept" and accepted_as(effects.variant, mode):
                line["if_busy"] = mode.value
        if effects.variant == HOLD:
            line["hold"] = True
        if session.protocol.features:
            changed = sorted({prompt.seq: traits for prompt, traits, _ in effects.changed}.items())
            line |= {"held": effects.held, "traits": [
                {"seq": seq, **{name: getattr(traits, name) for name in _TRAITS}} for seq, traits in changed]}
        self._write(effects.action, session.id, effects.mark, [effects], line)

    def everywhere(self, action: str, steps: Sequence[TakenStep], marks: Iterable[int], found: Json | None = None,
                   ) -> None:
        """Write a step of all sessions at once. `marks` are the marks after it, `found` describes the sessions before
        it (`describe_sessions`)."""
        mark = max(marks, default=0)
        self._write(action, None, mark, steps, {} if found is None else {"found": found})

    def _write(self, action: str, session: str | None, mark: int, steps: Iterable[TakenStep], more: Json) -> None:
        if not self._file:
            return
        self.n += 1
        line = {
            "v": VERSION, "n": self.n, "time": time(), "action": action, "session": session, "mark": mark,
            "rows": [{"seq": prompt.seq, "row": row.name} for effects in steps for prompt, row in effects.moved],
            "effects": [encode_effect(effect) for effects in steps for effect in effects], **more}
        try:
            self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
        except OSError as error:
            log.error("%s: trace write failed, tracing stopped: %s", self.path, error)
            self.close()


def _torn(path: Path) -> bool:
    """Whether the file ends in a torn line."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, SEEK_END)
        return file.read() != b"\n"


def describe_sessions(sessions: Iterable[Session]) -> Json:
    """The sessions as a recovery has found them in the journal. Values that the reference protocol implies are left
    out."""
    return {session.id: {"mark": session.mark, **({"held": True} if session.held else {}), "prompts": [
        {"seq": prompt.seq, "run_id": prompt.run_id, "state": prompt.state.value,
         **({"traits": prompt.traits._asdict()}
            if session.protocol.features and prompt.traits != DEFAULT_TRAITS else {}),
         **({"asks": [question.value for question in prompt.asks]} if prompt.asks else {})}
        for prompt in session.prompts.values()]} for session in sessions}
