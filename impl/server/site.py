"""What the calls of one server share: its workspaces, its limits and its figures."""

from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakKeyDictionary

from ..runtime.workspace import Workspace, Workspaces
from .metrics import Metrics
from .stream import HEARTBEAT, STALL, Crowd, EventStream

BODY = 1_048_576  # bytes
PROMPT = 200_000  # characters
CONNECTIONS = 2048


@dataclass(frozen=True)
class Limits:
    """How much one client may ask for."""

    body: int = BODY  # bytes of a body
    prompt: int = PROMPT  # characters of a prompt
    connections: int = CONNECTIONS  # open at a time, streams included
    heartbeat: float = HEARTBEAT  # seconds of silence on a stream
    stall: float = STALL  # seconds in which a stream's reader must take something


@dataclass(frozen=True, eq=False)
class Site:
    workspaces: Workspaces
    limits: Limits = field(default_factory=Limits)
    directory: Path = field(default_factory=Path.cwd)  # a workspace for those who have none in mind
    crowds: WeakKeyDictionary[Workspace, Crowd] = field(default_factory=WeakKeyDictionary)
    metrics: Metrics = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", Metrics(self.workspaces))

    def stream(self, workspace: Workspace, client: str, last_event_id: str | None) -> EventStream:
        """Everything that happens in the workspace from now on, or from the place that the client has come to."""
        crowd = self.crowds.get(workspace)
        if crowd is None:
            crowd = self.crowds[workspace] = Crowd(
                workspace.places, heartbeat=self.limits.heartbeat, stall=self.limits.stall)
        after = crowd.encoder.parse_place(last_event_id, workspace.runtime.broker.latest)
        return EventStream(workspace, crowd, client, after)
