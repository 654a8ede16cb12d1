"""From what was seen to what is broken: each guarantee in terms of what clients can see.

What the server owed and did not do is complained about while it is waited for (`player`); here is the rest: what it
did and should not have done. Which ends a prompt may have is for the oracle to say; the sentence that it answers with
is the complaint, and what is broken follows from what the end was.
"""

from itertools import permutations
from math import inf

from cancelmark.model.oracle import RULES, certain, may_end, possible

from .history import History, Track


def review(history: History) -> None:
    """Adds what is wrong to the history's complaints."""
    calls = [made.call for made in history.calls]
    for p in history.prompts:
        if p.refused or p.accepted == inf:
            continue
        _ends(history, p)
        _whose(history, p)
        seen = p.seen(history.steered)
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
        _order(history, history.of(session))


def _ends(history: History, p: Track) -> None:
    if len(p.ends) > 1:
        outcomes = " and then ".join(e.outcome for _, e, _ in p.ends[:3]) + (" and so on" if len(p.ends) > 3 else "")
        (first, *_), (second, *_) = p.ends[:2]
        came_back = any(first < left < second for left, _ in history.left)
        history.complain("delivery" if came_back else "one-terminal", f"{p.label} has {len(p.ends)} ends: {outcomes}.")
    if p.taken_in and p.run_id:
        history.complain("no-absorption", f"{p.label} has a run id, and another turn has taken it in.")


def _broken_by(history: History, p: Track, outcome: str) -> list[str]:
    """Which guarantees an end breaks that the oracle does not allow."""
    if outcome == "canceled":
        elsewhere = any(c.session not in (None, p.session) and c.end > p.begin for c in history.calls)
        if elsewhere and not history.reachable(p, "cancel", "clear", "shut"):
            return ["isolation"]
        before = list(history.called(p, "cancel"))
        return ["no-poisoning", *(["idle-cancel-noop"] if before and all(c.idle for c in before) else [])]
    if outcome == "folded":
        return ["no-absorption" if p.run_id else "no-lost-cancel"]
    if history.covered(p) and not p.starts:
        return ["no-lost-cancel"]
    return ["attribution"]


def _whose(history: History, p: Track) -> None:
    """An end says what its own turn did, in its own words."""
    others = [q for q in history.prompts if q is not p]
    for _, end, _ in p.ends:
        for told in filter(None, (end.text, end.error)):
            if strangers := [q.label for q in others if q.name in told]:
                history.complain("attribution", f"the end of {p.label} carries what belongs to {strangers[0]}: "
                                                f"{history.letters(told)!r:.80}.")
        if p.let_go and not history.reachable(p, "cancel", "shut", "clear", "restart"):
            did, other = ("ended well", "error") if p.let_go[0] == "release" else ("failed", "end_turn")
            if end.outcome == other:
                history.complain("attribution", f"the turn of {p.label} {did}, and its end says {end.outcome}.")
    for _, notice in p.notices:
        if strangers := [q.label for q in others if q.name in notice.error]:
            history.complain("attribution", f"an error of {strangers[0]} was published under the name of {p.label}.")


def _order(history: History, session: list[Track]) -> None:
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
    return history.exact or not any(c.begin < at and c.end > p.begin for c in history.called(p, "cancel", "shut"))


def put_to_the_test(history: History) -> set[str]:
    """The guarantees that the history could have broken."""
    accepted = [p for p in history.prompts if not p.refused]
    tested = {"progress"}
    if accepted:
        tested |= {"one-terminal", "some-terminal"}
    if sum(p.ended for p in accepted) > 1:
        tested.add("attribution")
    for p in accepted:
        others = [q for q in history.of(p.session) if q is not p and not q.refused]
        waited = any(q.starts and q.starts[0][0] < p.accepted and (q.over or history.now) > p.accepted for q in others)
        if waited:
            tested |= {"all-done", "single-active"}
            if any(q.queued and q.accepted < p.begin for q in others):
                tested.add("fifo")
            if any(line.text.endswith("goes on") for line in history.lines):
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
    if any(history.away(p) and p.ends and p.ends[0][0] > history.left[0][0] for p in accepted):
        tested.add("delivery")
    if history.records:
        tested.add("record")
    return tested
