"""The same search on machine words: `kernel` runs it, `tables` says what can be done, and `explore` is the definition.

States are met in the same order as by the plain explorer, so counts, depth and shortest traces are the same too. What
the search brings home is *where* something was first seen. The plain explorer then goes there, along a path that is
recovered level by level, and judges the place itself: no violation is reported and no goal is called met that it has
not seen with its own eyes.
"""

import gc
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise, repeat

import numpy as np

from ...lifecycle import IllegalTrigger, State
from ...properties import Bounds, Property, ServerStep
from ...protocol import Behaviour
from ...session import NoPrompt
from ..estimate import deepest, estimate, magnitude
from ..plain import Explorer
from ..result import Progress, Reduction, Result, Watch
from . import kernel
from .kernel import Plan, Words
from .layout import Layout, TooWide
from .reductions import Commuting, can_commute
from .run_id_cases import without_run_ids
from .tables import EndsTooWide, Sessions, Tables

CHUNK = 1 << 18  # states between two looks at the watch
AHEAD = 1 << 16  # states that are searched for more sessions when one is not in the tables
LEAST, MOST = 1 << 16, 1 << 24  # the first size of the set, in words, is between these
LOAD = 0.75  # how full the set may get
NOTHING: Words = np.zeros(0, np.int64)


class ChoosyError(Exception):
    """Sessions are not alike: something can happen everywhere in more than one way."""


