"""r2: a high-water mark (seeds 000 and 001). Handles are numbered, and a cancel covers the numbers given out so far.

New: the accept sequence and the mark instead of the flag; a prompt canceled on entry publishes its completion. The mark
is deleted when the count of open handles reaches zero, an untracked prompt (sequence 0) is covered by any mark, and
the drain asks the mark after it has let go of the lock.
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
    title = "high-water mark: a cancel covers the sequence numbers given out so far"

    def reserve(self, w: World, frame: Frame) -> Frame:
        """000 BeginAccepted: counts and numbers the handle."""
        w.set(accept_gen=w.agent.accept_gen + 1)
        return super().reserve(w, frame._replace(accept_seq=w.agent.accept_gen))

    def release(self, w: World, head: int) -> None:
        """000 endAccepted: with the last handle the mark goes too."""
        if w.goroutine(head).top.open and w.agent.accepted == 1:
            w.set(mark=0)
        super().release(w, head)

    def covers(self, agent: Agent, accept_seq: int) -> bool:
        """000 canceledBySeq: an untracked call is covered by any mark."""
        return agent.mark > 0 and accept_seq <= agent.mark

    def canceled_on_entry(self, w: World, frame: Frame) -> bool:
        """The mark, which is not consumed."""
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
        """000 PrepareStep: the queue is taken under the lock …"""
        w.top(head, read=w.agent.queue_entries, at="fold")
        w.set(queue_entries=())

    def fold(self, w: World, head: int, _: Variant) -> None:
        """… and each prompt is checked against the mark, and folded, after the unlock."""
        read = w.goroutine(head).top.read
        w.top(head, read=(), at="stream")
        w.drop(e for e in read if self.covers(w.agent, e.accept_seq))
        self.take_in(w, head, tuple(e for e in read if not self.covers(w.agent, e.accept_seq)))

    def hand_off(self, w: World, head: int, _: Variant) -> None:
        """000 Run, one step under the lock: drop what the mark covers, then run the first that is left."""
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
        """In silence."""
        w.drop(covered)

    def note_cancel(self, w: World) -> None:
        """000 Cancel: the mark rises to the latest sequence."""
        w.set(mark=max(w.agent.mark, w.agent.accept_gen))
