"""Whether a history has put a guarantee to the test: it would have shown that the guarantee is broken, if it were.

A history that merely looks like a test proves nothing. A cancel that comes after the end of every prompt, say, cannot
be lost. So each guarantee has a question of its own about a history, and where the answer is no the history does not
count.
"""

from collections.abc import Iterator
from itertools import permutations
from math import inf

from .family import is_untouched
from .history import ONE, REACHES, History, Track
from .judgement import canceled_while_held, is_ahead


def _pairs(history: History) -> Iterator[tuple[Track, Track]]:
    """Two prompts of one session, the earlier one first."""
    accepted = history.accepted
    return ((q, p) for q in accepted for p in accepted if q.session == p.session and q.accepted < p.begin)


def _waited(history: History) -> Iterator[tuple[Track, Track]]:
    """Two prompts of which the second was accepted while the turn of the first was held for certain."""
    for q, p in _pairs(history):
        if q.starts and q.starts[0][0] < p.begin and p.accepted < (q.over or inf):
            yield q, p


def makes_progress(history: History) -> bool:
    return bool(history.accepted)


def ends(history: History) -> bool:
    return any(p.ends for p in history.prompts)


def attributes(history: History) -> bool:
    """An outcome is known beforehand, or what an end carries could be another's."""
    accepted = history.accepted
    known = any(p.ends and p.let_go and p.let_go[1] < p.over_at and not history.reachable(p, *REACHES, "restart")
                for p in accepted) or any(p.ends and canceled_while_held(history, p) for p in accepted)
    speaks = any(end.text or end.error for p in accepted for _, end, _ in p.ends)
    return known or (speaks and sum(bool(p.ends) for p in accepted) > 1)


def hands_over(history: History) -> bool:
    """The turn of somebody who waited has followed the turn that they waited for."""
    return any(p.starts and q.over and q.over < p.starts[0][0] for q, p in _waited(history))


def runs_two(history: History) -> bool:
    """Somebody waited for long enough to be seen waiting, or to start later."""
    return any(p.queued or (q.over and p.starts and q.over < p.starts[0][0]) for q, p in _waited(history))


def overtakes(history: History) -> bool:
    """The first of two that waited has started while the other one was waiting."""
    return any((q.queued or (q.settled and q.settled.end < p.begin)) and q.starts and p.accepted < q.starts[0][0]
               and not q.if_busy and not p.if_busy
               and not any(c.begin < q.starts[0][0] for c in history.calls_on(p, *REACHES, *ONE) if c.end > p.begin)
               and not any(c.what == "next" for c in history.calls)
               for q, p in _pairs(history)) or any(
        q.starts and is_ahead(history, q, p, p.floor) and q.queued and p.queued and q.starts[0][0] < p.start_at
        for q, p in permutations(history.accepted, 2)
        if q.session == p.session and any(c.what == "next" and c.of == q.label and c.taken for c in history.calls))


def absorbs(history: History) -> bool:
    """A turn has called the language model again while a prompt with a run id was waiting for it."""
    return any(p.run_id and any(p.accepted < at < min(p.over_at, p.starts[0][0] if p.starts else inf)
                                for at in q.goes_on) for q, p in _waited(history))


def loses_cancels(history: History) -> bool:
    return any(p.is_alive(c) for p in history.accepted for c in history.cancels_of(p))


def stops(history: History) -> bool:
    """A cancel has found a turn that was held."""
    return any(c.end < inf and p.starts and p.starts[-1][0] < c.begin < min(p.over_at, p.over or inf)
               for p in history.accepted for c in history.calls_on(p, "cancel", "shut"))


def drops_queue(history: History) -> bool:
    """A call has found somebody who was seen in the queue."""
    return any(c.end < inf and (seen := p.waited if c.what == "clear" else p.queued) and seen.end < c.begin
               and p.is_alive(c) and not p.starts
               for p in history.accepted for c in history.calls_on(p, "cancel", "clear", "shut"))


def folds_late(history: History) -> bool:
    """A prompt that may be taken in has followed a cancel that found a turn held."""
    return any(not p.run_id and q.starts and q.starts[-1][0] < c.begin < min(q.over_at, q.over or inf)
               and c.end < p.begin for q, p in _pairs(history) for c in history.calls_on(p, "cancel"))


def poisons(history: History) -> bool:
    return any(is_untouched(history, p) and any(
        c.end < p.begin for c in history.calls if c.what in ("cancel", "delete", *ONE) and c.session == p.session)
        for p in history.accepted)


def remembers_idle(history: History) -> bool:
    for p in history.accepted:
        before = [c for c in history.calls if c.what in ("cancel", "delete", "stop") and c.session == p.session]
        if before and all(c.idle for c in before) and is_untouched(history, p):
            return True
    return False


def leaks(history: History) -> bool:
    return any(is_untouched(history, p) and c.what in REACHES and c.session not in (None, p.session) and p.is_alive(c)
               for p in history.accepted for c in history.calls)


def forgets(history: History) -> bool:
    return any(c.what == "restart" and c.end < inf and p.accepted < c.begin < p.over_at
               for p in history.accepted for c in history.calls)


def closes(history: History) -> bool:
    """Somebody was accepted before a close, and somebody came after it."""
    for close in (c for c in history.calls if c.what == "shut"):
        before = any(p.accepted < close.begin for p in history.prompts)
        after = any(close.end < p.begin and (p.refused or p.accepted < inf) for p in history.prompts)
        if before and after and not any(c.what == "restart" for c in history.calls):
            return True
    return False


def delivers(history: History) -> bool:
    """Somebody was away when an end came, or had seen one before, and came back."""
    return any(back < inf and ((history.away(p) and p.over_at > left) or p.over_at < left)
               for left, back in history.absences for p in history.accepted if p.ends)


def records(history: History) -> bool:
    return history.records > 0


def knows_again(history: History) -> bool:
    return any(p.resent or p.reused for p in history.accepted)


def outlives(history: History) -> bool:
    return any(history.outlived(p) for p in history.accepted)
