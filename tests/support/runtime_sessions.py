"""The machine of `two_sessions` on the runtime's own sessions: the same rules, the same judges, another system.

What a crash leaves is what was journaled, no more, and the next sessions are made from that.
"""

from contextlib import suppress
from typing import Any, ClassVar

from hypothesis.stateful import precondition, rule
from support.replayed_sessions import restored
from support.two_sessions import TwoSessions
from support.watching import BY_NAME, Watch, watched

from cancelmark.impl.runtime.session import Counter, LivePrompt, Session, TakenStep
from cancelmark.model.effects import Effect
from cancelmark.model.lifecycle import IllegalTrigger, Outcome, State
from cancelmark.model.protocol import REFERENCE, Protocol
from cancelmark.model.server import Call
from cancelmark.model.session import Prompt as ModelPrompt

NAMES = ("0", "1")
HISTORIES, STEP_COUNT = 1000, 15  # what is tried of them, and how long they are


class RuntimeSessions(TwoSessions):
    """Two sessions of the runtime, watched."""

    protocol: ClassVar[Protocol] = REFERENCE

    def __init__(self) -> None:
        self.watch = Watch(*NAMES)
        self.counter = Counter()
        self.kept: dict[int, tuple[int, str | None, State]] = {}  # the journal: session, run id and state, by seq
        kind = watched(Session, self.watch)
        self.sessions = [kind(name, self.counter, protocol=self.protocol) for name in NAMES]
        super().__init__()

    # --- what a turn may try and cannot do

    def active(self, stopping: bool) -> list[LivePrompt]:
        return [p for s in self.sessions for p in s.active if p.covered is stopping]

    def attempt(self, name: str, prompt: LivePrompt, variant: Outcome | None = None) -> None:
        with suppress(IllegalTrigger):
            self.history.step(self.take(name, seq=prompt.seq, variant=variant))

    @precondition(lambda self: any(q.run_id is None for p in self.active(stopping=True) for q in p.session.queue))
    @rule()
    def stopping_turns_take_in_nobody(self) -> None:
        for prompt in self.active(stopping=True):
            self.attempt("step", prompt)

    @precondition(lambda self: self.active(stopping=True))
    @rule()
    def stopping_turns_do_not_go_on_after_a_summary(self) -> None:
        for prompt in self.active(stopping=True):
            self.attempt("requeue", prompt)

    @precondition(lambda self: self.active(stopping=False))
    @rule()
    def turns_do_not_end_canceled_unasked(self) -> None:
        for prompt in self.active(stopping=False):
            self.attempt("finish", prompt, Outcome.CANCELED)

    # --- how a step is taken

    def take(self, name: str, **arguments: Any) -> tuple[Effect, ...]:
        action = BY_NAME[name]
        seq = arguments.get("seq")
        home = arguments.get("session") if seq is None else self.server.home(seq)
        call = Call(action, None if action.everywhere else home, seq, arguments.get("variant"))
        here = range(len(NAMES)) if call.session is None else [call.session]
        effects = [effect for i in here for effect in self.do(i, call)]
        closing = self.server.closing if call.action.sets_closing is None else call.action.sets_closing
        self.watch.server = self.watch.server._replace(closing=closing)
        self.server = self.watch.server._replace(sessions=tuple(s.retire()[0] for s in self.watch.server.sessions))
        self.changes = self.possible_changes()
        self.complain(map(str, self.watch.complaints))
        self.watch.complaints.clear()
        return tuple(effects)

    def resting(self) -> list[ModelPrompt]:
        return self.watch.server.prompts

    def do(self, here: int, call: Call) -> TakenStep:
        """The call in one of the sessions. What it moves is journaled."""
        session, effects = self.sessions[here], TakenStep(call.name)
        if call.name == "crash":
            left = [(seq, "", run_id, state) for seq, (home, run_id, state) in self.kept.items() if home == here]
            self.sessions[here] = restored(
                session.id, self.counter, session.mark, left, protocol=self.protocol, kind=type(session))
            self.watch.restarted(self.sessions[here])
        elif call.name == "accept":
            prompt, effects = session.accept(run_id="given" if call.variant is True else None)
            self.kept[prompt.seq] = here, prompt.run_id, State.ACCEPTED
        else:
            effects = session.take(call.name, None if call.seq is None else session.prompts[call.seq], call.variant)
        for prompt, row in effects.moved:
            self.kept[prompt.seq] = *self.kept[prompt.seq][:2], row.dest
            if row.dest is State.DONE:
                del self.kept[prompt.seq]
        return effects
