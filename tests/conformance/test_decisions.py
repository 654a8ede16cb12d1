"""What is said of a server, as a table over what is said of its guarantees."""

from itertools import product

import pytest

from cancelmark.conformance.judging.guarantees import NO_OFFSET, NO_STEERING
from cancelmark.conformance.judging.history import History
from cancelmark.conformance.playing.script import script
from cancelmark.conformance.report import Decision, Finding, Report, Status, Verdict
from cancelmark.conformance.report.page import report_page
from cancelmark.impl.cli.conform.command import EXITS

CONFORMS, NOTHING_BROKEN, BROKEN, UNKNOWN = Decision
LOST = History(True, True)
LOST.complain("held", "it is not.")
# A guarantee and why it has its status; then the decision on a server that keeps another one besides, and on one that
# keeps nothing else. Whatever is not kept or broken is missing if it is required.
TABLE = {
    (Status.KEPT, ""): (CONFORMS, CONFORMS),
    (Status.BROKEN, ""): (BROKEN, BROKEN),
    (Status.NOT_TESTED, "no history could have broken it"): (NOTHING_BROKEN, UNKNOWN),
    (Status.NOT_OBSERVABLE, NO_STEERING): (NOTHING_BROKEN, UNKNOWN),
    (Status.NOT_OBSERVABLE, NO_OFFSET): (CONFORMS, UNKNOWN),
    (Status.NOT_OFFERED, ""): (CONFORMS, UNKNOWN),
    (Status.NOT_CLAIMED, ""): (CONFORMS, UNKNOWN),
}


def test_the_table_has_every_status() -> None:
    assert {status for status, _ in TABLE} == set(Status)
    assert {CONFORMS.value: 0, NOTHING_BROKEN.value: 0, BROKEN.value: 1, UNKNOWN.value: 2} == EXITS


@pytest.mark.parametrize(("required", "stopped", "alone"), [
    *product([False, True], ["", "it has stopped"], [False, True])])
@pytest.mark.parametrize(("status", "why"), list(TABLE))
def test_a_decision(status: Status, why: str, required: bool, stopped: str, alone: bool) -> None:
    found = Finding(script("hold"), LOST) if status is Status.BROKEN else None
    verdicts = (Verdict("held", status, why, finding=found), Verdict("one-terminal", Status.KEPT, shown=10))
    report = Report("x", verdicts[:2 - alone], {}, 1, 0.0, "quick", stopped=stopped,
                    required=frozenset({"held"} if required else ()))
    decided = TABLE[status, why][alone]
    missing = required and status not in (Status.KEPT, Status.BROKEN)
    assert report.missing == (["held"] if missing else [])
    expected = UNKNOWN if decided is not BROKEN and (stopped or missing) else decided
    assert report.decision is expected
    assert report.ok == (EXITS[expected.value] == 0)
    assert report.summary.endswith(f"verdict={expected.value} kept={len(report.kept)}/{len(verdicts) - alone}")
    assert ('<strong class="kept">' in report_page(report)) == report.ok
