"""Whether a trace is a behaviour of the model: line by line, in memory that does not grow with the lines.

A session is followed as a set of candidates: one, if the trace is complete; several, where steps that
it leaves out could have come sooner or later. Sessions share the seqs and whether the server is closing, nothing else,
so each has its own set. If there are too many, only some are followed. A trace that one of them has to its end is a
behaviour all the same; that none of them has a line is no proof of the contrary, and `Undecided`. A prompt that is done
is forgotten as soon as its end is told, as the model does. What stays is a mark for each session.

**Lives.** A crash writes nothing. In a trace with numbered lines, `n` = 1 begins the next life of the server, with a
`recover` that says what it `found` in the journal. Lines are written before their steps are journaled, so the journal
may be behind the trace, but never ahead of it: nobody who was accepted is missing there without having ended, and
nobody is in a state that the trace has not seen. Without `found`, everything before the crash was journaled.

**Not judged**: that a run id of a prompt that has ended is not used again (R22a), since that would take them all into
memory, and time.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from cancelmark.model.family import FEATURE_OF, Feature
from cancelmark.model.lifecycle import State
from cancelmark.model.protocol import FAMILY, Protocol
from cancelmark.model.session import PLAIN, Prompt, Session

from .candidates import (
    MOST,
    Candidate,
    Limit,
    moved_rows,
    take_action,
    tell_effect,
    why_impossible,
    with_imagined_steps,
)
from .explain import Nearest, find_nearest, state_text, why_rejected
from .idleness import Idleness
from .records import Asked, BadTrace, Found, FoundSession, Moved, Torn, TraceLine
from .seqs import Seqs

DESTINATION = {row.name: row.dest for row in FAMILY.rows}
ENTERED = {State.ACCEPTED, State.QUEUED, State.ACTIVE}  # where a prompt can be that was just accepted
SHOWN = 3  # states, and nearest lines, that a rejection tells

Told = TypeVar("Told", Asked, Moved)


class Rejected(Exception):
    """The first line that no behaviour of the model has."""

    def __init__(
        self, line: TraceLine, why: str, session: str | None = None, states: Sequence[str] = (),
        nearest: Sequence[Nearest] = (),
    ) -> None:
        super().__init__(f"line {line.number} is not what the model can do: {why}")
        self.line, self.why, self.session = line, why, session
        self.states = states  # in which the session could have been before it
        self.nearest = nearest


class Undecided(Exception):
    """A line that none of the candidates has which were followed; but there were more."""

    def __init__(self, line: TraceLine, session: str, since: int) -> None:
        super().__init__(f"line {line.number} may not be what the model can do ({line}), but since line {since} "
                         f"session {session} could be in more states than the {MOST:,} that were followed; log more "
                         "steps, `enter` above all")
        self.line, self.session, self.since = line, session, since


class Known(NamedTuple):
    """A prompt that has been accepted and whose end has not been told."""

    session: str
    run_id: str | None
    seen: set[State]  # the states that it has been in, if the trace is complete


class TraceCheck:
    """Takes the lines of a trace, and raises at the first that is wrong: `Rejected`, `Undecided` or `BadTrace`.

    `complete`: no step is left out. A trace with numbered lines is complete. `protocol`: the family, or one that has
    fewer of its calls; without them it does the same.
    """

    def __init__(self, complete: bool = False, protocol: Protocol = FAMILY) -> None:
        self.complete, self.protocol = complete, protocol
        self.sessions: dict[str, tuple[Candidate, ...]] = {}
        self.prompts: dict[int, Known] = {}  # by seq
        self._of: dict[str, set[int]] = {}  # their seqs, by session
        self._run_ids: dict[str, int] = {}  # their seqs, by run id
        self.seqs = Seqs()
        self.lines = self.lives = self.accepted = self.most = 0  # counts; most: candidates at a time
        self.torn: list[int] = []  # lines that end in the middle
        self._narrowed: dict[str, int] = {}  # sessions not all of whose candidates are followed, since which line
        self._numbered: bool | None = None
        self._n = 0
        self._idleness: dict[str, Idleness] = {}  # by session
        self._holds: dict[str, set[bool]] = {}  # what the sessions of this life were, held or not, if it is complete
        self._closed: int | None = None  # the latest seq when the server began to close
        self._cut = False  # the line before this one was torn

    @property
    def unfinished(self) -> list[int]:
        """The prompts whose end has not been told."""
        return sorted(self.prompts)

    def take(self, line: TraceLine | Torn) -> None:
        """The next line."""
        if isinstance(line, Torn):
            self.torn.append(line.number)
            self._cut = True
            return
        self._count_line(line)
        self._refuse_without_feature(line)
        if line.action == "recover":
            self._recover(line)
        elif line.action == "close":
            self._close(line)
        elif line.action == "accept":
            self._accept(line)
        elif line.action:
            self._take_action(line)
        else:
            self._take_effect(line)
        self._cut = False

    def _count_line(self, line: TraceLine) -> None:
        """One more line; numbered, if the first was, and then without a gap."""
        if self._numbered is None:
            self._numbered = line.n is not None
            self.complete |= self._numbered
            self.lives = 1
        if (line.n is not None) is not self._numbered:
            raise BadTrace(line.number, "no n, which the lines before it have" if self._numbered else
                           "an n, which the lines before it have not", "number all lines, or none")
        self.lines += 1
        if line.n is None:
            self._n = line.number
            return
        if line.n == 1 and self.lines > 1:
            self.lives += 1
            if line.found is None:
                raise BadTrace(line.number, "n is 1, and this is no recover that says what it found",
                               "a life of the server begins with one; otherwise number the lines without a gap")
        elif line.n != self._n + 1:
            wrong = "come twice, or out of order" if line.n <= self._n else "are missing, or out of order"
            raise BadTrace(line.number, f"n is {line.n} where {self._n + 1} is next: lines {wrong}",
                           "give the file as it was written; to leave out steps, leave out n as well")
        self._n = line.n

    def _refuse_without_feature(self, line: TraceLine) -> None:
        """A protocol without the call cannot do it."""
        needed = [FEATURE_OF.get(line.action or ""), line.if_busy,
                  Feature.HOLD if line.hold else None]
        for feature in needed:
            if feature and feature not in self.protocol.features:
                raise self._rejection(line, f"protocol {self.protocol.name} has no {feature.value}")

    # --- the kinds of lines

    def _accept(self, line: TraceLine) -> None:
        assert line.seq
        assert line.session is not None
        if self._closed is not None and line.seq > self._closed:
            raise self._rejection(line, "the server is closing, and accepts nothing any more")
        after = self._n - 1 if line.after is None else line.after
        if wrong := self.seqs.give(line.seq, after, self._n):
            raise self._rejection(line, wrong)
        idleness = self._idleness.setdefault(line.session, Idleness())
        if wrong := idleness.accept(line.seq):
            raise self._rejection(line, wrong, line.session)
        if line.run_id in self._run_ids:
            raise self._rejection(line, f"run id {line.run_id} is in use by prompt {self._run_ids[line.run_id]}")
        self._know(line.seq, Known(line.session, line.run_id, {State.ACCEPTED}))
        self.accepted += 1
        if line.if_busy is Feature.REJECT and self.complete:
            found = self._candidates_of(line.session)
            if not any(one.session.prompts or one.session.held for one in found):
                idleness.found_idle(line.seq)
            elif wrong := idleness.reject(line.seq, after):
                raise self._rejection(line, wrong, line.session)
            self._move(replace(line, if_busy=None), line.session, line.seq - 1)
        else:
            if line.if_busy is Feature.REJECT and after != self._n - 1:
                raise BadTrace(line.number, "an acceptance with reject that is written late, where steps are left out",
                               "write it when the prompt is accepted, or leave no step out and number all lines")
            self._move(line, line.session, line.seq - 1)
            if line.if_busy is Feature.REJECT:
                idleness.found_idle(line.seq)
        if self.complete:
            idleness.note(self._n, False, line.seq)

    def _take_action(self, line: TraceLine) -> None:
        name = self._session_of(line)
        latest = self.seqs.latest
        if line.action == "cancel":
            latest = latest if line.mark is None else line.mark
            if wrong := self._check_mark(latest, line.after, name):
                raise self._rejection(line, wrong, name)
        self._move(line, name, latest)

    def _check_mark(self, mark: int, after: int | None = None, name: str = "") -> str | None:
        """Whether the mark was the latest seq, now or right after line `after`. Others may have been given out since,
        in other sessions."""
        if self._closed is not None and mark > self._closed:
            return f"the mark must be {self._closed}: the server is closing, and gives out no seq any more"
        if after is None:
            return self.seqs.reach(mark, self._n - 1, self._n)
        if mark < (known := max(self._of.get(name, ()), default=0)):
            return f"the mark must be {known} at least, which was accepted before"
        return None if mark < self.seqs.latest else self.seqs.reach(mark, after, after)

    def _take_effect(self, line: TraceLine) -> None:
        name = self._session_of(line)
        candidates, limit = self.sessions[name], Limit()
        ways = candidates if self.complete else with_imagined_steps(candidates, line, limit)
        self._narrow_session(line, name, dict.fromkeys(left for one in ways if (left := tell_effect(one, line))), limit)

    def _close(self, line: TraceLine) -> None:
        if self._closed is not None:
            raise self._rejection(line, "the server is closing already")
        latest = self.seqs.latest if line.mark is None else line.mark
        if wrong := self._check_mark(latest):
            raise self._rejection(line, wrong)
        self._everywhere(line, latest)
        self._closed = latest

    def _recover(self, line: TraceLine) -> None:
        if self._numbered and line.n != 1:
            raise self._rejection(line, "recover begins a life of the server, and the number of its line is 1")
        if line.found is not None:
            self._begin_life(line, line.found)
        self._everywhere(line, self.seqs.latest)
        marks = [candidate.session.mark for candidates in self.sessions.values() for candidate in candidates]
        if line.mark is not None and line.mark != max(marks, default=0):
            raise self._rejection(line, f"the highest mark is {max(marks, default=0)}, and not {line.mark}")
        self.seqs.restart(self.seqs.latest, self._n)
        self._closed = None

    def _everywhere(self, line: TraceLine, latest: int) -> None:
        """The action in all sessions: each does what the line says of its own prompts."""
        for seq in [row.seq for row in line.rows or ()] + [effect.seq for effect in line.effects or ()]:
            if seq not in self.prompts:
                raise self._rejection(line, f"there is no prompt {seq} that is not done")
        for name in list(self.sessions):
            mine = self._of.get(name, set())
            self._move(replace(line, session=name, rows=_only_of(mine, line.rows),
                               effects=_only_of(mine, line.effects)), name, latest)

    # --- lives

    def _begin_life(self, line: TraceLine, found: Mapping[str, FoundSession]) -> None:
        """A life begins with what the journal has."""
        prompts = {p.seq: (name, p) for name, inside in found.items() for p in inside.prompts}
        if len(prompts) < sum(len(inside.prompts) for inside in found.values()):
            raise self._rejection(line, "a prompt was found twice")
        sessions = {name: Session(inside.mark, False, tuple(map(_as_found, sorted(inside.prompts))), held=inside.held,
                                  wished_hold=inside.held) for name, inside in found.items()}
        for name, session in sessions.items():
            if wrong := why_impossible(session):
                raise self._rejection(line, f"what was found in session {name} is no state of the model: {wrong}")
        if self.lines > 1 and self.complete and not self._cut:
            self._compare(line, sessions, prompts)
        self.accepted += sum(map(self.seqs.free, prompts))
        known, self.prompts, self._of, self._run_ids = self.prompts, {}, {}, {}
        for seq, (name, prompt) in prompts.items():
            self._know(seq, Known(name, prompt.run_id, {prompt.state, *(known[seq].seen if seq in known else ())}))
        self._idleness, self._holds = {}, {name: {session.held} for name, session in sessions.items()}
        self.sessions = {name: (Candidate(session),) for name, session in sessions.items()}
        self.seqs.restart(max([0, *prompts, *(session.mark for session in sessions.values())]), self._n)

    def _compare(
        self, line: TraceLine, sessions: Mapping[str, Session], prompts: Mapping[int, tuple[str, Found]],
    ) -> None:
        """The journal may be behind the trace, and never ahead of it; and it has lost nobody."""
        for seq, known in self.prompts.items():
            if seq not in prompts and any(p.seq == seq for one in self.sessions[known.session]
                                          for p in one.session.prompts):
                raise self._rejection(line, f"prompt {seq} was accepted and has not ended, and was not found: it is "
                                     "lost", known.session)
        for seq, (name, prompt) in prompts.items():
            told = self.prompts.get(seq)
            seen = told.seen if told else ENTERED if self.seqs.free(seq) else set(State)
            if prompt.state not in seen or (told and (told.session, told.run_id) != (name, prompt.run_id)):
                raise self._rejection(line, f"prompt {seq} was found {prompt.state.value} in session {name}, where the "
                                     "trace has never had it", name)
            if told and (wrong := self._why_not_made(prompt, name)):
                raise self._rejection(line, wrong, name)
        for name, session in sessions.items():
            if session.held not in self._holds.get(name, {False}):
                raise self._rejection(line, f"session {name} was found {'held' if session.held else 'not held'}, which "
                                     "it never was", name)
            if session.mark > max((one.session.mark for one in self.sessions.get(name, ())), default=session.mark):
                wrong = f"mark {session.mark} was found in session {name}, which never had it"
                raise self._rejection(line, wrong, name)

    # --- one session

    def _session_of(self, line: TraceLine) -> str:
        """The session that the line is about. It says which, or its prompt does."""
        if line.seq is None:
            assert line.session is not None
            self._candidates_of(line.session)
            return line.session
        known = self.prompts.get(line.seq)
        if known is None:
            raise self._rejection(line, f"there is no prompt {line.seq} that is not done: "
                                 + ("it was never accepted" if line.seq > self.seqs.latest else "its end was told"))
        if line.session is not None and line.session != known.session:
            raise self._rejection(line, f"prompt {line.seq} is of session {known.session}", known.session)
        if line.names and line.run_id != known.run_id:
            raise self._rejection(line, f"the run id of prompt {line.seq} is {known.run_id or 'none'}, and not "
                                 f"{line.run_id or 'none'}", known.session)
        return known.session

    def _candidates_of(self, name: str) -> tuple[Candidate, ...]:
        """Where the session can be. One of which no line has told is there all the same: a close has closed it."""
        return self.sessions.setdefault(name, (Candidate(Session(self._closed or 0)),))

    def _know(self, seq: int, known: Known) -> None:
        self.prompts[seq] = known
        self._of.setdefault(known.session, set()).add(seq)
        if known.run_id is not None:
            self._run_ids[known.run_id] = seq

    def _forget(self, seq: int) -> None:
        known = self.prompts.pop(seq)
        self._of[known.session].discard(seq)
        if known.run_id is not None:
            del self._run_ids[known.run_id]

    def _move(self, line: TraceLine, name: str, latest: int) -> None:
        """An action in a session: whoever can take it does."""
        exact = self.complete or line.found is not None
        candidates, limit = self._candidates_of(name), Limit()
        after: dict[Candidate, None] = {}  # in order: if only some are followed, the same ones each time
        for candidate in candidates if exact else with_imagined_steps(candidates, line, limit):
            for result, before, move in take_action(candidate, line, latest, None if exact else limit):
                after[result] = None
                if self.complete:
                    for row in moved_rows(before, move):
                        self.prompts[row.seq].seen.add(DESTINATION[row.row])
            if len(after) >= MOST:
                limit.hit = True
                break
        self._narrow_session(line, name, after, limit)

    def _narrow_session(self, line: TraceLine, name: str, after: Collection[Candidate], limit: Limit) -> None:
        """The session is in one of these states now. Prompts that are in none of them any more are forgotten. When no
        prompt is left there is one state that it can be in, however many were not followed before."""
        if not after and name in self._narrowed:
            raise Undecided(line, name, self._narrowed[name])
        if limit.hit:
            self._narrowed.setdefault(name, line.number)
        if not after:
            raise Undecided(line, name, line.number) if limit.hit else self._rejection(
                line, why_rejected(line, self.sessions[name]), name)
        self.most = max(self.most, len(after))
        self.sessions[name] = tuple(after)
        if self.complete:
            self._note_state(name, [one.session for one in after])
        alive = {p.seq for one in after for p in one.session.prompts} | {o.seq for one in after for o in one.owed}
        for seq in self._of.get(name, set()) - alive:
            self._forget(seq)
        if not self._of.get(name):
            self._narrowed.pop(name, None)

    def _note_state(self, name: str, sessions: Sequence[Session]) -> None:
        """What the journal of a complete trace may have, and whether the session is idle now."""
        idle = not any(session.prompts or session.held for session in sessions)
        self._idleness.setdefault(name, Idleness()).note(self._n, idle)
        self._holds.setdefault(name, {False}).update(session.held for session in sessions)

    def _why_not_made(self, found: Found, name: str) -> str | None:
        """Whether the journal is ahead of what calls have made of the prompt, which only ever grows. The place of an
        interrupt is journaled before the prompt is accepted, and again if others were faster: it is not judged."""
        for one in self.sessions.get(name, ()):
            for prompt in one.session.prompts:
                if prompt.seq != found.seq:
                    continue
                here, there = prompt.traits or PLAIN, found.traits
                if (there.urgent is not here.urgent or there.version > here.version or there.revoked > here.revoked
                        or (there.front > here.front and not here.urgent)):
                    return f"prompt {found.seq} was found with traits that no line has given it"
        return None

    def _rejection(self, line: TraceLine, why: str, name: str | None = None) -> Rejected:
        candidates = self.sessions.get(name, ()) if name is not None else ()
        near = []
        if candidates:
            near = find_nearest(line, candidates, self.seqs.latest, self.complete, SHOWN)
        states = sorted(map(state_text, candidates), key=lambda text: (len(text), text))
        return Rejected(line, why, name, states, near)


def _as_found(found: Found) -> Prompt:
    """The prompt as the model has it. What is active has begun, whoever says so."""
    prompt = Prompt(found.seq, found.run_id is not None, found.state)
    return prompt.changed(**(found.traits._replace(begun=found.traits.begun or found.state is State.ACTIVE)._asdict()))


def _only_of(seqs: set[int], told: tuple[Told, ...] | None) -> tuple[Told, ...] | None:
    """What a line tells of these prompts."""
    return None if told is None else tuple(one for one in told if one.seq in seqs)
