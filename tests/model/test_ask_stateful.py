"""Random histories with questions: the oracle has no complaint about the model, and complains about mistakes."""

import re
from collections.abc import Iterable, Mapping
from random import Random
from typing import ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from support.budget import effort
from support.histories import Recorder, without_finished

from cancelmark.model import observer
from cancelmark.model.family import Feature
from cancelmark.model.oracle import AskRecord, Call, End, Prompt, Reply, Span, judge, judge_asks
from cancelmark.model.protocol import Protocol
from cancelmark.model.server import Change, Server, changes
from cancelmark.model.session import Session, label
from cancelmark.model.variants.catalogue import ASK_MISTAKES, ProtocolVariant

ASKING = Protocol("asking", features=frozenset({Feature.ASK, Feature.REVOKE, Feature.STOP, Feature.HOLD}))
ON_QUESTIONS = ("ask", "answer", "run", "withdraw")
PROMPTS = 3


class Asking(RuleBasedStateMachine):
    """One session whose turns ask, and the history that an outsider writes down."""

    protocol: ClassVar[Protocol] = ASKING
    expected: ClassVar[str] = ""  # the complaint that a mistake must bring about, and no other counts

    def __init__(self) -> None:
        super().__init__()
        self.server = Server(sessions=(Session(),))
        self.history = Recorder()

    def possible(self, asks: bool) -> list[Change]:
        """The next steps: on questions, or all others."""
        return [c for c in changes(self.protocol, self.server)
                if (c.call.name in ON_QUESTIONS) is asks and (c.call.name != "accept" or self.server.seq < PROMPTS)]

    @precondition(lambda self: self.possible(asks=True))
    @rule(pick=st.integers(0, 99))
    def ask_or_answer(self, pick: int) -> None:
        self.take(pick, asks=True)

    @precondition(lambda self: self.possible(asks=False))
    @rule(pick=st.integers(0, 99))
    def do_something_else(self, pick: int) -> None:
        self.take(pick, asks=False)

    def take(self, pick: int, asks: bool) -> None:
        possible = self.possible(asks)
        change = possible[pick % len(possible)]
        call, before, effects = change.call, self.server.sessions[0], change.effects
        self.server = without_finished(change)
        if call.name == "accept":
            assert call.seq is not None
            self.history.accept(call.seq, 0, call.variant is True)
        elif call.name == "enter":
            assert call.seq is not None
            self.history.enter(call.seq, effects)
        elif call.name == "crash":  # only the recovery can follow, so the two are one step
            (recovery,) = changes(self.protocol, self.server)
            self.server = without_finished(recovery)
            self.history.call("crash", None, recovery.effects)
        elif call.name in ("revoke", "stop"):
            reached = [before.prompt(call.seq)] if call.seq else observer.in_front(before, None, call.variant)
            moment = self.history.step(effects)
            kinds = [(call.name, label(p.seq)) for p in reached] + [("hold", "")] * (call.variant == "hold")
            self.history.calls += [Call(moment.begin, moment.end, kind, "0", of) for kind, of in kinds]  # type: ignore[arg-type]
        elif call.name in ("cancel", "clear_queue", "close", "hold", "resume"):
            self.history.call(call.name, None if call.session is None else 0, effects)  # type: ignore[arg-type]
        else:
            self.history.step(effects)

    @invariant()
    def the_oracle_has_no_complaint(self) -> None:
        said = [*judge(self.history.prompts, self.history.calls, complete=False),
                *judge_asks(self.history.asks.values(), self.history.prompts, self.history.calls)]
        assert not [one for one in said if re.search(self.expected, one)], said


TestAsking = Asking.TestCase
TestAsking.settings = settings(max_examples=effort(40, 200), stateful_step_count=25, deadline=None)


# --- The oracle can fail ------------------------------------------------------------------------------------------

# The complaint, and the seed of a random walk that ends with it.
CAUGHT: Mapping[str, tuple[str, int]] = {
    "a cancel leaves the question open until the turn ends": ("is still open", 14),
    "a close does not withdraw": ("is still open", 61),
    "a stop does not withdraw": ("is still open", 16),
    "a revoke does not withdraw": ("is still open", 3),
    "a permission outlives the cancel": ("started too late", 112),
    "an answer after the cancel is taken": ("has 2 ends", 14),
    "a cancel withdraws in silence": ("is still open", 14),
    "a canceled turn still asks": ("was asked after a cancel", 14),
    "the end of a turn leaves its question open": ("is still open", 1),
    "a permission survives compaction": ("started too late", 352),
    "a question survives compaction": ("is still open", 43),
    "the last answer wins until the tool starts": ("has 2 ends", 3),
    "a deny beats an earlier allow": ("has 2 ends", 3),
    "a late answer is confirmed as taken": ("has 2 ends", 0),
    "an answer after the timeout is taken": ("has 2 ends", 14),
    "a timeout allows": ("started without permission", 22),
    "the tool runs while the question is open": ("started without permission", 5),
    "a permission is not used up": ("started 2 times", 32),
    "recovery does not report questions": ("is still open|has 0 reports", 11),
    "the start of a tool is not journaled before it": ("has 0 reports", 24),
    "recovery runs what was allowed": ("started 2 times", 24),
    "a tool that did not start is reported after a crash": ("has 1 reports", 201),
}

