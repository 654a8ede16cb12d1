"""Which calls a server of our wire has is found before it is judged."""

import asyncio

import pytest
from support.servers import Server, threaded

from cancelmark.impl.adapters.offered import find_calls
from cancelmark.impl.server import app
from cancelmark.model.family import QUEUE_FEATURES, Feature
from cancelmark.model.protocol import REFERENCE, Protocol

EVERYTHING = {"revoke", "stop", "stop_hold", "hold", "replace", "next", "reject", "interrupt"}
WITHOUT_HOLD = frozenset(QUEUE_FEATURES) - {Feature.HOLD}


def with_protocol(server: Server, protocol: Protocol) -> None:
    server.site.workspaces.protocol = protocol


def test_our_own_server_has_all() -> None:
    with threaded() as server:
        assert asyncio.run(find_calls(server.url, None, "/here")) == EVERYTHING
        assert not any(workspace.runtime.is_busy() for workspace in server.site.workspaces)  # and nothing is left


@pytest.mark.parametrize(("protocol", "calls"), [
    (REFERENCE, set()), (Protocol("all but hold", features=WITHOUT_HOLD), EVERYTHING - {"hold", "stop_hold"}),
    (Protocol("revoke", features=frozenset({Feature.REVOKE})), {"revoke"}),
], ids=lambda given: getattr(given, "name", ""))
def test_a_server_of_another_protocol_has_the_calls_of_that(protocol: Protocol, calls: set[str]) -> None:
    with threaded(script=lambda server: with_protocol(server, protocol)) as server:
        assert asyncio.run(find_calls(server.url, None, "/here")) == calls


def test_a_server_that_has_never_heard_of_these_calls_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers 404, and 405 where it has another call at the same address."""
    names = {"stop", "hold", "resume", "revoke", "replace", "next"}
    monkeypatch.setattr(app, "CALLS", [call for call in app.CALLS if call.name not in names])
    with threaded(script=lambda server: with_protocol(server, REFERENCE)) as server:
        assert asyncio.run(find_calls(server.url, None, "/here")) == set()
