"""Checks of a history: each guarantee in terms of what clients can observe.

`find_debts` lists what the server still owes; the observer waits for it, and reports what does not come. The `judge_…`
functions report what the server did and should not have done. The oracle decides which outcomes a prompt may have. If
it does not allow the observed one, that outcome determines which guarantee is broken (`judge_end`).
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import dropwhile, takewhile
from math import inf

from cancelmark.model.oracle import Call, certain, may_end, possible

from ..adapter import Spoken
from .family import LOST, find_interrupter, lost_by, misses, strayed_by
from .history import CANCELS_ALL, CANCELS_ONE, ENDING, ClientCall, Complaint, History, Track

STOPS = ("cancel", "shut")  # the calls that ask a running turn to stop


def judge_end(history: History, p: Track) -> None:
    """Report an outcome that the oracle does not allow."""
    seen = p.for_oracle(history.steered)
    if p.ended and possible(*seen.moments):
        allowed = may_end(seen, _calls_about(history, p))
        if (outcome := seen.ends[0].outcome) not in allowed:
            says = f"{p.label} ended {outcome}{_why_not(history, p, outcome, allowed)}."
            for guarantee in _broken_by(history, p, outcome):
                history.complain(guarantee, says)


def judge_close(history: History, p: Track) -> None:
    calls, accept = _calls_about(history, p), p.for_oracle(history.steered).accept
    if any(certain(c, accept) for c in calls if c.kind == "close") and not any(c.kind == "crash" for c in calls):
        history.complain("closed", f"{p.label} was accepted after the server had acknowledged a close.")


def _calls_about(history: History, p: Track) -> list[Call]:
    """The calls that may have ended the prompt, in the oracle's terms."""
    sure = list(history.cancels_of(p))
    return [c.as_call(p, c in sure or c.what not in CANCELS_ONE or c.what == "revoke")
            for c in history.calls_on(p, *ENDING) if not (c.what in CANCELS_ONE and misses(history, c, p))]


def _why_not(history: History, p: Track, outcome: str, allowed: Collection[str]) -> str:
    """Why the prompt cannot have this outcome, as the second half of a sentence."""
    if outcome == "canceled":
        others = any(c.what in CANCELS_ONE for c in history.calls)
        return f", but no cancel, clear {'or close' if not others else 'or other call'} had reached it"
    if not p.starts:
        return ", but its turn had not started" + (": a cancel had reached it" if allowed == {"canceled"} else "")
    return f", but only {' or '.join(sorted(allowed))} was possible" if allowed else ", but its turn was not over"


def judge_number_of_ends(history: History, p: Track) -> None:
    if len(p.ends) > 1:
        outcomes = ", then ".join(e.outcome for _, e, _ in p.ends[:3]) + (", and so on" if len(p.ends) > 3 else "")
        (first, *_), (second, *_) = p.ends[:2]
        came_back = any(first < left < second for left, _ in history.absences)
        again = " after it was resent" if p.resent else " after another prompt was sent under its run id"
        history.complain("delivery" if came_back else "run-ids" if p.resent or p.reused else "one-terminal",
                         f"{p.label} has {len(p.ends)} terminal events{again if p.resent or p.reused else ''}: "
                         f"{outcomes}.")


def judge_run_id(history: History, p: Track) -> None:
    if p.resent and len(p.starts) > 1 and not history.reachable(p, "restart"):
        history.complain("run-ids", f"{p.label} was resent under its run id, and started again.")


def judge_absorption(history: History, p: Track) -> None:
    if p.taken_in and p.run_id:
        history.complain("no-absorption", f"{p.label} has a run id, but another prompt's turn answered it.")


def judge_late_fold(history: History, p: Track) -> None:
    if p.taken_in and (into := history.find_prompt(p.taken_in[1])) and any(_separates(c, into, p)
                                                                           for c in history.calls_on(p, *STOPS)):
        history.complain("no-late-fold", f"{p.label} was accepted after a cancel, but folded into the turn of "
                                         f"{into.label}, which the cancel had reached.")
    if p.taken_in and (into := history.find_prompt(p.taken_in[1])) and (other := find_interrupter(history, into)) and (
            other.accepted < p.begin):
        history.complain("no-late-fold", f"{p.label} was accepted after the interrupt {other.label}, but folded into "
                                         f"the turn of {into.label}, which {other.label} stops.")


