"""Explanations of a rejected line: the possible states of its session, and what the model allows there."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from cancelmark.model.family import FEATURE_OF, HOLD, RUN_ID
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.protocol import FAMILY, Move

from .candidates import Candidate, Limit, Owed, imagine_steps, made_traits, moved_rows, variant_of
from .records import ACTION, TraceEffect, TraceLine, TraceRow, TraceTraits

LOOKED_AT = 200  # candidates that are searched for the nearest lines


class Nearest(NamedTuple):
    """A line that the model allows, and how the rejected one differs."""

    line: str
    differs: Mapping[str, tuple[str, str]]  # by field: the model's, and the line's


def state_text(candidate: Candidate) -> str:
    """A candidate as text: `mark 2; 1 active, asked to stop; 3 queued`."""
    session = candidate.session
    told = [f"mark {session.mark}", *(["held"] if session.held else [])]
    for prompt in session.prompts:
        covered = session.covered(prompt)
        told.append(f"{prompt.seq} {prompt.state.value}" + (
            ", asked to stop" if covered and prompt.state is State.ACTIVE else
            ", covered" if covered and prompt.state is State.ACCEPTED else "") + (
            ", an interrupt" if prompt.urgent and prompt.state is State.ACCEPTED else "") + (
            f", to the front {prompt.front}" if prompt.front else "") + (
            f", text {prompt.version}" if prompt.version else ""))
    if not session.prompts:
        told.append("idle")
    if candidate.owed:
        told.append("not reported yet: " + ", then ".join(map(owed_text, candidate.owed)))
    return "; ".join(told)


def owed_text(owed: Owed) -> str:
    return f"{owed.effect} {owed.seq} {_outcomes(owed.outcomes)}".rstrip()


def _outcomes(outcomes: Iterable[Outcome]) -> str:
    given = set(outcomes)
    return " or ".join(outcome.value for outcome in Outcome if outcome in given)


def why_rejected(line: TraceLine, candidates: Collection[Candidate]) -> str:
    """Why the line is rejected, in one sentence."""
    waiting = sorted({seq for candidate in candidates for seq in candidate.ends_owed[:1]})
    states = sorted({f"{p.state.value}{' and covered' if candidate.session.covered(p) else ''}"
                     for candidate in candidates for p in candidate.session.prompts if p.seq == line.seq})
    where = f"prompt {line.seq} is {' or '.join(states) or 'done'}"
    if line.effect:
        due = [o for candidate in candidates for o in candidate.owed if (o.effect, o.seq) == (line.effect, line.seq)]
        if line.effect == "end" and due:
            return f"{where}, and its outcome is {_outcomes(outcome for o in due for outcome in o.outcomes)}"
        if waiting and line.seq not in waiting:
            return f"the end of prompt {waiting[0]} must come first, but no line reports it"
        return f"{where} and cannot {line.effect}" + (f" as {line.outcome.value}" if line.outcome else "")
    assert line.action
    action = ACTION[line.action]
    able = [candidate for candidate in candidates if action.subject is None or any(
        p.seq == line.seq and FAMILY.allows(action, candidate.session, p, variant_of(line))
        for p in candidate.session.prompts)]
    if not able and line.seq is not None:
        return f"{where}; {line.action} needs: {action.guard}"
    if all(candidate.ends_owed for candidate in candidates) and waiting:
        return f"the end of prompt {waiting[0]} must come first, but no line reports it"
    return f"the model allows {line.action}, but with another result"


def find_nearest(
    line: TraceLine, candidates: Collection[Candidate], latest: int, complete: bool, most: int,
) -> list[Nearest]:
    """The lines most like this one that the model allows."""
    found: dict[str, tuple[tuple[int, ...], Nearest]] = {}
    ways: Iterable[Candidate] = candidates if complete else imagine_steps(candidates, Limit())
    for candidate in islice(ways, LOOKED_AT):
        for text, fields in allowed_lines(candidate, line, latest):
            told = {name: (value, mine) for name, value in fields.items()
                    if (mine := getattr(line, name)) is not None and mine != value}
            rank = (*(name in told for name in ("action", "effect", "seq", "outcome")), len(told))
            if text not in found or rank < found[text][0]:
                found[text] = rank, Nearest(text, {
                    name: (_format_value(model), _format_value(mine)) for name, (model, mine) in told.items()})
    return [one for _, one in sorted(found.values(), key=lambda entry: entry[0])[:most]]


def allowed_lines(candidate: Candidate, line: TraceLine, latest: int) -> Iterator[tuple[str, dict[str, object]]]:
    """The lines of this kind that the model allows, as text and by field."""
    if line.effect:
        for owed in candidate.owed:
            for outcome in owed.outcomes or [None]:
                text = f"{owed.effect} {owed.seq}" + (f" {outcome.value}" if outcome else "")
                yield text, {"effect": owed.effect, "seq": owed.seq, "outcome": outcome}
            if owed.effect == "end":
                break
        return
    session = candidate.session
    for move in FAMILY.moves(session, latest):
        if move.action.name in ACTION and (_is_plain(move) or move.action.name == line.action):
            yield _text(move, latest), {
                "action": move.action.name, "seq": _seq(move, latest),
                "outcome": move.variant if isinstance(move.variant, Outcome) else None, "mark": move.after.mark,
                "hold": move.variant == HOLD, "held": move.after.held, "traits": made_traits(session, move),
                "rows": moved_rows(session, move), "effects": tuple(map(TraceEffect.of, move.effects))}


def _is_plain(move: Move) -> bool:
    """Whether the reference protocol has this action too."""
    return move.action.name not in FEATURE_OF and not isinstance(move.variant, str)


def _seq(move: Move, latest: int) -> int | None:
    return latest + 1 if move.action.name == "accept" else move.seq


def _text(move: Move, latest: int) -> str:
    how = move.variant
    words = [move.action.name, _seq(move, latest),
             how.value if isinstance(how, Outcome) else how.removesuffix(RUN_ID) if isinstance(how, str) else None]
    return " ".join(str(word) for word in words if word is not None)


def _format_value(value: object) -> str:
    if isinstance(value, Outcome):
        return value.value
    if isinstance(value, tuple):
        return ", ".join(_item(item) for item in value) or "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)


def _item(item: TraceEffect | TraceRow | TraceTraits) -> str:
    if isinstance(item, TraceRow):
        return f"{item.row} {item.seq}"
    if isinstance(item, TraceTraits):
        told = {name: value for name, value in item._asdict().items() if name != "seq" and value}
        return f"{item.seq} " + (" ".join(name if value is True else f"{name} {value}" for name, value in told.items())
                                 or "as accepted")
    return " ".join([item.effect, str(item.seq), *([f"into {item.into}"] if item.into else []),
                     *([item.outcome.value] if item.outcome else [])])
