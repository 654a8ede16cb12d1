"""Traces of the family, and the plainest judge of them: `tracing` with the family's calls.

An acceptance has two moments. When its seq is given out, a prompt with `reject` looks whether everybody is done, also
those whose acceptance is still being written. When its line is written, it is there: a stop, a hold, a place at the
front that came in between has not met it. In the reference nobody could tell.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from support.tracing import (
    LEFT_OUT,
    NAMES,
    Event,
    Line,
    Plain,
    _added,
    _ends,
    _frozen,
    _same,
    change_line,
    effect_line,
)
from support.tracing import line_of as plain_line

from cancelmark.model.protocol import FAMILY
from cancelmark.model.server import Change, Server, changes
from cancelmark.model.session import PLAIN, Prompt, Session

ACCEPT = FAMILY.action("accept")


def line_of(before: Server, change: Change) -> Line:
    """The whole line of a step."""
    call, line = change.call, plain_line(before, change)
    mode = str(call.variant)
    if call.name == "accept" and mode not in ("True", "False"):
        line["if_busy"] = mode
    if call.name == "stop" and call.variant == "hold":
        line["hold"] = True
    if call.session is not None:
        line["held"] = change.after.sessions[call.session].held
        line["traits"] = made(before.sessions[call.session], change.after.sessions[call.session])
    return line


def made(before: Any, after: Any) -> list[Line]:
    known = {p.seq: p.traits or PLAIN for p in before.prompts}
    told = []
    for p in after.prompts:
        old, new = ((t.revoked, t.front, t.version, t.urgent) for t in (known.get(p.seq, PLAIN), p.traits or PLAIN))
        if old != new:
            told.append({"seq": p.seq, **dict(zip(("revoked", "front", "version", "urgent"), new))})
    return told


class Way(NamedTuple):
    """Where the server can be."""

    server: Server
    owed: tuple[tuple[tuple[str, int, str | None], ...], ...] = ((),) * len(NAMES)
    given: frozenset[tuple[str, int]] = frozenset()  # sessions and seqs of acceptances that are being written


class PlainFamily(Plain):
    """Judges traces of one life, with calls of the family."""

    way = Way

    def behaviour(self, lines: Sequence[Line]) -> bool:
        if "n" in lines[0] and [line["n"] for line in lines] != list(range(1, len(lines) + 1)):
            return False
        if "n" in lines[0] and any(line["action"] == "recover" for line in lines[1:]):
            return False
        if any(line.get("after", 0) >= n for n, line in enumerate(lines, 1)) or not self.one_name_each(lines):
            return False
        if not self.complete and any(line.get("if_busy") == "reject" and line.get("after", n - 1) < n - 1
                                     for n, line in enumerate(lines, 1)):
            return False  # it is not said what the session was when it looked
        events: list[tuple[tuple[int, int, int], Event]] = []
        for n, line in enumerate(lines, 1):
            if line.get("action") == "accept":
                given = (line["after"], 1, line["seq"]) if "after" in line else (n, -1, 0)
                events.append((given, ("give", _frozen(line))))
            events.append(((n, 0, 0), ("do", _frozen(line))))
        most = max(line.get(name, 0) for line in lines for name in ("seq", "mark"))
        return bool(self._ways(tuple(event for _, event in sorted(events, key=lambda entry: entry[0])), most))

    def follow(self, way: Any, kind: str, line: Line) -> Iterable[Any]:
        if kind == "give":
            return self.give(way, line)
        return self.admit(way, line) if line.get("action") == "accept" else super().follow(way, kind, line)

    def _find_onward(self, way: Any, most: int) -> list[Any]:
        server, owed, _ = way
        found = []
        if server.seq < most and not server.closing:
            found.append(way._replace(server=server._replace(seq=server.seq + 1)))
        if not self.complete:
            for change in changes(FAMILY, server):
                if change.call.name in LEFT_OUT:
                    found.append(way._replace(server=live(change), owed=_added(owed, change)))
        return found

    def give(self, way: Way, line: Line) -> Iterator[Way]:
        """Its seq is given out; with reject, if nobody is there."""
        session = way.server.sessions[NAMES.index(line["session"])]
        nobody = not (session.live or session.held or any(name == line["session"] for name, _ in way.given))
        if way.server.seq == line["seq"] - 1 and not way.server.closing and (
                line.get("if_busy") != "reject" or nobody):
            yield way._replace(server=way.server._replace(seq=line["seq"]),
                               given=way.given | {(line["session"], line["seq"])})

    def admit(self, way: Way, line: Line) -> Iterator[Way]:
        """The prompt is there."""
        at = NAMES.index(line["session"])
        server, session = way.server, way.server.sessions[at]
        named, mode = line.get("run_id") is not None, line.get("if_busy", "queue")
        variant = mode + (", run id" if named else "") if mode == "interrupt" else named
        assert isinstance(session, Session)
        move = FAMILY.apply(ACCEPT, session, None, variant, line["seq"] - 1)
        assert isinstance(move.live, Session)
        said = {"mark": session.mark, "rows": [], "effects": [effect_line(e) for e in move.effects],
                "held": session.held, "traits": made(session, move.after)}
        if self.in_use(way, line) or any(  # type: ignore[arg-type]
                line.get(name) is not None and line[name] != value for name, value in said.items()):
            return
        after = remembered(move.live.with_prompts(move.live.prompts))
        yield way._replace(server=server._replace(sessions=tuple(
            after if i == at else s for i, s in enumerate(server.sessions))), given=way.given - {
                (line["session"], line["seq"])})

    def do(self, way: Any, line: Line) -> Iterator[Any]:
        server, owed, _ = way
        if line["action"] == "recover":
            server = server._replace(sessions=tuple(s._replace(down=True) for s in server.sessions))
        for change in changes(FAMILY, server):
            if change.call.name != line["action"] or change.call.seq != line.get("seq"):
                continue
            said = line_of(server, change)
            if any(line.get(name) is not None and line[name] != said.get(name)
                   for name in ("session", "outcome", "mark", "held", "traits")):
                continue
            if line.get("hold", False) != said.get("hold", False):
                continue
            if any(line.get(name) is not None and not _same(line[name], said[name], server, change)
                   for name in ("rows", "effects")):
                continue
            new = _added(((),) * len(NAMES), change)
            own = [("end", line.get("seq")) == entry[:2] and line["action"] in ("finish", "fail", "settle")
                   for mine in new for entry in mine]
            if line.get("effects") is None and not any(own):
                yield way._replace(server=live(change), owed=_added(owed, change))
            elif all(not _ends(o) or not n for o, n in zip(owed, new)):
                told = own.index(True) + 1 if line.get("effects") is None else len(own)
                yield way._replace(server=live(change), owed=tuple(n[told:] if n else o for o, n in zip(owed, new)))


def live(change: Change) -> Server:
    """The server without its finished prompts, and without what only properties look at."""
    return change.after._replace(sessions=tuple(
        remembered(s) for s in change.after.sessions if isinstance(s, Session)))


def remembered(session: Session) -> Session:
    return Session(session.mark, session.down, tuple(
        Prompt(p.seq, p.run_id, p.state, traits=p.traits) for p in session.live), None, session.held, session.held)


# --- mutations

ON_SESSIONS = ("cancel", "clear_queue", "stop", "hold", "resume")
ON_PROMPTS = ("enter", "fail", "settle", "step", "requeue", "revoke", "replace", "next")


def change_family_line(line: Line) -> Iterator[tuple[str, Line]]:
    """The line changed in one place."""
    yield from change_line({**line})
    kind = line.get("action")
    for group in (ON_SESSIONS, ON_PROMPTS):
        if kind in group:
            for other in group:
                if other != kind and {kind, other} & {"stop", "hold", "resume", "revoke", "replace", "next"}:
                    yield f"action={other}", {**line, "action": other}
    if kind == "accept":
        for mode in ("queue", "reject", "interrupt"):
            if mode != line.get("if_busy", "queue"):
                yield f"if_busy={mode}", {**line, "if_busy": mode}
    if kind == "stop":
        yield "hold", {**line, "hold": not line.get("hold", False)}
    if "held" in line:
        yield "held", {**line, "held": not line["held"]}
    for i, one in enumerate(line.get("traits", ())):
        rest = [*line["traits"][:i], *line["traits"][i + 1:]]
        yield "traits without one", {**line, "traits": rest}
        for name in ("revoked", "urgent"):
            yield f"traits {name}", {**line, "traits": [*rest[:i], {**one, name: not one[name]}, *rest[i:]]}
        for name in ("front", "version", "seq"):
            yield f"traits {name}", {**line, "traits": [*rest[:i], {**one, name: one[name] + 1}, *rest[i:]]}
    if "traits" in line and not line["traits"]:
        yield "traits of one more", {**line, "traits": [
            {"seq": 1, "revoked": True, "front": 0, "version": 0, "urgent": False}]}
