"""The replay of the model's edges finds implementations that part ways with it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.budget import DEEP, long, one_for_each
from support.replayed_sessions import FamilySessions, Sessions
from tools import replaying
from tools.replaying import Asked, Difference, Subject, replay

from cancelmark.model.actions import Variant
from cancelmark.model.lifecycle import IllegalTrigger
from cancelmark.model.properties import Bounds
from cancelmark.model.protocol import FAMILY, Feature, Protocol
from cancelmark.model.variants.catalogue import ASK_MISTAKES, MISTAKES, ProtocolVariant

BOUNDS = Bounds(2, cancels=1, crashes=1, closes=1)


class MarkNotRaised(Sessions):
    def cancel(self, session: int) -> list[Asked]:
        return self.clear_queue(session)


class EndsBackwards(Sessions):
    def finish(self, seq: int, outcome: str) -> list[Asked]:
        return super().finish(seq, outcome)[::-1]


class FoldsInSilence(Sessions):
    def step(self, seq: int) -> list[Asked]:
        return [effect for effect in super().step(seq) if effect[0] != "fold"]


class AcceptsWhileClosing(Sessions):
    def accept(self, session: int, run_id: bool) -> list[Asked]:
        self.closing = False
        return super().accept(session, run_id)


class RefusesAndForgets(Sessions):
    def settle(self, seq: int) -> list[Asked]:
        try:
            return super().settle(seq)
        except IllegalTrigger:
            self.sessions[0].prompts.pop(seq, None)
            raise


class StaysClosed(Sessions):
    def recover(self) -> list[Asked]:
        closing = self.closing
        effects = super().recover()
        self.closing = closing
        return effects


class ForgetsTheMark(Sessions):
    def crash(self) -> list[Asked]:
        super().crash()
        for session in self.sessions:
            session.mark = 0
        return []


@pytest.mark.parametrize(("make", "where"), [
    (MarkNotRaised, r"after \[accept\(A\)\], cancel: states differ"),
    (EndsBackwards, r"finish\(A, end_turn\): effects differ"),
    (FoldsInSilence, r"step\(A\): effects differ"),
    (AcceptsWhileClosing, r"after \[close\], accept\(A\): answers differ"),
    (RefusesAndForgets, r"settle\(A\), which is refused: states differ"),
    (StaysClosed, r"after \[close, crash, recover\], accept\(A\): answers differ"),
    (ForgetsTheMark, r"crash: states differ"),
], ids=lambda value: getattr(value, "__name__", ""))
def test_a_wrong_implementation_is_found(make: Callable[[int], Subject], where: str) -> None:
    with pytest.raises(Difference, match=where):
        replay(make, BOUNDS)


class ForgetsTheHold(FamilySessions):
    def crash(self) -> list[Asked]:
        super().crash()
        for session in self.sessions:
            session.held = False
        return []


class QueueBySeq(FamilySessions):
    def next(self, seq: int) -> list[Asked]:
        return []


@pytest.mark.parametrize("bounds", [
    Bounds(2, revokes=1, stops=1),
    long(Bounds(2, requeues=1, revokes=1, stops=1)),
    Bounds(2, requeues=1, holds=1),
    Bounds(1, crashes=1, holds=1, replaces=1, sessions=2),
    long(Bounds(2, crashes=1, holds=1, replaces=1)),
    long(Bounds(2, cancels=1, holds=1, nexts=1)),
    Bounds(2, holds=1, nexts=1),
    *([Bounds(2, cancels=1, requeues=1, crashes=1, revokes=1, stops=1, holds=1), Bounds(3, holds=1, nexts=1)]
      if DEEP else []),
], ids=str)
@pytest.mark.rule("R32c")
def test_every_edge_of_the_family_is_an_edge_of_the_runtimes_sessions(bounds: Bounds) -> None:
    assert replay(FamilySessions, bounds, FAMILY) > 1000


@pytest.mark.rule("R35c")
def test_every_edge_with_interrupts_is_an_edge_of_the_runtimes_sessions() -> None:
    """With three prompts: one runs, one could be folded, and the interrupt has not entered."""
    protocol = Protocol("interrupt", features=frozenset({Feature.INTERRUPT}))
    assert replay(sessions_of(protocol), Bounds(3), protocol) > 1000


@pytest.mark.rule("R36a", "R36b", "R36c", "R36d", "R36f", "R36g", "R36h", "R36i", "R36j")
@pytest.mark.parametrize(("features", "bounds"), [
    ((Feature.ASK,), Bounds(1, cancels=1, requeues=1, crashes=1, asks=1)),
    long((Feature.ASK,), Bounds(1, cancels=1, requeues=1, crashes=1, closes=1, asks=2)),
    ((Feature.ASK, Feature.REVOKE, Feature.STOP, Feature.HOLD), Bounds(1, revokes=1, stops=1, holds=1, asks=1)),
    ((Feature.ASK, Feature.INTERRUPT), Bounds(2, asks=1)),
], ids=str)
def test_every_edge_with_questions_is_an_edge_of_the_runtimes_sessions(
    features: tuple[Feature, ...], bounds: Bounds,
) -> None:
    protocol = Protocol("ask", features=frozenset(features))
    assert replay(sessions_of(protocol), bounds, protocol) > 100


@pytest.mark.parametrize(("make", "where"), [
    (ForgetsTheHold, r"crash: states differ"), (QueueBySeq, r"next\(B\): states differ"),
], ids=lambda value: getattr(value, "__name__", ""))
def test_a_wrong_implementation_of_the_family_is_found(make: Callable[[int], Subject], where: str) -> None:
    with pytest.raises(Difference, match=where):
        replay(make, Bounds(2, crashes=1, holds=1, nexts=1), FAMILY)


def test_no_order_between_sessions_is_asked_for() -> None:
    class Reversed(Sessions):
        def close(self) -> list[Asked]:
            self.sessions.reverse()
            try:
                return super().close()
            finally:
                self.sessions.reverse()

    assert replay(Reversed, Bounds(2, closes=1, sessions=2)) > 0


@pytest.mark.parametrize(("make", "code", "says"), [(Sessions, 0, "edges agree"), (MarkNotRaised, 1, "states differ")])
def test_it_can_be_run_on_an_implementation_from_elsewhere(
    make: type, code: int, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replaying, "SMALL", (Bounds(1, cancels=1),))
    assert replaying.main([f"{make.__module__}:{make.__name__}"]) == code
    assert says in capsys.readouterr().out


@pytest.mark.parametrize("name", ["nowhere:Server", "replaying:Nothing", "replaying", ":Server"])
def test_what_is_not_there_is_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        replaying.main([name])
    assert stopped.value.code == 2
    assert f"{name}" in capsys.readouterr().err


# --- the tempting mistakes of the family -----------------------------------------------------------------------------

def sessions_of(protocol: Protocol) -> type[FamilySessions]:
    """The runtime's sessions with this protocol: a crash, and whatever the protocol has of its own, is its action."""
    class Mistaken(FamilySessions):
        def crash(self) -> list[Asked]:
            for session in self.sessions:
                session.take("crash")
            return super().crash()

        def take(
            self, name: str, session: int = 0, seq: int | None = None, variant: Variant = None,
        ) -> list[Asked]:
            """The runtime takes no step on a prompt that is done, whatever a protocol says."""
            if seq is not None and seq not in self.prompts[seq].session.prompts:
                raise LookupError(seq)
            return super().take(name, session, seq, variant)

        def arrive(self, session: int) -> list[Asked]:
            return self.take("arrive", session)

        def look(self, session: int) -> list[Asked]:
            return self.take("look", session)

        def answer(self, *named: Any) -> list[Asked]:
            """A mistake has an answer that names no prompt."""
            return self.take("answer", variant=named[0]) if len(named) == 1 else super().answer(*named)

    Mistaken.protocol = protocol
    return Mistaken


@pytest.mark.parametrize("mistake", [*one_for_each(lambda m: m.breaks, MISTAKES), *map(long, ASK_MISTAKES)],
                         ids=lambda mistake: mistake.name)
def test_every_mistake_of_the_family_runs_on_the_runtimes_session(mistake: ProtocolVariant) -> None:
    """The protocol is a value: with a mistake in it, model and runtime are still the same protocol."""
    bounds = mistake.bounds if DEEP else replace(mistake.bounds, prompts=min(2, mistake.bounds.prompts))
    assert replay(sessions_of(mistake.protocol), bounds, mistake.protocol)


@pytest.mark.parametrize("mistake", [*MISTAKES, *ASK_MISTAKES], ids=lambda mistake: mistake.name)
def test_the_replay_finds_every_mistake_of_the_family(mistake: ProtocolVariant) -> None:
    """And a runtime with the mistake is not the family: some edge differs, within the bounds that show the mistake."""
    right = Protocol("right", features=mistake.protocol.features)
    with pytest.raises(Difference):
        replay(sessions_of(mistake.protocol), mistake.bounds, right)
