"""The judge judged: of each seeded server the kit says exactly what is written beside it."""

import pytest

from cancelmark.conformance.report import Decision, Status
from cancelmark.conformance.samples import seeded, seeded_clients, seeded_outside
from cancelmark.conformance.samples.table import SEEDED, Seeded

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


@pytest.mark.parametrize("server", EVERY, ids=lambda server: server.name)
def test_the_kit_is_right_about(server: Seeded) -> None:
    report = server.report
    assert set(report.broken) == server.broken, str(report)
    unsure = {v.guarantee: v.status for v in report.verdicts
              if v.status not in (Status.KEPT, Status.BROKEN, Status.NOT_CLAIMED, Status.NOT_OFFERED)}
    assert unsure == dict(server.unsure), str(report)
    assert report.decision is (Decision.BROKEN if server.broken else server.decision)


def test_when_the_time_is_over_each_scenario_was_played_and_the_report_says_what_was_left_out() -> None:
    """Three scenarios test fifo; each was to be played twenty times, and is played once."""
    [unseen] = [s for s in SEEDED["a judgement cut short"] if s.decision is Decision.UNKNOWN]
    report = unseen.report
    assert [name for name, shown in report.scenarios.items() if shown is None] == [
        "overtaken-in-the-window", "queue-in-entry-order", "a queue of two"]
    assert report.notes[:2] == (
        "57 of 60 plays of scenarios were left out, because the 0 s for them were over; each was played at least "
        "once",
        "200 of 200 random histories were not played: the 0 s for them were over")
    assert report.unplayed == 257
    assert report.notes[2].startswith("the 0 s to test more often what was tested too seldom were over: fifo")
