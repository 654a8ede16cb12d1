"""What several test files share."""

from pathlib import Path

import pytest
from runtimes import OpenStore

from cancelmark.impl.store import MemoryStore, SqliteStore
from cancelmark.model.revisions.matrix import Column, matrix


@pytest.fixture(scope="session")
def columns() -> dict[str, Column]:
    """The verdict matrix. Tests that use it are in one xdist group, so that one worker computes it once."""
    return {column.name: column for column in matrix()}


@pytest.fixture(params=["memory", "sqlite"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """Opens a new store of either kind."""
    return MemoryStore if request.param == "memory" else lambda: SqliteStore(tmp_path / "test.db")
