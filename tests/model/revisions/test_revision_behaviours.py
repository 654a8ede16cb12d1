"""The original's own tests, replayed on the models of its revisions: a model of r4 that fails r4's tests is not r4.

A commit's tests hold for the revision that it made and for all later ones, as they did in the original's test suite.
What callers can see is in `test_behaviours`. Here is the rest: tests that plant private state (a queue, a mark), that
peek at it, or that need a prompt sent from inside the process, a summary or a close.

Pinned by the original and not expressible in a model of dispatch:
- unknown workspace, agent not initialized, empty prompt, missing session: checked before anything is accepted.
- shutdown waits for the run: nothing follows the wait in the model, so there is nothing for it to hold up.
- only the assistant message is written if the user message exists; cancel between "active" and "assistant message
  created" leaves both messages: `Record` is both messages at once, for prompts that never ran. What is asserted of the
  latter is that the turn does not return in silence.
- a queued prompt keeps its text; an event carries text and message id: prompts have no text here.
- clearPendingCancel: no code but a test calls it.
- must-deliver overtakes publish: pubsub; delivery is judged apart from publication.
- 202 and 200, error bodies, error events of another run id, run ids on the wire, no 500 for a canceled run: transport.
- dropping the posting request, its deadline, a run that outlives its poster: requests and clients are not modelled, and
  no step of a run asks for one.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, cast

import pytest
from support.behaviours import Sees
from support.model_player import ModelPlayer

from cancelmark.model.actions import Action
from cancelmark.model.effects import Acknowledge
from cancelmark.model.lifecycle import Row, State
from cancelmark.model.protocol import Move
from cancelmark.model.revisions import REVISIONS, Revision
from cancelmark.model.revisions.agent import Agent, Entry
from cancelmark.model.session import Prompt

# --- what the original's tests plant ------------------------------------------------------------------------------

@dataclass(frozen=True)
class Planted:
    """A revision whose session starts with state that a test of the original plants."""

    revision: Revision
    start: Agent

    @property
    def name(self) -> str:
        return self.revision.name

    @property
    def rows(self) -> tuple[Row, ...]:
        return self.revision.rows

    @property
    def actions(self) -> tuple[Action, ...]:
        return self.revision.actions

    def limited(self, actions: tuple[Action, ...]) -> "Planted":
        return Planted(self.revision.limited(actions), self.start)

    def moves(self, session: Agent, seq: int) -> Iterable[Move]:
        return self.revision.moves(session, seq)


class Waiting(NamedTuple):
    """A planted queue entry. Its name comes late in the alphabet, where no prompt that the test accepts can be."""

    name: str
    accept_seq: int
    run_id: bool = False


Plant = Callable[[Revision], Agent]


def holding(*queue: Waiting, mark: int = 0) -> Plant:
    """A session with this queue and this mark, which was the latest accept sequence when it was set."""
    seqs = [ord(w.name) - ord("A") + 1 for w in queue]
    return lambda revision: Agent(
        prompts=tuple(Prompt(seq, w.run_id, State.QUEUED) for seq, w in zip(seqs, queue)),
        queue_entries=tuple(Entry(seq, w.accept_seq) for seq, w in zip(seqs, queue)), mark=mark, accept_gen=mark)


def with_pending_cancel(*queue: Waiting) -> Plant:
    """As the revision keeps it: r1 has a flag, the later ones a mark."""
    return lambda revision: (holding(*queue)(revision)._replace(flag=True) if revision.name == "r1"
                             else holding(*queue, mark=1)(revision))


class Pinned(NamedTuple):
    """What is planted, the calls, what must be seen then, and the first revision that shows it."""

    name: str
    since: int
    calls: str
    sees: Sees
    plant: Plant = lambda revision: revision.start


IN_PROCESS = "accept A in process; look A"  # A runs, and has no accept handle; its first step looks at the queue
BY_CALLERS = (
    # r1, seed 002
    Pinned("releasing an accepted prompt twice has no effect the second time", 0,
           "accept A; accept B; enter A; finish A error", Sees("A error, B accepted")),
    Pinned("releasing nothing is safe", 1,
           IN_PROCESS + "; accept B; cancel", Sees("A canceled, B accepted", pending=True)),
    Pinned("a step skips what was queued before a pending cancel", 1, IN_PROCESS + "; finish A end_turn",
           Sees("A end_turn, Z canceled", queue="", pending=False), with_pending_cancel(Waiting("Z", 0))),
    Pinned("a stale cancel goes with the next turn that ends well", 1, IN_PROCESS + "; finish A end_turn",
           Sees("A end_turn", messages="user end_turn", pending=False), with_pending_cancel()),
    # r2, seeds 000 and 001
    Pinned("a stale mark catches nobody", 2, "accept A; enter A", Sees("A active"), with_pending_cancel()),
    # r3, seed 004: the drain
    Pinned("a step drops what the mark covers and folds what is above it", 2, IN_PROCESS,
           Sees("A active, W canceled, X canceled, Y folded, Z canceled", ends="", queue=""),
           holding(Waiting("W", 1), Waiting("X", 2), Waiting("Y", 3), Waiting("Z", 0), mark=2)),
    Pinned("without a mark a step folds every prompt without a run id", 1, IN_PROCESS,
           Sees("A active, Y folded, Z folded", queue=""), holding(Waiting("Y", 0), Waiting("Z", 5))),
    # r4, seed 003: run ids
    Pinned("a step keeps prompts with a run id queued in order", 4, IN_PROCESS,
           Sees("A active, X folded, Y queued, Z queued", ends="", queue="YZ"),
           holding(Waiting("X", 1), Waiting("Y", 2, run_id=True), Waiting("Z", 3, run_id=True))),
    Pinned("a step that drops a prompt with a run id publishes one canceled run complete", 4, IN_PROCESS,
           Sees("A active, X canceled, Y canceled, Z queued", ends="X canceled", queue="Z"),
           holding(Waiting("X", 1, run_id=True), Waiting("Y", 1), Waiting("Z", 5, run_id=True), mark=2)),
    Pinned("a queued prompt with a run id that a cancel drops publishes one canceled run complete", 4, "cancel",
           Sees("Y canceled, Z canceled", ends="Z canceled", queue=""),
           holding(Waiting("Y", 1), Waiting("Z", 2, run_id=True))),
    # r4, seed 003: the backend, and end to end
    Pinned("the canceled turn is written even when the context is already canceled", 4,
           "accept A; cancel; close; enter A", Sees("A canceled", ends="A canceled", messages="user canceled", ran="")),
    Pinned("a run whose context was canceled publishes no error", 4,
           "accept A run id; close; fail A", Sees(ends="", errors="")),
    # The step that creates the assistant message is a step of the model only if it finds something to take in.
    Pinned("another clients cancel ends the run canceled and gives nobody an error", 0,
           "accept A run id; enter A; accept B; enter B; step A; cancel",
           Sees("A canceled, B folded", ends="A canceled", errors="")),
    # said by the code of r4, and pinned by no test of the original
    Pinned("a turn that runs when the workspace closes publishes that it was canceled", 4,
           "accept A run id; enter A; close", Sees("A canceled", ends="A canceled", errors="")),
)


def play(revision: Revision, pinned: Pinned) -> None:
    player = ModelPlayer(Planted(revision, pinned.plant(revision)))
    for call in pinned.calls.split("; "):
        player.play(call)
    pinned.sees.check(revision.name, player.see())


@pytest.mark.parametrize("pinned", BY_CALLERS, ids=lambda pinned: pinned.name)
def test_the_revisions_show_it_since(pinned: Pinned) -> None:
    for revision in REVISIONS[pinned.since:]:
        play(revision, pinned)
    if pinned.since:
        with pytest.raises((AssertionError, ValueError)):
            play(REVISIONS[pinned.since - 1], pinned)


# --- what only the model can see, or only call by call --------------------------------------------------------------

def since(number: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("revision", REVISIONS[number:], ids=lambda r: r.name)


def take(revision: Revision, calls: str) -> ModelPlayer:
    """Just these calls, and nothing that would follow by itself."""
    player = ModelPlayer(revision)
    for call in calls.split("; "):
        player.take(call)
    return player


def agent(player: ModelPlayer) -> Agent:
    return cast(Agent, player.trace.states[-1].sessions[0])


@since(1)
def test_an_idle_cancel_is_not_pending_and_changes_nothing(revision: Revision) -> None:
    player = take(revision, "cancel")
    assert agent(player) == revision.start
    assert not player.trace.steps[0].effects


@since(1)
def test_a_second_cancel_while_one_is_pending_changes_nothing(revision: Revision) -> None:
    assert agent(take(revision, "accept A; cancel; cancel")) == agent(take(revision, "accept A; cancel"))


@since(1)
def test_a_queued_prompt_loses_its_hook_and_keeps_its_run_id(revision: Revision) -> None:
    player = take(revision, "accept A; enter A; accept B run id; enter B; return B")
    assert player.see().queue == "B"
    assert agent(player).prompt(2).run_id
    assert agent(player).queue_entries[0].hook == 0


@since(4)
def test_acceptance_returns_at_once(revision: Revision) -> None:
    player = take(revision, "accept A")
    assert player.trace.steps[0].effects == (Acknowledge(1),)
    assert player.see().became == "A accepted"


@since(4)
def test_a_workspace_that_is_closing_accepts_nothing(revision: Revision) -> None:
    with pytest.raises(ValueError, match="not enabled here"):
        take(revision, "close; accept A")


@since(4)
def test_a_turn_that_ended_well_as_the_workspace_closed_is_published_as_canceled(revision: Revision) -> None:
    seen = take(revision, "accept A run id; enter A; finish A end_turn; close; close…; "
                "leave A; hand_off A; clean_up A; return A").see()
    assert (seen.became, seen.ends) == ("A end_turn", "A canceled")


@since(4)
def test_clearing_an_empty_queue_is_over_at_once(revision: Revision) -> None:
    assert agent(take(revision, "clear_queue")) == revision.start


@since(4)
def test_a_session_that_was_summarized_looks_idle_before_its_turn_has_left(revision: Revision) -> None:
    seen = take(revision, "accept A; enter A; summarize A; begin_summary A; requeue A; accept B; enter B").see()
    assert (seen.queue, seen.became) == ("A", "A queued, B active")


@since(4)
def test_a_turn_that_was_canceled_before_its_summary_does_not_go_on(revision: Revision) -> None:
    seen = take(revision, "accept A run id; enter A; cancel; summarize A; begin_summary A; clean_up A; return A").see()
    assert (seen.queue, seen.ends) == ("", "A canceled")
