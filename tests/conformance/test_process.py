"""A server that the kit starts: in a home of its own, killed, started again, and gone afterwards."""

import asyncio
import os
import select
import sys
from pathlib import Path

import pytest
from support.servers import PATIENCE

from cancelmark.conformance.adapter.process import NotRunning, ServerProcess

SERVER = """\
import http.server, os, pathlib, sys
starts = pathlib.Path("starts")
starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
print("home", os.environ["HOME"], "secret" in os.environ, flush=True)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/ready" else 503)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


async def test_a_server_is_started_killed_and_started_again_in_a_place_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("secret", "hush")
    server = ServerProcess([sys.executable, "-c", SERVER, "{port}"], ready="/ready", environment={"MORE": "1"})
    try:
        assert server.environment["MORE"] == "1"
        await server.start()
        assert server.running
        assert f"home {server.home} False" in server.output
        names = ("HOME", "TMPDIR", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME")
        assert all(Path(server.environment[name]).is_relative_to(server.place) for name in names)
        assert Path(server.environment["XDG_CONFIG_HOME"]) == server.home / ".config"  # by either name
        await server.restart()
        assert (server.work / "starts").read_text() == "xx"  # what it has stored is there
        await server.stop()
        assert not server.running
    finally:
        await server.close()
    assert not server.place.exists()


@pytest.mark.parametrize(("command", "complaint"), [
    (["/no/such/program"], "cannot start /no/such/program: No such file or directory"),
    (["sh", "-c", "echo no such luck >&2; exit 3"], "(?s)sh exited before it responded; its output:\nno such luck"),
    (["sh", "-c", "echo not yet; sleep 600"], "(?s)sh did not respond within 0.3 s; its output:\nnot yet"),
])
def test_a_server_that_does_not_start_is_ended_and_what_it_wrote_is_told(command: list[str], complaint: str) -> None:
    server = ServerProcess(command, start=0.3)
    with pytest.raises(NotRunning, match=complaint):
        asyncio.run(server.start())
    assert not server.running
    asyncio.run(server.close())
    assert not server.place.exists()


def test_what_it_has_started_is_ended_with_it(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reading = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)  # whose other end both hold open as long as they live
    server = ServerProcess(["sh", "-c", f"exec 7>{fifo}; sleep 600 & echo both live >&7; wait"], start=0.3)
    with pytest.raises(NotRunning, match="did not respond"):
        asyncio.run(server.start())
    assert os.read(reading, 100) == b"both live\n"
    assert select.select([reading], [], [], PATIENCE)[0]
    assert os.read(reading, 1) == b""
    os.close(reading)
    asyncio.run(server.close())
