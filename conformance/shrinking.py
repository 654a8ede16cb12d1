"""Shrinking of findings: fewer actions, sessions and races, and a simpler schedule, that still show the break."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import inf
from time import monotonic

from .playing.script import SENDS, Batch, Do, Script
from .report import Finding

Shows = Callable[[Script], Finding | None]


@dataclass
class Budget:
    """The limits on the runs that shrink one finding, and which of them was reached."""

    plays: int
    seconds: float = inf
    used: int = 0
    ran_out: str = ""
    until: float = field(init=False)

    def __post_init__(self) -> None:
        self.until = monotonic() + self.seconds

    def take(self) -> bool:
        """Count one more run, and return whether it is allowed."""
        if self.used >= self.plays:
            self.ran_out = f"{self.plays} runs"
        elif monotonic() > self.until:
            self.ran_out = f"{self.seconds:g} s"
        else:
            self.used += 1
        return not self.ran_out


def shrink(found: Finding, shows: Shows, retries: Callable[[Script], Iterable[Script]], budget: Budget) -> Finding:
    """The finding with the smallest script that was observed to show the same break. Either no simpler script shows it,
    or the budget ran out, and the finding's note says so. `retries` returns the attempts for a simpler script."""
    tried: set[Script] = set()
    while smaller := _find_smaller(found, shows, retries, budget, tried):
        found = smaller
    if budget.ran_out:
        found = replace(found, note=f"not shrunk further: the budget of {budget.ran_out} ran out")
    return found


def _find_smaller(
    found: Finding, shows: Shows, retries: Callable[[Script], Iterable[Script]], budget: Budget, tried: set[Script],
) -> Finding | None:
    for candidate in list_candidates(found.script):
        if candidate in tried:
            continue
        for attempt in retries(candidate):
            if not budget.take():
                return None
            if smaller := shows(attempt):
                return smaller
        tried.add(candidate)
    return None


def list_candidates(script: Script) -> Iterator[Script]:
    """Scripts that are simpler than this one, the largest reductions first, without duplicates."""
    seen = {script}
    for candidate in _list_simpler(script):
        if candidate is not None and candidate.batches and candidate.size < script.size and candidate not in seen:
            seen.add(candidate)
            yield candidate


def _list_simpler(script: Script) -> Iterator[Script | None]:
    n = len(script.everything)
    for size in dict.fromkeys((n // 2, n // 4, 1)):
        for at in range(0, n, size) if size else ():
            yield drop_steps(script, range(at, at + size))
    yield from _merge_sessions(script)
    yield from script.smaller()
    for pair in combinations(range(n), 2):  # such as a prompt and the call that names it
        yield drop_steps(script, pair)


def drop_steps(script: Script, dropped: Collection[int]) -> Script | None:
    """The script without the actions with these numbers; None if another action names a prompt that was dropped."""
    batches: list[Batch] = []
    sent: list[bool] = []  # for each prompt so far, whether it is still there
    n = 0
    for batch in script.batches:
        kept: list[tuple[int, Do]] = []
        for i, do in enumerate(batch.together):
            stays = n not in dropped
            n += 1
            if stays and do.back:
                if not sent[-do.back]:
                    return None
                do = replace(do, back=sum(sent[-do.back:]))
            if stays:
                kept.append((batch.gap(i), do))
            if do.what in SENDS:
                sent.append(stays)
        if kept:
            gaps = tuple(gap for gap, _ in kept[1:])
            batches.append(replace(batch, together=tuple(do for _, do in kept), gaps=gaps if any(gaps) else ()))
    if batches:
        batches[-1] = replace(batches[-1], rest=True, pause=0)
    return replace(script, batches=tuple(batches))


def _merge_sessions(script: Script) -> Iterator[Script]:
    """The script in one session; then with any two sessions merged; then with session numbers without gaps."""
    used = sorted({do.session for do in script.everything})
    yield _renumber(script, dict.fromkeys(used, 0))
    for first, second in combinations(used, 2):
        yield _renumber(script, {session: first if session == second else session for session in used})
    yield _renumber(script, {session: n for n, session in enumerate(used)})


def _renumber(script: Script, sessions: dict[int, int]) -> Script:
    return replace(script, batches=tuple(
        replace(batch, together=tuple(replace(do, session=sessions[do.session]) for do in batch.together))
        for batch in script.batches))
