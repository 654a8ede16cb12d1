"""A machine that draws random histories of two sessions, and the judges that look at them."""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.histories import Recorder, without_finished

from cancelmark.model.effects import Effect
from cancelmark.model.lifecycle import Outcome
from cancelmark.model.oracle import Prompt, judge
from cancelmark.model.properties import PROPERTIES, Property, ServerStep, SessionStep
from cancelmark.model.protocol import REFERENCE, Move, Protocol
from cancelmark.model.server import Change, Server, changes
from cancelmark.model.session import Prompt as ModelPrompt
from cancelmark.model.session import Session

# Prompts must get in each other's way: most are in one session, and a few are accepted at once.
SESSIONS = st.sampled_from([0, 0, 0, 1])
RUN_IDS = st.lists(st.booleans(), min_size=1, max_size=3)


def on_a_prompt(name: str, *variant: Outcome, **more: st.SearchStrategy[Any]) -> Callable[[Any], Any]:
    """A rule that applies an action to one of the prompts that it can be applied to, if there are any."""
    def possible(self: "TwoSessions") -> list[int | None]:
        return [c.call.seq for c in self.changes if c.call.name == name and c.call.variant in (variant or (None,))]

    more["p"] = st.runner().flatmap(lambda self: st.sampled_from(possible(self)))
    return rule_when(lambda self: bool(possible(self)), more)


def on_the_server(name: str, **more: st.SearchStrategy[Any]) -> Callable[[Any], Any]:
    """A rule for a call that the server takes. Most calls wait until two prompts live, so that there is more to see."""
    def possible(self: "TwoSessions") -> bool:
        live = sum(len(session.live) for session in self.server.sessions)
        return any(c.call.name == name for c in self.changes) and (
            live > 1 or name == "accept" or (name == "cancel" and not live) or self.server.closing)

    return rule_when(possible, more)


def rule_when(possible: Callable[["TwoSessions"], bool], arguments: dict[str, Any]) -> Callable[[Any], Any]:
    as_rule: Callable[[Any], Any] = rule(**arguments)
    return lambda method: precondition(possible)(as_rule(method))