def _separates(cancel: ClientCall, p: Track, q: Track) -> bool:
    """Whether the cancel started after p was accepted, and was acknowledged before q was sent."""
    return p.accepted < cancel.begin and cancel.end < q.begin


def judge_clears(history: History, p: Track) -> None:
    """Report a prompt that starts, or folds, after a clear has found it in the queue."""
    taken = [p.taken_in[0]] if p.taken_in else []
    for c in history.clears_of(p):
        if any(at > c.end for at in [*(at for at, _ in p.starts), *taken]):
            if not p.queued:
                history.silences.add("queue-dropped")
            history.complain("queue-dropped", f"{p.label} was queued when the server acknowledged a clear, but later "
                                              "started or folded into another turn.")


def _broken_by(history: History, p: Track, outcome: str) -> list[str]:
    """The guarantees that are broken by an outcome that the oracle does not allow."""
    at = p.ends[0][0] if p.ends else inf
    if outcome == "canceled":
        if history.outlived(p):
            return ["outlives-watcher"]
        if strayed := strayed_by(history, p, at):
            return ["no-poisoning", *strayed]
        near = [c for c in history.calls if c.what in ENDING and c.end > p.begin and c.begin < at]
        mine = list(history.calls_on(p, "cancel", "clear", "shut", *CANCELS_ONE))
        if any(c.session not in (None, p.session) for c in near) and not any(c in mine for c in near):
            return ["isolation"]
        before = [c for c in history.calls if c.what in ("cancel", "delete", "stop") and c.session == p.session]
        return ["no-poisoning", *(["idle-cancel-noop"] if before and all(c.idle for c in before) else [])]
    if outcome == "folded":
        return ["no-absorption" if p.run_id else "no-lost-cancel"]
    covered = any(c.end < at for c in history.cancels_of(p))
    return ["no-lost-cancel", *lost_by(history, p)] if covered and not p.starts else ["attribution"]


def judge_attribution(history: History, p: Track) -> None:
    """Report a terminal event that carries another prompt's text, or misreports how its own turn ended."""
    others = [q for q in history.prompts if q is not p]
    for _, end, _ in p.ends:
        for told in filter(None, (end.text, end.error)):
            if strangers := [q.label for q in others if q.name in told]:
                history.complain("attribution", f"the terminal event of {p.label} carries text of {strangers[0]}: "
                                                f"{history.with_letters(told)!r:.80}.")
        if history.outlived(p) and p.broken_at and end.outcome != "canceled":
            history.complain("outlives-watcher", f"the server aborted the turn of {p.label} while no client was "
                                                 f"subscribed, and {p.label} ended {end.outcome}.")
        elif p.let_go and not history.reachable(p, "cancel", "shut", "clear", "restart"):
            did, other = ("succeeded", "error") if p.let_go[0] == "release" else ("failed", "end_turn")
            if end.outcome == other:
                history.complain("attribution", f"the turn of {p.label} {did}, but its outcome is {end.outcome}.")
        if end.outcome != "canceled" and canceled_while_held(history, p):
            history.complain("attribution", f"{p.label} was canceled while its turn was running, but its outcome is "
                                            f"{end.outcome}.")
        elif end.outcome == "error" and failed_by_cancel(history, p):
            history.complain("attribution", f"{p.label} was canceled before its turn started and nothing failed, but "
                                            "its outcome is error.")
        if p.paused and end.outcome == "end_turn":
            history.complain("attribution", f"the turn of {p.label} overflowed its context and did not continue, but "
                                            "its outcome is end_turn.")
    for _, notice in p.notices:
        if strangers := [q.label for q in others if q.name in notice.error]:
            history.complain("attribution", f"the server published an error of {strangers[0]} as one of {p.label}.")


def canceled_while_held(history: History, p: Track) -> bool:
    """Whether only a cancel can have ended its turn (R12d): the server acknowledged the cancel, the language model held
    the turn until then, and nothing else happened in between."""
    end = p.ends[0][0] if p.ends else inf
    held = history.steered and p.starts and not p.fails and not p.pauses and not (p.let_go and p.let_go[1] < end)
    canceled = any(c.begin < end for c in history.cancels_of(p) if c.what != "shut")
    return bool(held) and canceled and not p.taken_in and not history.reachable(p, "restart", "shut") and (
        not history.fails_by_itself)