class FastExplorer:
    """One search, with everything it remembers."""

    def __init__(
        self, protocol: Behaviour, bounds: Bounds, properties: Sequence[Property] | None = None,
        reductions: Collection[Reduction] = (),
    ) -> None:
        self.plain = Explorer(protocol, bounds, properties)
        self.bounds = bounds
        self.expected = 10 ** magnitude(protocol, bounds)
        self.deepest = deepest(protocol, bounds)
        self.result = self.plain.result
        self.result.engine = "fast"
        self.reductions = frozenset(r for r in reductions if r is not Reduction.COMMUTING or can_commute(protocol))
        self.sessions = Sessions(self.plain)
        self.sessions.number(without_run_ids(self.plain.protocol.start))
        self.lay_out(0 if Reduction.FINISHED in self.reductions else 3)

    def lay_out(self, end_bits: int) -> None:
        """Begins anew, with words in which the end of a prompt has so many bits."""
        self.layout = Layout(self.bounds, end_bits)
        self.tables = Tables(
            self.sessions, self.layout, forget=Reduction.FINISHED in self.reductions,
            urgent=Commuting(self.sessions).urgent if Reduction.COMMUTING in self.reductions else lambda *_: repeat(()))
        self.levels = [0]  # where each level begins in `words`
        first = LEAST
        while not self.reductions and first < min(MOST, self.expected / LOAD):
            first *= 2
        self.words: Words = np.empty(first, np.int64)
        self.set: Words = np.zeros(first, np.int64)
        self.progress: Words = np.array([0, 1, 0], np.int64)  # states expanded, states met, edges
        # Where things were first seen:
        self.shown: Words = np.full(0, -1, np.int64)
        actions = len(self.plain.protocol.actions)
        self.crossed: Words = np.full((1 + actions, 2, 1 << self.bounds.sessions), -1, np.int64)
        self.unrest: Words = np.full(len(self.sessions.at_rest), -1, np.int64)
        self.words[0] = self.word(self.plain.root())
        kernel.refill(self.words, 1, self.set)
        self.advance(0)  # loads the compiled loop, so that a search does not have to

    # --- the search

    def search(self, max_states: int | None = None, watch: Watch | None = None) -> Result:
        result = self.result
        collecting = gc.isenabled()
        gc.disable()  # nothing that is made here has circles, and the collector would look at all of it over and over
        try:
            result.stopped = self.run(max_states, watch)
        except KeyboardInterrupt:
            result.stopped, result.interrupted = "interrupted", True
        except (TooWide, MemoryError) as error:
            result.stopped = str(error) or "out of memory"
        except (IllegalTrigger, NoPrompt) as error:
            result.stopped, result.broken = f"an action does what its rows do not allow: {error}", True
        finally:
            if collecting:
                gc.enable()
        result.states, result.edges = self.size, int(self.progress[2])
        result.levels = self.sizes
        result.reductions = self.reductions
        self.judge()
        return result

    @property
    def size(self) -> int:
        return int(self.progress[1])

    @property
    def sizes(self) -> list[int]:
        return [end - begin for begin, end in pairwise(self.levels)]

    def run(self, max_states: int | None, watch: Watch | None) -> str | None:
        while True:
            try:
                while self.levels[-1] < self.size:
                    self.levels.append(self.size)
                    if stopped := self.level(max_states, watch):
                        return stopped
                return None
            except EndsTooWide:
                self.lay_out(self.layout.end_bits + 1)
            except ChoosyError:
                self.reductions -= {Reduction.SYMMETRY}
                self.lay_out(self.layout.end_bits)

    def level(self, max_states: int | None, watch: Watch | None) -> str | None:
        """Expands the states of the last level."""
        end = self.levels[-1]
        while (at := int(self.progress[0])) < end:
            if max_states is not None and self.size > max_states:
                return f"more than {max_states:,} states"
            if watch and (stopped := watch(Progress(
                    self.size, self.size - at, len(self.levels) - 2, estimate(self.sizes, self.size, self.deepest)))):
                return stopped
            self.advance(min(end, at + CHUNK))
        return None

    def advance(self, end: int) -> None:
        """Expands the states up to `end`, or as many as there is room and a table for; makes room, or adds to it."""
        margin = self.tables.most + kernel.LAG
        room = min(len(self.words), int(len(self.set) * LOAD)) - margin
        if self.size >= room:
            self.grow(margin)
            return
        stopped = kernel.search(self.plan, self.words, self.set, self.progress, end, room, NOTHING, NOTHING)
        if stopped == kernel.NOT_EVERYWHERE:
            raise RuntimeError("an action that happens everywhere is not possible in all sessions")
        if stopped == kernel.NOT_TABLED:
            self.table(end)

    def grow(self, margin: int) -> None:
        if self.size >= len(self.words) - margin:
            self.words.resize(2 * len(self.words), refcheck=False)
        if self.size >= int(len(self.set) * LOAD) - margin:
            larger = 2 * len(self.set)
            expected = estimate(self.sizes, self.size, self.deepest) or 0
            while larger * LOAD < expected:  # at once, so that the words are put in anew once
                larger *= 2
            self.set = self.set[:0]  # the words are all there, so there is no need to have both
            self.set = np.zeros(larger, np.int64)
            kernel.refill(self.words, self.size, self.set)

    def table(self, end: int) -> None:
        """Tables what the sessions can do that occur in the next states."""
        at = int(self.progress[0])
        words = self.words[at:min(end, at + AHEAD)]
        layout, tables = self.layout, self.tables
        low = words & (1 << layout.low) - 1
        for i, begin in enumerate(layout.sessions):
            indices = (words >> begin & (1 << layout.session_bits) - 1) << layout.low | low
            missing = indices[tables.cases_of[i, indices] == 0]
            if len(missing):
                tables.add(i, np.unique(missing).tolist())
        if tables.choosy and Reduction.SYMMETRY in self.reductions:
            raise ChoosyError
        self.shown = np.concatenate([self.shown, np.full(len(tables.shows) - len(self.shown), -1, np.int64)])

    @property
    def plan(self) -> Plan:
        layout, tables = self.layout, self.tables
        return Plan(
            self.bounds.sessions, layout.low, layout.session_bits, self.bounds.prompts, layout.ends, layout.end_bits,
            Reduction.SYMMETRY in self.reductions, tables.cases_of, tables.cases, tables.moves, tables.most,
            tables.unrest_of_end, self.shown, self.crossed, self.unrest)

    # --- judging

    def judge(self) -> None:
        """Lets the plain explorer look at each state at which something was first seen."""
        first = self.first_seen()
        for path in self.paths(sorted(set(first.values()))):
            state = self.follow(path)
            if self.plain.expand(state).quiet:
                self.plain.judge_rest(state, [p for p in self.plain.decode(state).prompts if p.state is State.DONE])
        unseen = first.keys() - self.result.violations.keys() - self.result.met.keys()
        if unseen:
            raise RuntimeError(f"the tables show what the plain explorer does not see: {', '.join(sorted(unseen))}")
        if not self.result.stopped:
            self.judge_progress()

    def first_seen(self) -> dict[str, int]:
        """Where each property was first broken and each goal first met, as places in `words`."""
        first: dict[str, int] = {}

        def note(ids: Iterable[str], at: int) -> None:
            for id in ids:
                if at >= 0:
                    first[id] = min(at, first.get(id, at))

        for ids, at in zip(self.tables.shows, self.shown.tolist()):
            note(ids, at)
        for id, at in zip((p.id for p in self.plain.properties if p.at_rest), self.unrest.tolist()):
            note([id], at)
        for action, number in self.tables.everywhere.items():
            for (closing, changed), at in np.ndenumerate(self.crossed[number]):
                after = bool(closing) if action.sets_closing is None else action.sets_closing
                step = ServerStep(action.name, None, (bool(closing), after),
                                  frozenset(i for i in range(self.bounds.sessions) if changed >> i & 1))
                note((id for id, holds in self.plain.on_server if not holds(step)), int(at))
        return first

    def judge_progress(self) -> None:
        """The system must not be able to go round in circles. If it can, then so can one of the sessions by itself,
        and mostly none can. Otherwise the plain explorer looks at the states with such a session, in order of depth."""
        if not any(p.id == "progress" for p in self.plain.properties):
            return
        restless = self.sessions.restless()
        if not restless:
            return
        layout = self.layout
        met = np.zeros(self.size, bool)
        for begin in layout.sessions:
            numbers = self.words[:self.size] >> begin & (1 << layout.session_bits) - 1
            met |= np.isin(numbers, list(restless))
        for at in np.flatnonzero(met).tolist():
            [path] = self.paths([at])
            if self.plain.judge_circle(self.follow(path)):
                return

    # --- paths

    def paths(self, places: list[int]) -> list[list[int]]:
        """A shortest path of words to the state at each of these places."""
        parent: dict[int, int] = {}
        needed = set(places)
        levels = [*pairwise([*self.levels, self.size])]
        for (begin, end), (_, last) in reversed([*pairwise(levels)]):
            here = sorted((p for p in needed if end <= p < last), key=self.words.__getitem__)
            if here:
                found: Words = np.full(len(here), -1, np.int64)
                progress: Words = np.array([begin, 0, 0], np.int64)
                kernel.search(self.plan, self.words, self.set, progress, end, 1, self.words[here], found)
                parent.update(zip(here, found.tolist()))
                needed.update(found.tolist())
        paths = []
        for place in places:
            path = [place]
            while path[-1]:
                path.append(parent[path[-1]])
            paths.append(self.words[path[::-1]].tolist())
        return paths

    def follow(self, path: list[int]) -> int:
        """The plain explorer's state at the end of the path, which from then on it knows a way to."""
        state = self.plain.root()
        for word in path[1:]:
            state = self.step(state, word)
        return state

    def step(self, state: int, word: int) -> int:
        for _, after in self.plain.following(state):
            if self.word(after) == word:
                self.plain.parent.setdefault(after, state)
                return after
        raise RuntimeError("the tables lead where no change of the protocol does")

    def word(self, state: int) -> int:
        """The word of a state of the plain explorer; 0 if it has a session that was never met."""
        situation = self.plain.situation(state)
        server, numbers = situation.server, self.sessions.numbers
        live = list(map(without_run_ids, server.sessions))
        if any(session not in numbers for session in live):
            return 0
        run_ids = [p.seq for p in server.prompts if p.run_id]
        ends = []
        for i, prompt in self.plain.finished_prompts(state):
            if end := self.tables.end(i, prompt):
                ends.append((prompt.seq, end))
                run_ids += [prompt.seq] * prompt.run_id
        left = [limit - spent for limit, spent in zip(self.plain.limits[1:], situation.spent[1:])]
        word = self.layout.word(server.closing, server.seq, map(numbers.__getitem__, live), left, run_ids, ends)
        return int(kernel.canonical(word, *self.plan[:6])) if Reduction.SYMMETRY in self.reductions else word
