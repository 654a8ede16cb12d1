"""From what was seen to what is broken: each guarantee in terms of what clients can see.

`find_debts` says what the server owes: the observer waits for it, and complains of what does not come. `judge_history`
says what the server did and should not have done. Which ends a prompt may have is for the oracle to say: its sentence
is the complaint, and the end that came says which guarantee is broken.
"""

from collections.abc import Iterator, Sequence
from itertools import dropwhile, permutations, takewhile
from math import inf

from cancelmark.model.oracle import RULES, certain, may_end, possible

from .adapter import Spoken
from .history import Complaint, History, Track


def judge_history(history: History) -> None:
    """Adds what is wrong to the history's complaints."""
    calls = [made.call for made in history.calls]
    for p in history.prompts:
        if p.refused or p.accepted == inf:
            continue
        _judge_ends(history, p)
        _judge_attribution(history, p)
        seen = p.for_oracle(history.steered)
        if p.ended and possible(*seen.moments):
            allowed = may_end(seen, calls)
            if (outcome := seen.ends[0].outcome) not in allowed:
                instead = f"could only end {' or '.join(sorted(allowed))}" if allowed else "could not end yet"
                says = f"{p.label} ended {outcome}, and {instead} (rule: {RULES.get(outcome, 'no such outcome')})."
                for guarantee in _broken_by(history, p, outcome):
                    history.complain(guarantee, says)
        if any(certain(c, seen.accept) for c in calls if c.kind == "close") and not any(
                c.kind == "crash" for c in calls):
            history.complain("closed", f"{p.label} was accepted after a close that was answered.")
    for session in {p.session for p in history.prompts}:
        _judge_order(history, history.prompts_of(session))


def _judge_ends(history: History, p: Track) -> None:
    if len(p.ends) > 1:
        outcomes = " and then ".join(e.outcome for _, e, _ in p.ends[:3]) + (" and so on" if len(p.ends) > 3 else "")
        (first, *_), (second, *_) = p.ends[:2]
        came_back = any(first < left < second for left, _ in history.absences)
        history.complain("delivery" if came_back else "one-terminal", f"{p.label} has {len(p.ends)} ends: {outcomes}.")
    if p.taken_in and p.run_id:
        history.complain("no-absorption", f"{p.label} has a run id, and another turn has taken it in.")


def _broken_by(history: History, p: Track, outcome: str) -> list[str]:
    """Which guarantees an end breaks that the oracle does not allow."""
    if outcome == "canceled":
        elsewhere = any(c.session not in (None, p.session) and c.end > p.begin for c in history.calls)
        if elsewhere and not history.reachable(p, "cancel", "clear", "shut"):
            return ["isolation"]
        before = list(history.calls_on(p, "cancel"))
        return ["no-poisoning", *(["idle-cancel-noop"] if before and all(c.idle for c in before) else [])]
    if outcome == "folded":
        return ["no-absorption" if p.run_id else "no-lost-cancel"]
    if history.covered(p) and not p.starts:
        return ["no-lost-cancel"]
    return ["attribution"]


def _judge_attribution(history: History, p: Track) -> None:
    """An end says what its own turn did, in its own words."""
    others = [q for q in history.prompts if q is not p]
    for _, end, _ in p.ends:
        for told in filter(None, (end.text, end.error)):
            if strangers := [q.label for q in others if q.name in told]:
                history.complain("attribution", f"the end of {p.label} carries what belongs to {strangers[0]}: "
                                                f"{history.with_letters(told)!r:.80}.")
        if p.let_go and not history.reachable(p, "cancel", "shut", "clear", "restart"):
            did, other = ("ended well", "error") if p.let_go[0] == "release" else ("failed", "end_turn")
            if end.outcome == other:
                history.complain("attribution", f"the turn of {p.label} {did}, and its end says {end.outcome}.")
    for _, notice in p.notices:
        if strangers := [q.label for q in others if q.name in notice.error]:
            history.complain("attribution", f"an error of {strangers[0]} was published under the name of {p.label}.")


def _judge_order(history: History, session: list[Track]) -> None:
    for p, q in permutations(session, 2):
        if not (p.starts and q.starts):
            continue
        began, later = p.starts[0][0], q.starts[0][0]
        if began < later and _still_running(history, p, later):
            history.complain("single-active", f"{q.label} started while the turn of {p.label} was running.")
        # p has overtaken q: q is earlier, was seen in the queue, and p can only have started after that.
        floor = p.starts[0][1]
        if began < later and q.accepted < p.begin and q.queued and (
                q.queued.end < p.begin or q.queued.begin <= floor):
            history.complain("fifo", f"{q.label} was queued, and {p.label}, which was accepted after it, started "
                                     "first.")


def _still_running(history: History, p: Track, at: int) -> bool:
    """Whether p's turn cannot have been over. The language model of a server outside is told late that it is."""
    over = min([inf if p.over is None else p.over, *(at for at, _, _ in p.ends[:1])])
    if over < at:
        return False
    return history.exact or not any(c.begin < at and c.end > p.begin for c in history.calls_on(p, "cancel", "shut"))


