"""r1: a pending flag (seed 002). Prompts are counted from acceptance, and a cancel that finds one sets a flag.

New: the accept handle and its counter; a lock per session for entry, drain, handoff and cancel; messages for a turn
canceled on entry. The flag belongs to the session and not to a prompt: the first prompt to enter consumes it.
"""

from dataclasses import dataclass
from typing import ClassVar

from ..actions import Reach, Variant
from ..effects import Record
from ..lifecycle import State
from .agent import Entry, Frame, World
from .machine import Do
from .r0 import CANCELED, R0


@dataclass(frozen=True)
class R1(R0):
    """In-process prompts still enter as in r0."""

    accepts: tuple[Variant, ...] = (False, True, "in process")

    name = "r1"
    title = "pending flag: prompts are counted from acceptance, a cancel sets a flag"

    LATER: ClassVar[dict[str, str]] = {}
    STEPS: ClassVar[dict[str, tuple[Do, ...]]] = {
        **R0.STEPS,
        "dispatched": (Do("enter", "enter"), Do("fail", "fail_to_run")),
        "enter": (Do("enter", "enter"),),
        "begun": (Do("fail", "fail_registered"), *R0.STEPS["stream"]),
        "doomed": (Do("fail", "fail_registered"),),
        "settle": (Do("settle", "settle"),),
    }

    def accept(self, w: World, variant: Variant, seq: int) -> None:
        """002 BeginAccepted, then the goroutine of RunAccepted. In-process callers have no handle."""
        if variant == "in process":
            super().accept(w, False, seq)
        else:
            self.dispatch(w, self.reserve(w, Frame(seq, "dispatched", hook=seq)), run_id=variant is True)

    def reserve(self, w: World, frame: Frame) -> Frame:
        """002 BeginAccepted."""
        w.set(accepted=w.agent.accepted + 1)
        return frame._replace(open=True)

    def release(self, w: World, head: int) -> None:
        """002 AcceptedRun.Close and endAccepted: decrements the counter once."""
        if w.goroutine(head).top.open:
            w.top(head, open=False)
            w.set(accepted=w.agent.accepted - 1)

    # --- entry, one step under the lock

    def enter(self, w: World, head: int, _: Variant) -> None:
        """002 Run: canceled on entry, queued or registered, and the handle closed, all under the session's lock."""
        frame = w.goroutine(head).top
        if self.canceled_on_entry(w, frame):
            w.move(frame.seq, State.CANCELED_ON_ENTRY)
            w.top(head, at="settle")
            self.release(w, head)
        elif w.agent.registered:
            w.set(queue_entries=(*w.agent.queue_entries, self.entry(frame)))
            w.move(frame.seq, State.QUEUED)
            self.release(w, head)
            self.give_back(w, head)
        else:
            w.register(head)
            w.move(frame.seq, State.ACTIVE)
            w.top(head, at="doomed" if w.agent.dead else "begun", stop=w.agent.dead)
            self.release(w, head)

    def canceled_on_entry(self, w: World, frame: Frame) -> bool:
        """Whether the flag is set. Consumes it."""
        flag = w.agent.flag
        w.set(flag=False)
        return flag

    def entry(self, frame: Frame) -> Entry:
        """002 enqueueCall."""
        return Entry(frame.seq)

    def settle(self, w: World, head: int, _: Variant) -> None:
        """002 persistCanceledTurn, and Run returns nil without publishing anything."""
        frame = w.goroutine(head).top
        w.effects.append(Record(frame.seq))
        w.move(frame.seq, State.DONE, CANCELED)
        self.give_back(w, head)

    def fail_to_run(self, w: World, head: int, _: Variant) -> None:
        """coordinator.run fails before it calls Run."""
        self.fail_early(w, head)
        self.give_back(w, head)

    def fail_registered(self, w: World, head: int, _: Variant) -> None:
        """Run fails after it has registered and before it installs the defer that publishes."""
        self.fail_early(w, head)
        w.top(head, at="clean_up")

    # --- the turn

    def step(self, w: World, head: int, _: Variant) -> None:
        """002 PrepareStep: takes the queue under the lock, and drops it without publishing if the flag is set."""
        taken = w.agent.queue_entries
        w.set(queue_entries=())
        w.top(head, at="stream")
        if w.agent.flag:
            w.drop(taken)
        else:
            self.take_in(w, head, taken)

    def hand_off(self, w: World, head: int, _: Variant) -> None:
        """002 Run: one step under the lock. If the flag is set, drops the queue without publishing. Clears the flag."""
        if w.agent.flag:
            w.drop(w.agent.queue_entries)
            w.set(queue_entries=(), flag=False)
        if w.agent.queue_entries:
            self.run_next(w, head)
        else:
            self.end_chain(w, head)

    def run_next(self, w: World, head: int) -> None:
        """002 Run: the first queued prompt gets a new reservation, and Run calls itself for it."""
        first, *rest = w.agent.queue_entries
        w.set(queue_entries=tuple(rest))
        w.top(head, at="clean_up")
        w.move(first.seq, State.ACCEPTED)
        w.call(head, self.reserve(w, Frame(first.seq, "enter", entry_seq=first.accept_seq, hook=first.hook)))

    def come_back(self, w: World, head: int, _: Variant) -> None:
        """The deferred Close releases the reservation, if Run was never entered."""
        self.release(w, head)
        super().come_back(w, head, _)

    # --- client calls

    def cancel(self, w: World) -> None:
        """002 Cancel, one step under the lock: stop the turn, set the flag if a prompt is accepted, drop the queue."""
        w.reach((p.seq for p in w.agent.prompts if p.state is not State.DONE), Reach.CANCEL)
        w.stop_registered()
        if w.agent.accepted:
            self.note_cancel(w)
        self.drop_queue(w)

    def note_cancel(self, w: World) -> None:
        w.set(flag=True)

    def drop_queue(self, w: World) -> None:
        """Publishes nothing."""
        w.drop(w.agent.queue_entries)
        w.set(queue_entries=())
