"""r2: a high-water mark (seeds 000 and 001). Handles are numbered, and a cancel covers the numbers assigned so far.

New: the accept sequence, and the mark instead of the flag; a prompt canceled on entry publishes its completion. Three
weaknesses: the mark is deleted when the number of open handles reaches zero, any mark covers an untracked prompt
(sequence 0), and the drain checks the mark after it has released the lock.
"""

from dataclasses import dataclass

from ..actions import Variant
from .agent import Agent, Entry, Frame, World
from .r0 import CANCELED
from .r1 import R1


@dataclass(frozen=True)
class R2(R1):
    """The mark replaces the flag."""

    name = "r2"
    title = "high-water mark: a cancel covers the sequence numbers assigned so far"

    def reserve(self, w: World, frame: Frame) -> Frame:
        """000 BeginAccepted: counts and numbers the handle."""
        w.set(accept_gen=w.agent.accept_gen + 1)
        return super().reserve(w, frame._replace(accept_seq=w.agent.accept_gen))

    def release(self, w: World, head: int) -> None:
        """000 endAccepted: closing the last handle deletes the mark."""
        if w.goroutine(head).top.open and w.agent.accepted == 1:
            w.set(mark=0)
        super().release(w, head)

    def covers(self, agent: Agent, accept_seq: int) -> bool:
        """000 canceledBySeq: any mark covers an untracked call."""
        return agent.mark > 0 and accept_seq <= agent.mark

    def canceled_on_entry(self, w: World, frame: Frame) -> bool:
        """Whether the mark covers the frame. Does not consume the mark."""
        return self.covers(w.agent, frame.accept_seq)

    def entry(self, frame: Frame) -> Entry:
        """000 enqueueCall: the sequence survives the handle."""
        return Entry(frame.seq, frame.accept_seq)

    def settle(self, w: World, head: int, _: Variant) -> None:
        """000 Run: as before, and the completion is published through the hook."""
        frame = w.goroutine(head).top
        super().settle(w, head, _)
        w.complete(frame.hook, frame.seq, CANCELED)

    def step(self, w: World, head: int, _: Variant) -> None:
        """000 PrepareStep: takes the queue under the lock …"""
        w.top(head, read=w.agent.queue_entries, at="fold")
        w.set(queue_entries=())

    def fold(self, w: World, head: int, _: Variant) -> None:
        """… then checks each prompt against the mark, and folds it, after releasing the lock."""
        read = w.goroutine(head).top.read
        w.top(head, read=(), at="stream")
        w.drop(e for e in read if self.covers(w.agent, e.accept_seq))
        self.take_in(w, head, tuple(e for e in read if not self.covers(w.agent, e.accept_seq)))

    def hand_off(self, w: World, head: int, _: Variant) -> None:
        """000 Run, one step under the lock: drop the covered prompts, then run the first that is left."""
        covered = [e for e in w.agent.queue_entries if self.covers(w.agent, e.accept_seq)]
        self.drop_covered(w, covered)
        w.set(queue_entries=tuple(e for e in w.agent.queue_entries if e not in covered))
        if w.agent.queue_entries:
            self.run_next(w, head)
        else:
            if not w.agent.accepted:
                w.set(mark=0)
            self.end_chain(w, head)

    def drop_covered(self, w: World, covered: list[Entry]) -> None:
        """Publishes nothing."""
        w.drop(covered)

    def note_cancel(self, w: World) -> None:
        """000 Cancel: the mark rises to the latest sequence."""
        w.set(mark=max(w.agent.mark, w.agent.accept_gen))
