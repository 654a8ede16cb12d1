"""The page on adapters: its example is a file that runs, and everything that an adapter may have is on it."""

import re
from typing import get_type_hints

import pytest
from support.docs import code_blocks
from support.paths import ROOT

from cancelmark.conformance import Adapter, judge
from cancelmark.conformance.adapter import OPTIONAL
from examples.worker.adapter import Worker

PAGE = ROOT / "docs" / "adapters.md"


def test_the_example_on_the_page_is_the_file() -> None:
    (shown,) = code_blocks(PAGE, "python")
    assert shown == (ROOT / "examples" / "worker" / "adapter.py").read_text()


class Quick(Worker):
    patience = 1.0


class Forgetful(Quick):
    """Its journal is gone after a restart."""

    async def restart(self) -> None:
        (self.server.work / "journal").unlink()
        await super().restart()


@pytest.mark.real
def test_a_server_in_another_process_is_judged() -> None:
    scripts = ["accept A; accept B; cancel", "accept A, cancel, accept B", "accept A; accept B; restart",
               "accept A; leave; release; return", "accept A; fail"]
    report = judge(Quick, scripts=scripts, times=1)
    assert report.broken == [], str(report)
    assert {"no-lost-cancel", "no-loss", "delivery"} <= {v.guarantee for v in report.verdicts if v.shown}
    assert not Quick.server.place.exists()


@pytest.mark.real
def test_what_it_forgets_is_found() -> None:
    report = judge(Forgetful, scripts=["accept A; restart"], times=1)
    assert report.broken == ["no-loss"]
    assert "reproduce with: judge(Forgetful, scripts=['accept A; restart'], times=5)" in str(report)


OFFERED = {*OPTIONAL, *vars(Adapter), *get_type_hints(Adapter)} - {"offers", "turns"}  # which are the kit's


@pytest.mark.parametrize("name", sorted(name for name in OFFERED if not name.startswith("_")))
def test_everything_that_an_adapter_may_have_is_on_the_page(name: str) -> None:
    assert re.search(rf"`{name}[`(]", PAGE.read_text()), f"docs/adapters.md does not speak of {name}"
