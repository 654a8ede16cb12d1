"""An observer of the runtime's sessions: it sees each step as it is taken, and judges it as the explorer would.

The observer believes nothing that a session says of itself. Run ids are those that were given at acceptance, what a
cancel reaches is what was accepted before it, and a prompt has ended when an effect says so.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from math import inf
from typing import Any, NamedTuple

from cancelmark.conformance.schedule import label as tell
from cancelmark.impl.runtime.session import LivePrompt, Session, TakenStep
from cancelmark.model.actions import ACTIONS, Action, Actor, Reach
from cancelmark.model.effects import End as EndEffect
from cancelmark.model.effects import Start
from cancelmark.model.family import observe
from cancelmark.model.family_properties import properties_for
from cancelmark.model.lifecycle import Row, State
from cancelmark.model.observer import everyone
from cancelmark.model.oracle import Call as OracleCall
from cancelmark.model.oracle import CallKind, End, Span
from cancelmark.model.oracle import Prompt as Seen
from cancelmark.model.properties import ServerStep, SessionStep
from cancelmark.model.protocol import REFERENCE, Move, Protocol
from cancelmark.model.server import Call, Change, Server
from cancelmark.model.session import DEFAULT_TRAITS, Prompt, label
from cancelmark.model.session import Session as ModelSession
from cancelmark.model.trace import Trace, TraceStep
from cancelmark.views.traces.content import effect_text

BY_NAME = {action.name: action for action in ACTIONS}
STEPS = ("accept", "take", "replace")


class Complaint(NamedTuple):
    """What is wrong, and which property says so."""

    property: str
    sentence: str
    steps: int  # that had been taken by then

    def __str__(self) -> str:
        return f"{self.property}: {self.sentence}"


class Watch:
    """Everything that the sessions of one server have done, as a trace of the model and as a history for the oracle."""

    def __init__(self, *sessions: str, protocol: Protocol = REFERENCE) -> None:
        self.now = 0.0
        self._features, self._properties = protocol.features, properties_for(protocol)
        self._actions = {action.name: action for action in protocol.actions}
        self.server = Server(sessions=(ModelSession(),) * len(sessions))
        self.steps: list[TraceStep] = []
        self.complaints: list[Complaint] = []
        self.prompts: dict[int, Seen] = {}  # by seq, for the oracle
        self.calls: list[OracleCall] = []
        self.moved: list[tuple[LivePrompt, Row]] = []
        self._place = {session: place for place, session in enumerate(sessions)}
        self._live: dict[int, LivePrompt] = {}
        self._covered = [0] * len(sessions)  # the highest seq that had been given out when the last cancel came

    @property
    def trace(self) -> Trace:
        return Trace(Server(sessions=(ModelSession(),) * len(self._place)), tuple(self.steps))

    def tick(self) -> float:
        self.now += 1
        return self.now

    def complain(self, property: str, sentence: str) -> None:
        self.complaints.append(Complaint(property, sentence, len(self.steps)))

    # --- what callers see

    def called(self, kind: CallKind, session: str | None, of: str | None = None) -> Callable[[], None]:
        """A call begins, of one prompt or of all. Returns what to do when it returns."""
        number = len(self.calls)
        self.calls.append(OracleCall(self.tick(), inf, kind, session, of))

        def returned() -> None:
            self.calls[number] = replace(self.calls[number], end=self.tick())

        return returned

    def accepted(self, seq: int, session: str, run_id: bool, begin: float) -> None:
        """An accept, which began then, returns."""
        seen = self._seen(seq)
        self.prompts[seq] = replace(seen, accept=Span(begin, self.tick()), run_id=run_id, session=session)

    def _seen(self, seq: int) -> Seen:
        return self.prompts.get(seq) or Seen(label(seq), Span(0, inf))

    # --- what sessions do

    def took(self, session: Session, effects: TakenStep) -> None:
        """A session has taken a step."""
        here = self._place[session.id]
        if effects.action == "accept" and effects.prompt:
            self._live[effects.prompt.seq] = effects.prompt
        action = self._actions.get(effects.action) or Action(effects.action, Actor.SERVER, lambda: None, "", "")
        before, after = self.server.sessions[here], self._projected(session, here, effects)
        seq = effects.prompt and effects.prompt.seq
        move = Move(action, seq, effects.variant, after, tuple(effects), (), after, ())
        sessions = list(self.server.sessions)
        sessions[here] = after
        closing = self.server.closing if action.sets_closing is None else action.sets_closing
        server = Server(session.counter.latest, closing, tuple(sessions))
        change = Change(Call(action, here, seq, effects.variant), server, move.effects, (), ((here, move),))
        # A seq that was given out before the close is that of a prompt that was accepted before it.
        late = action.name == "accept" and seq is not None and seq <= self._covered[here]
        known = self.server._replace(closing=self.server.closing and not late)
        self.steps.append(TraceStep(change.call, change.effects, server))
        self._judge(change.call, SessionStep.of(before, move), ServerStep.of(known, change))
        self._write_down(effects)
        self.moved += effects.moved
        self.server = server
        tell(": ".join(filter(None, [str(change.call), ", ".join(map(effect_text, effects))])))

    def restarted(self, session: Session) -> None:
        """A session was made again from what its last life had journaled, and is to be recovered."""
        self._live.update(session.prompts)
        here, sessions = self._place[session.id], list(self.server.sessions)
        sessions[here] = sessions[here]._replace(down=True)  # type: ignore[attr-defined]
        self.server = self.server._replace(sessions=tuple(sessions))

    def _projected(self, session: Session, here: int, effects: TakenStep) -> ModelSession:
        """The session as the model would have it, with what an observer knows of each prompt's history."""
        before = self.server.sessions[here]
        known = {p.seq: p for p in before.prompts}
        action = self._actions.get(effects.action)
        subject = effects.prompt and known.get(effects.prompt.seq)
        if action and action.targets:
            if action.targets is everyone:
                self._covered[here] = session.counter.latest
            for p in action.targets(before, subject, effects.variant):
                if p.reach is not Reach.CANCEL:
                    known[p.seq] = p._replace(reach=action.reaches)
        if effects.action == "accept" and (new := effects.prompt):
            # Its seq was given out before it came here, and a cancel in between has reached it.
            late = Reach.CANCEL if new.seq <= self._covered[here] else Reach.NOTHING
            subject = known[new.seq] = Prompt(new.seq, new.run_id is not None, reach=late)
        prompts = []
        for seq, p in sorted(known.items()):
            live = self._live[seq]
            if seq in session.prompts or live.state is State.DONE:  # or else it was forgotten
                ends = p.ends + sum(isinstance(e, EndEffect) and e.seq == seq for e in effects)
                traits = None if live.traits == DEFAULT_TRAITS else live.traits
                prompts.append(p._replace(state=live.state, outcome=live.outcome, ends=min(2, ends), traits=traits))
        after: Any = ModelSession(session.mark, session.down, tuple(prompts), None, session.held, before.wished_hold)
        noted: ModelSession = observe(self._features, after, effects.action, subject, effects.variant, effects) if (
            self._features and action) else after
        return noted

    def _write_down(self, effects: TakenStep) -> None:
        """For the oracle."""
        now = self.tick()
        for prompt, row in effects.moved:
            if row.source is State.ACCEPTED:
                self.prompts[prompt.seq] = replace(self._seen(prompt.seq), enter=Span(now, now))
        for effect in effects:
            seen = self._seen(effect.seq)
            if isinstance(effect, Start):
                self.prompts[effect.seq] = replace(seen, starts=(*seen.starts, Span(now, now)))
            elif isinstance(effect, EndEffect):
                self.prompts[effect.seq] = replace(seen, ends=(*seen.ends, End(now, now, effect.outcome.value)))

    def _judge(self, call: Call, step: SessionStep, server: ServerStep) -> None:
        for p in self._properties:
            if (p.on_session and not p.on_session(step)) or (p.on_server and not p.on_server(server)):
                self.complain(p.id, f"broken by {call}")

    def at_rest(self) -> None:
        """Nothing more will happen: judges what should have."""
        for prompt in self.server.owed:
            for p in self._properties:
                if p.at_rest and not p.at_rest(prompt):
                    self.complain(p.id, f"{prompt.label} is {prompt.state.value} with {prompt.ends} ends")


def watched(kind: type[Session], watch: Watch) -> type[Session]:
    """The same kind of session, each of whose steps is seen. A step that is taken within another is a part of it; a
    kind may have `more` steps than others."""
    depth = [0]

    def seen(name: str) -> Callable[..., Any]:
        method = getattr(kind, name)

        @wraps(method)
        def step(self: Session, *arguments: Any, **more: Any) -> Any:
            depth[0] += 1
            try:
                result = method(self, *arguments, **more)
            finally:
                depth[0] -= 1
            if not depth[0]:
                watch.took(self, result[1] if name == "accept" else result)
            return result

        return step

    steps = (*STEPS, *getattr(kind, "more", ()))
    return type(kind.__name__, (kind,), {"watch": watch} | {name: seen(name) for name in steps})
