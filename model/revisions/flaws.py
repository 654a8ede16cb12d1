"""Every known bug of the original, by name: a story, the key steps that the model finds a trace for, and the repair.

Traces are never stored. `Flaw.trace` searches the revision for the shortest interleaving in which the key steps happen
in order and the property breaks; a test demands that it is found in exactly the revisions that the flaw declares.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..check.witness import find_witness
from ..delivery import DELIVERY, delivery_of
from ..properties import PROPERTIES
from ..protocol import REFERENCE, Behaviour
from ..revisions import REVISIONS
from ..trace import Trace

BY_ID = {p.id: p for p in (*PROPERTIES, DELIVERY)}


@dataclass(frozen=True)
class Flaw:
    """A named bug."""

    name: str
    says: str  # in one sentence
    breaks: str  # the property that its trace breaks
    revisions: tuple[str, ...]
    keys: tuple[str, ...]  # key steps, see model/check/witness
    tale: str
    ruled_out: str  # what in the reference protocol rules it out
    repaired: str | None = None  # the revision whose commit repaired it
    victim: int | None = None  # for liveness: the seq of the prompt that is left behind

    def trace(self, revision: str) -> Trace | None:
        """A shortest trace of this flaw in a revision, or None if it is not there."""
        return find_witness(self.behaviour(revision), BY_ID[self.breaks], self.keys, victim=self.victim)

    def behaviour(self, revision: str) -> Behaviour:
        """The model of that revision in which the flaw is to be looked for."""
        return delivery_of(revision) if self.breaks == DELIVERY.id else DISPATCH[revision]

    @property
    def where(self) -> str:
        """The revisions that have it, as people write it: `r0–r3`, or `r0, r2`."""
        first, last = self.revisions[0], self.revisions[-1]
        if len(self.revisions) > 1 and self.revisions == _revisions(int(first[1:]), int(last[1:])):
            return f"{first}–{last}"
        return ", ".join(self.revisions)

    @property
    def latest(self) -> str:
        """The latest revision that has it."""
        return self.revisions[-1]


# The revisions and the reference, each accepting every kind of prompt that a story may mention.
DISPATCH: Mapping[str, Behaviour] = {
    **{r.name: replace(r, accepts=(False, True, "in process")) for r in REVISIONS}, REFERENCE.name: REFERENCE}


def _revisions(first: int, last: int) -> tuple[str, ...]:
    return tuple(f"r{n}" for n in range(first, last + 1))


def _keys(text: str) -> tuple[str, ...]:
    return tuple(key.strip() for key in text.split(";"))


_TWO = "accept(A, run id); accept(B, run id); A active; B queued; "

FLAWS: Sequence[Flaw] = (
    # --- a cancel that is lost
    Flaw(
        "cancel-before-entry-lost", "A cancel that comes before a prompt enters finds nobody, and the prompt runs.",
        "no-lost-cancel", _revisions(0, 0), _keys("accept(A); cancel; A active"),
        "A is accepted and its goroutine has not got as far as registering itself. A cancel looks for something that "
        "is registered or queued, finds nothing, and reports success. A then registers and runs to the end.",
        "A prompt has a seq from acceptance on, and a cancel covers every seq given out so far (R2, R12).", "r1"),
    Flaw(
        "in-process-cancel-lost", "A cancel does not find a prompt from inside the process, and the prompt runs.",
        "no-lost-cancel", _revisions(0, 4),
        _keys("accept(A, in process); look(A); cancel; A active"),
        "A caller inside the process has no accept handle. Between its busy check and its registration a cancel finds "
        "nobody active, nobody accepted and an empty queue, and does nothing; the prompt runs.",
        "There are no untracked prompts: in-process callers accept too (R1)."),
    Flaw(
        "sibling-survives-cancel", "A cancel that should reach two accepted prompts stops one, and the other runs.",
        "no-lost-cancel", _revisions(1, 1),
        _keys("accept(A); accept(B); cancel; A canceled_on_entry; B active"),
        "Two prompts are accepted, one cancel sets the session's one flag. A enters first and consumes it; B enters, "
        "finds no flag and runs.",
        "A mark is compared and never consumed, so it covers any number of prompts (R4).", "r2"),
    Flaw(
        "handoff-eats-cancel", "A handoff clears a cancel that was meant for the next prompt.",
        "no-lost-cancel", _revisions(0, 1),
        _keys("accept(A); A active; A end_turn; accept(B); cancel; hand_off(A); B active"),
        "A's turn has ended and B is accepted when the cancel comes: the flag is meant for B. A's handoff clears the "
        "flag as a matter of housekeeping, and B runs. (r0 has no flag to lose; the same steps lose the cancel there.)",
        "The mark is never cleared, so there is no housekeeping that could clear it too early (R2).", "r2"),
    Flaw(
        "handoff-window-cancel-lost", "A cancel in the middle of a handoff finds nobody, and the next prompt runs.",
        "no-lost-cancel", _revisions(0, 0),
        _keys("accept(A); accept(B); A active; B queued; A end_turn; pop(A); cancel; B active"),
        "The handoff has taken B out of the queue and has not registered it yet. A cancel in between finds neither an "
        "active nor a queued prompt, and B runs.",
        "Leaving the queue and becoming active is one row (R11): a prompt is always either queued or active.", "r1"),
    Flaw(
        "check-after-unlock", "A queued prompt folds into a turn although a cancel has just reached it.",
        "no-lost-cancel", ("r0", "r2"),
        _keys("accept(A); accept(B); A active; B queued; step(A); cancel; B folded"),
        "A step of A's turn takes the queue under the lock and lets go of it. A cancel finds an empty queue and nobody "
        "accepted, so it raises no mark. B is then checked against a mark that was not raised for it, and folded.",
        "Taking prompts from the queue and folding them is one step (R9).", "r3"),
    Flaw(
        "cancel-during-summary", "A cancel in the middle of a summary stops the summary, and the turn goes on.",
        "no-lost-cancel", _revisions(0, 4),
        _keys("accept(A); A active; summarize(A); begin_summary(A); cancel; A queued; A active"),
        "The turn is being summarized when the cancel comes. The cancel stops the summary, which swallows it and "
        "returns as if all were well; the continuation is queued, handed off to, and runs.",
        "A turn that is covered cannot requeue (R10)."),
    Flaw(
        "failure-beats-cancel", "A canceled prompt that cannot start is reported as an error.",
        "no-lost-cancel", _revisions(0, 4), _keys("accept(A, run id); cancel; A error"),
        "A is accepted and canceled, and then fails before it could enter. Its caller is told of an error instead of "
        "the cancel that it asked for, and no messages are written.",
        "A covered prompt that cannot start is canceled on entry, never an error (R8)."),
    Flaw(
        "resurrected-by-enqueue", "A prompt that a cancel has dropped is written back into the queue, and runs.",
        "no-lost-cancel", _revisions(0, 4),
        _keys("accept(A, run id); accept(B, run id); accept(C, in process); A active; B queued; read_queue(C); "
              "cancel; enqueue(C); B active"),
        "An in-process prompt C reads the queue, [B], to put itself behind it. A cancel drops B. C writes [B, C] back, "
        "and B, whose end may already have been published, runs.",
        "The queue is derived from the prompts' states; nobody writes back a copy of it (R5)."),

    # --- a cancel that reaches too far
    Flaw(
        "later-prompt-eats-cancel", "A prompt accepted after a cancel is canceled in place of an earlier one.",
        "no-poisoning", _revisions(1, 1),
        _keys("accept(A); cancel; accept(B); B canceled_on_entry; A active"),
        "A is accepted and canceled. B is accepted after the cancel and enters first: it consumes the flag and is "
        "canceled in A's place. A finds no flag and runs.",
        "The mark says how far it reaches: B's seq is above it (R4).", "r2"),
    Flaw(
        "stale-flag-poisons-next", "A cancel that nobody consumed cancels the next prompt of the session.",
        "no-poisoning", _revisions(1, 1),
        _keys("accept(A); cancel; fail(A); accept(B); B canceled_on_entry"),
        "A is accepted and canceled, then fails before it enters. Its reservation is given back but the flag stays, "
        "and cancels the next prompt of the session, whenever that comes.",
        "A stale mark catches nobody, because later prompts have a higher seq (R2).", "r2"),
    Flaw(
        "in-process-prompt-poisoned", "A prompt without a number is dropped by a cancel that came before it.",
        "no-poisoning", _revisions(1, 4),
        _keys("accept(A); A active; accept(B); cancel; accept(C, in process); C queued; C canceled"),
        "The cancel raises the mark because B is accepted. An in-process prompt C, which has no sequence, is queued "
        "after the cancel. The next drain or handoff takes its 0 for covered and drops it.",
        "Every prompt has a seq; there is no 0 that means anything else (R1)."),
    Flaw(
        "fold-into-stopping-turn", "A prompt accepted after a cancel folds into the stopping turn, and dies with it.",
        "no-late-fold", _revisions(0, 4),
        _keys("accept(A); A active; cancel; accept(B); B queued; B folded"),
        "A has been asked to stop. B is accepted after the cancel, is queued behind A, and folds into A's turn at its "
        "next step: it dies with a cancel that came before it.",
        "A turn that is covered folds nothing (R9)."),
    Flaw(
        "continuation-poisoned", "A turn that goes on after a summary loses its number, and an old cancel drops it.",
        "no-poisoning", _revisions(2, 4),
        _keys("accept(A, run id); cancel; accept(B, run id); B active; summarize(B); B queued; hand_off(B); "
              "B canceled"),
        "A is accepted, canceled, and has not entered yet. B, accepted after the cancel, runs out of context and is "
        "queued again to go on, without its sequence. The handoff takes it for covered by A's cancel and drops it.",
        "A requeued prompt keeps its seq (R10)."),

    # --- no end, or two
    Flaw(
        "silent-cancel-on-entry", "A prompt canceled on entry has no terminal event.",
        "some-terminal", _revisions(1, 1),
        _keys("accept(A, run id); cancel; A canceled_on_entry; A done"),
        "A is canceled on entry: its messages are written and Run returns before the defer that publishes was "
        "installed. Whoever waits for A's end waits for ever.",
        "Done and the terminal event are one step (R14).", "r2", victim=1),
    Flaw(
        "run-id-folded", "A prompt that somebody waits for by its run id folds into another turn.",
        "no-absorption", _revisions(0, 3),
        _keys("accept(A, run id); accept(B, run id); A active; B queued; B folded"),
        "B has a run id and somebody waits for it. A step of A's turn folds B in like any other follow-up; no event "
        "ever carries B's id.",
        "A prompt with a run id is never folded (R9).", "r4"),
    Flaw(
        "run-id-dropped-silently", "A cancel drops a queued prompt with a run id, and no event says so.",
        "some-terminal", _revisions(0, 3), _keys(_TWO + "cancel; B canceled"),
        "B, with a run id, is queued behind A. A cancel empties the queue without a word; B's waiter is never told.",
        "Dropping a queued prompt publishes its end (R13, R14).", "r4", victim=2),
    Flaw(
        "outer-event-suppressed", "A prompt that ends with another queued behind it has no terminal event.",
        "some-terminal", _revisions(0, 3), _keys(_TWO + "A end_turn; B active"),
        "A's turn ends well with B queued behind it. Run calls itself for B and gives up A's own event, so that it is "
        "not published with B's result; nobody publishes it later.",
        "No prompt runs inside another's call: each ends in a step of its own (R11, R14).", "r4", victim=1),
    Flaw(
        "anonymous-end-suppressed", "A prompt without a run id has no terminal event if another is queued behind it.",
        "some-terminal", _revisions(0, 4),
        _keys("accept(A); accept(B, run id); A active; B queued; A end_turn; B active"),
        "The repair of outer-event-suppressed publishes A's own event only if A has a run id. Without one A still ends "
        "in silence, and a client that watches the session takes B's end for A's.",
        "Every prompt publishes its end, with an empty run id if it has none (R14).", victim=1),
    Flaw(
        "anonymous-drop-in-silence", "A cancel drops a queued prompt without a run id, and no event says so.",
        "some-terminal", _revisions(0, 4),
        _keys("accept(A, run id); accept(B); A active; B queued; cancel; B canceled"),
        "A cancel drops B from the queue. B has no run id, so no end is published for it: it is simply gone.",
        "Dropping a queued prompt publishes its end, whoever it is (R13, R14).", victim=2),
    Flaw(
        "popped-prompt-fails-early", "A prompt that fails right after the handoff to it has no terminal event.",
        "some-terminal", _revisions(0, 4),
        _keys(_TWO + "A end_turn; hand_off(A); fail(B)"),
        "A hands off to B, and B fails before its turn can do anything: the defer that would publish B's end is not "
        "installed yet. In r4 the goroutine has a fallback, but it belongs to A, and A's marker suppresses it.",
        "A prompt that fails is done with an error, and that publishes its end (R8, R14).", victim=2),
    Flaw(
        "shutdown-in-silence", "A prompt that is accepted when the server closes has no terminal event.",
        "some-terminal", ("r4",), _keys("accept(A, run id); close; A done"),
        "The server closes while A is accepted. A goes on with a dead context, fails with context.Canceled, which "
        "counts as nothing to report, and publishes nothing.",
        "Close is a cancel for every session: A is canceled on entry and its end is published (R15).", victim=1),
    Flaw(
        "shutdown-silences-handoff", "The server closes in the middle of a handoff: the next prompt has no end.",
        "some-terminal", ("r4",), _keys(_TWO + "A end_turn; hand_off(A); close; B done"),
        "A hands off to B; the server closes before B has entered. B is in no queue that shutdown could empty and is "
        "not registered, so nobody cancels it: it enters on a dead context, fails early, and publishes nothing.",
        "The handoff makes B active in the same step, and close asks it to stop (R11, R15).", victim=2),
    Flaw(
        "clear-races-handoff", "clear_queue reports a prompt as canceled, and the prompt runs and ends again.",
        "one-terminal", ("r4",),
        _keys(_TWO + "A end_turn; clear_queue; hand_off(A); clear_queue…; B active; B end_turn; B published"),
        "clear_queue takes no lock. It reads [B]; the handoff takes B out of the queue; clear_queue publishes that B "
        "was canceled; B runs and publishes its end again.",
        "clear_queue is one step, like everything that touches the queue (R13)."),
    Flaw(
        "canceled-twice", "clear_queue and a cancel both report the end of the same prompt.",
        "one-terminal", ("r4",), _keys(_TWO + "clear_queue; cancel; B canceled; clear_queue…"),
        "clear_queue reads [B] without a lock. A cancel empties the queue and publishes B's end; clear_queue goes on "
        "with what it read and publishes it again. B never ran at all.",
        "clear_queue and cancel are one step each; the second finds an empty queue (R12, R13)."),
    Flaw(
        "continuation-ends-twice", "A turn that is to go on after a summary is canceled, and then ends once more.",
        "one-terminal", ("r4",),
        _keys(_TWO + "A end_turn; B active; summarize(B); B queued; cancel; B canceled; B published"),
        "B runs out of context and is queued again. A cancel drops the continuation and publishes that B was canceled. "
        "The frame that queued it finds the queue empty, takes its own turn for finished, and publishes B's end again.",
        "A prompt has one state; when it is done, no call is left that still means to end it (R14)."),

    # --- stranded
    Flaw(
        "queue-stranded-by-error", "A turn ends in an error, and what is queued behind it never starts.",
        "all-done", _revisions(0, 4), _keys(_TWO + "A error"),
        "A's turn ends in an error with B queued behind it. The error path returns without looking at the queue, and "
        "B waits until somebody sends another prompt.",
        "The handoff is part of finish, however the turn ended (R11).", victim=2),
    Flaw(
        "queue-stranded-by-cancel", "A canceled turn ends, and what was queued behind it since never starts.",
        "all-done", _revisions(0, 4),
        _keys("accept(A, run id); A active; cancel; accept(B, run id); B queued; A canceled"),
        "A is canceled. While it cleans up, B is accepted after the cancel and queued behind it. A returns canceled, "
        "which hands off to nobody, and B stays.",
        "The handoff is part of finish, however the turn ended (R11).", victim=2),
    Flaw(
        "stranded-after-the-end", "A prompt sent right after an end is queued behind a turn that is over.",
        "all-done", _revisions(0, 4),
        _keys(_TWO + "A end_turn; B active; B error; B published; accept(C, run id); C queued"),
        "B's end is published before its registration is deleted. A client that waits for the end and then sends C "
        "still finds the session busy: C is queued behind a turn that is over, and stays.",
        "Done, the terminal event and the handoff are one step; after the end the session is free (R11, R14).",
        victim=3),
    Flaw(
        "enqueued-after-handoff", "A prompt is queued just after the handoff: nobody is left to start it.",
        "all-done", _revisions(0, 4),
        _keys("accept(A, run id); accept(B, in process); A active; look(B); A end_turn; hand_off(A); enqueue(B)"),
        "An in-process prompt B sees that the session is busy. Before it has put itself into the queue, A hands off "
        "to nobody and is gone. B lands in the queue of an idle session.",
        "Asking whether the session is busy and queueing is one row (R5).", victim=2),
    Flaw(
        "overwritten-in-the-queue", "A queued prompt is written over, and nobody knows of it any more.",
        "all-done", _revisions(0, 4),
        _keys("accept(A, run id); accept(B, run id); accept(C, in process); A active; read_queue(C); B queued; "
              "enqueue(C)"),
        "An in-process prompt C reads an empty queue. B, which was accepted and has a run id, is queued. C writes [C]: "
        "B is in no queue any more, and nobody will ever run or end it.",
        "The queue is derived from the prompts' states; nothing can be written over it (R5).", victim=2),

    # --- order and number
    Flaw(
        "overtaken-in-the-window", "A later prompt starts past a queued one while the session looks idle.",
        "fifo", _revisions(0, 4),
        _keys("accept(A); accept(B, run id); A active; B queued; leave(A); accept(C, run id); C active; hand_off(A); "
              "B accepted; B queued"),
        "A leaves active before it looks at the queue. In that window C enters an apparently idle session and starts, "
        "past B; when the handoff gets to B, the session is busy and B goes to the back.",
        "Finish and the handoff are one step: there is no window (R11)."),
    Flaw(
        "queue-in-entry-order", "The queue keeps the order of entry, and a later prompt starts first.",
        "fifo", _revisions(0, 4),
        _keys("accept(A); accept(B, run id); accept(C, run id); A active; C queued; B queued; A end_turn; C active"),
        "B is accepted before C, but C's goroutine enters first. The queue keeps the order of entry, and C runs first.",
        "The queue is ordered by seq (R5)."),
    Flaw(
        "two-in-process-actives", "Two prompts from inside the process run at the same time.",
        "single-active", _revisions(0, 4),
        _keys("accept(A, in process); accept(B, in process); look(A); look(B); A active; B active"),
        "Two in-process prompts both find the session idle before either has registered, and both run. The second "
        "registration overwrites the first, so that a cancel reaches only one of them.",
        "Asking whether the session is busy and becoming active is one row (R6)."),
    Flaw(
        "in-process-beside-tracked", "A prompt from inside the process runs beside a posted one.",
        "single-active", _revisions(0, 4),
        _keys("accept(A); accept(B, in process); look(B); A active; B active"),
        "An in-process prompt finds the session idle. A posted prompt enters under the lock and becomes active; the "
        "in-process one takes no lock, registers over it and runs beside it.",
        "There is one way in, for every caller (R3)."),
    Flaw(
        "late-cleanup-wipes-successor", "The cleanup of one turn wipes out the next, and a third runs beside it.",
        "single-active", _revisions(0, 4),
        _keys("accept(A); A active; leave(A); hand_off(A); accept(B); B active; clean_up(A); accept(C); C active"),
        "A has left active and handed off to nobody. B becomes active. A's deferred cleanup deletes the session's "
        "registration, which is B's by now: B can no longer be canceled, and C becomes active beside it.",
        "There is no cleanup: who is active is the prompt's own state, which only its own rows change (R11)."),

    # --- whose end it is, and when
    Flaw(
        "event-waits-for-chain", "A terminal event waits until every turn queued behind it has ended.",
        "prompt-terminal", ("r4",),
        _keys(_TWO + "A end_turn; B active; B end_turn; A published"),
        "A's turn ends well with B queued behind it. A's event is buffered by the call that posted it, and that call "
        "returns only when B's turn, and every turn queued behind it, has ended.",
        "The terminal event is published in the step in which the prompt is done, before the next starts (R11, R14)."),
    Flaw(
        "neighbours-error", "A prompt is reported with the error of another.",
        "attribution", ("r4",), _keys(_TWO + "A end_turn; B active; B error; return(A)"),
        "B runs inside the call chain that A started, and fails. The error comes back through A's goroutine, which "
        "reports it under A's run id: A's caller is told that A failed.",
        "Each prompt has its own task; nothing of one comes back through another (R11)."),
    Flaw(
        "ended-well-reported-canceled", "A prompt that ended well is reported as canceled.",
        "attribution", ("r4",),
        _keys("accept(A, run id); A active; A end_turn; close; A published"),
        "A's turn ends well, and before its event is published the server closes. The publisher looks at its context "
        "instead of at the turn, finds it canceled, and reports a finished answer as canceled.",
        "The terminal event is published with the outcome of the row that ended the prompt (R14)."),
    Flaw(
        "slow-subscriber-loses-end", "A slow subscriber never sees the end of a prompt.",
        "delivery", _revisions(0, 4), _keys("accept(A); accept(B); A done; B done"),
        "A subscriber is slow and its buffer is full. The publisher waits a moment and then drops the event for that "
        "subscriber, for ever: whoever waits for B's end there waits in vain.",
        "Terminal events are kept in a log that each subscriber reads from its own place (R18).", victim=2),
)

FLAWS_BY_NAME = {flaw.name: flaw for flaw in FLAWS}
