"""Runs of asyncio code under chosen schedules: one, all, or a failing one with the fewest preemptions."""

import asyncio
import gc
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from .loop import Deadlock, Livelock, Loop, LoopStep, Refused
from .process import Process, current_process
from .ready import Choose, Ready

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = [
    "Choose", "Deadlock", "Diverged", "Incomplete", "Livelock", "LoopStep", "Process", "Ready", "Refused",
    "Schedule", "Unhandled", "checkpoint", "choosers", "current_process", "departing", "explore_schedules", "fifo",
    "find_failure", "label", "pick", "ranked", "rankings", "record", "replay", "run", "seeded",
]

T = TypeVar("T")
RANKS = 4  # that `rankings` draws
MAX_STEPS = 10_000
LIMIT = 100_000


class Unhandled(RuntimeError):
    """An exception in a callback, or one that was never retrieved. The first is the cause."""


class Diverged(RuntimeError):
    """The choices do not fit the program: it has changed, or it is not deterministic."""


class Incomplete(RuntimeError):
    """There are more schedules than the limit of the search."""


# --- in the code under test

def label(text: str) -> None:
    """Name the current step in the trace. Has no effect in any other event loop, or without one."""
    loop = _running()
    if isinstance(loop, Loop):
        loop.labels.append(text)


def pick(*options: str) -> int:
    """Let the chooser decide which of these happens: a message arrives, is lost, or comes late. The first is the
    default, and always happens in any other event loop."""
    loop = _running()
    return loop.pick(options) if isinstance(loop, Loop) else 0


async def checkpoint() -> None:
    """Let any other ready callback run. In any other event loop: `asyncio.sleep(0)`."""
    await asyncio.sleep(0)


# --- choosers

def fifo(ready: Sequence[Ready]) -> int:
    """First in, first out: what asyncio itself does."""
    return 0


def seeded(seed: int) -> Choose:
    """Choose uniformly at random, reproducibly for a seed."""
    generator = random.Random(seed)
    return lambda ready: generator.randrange(len(ready))


def replay(choices: Iterable[int]) -> Choose:
    """Make these choices, and then first in, first out. A choice that the program does not offer raises `Diverged`."""
    left = enumerate(choices, 1)

    def choose(ready: Sequence[Ready]) -> int:
        number, choice = next(left, (0, 0))
        if choice >= len(ready):
            raise Diverged(f"choice {number} is {choice}, but only 0 to {len(ready) - 1} are ready: "
                           f"{', '.join(r.task for r in ready)}; check that the program is unchanged and deterministic")
        return choice

    return choose


def departing(departures: Iterable[tuple[int, int]]) -> Choose:
    """First in, first out except for these departures: how many choices to keep, and which callback to run then instead
    of the first, modulo the number of ready callbacks."""
    left = chain.from_iterable([*[0] * wait, instead] for wait, instead in departures)

    def choose(ready: Sequence[Ready]) -> int:
        instead = next(left, 0)
        return 1 + (instead - 1) % (len(ready) - 1) if instead else 0

    return choose


def ranked(ranks: Iterable[int]) -> Choose:
    """Assign the next of these ranks to each task when it is first ready, or 0 if none is left. A task runs only when
    nothing of a lower rank is ready; callbacks without a task have rank 0. So a single number delays a task, where
    `departing` needs one departure for each step that the task must follow."""
    left, given = iter(ranks), dict[str, int]()

    def rank(ready: Ready) -> int:
        if not ready.is_task:
            return 0
        if ready.task not in given:
            given[ready.task] = next(left, 0)
        return given[ready.task]

    def choose(ready: Sequence[Ready]) -> int:
        found = [rank(each) for each in ready]
        return found.index(min(found))

    return choose


def choosers() -> "SearchStrategy[Choose]":
    """A Hypothesis strategy for choosers. Failures shrink to the fewest preemptions, and then to the earliest.

    Drawing each choice separately would shrink to the fewest choices instead: to a run that rarely offers one.
    """
    from hypothesis import strategies as st

    wait, instead = st.integers(0, 3) | st.integers(0, 100), st.integers(1, 3) | st.integers(1, 100)
    return st.builds(departing, st.lists(st.tuples(wait, instead)))


def rankings(tasks: int = 40) -> "SearchStrategy[Choose]":
    """A Hypothesis strategy for choosers that run this many tasks in any order. It finds failures that need a task to
    come much later than usual, or several tasks to swap. `choosers` finds failures closer to first in, first out, and
    shrinks better.

    The ranks are drawn as bytes, because Hypothesis often makes the numbers in a list equal.
    """
    from hypothesis import strategies as st

    return st.binary(min_size=tasks, max_size=tasks).map(lambda drawn: ranked(byte % RANKS for byte in drawn))


# --- one schedule

