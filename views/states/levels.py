"""The states of prompts in a whole search, depth by depth."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from cancelmark.model.check.graph import NOTHING_SPENT, Search, StateGraph
from cancelmark.model.lifecycle import State
from cancelmark.model.protocol import Behaviour
from cancelmark.model.revisions.matrix import Profile
from cancelmark.model.server import Change
from cancelmark.model.session import Prompt

from ..traces.content import prompt_text


class Level(NamedTuple):
    """One depth of a search: the number of states, and the number of prompts in each state."""

    states: int
    prompts: Counter[str]


class Point(NamedTuple):
    """A complete state within bounds: the unfinished part, the spent bounds, and the finished prompts by session."""

    state: int
    spent: tuple[int, ...]
    ended: frozenset[tuple[int, Prompt]]


def count_levels(behaviour: Behaviour, profile: Profile) -> list[Level]:
    """Every complete state within the profile, by depth, counted as the explorer does."""
    graph = StateGraph(behaviour, profile.bounds.sessions, whole=False)

    def onward(point: Point) -> Iterator[tuple[Change, Point]]:
        for change, after in graph.ways(point.state):
            if (spent := profile.spend(point.spent, change.call)) is not None:
                ended = point.ended.union((i, p) for i, move in change.moves for p in move.ended)
                yield change, Point(after, spent, ended)

    search = Search([Point(0, NOTHING_SPENT, frozenset())], onward)
    levels: list[Level] = []
    for point in search:
        if search.depths[point] == len(levels):
            levels.append(Level(0, Counter()))
        states, prompts = levels[-1]
        prompts.update(prompt_text(s, p)[1] for s in graph.states[point.state].sessions for p in s.prompts)
        prompts[State.DONE.value] += len(point.ended)
        levels[-1] = Level(states + 1, prompts)
    return levels
