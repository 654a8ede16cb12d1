"""Bugs that show over HTTP, and after a real kill, show in one process too: in a script of the kit, in milliseconds."""

import pytest
from support.runtime_adapter import RuntimeAdapter
from support.runtime_bugs import KILLED, SHOWN, Bug

from cancelmark.conformance.kit import judge


@pytest.mark.parametrize("bug", SHOWN, ids=lambda bug: getattr(bug, "__name__", bug))
def test_a_script_shows_in_the_runtime(bug: str | Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    guarantee, text = SHOWN[bug]
    assert not judge(RuntimeAdapter, scripts=[text], times=1).broken
    (KILLED[bug][0] if isinstance(bug, str) else bug)(monkeypatch)
    assert guarantee in judge(RuntimeAdapter, scripts=[text], times=1).broken
