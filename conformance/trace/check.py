"""Checking whether a trace is a behaviour of the model, line by line, in memory that does not grow with the trace.

## Candidates

A session is followed as a set of candidates: one if the trace is complete; several if omitted steps could have happened
sooner or later. Sessions share only the seqs and whether the server is closing, so each has its own set. If there are
too many candidates, only some are followed. A trace that one of them can take to its end is still a behaviour. If none
of them can take a line, that proves nothing: the result is `Undecided`. A finished prompt is dropped as soon as its end
is reported, as in the model; each session keeps only its mark.

## Restarts

A crash writes no line. In a trace with numbered lines, `n` = 1 starts the next life of the server, with a `recover`
line that reports what it `found` in the journal. Lines are written before their steps are journaled, so the journal may
lag behind the trace but is never ahead of it: every accepted prompt that has not ended is in the journal, in a state
that the trace has seen. Without `found`, everything before the crash counts as journaled.

## Not checked

- The run id of a finished prompt is not reused (R22a): that would need all run ids in memory.
- Time.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from cancelmark.model.family import FEATURE_OF, Feature
from cancelmark.model.lifecycle import State
from cancelmark.model.protocol import FAMILY, Protocol
from cancelmark.model.session import DEFAULT_TRAITS, Prompt, Session

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
from .records import BadTrace, FoundPrompt, FoundSession, Torn, TraceEffect, TraceLine, TraceRow
from .seqs import Seqs

DESTINATION = {row.name: row.dest for row in FAMILY.rows}
ENTERED = {State.ACCEPTED, State.QUEUED, State.ACTIVE}  # the states that a just accepted prompt can be in
SHOWN = 3  # states, and nearest lines, in a rejection

Told = TypeVar("Told", TraceEffect, TraceRow)


class Rejected(Exception):
    """The first line that the model does not allow."""

    def __init__(
        self, line: TraceLine, why: str, session: str | None = None, states: Sequence[str] = (),
        nearest: Sequence[Nearest] = (),
    ) -> None:
        super().__init__(f"the model does not allow line {line.number}: {why}")
        self.line, self.why, self.session = line, why, session
        self.states = states  # the possible states of the session before it
        self.nearest = nearest


class Undecided(Exception):
    """A line that no followed candidate can take, although there were more candidates."""

    def __init__(self, line: TraceLine, session: str, since: int) -> None:
        super().__init__(f"cannot decide whether the model allows line {line.number} ({line}): since line {since} "
                         f"session {session} has more possible states than the {MOST:,} that are followed; log more "
                         "steps, especially `enter`")
        self.line, self.session, self.since = line, session, since


class LivePrompt(NamedTuple):
    """An accepted prompt whose end has not been reported."""

    session: str
    run_id: str | None
    seen: set[State]  # the states that it has been in, if the trace is complete


class TraceCheck:
    """Checks the lines of a trace, and raises `Rejected`, `Undecided` or `BadTrace` at the first wrong one.

    `complete`: the trace omits no step, as every trace with numbered lines. `protocol`: the family protocol, or one
    with fewer of its optional calls.
    """

    def __init__(self, complete: bool = False, protocol: Protocol = FAMILY) -> None:
        self.complete, self.protocol = complete, protocol
        self.sessions: dict[str, tuple[Candidate, ...]] = {}
        self.prompts: dict[int, LivePrompt] = {}  # by seq
        self._of: dict[str, set[int]] = {}  # their seqs, by session
        self._run_ids: dict[str, int] = {}  # their seqs, by run id
        self.seqs = Seqs()
        self.lines = self.lives = self.accepted = self.most = 0  # counts; most: candidates at a time
        self.torn: list[int] = []  # lines that end in the middle
        self._narrowed: dict[str, int] = {}  # sessions not all of whose candidates are followed, since which line
        self._numbered: bool | None = None
        self._n = 0
        self._idleness: dict[str, Idleness] = {}  # by session
        self._holds: dict[str, set[bool]] = {}  # by session: the values of `held` in this life, if it is complete
        self._closed: int | None = None  # the latest seq when the server began to close
        self._cut = False  # the line before this one was torn

    @property
    def unfinished(self) -> list[int]:
        """The prompts whose end has not been reported."""
        return sorted(self.prompts)

    def take(self, line: TraceLine | Torn) -> None:
        """Check the next line."""
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
        """Count the line, and check its number: either all lines have one, without gaps, or none."""
        if self._numbered is None:
            self._numbered = line.n is not None
            self.complete |= self._numbered
            self.lives = 1
        if (line.n is not None) is not self._numbered:
            raise BadTrace(line.number, "no n, although the lines before it have one" if self._numbered else
                           "an n, although the lines before it have none", "number all lines, or none")
        self.lines += 1
        if line.n is None:
            self._n = line.number
            return
        if line.n == 1 and self.lines > 1:
            self.lives += 1
            if line.found is None:
                raise BadTrace(line.number, "n is 1, but this is not a recover with `found`",
                               "start each life of the server with one; otherwise number the lines without gaps")
        elif line.n != self._n + 1:
            wrong = "duplicate or out of order" if line.n <= self._n else "missing or out of order"
            raise BadTrace(line.number, f"n is {line.n}, but {self._n + 1} was expected: lines are {wrong}",
                           "give the file as it was written; to omit steps, omit n as well")
        self._n = line.n

    def _refuse_without_feature(self, line: TraceLine) -> None:
        """Reject a call that the protocol does not have."""
        needed = [FEATURE_OF.get(line.action or ""), line.if_busy,
                  Feature.HOLD if line.hold else None]
        for feature in needed:
            if feature and feature not in self.protocol.features:
                raise self._rejection(line, f"protocol {self.protocol.name} has no {feature.value}")

    # --- kinds of lines

    def _accept(self, line: TraceLine) -> None:
        assert line.seq
        assert line.session is not None
        if self._closed is not None and line.seq > self._closed:
            raise self._rejection(line, "the server is closing and must not accept prompts")
        after = self._n - 1 if line.after is None else line.after
        if wrong := self.seqs.give(line.seq, after, self._n):
            raise self._rejection(line, wrong)
        idleness = self._idleness.setdefault(line.session, Idleness())
        if wrong := idleness.accept(line.seq):
            raise self._rejection(line, wrong, line.session)
        if line.run_id in self._run_ids:
            raise self._rejection(line, f"run id {line.run_id} is in use by prompt {self._run_ids[line.run_id]}")
        self._know(line.seq, LivePrompt(line.session, line.run_id, {State.ACCEPTED}))
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
                raise BadTrace(line.number, "a late acceptance with reject, in a trace that omits steps",
                               "write it when the prompt is accepted, or omit no step and number all lines")
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
        """What is wrong unless the mark was the latest seq, now or right after line `after`. Other sessions may have
        assigned later seqs since."""
        if self._closed is not None and mark > self._closed:
            return f"the mark must be {self._closed}, because the server is closing and assigns no more seqs"
        if after is None:
            return self.seqs.reach(mark, self._n - 1, self._n)
        if mark < (known := max(self._of.get(name, ()), default=0)):
            return f"the mark must be at least {known}, which was accepted before"
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
            raise self._rejection(line, "recover starts a life of the server, so its n must be 1")
        if line.found is not None:
            self._begin_life(line, line.found)
        self._everywhere(line, self.seqs.latest)
        marks = [candidate.session.mark for candidates in self.sessions.values() for candidate in candidates]
        if line.mark is not None and line.mark != max(marks, default=0):
            raise self._rejection(line, f"the highest mark is {max(marks, default=0)}, not {line.mark}")
        self.seqs.restart(self.seqs.latest, self._n)
        self._closed = None

    def _everywhere(self, line: TraceLine, latest: int) -> None:
        """Apply the action to all sessions, each with the part of the line that concerns its own prompts."""
        for seq in [row.seq for row in line.rows or ()] + [effect.seq for effect in line.effects or ()]:
            if seq not in self.prompts:
                raise self._rejection(line, f"there is no prompt {seq} in progress")
        for name in list(self.sessions):
            mine = self._of.get(name, set())
            self._move(replace(line, session=name, rows=_only_of(mine, line.rows),
                               effects=_only_of(mine, line.effects)), name, latest)

    # --- lives

    def _begin_life(self, line: TraceLine, found: Mapping[str, FoundSession]) -> None:
        """Start a life of the server with the sessions found in the journal."""
        prompts = {p.seq: (name, p) for name, inside in found.items() for p in inside.prompts}
        if len(prompts) < sum(len(inside.prompts) for inside in found.values()):
            raise self._rejection(line, "a prompt was found twice")
        sessions = {name: Session(inside.mark, False, tuple(map(_as_found, sorted(inside.prompts))), held=inside.held,
                                  wished_hold=inside.held) for name, inside in found.items()}
        for name, session in sessions.items():
            if wrong := why_impossible(session):
                raise self._rejection(line, f"the state found for session {name} is impossible in the model: {wrong}")
        if self.lines > 1 and self.complete and not self._cut:
            self._compare(line, sessions, prompts)
        self.accepted += sum(map(self.seqs.free, prompts))
        known, self.prompts, self._of, self._run_ids = self.prompts, {}, {}, {}
        for seq, (name, prompt) in prompts.items():
            self._know(seq, LivePrompt(name, prompt.run_id, {prompt.state, *(known[seq].seen if seq in known else ())}))
        self._idleness, self._holds = {}, {name: {session.held} for name, session in sessions.items()}
        self.sessions = {name: (Candidate(session),) for name, session in sessions.items()}
        self.seqs.restart(max([0, *prompts, *(session.mark for session in sessions.values())]), self._n)

    def _compare(
        self, line: TraceLine, sessions: Mapping[str, Session], prompts: Mapping[int, tuple[str, FoundPrompt]],
    ) -> None:
        """Reject a journal that is ahead of the trace, or has lost a prompt. It may lag behind the trace."""
        for seq, known in self.prompts.items():
            if seq not in prompts and any(p.seq == seq for one in self.sessions[known.session]
                                          for p in one.session.prompts):
                raise self._rejection(line, f"prompt {seq} is lost: it was accepted and has not ended, but was not "
                                     "found", known.session)
        for seq, (name, prompt) in prompts.items():
            told = self.prompts.get(seq)
            seen = told.seen if told else ENTERED if self.seqs.free(seq) else set(State)
            if prompt.state not in seen or (told and (told.session, told.run_id) != (name, prompt.run_id)):
                raise self._rejection(line, f"prompt {seq} was found {prompt.state.value} in session {name}, but never "
                                     "was in that state according to the trace", name)
            if told and (wrong := self._why_not_made(prompt, name)):
                raise self._rejection(line, wrong, name)
        for name, session in sessions.items():
            if session.held not in self._holds.get(name, {False}):
                raise self._rejection(line, f"session {name} was found {'held' if session.held else 'not held'}, but "
                                     "never was according to the trace", name)
            if session.mark > max((one.session.mark for one in self.sessions.get(name, ())), default=session.mark):
                wrong = f"session {name} was found with mark {session.mark}, which it never had"
                raise self._rejection(line, wrong, name)

    # --- one session

    def _session_of(self, line: TraceLine) -> str:
        """The session of the line, from its `session` or from its prompt."""
        if line.seq is None:
            assert line.session is not None
            self._candidates_of(line.session)
            return line.session
        known = self.prompts.get(line.seq)
        if known is None:
            raise self._rejection(line, f"there is no prompt {line.seq} in progress: "
                                 + ("it was never accepted" if line.seq > self.seqs.latest else "it has ended"))
        if line.session is not None and line.session != known.session:
            raise self._rejection(line, f"prompt {line.seq} belongs to session {known.session}", known.session)
        if line.names and line.run_id != known.run_id:
            raise self._rejection(line, f"the run id of prompt {line.seq} is {known.run_id or 'none'}, not "
                                 f"{line.run_id or 'none'}", known.session)
        return known.session

    def _candidates_of(self, name: str) -> tuple[Candidate, ...]:
        """The candidates of the session. A session that no line has named yet exists too; a close applies to it."""
        return self.sessions.setdefault(name, (Candidate(Session(self._closed or 0)),))

    def _know(self, seq: int, known: LivePrompt) -> None:
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
        """Apply the action to every candidate of the session that allows it."""
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
        """Set the candidates of the session, and forget prompts that are in none of them. When no prompt is left, only
        one state is possible, however many candidates were dropped before."""
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
        """Note whether the session is idle, and the values of `held` that the journal of a complete trace may have."""
        idle = not any(session.prompts or session.held for session in sessions)
        self._idleness.setdefault(name, Idleness()).note(self._n, idle)
        self._holds.setdefault(name, {False}).update(session.held for session in sessions)

    def _why_not_made(self, found: FoundPrompt, name: str) -> str | None:
        """What is wrong if the journal is ahead of the prompt's traits, which only ever grow. The position of an
        interrupt is journaled before its acceptance, and again if another prompt overtook it, so it is not checked."""
        for one in self.sessions.get(name, ()):
            for prompt in one.session.prompts:
                if prompt.seq != found.seq:
                    continue
                here, there = prompt.traits or DEFAULT_TRAITS, found.traits
                if (there.urgent is not here.urgent or there.version > here.version or there.revoked > here.revoked
                        or (there.front > here.front and not here.urgent)):
                    return f"prompt {found.seq} was found with traits that no line reports"
        return None

    def _rejection(self, line: TraceLine, why: str, name: str | None = None) -> Rejected:
        candidates = self.sessions.get(name, ()) if name is not None else ()
        near = []
        if candidates:
            near = find_nearest(line, candidates, self.seqs.latest, self.complete, SHOWN)
        states = sorted(map(state_text, candidates), key=lambda text: (len(text), text))
        return Rejected(line, why, name, states, near)


def _as_found(found: FoundPrompt) -> Prompt:
    """The prompt as the model represents it. An active prompt has begun, whether or not its traits say so."""
    prompt = Prompt(found.seq, found.run_id is not None, found.state, asks=found.asks)
    return prompt.changed(**(found.traits._replace(begun=found.traits.begun or found.state is State.ACTIVE)._asdict()))


def _only_of(seqs: set[int], told: tuple[Told, ...] | None) -> tuple[Told, ...] | None:
    """The entries of a line for these prompts."""
    return None if told is None else tuple(one for one in told if one.seq in seqs)
