"""How much a test tries: little in `make test`, more in `make test-all`, the most in `make test-deep`."""

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest

TIER = os.environ.get("CANCELMARK_TESTS", "fast")
FAST = TIER == "fast"
DEEP = TIER == "deep"


def effort(few: int, many: int | None = None) -> int:
    """The number of examples: `few` in `make test`, `many` in `make test-all`, 20 times as many in `make test-deep`."""
    return {"fast": few, "all": many or few, "deep": 20 * (many or few)}[TIER]


def long(*values: Any, id: str | None = None) -> Any:
    """A parameter that is left to `make test-all`: a larger bound, or one more judge of a bug that others notice."""
    return pytest.param(*values, id=id, marks=pytest.mark.long)


def one_for_each(breaks: Callable[[Any], Iterable[str]], bugs: Iterable[Any]) -> list[Any]:
    """Seeded bugs, so that `make test` has one for each property that a judge must see broken; the rest are long."""
    seen: set[str] = set()
    chosen = []
    for bug in bugs:
        new = set(breaks(bug)) - seen
        chosen.append(bug if new else long(bug))
        seen |= new
    return chosen