def failed_by_cancel(history: History, p: Track) -> bool:
    """Whether only a cancel can have ended a prompt whose turn never started. Turns of such a server fail only if the
    language model fails, and the language model was not called."""
    end = p.ends[0][0] if p.ends else inf
    canceled = any(c.begin < end for c in history.cancels_of(p) if c.what != "shut")
    return history.steered and canceled and not (
        p.starts or p.fails or p.taken_in or history.fails_by_itself or history.reachable(p, "restart", "shut"))


def judge_overlap(history: History, p: Track, q: Track) -> None:
    if _starts_first(p, q) and _still_running(history, p, q.starts[0][0]):
        if p.left_open:
            history.silences.add("single-active")
        history.complain("single-active", f"the turn of {q.label} started while the turn of {p.label} was running.")


def judge_order(history: History, p: Track, q: Track) -> None:
    """Report that p has overtaken q: q was ahead and observed in the queue, and p can only have started after that."""
    if not _starts_first(p, q):
        return
    since = p.starts[0][1]
    seen = q.queued and (q.queued.end < p.begin or q.queued.begin <= since)
    settled = not seen and q.settled is not None and q.settled.end < p.begin
    if (seen or settled) and (how := is_ahead(history, q, p, max(p.begin, since))):
        if settled:
            history.silences.add("fifo")
        history.complain("fifo", f"{q.label} was queued, but {p.label}, {how}, started first.")


def _starts_first(p: Track, q: Track) -> bool:
    return bool(p.starts and q.starts) and p.starts[0][0] < q.starts[0][0]


def is_ahead(history: History, q: Track, p: Track, since: int) -> str:
    """The evidence that q was ahead of p when p started, which was after `since`; empty if there is none. The prompt
    that was moved to the front last is ahead; without moves, the prompt that was accepted first."""
    moves = [c for c in history.calls if c.what == "next" and c.of == p.label and not c.refused]
    last = [(p.begin, p.accepted)] if p.if_busy == "interrupt" else []
    last += [(c.begin, c.end) for c in moves]
    mine = [(q.begin, q.accepted)] if q.if_busy == "interrupt" else []
    mine += [(c.begin, c.end) for c in history.calls if c.what == "next" and c.of == q.label and c.taken]
    if any(end <= since and all(other < begin for _, other in last) for begin, end in mine):
        return "which a call had put behind it"
    return "which was accepted after it" if not last and q.accepted < p.begin else ""


def _still_running(history: History, p: Track, at: int) -> bool:
    """Whether p's turn cannot have been over. The language model of an external server learns late that it is."""
    if p.left_open and not p.pauses:
        return p.over is None or p.over > at
    over = min([inf if p.over is None else p.over, *(at for at, _, _ in p.ends[:1])])
    if over < at or any(left <= at <= back for left, back in p.pauses):
        return False
    return history.exact or not any(c.begin < at and c.end > p.begin for c in history.calls_on(p, *STOPS, *CANCELS_ONE))


def find_debts(history: History, counts: Sequence[int | None]) -> Iterator[tuple[Track, Complaint]]:
    """What the server still owes, each as the complaint to make if it does not come: a terminal event for each prompt
    that was canceled or whose turn is over, and a turn for the first waiting prompt. `counts` has the queue length of
    each session; None where it was not queried."""
    for n, queued in enumerate(counts):
        session = history.prompts_of(n)
        busy = any((p.running or p.summarizing) and p.live for p in session)
        idle = not busy and not history.full
        for p in session:
            if p.ends and p.open and not p.let_go and not p.left_open:
                yield from ((p, complaint) for complaint in _find_left_open(history, p))
            if p.live and not p.blamed and (complaint := _find_debt(history, p, busy, idle, queued)):
                if complaint.guarantee == "no-lost-cancel":
                    yield from ((p, Complaint(lost, complaint.says)) for lost in lost_by(history, p))
                if history.outlived(p) and not p.let_go:
                    complaint = Complaint("outlives-watcher", f"{p.label} was accepted, no client was subscribed for a "
                                                              f"long time, and {p.label} neither continues nor ends.")
                elif complaint.guarantee in ("some-terminal", "prompt-terminal", "no-loss") and history.away(p):
                    complaint = Complaint("delivery", f"{p.label} ended while no client read events, and the client "
                                                      "that came back did not receive its terminal event.")
                elif complaint.guarantee in ("some-terminal", "prompt-terminal", "no-loss") and history.maybe_away(p):
                    complaint = Complaint("", "it may have ended before or after the last client left.")
                yield p, complaint


