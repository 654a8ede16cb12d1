"""Servers to test, over real sockets: in the test's own event loop, in a thread, or as a process that can be killed.

    async with serving() as server:            the model does what the test says: server.holds("a"), server.plays(…)
        async with server.client() as http:    an httpx client of it
            w = await server.workspace(http)    with its agent initialized and one session

    with threaded() as server: …               for tests that are not async; only server.url and the like are to be used
    with Process(tmp_path) as server: …        `cancelmark serve` itself: server.url, server.kill(), server.start()
"""

import asyncio
import json
import os
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import httpx2 as httpx
from support.commands import COMMAND
from support.scenes import Scenes

from cancelmark.impl.models import Model
from cancelmark.impl.runtime.retention import EVERYTHING, Retention
from cancelmark.impl.runtime.turn import ToolRunner
from cancelmark.impl.runtime.workspace import Workspaces
from cancelmark.impl.server.app import application
from cancelmark.impl.server.connections import Slots
from cancelmark.impl.server.guard import LOOPBACK
from cancelmark.impl.server.listening import bind
from cancelmark.impl.server.serving import run_server
from cancelmark.impl.server.site import Limits, Site

if TYPE_CHECKING:
    from cancelmark.impl.cluster.node import Lease

ON_POSTGRES = "CANCELMARK_TEST_ON_POSTGRES"  # where servers that would be in memory are each on a new database
PATIENCE = 60.0  # seconds: only so that nothing hangs for ever


def web(url: str, **options: Any) -> httpx.AsyncClient:
    """A client of the server at this address. It needs no certificates, which take long to load."""
    return httpx.AsyncClient(base_url=url, timeout=PATIENCE, verify=False, **options)


class Server(Scenes):
    """A server in this event loop, and the scenes that its model plays for each prompt's text; others it echoes."""

    def __init__(self) -> None:
        super().__init__()
        self.url = ""
        self.site: Site
        self.places: Slots

    def client(self, **options: Any) -> httpx.AsyncClient:
        return web(self.url, **options)

    async def workspace(self, http: httpx.AsyncClient, path: str = "/tmp/cancelmark-test") -> "Place":
        """The workspace of this path, with its agent initialized, and a new session in it."""
        told = (await http.post("/v1/workspaces", json={"path": path})).json()
        (await http.post(f"/v1/workspaces/{told['id']}/agent/init", json={"interactive": False})).raise_for_status()
        place = Place(http, told["id"])
        place.session = await place.new_session()
        return place


def finish_of(message: Any) -> tuple[str, str | None]:
    """Whose message it is, and why it ended."""
    return message["role"], next((p["data"]["reason"] for p in message["parts"] if p["type"] == "finish"), None)


