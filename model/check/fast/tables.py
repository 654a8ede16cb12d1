"""The moves of each session, computed once with the protocol's own rows and actions, as tables of words.

A session's moves do not depend on other sessions, on finished prompts or on the rest of the bounds, and rarely on its
run ids. They are therefore tabulated by the session's number, the server's seq and the closing flag. If a move depends
on a run id, there is a *case* for each value; the word determines which case applies.

The tables also check every move of every session: safety properties, and the liveness properties that unfinished
prompts would violate at quiescence. They state what a move would show (properties violated, goals reached); the search
determines whether the move ever happens.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

from ...actions import Action, Variant
from ...lifecycle import Row
from ...properties import ServerStep, SessionStep
from ...protocol import Behaviour, Move, Protocol
from ...session import AnySession, Prompt
from ..plain import Explorer, endless
from .kernel import CASE, MOST_MOVES, MOVE
from .layout import WORD_BITS, Layout, TooWide
from .memory import Memory
from .run_id_cases import Asked, with_run_ids, without_run_ids

T = TypeVar("T")

MOST_AT_REST = 32  # liveness properties; each has a bit
NOTHING: frozenset[int] = frozenset()


class Option(NamedTuple):
    """A possible move of a session and its result. It is independent of the run ids that were not read."""

    action: Action
    seq: int | None
    variant: Variant
    run_ids: tuple[int, ...]  # the seqs of the prompts that it accepts with a run id
    ended: tuple[Prompt, ...]
    lost: frozenset[int]  # the seqs of prompts that disappeared without ending
    shows: tuple[str, ...]  # the ids of the properties it violates and of the goals it reaches
    live: int  # the number of the resulting session, without finished prompts and with hidden run ids
    changes: bool

    @property
    def label(self) -> tuple[Action, int | None, Variant]:
        return self.action, self.seq, self.variant

    @property
    def ends(self) -> tuple[tuple[Any, ...], ...]:
        """The ended prompts without their run ids, which the move does not change."""
        return tuple([(p[0], *p[2:]) for p in self.ended])


class Case(NamedTuple):
    """The moves of a session whose run ids are as in `known`, by seq."""

    known: dict[int, bool]
    moves: tuple[Option, ...]
    unrest: int  # bits, by `Sessions.at_rest`: the liveness properties that its prompts violate at quiescence


def ask(
    session: AnySession, known: dict[int, bool], work_out: Callable[[AnySession], T],
) -> Iterator[tuple[dict[int, bool], T]]:
    """The results of `work_out`, one for each combination of the run ids that it reads."""
    try:
        found = work_out(session)
    except Asked as asked:
        for answer in (False, True):
            run_ids = {asked.seq: answer}
            yield from ask(with_run_ids(session, run_ids), known | run_ids, work_out)
    else:
        yield known, found


class Parts:
    """A protocol split into consecutive parts: each action that has read a run id, and the runs of actions between
    them. A protocol with its own `moves` stays one part."""

    def __init__(self, protocol: Behaviour) -> None:
        self.protocol = protocol
        self.parts = [protocol]
        self._asking: set[Action] = set()

    def split(self, part: Behaviour, asks: Callable[[Behaviour], bool]) -> bool:
        """Split the part that has read a run id, by which of its actions do. False if it cannot be split."""
        protocol, asking = self.protocol, self._asking
        if not isinstance(protocol, Protocol) or type(protocol).moves is not Protocol.moves or len(part.actions) < 2:
            return False
        before = len(asking)
        asking.update([action for action in part.actions if asks(protocol.limited((action,)))])
        self.parts = [protocol.limited(tuple(actions)) for _, actions in groupby(
            protocol.actions, lambda action: action if action in asking else None)]
        return len(asking) > before


class Sessions:
    """All sessions found so far, and their moves."""

    def __init__(self, plain: Explorer) -> None:
        self.plain = plain
        self.known: list[AnySession] = []
        self._numbers: dict[AnySession, int] = {}
        self.at_rest = [p.at_rest for p in plain.properties if p.at_rest]
        if len(self.at_rest) > MOST_AT_REST:
            raise TooWide(f"there are more than {MOST_AT_REST} liveness properties")
        self._parts = Parts(plain.protocol)
        self._parts_when_full = Parts(plain.without_accept)
        self._cases: dict[tuple[int, int], tuple[Case, ...]] = {}
        self._goals: dict[tuple[Action, tuple[Row, ...]], tuple[str, ...]] = {}

    def number(self, session: AnySession) -> int:
        """The number of a session with hidden run ids; a new one if the session is new."""
        number = self._numbers.setdefault(session, len(self.known))
        if number == len(self.known):
            self.known.append(session)
        return number

    def find(self, session: AnySession) -> int | None:
        """The number of a session with hidden run ids, or None if the session is unknown."""
        return self._numbers.get(session)

    def cases(self, number: int, seq: int) -> tuple[Case, ...]:
        cases = self._cases.get((number, seq))
        if cases is None:
            cases = self._cases[number, seq] = tuple(self._list_cases(self.known[number], seq))
        return cases

    def _list_cases(self, session: AnySession, seq: int) -> list[Case]:
        """A case for each combination of the run ids that the moves depend on."""
        def work_out(session: AnySession, part: Behaviour) -> tuple[Option, ...]:
            moves = list(part.moves(session, seq))  # list all first: if one reads a run id, no check was wasted
            return tuple([self._judge(session, seq, move) for move in moves])

        def list_answers(part: Behaviour) -> list[tuple[dict[int, bool], tuple[Option, ...]]]:
            return list(ask(session, {}, partial(work_out, part=part)))

        parts = self._parts_when_full if seq >= self.plain.bounds.prompts else self._parts
        cases = [Case(known, (), unrest) for known, unrest in ask(session, {}, lambda s: self.unrest(s.owed))]
        for part in parts.parts:  # a part that reads no run id is computed once for all cases
            found = list_answers(part)
            if len(found) > 1 and parts.split(part, lambda part: len(list_answers(part)) > 1):
                return self._list_cases(session, seq)
            cases = [Case({**known, **asked}, moves + more, unrest)
                     for known, moves, unrest in cases for asked, more in found
                     if all(asked.get(of, yes) is yes for of, yes in known.items())]
        return cases

    def _judge(self, session: AnySession, seq: int, move: Move) -> Option:
        """The move as an option, with its violations and goals."""
        step = SessionStep.of(session, move)
        shows = tuple([id for id, holds in self.plain.on_session if not holds(step)]) + self._goals_met(move)
        before, after = [p.seq for p in session.prompts], [p.seq for p in move.after.prompts]
        run_ids: tuple[int, ...] = ()
        lost = NOTHING
        if before != after:
            run_ids = tuple([p.seq for p in move.after.prompts if p.seq > seq and p.run_id])
            lost = frozenset(before).difference(after)
        return Option(move.action, move.seq, move.variant, run_ids, move.ended, lost, shows,
                      self.number(without_run_ids(move.live)), move.after != session)

    def _goals_met(self, move: Move) -> tuple[str, ...]:
        key = move.action, move.rows
        goals = self._goals.get(key)
        if goals is None:
            reached = dict.fromkeys(self.plain.goals_reached(move.action.name, move.rows))
            goals = self._goals[key] = tuple(goal for goal in reached if goal in self.plain.wanted)
        return goals

    def restless(self) -> set[int]:
        """The sessions from which the system's own steps might continue forever without ending a prompt."""
        onward: dict[int, tuple[int, ...]] = {}
        for (number, _), cases in self._cases.items():
            onward[number] = (*onward.get(number, ()), *(
                move.live for case in cases for move in case.moves
                if move.action.system and not move.ended))
        return endless(onward)

    def unrest(self, prompts: Iterable[Prompt]) -> int:
        """The liveness properties that these prompts violate at quiescence, as bits."""
        return sum(1 << i for i, holds in enumerate(self.at_rest) if not all(map(holds, list(prompts))))