def find_debts(history: History, counts: Sequence[int | None]) -> Iterator[tuple[Track, Complaint]]:
    """What the server still has to do, as the complaint that it would be otherwise: an end to each prompt that was
    canceled or whose turn is over, and a turn to the first that waits. `counts`: how many are queued in each session,
    where that was asked."""
    for n, queued in enumerate(counts):
        session = history.prompts_of(n)
        busy = any(p.running and p.live for p in session)
        for p in session:
            if p.live and not p.blamed and (complaint := _find_debt(history, p, busy, queued)):
                if complaint.guarantee in ("some-terminal", "prompt-terminal") and history.away(p):
                    complaint = Complaint("delivery", f"{p.label} has ended while nobody watched, and its end was "
                                                      "not told to who came back.")
                yield p, complaint


def _find_debt(history: History, p: Track, busy: bool, queued: int | None) -> Complaint | None:
    if any(c.end < p.begin for c in history.calls_on(p, "shut")):
        return None  # that it was accepted is what is wrong
    covered = history.covered(p)
    if covered and p.running:
        return Complaint("no-lost-cancel", f"{p.label} was accepted before a cancel that was answered, "
                                           "and its turn goes on.")
    if any(c.end > p.accepted for c in history.calls_on(p, "restart")) and not p.running:
        return None if busy else Complaint("no-loss", f"{p.label} was accepted before a restart, and its end never "
                                                      "came.")
    if p.over is not None or (covered and p.starts):
        if busy:
            return Complaint("prompt-terminal", f"the turn of {p.label} is over and the next one has started, but "
                                                f"the end of {p.label} was not published.")
        return Complaint("some-terminal", f"the turn of {p.label} is over, and its end was never published.")
    if covered:
        if queued:
            return Complaint("no-lost-cancel", f"{p.label} was accepted before a cancel that was answered, "
                                               "and is still queued.")
        return Complaint("some-terminal", f"{p.label} was accepted before a cancel that was answered; it did not "
                                          "start, and its end was never published.")
    if not history.steered:
        return Complaint("some-terminal", f"{p.label} was accepted, and its end was never published.")
    if p.starts or busy:
        return None
    if not history.exact and history.reachable(p, "cancel", "clear"):
        return Complaint("some-terminal", f"{p.label} was accepted while a cancel was; it did not start, and its "
                                          "end was never published.")
    if queued == 0:
        return Complaint("some-terminal", f"{p.label} is not queued and not running, and its end was never "
                                          "published.")
    return Complaint("all-done", f"{p.label} is stranded: nothing is running, and it does not start.")


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
    """Canceled, and never in a queue: nobody else was there from its acceptance to its end."""
    if not p.ends or p.ends[0][1].outcome != "canceled":
        return False
    end = p.ends[0][0]
    return all(q is p or q.refused or q.begin > end or (q.ends and q.ends[0][0] < p.begin)
               for q in history.prompts_of(p.session))


def _canceled_answer(p: Track, messages: Sequence[Spoken]) -> bool:
    """Whether one of the answers to the prompt, before somebody else speaks, was canceled."""
    since = list(dropwhile(lambda m: m.role != "user" or p.name not in m.text, messages))
    answers = takewhile(lambda m: m.role != "user", since[1:])
    return any(m.role == "assistant" and m.finish == "canceled" for m in answers)


def tested_guarantees(history: History) -> set[str]:
    """The guarantees that the history could have broken."""
    accepted = [p for p in history.prompts if not p.refused]
    tested = {"progress"}
    if accepted:
        tested |= {"one-terminal", "some-terminal"}
    if sum(p.ended for p in accepted) > 1:
        tested.add("attribution")
    for p in accepted:
        others = [q for q in history.prompts_of(p.session) if q is not p and not q.refused]
        waited = any(q.starts and q.starts[0][0] < p.accepted and (q.over or history.now) > p.accepted for q in others)
        if waited:
            tested |= {"all-done", "single-active"}
            if any(q.queued and q.accepted < p.begin for q in others):
                tested.add("fifo")
            if any(line.text.endswith("goes on") for line in history.observations):
                tested.add("no-absorption")
        if any(q.over and p.starts and q.over < p.starts[0][0] for q in others):
            tested.add("prompt-terminal")
        if history.covered(p):
            tested.add("no-lost-cancel")
        for c in history.calls:
            mine = c.session in (None, p.session)
            if mine and c.what == "cancel" and c.end < p.begin:
                tested |= {"no-poisoning", *(["idle-cancel-noop"] if c.idle else [])}
            if not mine and p.accepted < c.begin and not (p.ends and p.ends[0][0] < c.begin):
                tested.add("isolation")
            if c.what == "restart" and p.accepted < c.begin and not (p.ends and p.ends[0][0] < c.begin):
                tested.add("no-loss")
    if any(c.what == "shut" and c.end < p.begin for c in history.calls for p in history.prompts):
        tested.add("closed")
    if any(history.away(p) and p.ends and p.ends[0][0] > history.absences[0][0] for p in accepted):
        tested.add("delivery")
    if history.records:
        tested.add("record")
    return tested
