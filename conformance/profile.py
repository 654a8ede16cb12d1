"""How much of a server is tried, and how long that may take."""

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Profile:
    """How much is tried."""

    name: str
    histories: int  # drawn at random, outside
    schedules: int  # of each scenario, in this process
    inside: int  # histories drawn at random, in this process
    repeats: int  # of each scenario, outside
    shrinks: int  # histories played to make a failure smaller
    seconds: float  # for making a failure smaller, outside
    again: float = inf  # seconds for scenarios, outside: each is played once, and then as often as the time allows
    limit: float = inf  # seconds for random histories, outside, and for what they have tested too seldom
    races: int = 1  # of each scenario in which it matters who comes first, outside: in other orders, with other gaps
    decisive: int = 10  # histories that could have broken a guarantee, before it is called kept
    unsteered: int = 3  # the same, outside, where turns last as long as they last


PROFILES = {
    "quick": Profile("quick", histories=200, schedules=60, inside=300, repeats=3, shrinks=300, seconds=10,
                     limit=30, races=6),
    "deep": Profile("deep", histories=3000, schedules=1000, inside=5000, repeats=20, shrinks=3000, seconds=60,
                    again=120, limit=90, races=60, decisive=40, unsteered=20),
}
