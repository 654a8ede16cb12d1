"""How much the tests try: enough for each change, more (`make test-long`), or all a night allows (`make test-deep`)."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

DEEP = os.environ.get("CANCELMARK_DEEP") == "1"


def effort(examples: int) -> int:
    return examples * 20 if DEEP else examples


def long(*values: Any) -> Any:
    """A parameter of a test that says more of the same as its others, and is left to `make test-long`."""
    return pytest.param(*values, marks=pytest.mark.long)


def every(step: int, values: Sequence[Any]) -> list[Any]:
    """The values, all but each `step`th left to `make test-long`."""
    return [long(value) if number % step else value for number, value in enumerate(values)]


def find_left_out(tests: Mapping[str, bool]) -> list[str]:
    """Of tests with their parameters, and whether each is long: those that have no part in `make test`."""
    parts = {name.partition("[")[0] for name, is_long in tests.items() if not is_long}
    return sorted({name.partition("[")[0] for name in tests} - parts)
