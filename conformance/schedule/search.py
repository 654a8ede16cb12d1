"""Runs of asyncio code by chosen schedules: one, all, or one that fails, made small."""

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
    "Choose",
    "Deadlock",
    "Diverged",
    "Incomplete",
    "Livelock",
    "LoopStep",
    "Process",
    "Ready",
    "Refused",
    "Schedule",
    "Unhandled",
    "checkpoint",
    "choosers",
    "current_process",
    "departing",
    "explore_schedules",
    "fifo",
    "find_failure",
    "label",
    "pick",
    "record",
    "replay",
    "run",
    "seeded",
]

T = TypeVar("T")
RANKS = 4  # that `rankings` draws
MAX_STEPS = 10_000
LIMIT = 100_000


class Unhandled(RuntimeError):
    """An exception in a callback, or one that nobody retrieved. The first is the cause."""


class Diverged(RuntimeError):
    """Choices do not fit the program: it is another one, or it is not deterministic."""


class Incomplete(RuntimeError):
    """There are more schedules than the search was allowed to run."""


# --- in the code under test

def label(text: str) -> None:
    """Say what the step that runs now is doing. In any other event loop, or in none, nothing happens."""
    loop = _running()
    if isinstance(loop, Loop):
        loop.labels.append(text)


def pick(*options: str) -> int:
    """Which of these happens, as the chooser decides: a message arrives, is lost, or comes late. The first is what
    happens unless the chooser departs from it, and in any other event loop."""
    loop = _running()
    return loop.pick(options) if isinstance(loop, Loop) else 0


async def checkpoint() -> None:
    """A place where anything else that is ready may run. In any other event loop: `asyncio.sleep(0)`."""
    await asyncio.sleep(0)


# --- choosers

def fifo(ready: Sequence[Ready]) -> int:
    """First in, first out: what asyncio itself does."""
    return 0


def seeded(seed: int) -> Choose:
    """Each with the same probability, and the same ones for the same seed."""
    generator = random.Random(seed)
    return lambda ready: generator.randrange(len(ready))


def replay(choices: Iterable[int]) -> Choose:
    """These choices, and then first in, first out. A choice that the program does not have raises `Diverged`."""
    left = enumerate(choices, 1)

    def choose(ready: Sequence[Ready]) -> int:
        number, choice = next(left, (0, 0))
        if choice >= len(ready):
            raise Diverged(f"choice {number} is {choice}, but there are {len(ready)} to choose from, counted from 0: "
                           f"{', '.join(r.task for r in ready)}. Is the program the same, and deterministic?")
        return choice

    return choose


def departing(departures: Iterable[tuple[int, int]]) -> Choose:
    """First in, first out but for these departures: how many choices to leave as they are, and which one then to take
    instead of the first, counted round if there are not so many."""
    left = chain.from_iterable([*[0] * wait, instead] for wait, instead in departures)

    def choose(ready: Sequence[Ready]) -> int:
        instead = next(left, 0)
        return 1 + (instead - 1) % (len(ready) - 1) if instead else 0

    return choose


def ranked(ranks: Iterable[int]) -> Choose:
    """Each task, when it is first ready, is given the next of these ranks, and 0 when there are no more. A task runs
    only when nothing of a lower rank is ready; what belongs to no task has rank 0. So one number makes a task come
    late, where `departing` needs as many departures as there are steps that it must come after."""
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
    """A Hypothesis strategy. Failures shrink to the fewest preemptions, and then to the earliest.

    Drawing each choice by itself would shrink to the fewest choices instead: to a schedule that seldom has any.
    """
    from hypothesis import strategies as st

    wait, instead = st.integers(0, 3) | st.integers(0, 100), st.integers(1, 3) | st.integers(1, 100)
    return st.builds(departing, st.lists(st.tuples(wait, instead)))


