"""r0: before the fixes. No accept tracking, no mark, no lock: every map access is a separate step.

Seed 003 shows it in its removed and context lines. Until a prompt has registered or queued itself, only its own
goroutine knows about it, so a cancel before that point finds nothing to cancel.
"""

from dataclasses import dataclass
from typing import ClassVar

from ..actions import Reach, Variant
from ..effects import Acknowledge, Fold
from ..lifecycle import Outcome, State
from ..session import Prompt
from .agent import Caller, Entry, Frame, Goroutine, World
from .machine import Do, Revision

END_TURN, ERROR, CANCELED, FOLDED = Outcome


@dataclass(frozen=True)
class R0(Revision):
    """Every prompt enters in the way that in-process prompts still do in all later revisions."""

    accepts: tuple[Variant, ...] = (False, True)

    name = "r0"
    title = "before the fixes: acceptances are not recorded, and there is no lock"

    CALLS: ClassVar[tuple[str, ...]] = ("cancel", "clear_queue")
    LATER: ClassVar[dict[str, str]] = {"cancel": "cancel_rest"}
    STEPS: ClassVar[dict[str, tuple[Do, ...]]] = {
        "look": (Do("look", "look"),),
        "read": (Do("read_queue", "read_queue"),),
        "write": (Do("enqueue", "enqueue"),),
        "begin": (Do("begin", "begin"), Do("fail", "fail_unregistered")),
        "stream": (Do("step", "step"), Do("finish", "finish", END_TURN), Do("finish", "finish", ERROR),
                   Do("finish", "finish", CANCELED), Do("summarize", "summarize")),
        "fold": (Do("fold", "fold"),),
        "summarizing": (Do("begin_summary", "begin_summary"),),
        "summary": (Do("requeue", "requeue"),),
        "leave": (Do("leave", "leave"),),
        "hand_off": (Do("hand_off", "hand_off"),),
        "pop": (Do("pop", "pop"),),
        "clean_up": (Do("clean_up", "clean_up"),),
        "return": (Do("return", "come_back"),),
    }

    def accept(self, w: World, variant: Variant, seq: int) -> None:
        """003 Backend.SendMessage (removed lines): the request's goroutine runs the prompt. coordinator.run sets the
        OnComplete hook of the call it makes."""
        self.dispatch(w, Frame(seq, "look", hook=seq), run_id=variant is True)

    def dispatch(self, w: World, frame: Frame, run_id: bool) -> None:
        w.set(prompts=(*w.agent.prompts, Prompt(frame.seq, run_id)))
        w.put(Goroutine(frame.seq, (frame,)))
        w.effects.append(Acknowledge(frame.seq))

    # --- entry

    def look(self, w: World, head: int, _: Variant) -> None:
        """003 Run: IsSessionBusy, without a lock. The result may be stale by the time the frame acts on it."""
        w.top(head, at="read" if w.agent.registered else "begin")

    def read_queue(self, w: World, head: int, _: Variant) -> None:
        """003 Run: messageQueue.Get."""
        w.top(head, read=w.agent.queue_entries, at="write")

    def enqueue(self, w: World, head: int, _: Variant) -> None:
        """003 Run: messageQueue.Set of the copy that was read, with the call appended and its OnComplete stripped."""
        frame = w.goroutine(head).top
        w.set(queue_entries=(*frame.read, Entry(frame.seq, frame.entry_seq)))
        w.move(frame.seq, State.QUEUED)
        self.give_back(w, head)

    def begin(self, w: World, head: int, _: Variant) -> None:
        """003 Run: activeRequests.Set, after reading the session and its messages, without another busy check."""
        w.register(head)
        w.top(head, at="stream", stop=w.agent.dead)
        w.move(w.goroutine(head).top.seq, State.ACTIVE)

    def fail_unregistered(self, w: World, head: int, _: Variant) -> None:
        """003 Run: sessions.Get or createUserMessage fails; the defer that publishes is not installed yet."""
        self.fail_early(w, head)
        self.give_back(w, head)

    def fail_early(self, w: World, head: int) -> None:
        """The turn ends before it starts. On a dead context the error is context.Canceled, which is not reported."""
        g = w.goroutine(head)
        if w.agent.dead:
            w.reach([g.top.seq], Reach.CANCEL)  # the shutdown that killed the context may still be in progress
        w.move(g.top.seq, State.DONE, CANCELED if w.agent.dead else ERROR)
        w.put(g._replace(error=0 if w.agent.dead else g.top.seq))

    # --- the turn

    def step(self, w: World, head: int, _: Variant) -> None:
        """003 PrepareStep (removed lines): messageQueue.Get …"""
        w.top(head, read=w.agent.queue_entries, at="fold")

    def fold(self, w: World, head: int, _: Variant) -> None:
        """003 PrepareStep (removed lines): … then messageQueue.Del, and every prompt that was read joins the turn."""
        read = w.goroutine(head).top.read
        w.set(queue_entries=())
        w.top(head, read=(), at="stream")
        self.take_in(w, head, read)

    def take_in(self, w: World, head: int, entries: tuple[Entry, ...]) -> None:
        """createUserMessage for each. A prompt without a run id ends with the turn; the others get no event."""
        for entry in entries:
            w.effects.append(Fold(entry.seq, into=w.goroutine(head).top.seq))
            w.move(entry.seq, State.DONE, FOLDED)
            if not w.agent.prompt(entry.seq).run_id:
                w.publish(entry.seq, FOLDED)

    def finish(self, w: World, head: int, outcome: Outcome) -> None:
        """003 Run: Stream returns. After an error or a cancel, the deferred publish runs and there is no handoff."""
        g = w.goroutine(head)
        w.move(g.top.seq, State.DONE, outcome)
        if outcome is END_TURN:
            w.top(head, at="leave")
        else:
            w.put(g._replace(error=g.top.seq if outcome is ERROR else 0))
            w.top(head, at="clean_up")
            w.complete(g.top.hook, g.top.seq, outcome)

    # --- compaction: the context window is full, and the turn must resume after a summary. Seed 003 covers only the
    # continuation; the rest is in the surrounding code, which no revision changes.

    def summarize(self, w: World, head: int, _: Variant) -> None:
        """Run, shouldSummarize: activeRequests.Del, without a lock. The session appears idle."""
        w.unregister()
        w.top(head, at="summarizing")

    def begin_summary(self, w: World, head: int, _: Variant) -> None:
        """Summarize refuses a busy session, and fails if the turn's context is canceled; otherwise it registers its own
        cancel function. The check and the registration are one step in this model."""
        if w.agent.registered:
            self.finish(w, head, ERROR)
        elif w.goroutine(head).top.stop:
            self.finish(w, head, CANCELED)
        else:
            w.register(head)
            w.top(head, at="summary")

    def requeue(self, w: World, head: int, _: Variant) -> None:
        """Summarize unregisters and returns nil, canceled or not. (On a dead context it cannot delete the summary, and
        fails.) Run appends the unchanged call, with its OnComplete; in this model in the same step."""
        w.unregister()
        if w.agent.dead:
            self.finish(w, head, CANCELED)
            return
        frame = w.goroutine(head).top
        w.set(queue_entries=(*w.agent.queue_entries, Entry(frame.seq, frame.entry_seq, frame.hook)))
        w.move(frame.seq, State.QUEUED)
        w.top(head, at="leave", stop=False)

    # --- the end of the turn, and the handoff

    def leave(self, w: World, head: int, _: Variant) -> None:
        """003 Run: activeRequests.Del before the queue is checked, without a lock. The session appears idle."""
        w.unregister()
        w.top(head, at="hand_off")

    def hand_off(self, w: World, head: int, _: Variant) -> None:
        """003 Run (removed lines): messageQueue.Get."""
        if w.agent.queue_entries:
            w.top(head, read=w.agent.queue_entries, at="pop")
        else:
            self.end_chain(w, head)

    def end_chain(self, w: World, head: int) -> None:
        """003 Run: the queue is empty, and the deferred publish runs for this frame's own prompt."""
        frame = w.goroutine(head).top
        w.top(head, at="clean_up")
        w.put(w.goroutine(head)._replace(error=0))
        w.complete(frame.hook, frame.seq, self.ended_well(w))

    def ended_well(self, w: World) -> Outcome:
        """003 Run: the outcome in the event of a successful turn. It checks the caller's context, not the turn."""
        return CANCELED if w.agent.dead else END_TURN

    def pop(self, w: World, head: int, _: Variant) -> None:
        """003 Run (removed lines): messageQueue.Set of the rest; Run calls itself. skipRunComplete discards the frame's
        own event."""
        first, *rest = w.goroutine(head).top.read
        w.set(queue_entries=tuple(rest))
        w.top(head, read=(), at="clean_up")
        w.move(first.seq, State.ACCEPTED)
        w.call(head, Frame(first.seq, "look", entry_seq=first.accept_seq, hook=first.hook))

    def clean_up(self, w: World, head: int, _: Variant) -> None:
        """003 Run: the deferred activeRequests.Del, whichever turn is registered by now."""
        w.unregister()
        self.give_back(w, head)

    def give_back(self, w: World, head: int) -> None:
        """The frame returns to the frame that called it, or to coordinator.run."""
        if len(w.goroutine(head).frames) > 1:
            w.unwind(head)
        else:
            w.top(head, at="return", read=())

    def come_back(self, w: World, head: int, _: Variant) -> None:
        """003 coordinator.run: publishes the completion that the hook has buffered, if any."""
        if latest := w.goroutine(head).latest:
            w.publish(*latest)
        w.go_exit(head)

    # --- client calls

    def cancel(self, w: World) -> None:
        """003 Cancel (removed lines): calls the registered cancel function …"""
        live = [p for p in w.agent.prompts if p.state is not State.DONE]
        w.stop_registered()
        w.reach((p.seq for p in live if p.state is State.ACTIVE), Reach.CANCEL)
        w.set(callers=(*w.agent.callers, Caller("cancel", reached=tuple(p.seq for p in live))))

    def cancel_rest(self, w: World, caller: Caller) -> None:
        """… then messageQueue.Del, without publishing anything."""
        w.set(callers=tuple(c for c in w.agent.callers if c is not caller))
        known = {p.seq for p in w.agent.prompts if p.state is not State.DONE}
        w.reach((seq for seq in caller.reached if seq in known), Reach.CANCEL)
        w.reach((e.seq for e in w.agent.queue_entries), Reach.CANCEL)  # accepted while the cancel was in progress
        w.drop(w.agent.queue_entries)
        w.set(queue_entries=())

    def clear_queue(self, w: World) -> None:
        """003 ClearQueue (removed lines): messageQueue.Del, without a lock and without publishing anything."""
        w.reach((e.seq for e in w.agent.queue_entries), Reach.CLEAR)
        w.drop(w.agent.queue_entries)
        w.set(queue_entries=())
