"""The guarantees by example: for each a history that the model is run through, with the ends that it must come to.

They are drawn in specs/diagrams and shown beside the rules. A call that the protocol does not allow, or an end that
differs from what is said here, is an error: nobody can draw what does not happen.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from .lifecycle import Outcome
from .protocol import FAMILY, REFERENCE, Protocol
from .session import label
from .trace import Trace, replay


@dataclass(frozen=True)
class Example:
    """A history, the rule that it is an example of, and the outcome of each of its prompts."""

    name: str
    title: str
    rule: str
    says: str
    calls: tuple[str, ...]
    ends: Mapping[str, Outcome]
    sessions: int = 1
    protocol: Protocol = REFERENCE

    @cached_property
    def trace(self) -> Trace:
        """The history, run."""
        trace = replay(self.protocol, self.calls, self.sessions)
        ends = {label(p.seq): p.outcome for p in trace.states[-1].prompts}
        if ends != self.ends:
            raise ValueError(f"example {self.name} ends with {ends}, not with {dict(self.ends)}")
        return trace


_CANCELED, _ERROR, _END_TURN, _FOLDED = Outcome.CANCELED, Outcome.ERROR, Outcome.END_TURN, Outcome.FOLDED

EXAMPLES = (
    Example(
        "cancel-on-entry", "Cancel on entry", "R4",
        "A cancel that comes before the prompt has entered is not lost: the mark waits for it.",
        ("accept(A, run id)", "cancel", "enter(A)", "settle(A)"),
        {"A": _CANCELED}),
    Example(
        "cancel-with-siblings", "One cancel, three prompts", "R12",
        "One cancel reaches the active, the queued and the accepted prompt, and nobody uses it up.",
        ("accept(A, run id)", "enter(A)", "accept(B, run id)", "enter(B)", "accept(C, run id)", "cancel",
         "finish(A, canceled)", "enter(C)", "settle(C)"),
        {"A": _CANCELED, "B": _CANCELED, "C": _CANCELED}),
    Example(
        "follow-up-after-cancel", "A follow-up after a cancel", "R2",
        "B is accepted after the cancel, so the mark does not cover it: it waits until A has stopped, and runs.",
        ("accept(A, run id)", "enter(A)", "cancel", "accept(B, run id)", "enter(B)", "finish(A, canceled)",
         "finish(B, end_turn)"),
        {"A": _CANCELED, "B": _END_TURN}),
    Example(
        "fold", "Folding", "R9",
        "B has no run id, so nobody waits for B by name. The running turn takes B in, and A's end is the end of both.",
        ("accept(A, run id)", "enter(A)", "accept(B)", "enter(B)", "step(A)", "finish(A, end_turn)"),
        {"A": _END_TURN, "B": _FOLDED}),
    Example(
        "run-id-kept", "A run id is kept", "R9b",
        "C is folded. B has a run id that somebody waits for: it stays in the queue and gets a turn of its own.",
        ("accept(A, run id)", "enter(A)", "accept(B, run id)", "enter(B)", "accept(C)", "enter(C)", "step(A)",
         "finish(A, end_turn)", "finish(B, end_turn)"),
        {"A": _END_TURN, "B": _END_TURN, "C": _FOLDED}),
    Example(
        "requeue", "A turn that goes on after a summary", "R10",
        "A was accepted first and entered last. B, back in the queue at its seq, lets it go first and has no end yet.",
        ("accept(A, run id)", "accept(B, run id)", "enter(B)", "enter(A)", "requeue(B)", "finish(A, end_turn)",
         "finish(B, end_turn)"),
        {"A": _END_TURN, "B": _END_TURN}),
    Example(
        "handoff-after-error", "The handoff after an error", "R11",
        "A's turn fails. In the same atomic step its end is published and B becomes active: nothing is stranded.",
        ("accept(A, run id)", "enter(A)", "accept(B, run id)", "enter(B)", "finish(A, error)", "finish(B, end_turn)"),
        {"A": _ERROR, "B": _END_TURN}),
    Example(
        "shutdown", "Shutdown", "R15",
        "A close is a cancel of every session. The server stops when all are done, and every caller was told.",
        ("accept(A, run id)@1", "enter(A)@1", "accept(B, run id)@1", "enter(B)@1", "accept(C, run id)@2", "close",
         "finish(A, canceled)@1", "enter(C)@2", "settle(C)@2"),
        {"A": _CANCELED, "B": _CANCELED, "C": _CANCELED}, sessions=2),
    Example(
        "crash-and-recovery", "Crash and recovery", "R17",
        "After the restart the cancel still holds for A, what B did is not done again, and C goes on.",
        ("accept(A, run id)", "cancel", "accept(B, run id)", "enter(B)", "accept(C, run id)", "enter(C)", "crash",
         "recover", "settle(A)", "finish(C, end_turn)"),
        {"A": _CANCELED, "B": _ERROR, "C": _END_TURN}),
)

# One for each rule of the family.
FAMILY_EXAMPLES = (
    Example(
        "revoke", "A revoke", "R30",
        "The call names B. B is dropped, and nobody else is touched: A runs on, C follows.",
        ("accept(A, run id)", "enter(A)", "accept(B, run id)", "enter(B)", "accept(C, run id)", "enter(C)", "revoke(B)",
         "finish(A, end_turn)", "finish(C, end_turn)"),
        {"A": _END_TURN, "B": _CANCELED, "C": _END_TURN}, protocol=FAMILY),
    Example(
        "stop-and-hold", "A stop that holds", "R31",
        "A is asked to stop and the queue is held, in one step: B waits for the resume, however soon A ends.",
        ("accept(A, run id)", "enter(A)", "accept(B, run id)", "enter(B)", "stop(hold)", "finish(A, canceled)",
         "resume", "finish(B, end_turn)"),
        {"A": _CANCELED, "B": _END_TURN}, protocol=FAMILY),
    Example(
        "hold", "A hold and its resume", "R32",
        "A's turn goes on, also after a summary. B waits although the session is idle, until somebody resumes.",
        ("accept(A, run id)", "enter(A)", "hold", "accept(B, run id)", "enter(B)", "requeue(A)", "finish(A, end_turn)",
         "resume", "finish(B, end_turn)"),
        {"A": _END_TURN, "B": _END_TURN}, protocol=FAMILY),
    Example(
        "replace", "Another text", "R33",
        "B keeps its place, and its turn hears the new text. From its start on B takes no other.",
        ("accept(A, run id)", "enter(A)", "accept(B, run id)", "enter(B)", "replace(B)", "finish(A, end_turn)",
         "finish(B, end_turn)"),
        {"A": _END_TURN, "B": _END_TURN}, protocol=FAMILY),
    Example(
        "next", "To the front", "R34",
        "C goes ahead of B, and starts when A has ended. Nobody stops A for it.",
        ("accept(A, run id)", "enter(A)", "accept(B, run id)", "enter(B)", "accept(C, run id)", "enter(C)", "next(C)",
         "finish(A, end_turn)", "finish(C, end_turn)", "finish(B, end_turn)"),
        {"A": _END_TURN, "B": _END_TURN, "C": _END_TURN}, protocol=FAMILY),
    Example(
        "interrupt", "An interrupt", "R35",
        "C stops A where it enters, and runs next. B was there before and is kept.",
        ("accept(A, run id)", "enter(A)", "accept(B, run id)", "enter(B)", "accept(C, interrupt)", "enter(C)",
         "finish(A, canceled)", "finish(C, end_turn)", "finish(B, end_turn)"),
        {"A": _CANCELED, "B": _END_TURN, "C": _END_TURN}, protocol=FAMILY),
)
