"""The fast engine: the same search on machine words. `tables` lists the possible moves, and `kernel` runs the loop.

States are visited in the same order as in the plain explorer, so counts, depth and shortest traces are the same. The
search itself only reports *at which state* a violation or goal first occurred. The plain explorer then follows a path
to that state, reconstructed level by level, and checks the state itself. No violation or goal is reported that the
plain explorer has not confirmed.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from ctypes import addressof, c_char
from itertools import pairwise, repeat

from ...lifecycle import IllegalTrigger, State
from ...properties import Bounds, Property, ServerStep
from ...protocol import Behaviour
from ...session import NoPrompt
from ..estimate import deepest, estimate, magnitude
from ..plain import Explorer, gc_disabled
from ..result import Progress, Reduction, Result, Watch
from . import kernel
from .kernel import Plan, Search, Seen
from .layout import Layout, TooWide
from .reductions import Commuting, can_commute
from .run_id_cases import without_run_ids
from .tables import EndsTooWide, Sessions, Tables

CHUNK = 1 << 18  # states between two calls of `watch`
LEAST, MOST = 1 << 16, 1 << 24  # the initial size of the set, in words, is between these


class ChoosyError(Exception):
    """Sessions are not symmetric: an action on all sessions can happen in more than one way."""


class FastExplorer:
    """One search and all its state."""

    def __init__(
        self, protocol: Behaviour, bounds: Bounds, properties: Sequence[Property] | None = None,
        reductions: Collection[Reduction] = (), threads: int | None = None,
    ) -> None:
        """`threads` must be a power of two. By default it is derived from the number of processors."""
        self.threads = kernel.usable_threads() if threads is None else threads
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
        """Restart the search with a layout in which each prompt's end has that many bits."""
        self.layout = Layout(self.bounds, end_bits)
        self.tables = Tables(
            self.sessions, self.layout, forget=Reduction.FINISHED in self.reductions,
            urgent=Commuting(self.sessions).urgent if Reduction.COMMUTING in self.reductions else lambda *_: repeat(()))
        self.levels = [0]  # the index of each level's first state
        first = LEAST
        while not self.reductions and first < min(MOST, self.expected / kernel.LOAD):
            first *= 2
        crossed = 1 + len(self.plain.protocol.actions) << 1 + self.bounds.sessions
        self.met = Search(self.word(self.plain.root()), first, [
            Seen(len(self.sessions.at_rest), crossed) for _ in range(self.threads)])

    # --- the search

    @gc_disabled()
    def search(self, max_states: int | None = None, watch: Watch | None = None) -> Result:
        result = self.result
        try:
            result.stopped = self.run(max_states, watch)
        except KeyboardInterrupt:
            result.stopped, result.interrupted = "interrupted", True
        except (TooWide, MemoryError) as error:
            result.stopped = str(error) or "out of memory"
        except (IllegalTrigger, NoPrompt) as error:
            result.stopped, result.broken = f"an action does something that its rows do not allow: {error}", True
        result.states, result.edges = self.met.size, self.met.edges
        result.levels = self.sizes
        result.reductions = self.reductions
        self.judge()
        return result

    @property
    def sizes(self) -> list[int]:
        return [end - begin for begin, end in pairwise(self.levels)]

    def run(self, max_states: int | None, watch: Watch | None) -> str | None:
        while True:
            try:
                while self.levels[-1] < self.met.size:
                    self.levels.append(self.met.size)
                    if stopped := self.level(max_states, watch):
                        return stopped
                return None
            except EndsTooWide:
                self.lay_out(self.layout.end_bits + 1)
            except ChoosyError:
                self.reductions -= {Reduction.SYMMETRY}
                self.lay_out(self.layout.end_bits)

    def level(self, max_states: int | None, watch: Watch | None) -> str | None:
        """Expand the states of the last level."""
        met, end = self.met, self.levels[-1]
        tabled = False
        while met.expanded < end:
            if max_states is not None and met.size > max_states:
                return f"more than {max_states:,} states"
            expected = estimate(self.sizes, met.size, self.deepest)
            if watch and (stopped := watch(Progress(
                    met.size, met.size - met.expanded, len(self.levels) - 2, expected))):
                return stopped
            if not tabled:
                self.table(end)
                tabled = True
            met.advance(self.plan, self.tables.most, min(end, met.expanded + CHUNK), expected or 0)
        return None

    def table(self, end: int) -> None:
        """Tabulate the moves of all sessions that occur in the states up to `end`."""
        tables = self.tables
        tables.add(self.met.find_untabled(self.plan, end))
        if tables.choosy and Reduction.SYMMETRY in self.reductions:
            raise ChoosyError
        for seen in self.met.seen:
            seen.make_room(len(tables.shows))

    @property
    def plan(self) -> Plan:
        """The kernel's view of the tables. Adding to the tables invalidates it."""
        layout, tables = self.layout, self.tables
        return Plan(
            self.bounds.sessions, layout.low, layout.session_bits, self.bounds.prompts, layout.ends, layout.end_bits,
            Reduction.SYMMETRY in self.reductions, tables.case_of.address, _address(tables.cases),
            _address(tables.moves), tables.unrest_of_end.buffer_info()[0], len(self.sessions.at_rest))

    # --- checking properties

    def judge(self) -> None:
        """Let the plain explorer check each state at which a violation or goal first occurred."""
        first = self.first_seen()
        for path in self.paths(sorted(set(first.values()))):
            state = self.follow(path)
            if self.plain.expand(state).quiet:
                self.plain.judge_rest(state, [p for p in self.plain.decode(state).prompts if p.state is State.DONE])
        unseen = first.keys() - self.result.violations.keys() - self.result.met.keys()
        if unseen:
            raise RuntimeError(f"the plain explorer does not confirm findings of the fast engine: "
                               f"{', '.join(sorted(unseen))}; please report this bug")
        if not self.result.stopped:
            self.judge_progress()

    def first_seen(self) -> dict[str, int]:
        """The index in `words` at which each property was first violated and each goal first reached."""
        first: dict[str, int] = {}

        def note(ids: Iterable[str], at: int) -> None:
            for id in ids:
                if at >= 0:
                    first[id] = min(at, first.get(id, at))

        crossings = 2 << self.bounds.sessions
        for seen in self.met.seen:
            for ids, at in zip(self.tables.shows, seen.shown):
                note(ids, at)
            for id, at in zip((p.id for p in self.plain.properties if p.at_rest), seen.unrest):
                note([id], at)
            for action, number in self.tables.everywhere.items():
                for crossing, at in enumerate(seen.crossed[number * crossings:(number + 1) * crossings]):
                    closing = bool(crossing >> self.bounds.sessions)
                    after = closing if action.sets_closing is None else action.sets_closing
                    step = ServerStep(action.name, None, (closing, after), frozenset(
                        i for i in range(self.bounds.sessions) if crossing >> i & 1))
                    note((id for id, holds in self.plain.on_server if not holds(step)), at)
        return first

    def judge_progress(self) -> None:
        """Check that the system's own steps cannot form a cycle. If they can, then a single session can cycle too, and
        usually none can. Otherwise the plain explorer checks the states with such a session, in order of depth."""
        if not any(p.id == "progress" for p in self.plain.properties):
            return
        restless = self.sessions.restless()
        if not restless:
            return
        for at in self.with_sessions(restless):
            [path] = self.paths([at])
            if self.plain.judge_circle(self.follow(path)):
                return

    def with_sessions(self, numbers: set[int]) -> Iterator[int]:
        """The indexes of the states that contain one of these sessions."""
        mask = (1 << self.layout.session_bits) - 1
        for at, word in enumerate(self.met.words.view[:self.met.size]):
            if any(word >> begin & mask in numbers for begin in self.layout.sessions):
                yield at

    # --- paths

    def paths(self, places: list[int]) -> list[list[int]]:
        """A shortest path of words to the state at each of these indexes."""
        parent: dict[int, int] = {}
        needed = set(places)
        words = self.met.words.view
        levels = [*pairwise([*self.levels, self.met.size])]
        for (begin, end), (_, last) in reversed([*pairwise(levels)]):
            here = sorted((p for p in needed if end <= p < last), key=words.__getitem__)
            if here:
                found = self.met.find_parents(
                    self.plan, begin, min(end, self.met.expanded), [words[p] for p in here])
                parent.update(zip(here, found))
                needed.update(found)
        paths = []
        for place in places:
            path = [place]
            while path[-1]:
                path.append(parent[path[-1]])
            paths.append([words[p] for p in reversed(path)])
        return paths

    def follow(self, path: list[int]) -> int:
        """The plain explorer's state at the end of the path. The explorer learns the path, so it can build a trace."""
        state = self.plain.root()
        for word in path[1:]:
            state = self.step(state, word)
        return state

    def step(self, state: int, word: int) -> int:
        for _, after in self.plain.following(state):
            if self.word(after) == word:
                self.plain.parent.setdefault(after, state)
                return after
        raise RuntimeError("the fast engine took a step that the protocol does not allow; please report this bug")

    def word(self, state: int) -> int:
        """The word for a state of the plain explorer; 0 if it contains an unknown session."""
        situation = self.plain.situation(state)
        server = situation.server
        found = [self.sessions.find(without_run_ids(session)) for session in server.sessions]
        live = [number for number in found if number is not None]
        if len(live) < len(found):
            return 0
        run_ids = [p.seq for p in server.prompts if p.run_id]
        ends = []
        for i, prompt in self.plain.finished_prompts(state):
            if end := self.tables.end(i, prompt.seq, prompt[2:]):
                ends.append((prompt.seq, end))
                run_ids += [prompt.seq] * prompt.run_id
        left = [limit - spent for limit, spent in zip(self.plain.limits[1:], situation.spent[1:])]
        word = self.layout.word(server.closing, server.seq, live, left, run_ids, ends)
        return kernel.canonical(self.plan, word) if Reduction.SYMMETRY in self.reductions else word


def _address(numbers: bytearray) -> int:
    return addressof(c_char.from_buffer(numbers)) if numbers else 0
