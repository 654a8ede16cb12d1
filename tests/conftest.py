"""What several test files share."""

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings
from support.budget import find_left_out
from support.commands import Said, run_command
from support.reviewing import Review, make_review
from support.runtimes import OpenStore
from support.shared_fixture import once

from cancelmark.impl.store import MemoryStore, SqliteStore
from cancelmark.model.protocol import REFERENCE
from cancelmark.model.revisions import REVISIONS
from cancelmark.model.revisions.matrix import Column
from cancelmark.model.server import Server
from cancelmark.model.trace import Trace
from cancelmark.views.drawing.render import render_png
from cancelmark.views.traces.timeline import trace_svg

# No example fails for being slow: on a busy machine any of them is, now and then.
settings.register_profile("patient", settings(), deadline=None)
settings.load_profile("patient")
# What `make test-random` tries is new each time, and can be tried again.
settings.register_profile("fresh", derandomize=False, deadline=None, print_blob=True)


def pytest_configure() -> None:
    """A suite in the background of a shell ignores Ctrl-C; the commands that it starts must not inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is left to `make test-long` says more of the same: `make test` runs that test with other parameters."""
    if not any("::" in argument for argument in config.args):
        left_out = find_left_out({item.nodeid: item.get_closest_marker("long") is not None for item in items})
        if left_out:
            raise pytest.UsageError(f"`make test` has no part of {', '.join(left_out)}: mark less as long")


def pytest_collection_finish() -> None:
    """What is imported by now stays, and no garbage collection need look at all of it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def review(tmp_path_factory: pytest.TempPathFactory) -> Review:
    """The review page."""
    return once(tmp_path_factory, "review", lambda: make_review(tmp_path_factory.mktemp("review") / "review.html"))


@pytest.fixture(scope="session")
def columns(review: Review) -> dict[str, Column]:
    """The verdict matrix, as the review has searched it."""
    return {protocol.name: review.found.chapters[protocol.name].column.unpack(protocol)
            for protocol in (*REVISIONS, REFERENCE)}


@pytest.fixture(scope="session")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Said:
    """What `cancelmark prove` says: the whole proof, by a real solver."""
    return once(tmp_path_factory, "proof", lambda: run_command("prove"))


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