OUT_OF_SIGHT: Mapping[str, str] = {
    "an interrupt does not withdraw": "these histories have no interrupts",
    "a question is withdrawn after the end is published": "both take effect in the same step",
    "questions are numbered anew after compaction": "a history does not say which question an answer named",
    "an answer goes to the question that is open now": "a history does not say which question an answer named",
    "one answer answers every open question": "each question is judged by itself",
    "a turn has one slot for a question": "no end is wrong until the turn ends; the question is only lost",
    "a deny stops the turn": "requests to stop are not part of a history",
    "a held session takes no answers": "an answer without effect is not part of a history",
    "a hold withdraws questions": "a turn may withdraw a question at any time",
    "a server has one slot for a question": "there is one session",
    "a turn that waits for an answer does not count as busy": "each prompt is judged by itself",
}


def test_every_mistake_is_caught_or_out_of_sight() -> None:
    assert sorted([*CAUGHT, *OUT_OF_SIGHT]) == sorted(mistake.name for mistake in ASK_MISTAKES)


SHOWN = [mistake for mistake in ASK_MISTAKES if mistake.name in CAUGHT]


def mistaken(mistake: ProtocolVariant) -> type[Asking]:
    return type("Mistaken", (Asking,), {"protocol": mistake.protocol, "expected": CAUGHT[mistake.name][0]})


def walk(mistake: ProtocolVariant, seeds: Iterable[int]) -> None:
    """Takes steps at random, as Hypothesis does, at a tenth of the cost."""
    for seed in seeds:
        machine, random = mistaken(mistake)(), Random(seed)
        for _ in range(30):
            kinds = [asks for asks in (True, False) if machine.possible(asks)]
            machine.take(random.randrange(100), random.choice(kinds))
            machine.the_oracle_has_no_complaint()


@pytest.mark.parametrize("mistake", SHOWN, ids=lambda m: m.name)
def test_a_walk_shows(mistake: ProtocolVariant) -> None:
    """If the known seed no longer shows the mistake, another one does."""
    complaint, known = CAUGHT[mistake.name]
    with pytest.raises(AssertionError, match=complaint):
        walk(mistake, (known, *range(1000)))


@pytest.mark.long
@pytest.mark.parametrize("mistake", SHOWN, ids=lambda m: m.name)
def test_the_oracle_complains_of(mistake: ProtocolVariant) -> None:
    budget = settings(max_examples=2000, stateful_step_count=30, deadline=None, derandomize=True,
                      phases=[Phase.generate], print_blob=False)
    with pytest.raises(AssertionError, match=CAUGHT[mistake.name][0]):
        run_state_machine_as_test(mistaken(mistake), settings=budget)


# --- Spans that overlap -------------------------------------------------------------------------------------------

def test_an_answer_that_overlaps_a_cancel_may_have_come_first() -> None:
    prompt = Prompt("A", Span(0, 0), starts=(Span(1, 1),))
    asked = AskRecord("A.1", "A", Span(2, 2))
    cancel = Call(3, 5, "cancel", "")
    taken = AskRecord("A.1", "A", Span(2, 2), replies=(Reply(4, 6, "allow"),))
    late = AskRecord("A.1", "A", Span(2, 2), replies=(Reply(6, 7, "allow"),))
    assert judge_asks([taken], [prompt], [cancel]) == []
    assert any("ended too late" in said for said in judge_asks([late], [prompt], [cancel]))
    assert any("is still open" in said for said in judge_asks([asked], [prompt], [cancel]))
    assert judge_asks([asked], [prompt], [Call(3, float("inf"), "cancel", "")]) == []


def test_a_tool_that_ran_is_reported_if_and_only_if_a_crash_broke_its_turn() -> None:
    crash = Call(5, 5, "crash")
    ran = AskRecord("A.1", "A", Span(2, 2), replies=(Reply(3, 3, "allow"),), runs=(Span(4, 4),))
    broken = Prompt("A", Span(0, 0), starts=(Span(1, 1),), ends=(End(5, 5, "error"),))
    ended = Prompt("A", Span(0, 0), starts=(Span(1, 1),), ends=(End(4.5, 4.5, "end_turn"),))
    assert any("has 0 reports" in said for said in judge_asks([ran], [broken], [crash]))
    assert judge_asks([ran], [ended], [crash]) == []