def _find_left_open(history: History, p: Track) -> Iterator[Complaint]:
    """What is wrong if the prompt has ended and its request to the language model is still open."""
    if history.reachable(p, "restart") or p.resent or p.reused:
        return  # the request may come from before the restart, or from the same run id sent again
    asked = max([at for at, _ in p.starts] + p.goes_on, default=inf)
    calls = list(history.cancels_of(p)) or [c for c in history.calls_on(p, *STOPS, *CANCELS_ONE) if c.end > p.begin]
    says = f"{p.label} ended {p.ends[0][1].outcome}, but its request to the language model is still open."
    if not calls:
        yield Complaint("attribution", says)
    elif any(asked < c.begin for c in calls):
        one = set() if any(c.what in CANCELS_ALL for c in calls) else {LOST[c.what] for c in calls}
        yield from (Complaint(lost, says) for lost in sorted(one) or ["cancel-stops"])
    else:
        yield from (Complaint(lost, says) for lost in ("no-lost-cancel", *lost_by(history, p)))


def _find_debt(history: History, p: Track, busy: bool, idle: bool, queued: int | None) -> Complaint | None:
    """What the server owes to the prompt, if anything. `busy`: a turn of its session is running. `idle`: none is, and
    the server has capacity for one more."""
    if any(c.end < p.begin for c in history.calls_on(p, "shut")):
        return None  # the error is that it was accepted at all
    if p.maybe_taken_in:
        return None  # a folded prompt has no terminal event but that of its host
    calls = list(history.cancels_of(p))
    covered = bool(calls)
    call = _call_of(calls)
    asked = max([at for at, _ in p.starts] + p.goes_on, default=inf)  # the last request to the language model
    if p.running and any(asked < c.begin for c in calls):
        lost = lost_by(history, p) or ["cancel-stops"]
        return Complaint(lost[0], f"{p.label} was running when the server acknowledged a {call}, but its turn "
                                  "continues.")
    if covered and p.running:
        return Complaint("no-lost-cancel", f"{p.label} was accepted, then the server acknowledged a {call}; the turn "
                                           f"of {p.label} is running nevertheless.")
    if covered and p.summarizing:
        return Complaint("no-lost-cancel", f"{p.label} was accepted, then the server acknowledged a {call}; the "
                                           f"summary for {p.label} continues nevertheless.")
    if p.running and (other := find_interrupter(history, p)):
        return Complaint("send-now", f"{other.label} was accepted as an interrupt, but the running turn of {p.label} "
                                     "continues.")
    if not p.starts and not covered and history.maybe_held(p.session) and not any(history.clears_of(p)):
        return None  # it waits until a client resumes the session
    if any(c.end > p.accepted for c in history.calls_on(p, "restart")) and not p.running:
        says = f"{p.label} was accepted before a restart, and no terminal event was published for it."
        return Complaint("no-loss", says) if idle else None
    if p.calling and p.running and not covered:
        return Complaint("all-done", f"the turn of {p.label} called a tool, and neither continues nor ends.")
    if p.paused and not covered:
        says = f"the turn of {p.label} overflowed its context, and neither continues nor ends."
        return Complaint("held" if history.maybe_held(p.session) else "all-done", says) if idle else None
    if p.over is not None or (covered and p.starts):
        if busy:
            return Complaint("prompt-terminal", f"the turn of {p.label} is over and the next one has started, but "
                                                f"no terminal event was published for {p.label}.")
        return Complaint("some-terminal", f"the turn of {p.label} is over, but no terminal event was published.")
    if covered:
        if _still_queued(history, p, queued):
            found = p.queued and any(p.queued.end < c.begin for c in calls)
            lost = lost_by(history, p) or ["queue-dropped" if found else "no-lost-cancel"]
            return Complaint(lost[0], f"{p.label} was accepted, then the server acknowledged a {call}; {p.label} is "
                                      "still queued.")
        if _may_be_guest(history, p):
            return None
        return Complaint("some-terminal", f"{p.label} was accepted, then the server acknowledged a {call}; {p.label} "
                                          "never started, and no terminal event was published.")
    if not history.steered:
        return Complaint("some-terminal", f"{p.label} was accepted, but no terminal event was published.")
    if p.run_id and not p.starts and any(history.clears_of(p)):
        what = "was queued when the server acknowledged a clear"
        if _still_queued(history, p, queued):
            return Complaint("queue-dropped", f"{p.label} {what}, and is still queued.")
        return Complaint("some-terminal", f"{p.label} {what}, but no terminal event was published.")
    if p.starts or not idle:
        return None
    if not history.exact and history.reachable(p, "cancel", "clear"):
        if _may_be_guest(history, p):
            return None
        return Complaint("some-terminal", f"{p.label} was accepted concurrently with a cancel or clear; it never "
                                          "started, and no terminal event was published.")
    if p.fails:
        return Complaint("some-terminal", f"{p.label} could not start, but no terminal event was published.")
    if queued == 0:
        return Complaint("some-terminal", f"{p.label} is neither queued nor running, but no terminal event was "
                                          "published.")
    elsewhere = (" (turns of other sessions are running; if the server limits concurrent turns, set `capacity` in the "
                 "adapter)") if history.running else ""
    return Complaint("all-done", f"{p.label} is stranded: no turn is running in its session, but it does not start"
                                 f"{elsewhere}.")


