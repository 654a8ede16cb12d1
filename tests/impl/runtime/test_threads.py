"""One session under many real threads: what its callers saw is a history that the oracle has no complaint about.

Threads call the sessions of `impl.runtime` as a server would: whoever is told that a turn starts runs it. Each call is
written down with the real times at which it began and returned, and with what it brought about; the oracle judges that
(`model.oracle`), and an exception is a complaint too. The interpreter switches threads as often as it can. The runtime
promises nothing of the kind: all of it belongs to one event loop.
"""

import random
import re
import sys
import threading
from collections import Counter as Tally
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from time import perf_counter_ns, sleep
from typing import Any

import pytest
from support.budget import effort
from support.replayed_sessions import restored

from cancelmark.impl.runtime.session import Counter, LivePrompt, Session, TakenStep
from cancelmark.model import oracle
from cancelmark.model.actions import FINISH, Variant
from cancelmark.model.effects import End, Start
from cancelmark.model.lifecycle import IllegalTrigger, Outcome, State, Trigger
from cancelmark.model.oracle import Call, Span, certain, judge
from cancelmark.model.protocol import REFERENCE

THREADS = 6
CALLS = 120  # that each thread makes of its own accord


@pytest.fixture(autouse=True)
def _switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


# --- Threads, and the history that they write down ----------------------------------------------------------------

