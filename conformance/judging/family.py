"""The calls of the family, judged: what they have done that they should not, and what they owe.

Nobody outside sees when a call takes effect: at some instant between its call and its answer, and an interrupt when its
prompt enters, some time after its acceptance. What is called broken here is so in every order that was possible.
"""

from collections.abc import Iterator
from math import inf

from .history import KINDS, ONE, REACHES, STOP, WHOLE, ClientCall, History, Track

LOST = {"revoke": "revoke-exact", "stop": "stop-heard", "stop_hold": "stop-heard", "interrupt": "send-now"}
"""By call that cancels one prompt, the guarantee that is broken where it does not reach that prompt."""
STRAY = {"revoke": "revoke-exact", "stop": "keeps-queue", "stop_hold": "keeps-queue"}
"""And where it reaches another."""


def lost_by(history: History, p: Track) -> list[str]:
    """The guarantees of the family that are broken if a call was lost that has canceled the prompt for certain: none if
    a cancel of the whole session was among these."""
    calls = list(history.cancels_of(p))
    return [] if any(c.what in WHOLE for c in calls) else sorted({LOST[c.what] for c in calls})


def strayed_by(history: History, p: Track, by: float) -> list[str]:
    """The guarantees of the family that are broken if the prompt ends canceled by then and nothing has reached it: a
    call that was about another has."""
    return sorted({STRAY[c.what] for c in history.calls
                   if c.what in STRAY and c.session == p.session and c.end > p.begin and c.begin < by})


def misses(history: History, call: ClientCall, p: Track) -> bool:
    """Whether a call that may be about the prompt has certainly not reached it: a stop had another in front, an
    interrupt found the session held, or the prompt in the queue, from which it cannot have come before its end."""
    if call.what in STOP:
        front = None if call.of else history.in_front(call)
        return front is not None and front is not p
    return call.what == "interrupt" and (history.surely_held(p.session, call.begin, p.over_at) or (
        p.queued is not None and p.queued.end < call.begin and _waits_behind_interrupts(history, p)))


def _waits_behind_interrupts(history: History, p: Track) -> bool:
    """Whether turns that nobody has let go were ahead of the prompt until its end: of one that ran when the prompt was
    seen in the queue, and of interrupts. Each of them can only have been stopped by the next interrupt."""
    assert p.queued
    end, here = p.over_at, history.prompts_of(p.session)
    interrupts = [q for q in here if q.if_busy == "interrupt" and not q.refused and q.begin < end]
    running = [q for q in here if q.starts and q.starts[0][0] <= p.queued.end and not q.over_at < p.queued.end]
    moved = any(c.what == "next" and c.of == p.label and not c.refused for c in history.calls)
    return bool(running) and not moved and not p.starts and not any(
        q.is_let_go(by=end) or q.fails or q.pauses or history.fails_by_itself
        or any(c.what != "interrupt" and c.end > q.begin and c.begin < end for c in history.calls_on(q, *KINDS))
        for q in (*interrupts, *running))


def find_interrupter(history: History, p: Track) -> Track | None:
    """Who must have stopped the prompt, or started before it: an interrupt that was sent after the prompt was accepted,
    that nothing else has reached, in a session that nobody has held since. The prompt was running then, or is running
    while the interrupt waits."""
    moved = any(c.what == "next" and c.of == p.label for c in history.calls)
    for q in history.prompts_of(p.session):
        if q.if_busy == "interrupt" and p.accepted < q.begin and p.starts and not p.pauses and (
                p.starts[0][0] < q.begin or (p.running and q.waiting and not moved)) and (
                _enters(history, q) and not history.maybe_held(q.session, q.begin)):
            return q
    return None


def _enters(history: History, q: Track) -> bool:
    """Whether nothing can have kept the prompt, which is accepted, from its entry."""
    return q.accepted < inf and not (q.refused or q.fails or history.fails_by_itself) and not history.reachable(
        q, "cancel", "clear", "shut", "restart")


# --- hold

def judge_hold(history: History, p: Track) -> None:
    """Nothing starts, or is taken in, that was waiting when a hold was answered, or came later."""
    for what, floor, at in _beginnings(p):
        if any(c.end <= max(p.begin, floor) or _waits_through(history, p, c)
               for c in history.holds_until(p.session, at)):
            history.complain("held", f"the session was held, nobody had resumed it, and {p.label} {what}.")


def _waits_through(history: History, p: Track, call: ClientCall) -> bool:
    """Whether the prompt was in the queue until the call had taken effect: behind a turn that nothing else can have
    ended."""
    return p.queued is not None and p.queued.end < call.begin and any(
        history.runs_through(q, call.begin, call.end, call) for q in history.prompts_of(p.session) if q is not p)


