"""The judge judged: of each seeded server the kit says exactly what is written beside it."""

import pytest

from cancelmark.conformance.report import Decision, Status
from cancelmark.conformance.samples.seeded import SEEDED, Seeded
from cancelmark.conformance.samples.seeded_clients import CLIENTS


@pytest.mark.parametrize("server", [*SEEDED, *CLIENTS], ids=lambda server: server.name)
def test_the_kit_is_right_about(server: Seeded) -> None:
    report = server.report
    assert set(report.broken) == server.broken, str(report)
    unsure = {v.guarantee: v.status for v in report.verdicts
              if v.status not in (Status.KEPT, Status.BROKEN, Status.NOT_CLAIMED)}
    assert unsure == dict(server.unsure), str(report)
    assert report.decision is (Decision.BROKEN if server.broken else server.decision)