WHOLE = (1 << 64) - 1  # all bits of a word

# For each case of a session, by its number and seq: the moves to take at once, before all others, or none.
Urgent = Callable[[int, int], Iterable[tuple[Option, ...]]]


class EndsTooWide(Exception):
    """Prompts end in more different ways than the layout can number."""


class Tables:
    """The tables in memory, for the kernel: arrays of its structs `Case` and `Move`."""

    def __init__(self, sessions: Sessions, layout: Layout, *, forget: bool, urgent: Urgent) -> None:
        bounds = layout.bounds
        self.sessions, self.layout, self.forget, self.urgent = sessions, layout, forget, urgent
        self.plain = sessions.plain
        self.several = bounds.sessions > 1
        self.index_bits = layout.session_bits + layout.low
        self.case_of = Memory(bounds.sessions << self.index_bits, "i")
        self.cases = bytearray(CASE.size)  # the first entry is empty and means "not tabulated yet"
        self.moves = bytearray()
        self.most = 0  # the maximum number of moves of a state
        self.choosy = False  # whether some action on all sessions can happen in more than one way
        self.shows: dict[tuple[str, ...], int] = {}
        self._summed_up: dict[tuple[Action, ...], tuple[bool, bool]] = {}
        self.everywhere: dict[Action, int] = {}
        self._kinds: dict[tuple[Action, int, bool, bool, tuple[str, ...]], tuple[int, int, int, int]] = {}
        # The first number of each kind of end. A kind leaves out seq and run id; it includes the seq only if a liveness
        # property depends on it.
        self.ends: dict[tuple[Any, ...], int] = {}
        self.unrest_of_end = array("I", bytes(4 * (2 << layout.end_bits)))

    def add(self, untabled: Iterable[tuple[int, int]]) -> None:
        """Tabulate the moves for these sessions and combinations of number, seq and closing."""
        layout, case_of = self.layout, self.case_of.view
        for session, index in untabled:
            number, seq, closing = index >> layout.low, (index & (1 << layout.low) - 1) >> 1, bool(index & 1)
            case_of[session << self.index_bits | index] = len(self.cases) // CASE.size
            packed: dict[int, bytes] = {}  # by option, which several cases can share
            for case, urgent in zip(self.sessions.cases(number, seq), self.urgent(number, seq)):
                options = urgent or case.moves
                if closing:
                    options = tuple([option for option in options if option.action.while_closing])
                begin = len(self.moves) // MOVE.size
                for option in options:
                    key = id(option)
                    move = packed.get(key)
                    if move is None:
                        move = packed[key] = self._pack(session, number, closing, option)
                    self.moves += move
                self.cases += CASE.pack(
                    sum(map(layout.run_id, case.known)),
                    sum([layout.run_id(seq) for seq, yes in case.known.items() if yes]),
                    begin, begin + len(options), case.unrest, self._sum_up(options)[0], bool(urgent))
                self.most = max(self.most, layout.bounds.sessions * len(options))
                self.choosy |= self._sum_up(case.moves)[1]
        if self.most > MOST_MOVES:
            raise TooWide(f"a state has more than {MOST_MOVES:,} moves")  # the kernel's buffer is that large

    def _sum_up(self, options: tuple[Option, ...]) -> tuple[bool, bool]:
        """Whether none of these is the system's own, and whether two of them are the same action on all sessions."""
        actions = tuple([option.action for option in options])
        found = self._summed_up.get(actions)
        if found is None:
            everywhere = [action for action in actions if action.everywhere]
            found = self._summed_up[actions] = (
                not any(action.system for action in actions), len(set(everywhere)) < len(everywhere))
        return found

    def _pack(self, session: int, number: int, closing: bool, option: Option) -> bytes:
        """Encode one move."""
        layout, keep, after = self.layout, WHOLE, option.live
        if after >> layout.session_bits:
            raise TooWide(f"there are more than {after:,} sessions, too many for {layout.session_bits} bits")
        kind = option.action, session, closing, option.changes, option.shows
        fields = self._kinds.get(kind)
        if fields is None:
            fields = self._kinds[kind] = self._fields_of_kind(*kind)
        left, add, shows, everywhere = fields
        add += after - number << layout.sessions[session]
        for seq in option.run_ids:
            add += layout.run_id(seq)
        for prompt in option.ended:
            seq = prompt[0]
            if end := self.end(session, seq, prompt[2:]):
                add += end << layout.ends + (seq - 1) * layout.end_bits
            else:
                keep &= ~layout.run_id(seq)
        for seq in option.lost:
            keep &= ~layout.run_id(seq)
        return MOVE.pack(left, keep, add & WHOLE, shows, option.changes, everywhere)

    def _fields_of_kind(
        self, action: Action, session: int, closing: bool, changes: bool, shows: tuple[str, ...],
    ) -> tuple[int, int, int, int]:
        """The fields that all moves of a kind share: `left`, the part of `add` that is independent of sessions and
        prompts, the number of what they show, and `everywhere`."""
        left, add, everywhere = 1 << WORD_BITS - 1, 0, 0
        closing_after = closing if action.sets_closing is None else action.sets_closing
        if action.everywhere and self.several:
            everywhere = self.everywhere.setdefault(action, len(self.everywhere) + 1)
        else:
            step = ServerStep(action.name, None if action.everywhere else session, (closing, closing_after),
                              frozenset((session,) if changes else ()))
            shows = (*(id for id, holds in self.plain.on_server if not holds(step)), *shows)
        if session == 0 or not action.everywhere:
            add = closing_after - closing
            if action.bound == "prompts":
                add += 2
            elif action.bound is not None:
                left = self.layout.bits_left(action.bound)
                add -= 1 << self.layout.budgets[action.bound]
        return left, add, self.shows.setdefault(shows, len(self.shows)), everywhere

    def end(self, session: int, seq: int, kind: tuple[Any, ...]) -> int:
        """The number of a prompt's end, by kind and then by session; 0 if it is dropped from the state."""
        first = self.ends.get(kind)
        if first is None:
            first = self.ends.get((seq, *kind))
        if first is None:
            first = self._number_end(seq, kind)
        return first and first + session

    def _number_end(self, seq: int, kind: tuple[Any, ...]) -> int:
        by_seq = [self._judge_end(n, kind) for n in range(1, 1 + self.layout.bounds.prompts)]
        unrest = by_seq[seq - 1]
        if by_seq.count(unrest) < len(by_seq):
            kind = (seq, *kind)
        first = 0
        if not self.forget or any(unrest):
            first = 1 + self.layout.bounds.sessions * len(self.ends)
            if first + self.layout.bounds.sessions > 1 << self.layout.end_bits:
                raise EndsTooWide
            for number in range(first, first + self.layout.bounds.sessions):
                self.unrest_of_end[2 * number:2 * number + 2] = array("I", unrest)
        self.ends[kind] = first
        return first

    def _judge_end(self, seq: int, kind: tuple[Any, ...]) -> list[int]:
        """The liveness properties that an ended prompt violates, without and with a run id."""
        return [self.sessions.unrest((Prompt(seq, run_id, *kind),)) for run_id in (False, True)]
