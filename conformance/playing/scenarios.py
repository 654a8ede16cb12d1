"""The scenarios, each a script and the guarantee that it tests: every known flaw that clients can observe, and the
simplest case for each remaining guarantee.

The kit runs a scenario several times, because clients do not control who wins a race. On a server in this process it
runs under many schedules. The flaws that clients cannot observe are listed too, each with the reason.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from cancelmark.model.session import label

from .family import FAMILY_SCENARIOS, Scenario
from .script import SESSIONS

_s = Scenario.of
_SIXTEEN = (" + ".join(f"accept {label(n)} @{n}" for n in range(1, SESSIONS + 1)).replace(" @1 ", " ") + "; "
            + " + ".join(f"cancel @{n}" for n in range(2, SESSIONS + 1, 2)))

SCENARIOS: tuple[Scenario, ...] = (
    # lost cancels
    _s("cancel-before-entry-lost", "no-lost-cancel", "accept A, cancel"),
    _s("sibling-survives-cancel", "no-lost-cancel", "accept A, accept B, cancel"),
    _s("handoff-eats-cancel", "no-lost-cancel", "accept A; release, accept B, cancel"),
    _s("handoff-window-cancel-lost", "no-lost-cancel", "accept A; accept B; release, cancel"),
    _s("cancel-during-summary", "no-lost-cancel", "accept A; outgrow; cancel", "outgrow"),
    # cancels that reach too far
    _s("later-prompt-eats-cancel", "no-poisoning", "accept A, cancel, accept B", "messages"),
    _s("stale-flag-poisons-next", "no-poisoning", "accept A failing, cancel; accept B", "fail_early", "messages"),
    # no terminal event, or two
    _s("silent-cancel-on-entry", "some-terminal", "accept A, cancel"),
    _s("run-id-folded", "no-absorption", "accept A; accept B; again", "fold"),
    _s("run-id-dropped-silently", "some-terminal", "accept A; accept B; cancel"),
    _s("outer-event-suppressed", "some-terminal", "accept A; accept B; release; release"),
    _s("anonymous-end-suppressed", "some-terminal", "accept A anonymous; accept B; release; release", "fold"),
    _s("anonymous-drop-in-silence", "some-terminal", "accept A; accept B anonymous; cancel", "fold"),
    _s("shutdown-in-silence", "some-terminal", "accept A, shut", "shut"),
    _s("shutdown-silences-handoff", "some-terminal", "accept A; accept B; release, shut", "shut"),
    _s("popped-prompt-fails-early", "some-terminal", "accept A; accept B failing; release", "fail_early"),
    _s("continuation-ends-twice", "one-terminal", "accept A; accept B; release; outgrow; summarize + cancel",
       "outgrow"),
    _s("clear-races-handoff", "one-terminal", "accept A; accept B; release + clear; release", "clear"),
    _s("canceled-twice", "one-terminal", "accept A; accept B; clear + cancel", "clear"),
    # stranded
    _s("queue-stranded-by-error", "all-done", "accept A; accept B; fail"),
    _s("queue-stranded-by-cancel", "all-done", "accept A; cancel, accept B"),
    _s("stranded-after-the-end", "all-done", "accept A; accept B; release; fail, accept C"),
    # order and number
    _s("overtaken-in-the-window", "fifo", "accept A; accept B; release + accept C; release"),
    _s("queue-in-entry-order", "fifo", "accept A; accept B, accept C; release; release"),
    _s("a queue of two", "fifo", "accept A; accept B; accept C; release; release"),
    _s("late-cleanup-wipes-successor", "single-active", "accept A; release, accept B, accept C"),
    # attribution and timing of terminal events
    _s("event-waits-for-chain", "prompt-terminal", "accept A; accept B; release; release"),
    _s("neighbours-error", "attribution", "accept A; accept B; release; fail"),
    _s("a cancel when the summary is made", "attribution", "accept A; outgrow; summarize + cancel", "outgrow"),
    _s("a turn that goes on after another's cancel", "attribution",
       "accept A, cancel, accept B, outgrow B + summarize B", "outgrow"),
    # the simplest cases
    _s("a cancel of a running turn", "cancel-stops", "accept A; cancel"),
    _s("a cancel of the turn that follows", "cancel-stops", "accept A; release, accept B; cancel"),
    _s("a follow-up to a canceled turn", "no-late-fold", "accept A; cancel; accept B anonymous; again", "fold"),
    _s("a canceled queue", "queue-dropped", "accept A; accept B; cancel"),
    _s("a cleared queue goes on", "queue-dropped", "accept A; accept B; clear; release", "clear"),
    _s("the next prompt after a cancel", "no-poisoning", "accept A; cancel; accept B"),
    _s("a cancel of an idle session", "idle-cancel-noop", "cancel; accept A"),
    _s("a cancel beside another session", "isolation", "accept A; accept B @2; cancel"),
    _s("a cleared queue", "no-poisoning", "accept A; accept B; clear; accept C", "clear"),
    _s("a prompt after the close", "closed", "accept A; shut, accept B", "shut"),
    _s("canceled at once", "record", "accept A, cancel", "messages"),
    _s("a restart", "no-loss", "accept A; accept B; restart", "restart"),
    _s("an end while nobody watches", "delivery", "accept A; leave; release; return", "leave"),
    _s("an end before nobody watches", "delivery", "accept A; release; leave; return", "leave"),
    # more than two sessions, more than one client
    _s("sixteen sessions at once", "isolation", _SIXTEEN),
    _s("another client in the middle", "all-done", "accept A; accept B; attach; release", "attach"),
    _s("a cancel after another client has come", "no-lost-cancel", "accept A; accept B; attach; cancel", "attach"),
    _s("a session deleted", "some-terminal", "accept A; accept B; delete", "delete"),
    _s("a session deleted beside another", "isolation", "accept A; accept B @2; delete", "delete"),
    _s("nobody watches for long", "outlives-watcher", "accept A; accept B; leave long; return; release", "leave",
       "grace"),
    _s("slow-subscriber-loses-end", "delivery", "accept A; accept B; slow; release; release; return", "slow"),
    _s("a long answer to a slow subscriber", "delivery", "accept A; slow; flood; return", "slow"),
    # the same run id
    _s("sent again while it runs", "run-ids", "accept A; resend A; release", "run_ids"),
    _s("sent again when it is done", "run-ids", "accept A; release; resend A", "run_ids"),
    _s("sent twice at the same time", "run-ids", "accept A + resend A; release", "run_ids"),
    _s("sent again after a lost answer", "run-ids", "lose A, resend A; release; resend A", "run_ids", "lose"),
    _s("another prompt under its run id", "run-ids", "accept A; reuse A; release; reuse A", "run_ids"),
    _s("its run id in another session", "run-ids", "accept A; reuse A @2; release; reuse A @2", "run_ids"),
    *FAMILY_SCENARIOS,
)


def check_names(names: Iterable[str]) -> None:
    """Raise ValueError for an unknown scenario name."""
    known = [s.name for s in SCENARIOS]
    for name in names:
        if name not in known:
            near = get_close_matches(name, known)
            hint = f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(known)}"
            raise ValueError(f"there is no scenario {name!r}; {hint}")


_INSIDE = "it needs a caller inside the server's process; callers that send prompts over the wire are tracked"

HIDDEN: Mapping[str, str] = {
    "in-process-cancel-lost": _INSIDE,
    "resurrected-by-enqueue": _INSIDE,
    "in-process-prompt-poisoned": _INSIDE,
    "enqueued-after-handoff": _INSIDE,
    "overwritten-in-the-queue": _INSIDE,
    "two-in-process-actives": _INSIDE,
    "in-process-beside-tracked": _INSIDE,
    "failure-beats-cancel": "clients cannot tell whether a prompt failed just before the cancel or just after",
    "continuation-poisoned": "the prompt is dropped, but its terminal event reports success: clients observe a wrong "
                             "outcome instead (attribution)",
    "fold-into-stopping-turn": "the host turn is stopped before it passes the folded prompt to the language model; "
                               "clients observe a missing terminal event instead",
    "check-after-unlock": "clients cannot tell whether a prompt folded just before the cancel or just after",
    "ended-well-reported-canceled": "clients cannot tell whether a turn ended just before the close or the close "
                                    "stopped it",
}

UNSEEN: Mapping[tuple[str, str], str] = {
    ("no-poisoning", "r0"): "it needs 18 steps in one exact order",
    ("one-terminal", "r0"): "it needs 24 steps in one exact order",
    **{("one-terminal", f"r{n}"): _INSIDE for n in (1, 2, 3)},
    ("queue-dropped", "r0"): "clients cannot tell whether a prompt folded just before the clear or just after",
    ("queue-dropped", "r1"): _INSIDE,
    ("queue-dropped", "r2"): "clients cannot tell whether a prompt folded just before the cancel or just after",
    ("queue-dropped", "r3"): _INSIDE,
    ("queue-dropped", "r4"): "the close is still in progress; clients observe a missing terminal event instead",
}
"""Guarantees that a revision breaks without a named flaw, and why clients cannot observe it."""
