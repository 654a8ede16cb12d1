"""From what was seen to what is broken: each guarantee in terms of what clients can see.

`find_debts` says what the server owes: the observer waits for it, and complains of what does not come. The others say
what the server did and should not have done. Which ends a prompt may have is for the oracle to say: its sentence is the
complaint, and the end that came says which guarantee is broken (`judge_end`).
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import dropwhile, takewhile
from math import inf

from cancelmark.model.oracle import Call, certain, may_end, possible

from ..adapter import Spoken
from .family import LOST, find_interrupter, lost_by, misses, strayed_by
from .history import KINDS, ONE, WHOLE, ClientCall, Complaint, History, Track

STOPS = ("cancel", "shut")  # the calls that ask a running turn to stop


def judge_end(history: History, p: Track) -> None:
    """The oracle allows the end that the prompt had."""
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
        history.complain("closed", f"{p.label} was accepted after a close that was answered.")


def _calls_about(history: History, p: Track) -> list[Call]:
    """What may have ended the prompt, as the oracle is told of it."""
    sure = list(history.cancels_of(p))
    return [c.as_call(p, c in sure or c.what not in ONE or c.what == "revoke") for c in history.calls_on(p, *KINDS)
            if not (c.what in ONE and misses(history, c, p))]


def _why_not(history: History, p: Track, outcome: str, allowed: Collection[str]) -> str:
    """Why the prompt cannot have this end, for somebody who tests a server."""
    if outcome == "canceled":
        others = any(c.what in ONE for c in history.calls)
        return f", and no cancel, clear {'or close' if not others else 'or other call'} had reached it"
    if not p.starts:
        return ", and its turn had not started" + (": a cancel had reached it" if allowed == {"canceled"} else "")
    return f", and only {' or '.join(sorted(allowed))} was possible" if allowed else ", and its turn was not over"


def judge_number_of_ends(history: History, p: Track) -> None:
    if len(p.ends) > 1:
        outcomes = " and then ".join(e.outcome for _, e, _ in p.ends[:3]) + (" and so on" if len(p.ends) > 3 else "")
        (first, *_), (second, *_) = p.ends[:2]
        came_back = any(first < left < second for left, _ in history.absences)
        again = " after it was sent again" if p.resent else " after another was sent under its run id"
        history.complain("delivery" if came_back else "run-ids" if p.resent or p.reused else "one-terminal",
                         f"{p.label} has {len(p.ends)} ends{again if p.resent or p.reused else ''}: {outcomes}.")


def judge_run_id(history: History, p: Track) -> None:
    if p.resent and len(p.starts) > 1 and not history.reachable(p, "restart"):
        history.complain("run-ids", f"{p.label} was sent again under its run id, and has started again.")


def judge_absorption(history: History, p: Track) -> None:
    if p.taken_in and p.run_id:
        history.complain("no-absorption", f"{p.label} has a run id, and another prompt's turn has answered it.")


def judge_late_fold(history: History, p: Track) -> None:
    if p.taken_in and (into := history.find_prompt(p.taken_in[1])) and any(_separates(c, into, p)
                                                                           for c in history.calls_on(p, *STOPS)):
        history.complain("no-late-fold", f"{p.label} was accepted after a cancel, and the turn of {into.label}, which "
                                         "the cancel has reached, has taken it in.")
    if p.taken_in and (into := history.find_prompt(p.taken_in[1])) and (other := find_interrupter(history, into)) and (
            other.accepted < p.begin):
        history.complain("no-late-fold", f"{p.label} was accepted after {other.label}, which interrupts, and the turn "
                                         f"of {into.label}, which that stops, has taken it in.")


def _separates(cancel: ClientCall, p: Track, q: Track) -> bool:
    """Whether the cancel came after one prompt was accepted, and was answered before the other was sent."""
    return p.accepted < cancel.begin and cancel.end < q.begin


def judge_clears(history: History, p: Track) -> None:
    """What was in the queue when it was cleared is done."""
    taken = [p.taken_in[0]] if p.taken_in else []
    for c in history.clears_of(p):
        if any(at > c.end for at in [*(at for at, _ in p.starts), *taken]):
            if not p.queued:
                history.silences.add("queue-dropped")
            history.complain("queue-dropped", f"{p.label} was queued when a clear came that was answered, and its turn "
                                              "starts, or another takes it in.")


def _broken_by(history: History, p: Track, outcome: str) -> list[str]:
    """Which guarantees an end breaks that the oracle does not allow."""
    at = p.ends[0][0] if p.ends else inf
    if outcome == "canceled":
        if history.outlived(p):
            return ["outlives-watcher"]
        if strayed := strayed_by(history, p, at):
            return ["no-poisoning", *strayed]
        near = [c for c in history.calls if c.what in KINDS and c.end > p.begin and c.begin < at]
        mine = list(history.calls_on(p, "cancel", "clear", "shut", *ONE))
        if any(c.session not in (None, p.session) for c in near) and not any(c in mine for c in near):
            return ["isolation"]
        before = [c for c in history.calls if c.what in ("cancel", "delete", "stop") and c.session == p.session]
        return ["no-poisoning", *(["idle-cancel-noop"] if before and all(c.idle for c in before) else [])]
    if outcome == "folded":
        return ["no-absorption" if p.run_id else "no-lost-cancel"]
    covered = any(c.end < at for c in history.cancels_of(p))
    return ["no-lost-cancel", *lost_by(history, p)] if covered and not p.starts else ["attribution"]


def judge_attribution(history: History, p: Track) -> None:
    """An end says what its own turn did, in its own words."""
    others = [q for q in history.prompts if q is not p]
    for _, end, _ in p.ends:
        for told in filter(None, (end.text, end.error)):
            if strangers := [q.label for q in others if q.name in told]:
                history.complain("attribution", f"the end of {p.label} carries what belongs to {strangers[0]}: "
                                                f"{history.with_letters(told)!r:.80}.")
        if history.outlived(p) and p.broken_at and end.outcome != "canceled":
            history.complain("outlives-watcher", f"the turn of {p.label} was broken off while nobody watched, and "
                                                 f"{p.label} ended {end.outcome}.")
        elif p.let_go and not history.reachable(p, "cancel", "shut", "clear", "restart"):
            did, other = ("ended well", "error") if p.let_go[0] == "release" else ("failed", "end_turn")
            if end.outcome == other:
                history.complain("attribution", f"the turn of {p.label} {did}, and its end says {end.outcome}.")
        if end.outcome != "canceled" and canceled_while_held(history, p):
            history.complain("attribution", f"{p.label} was canceled while the language model held its turn, and its "
                                            f"end says {end.outcome}.")
        elif end.outcome == "error" and failed_by_cancel(history, p):
            history.complain("attribution", f"{p.label} was canceled before its turn started, nothing had failed, and "
                                            "its end says error.")
        if p.paused and end.outcome == "end_turn":
            history.complain("attribution", f"the turn of {p.label} no longer fitted into its context and did not go "
                                            "on, and its end says end_turn.")
    for _, notice in p.notices:
        if strangers := [q.label for q in others if q.name in notice.error]:
            history.complain("attribution", f"an error of {strangers[0]} was published under the name of {p.label}.")


def canceled_while_held(history: History, p: Track) -> bool:
    """Whether a cancel is all that can have ended its turn (R12d): it was answered, the language model has held the
    turn to the end, and nothing else came in between."""
    end = p.ends[0][0] if p.ends else inf
    held = history.steered and p.starts and not p.fails and not p.pauses and not (p.let_go and p.let_go[1] < end)
    canceled = any(c.begin < end for c in history.cancels_of(p) if c.what != "shut")
    return bool(held) and canceled and not p.taken_in and not history.reachable(p, "restart", "shut") and (
        not history.fails_by_itself)


def failed_by_cancel(history: History, p: Track) -> bool:
    """Whether a cancel is all that can have ended a prompt whose turn never started: no turn of such a server fails
    unless the language model does, and that was not asked."""
    end = p.ends[0][0] if p.ends else inf
    canceled = any(c.begin < end for c in history.cancels_of(p) if c.what != "shut")
    return history.steered and canceled and not (
        p.starts or p.fails or p.taken_in or history.fails_by_itself or history.reachable(p, "restart", "shut"))


def judge_overlap(history: History, p: Track, q: Track) -> None:
    if _starts_first(p, q) and _still_running(history, p, q.starts[0][0]):
        if p.left_open:
            history.silences.add("single-active")
        history.complain("single-active", f"{q.label} started while the turn of {p.label} was running.")


def judge_order(history: History, p: Track, q: Track) -> None:
    """p has overtaken q: q is ahead, was seen in the queue, and p can only have started after that."""
    if not _starts_first(p, q):
        return
    since = p.starts[0][1]
    seen = q.queued and (q.queued.end < p.begin or q.queued.begin <= since)
    settled = not seen and q.settled is not None and q.settled.end < p.begin
    if (seen or settled) and (how := is_ahead(history, q, p, max(p.begin, since))):
        if settled:
            history.silences.add("fifo")
        history.complain("fifo", f"{q.label} was queued, and {p.label}, {how}, started first.")


def _starts_first(p: Track, q: Track) -> bool:
    return bool(p.starts and q.starts) and p.starts[0][0] < q.starts[0][0]


def is_ahead(history: History, q: Track, p: Track, since: int) -> str:
    """How it is known that q was ahead of p when p started, which it did after `since`; empty: it is not known. The
    last that went to the front is ahead, or else the first that was accepted."""
    moves = [c for c in history.calls if c.what == "next" and c.of == p.label and not c.refused]
    last = [(p.begin, p.accepted)] if p.if_busy == "interrupt" else []
    last += [(c.begin, c.end) for c in moves]
    mine = [(q.begin, q.accepted)] if q.if_busy == "interrupt" else []
    mine += [(c.begin, c.end) for c in history.calls if c.what == "next" and c.of == q.label and c.taken]
    if any(end <= since and all(other < begin for _, other in last) for begin, end in mine):
        return "behind which it was put"
    return "which was accepted after it" if not last and q.accepted < p.begin else ""


def _still_running(history: History, p: Track, at: int) -> bool:
    """Whether p's turn cannot have been over. The language model of a server outside is told late that it is."""
    if p.left_open and not p.pauses:
        return p.over is None or p.over > at
    over = min([inf if p.over is None else p.over, *(at for at, _, _ in p.ends[:1])])
    if over < at or any(left <= at <= back for left, back in p.pauses):
        return False
    return history.exact or not any(c.begin < at and c.end > p.begin for c in history.calls_on(p, *STOPS, *ONE))


