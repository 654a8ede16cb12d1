"""Every known bug of the original, by name: a description, the key steps of its trace, and the fix.

No trace is stored. `Flaw.trace` model-checks a revision for the shortest interleaving in which the key steps happen in
order and the property is violated. A test requires a trace in exactly the revisions that the flaw declares.
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
    says: str  # the flaw in one sentence
    breaks: str  # the property that its trace violates
    revisions: tuple[str, ...]
    keys: tuple[str, ...]  # key steps, see model/check/witness
    tale: str  # what happens, step by step
    ruled_out: str  # how the reference protocol rules it out
    repaired: str | None = None  # the revision whose commit fixed it
    victim: int | None = None  # for liveness: the seq of the stranded prompt

    def trace(self, revision: str) -> Trace | None:
        """A shortest trace of this flaw in a revision, or None if that revision does not have it."""
        return find_witness(self.behaviour(revision), BY_ID[self.breaks], self.keys, victim=self.victim)

    def behaviour(self, revision: str) -> Behaviour:
        """The model of that revision to search for the flaw."""
        return delivery_of(revision) if self.breaks == DELIVERY.id else DISPATCH[revision]

    @property
    def where(self) -> str:
        """The affected revisions for display: `r0–r3`, or `r0, r2`."""
        first, last = self.revisions[0], self.revisions[-1]
        if len(self.revisions) > 1 and self.revisions == _revisions(int(first[1:]), int(last[1:])):
            return f"{first}–{last}"
        return ", ".join(self.revisions)

    @property
    def latest(self) -> str:
        """The latest affected revision."""
        return self.revisions[-1]


# The revisions and the reference, each accepting every kind of prompt that a flaw's key steps can mention.
DISPATCH: Mapping[str, Behaviour] = {
    **{r.name: replace(r, accepts=(False, True, "in process")) for r in REVISIONS}, REFERENCE.name: REFERENCE}


def _revisions(first: int, last: int) -> tuple[str, ...]:
    return tuple(f"r{n}" for n in range(first, last + 1))


def _keys(text: str) -> tuple[str, ...]:
    return tuple(key.strip() for key in text.split(";"))


_TWO = "accept(A, run id); accept(B, run id); A active; B queued; "

FLAWS: Sequence[Flaw] = (
    # --- Lost cancels
    Flaw(
        "cancel-before-entry-lost", "A cancel that arrives before a prompt enters has no effect, and the prompt runs.",
        "no-lost-cancel", _revisions(0, 0), _keys("accept(A); cancel; A active"),
        "A is accepted, but its goroutine has not registered itself yet. A cancel looks for registered and queued "
        "prompts, finds none, and reports success. A then registers and runs to completion.",
        "A prompt has a seq as soon as it is accepted, and a cancel covers every seq assigned so far (R2, R12).",
        "r1"),
    Flaw(
        "in-process-cancel-lost", "A cancel misses an in-process prompt, and the prompt runs.",
        "no-lost-cancel", _revisions(0, 4),
        _keys("accept(A, in process); look(A); cancel; A active"),
        "An in-process caller has no accept handle. Between its busy check and its registration, a cancel finds no "
        "active prompt, no accepted prompt and an empty queue. It does nothing, and the prompt runs.",
        "In-process prompts are accepted too (R1), so a cancel reaches them."),
    Flaw(
        "sibling-survives-cancel", "A cancel that should cover two accepted prompts stops one, and the other runs.",
        "no-lost-cancel", _revisions(1, 1),
        _keys("accept(A); accept(B); cancel; A canceled_on_entry; B active"),
        "Two prompts are accepted, and one cancel sets the session's single flag. A enters first and consumes the "
        "flag. B then enters, finds no flag, and runs.",
        "The mark is compared and never consumed, so it covers any number of prompts (R4).", "r2"),
    Flaw(
        "handoff-eats-cancel", "A handoff clears a cancel that was meant for the next prompt.",
        "no-lost-cancel", _revisions(0, 1),
        _keys("accept(A); A active; A end_turn; accept(B); cancel; hand_off(A); B active"),
        "A's turn has ended and B is accepted when the cancel arrives, so the flag is meant for B. A's handoff clears "
        "the flag as routine cleanup, and B runs. (r0 has no flag; the same steps lose the cancel there.)",
        "The mark is never cleared, so no cleanup can clear it too early (R2).", "r2"),
    Flaw(
        "handoff-window-cancel-lost", "A cancel during a handoff finds no prompt, and the next prompt runs.",
        "no-lost-cancel", _revisions(0, 0),
        _keys("accept(A); accept(B); A active; B queued; A end_turn; pop(A); cancel; B active"),
        "The handoff has taken B out of the queue but has not registered it yet. A cancel at this point finds neither "
        "an active nor a queued prompt, and B runs.",
        "Leaving the queue and becoming active is a single row, so a prompt is always either queued or active (R11).",
        "r1"),
    Flaw(
        "check-after-unlock", "A queued prompt folds into a turn although it has just been canceled.",
        "no-lost-cancel", ("r0", "r2"),
        _keys("accept(A); accept(B); A active; B queued; step(A); cancel; B folded"),
        "A step of A's turn takes the queue's contents under the lock, then releases the lock. A cancel finds an empty "
        "queue and no accepted prompt, so it does not raise the mark. B is then checked against that old mark, and is "
        "folded.",
        "Taking prompts from the queue and folding them is a single step (R9).", "r3"),
    Flaw(
        "cancel-during-summary", "A cancel during compaction stops only the compaction, and the turn continues.",
        "no-lost-cancel", _revisions(0, 4),
        _keys("accept(A); A active; summarize(A); begin_summary(A); cancel; A queued; A active"),
        "The turn's conversation is being compacted when the cancel arrives. The cancel stops the compaction, which "
        "swallows the cancel and returns as if it had succeeded. The continuation is queued, started, and runs.",
        "A covered turn cannot requeue (R10)."),
    Flaw(
        "failure-beats-cancel", "A canceled prompt that cannot start is reported as an error.",
        "no-lost-cancel", _revisions(0, 4), _keys("accept(A, run id); cancel; A error"),
        "A is accepted and canceled, then fails before it enters. Its caller receives an error instead of the "
        "requested cancel, and no messages are written.",
        "A covered prompt that cannot start is canceled on entry; it never ends with an error (R8)."),
    Flaw(
        "resurrected-by-enqueue", "A prompt dropped by a cancel is written back into the queue, and runs.",
        "no-lost-cancel", _revisions(0, 4),
        _keys("accept(A, run id); accept(B, run id); accept(C, in process); A active; B queued; read_queue(C); "
              "cancel; enqueue(C); B active"),
        "An in-process prompt C reads the queue, [B], in order to append itself. A cancel drops B. C writes [B, C] "
        "back, and B runs, although its terminal event may already have been published.",
        "The queue is derived from the prompts' states; no code writes back a copy of it (R5)."),

    # --- Cancels that reach too far
    Flaw(
        "later-prompt-eats-cancel", "A prompt accepted after a cancel is canceled in place of an earlier one.",
        "no-poisoning", _revisions(1, 1),
        _keys("accept(A); cancel; accept(B); B canceled_on_entry; A active"),
        "A is accepted and canceled. B is accepted after the cancel but enters first, consumes the flag, and is "
        "canceled in A's place. A finds no flag and runs.",
        "The mark records how far the cancel reaches, and B's seq is above it (R4).", "r2"),
    Flaw(
        "stale-flag-poisons-next", "An unconsumed cancel cancels the session's next prompt.",
        "no-poisoning", _revisions(1, 1),
        _keys("accept(A); cancel; fail(A); accept(B); B canceled_on_entry"),
        "A is accepted and canceled, then fails before it enters. Its reservation is released, but the flag stays set "
        "and cancels the session's next prompt, however much later that arrives.",
        "A stale mark covers no later prompt, because later prompts have a higher seq (R2).", "r2"),
    Flaw(
        "in-process-prompt-poisoned", "An in-process prompt is dropped by an earlier cancel.",
        "no-poisoning", _revisions(1, 4),
        _keys("accept(A); A active; accept(B); cancel; accept(C, in process); C queued; C canceled"),
        "The cancel raises the mark because B is accepted. An in-process prompt C, which has no sequence number, is "
        "queued after the cancel. The next drain or handoff reads its number 0 as covered and drops it.",
        "Every prompt has a seq, so no special value 0 exists (R1)."),
    Flaw(
        "fold-into-stopping-turn", "A prompt accepted after a cancel folds into the stopping turn and ends with it.",
        "no-late-fold", _revisions(0, 4),
        _keys("accept(A); A active; cancel; accept(B); B queued; B folded"),
        "A has been asked to stop. B is accepted after the cancel, is queued behind A, and folds into A's turn at its "
        "next step. B is then canceled by a cancel that was sent before B was accepted.",
        "A covered turn folds no prompts (R9)."),
    Flaw(
        "continuation-poisoned", "A turn requeued after compaction loses its sequence number, and an old cancel drops "
        "it.",
        "no-poisoning", _revisions(2, 4),
        _keys("accept(A, run id); cancel; accept(B, run id); B active; summarize(B); B queued; hand_off(B); "
              "B canceled"),
        "A is accepted and canceled, but has not entered yet. B, accepted after the cancel, runs out of context and is "
        "requeued without its sequence number. The handoff treats it as covered by A's cancel and drops it.",
        "A requeued prompt keeps its seq (R10)."),

    # --- Missing and duplicate terminal events
    Flaw(
        "silent-cancel-on-entry", "A prompt canceled on entry has no terminal event.",
        "some-terminal", _revisions(1, 1),
        _keys("accept(A, run id); cancel; A canceled_on_entry; A done"),
        "A is canceled on entry: its messages are written, and Run returns before it has installed the defer that "
        "publishes. A client that waits for A's terminal event waits forever.",
        "Becoming done and publishing the terminal event is a single step (R14).", "r2", victim=1),
    Flaw(
        "run-id-folded", "A prompt with a run id that a client waits on is folded into another turn.",
        "no-absorption", _revisions(0, 3),
        _keys("accept(A, run id); accept(B, run id); A active; B queued; B folded"),
        "B has a run id, and a client waits on it. A step of A's turn folds B like any other follow-up, and no event "
        "ever carries B's run id.",
        "A prompt with a run id is never folded (R9).", "r4"),
    Flaw(
        "run-id-dropped-silently", "A cancel drops a queued prompt with a run id and publishes no event for it.",
        "some-terminal", _revisions(0, 3), _keys(_TWO + "cancel; B canceled"),
        "B, which has a run id, is queued behind A. A cancel empties the queue silently, and B's waiter is never "
        "notified.",
        "Dropping a queued prompt publishes its terminal event (R13, R14).", "r4", victim=2),
    Flaw(
        "outer-event-suppressed", "A prompt that finishes while another is queued gets no terminal event.",
        "some-terminal", _revisions(0, 3), _keys(_TWO + "A end_turn; B active"),
        "A's turn succeeds while B is queued behind it. Run calls itself for B and discards A's event, so that A is "
        "not reported with B's result. No code publishes A's event later.",
        "No prompt runs inside another prompt's call: each ends in a step of its own (R11, R14).", "r4", victim=1),
    Flaw(
        "anonymous-end-suppressed", "A prompt without a run id gets no terminal event if another is queued behind it.",
        "some-terminal", _revisions(0, 4),
        _keys("accept(A); accept(B, run id); A active; B queued; A end_turn; B active"),
        "The fix for outer-event-suppressed publishes A's event only if A has a run id. Without one, A still ends "
        "silently, and a client that watches the session mistakes B's terminal event for A's.",
        "Every prompt publishes its terminal event, with an empty run id if it has none (R14).", victim=1),
    Flaw(
        "anonymous-drop-in-silence", "A cancel drops a queued prompt without a run id and publishes no event for it.",
        "some-terminal", _revisions(0, 4),
        _keys("accept(A, run id); accept(B); A active; B queued; cancel; B canceled"),
        "A cancel drops B from the queue. B has no run id, so no terminal event is published: B simply disappears.",
        "Dropping any queued prompt publishes its terminal event (R13, R14).", victim=2),
    Flaw(
        "popped-prompt-fails-early", "A prompt that fails immediately after a handoff started it gets no terminal "
        "event.",
        "some-terminal", _revisions(0, 4),
        _keys(_TWO + "A end_turn; hand_off(A); fail(B)"),
        "A hands off to B, and B fails at once, before it has installed the defer that would publish its terminal "
        "event. In r4 the goroutine has a fallback, but that fallback belongs to A, and A's marker suppresses it.",
        "A prompt that fails ends with an error, and ending publishes its terminal event (R8, R14).", victim=2),
    Flaw(
        "shutdown-in-silence", "A prompt still in state accepted when the server closes gets no terminal event.",
        "some-terminal", ("r4",), _keys("accept(A, run id); close; A done"),
        "The server closes while A is in state accepted. A continues with a dead context and fails with "
        "context.Canceled. The server does not report that error, so it publishes nothing.",
        "Close cancels every session: A is canceled on entry, and its terminal event is published (R15).", victim=1),
    Flaw(
        "shutdown-silences-handoff", "The server closes during a handoff, and the next prompt gets no terminal event.",
        "some-terminal", ("r4",), _keys(_TWO + "A end_turn; hand_off(A); close; B done"),
        "A hands off to B, and the server closes before B has entered. B is neither queued nor registered, so the "
        "shutdown does not cancel it: B enters on a dead context, fails early, and publishes nothing.",
        "The handoff makes B active in the same step, so close asks it to stop (R11, R15).", victim=2),
    Flaw(
        "clear-races-handoff", "clear_queue reports a prompt as canceled, but the prompt then runs and ends again.",
        "one-terminal", ("r4",),
        _keys(_TWO + "A end_turn; clear_queue; hand_off(A); clear_queue…; B active; B end_turn; B published"),
        "clear_queue takes no lock. It reads [B], the handoff takes B out of the queue, and clear_queue publishes that "
        "B was canceled. B then runs and publishes a second terminal event.",
        "clear_queue is a single step, like every action that touches the queue (R13)."),
    Flaw(
        "canceled-twice", "clear_queue and a cancel both publish a terminal event for the same prompt.",
        "one-terminal", ("r4",), _keys(_TWO + "clear_queue; cancel; B canceled; clear_queue…"),
        "clear_queue reads [B] without a lock. A cancel empties the queue and publishes B's terminal event. "
        "clear_queue continues with its stale copy and publishes the event again. B never ran at all.",
        "clear_queue and cancel are a single step each; whichever comes second finds an empty queue (R12, R13)."),
    Flaw(
        "continuation-ends-twice", "A turn due to resume after compaction is canceled, and then ends a second time.",
        "one-terminal", ("r4",),
        _keys(_TWO + "A end_turn; B active; summarize(B); B queued; cancel; B canceled; B published"),
        "B runs out of context and is requeued. A cancel drops the continuation and publishes that B was canceled. The "
        "frame that requeued B finds the queue empty, concludes that its turn has finished, and publishes B's terminal "
        "event again.",
        "A prompt has a single state; once it is done, no pending call can end it again (R14)."),

    # --- Stranded prompts
    Flaw(
        "queue-stranded-by-error", "A turn ends with an error, and the prompts queued behind it never start.",
        "all-done", _revisions(0, 4), _keys(_TWO + "A error"),
        "A's turn ends with an error while B is queued behind it. The error path returns without checking the queue, "
        "and B waits until a client sends another prompt.",
        "The handoff is part of finish, whatever the outcome (R11).", victim=2),
    Flaw(
        "queue-stranded-by-cancel", "After a canceled turn ends, prompts queued behind it in the meantime never start.",
        "all-done", _revisions(0, 4),
        _keys("accept(A, run id); A active; cancel; accept(B, run id); B queued; A canceled"),
        "A is canceled. While A cleans up, B is accepted and queued behind it. A returns canceled, which skips the "
        "handoff, and B stays queued.",
        "The handoff is part of finish, whatever the outcome (R11).", victim=2),
    Flaw(
        "stranded-after-the-end", "A prompt sent right after a turn ends is queued behind that finished turn.",
        "all-done", _revisions(0, 4),
        _keys(_TWO + "A end_turn; B active; B error; B published; accept(C, run id); C queued"),
        "B's terminal event is published before its registration is deleted. A client that waits for the event and "
        "then sends C still finds the session busy: C is queued behind a finished turn, and stays there.",
        "Becoming done, publishing the terminal event and handing off is a single step, after which the session is "
        "free (R11, R14).",
        victim=3),
    Flaw(
        "enqueued-after-handoff", "A prompt is queued just after the last handoff, and nothing will start it.",
        "all-done", _revisions(0, 4),
        _keys("accept(A, run id); accept(B, in process); A active; look(B); A end_turn; hand_off(A); enqueue(B)"),
        "An in-process prompt B sees that the session is busy. Before B has queued itself, A's handoff finds an empty "
        "queue and A exits. B ends up in the queue of an idle session.",
        "The busy check and the queueing are a single row (R5).", victim=2),
    Flaw(
        "overwritten-in-the-queue", "A queued prompt is overwritten and lost.",
        "all-done", _revisions(0, 4),
        _keys("accept(A, run id); accept(B, run id); accept(C, in process); A active; read_queue(C); B queued; "
              "enqueue(C)"),
        "An in-process prompt C reads an empty queue. B, which was accepted and has a run id, is queued. C writes [C] "
        "over it. B is no longer in any queue, so nothing will ever run or end it.",
        "The queue is derived from the prompts' states, so nothing can overwrite it (R5).", victim=2),

    # --- Ordering and concurrency
    Flaw(
        "overtaken-in-the-window", "A later prompt starts ahead of a queued one while the session appears idle.",
        "fifo", _revisions(0, 4),
        _keys("accept(A); accept(B, run id); A active; B queued; leave(A); accept(C, run id); C active; hand_off(A); "
              "B accepted; B queued"),
        "A leaves active before it checks the queue. In that window C enters an apparently idle session and starts "
        "ahead of B. When the handoff gets to B, the session is busy, and B goes to the back of the queue.",
        "Finish and the handoff are a single step, so there is no window (R11)."),
    Flaw(
        "queue-in-entry-order", "The queue keeps the order of entry, and a later prompt starts first.",
        "fifo", _revisions(0, 4),
        _keys("accept(A); accept(B, run id); accept(C, run id); A active; C queued; B queued; A end_turn; C active"),
        "B is accepted before C, but C's goroutine enters first. The queue keeps the order of entry, so C runs first.",
        "The queue is ordered by seq (R5)."),
    Flaw(
        "two-in-process-actives", "Two in-process prompts run concurrently.",
        "single-active", _revisions(0, 4),
        _keys("accept(A, in process); accept(B, in process); look(A); look(B); A active; B active"),
        "Two in-process prompts both find the session idle before either has registered, and both run. The second "
        "registration overwrites the first, so a cancel reaches only one of them.",
        "The busy check and becoming active are a single row (R6)."),
    Flaw(
        "in-process-beside-tracked", "An in-process prompt runs concurrently with a client's prompt.",
        "single-active", _revisions(0, 4),
        _keys("accept(A); accept(B, in process); look(B); A active; B active"),
        "An in-process prompt finds the session idle. A client's prompt enters under the lock and becomes active. The "
        "in-process prompt takes no lock, overwrites the registration, and runs concurrently.",
        "Every caller's prompts enter in the same way (R3)."),
    Flaw(
        "late-cleanup-wipes-successor", "One turn's cleanup deregisters the next turn, and a third runs concurrently.",
        "single-active", _revisions(0, 4),
        _keys("accept(A); A active; leave(A); hand_off(A); accept(B); B active; clean_up(A); accept(C); C active"),
        "A has left active, and its handoff found an empty queue. B becomes active. A's deferred cleanup deletes the "
        "session's registration, which by now is B's: B can no longer be canceled, and C becomes active concurrently.",
        "There is no cleanup: being active is the prompt's own state, which only its own rows change (R11)."),

    # --- Attribution and delivery of terminal events
    Flaw(
        "event-waits-for-chain", "A prompt's terminal event waits until all prompts queued behind it have run.",
        "prompt-terminal", ("r4",),
        _keys(_TWO + "A end_turn; B active; B end_turn; A published"),
        "A's turn succeeds while B is queued behind it. A's event is buffered by the call that posted A, and that call "
        "returns only when B's turn, and every turn queued behind it, has ended.",
        "The step in which a prompt becomes done publishes its terminal event, before the next prompt starts "
        "(R11, R14)."),
    Flaw(
        "neighbours-error", "A prompt is reported with another prompt's error.",
        "attribution", ("r4",), _keys(_TWO + "A end_turn; B active; B error; return(A)"),
        "B runs inside the call chain that A started, and fails. The error propagates through A's goroutine, which "
        "reports it under A's run id, so A's caller is told that A failed.",
        "Each prompt has its own task, so one prompt's error cannot propagate through another (R11)."),
    Flaw(
        "ended-well-reported-canceled", "A prompt that completed successfully is reported as canceled.",
        "attribution", ("r4",),
        _keys("accept(A, run id); A active; A end_turn; close; A published"),
        "A's turn succeeds, and the server closes before A's event is published. The publisher checks its context "
        "instead of the turn, finds the context canceled, and reports a finished answer as canceled.",
        "The terminal event carries the outcome of the row that ended the prompt (R14)."),
    Flaw(
        "slow-subscriber-loses-end", "A slow subscriber never receives a prompt's terminal event.",
        "delivery", _revisions(0, 4), _keys("accept(A); accept(B); A done; B done"),
        "A subscriber is slow, and its buffer is full. The publisher waits briefly and then drops the event for that "
        "subscriber permanently. That subscriber never learns that B has ended.",
        "Terminal events are kept in a log that each subscriber reads from its own offset (R18).", victim=2),
)

FLAWS_BY_NAME = {flaw.name: flaw for flaw in FLAWS}