@dataclass
class Place:
    """A workspace and one of its sessions, as one client of the server sees them."""

    http: httpx.AsyncClient
    id: str
    session: str = ""

    @property
    def url(self) -> str:
        return f"/v1/workspaces/{self.id}"

    def seen_by(self, http: httpx.AsyncClient) -> "Place":
        """The same for another client."""
        return Place(http, self.id, self.session)

    async def new_session(self, title: str = "a session") -> str:
        return str((await self.http.post(f"{self.url}/sessions", json={"title": title})).json()["id"])

    async def post(self, prompt: str, run_id: str | None = None, session: str | None = None,
                   **more: str) -> httpx.Response:
        body = {"session_id": session or self.session, "prompt": prompt} | ({"run_id": run_id} if run_id else {})
        return await self.http.post(f"{self.url}/agent", json=body | more)

    async def send(self, prompt: str, run_id: str | None = None, session: str | None = None) -> int:
        """Posts a prompt that is accepted, and returns its seq."""
        answer = await self.post(prompt, run_id, session)
        assert answer.status_code == 202, answer.text
        return int(answer.json()["seq"])

    async def do(self, what: str, session: str | None = None, body: Mapping[str, Any] | None = None) -> httpx.Response:
        """POSTs to cancel, prompts/clear, summarize, stop, hold or resume of the session."""
        return await self.http.post(f"{self.url}/agent/sessions/{session or self.session}/{what}", json=body)

    async def get(self, what: str = "", session: str | None = None) -> Any:
        """GETs what the agent's session says: nothing, prompts, prompts/queued or prompts/list."""
        path = f"{self.url}/agent/sessions/{session or self.session}{'/' + what if what else ''}"
        answer = await self.http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def messages(self, session: str | None = None) -> list[Any]:
        answer = await self.http.get(f"{self.url}/sessions/{session or self.session}/messages")
        assert answer.status_code == 200, answer.text
        return list(answer.json())

    async def spoken(self, session: str | None = None) -> list[tuple[str, str | None]]:
        """Who said something, and why that ended."""
        return [finish_of(message) for message in await self.messages(session)]

    async def until(self, holds: Callable[[Any], bool], what: str = "prompts", session: str | None = None) -> Any:
        """Asks until it holds of what the session says."""
        async with asyncio.timeout(PATIENCE):
            while not holds(told := await self.get(what, session)):
                await asyncio.sleep(0.005)
            return told

    @asynccontextmanager
    async def watching(self, client_id: str | None = None, last_event_id: str | None = None) -> AsyncIterator["Watch"]:
        """Everything that happens, from the moment this is entered."""
        watch = Watch(self, client_id or str(uuid4()))
        headers = {"last-event-id": last_event_id} if last_event_id else {}
        async with self.http.stream("GET", f"{self.url}/events", params={"client_id": watch.client_id},
                                    headers=headers) as answer:
            assert answer.status_code == 200, await answer.aread()
            reading = asyncio.ensure_future(watch.read(answer))
            try:
                yield watch
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)


@dataclass
class Watch:
    """What one client has seen of a workspace."""

    place: Place
    client_id: str
    seen: list[dict[str, Any]] = field(default_factory=list)  # envelopes
    ids: list[str] = field(default_factory=list)  # of those
    last_event_id: str = ""
    comments: int = 0
    over: bool = False  # the server has ended the stream

    def __post_init__(self) -> None:
        self._news = asyncio.Event()

    async def read(self, answer: httpx.Response) -> None:
        try:
            async for line in answer.aiter_lines():
                if line.startswith("id: "):
                    self.last_event_id = line[4:]
                elif line.startswith("data: "):
                    self.seen.append(json.loads(line[6:]))
                    self.ids.append(self.last_event_id)
                elif line.startswith(":"):
                    self.comments += 1
                self._news.set()
            self.over = True
        finally:
            self._news.set()

    async def until(self, holds: Callable[["Watch"], object]) -> None:
        """Returns when it holds."""
        async with asyncio.timeout(PATIENCE):
            while not holds(self):
                self._news.clear()
                await self._news.wait()

    def of(self, type: str) -> list[Any]:
        """The payloads of envelopes of one type."""
        return [e["payload"]["payload"] for e in self.seen if e["type"] == type]

    def ends(self) -> list[tuple[str | None, str]]:
        """The terminal events: run id and outcome."""
        return [(end.get("run_id"), end["outcome"]) for end in self.of("run_complete")]

    async def end(self, run_id: str) -> Any:
        """Waits for the terminal event of the run id."""
        await self.until(lambda w: any(end.get("run_id") == run_id for end in w.of("run_complete")))
        (end,) = [end for end in self.of("run_complete") if end.get("run_id") == run_id]
        return end


def check_notices(seen: Sequence[Mapping[str, Any]]) -> None:
    """Each failed run with a run id is announced by one error notice right before its end, and nothing else is."""
    told = [(e["type"], e["payload"]["payload"]) for e in seen if e["type"] in ("agent_event", "run_complete")]
    expected: list[tuple[str, Any]] = []
    for kind, end in told:
        if kind == "run_complete":
            if end["outcome"] == "error" and end.get("run_id"):
                expected.append(("agent_event", {"type": "error", "session_id": end["session_id"],
                                                 "run_id": end["run_id"], "error": end["error"]}))
            expected.append((kind, end))
    assert told == expected, "an error notice comes right before its end, and nowhere else"