def rankings(tasks: int = 40) -> "SearchStrategy[Choose]":
    """A Hypothesis strategy: that many tasks in any order. It finds what needs a task to come much later than usual,
    and what needs several to change places; `choosers` finds what is closer to first in, first out, and shrinks better.

    The ranks are drawn as bytes because Hypothesis, where it sees a list of numbers, often tries equal ones.
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
        """How many callbacks there were to choose from, for each choice."""
        return tuple(step.options for step in self.steps if step.options > 1)

    @property
    def preemptions(self) -> int:
        """How many choices departed from first in, first out."""
        return sum(map(bool, self.choices))

    def result(self) -> T:
        """What main returned. Raises what it raised."""
        if self.error is not None:
            raise self.error
        return cast(T, self.value)

    @property
    def trace(self) -> str:
        """One line a step. A `*` is on each step that was chosen out of turn."""
        wide = max(map(len, ["task", *(step.task for step in self.steps)]))
        lines = [f"{s.number:4}{'*' if s.choice else ' '} {s.task:{wide}}  {s.what}" for s in self.steps]
        return "\n".join([f"step  {'task':{wide}}  what", *lines])

    @property
    def again(self) -> str:
        """How to run it again. Choices are left off at the end if they are first in, first out."""
        end = max((n for n, choice in enumerate(self.choices, 1) if choice), default=0)
        return f"again: run(main(), replay({list(self.choices[:end])}))"

    def __str__(self) -> str:
        ended = [] if self.error is None else [f"{type(self.error).__name__}: {self.error}"]
        return "\n".join([self.trace, *ended, self.again])


def run(main: Coroutine[Any, Any, T], choose: Choose = fifo, *, max_steps: int = MAX_STEPS, in_order: bool = False,
        ) -> T:
    """`asyncio.run` with chosen order and virtual time. The trace is a note on the exception, if there is one."""
    schedule = record(main, choose, max_steps=max_steps, in_order=in_order)
    if schedule.error is not None:
        schedule.error.add_note(f"{schedule.trace}\n{schedule.again}")
    return schedule.result()


def record(main: Coroutine[Any, Any, T], choose: Choose = fifo, *, max_steps: int = MAX_STEPS, in_order: bool = False,
           ) -> Schedule[T]:
    """Run `main` to its end, whatever that is. The same choices give the same schedule. With `in_order` callbacks run
    first in, first out, and the choices are those that `main` leaves open by `pick`.

    Only what is not the program's doing is raised: an exception of the chooser, or KeyboardInterrupt.
    """
    if not asyncio.iscoroutine(main):
        raise TypeError(f"expected a coroutine, as in run(main()), and got {main!r}")
    if _running() is not None:
        main.close()
        raise RuntimeError("an event loop is running in this thread; schedules need a thread without one")
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
    """A collection would finalize async generators in the middle of any step."""
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
    """Every schedule exactly once, depth first, each run anew from the start; the first is first in, first out.

    With `preemptions`, only those that depart from first in, first out that often or less. Whoever gets to the end has
    seen all: a search that would need more than `limit` schedules raises `Incomplete` instead of ending.
    """
    if not callable(make_main):
        make_main.close()
        raise TypeError(f"{make_main.__name__}() is a coroutine, which runs once: give the function that makes it, "
                        f"{make_main.__name__}")
    prefix: tuple[int, ...] = ()
    options: tuple[int, ...] = ()
    for _ in range(limit):
        schedule = record(make_main(), replay(prefix), max_steps=max_steps, in_order=in_order)
        if schedule.options[:len(prefix)] != options[:len(prefix)]:
            raise Diverged("the same choices led to another run: the program is not deterministic. It had "
                           f"{options[:len(prefix)]} to choose from before, and now {schedule.options[:len(prefix)]}")
        yield schedule
        choices, options = schedule.choices, schedule.options
        for depth in reversed(range(len(choices))):
            spent = sum(map(bool, choices[:depth])) + 1
            if choices[depth] + 1 < options[depth] and (preemptions is None or spent <= preemptions):
                prefix = (*choices[:depth], choices[depth] + 1)
                break
        else:
            return
    raise Incomplete(f"more than {limit:,} schedules; make the program smaller, bound preemptions or raise the limit")


def find_failure(
    make_main: Callable[[], Coroutine[Any, Any, T]], *, limit: int = LIMIT, max_steps: int = MAX_STEPS,
) -> Schedule[T] | None:
    """A schedule that fails, with as few preemptions as any that does; None if not one of all schedules fails."""
    def failing(preemptions: int | None) -> Schedule[T] | None:
        schedules = explore_schedules(make_main, limit=limit, preemptions=preemptions, max_steps=max_steps)
        return next((schedule for schedule in schedules if schedule.error is not None), None)

    found = failing(None)
    if found is None:
        return None
    return next(filter(None, map(failing, range(found.preemptions))), found)