def find_debts(history: History, counts: Sequence[int | None]) -> Iterator[tuple[Track, Complaint]]:
    """What the server still has to do, as the complaint that it would be otherwise: an end to each prompt that was
    canceled or whose turn is over, and a turn to the first that waits. `counts`: how many are queued in each session,
    where that was asked."""
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
                    complaint = Complaint("outlives-watcher", f"{p.label} was accepted, nobody watched for long, and "
                                                              "it neither goes on nor ends.")
                elif complaint.guarantee in ("some-terminal", "prompt-terminal", "no-loss") and history.away(p):
                    complaint = Complaint("delivery", f"{p.label} has ended while nobody read events, and its end was "
                                                      "not told to who came back to them.")
                elif complaint.guarantee in ("some-terminal", "prompt-terminal", "no-loss") and history.maybe_away(p):
                    complaint = Complaint("", "it may have ended just before nobody read events, or while nobody did.")
                yield p, complaint


def _find_left_open(history: History, p: Track) -> Iterator[Complaint]:
    """What is wrong if the prompt has ended and the language model is still being asked for its turn."""
    if history.reachable(p, "restart") or p.resent or p.reused:
        return  # the request may be that of its former life, or of the same run id sent again
    asked = max([at for at, _ in p.starts] + p.goes_on, default=inf)
    calls = list(history.cancels_of(p)) or [c for c in history.calls_on(p, *STOPS, *ONE) if c.end > p.begin]
    says = f"{p.label} ended {p.ends[0][1].outcome}, and the server's request to the language model for it stays open."
    if not calls:
        yield Complaint("attribution", says)
    elif any(asked < c.begin for c in calls):
        one = set() if any(c.what in WHOLE for c in calls) else {LOST[c.what] for c in calls}
        yield from (Complaint(lost, says) for lost in sorted(one) or ["cancel-stops"])
    else:
        yield from (Complaint(lost, says) for lost in ("no-lost-cancel", *lost_by(history, p)))