@asynccontextmanager
async def serving(
    directory: Path | None = None, *, token: str | None = None, hosts: Iterable[str] | None = LOOPBACK,
    limits: Limits | None = None, grace: float = 300.0, stop: float = PATIENCE, queue: int = 1000, workspaces: int = 64,
    model: Model | None = None, retention: Retention = EVERYTHING, database: str | None = None,
    lease: "Lease | None" = None, server: Server | None = None, wake_ups: str | None = "",
    tools: Sequence[ToolRunner] = (),
) -> AsyncIterator[Server]:
    """A server on a port of its own, in memory, on a directory or on a database; closed at the end."""
    server = server or Server()
    if database is None and directory is None and os.environ.get(ON_POSTGRES):
        from support.postgres import shared_server

        database = shared_server().url(shared_server().new_database())
    options: dict[str, Any] = {"grace": grace, "stop": stop, "queue": queue, "limit": workspaces,
                               "retention": retention, "tools": tools}
    with closing(bind("127.0.0.1", 0)) as listener:
        server.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        all_workspaces: Workspaces
        if database is None:
            all_workspaces = Workspaces(model or server.model, directory, **options)
        else:
            from cancelmark.impl.cluster.node import Lease
            from cancelmark.impl.cluster.workspaces import SharedWorkspaces

            all_workspaces = SharedWorkspaces(model or server.model, database, url=server.url,
                                              lease=lease or Lease(2.0, 0.1), wake_ups=wake_ups, **options)
        server.site = site = Site(all_workspaces, limits or Limits())
        await all_workspaces.start()
        app = application(site, hosts=None if hosts is None else list(hosts), token=token)
        async with asyncio.timeout(4 * PATIENCE), run_server(app, listener, site.limits.connections) as running:
            server.places = running.places
            try:
                yield server
            finally:
                await all_workspaces.close()
                await (model or server.model).aclose()


@asynccontextmanager
async def placed(directory: Path | None = None, **options: Any) -> AsyncIterator[tuple[Server, Place]]:
    """A server, and one client of it with a workspace and a session."""
    async with serving(directory, **options) as server, server.client() as http:
        yield server, await server.workspace(http)


@contextmanager
def threaded(directory: Path | None = None, *, script: Callable[[Server], None] = lambda server: None,
             **options: Any) -> Iterator[Server]:
    """The same in a thread. `script` says what the model plays, before anything is asked of it."""
    ready, over = threading.Event(), threading.Event()
    made: list[Server] = []

    async def main() -> None:
        try:
            async with serving(directory, **options) as server:
                script(server)
                made.append(server)
                ready.set()
                while not over.is_set():
                    await asyncio.sleep(0.01)
        finally:
            ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        yield made[0]
    finally:
        over.set()
        thread.join(PATIENCE)


class Process:
    """`cancelmark serve` as a process. It can be killed and started again on the same data directory and port."""

    command: Sequence[str] = COMMAND

    def __init__(self, directory: Path, *options: str, environment: Mapping[str, str] | None = None,
                 files: int | None = None) -> None:
        self.directory, self.options = directory, options
        self.files = files  # that it may open
        self.environment = {**os.environ, **(environment or {}), "CANCELMARK_DATA_DIR": str(directory)}
        self.port = 0
        self.process: subprocess.Popen[str] | None = None
        self.log = directory.parent / f"{directory.name}.log"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Starts it, and returns when it serves."""
        listen = () if "--unix" in self.options else ("--port", str(self.port))
        with self.log.open("a") as log:
            limit = ["sh", "-c", f'ulimit -n {self.files} && exec "$@"', "sh"] if self.files else []
            self.process = subprocess.Popen([*limit, *self.command, "serve", *listen, *self.options],
                                            stdout=subprocess.PIPE, stderr=log, text=True, env=self.environment)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("serving at "), self.log.read_text()
        if listen:
            self.port = int(line.split(":")[2].split("/")[0])
        return self

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self) -> int:
        """Waits for its end and returns its exit code."""
        assert self.process is not None
        code = self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.kill()
        elif self.process.stdout is not None:
            self.process.stdout.close()
