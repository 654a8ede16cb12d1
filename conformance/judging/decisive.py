"""Whether a history is decisive for a guarantee: a server that breaks the guarantee would have been caught by it.

A history that merely looks like a test proves nothing. For example, a cancel that is sent after every prompt has ended
cannot be lost. So each guarantee has its own predicate, and a history counts as a test only where it holds.
"""

from collections.abc import Iterator
from itertools import permutations
from math import inf

from .family import is_untouched
from .history import CANCELS_ONE, MAY_CANCEL, History, Track
from .judgement import canceled_while_held, is_ahead


def _pairs(history: History) -> Iterator[tuple[Track, Track]]:
    """Pairs of prompts in one session, the earlier one first."""
    accepted = history.accepted
    return ((q, p) for q in accepted for p in accepted if q.session == p.session and q.accepted < p.begin)


def _waited(history: History) -> Iterator[tuple[Track, Track]]:
    """Pairs of prompts in which the second was accepted while the turn of the first was certainly running."""
    for q, p in _pairs(history):
        if q.starts and q.starts[0][0] < p.begin and p.accepted < (q.over or inf):
            yield q, p


def makes_progress(history: History) -> bool:
    return bool(history.accepted)


def ends(history: History) -> bool:
    return any(p.ends for p in history.prompts)


def attributes(history: History) -> bool:
    """Whether an outcome is known in advance, or a terminal event's text could be another prompt's."""
    accepted = history.accepted
    known = any(p.ends and p.let_go and p.let_go[1] < p.over_at and not history.reachable(p, *MAY_CANCEL, "restart")
                for p in accepted) or any(p.ends and canceled_while_held(history, p) for p in accepted)
    speaks = any(end.text or end.error for p in accepted for _, end, _ in p.ends)
    return known or (speaks and sum(bool(p.ends) for p in accepted) > 1)


def hands_over(history: History) -> bool:
    """Whether the turn of a waiting prompt followed the turn that it waited for."""
    return any(p.starts and q.over and q.over < p.starts[0][0] for q, p in _waited(history))


def runs_two(history: History) -> bool:
    """Whether a prompt waited for long enough to be observed in the queue, or to start later."""
    return any(p.queued or (q.over and p.starts and q.over < p.starts[0][0]) for q, p in _waited(history))


def overtakes(history: History) -> bool:
    """Whether the first of two waiting prompts started while the other one was waiting."""
    return any((q.queued or (q.settled and q.settled.end < p.begin)) and q.starts and p.accepted < q.starts[0][0]
               and not q.if_busy and not p.if_busy
               and not any(c.begin < q.starts[0][0] for c in history.calls_on(p, *MAY_CANCEL, *CANCELS_ONE)
                           if c.end > p.begin)
               and not any(c.what == "next" for c in history.calls)
               for q, p in _pairs(history)) or any(
        q.starts and is_ahead(history, q, p, p.floor) and q.queued and p.queued and q.starts[0][0] < p.start_at
        for q, p in permutations(history.accepted, 2)
        if q.session == p.session and any(c.what == "next" and c.of == q.label and c.taken for c in history.calls))


def absorbs(history: History) -> bool:
    """Whether a turn called the language model again while a prompt with a run id was waiting for it."""
    return any(p.run_id and any(p.accepted < at < min(p.over_at, p.starts[0][0] if p.starts else inf)
                                for at in q.goes_on) for q, p in _waited(history))


def loses_cancels(history: History) -> bool:
    return any(p.is_alive(c) for p in history.accepted for c in history.cancels_of(p))


def stops(history: History) -> bool:
    """Whether a cancel found a turn running."""
    return any(c.end < inf and p.starts and p.starts[-1][0] < c.begin < min(p.over_at, p.over or inf)
               for p in history.accepted for c in history.calls_on(p, "cancel", "shut"))


def drops_queue(history: History) -> bool:
    """Whether a call found a prompt that had been observed in the queue."""
    return any(c.end < inf and (seen := p.waited if c.what == "clear" else p.queued) and seen.end < c.begin
               and p.is_alive(c) and not p.starts
               for p in history.accepted for c in history.calls_on(p, "cancel", "clear", "shut"))


def folds_late(history: History) -> bool:
    """Whether a prompt that may fold came after a cancel that found a turn running."""
    return any(not p.run_id and q.starts and q.starts[-1][0] < c.begin < min(q.over_at, q.over or inf)
               and c.end < p.begin for q, p in _pairs(history) for c in history.calls_on(p, "cancel"))


def poisons(history: History) -> bool:
    return any(is_untouched(history, p) and any(
        c.end < p.begin for c in history.calls
        if c.what in ("cancel", "delete", *CANCELS_ONE) and c.session == p.session)
        for p in history.accepted)


def remembers_idle(history: History) -> bool:
    for p in history.accepted:
        before = [c for c in history.calls if c.what in ("cancel", "delete", "stop") and c.session == p.session]
        if before and all(c.idle for c in before) and is_untouched(history, p):
            return True
    return False


def leaks(history: History) -> bool:
    return any(is_untouched(history, p) and c.what in MAY_CANCEL and c.session not in (None, p.session)
               and p.is_alive(c) for p in history.accepted for c in history.calls)


def forgets(history: History) -> bool:
    return any(c.what == "restart" and c.end < inf and p.accepted < c.begin < p.over_at
               for p in history.accepted for c in history.calls)


def closes(history: History) -> bool:
    """Whether one prompt was accepted before a close, and another was sent after it."""
    for close in (c for c in history.calls if c.what == "shut"):
        before = any(p.accepted < close.begin for p in history.prompts)
        after = any(close.end < p.begin and (p.refused or p.accepted < inf) for p in history.prompts)
        if before and after and not any(c.what == "restart" for c in history.calls):
            return True
    return False


def delivers(history: History) -> bool:
    """Whether a subscriber that came back was away when a prompt ended, or had received a terminal event before."""
    return any(back < inf and ((history.away(p) and p.over_at > left) or p.over_at < left)
               for left, back in history.absences for p in history.accepted if p.ends)


def records(history: History) -> bool:
    return history.records > 0


def knows_again(history: History) -> bool:
    return any(p.resent or p.reused for p in history.accepted)


def outlives(history: History) -> bool:
    return any(history.outlived(p) for p in history.accepted)
