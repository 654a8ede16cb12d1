"""What several test files share."""

import os
from pathlib import Path

import pytest
from runtimes import OpenStore

from cancelmark.impl.store import MemoryStore, SqliteStore
from cancelmark.model.explore import Trace
from cancelmark.model.revisions.matrix import Column, matrix
from cancelmark.model.server import Server
from cancelmark.model.views import render_png, trace_svg


@pytest.fixture(scope="session")
def columns() -> dict[str, Column]:
    """The verdict matrix. Tests that use it are in one xdist group, so that one worker computes it once."""
    return {column.name: column for column in matrix()}


@pytest.fixture
def font() -> None:
    """For tests that draw text into a PNG, which needs a font of the machine."""
    try:
        render_png(trace_svg(Trace(Server(), ())))
    except RuntimeError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


@pytest.fixture(params=["memory", "sqlite"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """Opens a new store of either kind."""
    return MemoryStore if request.param == "memory" else lambda: SqliteStore(tmp_path / "test.db")
