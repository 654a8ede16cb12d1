"""Why a line is rejected: where its session could have been, and what the model would have allowed there."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.protocol import REFERENCE, Move

from .candidates import Limit, Owed, Possible, asked, imagined, moved, variant_of
from .records import ACTION, Asked, Line, Moved

LOOKED_AT = 200  # possibilities among which the nearest lines are looked for


class Nearest(NamedTuple):
    """A line that the model allows, and in what the rejected one differs."""

    line: str
    differs: Mapping[str, tuple[str, str]]  # by field: the model's, and the line's


def state_text(possible: Possible) -> str:
    """A possibility as people read it: `mark 2; 1 active, asked to stop; 3 queued`."""
    session = possible.session
    told = [f"mark {session.mark}"]
    for prompt in session.prompts:
        covered = session.covered(prompt)
        told.append(f"{prompt.seq} {prompt.state.value}" + (
            ", asked to stop" if covered and prompt.state is State.ACTIVE else
            ", covered" if covered and prompt.state is State.ACCEPTED else ""))
    if not session.prompts:
        told.append("idle")
    if possible.owed:
        told.append("not told yet: " + ", then ".join(map(owed_text, possible.owed)))
    return "; ".join(told)


def owed_text(owed: Owed) -> str:
    return f"{owed.effect} {owed.seq} {_outcomes(owed.outcomes)}".rstrip()


def _outcomes(outcomes: Iterable[Outcome]) -> str:
    given = set(outcomes)
    return " or ".join(outcome.value for outcome in Outcome if outcome in given)


def reason(line: Line, possibles: Collection[Possible]) -> str:
    """What is wrong, in a sentence."""
    waiting = sorted({seq for possible in possibles for seq in possible.ends_owed[:1]})
    states = sorted({f"{p.state.value}{' and covered' if possible.session.covered(p) else ''}"
                     for possible in possibles for p in possible.session.prompts if p.seq == line.seq})
    where = f"prompt {line.seq} is {' or '.join(states) or 'done'}"
    if line.effect:
        due = [o for possible in possibles for o in possible.owed if (o.effect, o.seq) == (line.effect, line.seq)]
        if line.effect == "end" and due:
            return f"{where}, and its outcome is {_outcomes(outcome for o in due for outcome in o.outcomes)}"
        if waiting and line.seq not in waiting:
            return f"the end of prompt {waiting[0]} comes first, and no line has told it"
        return f"{where}, and cannot {line.effect}" + (f" in {line.outcome.value}" if line.outcome else "")
    assert line.action
    action = ACTION[line.action]
    able = [possible for possible in possibles if action.subject is None or any(
        p.seq == line.seq and REFERENCE.allows(action, possible.session, p, variant_of(line))
        for p in possible.session.prompts)]
    if not able and line.seq is not None:
        return f"{where}; {line.action} needs: {action.guard}"
    if all(possible.ends_owed for possible in possibles) and waiting:
        return f"the end of prompt {waiting[0]} comes first, and no line has told it"
    return f"the model does something else at {line.action}"


def nearest(line: Line, possibles: Collection[Possible], latest: int, complete: bool, most: int) -> list[Nearest]:
    """The lines most like this one that the model allows."""
    found: dict[str, tuple[tuple[int, ...], Nearest]] = {}
    ways: Iterable[Possible] = possibles if complete else imagined(possibles, Limit())
    for possible in islice(ways, LOOKED_AT):
        for text, fields in allowed(possible, line, latest):
            told = {name: (value, mine) for name, value in fields.items()
                    if (mine := getattr(line, name)) is not None and mine != value}
            rank = (*(name in told for name in ("action", "effect", "seq", "outcome")), len(told))
            if text not in found or rank < found[text][0]:
                found[text] = rank, Nearest(text, {
                    name: (_shown(model), _shown(mine)) for name, (model, mine) in told.items()})
    return [one for _, one in sorted(found.values(), key=lambda entry: entry[0])[:most]]


def allowed(possible: Possible, line: Line, latest: int) -> Iterator[tuple[str, dict[str, object]]]:
    """What the model allows a line of this kind to say, in words and by field."""
    if line.effect:
        for owed in possible.owed:
            for outcome in owed.outcomes or [None]:
                text = f"{owed.effect} {owed.seq}" + (f" {outcome.value}" if outcome else "")
                yield text, {"effect": owed.effect, "seq": owed.seq, "outcome": outcome}
            if owed.effect == "end":
                break
        return
    session = possible.session
    for move in REFERENCE.moves(session, latest):
        if move.action.name in ACTION:
            yield _text(move, latest), {
                "action": move.action.name, "seq": _seq(move, latest),
                "outcome": move.variant if isinstance(move.variant, Outcome) else None, "mark": move.after.mark,
                "rows": moved(session, move), "effects": tuple(map(asked, move.effects))}


def _seq(move: Move, latest: int) -> int | None:
    return latest + 1 if move.action.name == "accept" else move.seq


def _text(move: Move, latest: int) -> str:
    words = [move.action.name, _seq(move, latest), move.variant.value if isinstance(move.variant, Outcome) else None]
    return " ".join(str(word) for word in words if word is not None)


def _shown(value: object) -> str:
    if isinstance(value, Outcome):
        return value.value
    if isinstance(value, tuple):
        return ", ".join(_item(item) for item in value) or "nothing"
    return "none" if value is None else str(value)


def _item(item: Asked | Moved) -> str:
    if isinstance(item, Moved):
        return f"{item.row} {item.seq}"
    return " ".join([item.effect, str(item.seq), *([f"into {item.into}"] if item.into else []),
                     *([item.outcome.value] if item.outcome else [])])
