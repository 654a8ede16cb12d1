"""Examples of the guarantees: histories that the model replays, each with the expected outcomes.

specs/diagrams has a diagram of each, and the specification shows them with the rules. A call that the protocol does not
allow, or an unexpected outcome, raises an error, so that no diagram can show an impossible history.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from .family import Feature
from .lifecycle import Outcome
from .protocol import FAMILY, REFERENCE, Protocol
from .session import label
from .trace import Trace, replay


@dataclass(frozen=True)
class Example:
    """A history, the rule that it illustrates, and the expected outcome of each prompt."""

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
        """The trace of the replayed history."""
        trace = replay(self.protocol, self.calls, self.sessions)
        ends = {label(p.seq): p.outcome for p in trace.states[-1].prompts}
        if ends != self.ends:
            raise ValueError(f"example {self.name} ends with {ends}, not with {dict(self.ends)}")
        return trace


_CANCELED, _ERROR, _END_TURN, _FOLDED = Outcome.CANCELED, Outcome.ERROR, Outcome.END_TURN, Outcome.FOLDED

EXAMPLES = (
    Example(
        "cancel-on-entry", "Cancel on entry", "R4",
        "A cancel that arrives before the prompt has entered is not lost: the mark still covers the prompt on entry.",
        ("accept(A, run id)", "cancel", "enter(A)", "settle(A)"),
        {"A": _CANCELED}),
    Example(
        "cancel-with-siblings", "One cancel, three prompts", "R12",
        "One cancel covers the active, the queued and the accepted prompt; none of them consumes it.",
        ("accept(A, run id)", "enter(A)", "accept(B, run id)", "enter(B)", "accept(C, run id)", "cancel",
         "finish(A, canceled)", "enter(C)", "settle(C)"),
        {"A": _CANCELED, "B": _CANCELED, "C": _CANCELED}),
    Example(
        "follow-up-after-cancel", "A follow-up after a cancel", "R2",
        "B is accepted after the cancel, so the mark does not cover it: it waits until A has stopped, then runs.",
        ("accept(A, run id)", "enter(A)", "cancel", "accept(B, run id)", "enter(B)", "finish(A, canceled)",
         "finish(B, end_turn)"),
        {"A": _CANCELED, "B": _END_TURN}),
    Example(
        "fold", "Folding", "R9",
        "B has no run id, so no client waits on it. It folds into the running turn and ends when A does.",
        ("accept(A, run id)", "enter(A)", "accept(B)", "enter(B)", "step(A)", "finish(A, end_turn)"),
        {"A": _END_TURN, "B": _FOLDED}),
    Example(
        "run-id-kept", "A prompt with a run id is not folded", "R9b",
        "C is folded. B has a run id that a client waits on, so it stays in the queue and gets a turn of its own.",
        ("accept(A, run id)", "enter(A)", "accept(B, run id)", "enter(B)", "accept(C)", "enter(C)", "step(A)",
         "finish(A, end_turn)", "finish(B, end_turn)"),
        {"A": _END_TURN, "B": _END_TURN, "C": _FOLDED}),
    Example(
        "requeue", "A turn that resumes after compaction", "R10",
        "A was accepted first and entered last. B is requeued behind A: A runs next, and B continues afterwards.",
        ("accept(A, run id)", "accept(B, run id)", "enter(B)", "enter(A)", "requeue(B)", "finish(A, end_turn)",
         "finish(B, end_turn)"),
        {"A": _END_TURN, "B": _END_TURN}),
    Example(
        "handoff-after-error", "The handoff after an error", "R11",
        "A's turn fails. The same atomic step publishes its terminal event and starts B: no prompt is stranded.",
        ("accept(A, run id)", "enter(A)", "accept(B, run id)", "enter(B)", "finish(A, error)", "finish(B, end_turn)"),
        {"A": _ERROR, "B": _END_TURN}),
    Example(
        "shutdown", "Shutdown", "R15",
        "A close cancels every session. The server stops once every prompt is done and its caller has been notified.",
        ("accept(A, run id)@1", "enter(A)@1", "accept(B, run id)@1", "enter(B)@1", "accept(C, run id)@2", "close",
         "finish(A, canceled)@1", "enter(C)@2", "settle(C)@2"),
        {"A": _CANCELED, "B": _CANCELED, "C": _CANCELED}, sessions=2),
    Example(
        "crash-and-recovery", "Crash and recovery", "R17",
        "After the restart A is still canceled, B ends with an error instead of running again, and C runs.",
        ("accept(A, run id)", "cancel", "accept(B, run id)", "enter(B)", "accept(C, run id)", "enter(C)", "crash",
         "recover", "settle(A)", "finish(C, end_turn)"),
        {"A": _CANCELED, "B": _ERROR, "C": _END_TURN}),
)

# One for each rule of the family.
FAMILY_EXAMPLES = (
    Example(
        "revoke", "A revoke", "R30",
        "The call names B. B is dropped, and no other prompt is affected: A keeps running, then C runs.",
        ("accept(A, run id)", "enter(A)", "accept(B, run id)", "enter(B)", "accept(C, run id)", "enter(C)", "revoke(B)",
         "finish(A, end_turn)", "finish(C, end_turn)"),
        {"A": _END_TURN, "B": _CANCELED, "C": _END_TURN}, protocol=FAMILY),
    Example(
        "stop-and-hold", "A stop that holds", "R31",
        "One step asks A to stop and holds the queue: B waits for the resume, however soon A ends.",
        ("accept(A, run id)", "enter(A)", "accept(B, run id)", "enter(B)", "stop(hold)", "finish(A, canceled)",
         "resume", "finish(B, end_turn)"),
        {"A": _CANCELED, "B": _END_TURN}, protocol=FAMILY),
    Example(
        "hold", "A hold and its resume", "R32",
        "A's turn continues, even across compaction. B waits until the resume, although the session is idle.",
        ("accept(A, run id)", "enter(A)", "hold", "accept(B, run id)", "enter(B)", "requeue(A)", "finish(A, end_turn)",
         "resume", "finish(B, end_turn)"),
        {"A": _END_TURN, "B": _END_TURN}, protocol=FAMILY),
    Example(
        "replace", "Replacing a prompt's text", "R33",
        "B keeps its position, and its turn gets the new text. Once B has started, its text cannot be replaced.",
        ("accept(A, run id)", "enter(A)", "accept(B, run id)", "enter(B)", "replace(B)", "finish(A, end_turn)",
         "finish(B, end_turn)"),
        {"A": _END_TURN, "B": _END_TURN}, protocol=FAMILY),
    Example(
        "next", "Moving a prompt to the front", "R34",
        "C moves ahead of B, and starts when A has ended. A is not stopped.",
        ("accept(A, run id)", "enter(A)", "accept(B, run id)", "enter(B)", "accept(C, run id)", "enter(C)", "next(C)",
         "finish(A, end_turn)", "finish(C, end_turn)", "finish(B, end_turn)"),
        {"A": _END_TURN, "B": _END_TURN, "C": _END_TURN}, protocol=FAMILY),
    Example(
        "interrupt", "An interrupt", "R35",
        "C stops A when it enters, and runs next. B was queued before C, and stays queued.",
        ("accept(A, run id)", "enter(A)", "accept(B, run id)", "enter(B)", "accept(C, interrupt)", "enter(C)",
         "finish(A, canceled)", "finish(C, end_turn)", "finish(B, end_turn)"),
        {"A": _CANCELED, "B": _END_TURN, "C": _END_TURN}, protocol=FAMILY),
    Example(
        "ask", "A question", "R36",
        "A asks twice. The first tool runs, once. The cancel withdraws the second question in its own step: an answer "
        "that comes later is refused.",
        ("accept(A, run id)", "enter(A)", "ask(A)", "answer(A, 1 allow)", "run(A, 1)", "ask(A)", "cancel",
         "finish(A, canceled)"),
        {"A": _CANCELED}, protocol=Protocol("ask", features=frozenset({Feature.ASK}))),
)
