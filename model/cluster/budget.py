"""How often callers, turns and faults may act in a cluster. The nodes' own steps are unbounded."""

from dataclasses import dataclass, field, fields


def _bound(says: str, default: int = 0) -> int:
    made: int = field(default=default, metadata={"says": says})
    return made


@dataclass(frozen=True)
class Budget:
    """The bounds of one search, and the kind of its prompts."""

    prompts: int = _bound("prompts accepted", 1)
    cancels: int = _bound("cancels")
    clears: int = _bound("calls of clear_queue")
    closes: int = _bound("closes of the workspace")
    revokes: int = _bound("calls that cancel one prompt")
    stops: int = _bound("stops, each with and without a hold")
    holds: int = _bound("holds; a held session can always be resumed")
    replaces: int = _bound("prompt texts replaced")
    nexts: int = _bound("prompts moved to the front")
    asks: int = _bound("questions that turns ask")
    modes: int = _bound("prompts sent with reject or interrupt")
    requeues: int = _bound("turns that resume after compaction")
    fails: int = _bound("prompts that cannot start")
    messages: int = _bound("messages that turns write")
    tools: int = _bound("external effects of tools")
    kills: int = _bound("nodes killed")
    restarts: int = _bound("killed nodes restarted (if no node is up, one always restarts)")
    pauses: int = _bound("nodes that hang, and may resume")
    expiries: int = _bound("leases that expire although the node is up (those of killed or hanging nodes always can)")
    doubts: int = _bound("commits whose response is lost, or that arrive late")
    wakeups: int = _bound("notifications lost")
    drains: int = _bound("nodes told to leave")
    reposts: int = _bound("prompts retried under their run id")
    nodes: int = field(default=2, metadata={"says": "nodes"})
    run_ids: bool = field(default=False, metadata={"says": "prompts have run ids"})
    endless: bool = field(default=False, metadata={"says": "turns end only if they are stopped"})

    def __str__(self) -> str:
        said = [f"{name}={getattr(self, name)}" for name in NAMES if getattr(self, name)]
        flags = [name for name in ("run_ids", "endless") if getattr(self, name)]
        return " ".join([*said, *([f"nodes={self.nodes}"] if self.nodes != 2 else []), *flags])


NAMES = tuple(f.name for f in fields(Budget) if f.name not in ("nodes", "run_ids", "endless"))  # those that get spent
NOTHING_SPENT = (0,) * len(NAMES)