@dataclass(frozen=True)
class Schedule(Generic[T]):
    """One run: its steps, and how main ended."""

    steps: tuple[LoopStep, ...]
    value: T | None
    error: BaseException | None

    @property
    def choices(self) -> tuple[int, ...]:
        """What `replay` needs to run it again."""
        return tuple(step.choice for step in self.steps if step.options > 1)

    @property
    def options(self) -> tuple[int, ...]:
        """The number of ready callbacks at each choice."""
        return tuple(step.options for step in self.steps if step.options > 1)

    @property
    def preemptions(self) -> int:
        """How many choices departed from first in, first out."""
        return sum(map(bool, self.choices))

    def result(self) -> T:
        """Return what main returned, or raise what it raised."""
        if self.error is not None:
            raise self.error
        return cast(T, self.value)

    @property
    def trace(self) -> str:
        """One line per step. A `*` marks each step that was chosen out of turn."""
        wide = max(map(len, ["task", *(step.task for step in self.steps)]))
        lines = [f"{s.number:4}{'*' if s.choice else ' '} {s.task:{wide}}  {s.what}" for s in self.steps]
        return "\n".join([f"step  {'task':{wide}}  what", *lines])

    @property
    def again(self) -> str:
        """The call that runs it again, without trailing choices that are first in, first out."""
        end = max((n for n, choice in enumerate(self.choices, 1) if choice), default=0)
        return f"again: run(main(), replay({list(self.choices[:end])}))"

    def __str__(self) -> str:
        ended = [] if self.error is None else [f"{type(self.error).__name__}: {self.error}"]
        return "\n".join([self.trace, *ended, self.again])


def run(main: Coroutine[Any, Any, T], choose: Choose = fifo, *, max_steps: int = MAX_STEPS, in_order: bool = False,
        ) -> T:
    """Like `asyncio.run`, with a chosen order and virtual time. An exception gets the trace as a note."""
    schedule = record(main, choose, max_steps=max_steps, in_order=in_order)
    if schedule.error is not None:
        schedule.error.add_note(f"{schedule.trace}\n{schedule.again}")
    return schedule.result()


def record(main: Coroutine[Any, Any, T], choose: Choose = fifo, *, max_steps: int = MAX_STEPS, in_order: bool = False,
           ) -> Schedule[T]:
    """Run `main` until it returns or fails, and return the schedule. The same choices give the same schedule. With
    `in_order`, callbacks run first in, first out, and only `pick` makes choices.

    Raises only errors from outside the program: an exception of the chooser, or KeyboardInterrupt.
    """
    if not asyncio.iscoroutine(main):
        raise TypeError(f"expected a coroutine, as in run(main()), but got {main!r}")
    if _running() is not None:
        main.close()
        raise RuntimeError("an event loop is already running in this thread; run the schedule in another thread")
    loop = Loop(choose, max_steps, in_order)
    task = loop.create_task(main, name="main")
    error: BaseException | None = None
    with _no_garbage_collection():
        try:
            loop.drive(task.done)
            error = task.exception()
        except (Deadlock, Livelock, asyncio.CancelledError) as unfinished:
            error = unfinished
        finally:
            steps = tuple(loop.steps)
            loop.wind_up()
    if loop.unhandled:
        unhandled = _unhandled(loop.unhandled)
        if error is None:
            error = unhandled
        else:
            error.add_note(str(unhandled))
    return Schedule(steps, None if error else task.result(), error)


def _unhandled(contexts: list[dict[str, Any]]) -> Unhandled:
    exceptions = [context.get("exception") for context in contexts]
    said = [f"{c['message']}: {e!r}" if e else c["message"] for c, e in zip(contexts, exceptions)]
    unhandled = Unhandled("; ".join(said))
    unhandled.__cause__ = next(filter(None, exceptions), None)
    return unhandled


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection, which would finalize async generators in the middle of a step."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


# --- all schedules

def explore_schedules(
    make_main: Callable[[], Coroutine[Any, Any, T]], *, limit: int = LIMIT, preemptions: int | None = None,
    max_steps: int = MAX_STEPS, in_order: bool = False,
) -> Iterator[Schedule[T]]:
    """Every schedule exactly once, depth first, each run from the start; the first is first in, first out.

    With `preemptions`, only those that depart from first in, first out at most that often. An iterator that ends has
    yielded all of them: if there are more than `limit`, it raises `Incomplete`.
    """
    if not callable(make_main):
        make_main.close()
        raise TypeError(f"{make_main.__name__}() is a coroutine, which can run only once; pass the function itself, "
                        f"{make_main.__name__}")
    prefix: tuple[int, ...] = ()
    options: tuple[int, ...] = ()
    for _ in range(limit):
        schedule = record(make_main(), replay(prefix), max_steps=max_steps, in_order=in_order)
        if schedule.options[:len(prefix)] != options[:len(prefix)]:
            raise Diverged("the program is not deterministic: the same choices led to another run. Ready callbacks "
                           f"before: {options[:len(prefix)]}, now: {schedule.options[:len(prefix)]}")
        yield schedule
        choices, options = schedule.choices, schedule.options
        for depth in reversed(range(len(choices))):
            spent = sum(map(bool, choices[:depth])) + 1
            if choices[depth] + 1 < options[depth] and (preemptions is None or spent <= preemptions):
                prefix = (*choices[:depth], choices[depth] + 1)
                break
        else:
            return
    raise Incomplete(f"more than {limit:,} schedules; make the program smaller, set `preemptions`, or raise `limit`")


def find_failure(
    make_main: Callable[[], Coroutine[Any, Any, T]], *, limit: int = LIMIT, max_steps: int = MAX_STEPS,
) -> Schedule[T] | None:
    """A failing schedule with the fewest preemptions; None if no schedule fails."""
    def failing(preemptions: int | None) -> Schedule[T] | None:
        schedules = explore_schedules(make_main, limit=limit, preemptions=preemptions, max_steps=max_steps)
        return next((schedule for schedule in schedules if schedule.error is not None), None)

    found = failing(None)
    if found is None:
        return None
    return next(filter(None, map(failing, range(found.preemptions))), found)
