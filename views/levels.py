"""What prompts are doing in all the states of a search, depth by depth."""

from collections import Counter
from typing import NamedTuple

from cancelmark.model.lifecycle import State
from cancelmark.model.revisions.matrix import Profile
from cancelmark.model.session import Behaviour

from .export import BOUND_NAMES, Search, spend
from .telling import prompt_text


class Level(NamedTuple):
    """The states of one depth: how many they are, and how many prompts in them are in each state."""

    states: int
    prompts: Counter[str]


def census(behaviour: Behaviour, profile: Profile) -> list[Level]:
    """Every state within the profile, whole, as the explorer counts them, by depth."""
    search = Search(behaviour, profile.bounds.sessions)
    start = (0, (0,) * len(BOUND_NAMES), frozenset[object]())
    seen, frontier, levels = {start}, [start], []
    while frontier:
        prompts: Counter[str] = Counter()
        following = []
        for number, spent, ended in frontier:
            prompts.update(prompt_text(s, p)[1] for s in search.states[number].sessions for p in s.prompts)
            prompts[State.DONE.value] += len(ended)
            for change, after in search.on_from(number):
                left = spend(profile, spent, change.call)
                if left is not None:
                    done = ended.union((i, p) for i, move in change.moves for p in move.ended)
                    state = (after, left, done)
                    if state not in seen:
                        seen.add(state)
                        following.append(state)
        levels.append(Level(len(frontier), prompts))
        frontier = following
    return levels
