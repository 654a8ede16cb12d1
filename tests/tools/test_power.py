"""The random tests are strong enough: flaws of the original, seeded into the runtime, are found as published."""

import re
from dataclasses import replace

import pytest
from support.budget import one_for_each
from tools.power import PAGE, SEEDED, STEPS, NotFound, find, flaws_table, reason

from cancelmark.model.protocol import REFERENCE
from cancelmark.model.revisions.flaws import FLAWS, FLAWS_BY_NAME


@pytest.mark.parametrize("flaw", one_for_each(
    lambda flaw: [FLAWS_BY_NAME[flaw].breaks], sorted(SEEDED, key=lambda flaw: flaw not in STEPS)))  # those are quicker
def test_the_random_tests_find(flaw: str) -> None:
    found = find(flaw)
    assert found.told.startswith(f"{FLAWS_BY_NAME[flaw].breaks}: ")


def test_every_property_that_a_flaw_breaks_is_broken_by_a_seeded_one() -> None:
    assert {FLAWS_BY_NAME[flaw].breaks for flaw in SEEDED} == {flaw.breaks for flaw in FLAWS}


def test_what_is_not_there_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search can say no: a session without a flaw."""
    monkeypatch.setattr("tools.power.HISTORIES", 20)
    monkeypatch.setitem(STEPS, "run-id-folded", replace(STEPS["run-id-folded"], protocol=REFERENCE))
    with pytest.raises(NotFound, match=r"not found in \d+ examples with seed 0"):
        find("run-id-folded")


@pytest.mark.long
def test_a_flaw_is_shrunk_to_a_short_trace() -> None:
    assert find("slow-subscriber-loses-end", shrink=True).steps == 8


def test_the_page_is_not_stale() -> None:
    """Which flaws there are, what catches them and where; the figures are random."""
    def known(text: str) -> str:
        return re.sub(r"\| [\d.]+ \| \d+ \| \d+ \|$", "|", text, flags=re.MULTILINE)

    published = PAGE.read_text(encoding="utf-8").split("<!-- generated: flaws -->\n")[1].split("<!-- end -->")[0]
    assert known(published) == known(flaws_table((*reason(flaw), 1, 1, 1) for flaw in SEEDED)), "run `make power`"
