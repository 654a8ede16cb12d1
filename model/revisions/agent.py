"""The parts that all revisions of the original share: goroutines, call frames, a queue, one registration per session.

This module has only mechanism: how a frame is pushed, how an event is buffered, what a prompt's goroutine is. The
revisions' own modules define what happens under which lock, and in which order.

How the Go code maps to the model:
- A posted prompt gets a goroutine that runs `coordinator.run`, which calls `sessionAgent.Run`. A dequeued prompt gets
  no goroutine: `Run` calls itself for it. A goroutine is therefore a stack of *frames*, and only the top frame runs.
- The frame called by `coordinator.run` has an `OnComplete` hook: its completion is buffered in the goroutine (`latest`)
  and published when the whole stack has returned. Other frames publish at once.
- `activeRequests` holds one cancel function per session: `registered` names the frame whose turn it would stop.
- One step of the model is one critical section of the original, or one access outside any lock.

A prompt's state is what an observer would report: accepted until it is queued or its turn is registered, active until
its turn has ended, and done from then on, whether or not its event has been published.
"""

from collections.abc import Iterable
from typing import NamedTuple

from ..actions import Reach
from ..effects import Effect, End, Start, Stop
from ..lifecycle import Outcome, State
from ..session import AnySession, Prompt


class Entry(NamedTuple):
    """A call in `messageQueue`."""

    seq: int
    accept_seq: int = 0  # 0: untracked
    hook: int = 0  # the goroutine whose `OnComplete` it still carries; 0: stripped


class Frame(NamedTuple):
    """One activation of `sessionAgent.Run`."""

    seq: int  # its prompt
    at: str  # its position: the step it takes next
    accept_seq: int = 0  # of its accept handle; 0: in-process, no handle
    entry_seq: int = 0  # the `acceptSeq` that its call carries from an earlier queueing
    open: bool = False  # the handle still counts as a reservation
    hook: int = 0  # the goroutine that buffers its completion; 0: publishes at once
    stop: bool = False  # its turn was asked to stop
    read: tuple[Entry, ...] = ()  # a copy of the queue that it read in an earlier step


class Goroutine(NamedTuple):
    """A stack of frames, and the state that `coordinator.run` keeps for it."""

    head: int  # the prompt it was started for
    frames: tuple[Frame, ...]
    latest: tuple[int, Outcome] | None = None  # the completion that the hook has buffered
    error: int = 0  # the prompt whose error the last frame returned; 0: none, or canceled

    @property
    def top(self) -> Frame:
        return self.frames[-1]


class Caller(NamedTuple):
    """A call in progress that takes more than one step: cancel, clear_queue or close."""

    name: str
    read: tuple[Entry, ...] = ()
    reached: tuple[int, ...] = ()


class _Fields(NamedTuple):
    prompts: tuple[Prompt, ...] = ()
    queue_entries: tuple[Entry, ...] = ()
    registered: tuple[int, int] | None = None  # goroutine and frame
    accepted: int = 0  # open reservations
    accept_gen: int = 0  # the latest accept sequence
    mark: int = 0  # 0: none
    flag: bool = False
    dead: bool = False  # the workspace's context is canceled
    goroutines: tuple[Goroutine, ...] = ()
    callers: tuple[Caller, ...] = ()
    down: bool = False


class Agent(_Fields, AnySession):
    """The state of one session of the original."""

    __slots__ = ()

    def covered(self, prompt: Prompt) -> bool:
        """Whether the prompt's turn has been asked to stop. The mark refers to the original's own sequence numbers."""
        return any(f.seq == prompt.seq and f.stop for g in self.goroutines for f in g.frames)

    def retire(self) -> "tuple[Agent, tuple[Prompt, ...]]":
        """Split off the finished prompts that nothing refers to: the session without them, and the prompts."""
        used = {e.seq for e in self.queue_entries}
        for g in self.goroutines:
            used.add(g.head)
            used.update(f.seq for f in g.frames)
            used.update(e.seq for f in g.frames for e in f.read)
        used.update(e.seq for c in self.callers for e in c.read)
        ended = tuple(p for p in self.prompts if p.state is State.DONE and p.seq not in used)
        if not ended:
            return self, ()
        return self._replace(prompts=tuple(p for p in self.prompts if p not in ended)), ended