def _beginnings(p: Track) -> Iterator[tuple[str, int, int]]:
    """What shows that the prompt no longer waits, when it was last seen to, and when that was seen."""
    if p.starts:
        yield "starts", p.starts[0][1], p.starts[0][0]
    elif p.taken_in:
        yield "is taken in by another's turn", p.floor, p.taken_in[0]


# --- replace

def replaces_of(history: History, p: Track) -> list[ClientCall]:
    return [c for c in history.calls if c.what == "replace" and c.of == p.label]


def judge_texts(history: History, p: Track) -> None:
    calls = replaces_of(history, p)
    taken = [c for c in calls if c.taken]
    for c in taken:
        if p.starts and p.starts[0][0] < c.begin:
            history.complain("edited", f"another text for {p.label} was taken, and its turn had started.")
        elif p.over_at < c.begin or any(d.end < c.begin for d in history.cancels_of(p)):
            history.complain("edited", f"another text for {p.label} was taken, and {p.label} was canceled or done.")
    if p.version is None or not calls:
        return
    last = {c.version for c in taken if not any(c.end < d.begin for d in taken)}
    unknown = {c.version for c in calls if c.end == inf and not c.refused}
    if p.version not in (last or {0}) | unknown:
        heard = f"text {p.version + 1}" if p.version else "the text that it was sent with"
        told = " or ".join(f"text {version + 1}" for version in sorted(last)) or "no other text"
        history.complain("edited", f"the language model heard {heard} of {p.label}, and {told} was taken.")


# --- reject

def judge_reject(history: History, p: Track) -> None:
    """Who wants an idle session is accepted only if all others are done."""
    if p.if_busy != "reject":
        return
    if history.surely_held(p.session, p.begin, p.accepted):
        history.complain("reject", f"{p.label} wants an idle session, and was accepted while the session was held.")
    if q := find_busy(history, p):
        history.complain("reject", f"{p.label} wants an idle session, and was accepted while {q.label} was not done.")


def find_busy(history: History, p: Track) -> Track | None:
    """Who was not done, for certain, when the server decided about the prompt. Of two that both want an idle session,
    each was there when the other came, or the other way round."""
    decided = p.accepted if p.accepted < inf else p.answered
    for q in history.prompts_of(p.session):
        both = q.if_busy == "reject" and p.accepted < inf and q.accepted < inf
        since = max(p.accepted, q.accepted) if both else p.begin
        if q is not p and history.is_live(q, since + both, max(decided, since)) and (
                not both or history.is_live(p, since + both, since)):
            return q
    return None


# --- which histories put these guarantees to the test (see `decisive`)

def is_untouched(history: History, p: Track) -> bool:
    """Nothing could have canceled the prompt, and it was seen what became of it."""
    return p.ended and not any(
        c.end > p.begin and not misses(history, c, p) for c in history.calls_on(p, *REACHES, *ONE, "restart"))


def revokes(history: History) -> bool:
    """A revoke has found its prompt, or another that nothing else could have canceled and that was seen to end."""
    return any(c.what == "revoke" and c.taken and (
        p.is_alive(c) if c.of == p.label else c.session == p.session and p.is_alive(c) and is_untouched(history, p))
        for c in history.calls for p in history.accepted)


def stops_one(history: History) -> bool:
    """A stop was answered that has a prompt in front for certain."""
    return any(c.what in STOP and c.taken and (p := history.in_front(c)) and p.is_alive(c) for c in history.calls)


def keeps(history: History) -> bool:
    """A stop has found somebody in the queue, behind another, and it was seen what became of them."""
    return any(c.what in STOP and c.taken and p.queued and p.queued.end < c.begin and p.is_alive(c) and p.ended
               and (history.in_front(c) not in (None, p)) and not any(
                   d is not c and d.end > p.begin and not misses(history, d, p)
                   for d in history.calls_on(p, *REACHES, *ONE, "restart"))
               for c in history.calls for p in history.accepted)


def parks(history: History) -> bool:
    return any(p.parked for p in history.prompts)


def edits(history: History) -> bool:
    """Another text was taken and one was heard, or it came too late."""
    return any((c.taken and p.version is not None) or (c.refused and p.start_at < c.begin)
               for p in history.accepted for c in replaces_of(history, p))


def interrupts(history: History) -> bool:
    """An interrupt has found a turn that was held."""
    return any((q := find_interrupter(history, p)) and q.begin < min(p.over_at, p.let_go[1] if p.let_go else inf)
               for p in history.accepted)


def rejects(history: History) -> bool:
    """A prompt that wants an idle session was refused, and found another that was not done, or a hold."""
    return any(p.if_busy == "reject" and p.refused and (
        find_busy(history, p) or history.surely_held(p.session, p.begin, p.answered)) for p in history.prompts)