class TwoSessions(RuleBasedStateMachine):
    """The model, and the history that an outsider writes down: each rule is a step of one and a line in the other."""

    protocol: ClassVar[Protocol] = REFERENCE
    properties: ClassVar[tuple[Property, ...]] = PROPERTIES
    expected: ClassVar[str] = ""  # the complaint that a seeded bug must bring about, and no other counts

    def __init__(self) -> None:
        super().__init__()
        self.failed = False
        self.server = Server(sessions=(Session(), Session()))
        self.changes = self.possible_changes()
        self.history = Recorder()

    @on_the_server("accept", session=SESSIONS, run_ids=RUN_IDS)
    def accept(self, session: int, run_ids: list[bool]) -> None:
        for run_id in run_ids:
            self.take("accept", session=session, variant=run_id)
            self.history.accept(self.server.seq, session, run_id)

    @on_the_server("accept", session=SESSIONS, run_ids=RUN_IDS)
    def accept_and_enter(self, session: int, run_ids: list[bool]) -> None:
        """As happens most of the time: nothing comes between the two."""
        for run_id in run_ids:
            self.accept(session, [run_id])
            self.enter(self.server.seq)

    @on_a_prompt("enter")
    def enter(self, p: int) -> None:
        effects = self.take("enter", seq=p)
        self.history.enter(p, effects)

    @on_a_prompt("fail")
    def fail(self, p: int) -> None:
        effects = self.take("fail", seq=p)
        self.history.step(effects)

    @on_a_prompt("settle")
    def settle(self, p: int) -> None:
        effects = self.take("settle", seq=p)
        self.history.step(effects)

    @on_a_prompt("step")
    def step(self, p: int) -> None:
        effects = self.take("step", seq=p)
        self.history.step(effects)

    @on_a_prompt("requeue")
    def requeue(self, p: int) -> None:
        effects = self.take("requeue", seq=p)
        self.history.step(effects)

    @on_a_prompt("finish", Outcome.END_TURN, how=st.sampled_from([Outcome.END_TURN, Outcome.ERROR]))
    def finish(self, p: int, how: Outcome) -> None:
        effects = self.take("finish", seq=p, variant=how)
        self.history.step(effects)

    @on_a_prompt("finish", Outcome.CANCELED)
    def stop(self, p: int) -> None:
        effects = self.take("finish", seq=p, variant=Outcome.CANCELED)
        self.history.step(effects)

    @on_the_server("cancel", session=SESSIONS)
    def cancel(self, session: int) -> None:
        effects = self.take("cancel", session=session)
        self.history.call("cancel", session, effects)

    @rule_when(lambda self: not self.server.closing and bool(self.server.prompts),
               {"session": SESSIONS, "run_ids": RUN_IDS})
    def cancel_and_accept(self, session: int, run_ids: list[bool]) -> None:
        """As people do: stop that, do this."""
        self.cancel(session)
        self.accept_and_enter(session, run_ids)

    @on_the_server("clear_queue", session=SESSIONS)
    def clear_queue(self, session: int) -> None:
        effects = self.take("clear_queue", session=session)
        self.history.call("clear_queue", session, effects)

    @on_the_server("close")
    def close(self) -> None:
        effects = self.take("close")
        self.history.call("close", None, effects)

    @on_the_server("crash")
    def crash(self) -> None:
        effects = self.take("crash") + self.take("recover")
        self.history.call("crash", None, effects)

    @invariant()
    def the_oracle_has_no_complaint(self) -> None:
        # What comes later cannot make an end wrong, so those that were judged before can wait for the teardown.
        now = self.history.now
        self.judge([p for p in self.history.prompts if not p.ends or p.ends[-1].end == now], complete=False)

    def teardown(self) -> None:
        """Callers have stopped and turns end: when the system has nothing left to do, every prompt has ended."""
        if self.failed:
            return
        for turn in range(10 * len(self.history.prompts)):  # more than they need; some bugs go on for ever
            system = [c.call for c in self.changes if c.call.action.system]
            if not system:
                break
            call = system[turn % len(system)]
            effects = self.take(call.name, session=call.session, seq=call.seq, variant=call.variant)
            if call.name == "enter" and call.seq is not None:
                self.history.enter(call.seq, effects)
            else:
                self.history.step(effects)
        self.judge(self.history.prompts, complete=True)
        self.complain(f"{q.id}: {p.label} is {p.state.value}"
                      for p in self.resting() for q in self.properties if q.at_rest and not q.at_rest(p))

    def resting(self) -> list[ModelPrompt]:
        """What is to be judged when nothing more will happen. The oracle has judged what has ended."""
        return self.server.prompts

    def judge(self, prompts: list[Prompt], complete: bool) -> None:
        self.complain(judge(prompts, self.history.calls, complete))

    def complain(self, complaints: Iterable[str]) -> None:
        heard = [complaint for complaint in complaints if re.search(self.expected, complaint)]
        self.failed = bool(heard)
        assert not heard, "\n".join(heard)

    def take(self, name: str, **arguments: Any) -> tuple[Effect, ...]:
        """Lets the action happen, checks the session's own properties, and returns what the world is asked to do."""
        change = next(c for c in self.changes if c.call.name == name and all(
            wanted == getattr(c.call, key) or c.call.action.everywhere for key, wanted in arguments.items()))
        step = ServerStep.of(self.server, change)
        steps = [SessionStep.of(self.server.sessions[i], move) for i, move in change.moves]
        self.server = without_finished(change)
        self.changes = self.possible_changes()
        self.complain(f"{p.id}: broken by {change.call}" for p in self.properties if not (
            (not p.on_server or p.on_server(step)) and (not p.on_session or all(map(p.on_session, steps)))))
        return change.effects

    def possible_changes(self) -> list[Change]:
        return list(changes(self.protocol, self.server, lambda session, seq: moves(self.protocol, session, seq)))


@lru_cache(10_000)
def moves(protocol: Protocol, session: Session, seq: int) -> tuple[Move, ...]:
    return tuple(protocol.moves(session, seq))
