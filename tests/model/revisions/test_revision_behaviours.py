"""The original's own tests, replayed on the models of its revisions: a model of r4 that fails r4's tests is not r4.

A commit's tests hold for the revision that it made and for all later ones, as they did in the original's test suite.
Where the original plants private state (a queue, a mark) the test plants the same; everything else is reached by calls.
`test_the_behaviour_is_missing_from_an_older_revision` runs some of them where they must fail.

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

from cancelmark.model.actions import Action
from cancelmark.model.effects import Acknowledge, Effect, End, Fold, Record, Report, Start
from cancelmark.model.lifecycle import Outcome, Row, State
from cancelmark.model.protocol import Move
from cancelmark.model.revisions import REVISIONS, Revision
from cancelmark.model.revisions.agent import Agent, Entry
from cancelmark.model.session import Prompt, label
from cancelmark.model.trace import Trace, replay

# --- What a caller can see, and what the original's tests peek at -------------------------------------------------

@dataclass(frozen=True)
class Seen:
    """What happened, by the labels of the prompts."""

    trace: Trace

    @property
    def agent(self) -> Agent:
        return cast(Agent, self.trace.states[-1].sessions[0])

    @property
    def effects(self) -> list[Effect]:
        return [effect for step in self.trace.steps for effect in step.effects]

    def prompt(self, name: str) -> Prompt:
        return self.agent.prompt(seq_of(name))

    def became(self, name: str) -> State | Outcome:
        """Where the prompt is, or how it ended."""
        prompt = self.prompt(name)
        return prompt.outcome or prompt.state

    @property
    def started(self) -> list[str]:
        """Turns that called the language model."""
        return [label(e.seq) for e in self.effects if isinstance(e, Start)]

    @property
    def recorded(self) -> list[str]:
        """Prompts that left a user message and a canceled assistant message without having run."""
        return [label(e.seq) for e in self.effects if isinstance(e, Record)]

    @property
    def folded(self) -> list[str]:
        return [label(e.seq) for e in self.effects if isinstance(e, Fold)]

    @property
    def messages(self) -> int:
        """Messages in the session: user and assistant of every turn that ran or was recorded, user of every fold."""
        return 2 * len(self.started) + 2 * len(self.recorded) + len(self.folded)

    @property
    def run_completes(self) -> list[str]:
        """The RunComplete events. One that a prompt shares with the turn it folded into is not an event of its own."""
        return [f"{label(e.seq)} {e.outcome.value}" for e in self.effects
                if isinstance(e, End) and e.outcome is not Outcome.FOLDED]

    @property
    def error_notices(self) -> list[str]:
        return [label(e.seq) for e in self.effects if isinstance(e, Report)]

    @property
    def queue(self) -> list[str]:
        return [label(e.seq) for e in self.agent.queue_entries]

    @property
    def cancel_is_pending(self) -> bool:
        return self.agent.flag or self.agent.mark > 0


def seq_of(name: str) -> int:
    return ord(name) - ord("A") + 1


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


def holding(*queue: Waiting, mark: int = 0) -> Agent:
    """A session with this queue and this mark, which was the latest accept sequence when it was set."""
    return Agent(
        prompts=tuple(Prompt(seq_of(w.name), w.run_id, State.QUEUED) for w in queue),
        queue_entries=tuple(Entry(seq_of(w.name), w.accept_seq) for w in queue), mark=mark, accept_gen=mark)


def with_pending_cancel(revision: Revision, *queue: Waiting) -> Agent:
    """As the revision keeps it: r1 has a flag, the later ones a mark."""
    return holding(*queue)._replace(flag=True) if revision.name == "r1" else holding(*queue, mark=1)


def play(revision: Revision, calls: str, start: Agent | None = None) -> Seen:
    return Seen(replay(revision if start is None else Planted(revision, start), calls.split("; ")))


IN_PROCESS = "accept A in process; look A; begin A; "  # A runs, and has no accept handle
TO_THE_END = "finish A end_turn; leave A; hand_off A; clean_up A; return A"
CANCELED, END_TURN, ERROR = Outcome.CANCELED, Outcome.END_TURN, Outcome.ERROR


def since(number: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("revision", REVISIONS[number:], ids=lambda r: r.name)


# --- r1, seed 002: reservations ----------------------------------------------------------------------------------

@since(1)
def test_releasing_an_accepted_prompt_twice_has_no_effect_the_second_time(revision: Revision) -> None:
    entered = play(revision, "accept A; accept B; enter A")
    returned = play(revision, "accept A; accept B; enter A; finish A error; clean_up A; return A")
    assert (entered.agent.accepted, returned.agent.accepted) == (1, 1)


@since(1)
def test_several_accepted_prompts_are_counted_each(revision: Revision) -> None:
    seen = play(revision, "accept A; accept B; enter A; enter B")
    assert [cast(Agent, s.sessions[0]).accepted for s in seen.trace.states] == [0, 1, 2, 1, 0]


@since(1)
def test_releasing_nothing_is_safe(revision: Revision) -> None:
    seen = play(revision, IN_PROCESS + "accept B; cancel; finish A canceled; clean_up A; return A")
    assert seen.agent.accepted == 1
    assert seen.cancel_is_pending


# --- r1, seed 002: cancel ----------------------------------------------------------------------------------------

@since(1)
def test_an_idle_cancel_is_not_pending_and_changes_nothing(revision: Revision) -> None:
    seen = play(revision, "cancel")
    assert seen.agent == revision.start
    assert not seen.effects


@since(1)
def test_a_cancel_with_an_accepted_prompt_is_pending(revision: Revision) -> None:
    assert play(revision, "accept A; cancel").cancel_is_pending


@since(1)
def test_a_second_cancel_while_one_is_pending_changes_nothing(revision: Revision) -> None:
    assert play(revision, "accept A; cancel; cancel").agent == play(revision, "accept A; cancel").agent


@since(1)
def test_one_cancel_with_an_active_and_an_accepted_prompt_does_both(revision: Revision) -> None:
    seen = play(revision, "accept A; enter A; accept B; cancel")
    assert seen.agent.covered(seen.prompt("A"))
    assert seen.cancel_is_pending


# --- r1, seed 002: entry and queue -------------------------------------------------------------------------------

@since(1)
def test_canceled_on_entry_writes_both_messages_and_never_calls_the_model(revision: Revision) -> None:
    seen = play(revision, "accept A; cancel; enter A; settle A; return A")
    assert (seen.became("A"), seen.recorded, seen.started) == (CANCELED, ["A"], [])
    assert not seen.cancel_is_pending
    assert seen.agent.accepted == 0


@since(1)
def test_the_cancel_check_precedes_the_busy_check(revision: Revision) -> None:
    seen = play(revision, "accept A; enter A; accept B; cancel; enter B; settle B")
    assert (seen.became("B"), seen.recorded, seen.queue) == (CANCELED, ["B"], [])
    assert not seen.cancel_is_pending
    assert seen.agent.accepted == 0


@since(1)
def test_a_step_skips_what_was_queued_before_a_pending_cancel(revision: Revision) -> None:
    step = "step A; fold A; " if revision.name == "r2" else "step A; "  # r2 looks at the mark after the unlock
    seen = play(revision, IN_PROCESS + step + TO_THE_END, with_pending_cancel(revision, Waiting("Z", 0)))
    assert (seen.became("A"), seen.became("Z")) == (END_TURN, CANCELED)
    assert (seen.folded, seen.queue) == ([], [])
    assert not seen.cancel_is_pending


@since(1)
def test_a_stale_cancel_goes_with_the_next_turn_that_ends_well(revision: Revision) -> None:
    seen = play(revision, IN_PROCESS + TO_THE_END, with_pending_cancel(revision))
    assert (seen.became("A"), seen.messages) == (END_TURN, 2)
    assert not seen.cancel_is_pending


@since(1)
def test_a_queued_prompt_loses_its_hook_and_keeps_its_run_id(revision: Revision) -> None:
    seen = play(revision, "accept A; enter A; accept B run id; enter B; return B")
    assert seen.queue == ["B"]
    assert seen.prompt("B").run_id
    assert seen.agent.queue_entries[0].hook == 0


# --- r2, seeds 000 and 001 ---------------------------------------------------------------------------------------

@since(2)
def test_canceled_on_entry_publishes_one_canceled_run_complete(revision: Revision) -> None:
    seen = play(revision, "accept A run id; cancel; enter A; settle A; return A")
    assert seen.run_completes == ["A canceled"]


@since(2)
def test_one_cancel_cancels_both_of_two_accepted_prompts(revision: Revision) -> None:
    assert play(revision, "accept A; accept B; cancel").agent.mark == 2
    seen = play(revision, "accept A; accept B; cancel; enter A; settle A; return A; enter B; settle B; return B")
    assert (seen.recorded, seen.started, seen.messages) == (["A", "B"], [], 4)
    assert seen.queue == []
    assert (seen.cancel_is_pending, seen.agent.accepted) == (False, 0)


@since(2)
def test_after_an_idle_cancel_the_next_prompt_runs_normally(revision: Revision) -> None:
    seen = play(revision, "cancel; accept A; enter A; " + TO_THE_END)
    assert (seen.became("A"), seen.started, seen.recorded) == (END_TURN, ["A"], [])


@since(2)
def test_a_prompt_accepted_after_the_cancel_is_not_poisoned_and_does_not_consume_it(revision: Revision) -> None:
    c_runs = ("accept A; accept B; cancel; accept C; "
              "enter C; finish C end_turn; leave C; hand_off C; clean_up C; return C")
    assert play(revision, c_runs).agent.mark == 2
    seen = play(revision, c_runs + "; enter A; settle A; return A; enter B; settle B; return B")
    assert (seen.became("C"), seen.started, seen.recorded, seen.messages) == (END_TURN, ["C"], ["A", "B"], 6)
    assert seen.queue == []
    assert (seen.cancel_is_pending, seen.agent.accepted) == (False, 0)


@since(2)
def test_a_stale_mark_catches_nobody(revision: Revision) -> None:
    seen = play(revision, "accept A; enter A", with_pending_cancel(revision))
    assert seen.became("A") is State.ACTIVE


# --- r3, seed 004: the drain -------------------------------------------------------------------------------------

@since(3)
def test_a_step_drops_what_the_mark_covers_and_folds_what_is_above_it(revision: Revision) -> None:
    start = holding(Waiting("W", 1), Waiting("X", 2), Waiting("Y", 3), Waiting("Z", 0), mark=2)
    seen = play(revision, IN_PROCESS + "step A", start)
    assert seen.folded == ["Y"]
    assert [seen.became(dropped) for dropped in "WXZ"] == [CANCELED] * 3
    assert (seen.queue, seen.run_completes) == ([], [])


@since(3)
def test_without_a_mark_a_step_folds_every_prompt_without_a_run_id(revision: Revision) -> None:
    seen = play(revision, IN_PROCESS + "step A", holding(Waiting("Y", 0), Waiting("Z", 5)))
    assert (seen.folded, seen.queue) == (["Y", "Z"], [])


# --- r4, seed 003: run ids ---------------------------------------------------------------------------------------

@since(4)
def test_a_step_keeps_prompts_with_a_run_id_queued_in_order(revision: Revision) -> None:
    start = holding(Waiting("X", 1), Waiting("Y", 2, run_id=True), Waiting("Z", 3, run_id=True))
    seen = play(revision, IN_PROCESS + "step A", start)
    assert (seen.folded, seen.queue, seen.run_completes) == (["X"], ["Y", "Z"], [])


@since(4)
def test_a_step_that_drops_a_prompt_with_a_run_id_publishes_one_canceled_run_complete(revision: Revision) -> None:
    start = holding(Waiting("X", 1, run_id=True), Waiting("Y", 1), Waiting("Z", 5, run_id=True), mark=2)
    seen = play(revision, IN_PROCESS + "step A", start)
    assert (seen.folded, seen.queue) == ([], ["Z"])
    assert seen.run_completes == ["X canceled"]
    assert (seen.became("Y"), seen.prompt("Y").ends) == (CANCELED, 0)


@since(4)
def test_a_queued_prompt_with_a_run_id_that_a_cancel_drops_publishes_one_canceled_run_complete(
    revision: Revision,
) -> None:
    seen = play(revision, "cancel", holding(Waiting("Y", 1), Waiting("Z", 2, run_id=True)))
    assert seen.queue == []
    assert seen.run_completes == ["Z canceled"]


@since(4)
def test_a_queued_prompt_with_a_run_id_runs_as_its_own_turn_and_both_publish_their_own_end(revision: Revision) -> None:
    seen = play(revision, "accept A run id; enter A; accept B run id; enter B; return B; "
                "finish A end_turn; leave A; hand_off A; enter B; "
                "finish B end_turn; leave B; hand_off B; clean_up B; clean_up A; return A")
    assert (seen.started, seen.folded, seen.messages) == (["A", "B"], [], 4)
    assert sorted(seen.run_completes) == ["A end_turn", "B end_turn"]


# --- r4, seed 003: the backend -----------------------------------------------------------------------------------

@since(4)
def test_acceptance_returns_at_once(revision: Revision) -> None:
    seen = play(revision, "accept A")
    assert seen.effects == [Acknowledge(1)]
    assert seen.became("A") is State.ACCEPTED


@since(4)
def test_a_workspace_that_is_closing_accepts_nothing(revision: Revision) -> None:
    with pytest.raises(ValueError, match="cannot happen here"):
        play(revision, "close; accept A")


@since(4)
def test_a_cancel_after_the_202_and_before_the_run_is_active_gives_a_canceled_turn(revision: Revision) -> None:
    seen = play(revision, "accept A; cancel; enter A; settle A; return A")
    assert (seen.recorded, seen.started, seen.messages) == (["A"], [], 2)
    assert (seen.error_notices, seen.agent.goroutines) == ([], ())


@since(4)
def test_the_canceled_turn_is_written_even_when_the_context_is_already_canceled(revision: Revision) -> None:
    seen = play(revision, "accept A; cancel; close; close…; enter A; settle A; return A")
    assert (seen.recorded, seen.started, seen.run_completes) == (["A"], [], ["A canceled"])


@since(4)
def test_an_error_before_the_run_could_start_publishes_one_errored_run_complete(revision: Revision) -> None:
    seen = play(revision, "accept A run id; fail A; return A")
    assert (seen.became("A"), seen.started) == (ERROR, [])
    assert (seen.run_completes, seen.error_notices) == (["A error"], ["A"])


@since(4)
def test_if_the_end_was_already_published_there_is_no_second_one(revision: Revision) -> None:
    seen = play(revision, "accept A run id; enter A; finish A error; clean_up A; return A")
    assert seen.run_completes == ["A error"]


@since(4)
def test_a_run_whose_context_was_canceled_publishes_no_error(revision: Revision) -> None:
    seen = play(revision, "accept A run id; close; close…; fail A; return A")
    assert (seen.run_completes, seen.error_notices) == ([], [])


# --- r4, seed 003: end to end ------------------------------------------------------------------------------------

@since(4)
def test_another_clients_cancel_ends_the_run_canceled_and_gives_nobody_an_error(revision: Revision) -> None:
    # The step that creates the assistant message is a step of the model only if it finds something to take in.
    seen = play(revision, "accept A run id; enter A; accept B; enter B; step A; cancel; "
                "finish A canceled; clean_up A; return A")
    assert (seen.became("A"), seen.run_completes) == (CANCELED, ["A canceled"])
    assert seen.error_notices == []


@since(4)
def test_a_cancel_between_active_and_the_assistant_message_does_not_return_in_silence(revision: Revision) -> None:
    seen = play(revision, "accept A run id; enter A; cancel; finish A canceled; clean_up A; return A")
    assert (seen.became("A"), seen.run_completes) == (CANCELED, ["A canceled"])
    assert seen.error_notices == []


@since(4)
def test_a_cancel_of_the_active_run_also_cancels_the_accepted_follow_up_which_never_streams(
    revision: Revision,
) -> None:
    seen = play(revision, "accept A; enter A; accept B; cancel; enter B; settle B; return B; "
                "finish A canceled; clean_up A; return A")
    assert (seen.became("A"), seen.became("B")) == (CANCELED, CANCELED)
    assert (seen.started, seen.recorded) == (["A"], ["B"])


# --- r4, seed 003: said by the code, and pinned by no test of the original -----------------------------------------

@since(4)
def test_a_turn_that_runs_when_the_workspace_closes_publishes_that_it_was_canceled(revision: Revision) -> None:
    seen = play(revision, "accept A run id; enter A; close; close…; finish A canceled; clean_up A; return A")
    assert (seen.run_completes, seen.error_notices) == (["A canceled"], [])


@since(4)
def test_a_turn_that_ended_well_as_the_workspace_closed_is_published_as_canceled(revision: Revision) -> None:
    seen = play(revision, "accept A run id; enter A; finish A end_turn; close; close…; "
                "leave A; hand_off A; clean_up A; return A")
    assert (seen.became("A"), seen.run_completes) == (END_TURN, ["A canceled"])


@since(4)
def test_clearing_an_empty_queue_is_over_at_once(revision: Revision) -> None:
    assert play(revision, "clear_queue").agent == revision.start


@since(4)
def test_a_session_that_was_summarized_looks_idle_before_its_turn_has_left(revision: Revision) -> None:
    seen = play(revision, "accept A; enter A; summarize A; begin_summary A; requeue A; accept B; enter B")
    assert (seen.queue, seen.became("B")) == (["A"], State.ACTIVE)


@since(4)
def test_a_turn_that_was_canceled_before_its_summary_does_not_go_on(revision: Revision) -> None:
    seen = play(revision, "accept A run id; enter A; cancel; summarize A; begin_summary A; clean_up A; return A")
    assert (seen.queue, seen.run_completes) == ([], ["A canceled"])


# --- Each of these tests can fail --------------------------------------------------------------------------------

BY_NAME = {revision.name: revision for revision in REVISIONS}


@pytest.mark.parametrize(("behaviour", "older"), [
    (test_a_cancel_with_an_accepted_prompt_is_pending, "r0"),
    (test_canceled_on_entry_publishes_one_canceled_run_complete, "r1"),
    (test_one_cancel_cancels_both_of_two_accepted_prompts, "r1"),
    (test_a_step_drops_what_the_mark_covers_and_folds_what_is_above_it, "r2"),
    (test_a_step_keeps_prompts_with_a_run_id_queued_in_order, "r3"),
    (test_a_step_that_drops_a_prompt_with_a_run_id_publishes_one_canceled_run_complete, "r3"),
    (test_a_queued_prompt_with_a_run_id_that_a_cancel_drops_publishes_one_canceled_run_complete, "r3"),
    (test_a_queued_prompt_with_a_run_id_runs_as_its_own_turn_and_both_publish_their_own_end, "r3"),
    (test_an_error_before_the_run_could_start_publishes_one_errored_run_complete, "r3"),
])
def test_the_behaviour_is_missing_from_an_older_revision(behaviour: Callable[[Revision], None], older: str) -> None:
    with pytest.raises(AssertionError):
        behaviour(BY_NAME[older])
