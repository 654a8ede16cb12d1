"""A history counts as a test of a guarantee only if it would have shown that the guarantee is broken."""

from dataclasses import dataclass

import pytest
from support.runtime_adapter import RuntimeAdapter
from support.samples.seeded import RefusesEverything, Sound

from cancelmark.conformance.adapter import GUARANTEES, MakeAdapter
from cancelmark.conformance.adapter.guarantees import ORDER
from cancelmark.conformance.judging.guarantees import GUARANTEES_BY_ID, NEEDS, find_tested
from cancelmark.conformance.playing.script import script
from cancelmark.conformance.playing.venue import Inside


@dataclass(frozen=True)
class Case:
    """A script that tests a guarantee, and one that looks as if it did."""

    decides: str
    seems: str
    make: MakeAdapter = Sound
    seems_on: MakeAdapter | None = None


CASES = {
    "no-poisoning": Case("accept A; cancel; accept B", "accept A; cancel; accept B; cancel"),
    "no-lost-cancel": Case("accept A; cancel", "accept A; release; cancel"),
    "no-late-fold": Case("accept A; cancel; accept B anonymous", "accept A; cancel; accept B", RuntimeAdapter),
    "cancel-stops": Case("accept A; cancel", "accept A; release; cancel"),
    "queue-dropped": Case("accept A; accept B; cancel", "accept A; accept B, cancel"),
    "no-loss": Case("accept A; restart", "accept A; release; restart", RuntimeAdapter),
    "one-terminal": Case("accept A", "accept A", seems_on=RefusesEverything),
    "single-active": Case("accept A; accept B", "accept A; accept B @2"),
    "fifo": Case("accept A; accept B; accept C; release", "accept A; accept B; accept C; cancel"),
    "no-absorption": Case("accept A; accept B; again", "accept A; again; accept B", RuntimeAdapter),
    "attribution": Case("accept A; fail", "accept A + cancel"),
    "idle-cancel-noop": Case("cancel; accept A", "accept A; cancel; accept B"),
    "isolation": Case("accept A; accept B @2; cancel", "accept A; cancel; accept B @2"),
    "closed": Case("accept A; shut, accept B", "accept A; accept B + shut"),
    "record": Case("accept A, cancel", "accept A; accept B; cancel", RuntimeAdapter),
    "prompt-terminal": Case("accept A; accept B; release", "accept A; release; accept B"),
    "all-done": Case("accept A; accept B; release", "accept A; accept B; cancel"),
    "some-terminal": Case("accept A", "accept A", seems_on=RefusesEverything),
    "progress": Case("accept A", "accept A", seems_on=RefusesEverything),
    "delivery": Case("accept A; leave; release; return", "accept A; leave; return"),
    "run-ids": Case("accept A; resend A", "accept A; release; accept B", RuntimeAdapter),
    "outlives-watcher": Case("accept A; leave long; return", "accept A; leave; return", RuntimeAdapter),
    "revoke-exact": Case("accept A; revoke A", "accept A; release; revoke A", RuntimeAdapter),
    "keeps-queue": Case("accept A; accept B; stop", "accept A; accept B, stop", RuntimeAdapter),
    "stop-heard": Case("accept A, stop", "accept A; release; stop", RuntimeAdapter),
    "held": Case("accept A; accept B; hold; release", "accept A; accept B; hold; resume; release", RuntimeAdapter),
    "edited": Case("accept A; accept B; replace B; release", "accept A; accept B; replace B; revoke B", RuntimeAdapter),
    "send-now": Case("accept A; accept B interrupt", "accept A; hold; accept B interrupt", RuntimeAdapter),
    "reject": Case("accept A; accept B reject", "accept A; release; accept B reject", RuntimeAdapter),
}


def test_every_guarantee_has_a_question_and_a_case() -> None:
    assert set(GUARANTEES_BY_ID) == set(CASES) == GUARANTEES
    assert [g.claim for g in GUARANTEES_BY_ID.values()] == list(ORDER), "reports have this order"
    assert {need for g in GUARANTEES_BY_ID.values() for need in g.needs} == NEEDS.keys()


@pytest.mark.parametrize("guarantee", sorted(CASES))
def test_what_only_seems_to_test_a_guarantee_does_not_count(guarantee: str) -> None:
    case = CASES[guarantee]
    assert guarantee in find_tested(Inside(case.make).play(script(case.decides)))
    assert guarantee not in find_tested(Inside(case.seems_on or case.make).play(script(case.seems)))
