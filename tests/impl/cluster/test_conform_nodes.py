"""`cancelmark conform URL URL URL`: several nodes of one cluster are judged as one server."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from support.budget import DEEP
from support.postgres import free_port, shared_server
from support.servers import threaded

from cancelmark.conformance.adapter.guarantees import ORDER
from cancelmark.impl.cli.main import main
from cancelmark.impl.cluster.leased import Leased
from cancelmark.impl.cluster.node import Lease
from cancelmark.impl.cluster.workspaces import SharedWorkspace
from cancelmark.impl.models.openai import OpenAIModel

SCRIPTS = ("accept A; accept B, cancel", "accept A + cancel", "accept A; release; leave; return",
           "accept A; accept B anonymous; again; release", "lose A; resend A", "accept A; attach; clear; cancel",
           "accept A; accept B + shut")


@contextmanager
def cluster(number: int) -> Iterator[tuple[list[str], str]]:
    """Nodes on a new database, each in a thread, and the port of the language model that all of them use."""
    port, server = free_port(), shared_server()
    database = server.url(server.new_database())
    with ExitStack() as stack:
        model = f"http://127.0.0.1:{port}/v1"
        yield [stack.enter_context(threaded(
            database=database, lease=Lease(10.0, 0.1), stop=1.0, model=OpenAIModel("turn", base_url=model))).url
            for _ in range(number)], str(port)


def conform(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["conform", *arguments])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_three_nodes_play_as_one_server(capsys: pytest.CaptureFixture[str]) -> None:
    played = [word for script in SCRIPTS for word in ("--script", script)]
    with cluster(3) as (urls, port):
        code, out, err = conform(capsys, *urls, "--llm-port", port, *played, "--times", "1")
    assert (code, err) == (0, ""), out + err
    assert out.count("nothing broken in 1 run") == len(SCRIPTS)


@pytest.mark.skipif(not DEEP, reason="a minute: make test-deep")
def test_three_nodes_conform_as_one_server(capsys: pytest.CaptureFixture[str]) -> None:
    with cluster(3) as (urls, port):
        code, out, err = conform(capsys, *urls, "--llm-port", port, "--json")
    assert (code, err) == (0, ""), out + err
    report = json.loads(out)
    assert report["server"] == ", ".join(urls)
    told = {one["id"]: one["status"] for one in report["guarantees"]}
    assert list(told) == [p.id for p in ORDER]
    assert {"no-lost-cancel", "one-terminal", "fifo", "closed"} <= {id for id in told if told[id] == "kept"}


def keep_calls_to_oneself(patch: pytest.MonkeyPatch) -> None:
    """The owner of a session does not look at what other nodes have written, woken or not."""
    async def look_at_own(self: Leased, session_id: str) -> bool:
        return True

    patch.setattr(Leased, "is_behind", lambda self, session_id, version: False)
    patch.setattr(Leased, "reconcile_own", look_at_own)


def trust_what_was_heard(patch: pytest.MonkeyPatch) -> None:
    """Where a subscriber goes on is judged by the events of which this node has heard."""
    async def hear(self: SharedWorkspace) -> None:
        """Asks nobody."""

    async def hear_of_events(self: object) -> None:
        """Nor later."""

    patch.setattr(SharedWorkspace, "hear", hear)
    patch.setattr("cancelmark.impl.cluster.workspaces.SharedWorkspaces._update_log_positions", hear_of_events)


@pytest.mark.parametrize(("error", "script"), [
    (keep_calls_to_oneself, "accept A; cancel"),
    (trust_what_was_heard, "accept A; release; leave; return"),
])
def test_an_error_that_one_node_alone_does_not_show_is_found(
    error: Callable[[pytest.MonkeyPatch], None], script: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error(monkeypatch)
    with cluster(2) as (urls, port):
        play = ("--llm-port", port, "--script", script, "--times")
        code, out, _ = conform(capsys, *urls, *play, "8")
        assert code == 1, out
        assert f"cancelmark conform {urls[0]} {urls[1]} --llm-port {port}" in out
        assert conform(capsys, urls[0], *play, "2")[0] == 0


def test_servers_that_are_not_of_one_cluster_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with threaded() as one, threaded() as other:
        code, _, err = conform(capsys, one.url, other.url)
        assert (code, err.count("\n")) == (2, 1)
        assert f"{other.url} does not know the workspace that was opened at {one.url}" in err
        assert "--grace 1: does not apply to a cluster" in conform(capsys, one.url, other.url, "--grace", "1")[2]
