"""The judge judged: of each seeded server the kit says exactly what is written beside it."""

from itertools import product
from math import inf

import pytest
from support.budget import long
from support.samples import seeded, seeded_clients, seeded_outside
from support.samples.table import FEW_SCHEDULES, SEEDED, Seeded

from cancelmark.conformance import judge, kit
from cancelmark.conformance.judging.guarantees import judge_history
from cancelmark.conformance.judging.history import CANCELS_ONE, ENDING, ClientCall, History, Track
from cancelmark.conformance.judging.judgement import STOPS
from cancelmark.conformance.report import Decision, Status

# What the kit was once wrong about, or did not look at. Each needs a guilty server and an innocent one.
SUBJECTS = {
    "canceled while its turn is held", "nothing to judge", "gone", "a judgement cut short", "slow",
    "one worker for all sessions", "a window of milliseconds", "a place to come back to", "sixteen sessions",
    "one more client", "a session deleted", "a slow subscriber", "sent again", "nobody watches",
    "a turn that outgrows its context", "a prompt that cannot start", "folding", "one prompt canceled",
    "a stop and the queue", "a stop and who is in front", "a queue on hold", "another text", "sent to interrupt",
    "only if idle", "to the front",
}
EVERY = [server for servers in SEEDED.values() for server in servers]


def test_of_each_subject_there_is_a_guilty_server_and_an_innocent_one() -> None:
    assert set(SEEDED) == SUBJECTS
    for subject, servers in SEEDED.items():
        assert {server.is_innocent for server in servers} == {False, True}, subject


def test_every_seeded_server_is_judged() -> None:
    bases = {seeded.Sound, seeded_outside.OnSockets}
    made = {kind for module in (seeded, seeded_clients, seeded_outside) for kind in vars(module).values()
            if isinstance(kind, type) and issubclass(kind, seeded.Sound)}
    assert made - {server.make for server in EVERY} <= bases


@pytest.mark.parametrize("server", [
    one if n == 0 or one.profile is FEW_SCHEDULES or one.decision is not Decision.CONFORMS else long(one, id=one.name)
    for servers in SEEDED.values() for n, one in enumerate(servers)], ids=lambda one: one.name)
def test_the_kit_is_right_about(server: Seeded) -> None:
    report = server.report
    assert set(report.broken) == server.broken, str(report)
    unsure = {v.guarantee: v.status for v in report.verdicts
              if v.status not in (Status.KEPT, Status.BROKEN, Status.NOT_CLAIMED, Status.NOT_OFFERED)}
    assert unsure == dict(server.unsure), str(report)
    assert report.decision is (Decision.BROKEN if server.broken else server.decision)


# --- each kind of bug is blamed under its own name, inside and outside

class StartsBeside(seeded.Sound):
    """Starts what comes at once, beside what runs."""

    def may_start(self, session: str) -> bool:
        return True


class FoldsWhatWasCleared(seeded_clients.Folds):
    """What a clear has dropped without a run id stays in the queue, where the next call of a turn finds it."""

    async def clear(self, session: str) -> None:
        self.lane(session).queue = [q for q in self.lane(session).queue if q.run_id is None]


SIXTEEN = next(s.text for s in kit.SCENARIOS if s.name == "sixteen sessions at once")
PLAYS: dict[type[seeded.Sound], tuple[str, str]] = {
    StartsBeside: ("single-active", "accept A; accept B"),
    seeded.LeavesTheRequestOpen: ("cancel-stops", "accept A; cancel"),
    seeded.CancelsWithAnError: ("attribution", "accept A; cancel"),
    seeded.CancelsWithAnAnswer: ("attribution", "accept A; cancel"),
    seeded.OneWorkerOfOneSession: ("all-done", "accept A; accept B @2; release"),
    seeded.ForgetsThePlace: ("delivery", "accept A; leave; release; return"),
    seeded.DiesOfAnIdleCancel: ("progress", "cancel"),
    seeded_clients.MixesUpSessions: ("isolation", SIXTEEN),
    seeded_clients.ForgetsWhenOneAttaches: ("some-terminal", "accept A; accept B; attach; release"),
    seeded_clients.DeletesInSilence: ("some-terminal", "accept A; accept B; delete"),
}


@pytest.mark.parametrize("where", ["inside", pytest.param("outside", marks=pytest.mark.real)])
@pytest.mark.parametrize("kind", list(PLAYS), ids=lambda kind: kind.__name__)
def test_a_bug_is_blamed_inside_and_outside(kind: type[seeded.Sound], where: str) -> None:
    guarantee, text = PLAYS[kind]
    if where == "outside":
        kind = type(kind.__name__, (kind, seeded_outside.OnSockets), {"claims": kind.claims, "patience": 0.5})
    report = judge(kind, scripts=[text], times=1)
    assert report.broken == [guarantee], str(report)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("call", [None, *ENDING, "hold", "next"])
def test_turns_overlap_outside_unless_a_call_may_have_ended_the_first(call: str | None, exact: bool) -> None:
    """The language model of a server outside learns late that a turn is over."""
    first = Track("A", "a", 0, True, 1, accepted=2, starts=[(3, 2)])
    second = Track("B", "b", 0, True, 6, accepted=7, starts=[(8, 7)])
    for begin, end, session in product((4, 9), (5, inf), (0, 1, None)):
        calls = [ClientCall(call, session, begin, max(begin, end))] if call else []
        history = History(True, exact, [first, second], calls)
        judge_history(history)
        excused = not exact and call in (*STOPS, "delete", *CANCELS_ONE) and begin < 8 and session != 1
        assert ("single-active" in history.broken) != excused


def test_what_is_taken_in_after_a_clear_was_not_dropped_from_the_queue() -> None:
    report = judge(FoldsWhatWasCleared, scripts=["accept A; accept B anonymous; clear; again"], times=1)
    assert report.broken == ["queue-dropped"], str(report)


@pytest.mark.real
def test_when_the_time_is_over_each_scenario_was_played_and_the_report_says_what_was_left_out() -> None:
    """Three scenarios test fifo; each was to be played twenty times, and is played once."""
    [unseen] = [s for s in SEEDED["a judgement cut short"] if s.decision is Decision.UNKNOWN]
    report = unseen.report
    assert [name for name, shown in report.scenarios.items() if shown is None] == [
        "overtaken-in-the-window", "queue-in-entry-order", "a queue of two"]
    assert report.notes[:2] == (
        "57 of 60 scenario runs were left out, because their time limit of 0 s was reached; each scenario ran at least "
        "once",
        "200 of 200 random histories did not run: their time limit of 0 s was reached")
    assert report.unplayed == 257
    assert report.notes[2].startswith(
        "the time limit of 0 s for guarantees that were tested too rarely was reached: fifo")
