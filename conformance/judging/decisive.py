"""Whether a history has put a guarantee to the test: it would have shown that the guarantee is broken, if it were.

A history that merely looks like a test proves nothing. A cancel that comes after the end of every prompt, say, cannot
be lost. So each guarantee has a question of its own about a history, and where the answer is no the history does not
count.
"""

from collections.abc import Iterator
from itertools import permutations
from math import inf

from .family import find_busy, find_interrupter, misses, replaces_of
from .history import ONE, STOP, ClientCall, History, Track
from .judgement import canceled_while_held, is_ahead

REACHES = ("cancel", "clear", "delete", "shut")  # the calls that may cancel a prompt


def _accepted(history: History) -> list[Track]:
    return [p for p in history.prompts if p.accepted < inf]


def _pairs(history: History) -> Iterator[tuple[Track, Track]]:
    """Two prompts of one session, the earlier one first."""
    accepted = _accepted(history)
    return ((q, p) for q in accepted for p in accepted if q.session == p.session and q.accepted < p.begin)


def _end(p: Track) -> float:
    """When it was seen to be over."""
    return p.ends[0][0] if p.ends else p.taken_in[0] if p.taken_in else inf


def _alive(p: Track, call: ClientCall) -> bool:
    """Whether the prompt was there, and its turn held or still to come, when the call began."""
    return p.accepted < call.begin < min(_end(p), p.let_go[1] if p.let_go else inf)


def _waited(history: History) -> Iterator[tuple[Track, Track]]:
    """Two prompts of which the second was accepted while the turn of the first was held for certain."""
    for q, p in _pairs(history):
        if q.starts and q.starts[0][0] < p.begin and p.accepted < (q.over or inf):
            yield q, p


def makes_progress(history: History) -> bool:
    return bool(_accepted(history))


def ends(history: History) -> bool:
    return any(p.ends for p in history.prompts)


def attributes(history: History) -> bool:
    """An outcome is known beforehand, or what an end carries could be another's."""
    accepted = _accepted(history)
    known = any(p.ends and p.let_go and p.let_go[1] < _end(p) and not history.reachable(p, *REACHES, "restart")
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
        q.starts and is_ahead(history, q, p, p.floor) and q.queued and p.queued and q.starts[0][0] < _start(p)
        for q, p in permutations(_accepted(history), 2)
        if q.session == p.session and any(c.what == "next" and c.of == q.label and c.taken for c in history.calls))


def absorbs(history: History) -> bool:
    """A turn has called the language model again while a prompt with a run id was waiting for it."""
    return any(p.run_id and any(p.accepted < at < min(_end(p), p.starts[0][0] if p.starts else inf)
                                for at in q.goes_on) for q, p in _waited(history))


def loses_cancels(history: History) -> bool:
    return any(_alive(p, c) for p in _accepted(history) for c in history.cancels_of(p))


def stops(history: History) -> bool:
    """A cancel has found a turn that was held."""
    return any(c.end < inf and p.starts and p.starts[-1][0] < c.begin < min(_end(p), p.over or inf)
               for p in _accepted(history) for c in history.calls_on(p, "cancel", "shut"))


def drops_queue(history: History) -> bool:
    """A call has found somebody who was seen in the queue."""
    return any(c.end < inf and (seen := p.waited if c.what == "clear" else p.queued) and seen.end < c.begin
               and _alive(p, c) and not p.starts
               for p in _accepted(history) for c in history.calls_on(p, "cancel", "clear", "shut"))


def folds_late(history: History) -> bool:
    """A prompt that may be taken in has followed a cancel that found a turn held."""
    return any(not p.run_id and q.starts and q.starts[-1][0] < c.begin < min(_end(q), q.over or inf) and c.end < p.begin
               for q, p in _pairs(history) for c in history.calls_on(p, "cancel"))


def _untouched(history: History, p: Track) -> bool:
    """Nothing could have canceled the prompt, and it was seen what became of it."""
    return p.ended and not any(
        c.end > p.begin and not misses(history, c, p) for c in history.calls_on(p, *REACHES, *ONE, "restart"))


def poisons(history: History) -> bool:
    return any(_untouched(history, p) and any(
        c.end < p.begin for c in history.calls if c.what in ("cancel", "delete", *ONE) and c.session == p.session)
        for p in _accepted(history))


def remembers_idle(history: History) -> bool:
    for p in _accepted(history):
        before = [c for c in history.calls if c.what in ("cancel", "delete", "stop") and c.session == p.session]
        if before and all(c.idle for c in before) and _untouched(history, p):
            return True
    return False


def leaks(history: History) -> bool:
    return any(_untouched(history, p) and c.what in REACHES and c.session not in (None, p.session) and _alive(p, c)
               for p in _accepted(history) for c in history.calls)


def forgets(history: History) -> bool:
    return any(c.what == "restart" and c.end < inf and p.accepted < c.begin < _end(p)
               for p in _accepted(history) for c in history.calls)


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
    return any(back < inf and ((history.away(p) and _end(p) > left) or _end(p) < left)
               for left, back in history.absences for p in _accepted(history) if p.ends)


def records(history: History) -> bool:
    return history.records > 0


def _start(p: Track) -> float:
    return p.starts[0][0] if p.starts else inf


def revokes(history: History) -> bool:
    """A revoke has found its prompt, or another that nothing else could have canceled and that was seen to end."""
    return any(c.what == "revoke" and c.taken and (
        _alive(p, c) if c.of == p.label else c.session == p.session and _alive(p, c) and _untouched(history, p))
        for c in history.calls for p in _accepted(history))


def stops_one(history: History) -> bool:
    """A stop was answered that has a prompt in front for certain."""
    return any(c.what in STOP and c.taken and (p := history.in_front(c)) and _alive(p, c) for c in history.calls)


def keeps(history: History) -> bool:
    """A stop has found somebody in the queue, behind another, and it was seen what became of them."""
    return any(c.what in STOP and c.taken and p.queued and p.queued.end < c.begin and _alive(p, c) and p.ended
               and (history.in_front(c) not in (None, p)) and not any(
                   d is not c and d.end > p.begin and not misses(history, d, p)
                   for d in history.calls_on(p, *REACHES, *ONE, "restart"))
               for c in history.calls for p in _accepted(history))


def parks(history: History) -> bool:
    return any(p.parked for p in history.prompts)


def edits(history: History) -> bool:
    """Another text was taken and one was heard, or it came too late."""
    return any((c.taken and p.version is not None) or (c.refused and _start(p) < c.begin)
               for p in _accepted(history) for c in replaces_of(history, p))


def interrupts(history: History) -> bool:
    """An interrupt has found a turn that was held."""
    return any((q := find_interrupter(history, p)) and q.begin < min(_end(p), p.let_go[1] if p.let_go else inf)
               for p in _accepted(history))


def rejects(history: History) -> bool:
    """A prompt that wants an idle session was refused, and found another that was not done, or a hold."""
    return any(p.if_busy == "reject" and p.refused and (
        find_busy(history, p) or history.surely_held(p.session, p.begin, p.answered)) for p in history.prompts)


def knows_again(history: History) -> bool:
    return any(p.resent or p.reused for p in _accepted(history))


def outlives(history: History) -> bool:
    return any(history.outlived(p) for p in _accepted(history))
