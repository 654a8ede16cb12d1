"""Traces of the model, and the plainest judge of a trace there is.

`Plain` knows what a trace means and nothing about how to find out quickly: it keeps whole servers, imagines every step
that may be left out wherever it is possible, and judges a prefix by going through it from the start. It shares no code
with the checker: it puts `model.server` to work, and writes down once more what a line says.

A trace is a behaviour of the model if its actions, each acceptance right after the line that it names, are steps of a
server that starts empty, or with what a recovery has found; with steps in between that the trace may leave out (none,
if it is numbered or called complete) and seqs that were given out to nobody (none that would raise a mark which no line
tells); if what lines say of those steps is so; and if the ends and starts that lines tell were asked for and are told
in order, an end never passed over.

An acceptance has two moments. When its seq is given out, a prompt with `reject` looks whether everybody is done, also
those whose acceptance is still being written. When its line is written, it is there: a stop, a hold, a place at the
front that came in between has not met it. In the reference nobody could tell.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from random import Random
from typing import Any, NamedTuple

from cancelmark.model.actions import Argument
from cancelmark.model.check.plain import Explorer, Situation
from cancelmark.model.effects import Effect, End, Fold, Start
from cancelmark.model.lifecycle import Outcome, Trigger
from cancelmark.model.properties import Bounds
from cancelmark.model.protocol import FAMILY, REFERENCE, Move, Protocol
from cancelmark.model.server import Change, Server, changes
from cancelmark.model.session import DEFAULT_TRAITS, Prompt, Session, Step

Line = dict[str, Any]
ACCEPT = FAMILY.action("accept")
LEFT_OUT = {"enter", "fail", "settle", "step", "finish"}
NAMES = ("s", "t")


class Recording(Step):
    """A step that remembers whom it moved."""

    def __init__(self, session: Session) -> None:
        super().__init__(FAMILY.table, session, FAMILY.guards, FAMILY.features)
        self.moved: list[tuple[int, str]] = []

    def fire(self, prompt: Prompt, trigger: Trigger) -> None:
        super().fire(prompt, trigger)
        self.moved.append((prompt.seq, self.rows[-1].name))


def rows_of(session: Session, move: Move, latest: int) -> list[Line]:
    step = Recording(session)
    prompt = None if move.seq is None else session.prompt(move.seq)
    move.action.apply(step, Argument(prompt, move.variant, latest))
    return [{"seq": seq, "row": row} for seq, row in step.moved]


def effect_line(effect: Effect) -> Line:
    more = {"into": effect.into} if isinstance(effect, Fold) else (
        {"outcome": effect.outcome.value} if isinstance(effect, End) else {})
    return {"effect": type(effect).__name__.lower(), "seq": effect.seq, **more}


def line_of(before: Server, change: Change) -> Line:
    """The whole line of a step."""
    call, line = change.call, dict[str, Any](action=change.call.name)
    line["session"] = None if call.session is None else NAMES[call.session]
    if call.seq is not None:
        line |= {"seq": call.seq, "run_id": f"r{call.seq}" if change.after.sessions[call.session or 0].prompt(
            call.seq).run_id else None}
    if isinstance(call.variant, Outcome):
        line["outcome"] = call.variant.value
    line["mark"] = max(session.mark for i, session in enumerate(change.after.sessions) if call.session in (None, i))
    line["rows"] = [row for i, move in change.moves for row in rows_of(before.sessions[i], move, before.seq)]
    line["effects"] = [effect_line(effect) for _, move in change.moves for effect in move.effects]
    return line


def family_line(before: Server, change: Change) -> Line:
    """The whole line of a step of the family."""
    call, line = change.call, line_of(before, change)
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
    known = {p.seq: p.traits or DEFAULT_TRAITS for p in before.prompts}
    told = []
    for p in after.prompts:
        old, new = ((t.revoked, t.front, t.version, t.urgent)
                    for t in (known.get(p.seq, DEFAULT_TRAITS), p.traits or DEFAULT_TRAITS))
        if old != new:
            told.append({"seq": p.seq, **dict(zip(("revoked", "front", "version", "urgent"), new))})
    return told


def bare(line: Line) -> Line:
    """As little of the line as another implementation may log."""
    return {name: line[name] for name in ("action", "effect", "session", "seq", "run_id", "outcome", "if_busy", "hold")
            if name in line}


# --- the plain judge ---------------------------------------------------------------------------------------------

Owing = tuple[tuple[tuple[str, int, str | None], ...], ...]  # by session: effects, seqs and outcomes
Event = tuple[str, Any]


class Way(NamedTuple):
    """Where the server can be."""

    server: Server
    owed: Owing = ((),) * len(NAMES)
    given: frozenset[tuple[str, int]] = frozenset()  # sessions and seqs of acceptances that are being written


def owing(move: Move) -> tuple[tuple[str, int, str | None], ...]:
    return tuple(("end", e.seq, e.outcome.value) if isinstance(e, End) else ("start", e.seq, None)
                 for e in move.effects if isinstance(e, Start | End))


class Plain:
    """Judges traces of one life, of one or two sessions."""

    def __init__(self, complete: bool) -> None:
        self.complete = complete
        self._ways = lru_cache(maxsize=None)(self._find_ways)
        self._onward = lru_cache(maxsize=None)(self._find_onward)

    def first_wrong(self, lines: Sequence[Line], start: int = 1) -> int | None:
        """The number of the first line with which the trace is no behaviour any more; `start`: not before this one."""
        return next((n for n in range(start, len(lines) + 1) if not self.behaviour(lines[:n])), None)

    def behaviour(self, lines: Sequence[Line]) -> bool:
        if "n" in lines[0] and [line["n"] for line in lines] != list(range(1, len(lines) + 1)):
            return False
        if "n" in lines[0] and any(line["action"] == "recover" for line in lines[1:]):
            return False  # it would begin another life
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

    def one_name_each(self, lines: Sequence[Line]) -> bool:
        """Whether each line names its prompt as the acceptance did."""
        given = {line["seq"]: line.get("run_id") for line in reversed(lines) if line.get("action") == "accept"}
        return all(line["run_id"] == given.get(line["seq"], line["run_id"]) for line in lines if "run_id" in line)

    def _find_ways(self, events: tuple[Event, ...], most: int) -> frozenset[Way]:
        """Where the server can be after these events, if it has given out no seq above `most`."""
        if not events:
            return frozenset([Way(Server(sessions=(Session(),) * len(NAMES)))])
        *earlier, (kind, frozen) = events
        line, found = _thawed(frozen), set[Any]()
        told = [number for _, other in earlier for name, number in other[1] if name in ("seq", "mark") and number]
        for way in self.everywhere(self._ways(tuple(earlier), most), most):
            if line.get("action") in ("cancel", "close") and "mark" not in line and way.server.seq > max([0, *told]):
                continue
            found.update(self.follow(way, kind, line))
        return frozenset(found)

    def follow(self, way: Way, kind: str, line: Line) -> Iterable[Way]:
        """Where the event leads from there."""
        if kind == "give":
            return self.give(way, line)
        if line.get("action") == "accept":
            return self.admit(way, line)
        return self.tell(way, line) if "effect" in line else self.do(way, line)

    def everywhere(self, ways: Iterable[Way], most: int) -> Iterator[Way]:
        seen = set(ways)
        todo = list(seen)
        for way in todo:
            yield way
            for after in self._onward(way, most):
                if after not in seen:
                    seen.add(after)
                    todo.append(after)

    def _find_onward(self, way: Way, most: int) -> list[Way]:
        """The steps that can be left out, and a seq that nobody gets."""
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
        if self.in_use(way, line) or any(
                line.get(name) is not None and line[name] != value for name, value in said.items()):
            return
        after = remembered(move.live.with_prompts(move.live.prompts))
        yield way._replace(server=server._replace(sessions=tuple(
            after if i == at else s for i, s in enumerate(server.sessions))), given=way.given - {
                (line["session"], line["seq"])})

    def do(self, way: Way, line: Line) -> Iterator[Way]:
        server, owed, _ = way
        if line["action"] == "recover":
            server = server._replace(sessions=tuple(s._replace(down=True) for s in server.sessions))
        for change in changes(FAMILY, server):
            if change.call.name != line["action"] or change.call.seq != line.get("seq"):
                continue
            said = family_line(server, change)
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

    def tell(self, way: Way, line: Line) -> Iterator[Way]:
        for i, mine in enumerate(way.owed):
            for at, entry in enumerate(mine):
                if entry == (line["effect"], line["seq"], line.get("outcome")) and not _ends(mine[:at]) and (
                        line.get("session") in (None, NAMES[i])):
                    yield way._replace(owed=tuple(mine[at + 1:] if j == i else o for j, o in enumerate(way.owed)))
                    break

    def in_use(self, way: Way, line: Line) -> bool:
        """Whether the name is that of a prompt whose end was not told. Names are `r` and the seq, or of nobody."""
        name = line.get("run_id") or ""
        other = int(name[1:]) if name[1:].isdigit() else 0
        return any(p.seq == other and p.run_id for p in way.server.prompts) or any(
            entry[:2] == ("end", other) for mine in way.owed for entry in mine)


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return ("dict", tuple((name, _frozen(inner)) for name, inner in sorted(value.items()) if name not in (
            "n", "after", "time", "v")))
    return ("list", tuple(map(_frozen, value))) if isinstance(value, list) else value


def _thawed(value: Any) -> Any:
    if isinstance(value, tuple):
        kind, inner = value
        return {k: _thawed(v) for k, v in inner} if kind == "dict" else [_thawed(v) for v in inner]
    return value


def _same(told: list[Line], said: list[Line], server: Server, change: Change) -> bool:
    """Whether the lists are the same, session by session."""
    homes = {p.seq: server.home(p.seq) for p in server.prompts} | (
        {change.after.seq: change.call.session} if change.call.name == "accept" else {})
    return all(one["seq"] in homes for one in told) and all(
        [one for one in told if homes[one["seq"]] == i] == [one for one in said if homes[one["seq"]] == i]
        for i in range(len(NAMES)))


def live(change: Change) -> Server:
    """The server without its finished prompts, and without what only properties look at."""
    return change.after._replace(sessions=tuple(
        remembered(s) for s in change.after.sessions if isinstance(s, Session)))


def remembered(session: Session) -> Session:
    return Session(session.mark, session.down, tuple(
        Prompt(p.seq, p.run_id, p.state, traits=p.traits) for p in session.live), None, session.held, session.held)


def _added(owed: Owing, change: Change) -> Owing:
    new = {i: owing(move) for i, move in change.moves}
    return tuple(mine + new.get(i, ()) for i, mine in enumerate(owed))


def _ends(owed: Iterable[tuple[str, int, str | None]]) -> bool:
    return any(kind == "end" for kind, _, _ in owed)


# --- traces of the model -----------------------------------------------------------------------------------------

Path = list[tuple[Server, Change]]


def steps_from(explorer: Explorer, situation: Situation) -> Iterator[tuple[Change, Situation]]:
    """What the bounds allow next, and where it leads. Finished prompts are forgotten. A resume has no bound: one that
    changes nothing is left out."""
    for way, spent in explorer.changes(situation):
        change = way.change
        if change.call.name == "resume" and change.after == situation.server:
            continue
        yield change, Situation(change.after._replace(sessions=tuple(
            s.with_sorted_prompts(s.live) for s in change.after.sessions if isinstance(s, Session))), spent)


def paths(bounds: Bounds, protocol: Protocol = REFERENCE) -> Iterator[Path]:
    """Every path of the model that goes as far as the bounds allow."""
    explorer = Explorer(protocol, bounds)

    def onward(situation: Situation, path: Path) -> Iterator[Path]:
        end = True
        for change, after in steps_from(explorer, situation):
            end = False
            yield from onward(after, [*path, (situation.server, change)])
        if end:
            yield path

    return onward(explorer.situations[explorer.root()], [])


def random_path(bounds: Bounds, random: Random, protocol: Protocol = REFERENCE) -> Path:
    explorer = Explorer(protocol, bounds)
    situation, path = explorer.situations[explorer.root()], Path()
    while steps := list(steps_from(explorer, situation)):
        change, after = random.choice(steps)
        path.append((situation.server, change))
        situation = after
    return path


def found_of(server: Server) -> Line:
    """What a recovery finds, if all was journaled."""
    return {name: {"mark": session.mark, **({"held": True} if session.held else {}), "prompts": [
        {"seq": p.seq, "run_id": f"r{p.seq}" if p.run_id else None, "state": p.state.value,
         **({"traits": p.traits._asdict()} if p.traits else {})} for p in session.live]}
        for name, session in zip(NAMES, server.sessions)}


def written(path: Iterable[tuple[Server, Change]], line_of: Callable[[Server, Change], Line] = line_of) -> list[Line]:
    """The path as a runtime would write it: whole lines, numbered in each life; a crash writes nothing."""
    lines: list[Line] = []
    n = 0
    for before, change in path:
        if change.call.name == "crash":
            n = 0
            continue
        n += 1
        line = {"n": n, **line_of(before, change)}
        if change.call.name == "accept":
            line["after"] = n - 1
        elif change.call.name == "recover":
            line["found"] = found_of(before)
        lines.append(line)
    return lines


def unnumbered(lines: Iterable[Line]) -> list[Line]:
    return [{name: value for name, value in line.items() if name not in ("n", "after", "found")} for line in lines]


def delayed(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """The same behaviour with acceptances written later, in every way: each at any time before its prompt moves."""
    slots = []
    for at, line in enumerate(lines):
        if line["action"] == "accept":
            moves = [i for i, other in enumerate(lines) if i > at and line["seq"] in [r["seq"] for r in other["rows"]]]
            slots.append([(at, to) for to in range(at, min(moves, default=len(lines)))])
    for choice in product(*slots):
        waits = dict(choice)
        out: list[Line] = []
        marks: dict[str, int] = {}
        given: dict[int, int] = {}
        for i, line in enumerate(lines):
            if i in waits:
                given[i] = len(out)
            else:
                marks |= dict.fromkeys(NAMES if line["session"] is None else [line["session"]], line["mark"])
                out.append({**line, "n": len(out) + 1})
            for at in [at for at, to in waits.items() if to == i]:
                out.append({**lines[at], "n": len(out) + 1, "after": given[at],
                            "mark": marks.get(lines[at]["session"], 0)})
        yield out


def observed(lines: Iterable[Line]) -> list[Line]:
    """The behaviour as somebody sees it who knows nothing of the inside: what callers do, and starts and ends."""
    seen: list[Line] = []
    for line in lines:
        if line["action"] not in LEFT_OUT:
            seen.append(bare(line))
        seen += [effect for effect in line["effects"] if effect["effect"] in ("start", "end")]
    return seen


def logged(lines: Iterable[Line], random: Random) -> list[Line]:
    """The behaviour as another implementation may log it, in one of many ways: steps left out, lines that say all or
    little, starts told or not, ends told at once or some lines later."""
    out: list[Line] = []
    owed: dict[str, list[Line]] = {name: [] for name in NAMES}
    homes: dict[int, str] = {}

    def tell(names: Iterable[str]) -> None:
        for name in names:
            out.extend(effect for effect in owed[name] if effect["effect"] == "end" or random.random() < 0.5)
            owed[name].clear()

    for line in lines:
        if line["action"] == "accept":
            homes[line["seq"]] = line["session"]
        names = NAMES if line["session"] is None else [line["session"]]
        told = [effect for effect in line["effects"] if effect["effect"] in ("start", "end")]
        form = random.choice(["whole", "bare", "out" if line["action"] in LEFT_OUT else "bare"])
        own = form == "bare" and line["action"] in ("finish", "settle", "fail") and bool(told)
        if own or (form == "whole" and told):
            tell(names)
        if form != "out":
            out.append(line if form == "whole" else bare(line))
        if form != "whole":
            for effect in told[own:]:
                owed[homes[effect["seq"]]].append(effect)
        tell(name for name in NAMES if random.random() < 0.5)
    return out


# --- mutations ---------------------------------------------------------------------------------------------------

SAME_FIELDS = (("enter", "fail", "settle", "step", "requeue"), ("cancel", "clear_queue"), ("close", "recover"))
ROW_NAMES = ("enter→active", "enter→queued", "enter→canceled_on_entry", "drop→done", "start→active")


def mutants(
    lines: Sequence[Line], changed: "Callable[[Line], Iterator[tuple[str, Line]]] | None" = None,
) -> Iterator[tuple[int, str, list[Line]]]:
    """Every trace that differs in one line, its number, and how: a line changed in one place, left out, written twice,
    or moved by one."""
    for i, line in enumerate(lines):
        for what, other in (changed or change_line)(line):
            yield i + 1, what, [*lines[:i], other, *lines[i + 1:]]
        if len(lines) > 1:
            yield i + 1, "left out", [*lines[:i], *lines[i + 1:]]
        yield i + 1, "twice", [*lines[:i + 1], line, *lines[i + 1:]]
        if i + 1 < len(lines):
            yield i + 1, "one later", [*lines[:i], lines[i + 1], line, *lines[i + 2:]]


def change_line(line: Line) -> Iterator[tuple[str, Line]]:
    def put(name: str, value: Any) -> tuple[str, Line]:
        return f"{name}={value}", {**line, name: value}

    kind = line.get("action")
    for group in SAME_FIELDS:
        if kind in group:
            yield from (put("action", other) for other in group if other != kind and "found" not in line)
    if line.get("session") is not None:
        yield from (put("session", other) for other in NAMES if other != line["session"])
    for name in ("seq", "mark", "after", "n"):
        if name in line:
            least = {"mark": 0, "after": 0, "n": 2}.get(name, 1)  # n = 1 begins another life
            yield from (put(name, line[name] + by) for by in (-1, 1, 2) if line[name] + by >= least)
    if "run_id" in line:
        yield from (put("run_id", other) for other in (None, "another") if other != line["run_id"])
    if "outcome" in line:
        outcomes = [o.value for o in Outcome if kind is None or o is not Outcome.FOLDED]
        yield from (put("outcome", other) for other in outcomes if other != line["outcome"])
    for name in ("rows", "effects"):
        for inner in changed_list(name, line.get(name)):
            yield put(name, inner)


def changed_list(name: str, told: list[Line] | None) -> Iterator[list[Line]]:
    if told is None:
        return
    yield [*told, {"seq": 1, "row": "drop→done"} if name == "rows" else {"effect": "start", "seq": 1}]
    if len(told) > 1:
        yield told[::-1]
    for i, one in enumerate(told):
        yield [*told[:i], *told[i + 1:]]
        others = [{**one, "seq": one["seq"] + 1}]
        if name == "rows":
            others += [{**one, "row": row} for row in ROW_NAMES if row != one["row"]]
        elif "outcome" in one:
            others += [{**one, "outcome": o.value} for o in Outcome if o.value != one["outcome"]]
        elif "into" in one:
            others += [{**one, "into": one["into"] + 1}]
        else:
            others += [{**one, "effect": kind} for kind in ("start", "stop") if kind != one["effect"]]
        yield from ([*told[:i], other, *told[i + 1:]] for other in others)


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
