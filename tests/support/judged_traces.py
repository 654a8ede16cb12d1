"""Traces under the check, and the lines that they are made of."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.tracing import Line, line_of, steps_from, written

from cancelmark.conformance.trace.check import Rejected, TraceCheck
from cancelmark.conformance.trace.records import BadTrace, parse_line
from cancelmark.model.check.plain import Explorer, Situation
from cancelmark.model.properties import Bounds
from cancelmark.model.protocol import REFERENCE, Protocol
from cancelmark.model.server import Change, Server


def judged(lines: Sequence[Line], complete: bool = False) -> int | None:
    """The number of the line that the checker rejects."""
    try:
        checked(lines, complete)
    except Rejected as wrong:
        return wrong.line.number
    except BadTrace as wrong:
        return wrong.line
    return None


def checked(lines: Sequence[Line], complete: bool = False) -> TraceCheck:
    check = TraceCheck(complete)
    for number, line in enumerate(lines, 1):
        check.take(parse_line(number, line))
    return check


def rejection(lines: Sequence[Line], complete: bool = False) -> Rejected:
    with pytest.raises(Rejected) as caught:
        checked(lines, complete)
    return caught.value


def accept(seq: int, **more: Any) -> Line:
    return {"action": "accept", "session": "s", "seq": seq, **more}


def act(action: str, **more: Any) -> Line:
    return {"action": action, **more}


def end(seq: int, outcome: str = "end_turn") -> Line:
    return {"effect": "end", "seq": seq, "outcome": outcome}


def lives(*lives: list[Line]) -> list[Line]:
    return [{**line, "n": n} for life in lives for n, line in enumerate(life, 1)]


def fork(check: TraceCheck) -> TraceCheck:
    other = copy.copy(check)
    for name, value in vars(check).items():
        setattr(other, name, {k: copy.copy(v) for k, v in value.items()} if isinstance(value, dict) else
                copy.copy(value))
    other.prompts = {seq: known._replace(seen=set(known.seen)) for seq, known in check.prompts.items()}
    other.seqs.gaps = list(check.seqs.gaps)
    return other


def remembered(check: TraceCheck) -> Any:
    """What a check has in mind, apart from counts."""
    sessions = frozenset((name, frozenset(ways)) for name, ways in check.sessions.items())
    prompts = frozenset((seq, known.session, frozenset(known.seen)) for seq, known in check.prompts.items())
    idle = frozenset((name, one._alone) for name, one in check._idleness.items())
    return sessions, prompts, check.seqs.latest, check._closed, idle


def accepted_paths(
    bounds: Bounds, style: Callable[[list[Line]], list[Line]], protocol: Protocol = REFERENCE,
    tell: Callable[[Server, Change], Line] = line_of,
) -> int:
    """How many paths the bounds have, all of which the checker follows: where it has come to the same state of model
    and check before, it need not go on from there again."""
    explorer = Explorer(protocol, bounds)
    known: dict[Any, int] = {}

    def count(situation: Situation, check: TraceCheck) -> int:
        key = situation, remembered(check)
        if key not in known:
            ways = 0
            for change, after in steps_from(explorer, situation):
                following = fork(check)
                if change.call.name == "crash":
                    following._n = 0
                for line in style(written([(situation.server, change)], tell)):
                    number = following.lines + 1
                    following.take(parse_line(number, {**line, **({"n": following._n + 1} if "n" in line else {}),
                                                   **({"after": following._n} if "after" in line else {})}))
                ways += count(after, following)
            known[key] = ways or 1
        return known[key]

    return count(explorer.situations[explorer.root()], TraceCheck())
