"""What several test files share."""

import gc
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings
from support.budget import effort
from support.commands import Said, run_command
from support.reviewing import Review, make_review
from support.runtimes import OpenStore
from support.shared_fixture import once

from cancelmark.impl.store import MemoryStore, SqliteStore
from cancelmark.model.check.fast.library import NoLibrary, load
from cancelmark.model.protocol import REFERENCE
from cancelmark.model.revisions import REVISIONS
from cancelmark.model.revisions.matrix import Column
from cancelmark.model.server import Server
from cancelmark.model.trace import Trace
from cancelmark.views.drawing.render import render_png
from cancelmark.views.traces.lifelines import trace_svg

pytest_plugins = ["support.tiers"]

# No example fails for being slow: on a busy machine any of them is, now and then. Outside CI, Hypothesis draws new
# examples each run, and replays the failures of earlier runs first. A failure says how to reproduce it.
settings.register_profile("patient", settings(), deadline=None, print_blob=True, max_examples=effort(30, 100))
settings.load_profile("patient")
# In CI, too, `make test-all` draws new examples.
settings.register_profile("fresh", settings(), derandomize=False)


def pytest_configure() -> None:
    """A suite in the background of a shell ignores Ctrl-C; the commands that it starts must not inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Compiles the fast engine, so that no test does, and freezes what is imported by now for the garbage collector."""
    with suppress(NoLibrary):
        load()
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
