"""What each session can do, worked out once with the protocol's own rows and actions, as tables of words.

A session does the same whatever the other sessions, the finished prompts and what is left of the bounds; and mostly the
same whatever its run ids. So what it can do is tabled by its number, the server's seq and whether the server is
closing. Where somebody asks for a run id there is a *case* for each answer; the one that applies is told by the word.

Judged here, on every move of every session that is met: safety, and what unfinished prompts break if the session rests.
The tables say what a move would show (properties broken, goals met), the search says whether it is ever made.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

from ...actions import Action, Variant
from ...lifecycle import Row
from ...properties import ServerStep, SessionStep
from ...protocol import Move
from ...session import AnySession, Prompt
from ..plain import Explorer, endless
from .kernel import CASE, MOST_MOVES, MOVE
from .layout import WORD_BITS, Layout, TooWide
from .memory import Memory
from .places import Form, Shape, form_of, number_place, number_places, number_prompt, shape_of
from .run_id_cases import Asked, HiddenPrompt, with_run_ids, without_run_ids

C = TypeVar("C")

MOST_AT_REST = 32  # properties: each has a bit


class Option(NamedTuple):
    """One thing that a session can do, whatever the run ids that nobody asked for."""

    action: Action
    seq: int | None
    variant: Variant
    live: int  # the number of the session without the finished prompts, hidden
    run_ids: tuple[int, ...]  # of the prompts that it accepts: the seqs that have one
    ended: tuple[Prompt, ...]
    lost: frozenset[int]  # the seqs of prompts that are no longer there although they did not end
    changes: bool
    shows: tuple[str, ...]  # the properties it breaks and the goals it meets, by id

    @property
    def label(self) -> tuple[Action, int | None, Variant]:
        return self.action, self.seq, self.variant


class Case(NamedTuple):
    """What a session can do if its run ids are as `known` says, by seq."""

    known: dict[int, bool]
    moves: tuple[Option, ...]
    unrest: int  # the liveness properties that its prompts break if this is where it rests: bits, by `Sessions.at_rest`


class PlacedOption(NamedTuple):
    """The same with the numbers of places for seqs."""

    option: Option  # its session is none yet
    form: int  # of its session, by number
    places: tuple[int, ...]  # of its session: the mark's, and the prompts'

    def put_back(self, number: int, seqs: list[int], sessions: "Sessions") -> Option:
        """The same for the session of that number, with seqs for the numbers of places."""
        action, seq, variant, _, run_ids, ended, lost, _, shows = self.option
        live = sessions.number_form(self.form, [seqs[place] for place in self.places])
        return Option(
            action, seq and seqs[seq], variant, live, tuple([seqs[p] for p in run_ids]) if run_ids else (),
            tuple([type(p)(seqs[p[0]], *p[1:]) for p in ended]) if ended else (),
            frozenset([seqs[p] for p in lost]) if lost else lost, bool(ended) or live != number, shows)


class PlacedCase(NamedTuple):
    """The same with the numbers of places for seqs."""

    known: dict[int, bool]
    moves: tuple[PlacedOption, ...]
    unrest: int

    def put_back(self, number: int, seqs: list[int], sessions: "Sessions", full: bool) -> Case:
        """The same for the session of that number. `full`: no prompt is accepted any more."""
        return Case({seqs[p]: yes for p, yes in self.known.items()}, tuple(
            [move.put_back(number, seqs, sessions) for move in self.moves
             if not (full and move.option.action.bound == "prompts")]), self.unrest)


class Sessions:
    """All sessions that were met, and what they can do."""

    def __init__(self, plain: Explorer) -> None:
        self.plain = plain
        self.known: list[AnySession] = []
        self._numbers: dict[object, int] = {}  # by form, mark and seqs; or by session, if it cannot be renumbered
        self._forms: dict[Form, int] = {}
        self._form: list[Form] = []
        self.at_rest = [p.at_rest for p in plain.properties if p.at_rest]
        if len(self.at_rest) > MOST_AT_REST:
            raise TooWide(f"more than {MOST_AT_REST} properties are judged at rest")
        self._cases: dict[tuple[int, int], tuple[Case, ...]] = {}
        self._shapes: dict[Shape, tuple[PlacedCase, ...] | None] = {}  # None: it must be worked out as it is
        self._goals: dict[tuple[Action, tuple[Row, ...]], tuple[str, ...]] = {}

    def number(self, session: AnySession) -> int:
        """The number of a hidden session."""
        key = self._key(session)
        number = self._numbers.setdefault(key, len(self.known))
        if number == len(self.known):
            self.known.append(session)
        return number

    def find(self, session: AnySession) -> int | None:
        """The same, if it was ever met."""
        return self._numbers.get(self._key(session))

    def number_form(self, form: int, seqs: list[int]) -> int:
        """The number of the session of this form, with that mark and those seqs."""
        key = form, *seqs
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.known)
            self.known.append(self._form[form].fill(HiddenPrompt, seqs[0], seqs[1:]))
        return number

    def _key(self, session: AnySession) -> object:
        found = form_of(session)
        return session if found is None else (self._number_of_form(found[0]), *found[1])

    def _number_of_form(self, form: Form) -> int:
        number = self._forms.setdefault(form, len(self._form))
        if number == len(self._form):
            self._form.append(form)
        return number

    def cases(self, number: int, seq: int) -> tuple[Case, ...]:
        cases = self._cases.get((number, seq))
        if cases is None:
            cases = self._cases[number, seq] = self._work_out(number, seq)
        return cases

    def _work_out(self, number: int, seq: int) -> tuple[Case, ...]:
        session = self.known[number]
        renumbered = shape_of(session, seq)
        if renumbered is not None:
            shape, seqs = renumbered
            if shape not in self._shapes:
                try:
                    self._shapes[shape] = tuple(self._split(*shape.fill(HiddenPrompt), {}, self._placed_case))
                except Exception:  # whatever goes wrong with places is told with seqs
                    self._shapes[shape] = None
            if (found := self._shapes[shape]) is not None:
                full = seq >= self.plain.bounds.prompts
                return tuple([case.put_back(number, seqs, self, full) for case in found])
        return tuple(self._split(session, seq, {}, self._case))

    def _split(
        self, session: AnySession, seq: int, known: dict[int, bool],
        make: Callable[[dict[int, bool], AnySession, int, list[Move]], C],
    ) -> Iterator[C]:
        """A case for each answer to what is asked of run ids."""
        try:
            case = make(known, session, seq, self._moves(session, seq))
        except Asked as asked:
            for answer in (False, True):
                run_ids = {asked.seq: answer}
                yield from self._split(with_run_ids(session, run_ids), seq, known | run_ids, make)
        else:
            yield case

    def _moves(self, session: AnySession, seq: int) -> list[Move]:
        plain = self.plain
        full = isinstance(seq, int) and seq >= plain.bounds.prompts
        protocol = plain.without_accept if full else plain.protocol
        return list(protocol.moves(session, seq))  # all of them first: if one asks, nothing was judged in vain

    def _case(self, known: dict[int, bool], session: AnySession, seq: int, moves: list[Move]) -> Case:
        return Case(known, tuple([
            self._option(session, seq, move)._replace(live=self.number(without_run_ids(move.live)))
            for move in moves]), self.unrest(session.owed))

    def _placed_case(self, known: dict[int, bool], session: AnySession, seq: int, moves: list[Move]) -> PlacedCase:
        return PlacedCase({number_place(place): yes for place, yes in known.items()}, tuple([
            self._placed_option(self._option(session, seq, move), move) for move in moves]), self.unrest(session.owed))

    def _placed_option(self, option: Option, move: Move) -> PlacedOption:
        form, places = number_places(without_run_ids(move.live))
        return PlacedOption(option._replace(
            seq=option.seq and number_place(option.seq), run_ids=tuple(map(number_place, option.run_ids)),
            ended=tuple(map(number_prompt, option.ended)), lost=frozenset(map(number_place, option.lost))),
            self._number_of_form(form), places)

    def _option(self, session: AnySession, seq: int, move: Move) -> Option:
        """What the move comes to, but for the number of the session that it leads to."""
        step = SessionStep.of(session, move)
        broken = tuple([id for id, holds in self.plain.on_session if not holds(step)])
        new = [p for p in move.after.prompts if p.seq > seq]
        lost: frozenset[int] = frozenset()
        if len(move.after.prompts) < len(session.prompts) + len(new):
            lost = frozenset(p.seq for p in session.prompts) - {p.seq for p in move.after.prompts}
        return Option(move.action, move.seq, move.variant, -1, tuple(p.seq for p in new if p.run_id),
                      move.ended, lost, move.after != session, broken + self._goals_met(move))

    def _goals_met(self, move: Move) -> tuple[str, ...]:
        key = move.action, move.rows
        goals = self._goals.get(key)
        if goals is None:
            reached = dict.fromkeys(self.plain.goals_reached(move.action.name, move.rows))
            goals = self._goals[key] = tuple(goal for goal in reached if goal in self.plain.wanted)
        return goals

    def restless(self) -> set[int]:
        """The sessions from which the system could go on for ever without ending a prompt, for all they know."""
        onward: dict[int, tuple[int, ...]] = {}
        for (number, _), cases in self._cases.items():
            onward[number] = (*onward.get(number, ()), *(
                move.live for case in cases for move in case.moves
                if move.action.system and not move.ended))
        return endless(onward)

    def unrest(self, prompts: Iterable[Prompt]) -> int:
        """Which liveness properties these prompts break at rest."""
        return sum(1 << i for i, holds in enumerate(self.at_rest) if not all(map(holds, list(prompts))))


WHOLE = (1 << 64) - 1  # all bits of a word

# In each case of a session, by its number and seq: the moves that are made before anything else, if there are any.
Urgent = Callable[[int, int], Iterable[tuple[Option, ...]]]


class EndsTooWide(Exception):
    """Prompts end in more ways than the layout has numbers for."""


class Tables:
    """The same in memory, for the kernel: its `Case` and its `Move`, one after the other."""

    def __init__(self, sessions: Sessions, layout: Layout, *, forget: bool, urgent: Urgent) -> None:
        bounds = layout.bounds
        self.sessions, self.layout, self.forget, self.urgent = sessions, layout, forget, urgent
        self.plain = sessions.plain
        self.several = bounds.sessions > 1
        self.index_bits = layout.session_bits + layout.low
        self.case_of = Memory(bounds.sessions << self.index_bits, "i")
        self.cases = bytearray(CASE.size)  # the first is none, and stands for what is not tabled yet
        self.moves = bytearray()
        self.most = 0  # moves that a state can have
        self.choosy = False  # whether there is more than one way for something to happen everywhere
        self.shows: dict[tuple[str, ...], int] = {}
        self.everywhere: dict[Action, int] = {}
        self._server: dict[tuple[Action, int, bool, bool], tuple[str, ...]] = {}
        self.ends: dict[Prompt, int] = {}  # the first number of each kind of end
        self.unrest_of_end = array("I", bytes(4 * (2 << layout.end_bits)))

    def add(self, untabled: Iterable[tuple[int, int]]) -> None:
        """Tables what sessions can do, each in these combinations of number, seq and closing."""
        layout, case_of = self.layout, self.case_of.view
        for session, index in untabled:
            number, seq, closing = index >> layout.low, (index & (1 << layout.low) - 1) >> 1, bool(index & 1)
            case_of[session << self.index_bits | index] = len(self.cases) // CASE.size
            for case, urgent in zip(self.sessions.cases(number, seq), self.urgent(number, seq)):
                options = [option for option in urgent or case.moves if option.action.while_closing or not closing]
                begin = len(self.moves) // MOVE.size
                for option in options:
                    self.moves += MOVE.pack(*self._move(session, number, closing, option))
                self.cases += CASE.pack(
                    sum(map(layout.run_id, case.known)),
                    sum(layout.run_id(seq) for seq, yes in case.known.items() if yes),
                    begin, begin + len(options), case.unrest,
                    not any(option.action.system for option in options), bool(urgent))
                self.most = max(self.most, layout.bounds.sessions * len(options))
                everywhere = [option.action for option in case.moves if option.action.everywhere]
                self.choosy |= len(set(everywhere)) < len(everywhere)
        if self.most > MOST_MOVES:
            raise TooWide(f"a state has more than {MOST_MOVES:,} moves")

    def _move(self, session: int, number: int, closing: bool, option: Option) -> tuple[int, ...]:
        """The fields of one move."""
        layout, action = self.layout, option.action
        after = option.live
        if after >> layout.session_bits:
            raise TooWide(f"more than {after:,} sessions do not fit into {layout.session_bits} bits")
        left, keep, everywhere = 1 << WORD_BITS - 1, WHOLE, 0
        add = (after - number << layout.sessions[session]) + sum(map(layout.run_id, option.run_ids))
        for prompt in option.ended:
            if end := self.end(session, prompt):
                add += end << layout.ends + (prompt.seq - 1) * layout.end_bits
            else:
                keep &= ~layout.run_id(prompt.seq)
        for seq in option.lost:
            keep &= ~layout.run_id(seq)
        shows = option.shows
        closing_after = closing if action.sets_closing is None else action.sets_closing
        if action.everywhere and self.several:
            everywhere = self.everywhere.setdefault(action, len(self.everywhere) + 1)
        else:
            shows = self._broken(action, session, closing, option.changes) + shows
        if session == 0 or not action.everywhere:
            add += closing_after - closing
            if action.bound == "prompts":
                add += 2
            elif action.bound is not None:
                left = layout.bits_left(action.bound)
                add -= 1 << layout.budgets[action.bound]
        return left, keep, add & WHOLE, self.shows.setdefault(shows, len(self.shows)), option.changes, everywhere

    def _broken(self, action: Action, session: int, closing: bool, changes: bool) -> tuple[str, ...]:
        """What an action breaks of the server's properties when it happens in one session."""
        key = action, session, closing, changes
        broken = self._server.get(key)
        if broken is None:
            after = closing if action.sets_closing is None else action.sets_closing
            step = ServerStep(action.name, None if action.everywhere else session, (closing, after),
                              frozenset((session,) if changes else ()))
            broken = self._server[key] = tuple(id for id, holds in self.plain.on_server if not holds(step))
        return broken

    def end(self, session: int, prompt: Prompt) -> int:
        """The number of the way in which a prompt of that session ended: by kind, then by session. 0: forgotten."""
        kind = Prompt(0, False, *prompt[2:])
        first = self.ends.get(kind)
        if first is None:
            unrest = [self.sessions.unrest((kind._replace(run_id=run_id),)) for run_id in (False, True)]
            first = 0
            if not self.forget or any(unrest):
                first = 1 + self.layout.bounds.sessions * len(self.ends)
                if first + self.layout.bounds.sessions > 1 << self.layout.end_bits:
                    raise EndsTooWide
                for number in range(first, first + self.layout.bounds.sessions):
                    self.unrest_of_end[2 * number:2 * number + 2] = array("I", unrest)
            self.ends[kind] = first
        return first and first + session
