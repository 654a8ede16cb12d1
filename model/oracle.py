"""The oracle: which outcomes a history of calls allows for each prompt.

A history gives each event a `Span` of time within which it took effect, because a caller knows only when its call
started and when it returned. If spans overlap, either order is possible; in a sequential history no spans overlap. Each
prompt is checked on its own, without regard to other prompts: its session may have been busy at any time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise
from math import inf
from typing import Literal

CallKind = Literal["cancel", "clear_queue", "close", "crash", "revoke", "stop", "hold", "resume", "interrupt"]

RULES = {
    "start": "a prompt must not start after a cancel that followed its acceptance, after a clear_queue that found it "
             "queued, or while it waits in a held session",
    "end_turn": "only a running prompt can end its turn, and after a crash it ends with an error instead",
    "error": "a prompt can fail while it runs, or before it enters unless a cancel followed its acceptance",
    "canceled": "a prompt can be canceled by a cancel that followed its acceptance and its last start, by a "
                "clear_queue while it is queued, or by a later interrupt while it runs",
    "folded": "a prompt can fold only from the queue, without a run id, with no cancel since its acceptance, and while "
              "the session is not held",
}


@dataclass(frozen=True)
class Span:
    """The time interval within which an event took effect. An event observed at t may have taken effect earlier, so its
    span ends at t. The span of a call that has not returned ends at `inf`."""

    begin: float
    end: float


@dataclass(frozen=True)
class Call(Span):
    """A call on one session, or on all sessions if `session` is None.

    A close also cancels. A crash lasts until the server is back. A revoke or a stop cancels the one prompt named `of`.
    An interrupt is the acceptance of the prompt named `of`; it takes effect later, when that prompt enters.
    """

    kind: CallKind
    session: str | None = None
    of: str = ""


@dataclass(frozen=True)
class End(Span):
    """A terminal event, with one of the four outcomes."""

    outcome: str


@dataclass(frozen=True)
class Prompt:
    """The observations of an accepted prompt. `enter` is None if its entry was not observed."""

    name: str
    accept: Span
    run_id: bool = False
    enter: Span | None = None
    starts: tuple[Span, ...] = ()
    ends: tuple[End, ...] = ()
    session: str = ""

    @property
    def moments(self) -> list[Span]:
        """Acceptance, entry (if unknown, acceptance again), starts, and end (or never): the order of their effects."""
        return [self.accept, self.enter or self.accept, *self.starts, *(self.ends[:1] or [Span(inf, inf)])]


def certain(*spans: Span) -> bool:
    """Whether the events certainly took effect in this order."""
    return all(one.end < following.begin for one, following in pairwise(spans))


def possible(*spans: Span) -> bool:
    """Whether the events may have taken effect in this order."""
    return all(one.begin <= later.end for one, later in combinations(spans, 2))


def may_end(prompt: Prompt, calls: Iterable[Call]) -> frozenset[str]:
    """The outcomes that `prompt` may have had when it ended. If it has not ended: those that need no further call."""
    return _may_follow(prompt, calls, len(prompt.starts)) - {"start"}


def judge(prompts: Iterable[Prompt], calls: Sequence[Call], complete: bool = True) -> list[str]:
    """Check a history, and return one sentence per violation. In a `complete` history every prompt has had time to
    end."""
    complaints: list[str] = []

    def expect(holds: bool, seen: str, wanted: str, rule: str) -> None:
        if not holds:
            complaints.append(f"{p.name} {seen}, but {wanted}. The rule: {rule}.")

    for p in prompts:
        ends = [e.outcome for e in p.ends]
        owed = complete and not _may_be_parked(p, calls)
        expect(len(ends) == 1 or not (ends or owed), f"has {len(ends)} terminal event{'s' * (len(ends) != 1)}",
               "must have exactly one", "each prompt ends exactly once")
        expect(not any(certain(c, p.accept) and _shut(c, p, calls) for c in calls), "was accepted after a close",
               "should have been refused", "a closed server accepts no prompts until it restarts")
        expect(in_order := possible(*p.moments), "was observed out of order",
               "the order must be accept, enter, starts, end",
               "nothing happens to a prompt before its acceptance or after its end")
        for n, what in enumerate(["start"] * len(p.starts) + ends[:1] if in_order else []):
            may = _may_follow(p, calls, n)
            expect(what in may, tell_event(what, n), tell_allowed(may), RULES.get(what, "no such outcome exists"))
    return complaints


def tell_event(what: str, starts: int) -> str:
    """`starts`, `starts again`, `ends canceled without a start`."""
    if what == "start":
        return "starts again" if starts else "starts"
    return f"ends {what}" if starts else f"ends {what} without a start"


def tell_allowed(may: frozenset[str]) -> str:
    """`could only start or end canceled`."""
    words = [*(["start"] if "start" in may else []), *(f"end {what}" for what in sorted(may - {"start"}))]
    return f"could only {' or '.join(words)}" if words else "nothing more could happen to it"


def _shut(close: Call, prompt: Prompt, calls: Iterable[Call]) -> bool:
    """Whether `close` certainly still applied when the prompt was accepted: no restart can have come between them."""
    return close.kind == "close" and not any(c.kind == "crash" and possible(close, c, prompt.accept) for c in calls)


def _may_be_parked(prompt: Prompt, calls: Iterable[Call]) -> bool:
    """Whether the prompt may still be waiting in a held session: no resume certainly followed some hold."""
    here = [c for c in calls if c.session in (None, prompt.session)]
    resumes = [c for c in here if c.kind == "resume"]
    return any(c.kind == "hold" and not any(certain(c, r) for r in resumes) for c in here)


def _resumed(hold: Call, then: Span, calls: Iterable[Call]) -> bool:
    """Whether a caller may have resumed the session between `hold` and `then`."""
    return any(c.kind == "resume" and possible(hold, c, then) for c in calls)


def _may_follow(prompt: Prompt, calls: Iterable[Call], starts: int) -> frozenset[str]:
    """The events that may follow after that many starts: another start, or an end with one of the four outcomes."""
    begins = accumulate((m.begin for m in prompt.moments), max)  # no event takes effect before its predecessor
    ends = accumulate((m.end for m in reversed(prompt.moments)), min)  # or after its successor
    accept, enter, *later = map(Span, begins, reversed([*ends]))
    last, then = [accept, *later][starts:starts + 2]
    calls = [c for c in calls if c.session in (None, prompt.session)]
    cancels = [c for c in calls if c.kind in ("cancel", "close")
               or (c.kind in ("revoke", "stop") and c.of == prompt.name)]
    drops = [*cancels, *(c for c in calls if c.kind == "clear_queue")]
    interrupts = [Span(c.begin, inf) for c in calls if c.kind == "interrupt" and c.of != prompt.name]
    crashes = sorted((c for c in calls if c.kind == "crash" and certain(last, c, then)), key=lambda c: c.end)
    # A prompt that entered without starting, or that started and then survived a crash, must have been queued then.
    queued = crashes[:1] if starts else [enter] if prompt.enter else []

    covered = any(certain(c, then) and (certain(accept, c) or _shut(c, prompt, calls)) for c in cancels)
    reached = any(possible(last, c, *queued, then) for c in cancels)
    survived = any(certain(q, c, then) for q in queued for c in drops)
    dropped = not survived and any(possible(c, then) and possible(then, c) for c in drops)
    interrupted = starts > 0 and not queued and any(possible(accept, i, then) for i in interrupts)
    held = any(c.kind == "hold" and certain(c, then) and not _resumed(c, then, calls) for c in calls)
    may = {
        "start": not covered and not survived and not (held and not starts),
        "end_turn": starts > 0 and not queued,
        "error": (starts > 0 or not covered) and not queued,
        "canceled": reached or dropped or interrupted,
        "folded": not covered and not survived and not held and not prompt.run_id,
    }
    return frozenset(what for what in may if may[what])


# --- Questions

ASK_RULES = {
    "ask": "a turn asks only while its prompt is running and no cancel has followed the prompt's acceptance",
    "end": "a question ends exactly once, with an answer or a withdrawal, in the step that settles it at the latest",
    "run": "a tool starts at most once, after its question was allowed, and before a cancel, restart or end",
    "unsure": "after a crash exactly the tools of the broken turn that had started are reported",
}


@dataclass(frozen=True)
class Reply(Span):
    """An answer that the server took: `allow` or `deny`."""

    answer: str


@dataclass(frozen=True)
class AskRecord:
    """The observations of a question. `of` is the name of its prompt."""

    name: str
    of: str
    asked: Span
    replies: tuple[Reply, ...] = ()
    withdrawals: tuple[Span, ...] = ()
    runs: tuple[Span, ...] = ()
    reports: tuple[Span, ...] = ()  # that its tool may have run before a crash


def judge_asks(asks: Iterable[AskRecord], prompts: Iterable[Prompt], calls: Sequence[Call]) -> list[str]:
    """Check the questions of a history, and return one sentence per violation."""
    complaints: list[str] = []

    def expect(holds: bool, seen: str, rule: str) -> None:
        if not holds:
            complaints.append(f"question {ask.name} {seen}. The rule: {ASK_RULES[rule]}.")

    by_name = {p.name: p for p in prompts}
    for ask in asks:
        prompt = by_name[ask.of]
        here = [c for c in calls if c.session in (None, prompt.session)]
        cancels = [c for c in here if c.kind in ("cancel", "close")
                   or (c.kind in ("revoke", "stop") and c.of == prompt.name)]
        crashes = [c for c in here if c.kind == "crash"]
        settled = [s for s in (*cancels, *crashes, *prompt.starts, *prompt.ends) if certain(ask.asked, s)]
        ends = (*ask.replies, *ask.withdrawals)

        expect(any(possible(s, ask.asked) for s in prompt.starts), "was asked before its turn started", "ask")
        expect(not any(certain(prompt.accept, c, ask.asked) for c in cancels), "was asked after a cancel", "ask")
        expect(len(ends) < 2, f"has {len(ends)} ends", "end")
        expect(bool(ends) or not any(s.end < inf for s in settled), "is still open", "end")
        expect(not any(certain(s, end) for s in settled for end in ends), "ended too late", "end")
        expect(len(ask.runs) < 2, f"has a tool that started {len(ask.runs)} times", "run")
        allowed = [r for r in ask.replies if r.answer == "allow"]
        for run in ask.runs:
            expect(any(possible(r, run) for r in allowed), "has a tool that started without permission", "run")
            expect(not any(certain(s, run) for s in settled), "has a tool that started too late", "run")
        broken = [c for c in crashes if any(certain(run, c) for run in ask.runs)
                  and not any(certain(end, c) for end in prompt.ends)]
        expect(len(ask.reports) == bool(broken), f"has {len(ask.reports)} reports that its tool may have run", "unsure")
    return complaints