def _call_of(calls: Sequence[ClientCall]) -> str:
    """The name of the call that canceled a prompt."""
    return calls[0].what.replace("_", " ") if calls and all(c.what in CANCELS_ONE for c in calls) else "cancel"


def _may_be_guest(history: History, p: Track) -> bool:
    """Whether the prompt may have folded into a turn that was stopped before its next request to the language model.
    A turn folds prompts without a run id before it calls the language model, initially and after a tool call. The
    host's terminal event then stands for theirs too."""
    return not history.exact and not p.run_id and any(
        q is not p and q.begin < p.accepted and q.accepted < inf and (q.calling or not q.starts)
        and not (q.ends and q.ends[0][0] < p.begin) for q in history.prompts_of(p.session))


def _still_queued(history: History, p: Track, queued: int | None) -> bool:
    """Whether the queue is longer than the number of prompts that came too late to be dropped with this one."""
    later = [q for q in history.prompts_of(p.session)
             if q.waiting and not history.covered(q) and not any(history.clears_of(q))]
    return queued is not None and queued > len(later)


def judge_messages(history: History, session: int, messages: Sequence[Spoken]) -> None:
    """Check the messages of a session: a prompt that was canceled and was the only one has left its text and a canceled
    answer. A prompt that no call could cancel has no such answer."""
    canceled = {p.label for p in history.prompts_of(session) if _canceled_answer(p, messages)}
    for p in history.prompts_of(session):
        if _alone(history, p):
            history.records += 1
            if p.label not in canceled:
                history.complain("record", f"{p.label} was canceled, but the session's messages do not contain its "
                                           "user message followed by a canceled answer.")
        elif p.label in canceled and p.waiting and not history.reachable(p, "cancel", "clear", "shut"):
            history.complain("no-poisoning", f"{p.label} has a canceled answer, but no client canceled anything "
                                             "since it was accepted.")


def _alone(history: History, p: Track) -> bool:
    """Whether the prompt was canceled and never queued: no other prompt was live from its acceptance to its end, and
    the session was not held."""
    if not p.ends or p.ends[0][1].outcome != "canceled" or history.maybe_held(p.session, p.begin):
        return False
    end = p.ends[0][0]
    return all(q is p or q.refused or q.begin > end or (q.ends and q.ends[0][0] < p.begin)
               for q in history.prompts_of(p.session))


def _canceled_answer(p: Track, messages: Sequence[Spoken]) -> bool:
    """Whether one of the answers to the prompt, before the next user message, was canceled."""
    since = list(dropwhile(lambda m: m.role != "user" or p.name not in m.text, messages))
    answers = takewhile(lambda m: m.role != "user", since[1:])
    return any(m.role == "assistant" and m.finish == "canceled" for m in answers)
