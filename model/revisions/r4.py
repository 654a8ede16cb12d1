"""r4: merged (seed 003). Run ids get an end of their own, and shutdown waits for every run.

New: a queued prompt with a run id is not folded and its end is published when it is dropped; a frame publishes its own
event before it runs the next prompt, into the hook if it has one; the goroutine of a prompt that failed publishes a
fallback unless its marker says that something was published; the workspace closes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ..actions import Reach, Variant
from ..effects import Report
from ..lifecycle import State
from .agent import Agent, Caller, Entry, Frame, World
from .machine import Do
from .r0 import CANCELED, ERROR
from .r3 import R3


@dataclass(frozen=True)
class R4(R3):
    """The merged pull request."""

    name = "r4"
    title = "merged: run ids are never folded, and get ends of their own; shutdown"

    CALLS: ClassVar[tuple[str, ...]] = ("cancel", "clear_queue", "close")
    LATER: ClassVar[dict[str, str]] = {"clear_queue": "clear_rest", "close": "close_rest"}

    def publish_drops(self, w: World, entries: Iterable[Entry]) -> None:
        """003 publishCanceledQueueDrops: those with a run id, through the hook if the call still has one."""
        for entry in entries:
            if w.agent.prompt(entry.seq).run_id:
                w.complete(entry.hook, entry.seq, CANCELED)

    # --- the turn

    def possible(self, agent: Agent, frame: Frame, do: Do) -> bool:
        if do.action == "step":
            return any(not agent.prompt(e.seq).run_id or self.covers(agent, e.accept_seq) for e in agent.queue_entries)
        return super().possible(agent, frame, do)

    def step(self, w: World, head: int, _: Variant) -> None:
        """003 drainQueueForStep: covered ones are dropped and published, run ids are kept, the rest folds."""
        taken = w.agent.queue_entries
        covered = [e for e in taken if self.covers(w.agent, e.accept_seq)]
        keep = [e for e in taken if e not in covered and w.agent.prompt(e.seq).run_id]
        w.set(queue_entries=tuple(keep))
        w.top(head, at="stream")
        self.drop_covered(w, covered)
        self.take_in(w, head, tuple(e for e in taken if e not in covered and e not in keep))

    def drop_covered(self, w: World, covered: list[Entry]) -> None:
        w.drop(covered)
        self.publish_drops(w, covered)

    def run_next(self, w: World, head: int) -> None:
        """003 Run: a frame with a run id publishes its own event first, unless its continuation is in the queue."""
        frame = w.goroutine(head).top
        continued = any(e.seq == frame.seq for e in w.agent.queue_entries)
        if w.agent.prompt(frame.seq).run_id and not continued:
            w.complete(frame.hook, frame.seq, self.ended_well(w))
        super().run_next(w, head)

    def come_back(self, w: World, head: int, _: Variant) -> None:
        """003 coordinator.run publishes and sets the marker; runAgent reports the error of whichever frame returned
        last under its own run id, and publishes the fallback unless the marker is set."""
        g = w.goroutine(head)
        super().come_back(w, head, _)
        if g.error and g.top.accept_seq:  # an in-process caller gets the error returned instead
            w.effects.append(Report(head, of=g.error))
            if w.agent.prompt(head).run_id and not g.latest:
                w.publish(head, ERROR, of=g.error)

    # --- what clients call

    def drop_queue(self, w: World) -> None:
        """003 clearQueueAndNotify, under the lock."""
        dropped = w.agent.queue_entries
        super().drop_queue(w)
        self.publish_drops(w, dropped)

    def clear_queue(self, w: World) -> None:
        """003 ClearQueue: if anything is queued, clearQueueAndNotify without the lock: messageQueue.Get …"""
        if not w.agent.queue_entries:
            return
        w.set(callers=(*w.agent.callers, Caller("clear_queue", read=w.agent.queue_entries)))

    def clear_rest(self, w: World, caller: Caller) -> None:
        """… then messageQueue.Del, and the ends of all that was read are published."""
        w.set(callers=tuple(c for c in w.agent.callers if c is not caller))
        w.reach((e.seq for e in w.agent.queue_entries), Reach.CLEAR)
        w.drop(w.agent.queue_entries)
        w.set(queue_entries=())
        self.publish_drops(w, caller.read)

    def close(self, w: World) -> None:
        """003 Workspace.Shutdown: refuse prompts, cancel the workspace's context …"""
        live = [p for p in w.agent.prompts if p.state is not State.DONE]
        w.reach((p.seq for p in live if p.state is State.ACTIVE), Reach.CANCEL)
        w.set(dead=True, callers=(*w.agent.callers, Caller("close", reached=tuple(p.seq for p in live))))
        for g in w.agent.goroutines:
            w.stop(g, range(len(g.frames)))

    def close_rest(self, w: World, caller: Caller) -> None:
        """… then CancelAll, which cancels the sessions that have somebody registered."""
        w.set(callers=tuple(c for c in w.agent.callers if c is not caller))
        known = {p.seq for p in w.agent.prompts if p.state is not State.DONE}
        w.reach((seq for seq in caller.reached if seq in known), Reach.CANCEL)
        if w.agent.registered:
            self.cancel(w)
