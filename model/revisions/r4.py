"""r4: merged (seed 003). Prompts with a run id get their own terminal events, and shutdown waits for every run.

New:

- A queued prompt with a run id is not folded, and its terminal event is published when it is dropped.
- A frame publishes its own event before it runs the next prompt, through the hook if it has one.
- The goroutine of a failed prompt publishes a fallback event, unless its marker records that one was published.
- The workspace can close.
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
    title = "merged: prompts with a run id are never folded and get their own terminal events; adds shutdown"

    CALLS: ClassVar[tuple[str, ...]] = ("cancel", "clear_queue", "close")
    LATER: ClassVar[dict[str, str]] = {"clear_queue": "clear_rest", "close": "close_rest"}

    def publish_drops(self, w: World, entries: Iterable[Entry]) -> None:
        """003 publishCanceledQueueDrops: publishes for prompts with a run id, through the hook if the call has one."""
        for entry in entries:
            if w.agent.prompt(entry.seq).run_id:
                w.complete(entry.hook, entry.seq, CANCELED)

    # --- the turn

    def possible(self, agent: Agent, frame: Frame, do: Do) -> bool:
        if do.action == "step":
            return any(not agent.prompt(e.seq).run_id or self.covers(agent, e.accept_seq) for e in agent.queue_entries)
        return super().possible(agent, frame, do)

    def step(self, w: World, head: int, _: Variant) -> None:
        """003 drainQueueForStep: drops and publishes covered prompts, keeps those with a run id, folds the rest."""
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
        """003 Run: a frame with a run id first publishes its own event, unless its continuation is in the queue."""
        frame = w.goroutine(head).top
        continued = any(e.seq == frame.seq for e in w.agent.queue_entries)
        if w.agent.prompt(frame.seq).run_id and not continued:
            w.complete(frame.hook, frame.seq, self.ended_well(w))
        super().run_next(w, head)

    def come_back(self, w: World, head: int, _: Variant) -> None:
        """003 coordinator.run publishes and sets the marker. runAgent reports the error of the frame that returned last
        under its own run id, and publishes the fallback unless the marker is set."""
        g = w.goroutine(head)
        super().come_back(w, head, _)
        if g.error and g.top.accept_seq:  # an in-process caller gets the error returned instead
            w.effects.append(Report(head, of=g.error))
            if w.agent.prompt(head).run_id and not g.latest:
                w.publish(head, ERROR, of=g.error)

    # --- client calls

    def drop_queue(self, w: World) -> None:
        """003 clearQueueAndNotify, under the lock."""
        dropped = w.agent.queue_entries
        super().drop_queue(w)
        self.publish_drops(w, dropped)

    def clear_queue(self, w: World) -> None:
        """003 ClearQueue: unless the queue is empty, clearQueueAndNotify without the lock: messageQueue.Get …"""
        if not w.agent.queue_entries:
            return
        w.set(callers=(*w.agent.callers, Caller("clear_queue", read=w.agent.queue_entries)))

    def clear_rest(self, w: World, caller: Caller) -> None:
        """… then messageQueue.Del, and publishes terminal events for all prompts that were read."""
        w.set(callers=tuple(c for c in w.agent.callers if c is not caller))
        w.reach((e.seq for e in w.agent.queue_entries), Reach.CLEAR)
        w.drop(w.agent.queue_entries)
        w.set(queue_entries=())
        self.publish_drops(w, caller.read)

    def close(self, w: World) -> None:
        """003 Workspace.Shutdown: refuses prompts, cancels the workspace's context …"""
        live = [p for p in w.agent.prompts if p.state is not State.DONE]
        w.reach((p.seq for p in live if p.state is State.ACTIVE), Reach.CANCEL)
        w.set(dead=True, callers=(*w.agent.callers, Caller("close", reached=tuple(p.seq for p in live))))
        for g in w.agent.goroutines:
            w.stop(g, range(len(g.frames)))

    def close_rest(self, w: World, caller: Caller) -> None:
        """… then CancelAll, which cancels the sessions that have a registered turn."""
        w.set(callers=tuple(c for c in w.agent.callers if c is not caller))
        known = {p.seq for p in w.agent.prompts if p.state is not State.DONE}
        w.reach((seq for seq in caller.reached if seq in known), Reach.CANCEL)
        if w.agent.registered:
            self.cancel(w)
