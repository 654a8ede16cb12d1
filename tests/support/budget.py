"""How much the tests try: enough for each change, more (`make test-long`), or all a night allows (`make test-deep`)."""

import os
from collections.abc import Sequence
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
