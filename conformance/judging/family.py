"""Checks of the optional calls (revoke, stop, hold, …): what they did wrong, and what they still owe.

Clients cannot see when a call takes effect. It does so at some instant between the request and the response; an
interrupt does so when its prompt enters, some time after it was accepted. A guarantee is reported as broken only if it
fails in every order that was possible.
"""

from collections.abc import Iterator
from math import inf

from .history import CANCELS_ALL, CANCELS_ONE, ENDING, MAY_CANCEL, STOP, ClientCall, History, Track

LOST = {"revoke": "revoke-exact", "stop": "stop-heard", "stop_hold": "stop-heard", "interrupt": "send-now"}
"""By call that cancels one prompt: the guarantee that is broken if it does not reach that prompt."""
STRAY = {"revoke": "revoke-exact", "stop": "keeps-queue", "stop_hold": "keeps-queue"}
"""The guarantee that is broken if it reaches another prompt."""


def lost_by(history: History, p: Track) -> list[str]:
    """The guarantees of optional calls that are broken if a call that certainly canceled the prompt was lost. None if a
    cancel of the whole session was among these calls."""
    calls = list(history.cancels_of(p))
    return [] if any(c.what in CANCELS_ALL for c in calls) else sorted({LOST[c.what] for c in calls})


def strayed_by(history: History, p: Track, by: float) -> list[str]:
    """The guarantees of optional calls that are broken if the prompt ends canceled by then and no call had reached it:
    a call for another prompt must have hit it."""
    return sorted({STRAY[c.what] for c in history.calls
                   if c.what in STRAY and c.session == p.session and c.end > p.begin and c.begin < by})


def misses(history: History, call: ClientCall, p: Track) -> bool:
    """Whether a call that may concern the prompt has certainly not reached it: the stop had another target, the
    interrupt found the session held, or the prompt was queued and cannot have left the queue before its end."""
    if call.what in STOP:
        front = None if call.of else history.in_front(call)
        return front is not None and front is not p
    return call.what == "interrupt" and (history.surely_held(p.session, call.begin, p.over_at) or (
        p.queued is not None and p.queued.end < call.begin and _waits_behind_interrupts(history, p)))


def _waits_behind_interrupts(history: History, p: Track) -> bool:
    """Whether turns that the kit had not released were ahead of the prompt until its end: the turn that was running
    when the prompt was observed in the queue, and interrupts. Only the next interrupt can have stopped each of them."""
    assert p.queued
    end, here = p.over_at, history.prompts_of(p.session)
    interrupts = [q for q in here if q.if_busy == "interrupt" and not q.refused and q.begin < end]
    running = [q for q in here if q.starts and q.starts[0][0] <= p.queued.end and not q.over_at < p.queued.end]
    moved = any(c.what == "next" and c.of == p.label and not c.refused for c in history.calls)
    return bool(running) and not moved and not p.starts and not any(
        q.is_let_go(by=end) or q.fails or q.pauses or history.fails_by_itself
        or any(c.what != "interrupt" and c.end > q.begin and c.begin < end for c in history.calls_on(q, *ENDING))
        for q in (*interrupts, *running))


def find_interrupter(history: History, p: Track) -> Track | None:
    """The interrupt that must have stopped the prompt, or started before it. It was sent after the prompt was accepted,
    no other call has reached it, and no client has held the session since. The prompt was running when the interrupt
    was sent, or is running while the interrupt waits."""
    moved = any(c.what == "next" and c.of == p.label for c in history.calls)
    for q in history.prompts_of(p.session):
        if q.if_busy == "interrupt" and p.accepted < q.begin and p.starts and not p.pauses and (
                p.starts[0][0] < q.begin or (p.running and q.waiting and not moved)) and (
                _enters(history, q) and not history.maybe_held(q.session, q.begin)):
            return q
    return None


def _enters(history: History, q: Track) -> bool:
    """Whether the prompt was accepted and no call can have prevented its entry."""
    return q.accepted < inf and not (q.refused or q.fails or history.fails_by_itself) and not history.reachable(
        q, "cancel", "clear", "shut", "restart")


# --- hold

def judge_hold(history: History, p: Track) -> None:
    """Report a prompt that starts or folds although it was waiting when a hold was acknowledged, or came later."""
    for what, floor, at in _beginnings(p):
        if any(c.end <= max(p.begin, floor) or _waits_through(history, p, c)
               for c in history.holds_until(p.session, at)):
            history.complain("held", f"the session was held and no client had resumed it, but {p.label} {what}.")


def _waits_through(history: History, p: Track, call: ClientCall) -> bool:
    """Whether the prompt was in the queue until the call took effect, behind a turn that nothing else can have ended.
    """
    return p.queued is not None and p.queued.end < call.begin and any(
        history.runs_through(q, call.begin, call.end, call) for q in history.prompts_of(p.session) if q is not p)


