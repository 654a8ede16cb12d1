"""What several test files share."""

import pytest

from cancelmark.model.revisions.matrix import Column, matrix


@pytest.fixture(scope="session")
def columns() -> dict[str, Column]:
    """The verdict matrix. Tests that use it are in one xdist group, so that one worker computes it once."""
    return {column.name: column for column in matrix()}
