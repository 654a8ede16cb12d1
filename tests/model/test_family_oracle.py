"""The oracle on histories of the family: no complaint of a right protocol, and the mistakes that show outside."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from random import Random

import pytest
from support.budget import effort
from support.histories import Recorder, without_finished

from cancelmark.model import observer
from cancelmark.model.check.judging import at_rest
from cancelmark.model.oracle import Call, End, Prompt, Span, judge, may_end
from cancelmark.model.protocol import FAMILY, Protocol
from cancelmark.model.server import Change, Server, changes
from cancelmark.model.session import Session, label
from cancelmark.model.variants.catalogue import VARIANTS

SCARCE = {"crash": 1, "close": 1, "cancel": 2, "clear_queue": 1}  # how often each happens at most


class Walk:
    """One walk: at most `prompts` prompts in one session, then on until the system rests."""

    def __init__(self, protocol: Protocol, random: Random, prompts: int = 4) -> None:
        self.protocol, self.random, self.left = protocol, random, prompts
        self.server = Server(sessions=(Session(),))
        self.history = Recorder()
        self.scarce = dict(SCARCE)
        self.interrupts: dict[int, Call] = {}

    def go(self, steps: int) -> list[str]:
        """What the oracle says of the walk."""
        for n in range(steps * 3):
            possible = [c for c in changes(self.protocol, self.server) if self.affordable(c, n < steps)]
            if not possible or (n >= steps and at_rest(possible)):
                break
            self.take(self.random.choice(possible))
        calls = [*self.history.calls, *self.interrupts.values()]
        return judge(self.history.prompts, calls, complete=not possible or at_rest(possible))

    def affordable(self, change: Change, busy: bool) -> bool:
        name = change.call.name
        if change.call.action.system or name == "requeue":
            return name != "requeue" or busy
        return busy and self.scarce.get(name, 9) > 0 and (name != "accept" or self.left > 0)

    def take(self, change: Change) -> None:
        call, before, effects = change.call, self.server.sessions[0], change.effects
        self.server = without_finished(change)
        if call.name in self.scarce:
            self.scarce[call.name] -= 1
        if call.name == "accept":
            self.left -= 1
            assert call.seq is not None
            self.history.accept(call.seq, 0, call.variant is True)
            if call.variant == "interrupt":
                self.interrupts[call.seq] = Call(self.history.now, inf, "interrupt", "0", label(call.seq))
        elif call.name == "enter":
            assert call.seq is not None
            self.history.enter(call.seq, effects)
            if call.seq in self.interrupts:
                self.interrupts[call.seq] = replace(self.interrupts[call.seq], end=self.history.now)
        elif call.name == "crash":
            self.take_together(change)
        elif call.name in ("cancel", "clear_queue", "close", "hold", "resume"):
            self.history.call(call.name, None if call.session is None else 0, effects)  # type: ignore[arg-type]
        elif call.name in ("revoke", "stop"):
            reached = [before.prompt(call.seq)] if call.seq else observer.in_front(before, None, call.variant)
            moment = self.history.step(effects)
            self.history.calls += [
                Call(moment.begin, moment.end, call.name, "0", label(p.seq)) for p in reached]  # type: ignore[arg-type]
            if call.variant == "hold":
                self.history.calls.append(Call(moment.begin, moment.end, "hold", "0"))
        else:
            self.history.step(effects)

    def take_together(self, crash: Change) -> None:
        """Nothing but the recovery can follow a crash, so the two are one step."""
        (recovery,) = changes(self.protocol, self.server)
        self.server = without_finished(recovery)
        self.history.call("crash", None, recovery.effects)


def complaints(protocol: Protocol, walks: int, steps: int = 14, seed: int = 0) -> Iterator[str]:
    random = Random(seed)
    return (said for _ in range(walks) for said in Walk(protocol, random).go(steps))


def at(time: float) -> Span:
    return Span(time, time)


def test_the_oracle_has_no_complaint_of_the_family() -> None:
    assert list(complaints(FAMILY, effort(500))) == []


@pytest.mark.parametrize("name", [
    "revoke looks at the queue and the turn only", "revoke is answered before it is journaled",
    "stop asks only what is active", "hold is not asked on entry", "hold is not asked when a turn ends",
    "recovery forgets the hold", "a held queue folds", "resume forgets the handoff", "cancel releases the hold",
    "an interrupt cancels all before it",
])
def test_the_oracle_complains_of_a_mistake_that_shows_outside(name: str) -> None:
    assert next(complaints(VARIANTS[name].protocol, 1500), None)


def test_a_revoke_is_a_cancel_of_its_prompt_alone() -> None:
    revoke = Call(2, 3, "revoke", "", "A")
    assert may_end(Prompt("A", Span(0, 1)), [revoke]) == {"canceled"}
    assert may_end(Prompt("B", Span(0, 1)), [revoke]) == {"error", "folded"}


def test_a_stop_is_a_cancel_of_whom_it_stopped() -> None:
    running = Prompt("A", at(0), starts=(at(1),))
    assert "canceled" in may_end(running, [Call(2, 3, "stop", "", "A")])
    assert "canceled" not in may_end(running, [Call(2, 3, "stop", "", "B")])


def test_an_interrupt_may_have_stopped_who_ran_and_nobody_else() -> None:
    interrupt = Call(2, 4, "interrupt", "", "B")
    assert "canceled" in may_end(Prompt("A", at(0), starts=(at(1),)), [interrupt])
    assert "canceled" not in may_end(Prompt("A", at(0)), [interrupt])
    assert "canceled" not in may_end(Prompt("B", at(2), starts=(at(4),)), [interrupt])


def test_nothing_starts_or_folds_while_held_and_what_waits_owes_no_end() -> None:
    waits, hold, resume = Prompt("A", at(0), enter=at(1)), Call(2, 3, "hold", ""), Call(5, 6, "resume", "")
    assert judge([waits], [hold]) == []
    assert judge([waits], [hold, resume]) != []
    started = Prompt("A", at(0), enter=at(1), starts=(at(4),), ends=(End(8, 8, "end_turn"),))
    assert len(judge([started], [hold])) == 1
    assert judge([started], [hold, Call(3.5, 6, "resume", "")]) == []
    folded = Prompt("A", at(0), enter=at(1), ends=(End(4, 4, "folded"),))
    assert len(judge([folded], [hold])) == 1
    assert judge([folded], [resume]) == []