def _beginnings(p: Track) -> Iterator[tuple[str, int, int]]:
    """How the prompt stopped waiting, when it was last observed waiting, and when it was first observed not to."""
    if p.starts:
        yield "started", p.starts[0][1], p.starts[0][0]
    elif p.taken_in:
        yield "folded into another turn", p.floor, p.taken_in[0]


# --- replace

def replaces_of(history: History, p: Track) -> list[ClientCall]:
    return [c for c in history.calls if c.what == "replace" and c.of == p.label]


def judge_texts(history: History, p: Track) -> None:
    calls = replaces_of(history, p)
    taken = [c for c in calls if c.taken]
    for c in taken:
        if p.starts and p.starts[0][0] < c.begin:
            history.complain("edited", f"the server accepted a new text for {p.label}, but its turn had started.")
        elif p.over_at < c.begin or any(d.end < c.begin for d in history.cancels_of(p)):
            history.complain("edited", f"the server accepted a new text for {p.label}, which was canceled or done.")
    if p.version is None or not calls:
        return
    last = {c.version for c in taken if not any(c.end < d.begin for d in taken)}
    unknown = {c.version for c in calls if c.end == inf and not c.refused}
    if p.version not in (last or {0}) | unknown:
        heard = f"text {p.version + 1}" if p.version else "the original text"
        told = " or ".join(f"text {version + 1}" for version in sorted(last)) or "no new text"
        history.complain("edited", f"the language model received {heard} of {p.label}, but the server had accepted "
                                   f"{told}.")


# --- reject

def judge_reject(history: History, p: Track) -> None:
    """Report a prompt sent with `reject` that was accepted although the session was not idle."""
    if p.if_busy != "reject":
        return
    if history.surely_held(p.session, p.begin, p.accepted):
        history.complain("reject", f"{p.label} requires an idle session, but was accepted while the session was held.")
    if q := find_busy(history, p):
        history.complain("reject", f"{p.label} requires an idle session, but was accepted while {q.label} was live.")


def find_busy(history: History, p: Track) -> Track | None:
    """A prompt that was certainly not done when the server decided about this one. If both require an idle session,
    either may have come first."""
    decided = p.accepted if p.accepted < inf else p.answered
    for q in history.prompts_of(p.session):
        both = q.if_busy == "reject" and p.accepted < inf and q.accepted < inf
        since = max(p.accepted, q.accepted) if both else p.begin
        if q is not p and history.is_live(q, since + both, max(decided, since)) and (
                not both or history.is_live(p, since + both, since)):
            return q
    return None


# --- which histories test these guarantees (see `decisive`)

def is_untouched(history: History, p: Track) -> bool:
    """Whether no call could have canceled the prompt, and its outcome was observed."""
    return p.ended and not any(
        c.end > p.begin and not misses(history, c, p)
        for c in history.calls_on(p, *MAY_CANCEL, *CANCELS_ONE, "restart"))


def revokes(history: History) -> bool:
    """Whether a revoke found its prompt live, or another one that no other call could cancel and that was seen to end.
    """
    return any(c.what == "revoke" and c.taken and (
        p.is_alive(c) if c.of == p.label else c.session == p.session and p.is_alive(c) and is_untouched(history, p))
        for c in history.calls for p in history.accepted)


def stops_one(history: History) -> bool:
    """Whether a stop that certainly had a target was acknowledged."""
    return any(c.what in STOP and c.taken and (p := history.in_front(c)) and p.is_alive(c) for c in history.calls)


def keeps(history: History) -> bool:
    """Whether a stop found a prompt queued behind another one, and the outcome of the queued one was observed."""
    return any(c.what in STOP and c.taken and p.queued and p.queued.end < c.begin and p.is_alive(c) and p.ended
               and (history.in_front(c) not in (None, p)) and not any(
                   d is not c and d.end > p.begin and not misses(history, d, p)
                   for d in history.calls_on(p, *MAY_CANCEL, *CANCELS_ONE, "restart"))
               for c in history.calls for p in history.accepted)


def parks(history: History) -> bool:
    return any(p.parked for p in history.prompts)


def edits(history: History) -> bool:
    """Whether a replace was accepted and the language model received a text, or the replace came too late."""
    return any((c.taken and p.version is not None) or (c.refused and p.start_at < c.begin)
               for p in history.accepted for c in replaces_of(history, p))


def interrupts(history: History) -> bool:
    """Whether an interrupt found a turn running."""
    return any((q := find_interrupter(history, p)) and q.begin < min(p.over_at, p.let_go[1] if p.let_go else inf)
               for p in history.accepted)


def rejects(history: History) -> bool:
    """Whether a prompt that requires an idle session was refused while another was not done, or during a hold."""
    return any(p.if_busy == "reject" and p.refused and (
        find_busy(history, p) or history.surely_held(p.session, p.begin, p.answered)) for p in history.prompts)