def _find_debt(history: History, p: Track, busy: bool, idle: bool, queued: int | None) -> Complaint | None:
    """`busy`: a turn of its session is running. `idle`: none is, and the server could run one more."""
    if any(c.end < p.begin for c in history.calls_on(p, "shut")):
        return None  # that it was accepted is what is wrong
    if p.maybe_taken_in:
        return None  # and then the end of that turn is all that there is
    calls = list(history.cancels_of(p))
    covered = bool(calls)
    call = _call_of(calls)
    asked = max([at for at, _ in p.starts] + p.goes_on, default=inf)  # the language model, for the last time
    if p.running and any(asked < c.begin for c in calls):
        lost = lost_by(history, p) or ["cancel-stops"]
        return Complaint(lost[0], f"{p.label} was running when a {call} came that was answered, and its turn goes on.")
    if covered and p.running:
        return Complaint("no-lost-cancel", f"{p.label} was accepted before a {call} that was answered, "
                                           "and its turn goes on.")
    if covered and p.summarizing:
        return Complaint("no-lost-cancel", f"{p.label} was accepted before a {call} that was answered, "
                                           "and its summary goes on.")
    if p.running and (other := find_interrupter(history, p)):
        return Complaint("send-now", f"{other.label} was accepted to interrupt, and the turn of {p.label}, which was "
                                     "running, goes on.")
    if not p.starts and not covered and history.maybe_held(p.session) and not any(history.clears_of(p)):
        return None  # it waits until somebody resumes
    if any(c.end > p.accepted for c in history.calls_on(p, "restart")) and not p.running:
        says = f"{p.label} was accepted before a restart, and its end did not come."
        return Complaint("no-loss", says) if idle else None
    if p.calling and p.running and not covered:
        return Complaint("all-done", f"the turn of {p.label} has called a tool, and neither goes on nor ends.")
    if p.paused and not covered:
        says = f"the turn of {p.label} no longer fitted into its context; it neither goes on nor ends."
        return Complaint("held" if history.maybe_held(p.session) else "all-done", says) if idle else None
    if p.over is not None or (covered and p.starts):
        if busy:
            return Complaint("prompt-terminal", f"the turn of {p.label} is over and the next one has started, but "
                                                f"the end of {p.label} was not published.")
        return Complaint("some-terminal", f"the turn of {p.label} is over, and its end was not published.")
    if covered:
        if _still_queued(history, p, queued):
            found = p.queued and any(p.queued.end < c.begin for c in calls)
            lost = lost_by(history, p) or ["queue-dropped" if found else "no-lost-cancel"]
            return Complaint(lost[0], f"{p.label} was accepted before a {call} that was answered, and is still queued.")
        if _may_be_guest(history, p):
            return None
        return Complaint("some-terminal", f"{p.label} was accepted before a {call} that was answered; it did not "
                                          "start, and its end was not published.")
    if not history.steered:
        return Complaint("some-terminal", f"{p.label} was accepted, and its end was not published.")
    if p.run_id and not p.starts and any(history.clears_of(p)):
        what = "was queued when a clear came that was answered"
        if _still_queued(history, p, queued):
            return Complaint("queue-dropped", f"{p.label} {what}, and is still queued.")
        return Complaint("some-terminal", f"{p.label} {what}; its end was not published.")
    if p.starts or not idle:
        return None
    if not history.exact and history.reachable(p, "cancel", "clear"):
        if _may_be_guest(history, p):
            return None
        return Complaint("some-terminal", f"{p.label} was accepted while a cancel was; it did not start, and its "
                                          "end was not published.")
    if p.fails:
        return Complaint("some-terminal", f"{p.label} could not start, and its end was not published.")
    if queued == 0:
        return Complaint("some-terminal", f"{p.label} is not queued and not running, and its end was not "
                                          "published.")
    elsewhere = " (others have turns running: does the server run only so many? `capacity`)" if history.running else ""
    return Complaint("all-done", f"{p.label} is stranded: nothing is running in its session, and it does not start"
                                 f"{elsewhere}.")


