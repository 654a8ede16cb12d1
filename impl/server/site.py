"""The state that the calls of one server share: its workspaces, limits and metrics."""

from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakKeyDictionary

from ..runtime.workspace import Workspace, Workspaces
from .metrics import Metrics
from .stream import HEARTBEAT, STALL, EventStream, WorkspaceStreams

BODY = 1_048_576  # bytes
PROMPT = 200_000  # characters
CONNECTIONS = 2048


@dataclass(frozen=True)
class Limits:
    """The limits of a server."""

    body: int = BODY  # bytes of a request body
    prompt: int = PROMPT  # characters of a prompt
    connections: int = CONNECTIONS  # concurrent connections, including streams
    heartbeat: float = HEARTBEAT  # seconds of silence on a stream before a heartbeat
    stall: float = STALL  # seconds without progress after which a stream's reader is disconnected


@dataclass(frozen=True, eq=False)
class Site:
    workspaces: Workspaces
    limits: Limits = field(default_factory=Limits)
    directory: Path = field(default_factory=Path.cwd)  # the default workspace of the live page
    streams: WeakKeyDictionary[Workspace, WorkspaceStreams] = field(default_factory=WeakKeyDictionary)
    metrics: Metrics = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", Metrics(self.workspaces))

    def stream(self, workspace: Workspace, client: str, last_event_id: str | None) -> EventStream:
        """The events of the workspace from now on, or after the client's last event id."""
        streams = self.streams.get(workspace)
        if streams is None:
            streams = self.streams[workspace] = WorkspaceStreams(
                workspace.offsets, heartbeat=self.limits.heartbeat, stall=self.limits.stall)
        after = streams.encoder.parse_offset(last_event_id, workspace.runtime.broker.latest)
        return EventStream(workspace, streams, client, after)
