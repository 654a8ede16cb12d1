"""The judge judged: what the kit must say of each seeded server, by what the server is about.

Of each subject there is a guilty one, and an innocent one that looks guilty.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from support.budget import effort

from cancelmark.conformance.adapter import Adapter
from cancelmark.conformance.judging.guarantees import OF_THE_FAMILY
from cancelmark.conformance.kit import judge
from cancelmark.conformance.profile import Profile
from cancelmark.conformance.report import Decision, Report, Status

from . import seeded as one
from . import seeded_clients as several
from . import seeded_outside as outside
from .family import claiming

FEW = Profile(
    "seeded", histories=0, schedules=effort(2, 4), inside=effort(25, 60), repeats=1, shrinks=effort(0, 30), seconds=0)
RACES = Profile("races", histories=0, schedules=0, inside=0, repeats=1, shrinks=0, seconds=0, limit=10, races=40)
SHORT = Profile("cut short", histories=200, schedules=0, inside=0, repeats=20, shrinks=0, seconds=0, again=0, limit=0)
FEW_SCHEDULES = Profile("schedules", histories=0, schedules=8, inside=0, repeats=1, shrinks=0, seconds=0)
SCHEDULES = replace(FEW_SCHEDULES, schedules=40)
SCENARIOS = Profile("scenarios", histories=200, schedules=0, inside=0, repeats=20, shrinks=0, seconds=0, limit=0)


@dataclass(frozen=True)
class Seeded:
    """A server, and what the kit must say of it."""

    make: type[Adapter]
    says: str  # what it does
    broken: frozenset[str] = frozenset()  # exactly these; none: it is innocent, or nobody can know
    unsure: Mapping[str, Status] = field(default_factory=dict)  # what is claimed, and neither kept nor broken
    decision: Decision = Decision.CONFORMS
    profile: Profile = FEW

    @property
    def name(self) -> str:
        return self.make.__name__

    @property
    def is_innocent(self) -> bool:
        return not self.broken and self.decision is not Decision.UNKNOWN

    @cached_property
    def report(self) -> Report:
        return judge(self.make, profile=self.profile)


def _breaks(*guarantees: str) -> frozenset[str]:
    return frozenset(guarantees)


def _family(guarantee: str, *mistakes: str, profile: Profile = FEW_SCHEDULES) -> tuple[Seeded, ...]:
    """Servers of the family that are judged by one guarantee: with each of these mistakes, and without any."""
    guilty = [Seeded(claiming(guarantee, mistake), mistake, _breaks(guarantee), profile=profile)
              for mistake in mistakes]
    return (*guilty, Seeded(claiming(guarantee), "makes no mistake", profile=profile))


UNTESTED = Status.NOT_TESTED

SEEDED: Mapping[str, tuple[Seeded, ...]] = {
    "canceled while its turn is held": (
        Seeded(one.CancelsWithAnError, "ends a turn that was canceled while it was running with `error`",
               _breaks("attribution")),
        Seeded(one.CancelsWithAnAnswer, "ends such a turn with `end_turn`", _breaks("attribution")),
        Seeded(one.LeavesTheRequestOpen, "ends such a turn correctly, but leaves its request to the language model "
               "open", _breaks("cancel-stops", "single-active", "no-lost-cancel")),
        Seeded(one.FailsByItself, "ends such a turn with `error`, and declares that its turns may fail by themselves"),
        Seeded(one.Sound, "has no bug"),
    ),
    "nothing to judge": (
        Seeded(one.RefusesEverything, "accepts no prompt, so nothing can be tested", decision=Decision.UNKNOWN,
               unsure=dict.fromkeys(one.Sound.claims - OF_THE_FAMILY, UNTESTED)),
        Seeded(one.RefusesWhileBusy, "has no queue, and refuses while it is busy", decision=Decision.NOTHING_BROKEN,
               unsure=dict.fromkeys(
                   ("queue-dropped", "single-active", "fifo", "prompt-terminal", "all-done"), UNTESTED)),
    ),
    "gone": (
        Seeded(one.DiesOfAnIdleCancel, "breaks the connection when an idle session is canceled", _breaks("progress"),
               {"idle-cancel-noop": UNTESTED}),
        Seeded(one.ExitsWhenShut, "exits when it is shut: its stream ends, and its port is closed"),
    ),
    "a judgement cut short": (
        Seeded(outside.OvertakesLater, "starts the last prompt first, after twenty histories", _breaks("fifo"),
               profile=SCENARIOS),
        Seeded(outside.OvertakesLater, "does the same, but the time limit is too short to observe it",
               unsure={"fifo": UNTESTED}, decision=Decision.UNKNOWN, profile=SHORT),
        Seeded(outside.InOrder, "starts all prompts in order; the time is enough only for scenarios, which suffice",
               profile=SCENARIOS),
    ),
    "slow": (
        Seeded(one.SlowAndSilent, "takes five seconds to start a turn, and publishes no terminal event for dropped "
               "prompts", _breaks("some-terminal")),
        Seeded(one.Slow, "takes five seconds to start a turn, and five to end it"),
    ),
    "one worker for all sessions": (
        Seeded(one.OneWorkerOfOneSession, "runs one turn at a time, and forgets the other sessions",
               _breaks("all-done")),
        Seeded(one.OneWorker, "runs one turn at a time over all sessions, and declares it (`capacity`)"),
    ),
    "a window of milliseconds": (
        Seeded(outside.StrandsInTheWindow, "forgets a prompt that arrives some milliseconds after the response to a "
               "cancel", _breaks("all-done"), profile=RACES),
        Seeded(outside.LateInTheWindow, "starts such a prompt a tenth of a second later", profile=RACES),
    ),
    "a place to come back to": (
        Seeded(one.ForgetsThePlace, "has event ids, but restarts the stream for a subscriber that comes back",
               _breaks("delivery")),
        Seeded(one.HasNoIds, "publishes events without ids", unsure={"delivery": Status.NOT_OBSERVABLE}),
    ),
    "sixteen sessions": (
        Seeded(several.MixesUpSessions, "a cancel reaches every ninth session", _breaks("isolation")),
        Seeded(several.StartsSlowly, "is slow to start turns, even in sixteen sessions"),
    ),
    "one more client": (
        Seeded(several.ForgetsWhenOneAttaches, "forgets its queues when another client connects",
               _breaks("some-terminal")),
        Seeded(several.Attaches, "is slow to connect another client"),
    ),
    "a session deleted": (
        Seeded(several.DeletesInSilence, "deletes a session, and publishes no terminal event for its queued prompts",
               _breaks("some-terminal")),
        Seeded(several.Deletes, "is slow to delete a session"),
    ),
    "a slow subscriber": (
        Seeded(several.DropsForTheSlow, "drops terminal events for a slow subscriber", _breaks("delivery")),
        Seeded(several.KeepsForTheSlow, "buffers terminal events for a slow subscriber"),
    ),
    "sent again": (
        Seeded(several.RunsTwice, "runs a resent prompt twice", _breaks("run-ids")),
        Seeded(several.KnowsRunIds, "deduplicates a resent prompt, and refuses another one under its run id"),
    ),
    "nobody watches": (
        Seeded(several.CancelsWhenNobodyWatches, "cancels everything a minute after the last subscriber has left",
               _breaks("outlives-watcher")),
        Seeded(several.OutlivesWatchers, "continues without subscribers"),
    ),
    "a turn that outgrows its context": (
        Seeded(several.ForgetsCancelInSummary, "continues after a cancel that arrived during a summary",
               _breaks("no-lost-cancel")),
        Seeded(several.Summarizes, "continues after a summary"),
    ),
    "a prompt that cannot start": (
        Seeded(several.FailsInSilence, "publishes no terminal event for a prompt that it cannot start",
               _breaks("some-terminal")),
        Seeded(several.FailsAloud, "ends a prompt that it cannot start with `error`"),
    ),
    "folding": (
        Seeded(several.FoldsEverybody, "folds prompts with a run id into another turn", _breaks("no-absorption")),
        Seeded(several.Folds, "folds prompts without a run id into another turn"),
    ),
    "one prompt canceled": _family("revoke-exact", "revoke raises the mark",
                                   "revoke looks at the queue and the turn only"),
    "a stop and the queue": _family("keeps-queue", "stop raises the mark", profile=SCHEDULES),
    "a stop and who is in front": _family("stop-heard", "stop asks only what is active",
                                          profile=SCHEDULES),
    "a queue on hold": _family("held", "hold is not asked when a turn ends", "recovery forgets the hold"),
    "another text": _family("edited", "replace is taken after the start", "replace is not journaled"),
    "sent to interrupt": _family("send-now", "an interrupt decides where it is accepted", profile=SCHEDULES),
    "only if idle": _family("reject", "reject looks first", "reject forgets the hold"),
    "to the front": _family("fifo", "the handoff goes by seq", "next is not journaled"),
}
