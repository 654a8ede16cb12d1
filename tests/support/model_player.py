"""Plays behaviours on a model: a revision of the original, or the reference."""

from collections.abc import Collection
from typing import Any

from support.behaviours import Behaviour, Sees

from cancelmark.model.effects import End, Fold, Record, Report, Start
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.protocol import Behaviour as Protocol
from cancelmark.model.server import Call, changes
from cancelmark.model.session import Prompt, label
from cancelmark.model.trace import Trace, call_text, replay

# What the system does by itself, in the reference or in some revision.
BY_ITSELF = {"settle", "leave", "hand_off", "clean_up", "return", "fold", "begin", "read_queue", "enqueue",
             "pop"}


class ModelPlayer:
    """The calls that have happened, and the trace that they make."""

    def __init__(self, protocol: Protocol, sessions: int = 1, stubborn: Collection[str] = ()) -> None:
        self.protocol, self.sessions, self.stubborn = protocol, sessions, stubborn
        self.enter = "enter" if any(action.name == "enter" for action in protocol.actions) else "look"
        self.calls: list[str] = []
        self.trace: Trace = replay(protocol, [], self.sessions)

    def play(self, call: str) -> None:
        """Lets the call happen, and all that follows from it."""
        self.take(call.replace("enter", self.enter))
        while following := next((change.call for change in changes(self.protocol, self.trace.states[-1])
                                 if self.follows(change.call)), None):
            self.take(call_text(following, self.sessions))

    def take(self, call: str) -> None:
        self.calls.append(call)
        self.trace = replay(self.protocol, self.calls, self.sessions)

    def follows(self, call: Call) -> bool:
        """Whether the call comes by itself, now."""
        name = "" if call.seq is None else label(call.seq)
        match call.name:
            case "finish":
                return call.variant is Outcome.CANCELED and name not in self.stubborn
            case self.enter:  # again: the prompt has waited in the queue
                return any(step.call.name == self.enter and step.call.seq == call.seq for step in self.trace.steps)
            case "step":  # the first of a turn
                last = self.trace.steps[-1]
                return any(isinstance(effect, Start) and effect.seq == call.seq for effect in last.effects)
        return call.name in BY_ITSELF or call.name.endswith("…")

    # --- what is seen

    def see(self) -> Sees:
        server = self.trace.states[-1]
        effects = [effect for step in self.trace.steps for effect in step.effects]
        ends = [e for e in effects if isinstance(e, End) and e.outcome is not Outcome.FOLDED]
        published = [f"{label(e.seq)} {e.outcome.value}" for e in ends]
        told = [label(e.seq) for e in effects if isinstance(e, Report)]
        told += [label(e.seq) for e in ends if e.outcome is Outcome.ERROR]
        session: Any = server.sessions[0]
        if getattr(session, "accepted", 0):
            assert session.accepted == sum(p.state is State.ACCEPTED for p in session.prompts), "one reservation each"
        queue = getattr(session, "queue_entries", session.queue)
        has_flag = self.protocol.name == "r1"
        return Sees(
            became=", ".join(f"{p.label} {(p.outcome or p.state).value}" for p in server.prompts),
            ends=", ".join(published),
            all_ends=", ".join(sorted(published)),
            messages=" ".join(self.messages()),
            ran="".join(label(e.seq) for e in effects if isinstance(e, Start)),
            queue="".join(label(entry.seq) for entry in queue),
            mark=None if has_flag else session.mark,
            pending=any(self.is_pending(session, p) for p in server.prompts),
            errors="".join(sorted(set(told))))

    def messages(self) -> list[str]:
        """A turn leaves a user's message and an answer; a record is both; a prompt that is folded leaves its own."""
        said: list[str] = []
        for step in self.trace.steps:
            if step.call.name == "finish":
                assert isinstance(step.call.variant, Outcome)
                said.append(step.call.variant.value)
            for effect in step.effects:
                said += (["user", "canceled"] if isinstance(effect, Record)
                         else ["user"] if isinstance(effect, Start | Fold) else [])
        return said

    def is_pending(self, session: Any, prompt: Prompt) -> bool:
        if hasattr(session, "flag"):  # a revision of the original
            return bool(session.flag or session.mark)
        return prompt.state is State.ACCEPTED and prompt.seq <= session.mark


def play_on_model(protocol: Protocol, behaviour: Behaviour) -> None:
    """Plays the behaviour to its end. What is seen must be what it says."""
    player = ModelPlayer(protocol, behaviour.sessions, behaviour.stubborn)
    for step in behaviour.steps:
        if isinstance(step, Sees):
            step.check(protocol.name, player.see())
        else:
            for call in step.split("; "):
                player.play(call)
