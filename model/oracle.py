"""The simple oracle: from a history of calls, what may each prompt's end be?

A history says of each thing in which `Span` of time it took effect: a caller knows when a call began and when it
returned, and no more. Where spans overlap, either order is possible; a sequential history is one whose spans do not.
Each prompt is judged by itself, in whatever company it may have been: its session may always have been busy.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise
from math import inf
from typing import Literal

CallKind = Literal["cancel", "clear_queue", "close", "crash", "revoke", "stop", "hold", "resume", "interrupt"]

RULES = {
    "start": "no start after a cancel since its acceptance, nor after a clear_queue that found it queued, nor while it "
             "waits in a session that is held",
    "end_turn": "only a running prompt ends its turn, and a crash ends that with an error",
    "error": "a prompt fails while it runs, or before it enters if there was no cancel since its acceptance",
    "canceled": "by a cancel since its acceptance and its last start, or by a clear_queue while it is queued, or by a "
                "later interrupt while it runs",
    "folded": "only from the queue, without a run id, if there was no cancel since its acceptance and nobody holds the "
              "session",
}


@dataclass(frozen=True)
class Span:
    """A stretch of time in which something took effect. What is seen at t may have done so before: its span ends at t.
    The span of a call that has not returned ends at `inf`."""

    begin: float
    end: float


@dataclass(frozen=True)
class Call(Span):
    """A call in one session or (None) in all. A close is a cancel too; a crash lasts until the server is back. A revoke
    and a stop are cancels of one prompt, `of` that name. An interrupt is the acceptance of the prompt of that name, and
    takes effect at its entry, some time later."""

    kind: CallKind
    session: str | None = None
    of: str = ""


@dataclass(frozen=True)
class End(Span):
    """A terminal event, with one of the four outcomes."""

    outcome: str


@dataclass(frozen=True)
class Prompt:
    """What was seen of an accepted prompt. `enter` is None if nobody saw when it entered its session."""

    name: str
    accept: Span
    run_id: bool = False
    enter: Span | None = None
    starts: tuple[Span, ...] = ()
    ends: tuple[End, ...] = ()
    session: str = ""

    @property
    def moments(self) -> list[Span]:
        """Acceptance, entry (if unknown, acceptance again), starts, end (or never): they take effect in this order."""
        return [self.accept, self.enter or self.accept, *self.starts, *(self.ends[:1] or [Span(inf, inf)])]


def certain(*spans: Span) -> bool:
    """Whether they took effect in this order for certain."""
    return all(one.end < following.begin for one, following in pairwise(spans))


def possible(*spans: Span) -> bool:
    """Whether they may have taken effect in this order."""
    return all(one.begin <= later.end for one, later in combinations(spans, 2))


def may_end(prompt: Prompt, calls: Iterable[Call]) -> frozenset[str]:
    """The outcomes that `prompt` may have where it ended; if it has not ended, those that need no further call."""
    return _may_follow(prompt, calls, len(prompt.starts)) - {"start"}


def judge(prompts: Iterable[Prompt], calls: Sequence[Call], complete: bool = True) -> list[str]:
    """What is wrong with a history, a sentence each. In a `complete` one every prompt has had the time to end."""
    complaints: list[str] = []

    def expect(holds: bool, seen: str, wanted: str, rule: str) -> None:
        if not holds:
            complaints.append(f"{p.name} {seen}, but {wanted}. The rule: {rule}.")

    for p in prompts:
        ends = [e.outcome for e in p.ends]
        owed = complete and not _may_be_parked(p, calls)
        expect(len(ends) == 1 or not (ends or owed), f"has {len(ends)} ends", "must have exactly one",
               "each prompt ends exactly once")
        expect(not any(certain(c, p.accept) and _shut(c, p, calls) for c in calls), "was accepted after a close",
               "had to be refused", "a closed server accepts nothing until a restart")
        expect(in_order := possible(*p.moments), "was seen out of order", "the order is accept, enter, starts, end",
               "nothing happens to a prompt before its acceptance or after its end")
        for n, what in enumerate(["start"] * len(p.starts) + ends[:1] if in_order else []):
            may = _may_follow(p, calls, n)
            expect(what in may, tell_event(what, n), tell_allowed(may), RULES.get(what, "there is no such outcome"))
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
    """Whether the prompt cannot have been accepted after `close`: no restart may have come in between."""
    return close.kind == "close" and not any(c.kind == "crash" and possible(close, c, prompt.accept) for c in calls)


def _may_be_parked(prompt: Prompt, calls: Iterable[Call]) -> bool:
    """Whether the prompt may still wait in a session that is held: after a hold there was no resume for certain."""
    here = [c for c in calls if c.session in (None, prompt.session)]
    resumes = [c for c in here if c.kind == "resume"]
    return any(c.kind == "hold" and not any(certain(c, r) for r in resumes) for c in here)


def _resumed(hold: Call, then: Span, calls: Iterable[Call]) -> bool:
    """Whether somebody may have resumed the session between the hold and then."""
    return any(c.kind == "resume" and possible(hold, c, then) for c in calls)


def _may_follow(prompt: Prompt, calls: Iterable[Call], starts: int) -> frozenset[str]:
    """What may have come after that many starts: one more start, or an end with one of the four outcomes."""
    begins = accumulate((m.begin for m in prompt.moments), max)  # nothing takes effect before what it follows
    ends = accumulate((m.end for m in reversed(prompt.moments)), min)  # nor after what follows it
    accept, enter, *later = map(Span, begins, reversed([*ends]))
    last, then = [accept, *later][starts:starts + 2]
    calls = [c for c in calls if c.session in (None, prompt.session)]
    cancels = [c for c in calls if c.kind in ("cancel", "close")
               or (c.kind in ("revoke", "stop") and c.of == prompt.name)]
    drops = [*cancels, *(c for c in calls if c.kind == "clear_queue")]
    interrupts = [Span(c.begin, inf) for c in calls if c.kind == "interrupt" and c.of != prompt.name]
    crashes = sorted((c for c in calls if c.kind == "crash" and certain(last, c, then)), key=lambda c: c.end)
    # A prompt that entered and did not start, or started and outlived a crash, can only have been in the queue then.
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