@dataclass
class Hammer:
    """Two sessions with one counter, threads that call them, and what was seen."""

    sessions: list[Session]
    seed: int
    seen: dict[LivePrompt, oracle.Prompt] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    spans: list[tuple[int, Span]] = field(default_factory=list)  # of all calls, each with its thread
    errors: list[str] = field(default_factory=list)
    work: deque[tuple[str, LivePrompt]] = field(default_factory=deque)  # what somebody must do next
    writing: threading.Lock = field(default_factory=threading.Lock)
    together: threading.Barrier = field(default_factory=lambda: threading.Barrier(THREADS))

    def run(self) -> list[str]:
        """Lets the threads loose, ends what they leave, and returns what is wrong with the history."""
        threads = [threading.Thread(target=self.guarded, args=(n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if not self.errors:
            self.guarded(THREADS)
        if self.errors:
            return self.errors
        left = [f"{p} is left" for session in self.sessions for p in session.prompts.values()]
        return left + judge(self.seen.values(), self.calls)

    def guarded(self, thread: int) -> None:
        choose = random.Random(f"{self.seed} {thread}")
        try:
            if thread < THREADS:
                self.together.wait()
                for _ in range(CALLS):
                    self.call(thread, choose)
            while self.work and not self.errors:
                self.go_on(thread, choose)
        except Exception as error:  # a session that is used as it should be raises nothing
            self.errors.append(f"{type(error).__name__}: {error}")

    def call(self, thread: int, choose: random.Random) -> None:
        """What a client does, or what the server has to do next."""
        session = choose.choice(self.sessions)
        match choose.choices(["accept", "go on", "cancel", "clear_queue"], [5, 9, 1, 1])[0]:
            case "accept":
                begin = perf_counter_ns()
                seq = choose.choice([None, session.counter.next])
                prompt, _ = session.accept(run_id=choose.choice([None, "run"]), seq=seq and seq())
                span = Span(begin, perf_counter_ns())
                with self.writing:
                    self.seen[prompt] = oracle.Prompt(str(prompt), span, prompt.run_id is not None, session=session.id)
                self.work.append(("enter", prompt))
            case "go on":
                self.go_on(thread, choose)
            case "cancel":
                _, span = self.timed(thread, session, "cancel")
                self.calls.append(Call(span.begin, span.end, "cancel", session.id))
            case "clear_queue":
                _, span = self.timed(thread, session, "clear_queue")
                self.calls.append(Call(span.begin, span.end, "clear_queue", session.id))

    def go_on(self, thread: int, choose: random.Random) -> None:
        """Takes up what somebody must do next."""
        try:
            what, prompt = self.work.popleft()
        except IndexError:
            return
        session = prompt.session
        if what == "turn" and (prompt.covered or choose.random() < 0.5):
            stop = Outcome.CANCELED if prompt.covered else Outcome.END_TURN
            self.timed(thread, session, "finish", prompt, choose.choice([stop, stop, Outcome.ERROR]))
        elif what == "turn" and choose.random() < 0.5:
            with suppress(IllegalTrigger):  # nobody to take in, or it was asked to stop
                self.timed(thread, session, "step", prompt)
            self.work.append((what, prompt))
        elif what == "turn":
            try:
                self.timed(thread, session, "requeue", prompt)
            except IllegalTrigger:
                assert prompt.covered, "a turn that was not asked to stop may go on"
                self.work.append((what, prompt))
        elif what == "enter" and choose.random() < 0.1:
            self.timed(thread, session, "fail", prompt)
        elif what == "enter":
            _, span = self.timed(thread, session, "enter", prompt)
            with self.writing:
                self.seen[prompt] = replace(self.seen[prompt], enter=span)
        else:
            self.timed(thread, session, "settle", prompt)

    def timed(
        self, thread: int, session: Session, action: str, prompt: LivePrompt | None = None,
        variant: Outcome | None = None,
    ) -> tuple[TakenStep, Span]:
        """The call with its real times. All that it brings about was seen in that span."""
        begin = perf_counter_ns()
        effects = session.take(action, prompt, variant)
        span = Span(begin, perf_counter_ns())
        self.spans.append((thread, span))
        prompts = {prompt.seq: (prompt, row.dest) for prompt, row in effects.moved}
        with self.writing:
            for effect in effects:
                if isinstance(effect, Start | End):
                    prompt, _ = prompts[effect.seq]
                    seen = self.seen[prompt]
                    self.seen[prompt] = replace(seen, starts=(*seen.starts, span)) if isinstance(effect, Start) else (
                        replace(seen, ends=(*seen.ends, oracle.End(span.begin, span.end, effect.outcome.value))))
        for prompt, state in prompts.values():
            if state in (State.ACTIVE, State.CANCELED_ON_ENTRY):
                self.work.append(("turn" if state is State.ACTIVE else "settle", prompt))
        return effects, span


def hammered(seed: int, make: Callable[[str, Counter], Session] = Session, counter: type[Counter] = Counter) -> Hammer:
    shared = counter()
    return Hammer([make("one", shared), make("two", shared)], seed)


@pytest.mark.rule("R19a")
def test_what_threads_see_of_a_session_is_a_history_of_the_protocol() -> None:
    ends: Tally[str] = Tally()
    overlaps = requeued = 0
    for seed in range(effort(25)):
        hammer = hammered(seed)
        assert hammer.run() == []
        prompts = list(hammer.seen.values())
        ends.update(p.ends[0].outcome for p in prompts)
        requeued += sum(len(p.starts) > 1 for p in prompts)
        overlaps += sum(not certain(a, b) for (t, a), (u, b) in zip(hammer.spans, hammer.spans[1:]) if t != u)
    assert ends.keys() == {outcome.value for outcome in Outcome}
    assert min(ends.values()) > 20
    assert requeued > 20
    assert overlaps > 50, "the threads must get in each other's way"


# --- It would notice ----------------------------------------------------------------------------------------------


class Unlocked(Session):
    """A session whose lock does nothing."""

    def __init__(self, id: str, counter: Counter) -> None:
        super().__init__(id, counter)
        self._lock = nullcontext()  # type: ignore[assignment]


class AsksTooEarly(Session):
    """A prompt enters by the mark as it was before the lock was taken."""

    def take(self, action: str, prompt: LivePrompt | None = None, variant: Variant = None) -> TakenStep:
        if action != "enter":
            return super().take(action, prompt, variant)
        asked = self.mark
        sleep(0)  # other threads may run here, as they may anywhere: it only happens more often
        with self._lock:
            self.mark, now = asked, self.mark
            effects = self._take(action, prompt, variant, self.counter.latest)
            self.mark = now
            return effects


class LetsGoTooEarly(Session):
    """A turn ends in one step, and the next one starts in another."""

    def take(self, action: str, prompt: LivePrompt | None = None, variant: Variant = None) -> TakenStep:
        if action != "finish" or prompt is None:
            return super().take(action, prompt, variant)
        with self._lock:
            effects = self.effects = TakenStep(action, prompt, variant)
            self.fire(prompt, FINISH[variant])
            following = self.queue[:1]
        sleep(0)
        with self._lock:
            self.effects = effects
            for first in following:
                self.fire(first, Trigger.START)
        return effects


class CountsTwice(Counter):
    """A counter whose lock does nothing. Without the pause CPython 3.11 would not switch threads between the two."""

    def next(self) -> int:
        latest = self.latest
        sleep(0)
        self.latest = latest + 1
        return self.latest


@pytest.mark.parametrize(("make", "counter", "noticed"), [
    (Unlocked, Counter, "Error|IllegalTrigger|rule: "),
    (AsksTooEarly, Counter, r"starts( again)?, but could only end canceled\. The rule: a prompt must not start after"),
    (LetsGoTooEarly, Counter, "no row allows start"),
    (Session, CountsTwice, "Error|IllegalTrigger|rule: "),
])
def test_threads_find_a_lock_that_is_not_held(make: type[Session], counter: type[Counter], noticed: str) -> None:
    complaints = (complaint for seed in range(100) for complaint in hammered(seed, make, counter).run())
    assert any(re.search(noticed, complaint) for complaint in complaints)


# --- Without luck -------------------------------------------------------------------------------------------------

class Watched:
    """A lock that tells how often it was taken, and whether it is held."""

    def __init__(self) -> None:
        self.taken, self.held = 0, False

    def __enter__(self) -> None:
        self.taken, self.held = self.taken + 1, True

    def __exit__(self, *_: object) -> None:
        self.held = False


STEPS = {  # every step that there is, with the state of the one prompt that it is taken with
    "accept": None, "enter": State.ACCEPTED, "fail": State.ACCEPTED, "settle": State.CANCELED_ON_ENTRY,
    "step": State.ACTIVE, "requeue": State.ACTIVE, "finish": State.ACTIVE, "cancel": State.ACTIVE,
    "clear_queue": State.QUEUED, "close": State.ACTIVE, "crash": State.ACTIVE, "recover": State.ACCEPTED,
}


def test_every_action_is_tried() -> None:
    assert list(STEPS) == [action.name for action in REFERENCE.actions]


@pytest.mark.parametrize(("name", "state"), STEPS.items())
def test_a_step_takes_the_lock_once_and_lets_it_go(name: str, state: State | None) -> None:
    action = REFERENCE.action(name)
    waiting = [(2, "", None, State.QUEUED)] if name == "step" else []
    session = restored("s", Counter(2), 0, [*([(1, "", None, state)] if state else []), *waiting])
    session.down = action.while_down
    lock = session._lock = Watched()  # type: ignore[assignment]
    take = session._take

    def watched(*arguments: Any) -> TakenStep:
        assert lock.held
        return take(*arguments)

    def step() -> None:
        if name == "accept":
            session.accept()
        else:
            session.take(name, session.prompts[1] if action.subject else None, action.variants[0])

    session._take = watched  # type: ignore[method-assign]
    step()
    assert (lock.taken, lock.held) == (1, False)
    session.down = not action.while_down
    session.prompts[1] = LivePrompt(session, 1)
    with pytest.raises(RuntimeError, match="down"):
        step()
    assert (lock.taken, lock.held) == (2, False)


def test_the_counter_takes_its_lock() -> None:
    counter = Counter()
    lock = counter._lock = Watched()  # type: ignore[assignment]
    assert (counter.next(), counter.next(), counter.latest) == (1, 2, 2)
    assert (lock.taken, lock.held) == (2, False)