class World:
    """One step being carried out: the session so far, and the effects."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.effects: list[Effect] = []

    def set(self, **fields: object) -> None:
        self.agent = self.agent._replace(**fields)  # type: ignore[arg-type]

    # --- prompts

    def move(self, seq: int, state: State, outcome: Outcome | None = None) -> None:
        """Set the prompt's observable state. On a dead context a turn registers but does not start."""
        if state is State.ACTIVE and not self.agent.dead:
            self.effects.append(Start(seq))
        self.change(seq, state=state, outcome=outcome)

    def change(self, seq: int, **fields: object) -> None:
        self.set(prompts=tuple(
            p._replace(**fields) if p.seq == seq else p for p in self.agent.prompts))  # type: ignore[arg-type]

    def publish(self, seq: int, outcome: Outcome, of: int | None = None) -> None:
        """`PublishMustDeliver` of a RunComplete."""
        self.effects.append(End(seq, outcome, of=seq if of is None else of))
        self.change(seq, ends=min(2, self.agent.prompt(seq).ends + 1))

    def drop(self, entries: Iterable[Entry]) -> None:
        """End these prompts of the queue as canceled."""
        for entry in entries:
            if self.agent.prompt(entry.seq).state is State.QUEUED:
                self.move(entry.seq, State.DONE, Outcome.CANCELED)

    def reach(self, seqs: Iterable[int], reach: Reach) -> None:
        """Record in the history that a call has targeted these prompts."""
        for seq in seqs:
            if self.agent.prompt(seq).reach is not Reach.CANCEL:
                self.change(seq, reach=reach)

    # --- goroutines and frames

    def goroutine(self, head: int) -> Goroutine:
        return next(g for g in self.agent.goroutines if g.head == head)

    def put(self, goroutine: Goroutine) -> None:
        others = (g for g in self.agent.goroutines if g.head != goroutine.head)
        self.set(goroutines=tuple(sorted((*others, goroutine))))

    def top(self, head: int, **fields: object) -> None:
        """Change the goroutine's top frame."""
        g = self.goroutine(head)
        self.put(g._replace(frames=(*g.frames[:-1], g.top._replace(**fields))))  # type: ignore[arg-type]

    def call(self, head: int, frame: Frame) -> None:
        """`Run` calls itself."""
        g = self.goroutine(head)
        self.put(g._replace(frames=(*g.frames, frame)))

    def unwind(self, head: int) -> Goroutine:
        """The top frame returns to the one below it."""
        g = self.goroutine(head)
        self.put(g._replace(frames=g.frames[:-1]))
        return self.goroutine(head)

    def go_exit(self, head: int) -> None:
        self.set(goroutines=tuple(g for g in self.agent.goroutines if g.head != head))

    def register(self, head: int) -> None:
        """`activeRequests.Set`: overwrites any earlier registration."""
        self.set(registered=(head, len(self.goroutine(head).frames) - 1))

    def unregister(self) -> None:
        """`activeRequests.Del`: deletes the session's registration, whichever turn made it."""
        self.set(registered=None)

    def stop_registered(self) -> None:
        """Call the registered cancel function."""
        if self.agent.registered is not None:
            head, depth = self.agent.registered
            for g in self.agent.goroutines:
                if g.head == head and depth < len(g.frames):
                    self.stop(g, [depth])

    def stop(self, goroutine: Goroutine, depths: Iterable[int]) -> None:
        """Cancel the contexts of these frames, which asks their running turns to stop."""
        frames = list(goroutine.frames)
        for depth in depths:
            frame = frames[depth]
            if not frame.stop and self.agent.prompt(frame.seq).state is State.ACTIVE:
                self.effects.append(Stop(frame.seq))
            frames[depth] = frame._replace(stop=True)
        self.put(goroutine._replace(frames=tuple(frames)))

    # --- completions

    def complete(self, hook: int, seq: int, outcome: Outcome) -> None:
        """`publishRunComplete`: to the buffer of the goroutine whose hook the call carries, otherwise to the broker."""
        if not hook:
            self.publish(seq, outcome)
        elif any(g.head == hook for g in self.agent.goroutines):  # otherwise no goroutine is left to publish the buffer
            self.put(self.goroutine(hook)._replace(latest=(seq, outcome)))
