"""Profiles: how many histories the kit runs, and for how long."""

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Profile:
    """The limits of a judgement. Those marked (external) apply to external servers only."""

    name: str
    histories: int  # random histories (external)
    schedules: int  # of each scenario, in this process
    inside: int  # random histories, in this process
    repeats: int  # of each scenario (external)
    shrinks: int  # runs to shrink a finding
    seconds: float  # to shrink a finding (external)
    again: float = inf  # seconds for scenarios (external): each runs once, then as often as the time allows
    limit: float = inf  # seconds for random histories, and again for guarantees that they tested too rarely (external)
    races: int = 1  # runs of each scenario with a race, with varying orders and gaps (external)
    decisive: int = 10  # histories that could have broken a guarantee, before it is reported as kept
    unsteered: int = 3  # the same where the kit does not control the turns (external)


PROFILES = {
    "quick": Profile("quick", histories=200, schedules=60, inside=300, repeats=3, shrinks=300, seconds=10,
                     limit=30, races=6),
    "deep": Profile("deep", histories=3000, schedules=1000, inside=5000, repeats=20, shrinks=3000, seconds=60,
                    again=120, limit=90, races=60, decisive=40, unsteered=20),
}
