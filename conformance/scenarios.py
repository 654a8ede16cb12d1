"""Things to try on a server, each a script and the guarantee that it tests: every known flaw that shows from outside,
and for each other guarantee the plainest case.

A scenario is tried several times, because who comes first is not for clients to decide; for a server in this process it
is tried under many schedules. The flaws that nobody outside can see are here too, each with the reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .script import Script, script


@dataclass(frozen=True)
class Scenario:
    """Something to try."""

    name: str  # of the flaw that it provokes, or what it shows
    guarantee: str
    text: str
    needs: frozenset[str] = field(default=frozenset())  # of what a server may offer, apart from being steered

    @property
    def script(self) -> Script:
        return script(self.text)


def _s(name: str, guarantee: str, text: str, *needs: str) -> Scenario:
    return Scenario(name, guarantee, text, frozenset(needs))


SCENARIOS: tuple[Scenario, ...] = (
    # a cancel that is lost
    _s("cancel-before-entry-lost", "no-lost-cancel", "accept A, cancel"),
    _s("sibling-survives-cancel", "no-lost-cancel", "accept A, accept B, cancel"),
    _s("handoff-eats-cancel", "no-lost-cancel", "accept A; release, accept B, cancel"),
    _s("handoff-window-cancel-lost", "no-lost-cancel", "accept A; accept B; release, cancel"),
    # a cancel that reaches too far
    _s("later-prompt-eats-cancel", "no-poisoning", "accept A, cancel, accept B", "messages"),
    # no end, or two
    _s("silent-cancel-on-entry", "some-terminal", "accept A, cancel"),
    _s("run-id-folded", "no-absorption", "accept A; accept B; again", "fold"),
    _s("run-id-dropped-silently", "some-terminal", "accept A; accept B; cancel"),
    _s("outer-event-suppressed", "some-terminal", "accept A; accept B; release; release"),
    _s("anonymous-end-suppressed", "some-terminal", "accept A anonymous; accept B; release; release", "fold"),
    _s("anonymous-drop-in-silence", "some-terminal", "accept A; accept B anonymous; cancel", "fold"),
    _s("shutdown-in-silence", "some-terminal", "accept A, shut", "shut"),
    _s("shutdown-silences-handoff", "some-terminal", "accept A; accept B; release, shut", "shut"),
    _s("clear-races-handoff", "one-terminal", "accept A; accept B; release + clear; release", "clear"),
    _s("canceled-twice", "one-terminal", "accept A; accept B; clear + cancel", "clear"),
    # stranded
    _s("queue-stranded-by-error", "all-done", "accept A; accept B; fail"),
    _s("queue-stranded-by-cancel", "all-done", "accept A; cancel, accept B"),
    _s("stranded-after-the-end", "all-done", "accept A; accept B; release; fail, accept C"),
    # order and number
    _s("overtaken-in-the-window", "fifo", "accept A; accept B; release + accept C; release"),
    _s("queue-in-entry-order", "fifo", "accept A; accept B, accept C; release; release"),
    _s("late-cleanup-wipes-successor", "single-active", "accept A; release, accept B, accept C"),
    # whose end it is, and when
    _s("event-waits-for-chain", "prompt-terminal", "accept A; accept B; release; release"),
    _s("neighbours-error", "attribution", "accept A; accept B; release; fail"),
    # the plainest cases
    _s("the next prompt after a cancel", "no-poisoning", "accept A; cancel; accept B"),
    _s("a cancel of an idle session", "idle-cancel-noop", "cancel; accept A"),
    _s("a cancel beside another session", "isolation", "accept A; accept B @2; cancel"),
    _s("a cleared queue", "no-poisoning", "accept A; accept B; clear; accept C", "clear"),
    _s("a prompt after the close", "closed", "accept A; shut, accept B", "shut"),
    _s("canceled at once", "record", "accept A, cancel", "messages"),
    _s("a restart", "no-loss", "accept A; accept B; restart", "restart"),
    _s("an end while nobody watches", "delivery", "accept A; leave; release; return", "leave"),
    _s("an end before nobody watches", "delivery", "accept A; release; leave; return", "leave"),
)

_INSIDE = "it takes a caller inside the server's process; whoever sends prompts over a wire is tracked"
_SUMMARY = "it takes a turn that outgrows its context and goes on after a summary, which the kit cannot bring about"
_FAILS = "it takes a prompt that fails before its turn starts, which the kit cannot bring about"

HIDDEN: Mapping[str, str] = {
    "in-process-cancel-lost": _INSIDE,
    "resurrected-by-enqueue": _INSIDE,
    "in-process-prompt-poisoned": _INSIDE,
    "enqueued-after-handoff": _INSIDE,
    "overwritten-in-the-queue": _INSIDE,
    "two-in-process-actives": _INSIDE,
    "in-process-beside-tracked": _INSIDE,
    "cancel-during-summary": _SUMMARY,
    "continuation-poisoned": _SUMMARY,
    "continuation-ends-twice": _SUMMARY,
    "failure-beats-cancel": _FAILS,
    "stale-flag-poisons-next": _FAILS,
    "popped-prompt-fails-early": _FAILS,
    "fold-into-stopping-turn": "the turn that takes the prompt in is stopped before it tells the language model; what "
                               "shows is that the prompt has no end",
    "check-after-unlock": "nobody outside can tell whether a prompt was taken in just before the cancel or just after",
    "ended-well-reported-canceled": "nobody outside can tell whether a turn ended just before the close or was stopped "
                                    "by it",
    "slow-subscriber-loses-end": "the kit's subscriber may go away and come back, but it is never slow",
}

UNSEEN: Mapping[tuple[str, str], str] = {
    ("attribution", "r0"): "it takes 21 steps in one exact order",
    ("attribution", "r1"): f"{_SUMMARY}; or else {_FAILS}",
    ("attribution", "r2"): f"{_SUMMARY}; or else {_FAILS}",
    ("attribution", "r3"): f"{_SUMMARY}; or else {_FAILS}",
    ("one-terminal", "r0"): "it takes 24 steps in one exact order",
}
"""Where a revision breaks a guarantee without a flaw that has a name, and why that does not show from outside."""