def _call_of(calls: Sequence[ClientCall]) -> str:
    """What has canceled a prompt, in a word."""
    return calls[0].what.replace("_", " ") if calls and all(c.what in ONE for c in calls) else "cancel"


def _may_be_guest(history: History, p: Track) -> bool:
    """Whether a turn may have taken the prompt in and was stopped before the language model heard of it: a turn takes
    prompts without a run id in before it asks, at first and after a tool call. Its end is then theirs."""
    return not history.exact and not p.run_id and any(
        q is not p and q.begin < p.accepted and q.accepted < inf and (q.calling or not q.starts)
        and not (q.ends and q.ends[0][0] < p.begin) for q in history.prompts_of(p.session))


def _still_queued(history: History, p: Track, queued: int | None) -> bool:
    """Whether more are queued than came too late to be dropped with the prompt."""
    later = [q for q in history.prompts_of(p.session)
             if q.waiting and not history.covered(q) and not any(history.clears_of(q))]
    return queued is not None and queued > len(later)


def judge_messages(history: History, session: int, messages: Sequence[Spoken]) -> None:
    """A prompt that was alone and canceled has left its text and a canceled answer. A prompt that nothing could cancel
    has no such answer."""
    canceled = {p.label for p in history.prompts_of(session) if _canceled_answer(p, messages)}
    for p in history.prompts_of(session):
        if _alone(history, p):
            history.records += 1
            if p.label not in canceled:
                history.complain("record", f"{p.label} was canceled, and the session has no user message "
                                           "of it with a canceled answer behind it.")
        elif p.label in canceled and p.waiting and not history.reachable(p, "cancel", "clear", "shut"):
            history.complain("no-poisoning", f"{p.label} has a canceled answer, and nothing was canceled "
                                             "since its acceptance.")


def _alone(history: History, p: Track) -> bool:
    """Canceled, and never in a queue: nobody else was there from its acceptance to its end, and there was no hold."""
    if not p.ends or p.ends[0][1].outcome != "canceled" or history.maybe_held(p.session, p.begin):
        return False
    end = p.ends[0][0]
    return all(q is p or q.refused or q.begin > end or (q.ends and q.ends[0][0] < p.begin)
               for q in history.prompts_of(p.session))


def _canceled_answer(p: Track, messages: Sequence[Spoken]) -> bool:
    """Whether one of the answers to the prompt, before somebody else speaks, was canceled."""
    since = list(dropwhile(lambda m: m.role != "user" or p.name not in m.text, messages))
    answers = takewhile(lambda m: m.role != "user", since[1:])
    return any(m.role == "assistant" and m.finish == "canceled" for m in answers)
