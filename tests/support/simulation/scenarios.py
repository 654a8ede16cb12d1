"""What simulated clusters are put through. The small ones are played with every single fault, wherever it strikes."""

from collections.abc import Mapping
from dataclasses import replace

from .cluster import Do, Scenario
from .faults import Faults

ANY = Faults(doubts=1, delays=1, pauses=1, kills=1, expiries=1, drains=1)

LATE_CALLS = [Do("accept", "b", 0.508 + n * 0.012) for n in range(5)]  # as a node that leaves gives up its sessions

SMALL = (
    Scenario("cancel", [Do("accept", "a", 0, "waits"), Do("accept", "b", 1), Do("cancel", "b", 2)], ANY),
    Scenario("at-once", [Do("accept", "a", 0), Do("cancel", "b", 0.002), Do("accept", "b", 0.004)], ANY),
    Scenario("at-the-end", [Do("accept", "a", 0), Do("accept", "b", 0.004), Do("cancel", "b", 0.007)], ANY),
    Scenario("as-it-ends", [Do("accept", "a", 0), Do("accept", "b", 0.005, session="t"), Do("accept", "a", 0.013)], ANY,
             sessions="st"),
    Scenario("echo", [Do("accept", "a", 0, "endless"), Do("cancel", "b", 1), Do("accept", "a", 1.004, "waits")],
             Faults(doubts=1)),
    Scenario("works", [Do("accept", "a", 0, "works"), Do("accept", "a", 1, "works")], ANY, nodes="abc"),
    Scenario("anonymous", [Do("accept", "a", 0, "waits", named=False), Do("accept", "b", 1, "waits", named=False)],
             Faults(doubts=1, kills=1)),
    Scenario("no-wake-ups", [Do("accept", "a", 0, "endless"), Do("accept", "b", 1), Do("cancel", "b", 3)],
             Faults(kills=1, expiries=1), wake_ups=False),
    Scenario("grows", [Do("accept", "a", 0, "grows"), Do("accept", "b", 0.5, "says"), Do("cancel", "a", 4)], ANY),
    Scenario("hold", [Do("accept", "a", 0, "waits"), Do("hold", "b", 1), Do("accept", "b", 2), Do("resume", "a", 8)],
             ANY),
    Scenario("held", [Do("accept", "a", 0, "waits"), Do("hold", "b", 1), Do("accept", "b", 2)], Faults(kills=1)),
    Scenario("family", [
        Do("accept", "a", 0, "waits"), *(Do("accept", "b", n / 10) for n in (1, 2, 3)), Do("revoke", "b", 1, of=2),
        Do("replace", "a", 1.2, "says", of=3), Do("next", "b", 1.4, of=4), Do("stop", "b", 2)], ANY),
    Scenario("clear", [Do("accept", "a", 0, "waits"), Do("accept", "a", 0.5), Do("clear_queue", "b", 1)], ANY),
    Scenario("stock", [Do("accept", "a", 0), Do("accept", "b", 1), Do("cancel", "b", 2), Do("accept", "a", 3)],
             Faults(doubts=1)),
    Scenario("two", [Do("accept", "a", 0), Do("accept", "b", 0, session="t"), Do("accept", "b", 0.02, session="t")],
             ANY, sessions="st"),
    Scenario("together", [*(Do("accept", "a", 0, session=one) for one in "stu"), Do("cancel", "b", 0.01, session="t")],
             ANY, sessions="stu"),
    Scenario("busy-owner", [Do("accept", "a", 0, "waits"), Do("accept", "a", 1), Do("accept", "b", 1.01),
                            Do("cancel", "a", 1.02)], Faults(delays=1), wake_ups=False),
    Scenario("stubborn", [Do("accept", "a", 0, "stubborn"), Do("cancel", "b", 1),
                          *(Do("accept", "b", (13 + 4 * n) / 10) for n in range(8)),
                          *(Do("cancel", "b", (15 + 4 * n) / 10) for n in range(6))], Faults()),
    Scenario("locked", [Do("accept", "a", 0, named=False), Do("accept", "b", 0.02, named=False)], Faults(locks=1)),
    Scenario("outage", [Do("accept", "a", 0, "works"), Do("accept", "b", 1), Do("cancel", "a", 20)],
             Faults(outages=1), roams=False),
    Scenario("close", [Do("accept", "a", 0, "waits"), Do("close", "b", 1), Do("accept", "a", 3.2, "waits")],
             Faults(doubts=1, kills=1, questions=1), roams=False, wake_ups=False),
    Scenario("race", [Do("accept", "a", 0, "waits"), Do("accept", "b", 1, "waits")], Faults(kills=1), nodes="abc",
             wake_ups=False),
    Scenario("unanswered", [Do("accept", "a", 0, "waits"), Do("accept", "b", 1), Do("cancel", "b", 1.5)],
             Faults(questions=1, leaks=1)),
    Scenario("roams", [Do("accept", "a", n) for n in (2.5, 8.5, 14.5)], Faults(), wake_ups=False),
)
DOUBLE = (  # with two faults, each of its kind
    Scenario("leaves-and-hangs", [*(Do("accept", "a", n / 10, "endless") for n in range(3)), Do("cancel", "b", 25)],
             Faults(drains=1, pauses=1)),
    Scenario("crowd", [*(Do("accept", "a", 0, "works", session=one) for one in "st"),
                       *(Do("accept", "a", n, "works", session=one) for one in "st" for n in (3, 6, 9, 12))],
             Faults(expiries=1, stalls=1), sessions="st"),
    Scenario("revived", [*(Do("accept", "a", 0, "works", session=one) for one in "st"),
                         *(Do("accept", "a", n, "works", session=one) for one in "st" for n in (16, 17, 19, 20))],
             Faults(pauses=1, stalls=1), sessions="st"),
    Scenario("repeated", [Do("accept", "a", 0, "waits")], Faults(pauses=1, questions=1), roams=False),
    Scenario("leaves", [Do("accept", "a", 0, "works"), *LATE_CALLS], Faults(drains=1, delays=1)),
    Scenario("leaves-held", [Do("accept", "a", 0, "works"), Do("hold", "b", 0.1), *LATE_CALLS],
             Faults(drains=1, delays=1)),
    Scenario("killed-and-doubted", [Do("accept", "a", 0, "waits"), Do("cancel", "b", 1)], Faults(kills=1, doubts=1)),
)
LARGE = Scenario("large", [], replace(ANY, doubts=3, delays=3, pauses=2, kills=2, wakeups=3), nodes="abc",
                 sessions="st")
SCENARIOS: Mapping[str, Scenario] = {scenario.name: scenario for scenario in (*SMALL, *DOUBLE, LARGE)}
