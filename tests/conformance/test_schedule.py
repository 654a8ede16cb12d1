"""The scheduler: exact counts, exact replay, and no way for a program to fail unseen."""

import asyncio
import contextvars
import doctest
import gc
import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from itertools import pairwise
from math import comb, factorial, prod
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis.strategies import SearchStrategy

from cancelmark.conformance import schedule as package
from cancelmark.conformance.schedule import (
    Choose,
    Deadlock,
    Diverged,
    Incomplete,
    Livelock,
    Process,
    Ready,
    Refused,
    Schedule,
    Unhandled,
    checkpoint,
    choosers,
    current_process,
    departing,
    explore_schedules,
    fifo,
    find_failure,
    label,
    pick,
    ranked,
    rankings,
    record,
    replay,
    run,
    seeded,
)
from cancelmark.conformance.schedule.loop import Loop

Main = Callable[[], Coroutine[Any, Any, Any]]


def tell(schedule: Schedule[Any]) -> list[str]:
    return [f"{step.task}: {step.what}" for step in schedule.steps]


def test_the_example_in_the_docs_is_true() -> None:
    assert doctest.testmod(package) == (0, 3)


# --- counting

def side_by_side(*lengths: int) -> Main:
    """Tasks of so many steps each. Main sleeps until the last of them is done, so that it adds no choice."""
    async def main() -> None:
        left, all_done = len(lengths), asyncio.Event()

        async def worker(length: int) -> None:
            nonlocal left
            for _ in range(length - 1):
                await checkpoint()
            left -= 1
            if not left:
                all_done.set()

        workers = [asyncio.create_task(worker(n), name=f"w{i}") for i, n in enumerate(lengths)]
        await all_done.wait()
        assert all(worker.done() for worker in workers)

    return main


@pytest.mark.parametrize("lengths", [
    (1,), (1, 1), (2, 1), (2, 2), (3, 3), (4, 2), (5, 5), (1, 1, 1), (2, 2, 2), (3, 2, 1), (3, 3, 2), (1, 1, 1, 1),
    (2, 2, 1, 1),
], ids=str)
def test_the_number_of_schedules_is_the_multinomial(lengths: tuple[int, ...]) -> None:
    schedules = list(explore_schedules(side_by_side(*lengths)))
    assert len(schedules) == factorial(sum(lengths)) // prod(map(factorial, lengths))
    assert len({tuple(step.task for step in s.steps) for s in schedules}) == len(schedules)
    assert len({s.choices for s in schedules}) == len(schedules)
    assert all(s.error is None for s in schedules)


def test_a_done_callback_is_one_more_step_of_its_task() -> None:
    async def worker(length: int) -> None:
        for _ in range(length - 1):
            await checkpoint()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(worker(2))
            group.create_task(worker(3))

    assert sum(1 for _ in explore_schedules(main)) == comb(2 + 1 + 3 + 1, 2 + 1)


@pytest.mark.parametrize("bound", range(5))
def test_a_bound_on_preemptions_gives_just_the_schedules_within_it(bound: int) -> None:
    within = [s.choices for s in explore_schedules(side_by_side(3, 3, 1)) if s.preemptions <= bound]
    assert [s.choices for s in explore_schedules(side_by_side(3, 3, 1), preemptions=bound)] == within
    assert bound or within == [record(side_by_side(3, 3, 1)()).choices]


def test_a_scheduler_that_never_picks_the_last_is_caught_by_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever hides a callback from the chooser makes the count too small."""
    offers = Loop._offers
    monkeypatch.setattr(Loop, "_offers", lambda loop: (every := offers(loop))[:max(1, len(every) - 1)])
    assert sum(1 for _ in explore_schedules(side_by_side(2, 2))) == 1 < comb(4, 2)
    assert sum(1 for _ in explore_schedules(side_by_side(2, 2, 2))) < 90


def test_a_chooser_that_never_picks_the_last_reaches_fewer_schedules() -> None:
    def reached(make_chooser: Callable[[int], Choose]) -> int:
        return len({record(side_by_side(2, 2)(), make_chooser(seed)).choices for seed in range(60)})

    def never_the_last(seed: int) -> Choose:
        choose = seeded(seed)
        return lambda ready: choose(ready[:-1])

    assert reached(seeded) == comb(4, 2)
    assert reached(never_the_last) == 1


def test_a_search_that_is_stopped_does_not_look_complete() -> None:
    assert sum(1 for _ in explore_schedules(side_by_side(3, 3), limit=20)) == comb(6, 3)
    search = explore_schedules(side_by_side(3, 3), limit=19)
    for _ in range(19):
        next(search)
    with pytest.raises(Incomplete, match="more than 19 schedules"):
        next(search)


def test_the_failure_found_has_the_fewest_preemptions() -> None:
    order: list[str] = []

    async def main() -> None:
        order.clear()

        async def step(name: str) -> None:
            order.append(name)

        await asyncio.wait([asyncio.create_task(step(name), name=name) for name in "ABC"])
        assert order not in (["B", "C", "A"], ["C", "A", "B"])

    first = next(s for s in explore_schedules(main) if s.error)
    found = find_failure(main)
    assert found is not None
    assert (first.preemptions, found.preemptions, found.again) == (2, 1, "again: run(main(), replay([2]))")


# --- a lost update

def deposits(make_lock: Callable[[], Any] = lambda: asyncio.Semaphore(9)) -> Main:
    """Two tasks read, wait and write. First in first out keeps them apart, because the second starts later."""
    async def main() -> int:
        balance, lock = 0, make_lock()

        async def deposit(amount: int, later: int = 0) -> None:
            nonlocal balance
            for _ in range(later):
                label("not yet")
                await checkpoint()
            async with lock:
                read = balance
                label(f"reads {read}")
                await checkpoint()
                balance = read + amount
                label(f"writes {balance}")

        a, b = asyncio.create_task(deposit(10), name="A"), asyncio.create_task(deposit(5, later=2), name="B")
        label("starts A and B")
        await asyncio.wait([a, b])
        label(f"finds {balance}")
        if balance != 15:
            raise ValueError(f"lost update: {balance}")
        return balance

    return main


LOST_UPDATE = """\
step  task  what
   1  main  starts A and B
   2  A     reads 0
   3  B     not yet
   4* B     not yet
   5* B     reads 0
   6  A     writes 10
   7  B     writes 5
   8  A     _wait._on_completion
   9  B     _wait._on_completion
  10  main  finds 5
ValueError: lost update: 5
again: run(main(), replay([0, 0, 1, 1]))"""


def shrunk(make_main: Main, choices: SearchStrategy[Choose] | None = None) -> Schedule[Any]:
    """The failing schedule to which Hypothesis shrinks."""
    failures = []

    @settings(max_examples=500, database=None, derandomize=True, phases=[Phase.generate, Phase.shrink])
    @given(choosers() if choices is None else choices)
    def runs(choose: Choose) -> None:
        schedule = record(make_main(), choose)
        if schedule.error is not None:
            failures.append(schedule)
            raise schedule.error

    with pytest.raises((AssertionError, ValueError)):
        runs()
    return failures[-1]


def test_a_lost_update_is_found_by_going_through_all_schedules() -> None:
    assert run(deposits()()) == 15
    found = find_failure(deposits())
    assert found is not None
    assert found.preemptions == min(s.preemptions for s in explore_schedules(deposits()) if s.error)
    assert str(found) == LOST_UPDATE


def test_hypothesis_finds_it_and_shrinks_to_the_fewest_and_earliest_switches() -> None:
    schedule = shrunk(deposits())
    assert schedule.again == "again: run(main(), replay([1, 1]))"
    assert tell(schedule)[1:7] == [
        "B: not yet", "B: not yet", "A: reads 0", "B: reads 0", "A: writes 10", "B: writes 5"]
    assert [s for s in explore_schedules(deposits(), preemptions=1) if s.error] == []


def test_replaying_the_printed_choices_gives_the_same_trace() -> None:
    assert str(record(deposits()(), replay([0, 0, 1, 1]))) == LOST_UPDATE
    with pytest.raises(ValueError, match="lost update: 5") as caught:
        run(deposits()(), replay([0, 0, 1, 1]))
    assert caught.value.__notes__ == [LOST_UPDATE.replace("ValueError: lost update: 5\n", "")]
    assert str(record(deposits()(), departing([(2, 1), (0, 1)]))) == LOST_UPDATE


def test_a_rank_makes_a_task_come_late_however_long_that_takes() -> None:
    async def main() -> list[str]:
        seen: list[str] = []

        async def goes(name: str, steps: int) -> None:
            for _ in range(steps):
                seen.append(name)
                await checkpoint()

        await asyncio.gather(goes("A", 1), goes("B", 3), goes("C", 2))
        return seen

    assert run(main()) == ["A", "B", "C", "B", "C", "B"]
    assert run(main(), ranked([1])) == ["B", "C", "B", "C", "B", "A"]
    assert run(main(), ranked([2, 0, 1])) == ["B", "B", "B", "C", "C", "A"]


def test_hypothesis_finds_what_needs_one_task_to_come_after_many_steps_of_others() -> None:
    """No few departures from first in, first out do it."""
    async def main() -> None:
        busy = True

        async def work() -> None:
            nonlocal busy
            for _ in range(20):
                await checkpoint()
            busy = False

        async def look() -> None:
            if not busy:
                raise ValueError("too late")

        await asyncio.gather(look(), work())

    schedule = shrunk(main, rankings(4))
    assert (str(schedule.error), schedule.preemptions) == ("too late", 22)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        shrunk(main, choosers())


def test_with_a_lock_no_schedule_loses_an_update() -> None:
    schedules = list(explore_schedules(deposits(asyncio.Lock)))
    assert ({s.value for s in schedules}, len(schedules)) == ({15}, 48)
    assert find_failure(deposits(asyncio.Lock)) is None


@pytest.mark.parametrize("seed", range(5))
def test_every_schedule_can_be_replayed(seed: int) -> None:
    schedule = record(deposits()(), seeded(seed))
    again = record(deposits()(), replay(schedule.choices))
    assert (again.steps, repr(again.error)) == (schedule.steps, repr(schedule.error))


def test_choices_of_another_program_are_refused() -> None:
    with pytest.raises(Diverged, match="choice 2 is 7, but only 0 to 1 are ready: A, B"):
        run(deposits()(), replay([1, 7]))
    with pytest.raises(IndexError, match="picked -1 of 2"):
        run(deposits()(), lambda ready: -1)


def test_a_program_that_is_not_deterministic_is_told_so() -> None:
    lengths = [2, 3]

    def fickle() -> Coroutine[Any, Any, None]:
        return side_by_side(*([1] * lengths.pop()))()

    with pytest.raises(Diverged, match="not deterministic"):
        list(explore_schedules(fickle))


# --- a dispatcher whose cancel sets one flag, as in revision r1

class Dispatcher:
    """Prompts are counted from acceptance on. A cancel that finds one not yet entered sets the session's one flag."""

    def __init__(self) -> None:
        self.accepted: set[str] = set()
        self.flag = False
        self.active: str | None = None
        self.queue: list[str] = []
        self.covered: set[str] = set()  # what a cancel came after: none of them may start from then on
        self.started_late: set[str] = set()

    def accept(self, prompt: str) -> asyncio.Task[None]:
        self.accepted.add(prompt)
        label(f"accept({prompt})")
        return asyncio.create_task(self.enter(prompt), name=prompt)

    async def enter(self, prompt: str) -> None:
        self.accepted.remove(prompt)
        if self.flag:
            self.flag = False
            label(f"enter({prompt}): canceled on entry")
        elif self.active:
            self.queue.append(prompt)
            label(f"enter({prompt}): queued")
        else:
            label(f"enter({prompt}): active")
            await self.turns(prompt)

    async def turns(self, prompt: str) -> None:
        self.active = prompt
        while self.active:
            self.started_late |= {self.active} & self.covered
            await checkpoint()
            label(f"finish({self.active})")
            self.active = self.queue.pop(0) if self.queue else None

    async def cancel(self) -> None:
        label("cancel")
        self.covered |= self.accepted | set(self.queue)
        self.flag = bool(self.accepted)
        self.queue.clear()


async def two_prompts_and_a_cancel() -> None:
    session = Dispatcher()
    prompts = [session.accept("A"), session.accept("B")]
    await asyncio.wait([*prompts, asyncio.create_task(session.cancel(), name="client")])
    assert not session.started_late, f"no-lost-cancel: {sorted(session.started_late)} started after the cancel"


SIBLING_SURVIVES_CANCEL = """\
step  task    what
   1  main    accept(A), accept(B)
   2* client  cancel
   3  A       enter(A): canceled on entry
   4  B       enter(B): active
"""


def test_sibling_survives_cancel_is_found_and_shrunk() -> None:
    found = find_failure(two_prompts_and_a_cancel)
    assert found is not None
    assert str(found).startswith(SIBLING_SURVIVES_CANCEL)
    assert str(found.error).startswith("no-lost-cancel: ['B'] started after the cancel")
    assert str(shrunk(two_prompts_and_a_cancel)).startswith(SIBLING_SURVIVES_CANCEL)
    assert run(two_prompts_and_a_cancel(), fifo) is None


# --- virtual time

def test_days_pass_in_no_time_and_in_order() -> None:
    async def main() -> list[tuple[str, float]]:
        log = []

        async def sleeper(name: str, days: float) -> None:
            await asyncio.sleep(days * 86_400)
            log.append((name, asyncio.get_running_loop().time() / 86_400))

        await asyncio.gather(sleeper("late", 30), sleeper("early", 0.5), sleeper("middle", 7))
        return log

    for schedule in explore_schedules(main, preemptions=2):
        assert schedule.result() == [("early", 0.5), ("middle", 7), ("late", 30)]


def test_equal_deadlines_are_a_choice() -> None:
    async def main() -> str:
        log: list[str] = []
        loop = asyncio.get_running_loop()
        loop.call_later(1, log.append, "a")
        loop.call_at(1, log.append, "b")
        loop.call_later(0.5, log.append, "-")
        await asyncio.sleep(2)
        return "".join(log)

    assert [s.value for s in explore_schedules(main)] == ["-ab", "-ba"]


def test_a_timeout_and_the_result_at_the_same_moment_are_a_choice() -> None:
    async def main() -> str:
        try:
            async with asyncio.timeout(1):
                await asyncio.sleep(1)
        except TimeoutError:
            return "timeout"
        return "result"

    values = [s.value for s in explore_schedules(main)]
    assert values[0] == "timeout"
    assert set(values) == {"timeout", "result"}


def test_a_canceled_timer_does_not_move_time() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        loop.call_later(99, print).cancel()
        async with asyncio.timeout(50):
            await asyncio.sleep(1)
        await asyncio.sleep(1)
        return loop.time()

    assert run(main()) == 2


# --- cancellation

def test_a_task_canceled_anywhere_gives_its_resource_back() -> None:
    """Before it starts, while it waits for the resource, while it holds it, after."""
    ends = set()

    async def main() -> None:
        resource, held = asyncio.Lock(), []

        async def holder() -> str:
            at = "waiting"
            try:
                async with resource:
                    held.append(1)
                    at = "holding"
                    try:
                        await checkpoint()
                        at = "used"
                    finally:
                        held.pop()
                await checkpoint()
                at = "after"
            finally:
                ends.add(at)
            return at

        async def canceler(task: asyncio.Task[str]) -> None:
            await checkpoint()
            task.cancel()

        async with resource:
            task = asyncio.create_task(holder())
            other = asyncio.create_task(canceler(task))
            await checkpoint()
        await asyncio.wait([task, other])
        ends.add("canceled" if task.cancelled() else "finished")
        assert not held
        assert not resource.locked()
        await asyncio.wait_for(resource.acquire(), 1)

    assert find_failure(main) is None
    assert ends == {"waiting", "holding", "used", "after", "canceled", "finished"}


def test_a_resource_that_is_not_given_back_is_found() -> None:
    async def main() -> None:
        resource = asyncio.Lock()

        async def careless() -> None:
            await resource.acquire()
            await checkpoint()
            resource.release()

        task = asyncio.create_task(careless())
        await checkpoint()
        task.cancel()
        await asyncio.wait([task])
        assert not resource.locked(), "leaked"

    found = find_failure(main)
    assert found is not None
    assert str(found.error).startswith("leaked")


# --- what goes wrong is reported

def test_a_deadlock_names_who_waits_for_what() -> None:
    async def main() -> None:
        left, right = asyncio.Lock(), asyncio.Lock()

        async def crossing(first: asyncio.Lock, second: asyncio.Lock) -> None:
            async with first:
                await checkpoint()
                async with second:
                    pass

        async def listener(queue: asyncio.Queue[int]) -> int:
            return await queue.get()

        task = asyncio.create_task(listener(asyncio.Queue()))
        await asyncio.gather(crossing(left, right), crossing(right, left))
        await task

    def line(name: str) -> int:
        """The line of the first `name` in this test."""
        lines, start = inspect.getsourcelines(test_a_deadlock_names_who_waits_for_what)
        return next(number for number, text in enumerate(lines, start) if name in text)

    found = find_failure(main)
    assert found is not None
    assert isinstance(found.error, Deadlock)
    assert str(found.error).splitlines() == [
        "deadlock after 6 steps: nothing is ready and no timer is set",
        f"  main waits for gather of crossing, crossing-2, at main:{line('asyncio.gather(')}",
        f"  listener waits for Queue.get, at listener:{line('queue.get')}",
        f"  crossing waits for Lock.acquire, at crossing:{line('async with second')}",
        f"  crossing-2 waits for Lock.acquire, at crossing:{line('async with second')}",
    ]
    assert any(s.error is None for s in explore_schedules(main, preemptions=0)) is False


@pytest.mark.parametrize(("wait", "what"), [
    (lambda: asyncio.Event().wait(), "Event.wait"),
    (lambda: asyncio.get_running_loop().create_future(), "a future"),
    (lambda: asyncio.create_task(asyncio.Event().wait(), name="other"), "task other"),
    (lambda: asyncio.wait([asyncio.create_task(asyncio.Event().wait())]), "wait"),
    (lambda: asyncio.Semaphore(0).acquire(), "Semaphore.acquire"),
    (lambda: asyncio.Barrier(2).wait(), "Condition.wait"),
], ids=["event", "future", "task", "wait", "semaphore", "barrier"])
def test_what_is_waited_for_has_a_name(wait: Callable[[], Any], what: str) -> None:
    async def main() -> None:
        await wait()

    with pytest.raises(Deadlock, match=rf"main waits for {what}, at main:\d+"):
        run(main())


def test_a_livelock_is_stopped_and_says_where_it_was() -> None:
    async def main() -> None:
        ready = False

        async def poller() -> None:
            while not ready:
                await checkpoint()

        await poller()

    with pytest.raises(Livelock, match=r"not done after 100 steps; next would be main at poller:\d+"):
        run(main(), max_steps=100)


async def fails() -> None:
    raise ValueError("nobody looked")


async def never_retrieved() -> None:
    task = asyncio.create_task(fails())
    await asyncio.sleep(1)
    assert task.done()


async def future_never_retrieved() -> None:
    asyncio.get_running_loop().create_future().set_exception(ValueError("nobody looked"))


async def gather_never_retrieved() -> None:
    asyncio.gather(fails())
    await asyncio.sleep(1)


async def in_a_callback() -> None:
    asyncio.get_running_loop().call_soon([].pop)
    await asyncio.sleep(1)


async def in_a_done_callback() -> None:
    def look(_: object) -> None:
        raise ValueError("nobody looked")

    task = asyncio.create_task(checkpoint())
    task.add_done_callback(look)
    await task


async def while_canceled_in_the_end() -> None:
    async def left_over() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            raise ValueError("nobody looked")

    task = asyncio.create_task(left_over())
    await asyncio.sleep(0.5)
    assert not task.done()


async def in_a_generator_that_is_left_open() -> None:
    async def generator() -> Any:
        try:
            yield 1
        finally:
            raise ValueError("nobody looked")

    kept.append(generator())
    await anext(kept[-1])


async def in_a_generator_that_is_dropped() -> None:
    async def generator() -> Any:
        try:
            yield 1
        finally:
            raise ValueError("nobody looked")

    async for _ in generator():
        break
    await asyncio.sleep(1)


async def does_not_end_when_canceled() -> None:
    async def stubborn() -> None:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    kept.append(asyncio.create_task(stubborn()))
    await asyncio.sleep(0.5)


kept: list[Any] = []


@pytest.mark.parametrize("main", [
    never_retrieved, future_never_retrieved, gather_never_retrieved, in_a_callback, in_a_done_callback,
    while_canceled_in_the_end, in_a_generator_that_is_left_open, in_a_generator_that_is_dropped,
    does_not_end_when_canceled,
], ids=lambda main: main.__name__)
def test_nothing_is_swallowed(main: Main) -> None:
    with pytest.raises(Unhandled) as caught:
        run(main())
    assert isinstance(caught.value.__cause__, ValueError | IndexError | Deadlock)
    for schedule in explore_schedules(main, preemptions=1):
        assert isinstance(schedule.error, Unhandled)


def test_what_else_went_wrong_is_a_note_on_what_main_raised() -> None:
    async def main() -> None:
        task = asyncio.create_task(fails())
        await checkpoint()
        assert task.done()
        raise KeyError("main's own")

    with pytest.raises(KeyError) as caught:
        run(main())
    assert caught.value.__notes__[0] == "exception of task fails was never retrieved: ValueError('nobody looked')"


def test_a_handler_of_the_programs_own_takes_precedence() -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: seen.append(context["exception"]))
        await never_retrieved()

    seen: list[BaseException] = []
    run(main())
    assert [str(error) for error in seen] == ["nobody looked"]


def test_a_task_that_will_not_end_is_not_reported_again_by_the_garbage_collection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(Unhandled, match="did not end when it was canceled"):
        run(does_not_end_when_canceled())
    kept.clear()
    gc.collect()
    assert caplog.records == []


def test_async_generators_that_are_left_are_closed_in_the_order_in_which_they_were_started() -> None:
    async def main() -> None:
        assert not gc.isenabled()

        async def generator(number: int) -> Any:
            try:
                yield number
            finally:
                await checkpoint()
                closed.append(number)

        kept.extend(generator(number) for number in range(5))
        for number in 3, 0, 4, 2, 1:
            await anext(kept[number])

    closed: list[int] = []
    kept.clear()
    run(main())
    assert closed == [3, 0, 4, 2, 1]
    assert gc.isenabled()


def test_an_error_of_the_chooser_is_raised_and_leaves_nothing_behind() -> None:
    class Stop(BaseException):
        pass

    def choose(ready: Sequence[Ready]) -> int:
        raise Stop

    with pytest.raises(Stop):
        record(deposits()(), choose)


def test_main_may_be_canceled_or_interrupted() -> None:
    async def canceled() -> None:
        asyncio.current_task().cancel()  # type: ignore[union-attr]
        await checkpoint()

    async def interrupted() -> None:
        kept.append(asyncio.create_task(asyncio.sleep(1)))
        await checkpoint()
        raise KeyboardInterrupt

    with pytest.raises(asyncio.CancelledError):
        run(canceled())
    with pytest.raises(KeyboardInterrupt):
        run(interrupted())
    assert kept[-1].cancelled()


def test_a_loop_inside_a_loop_is_refused() -> None:
    async def main() -> None:
        run(checkpoint())

    with pytest.raises(RuntimeError, match="an event loop is already running in this thread"):
        run(main())


@pytest.mark.parametrize("ask", [
    lambda loop: loop.create_connection(asyncio.Protocol, "localhost", 1),
    lambda loop: loop.create_server(asyncio.Protocol, "localhost", 1),
    lambda loop: loop.add_reader(0, print),
    lambda loop: loop.add_signal_handler(2, print),
    lambda loop: loop.getaddrinfo("localhost", 1),
    lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true"),
])
def test_what_no_schedule_can_repeat_is_refused(ask: Callable[[asyncio.AbstractEventLoop], Any]) -> None:
    async def main() -> None:
        await ask(asyncio.get_running_loop())

    with pytest.raises(Refused, match="depends on the environment"):
        run(main())


def test_main_decides_when_a_run_ends() -> None:
    async def main() -> None:
        asyncio.get_running_loop().stop()

    with pytest.raises(Refused, match="let main return instead"):
        run(main())
    with pytest.raises(TypeError, match=r"expected a coroutine, as in run\(main\(\)\)"):
        run(main)  # type: ignore[arg-type]


def test_a_closed_loop_takes_nothing() -> None:
    async def main() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    loop = run(main())
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        loop.call_soon(print)
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        loop.call_later(1, print)


def test_calls_from_other_threads_are_refused() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon_threadsafe(log.append, "own thread")
        await checkpoint()

        def call() -> None:
            with pytest.raises(Refused, match="from another thread"):
                loop.call_soon_threadsafe(print)
            log.append("other thread refused")

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    log: list[str] = []
    run(main())
    assert log == ["own thread", "other thread refused"]


# --- asyncio as it is

def test_call_soon_keeps_its_order_in_every_schedule() -> None:
    async def main() -> str:
        log: list[str] = []
        loop = asyncio.get_running_loop()

        async def waiter() -> None:
            try:
                await asyncio.sleep(9)
            except asyncio.CancelledError:
                log.append("canceled")

        async def other() -> None:
            loop.call_soon(log.append, "c")

        tasks = [asyncio.create_task(waiter())]
        await asyncio.sleep(1)
        loop.call_soon(log.append, "a")
        loop.call_soon(tasks[0].cancel)  # a method of the task, and no step of it
        loop.call_soon(log.append, "b")
        tasks.append(asyncio.create_task(other()))
        await asyncio.sleep(1)
        return " ".join(log)

    assert {s.value for s in explore_schedules(main)} == {"a b canceled c", "a b c canceled", "a canceled b c"}


def test_done_callbacks_keep_their_order_and_tasks_do_not() -> None:
    async def main() -> tuple[str, str]:
        callbacks, tasks = [], []
        future = asyncio.get_running_loop().create_future()

        async def waiter(name: str) -> None:
            await future
            tasks.append(name)

        future.add_done_callback(lambda _: callbacks.append("a"))
        future.add_done_callback(lambda _: callbacks.append("b"))
        both = [asyncio.create_task(waiter(name), name=name) for name in "xy"]
        await asyncio.sleep(1)
        future.set_result(None)
        await asyncio.wait(both)
        await asyncio.sleep(1)
        return "".join(callbacks), "".join(tasks)

    assert {s.value for s in explore_schedules(main)} == {("ab", "xy"), ("ab", "yx")}


def test_first_in_first_out_is_asyncios_own_order() -> None:
    async def main() -> list[str]:
        log = []
        event, queue, lock = asyncio.Event(), asyncio.Queue[int](), asyncio.Lock()

        async def worker(name: str, first: Callable[[], Any]) -> None:
            for n in range(3):
                log.append(f"{name}{n}")
                await first()
                async with lock:
                    log.append(f"{name}{n} locked")
                    await asyncio.sleep(0)
            await queue.put(1)
            event.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(worker("a", checkpoint))
            group.create_task(worker("b", lambda: asyncio.sleep(0)))
            group.create_task(worker("c", event.wait))
            group.create_task(worker("d", queue.get))
            await asyncio.gather(queue.put(1), queue.put(1), checkpoint())
            log.append("main")
        return log

    assert run(main()) == asyncio.run(main())


async def uses_event() -> None:
    event = asyncio.Event()
    task = asyncio.create_task(event.wait())
    event.set()
    assert await task


async def uses_lock() -> None:
    lock, inside = asyncio.Lock(), []

    async def user() -> None:
        async with lock:
            inside.append(1)
            await checkpoint()
            inside.pop()
            assert not inside

    await asyncio.gather(user(), user())


async def uses_semaphore() -> None:
    semaphore, inside = asyncio.BoundedSemaphore(2), []

    async def user() -> None:
        async with semaphore:
            inside.append(1)
            assert len(inside) <= 2
            await checkpoint()
            inside.pop()

    await asyncio.gather(user(), user(), user())


async def uses_condition() -> None:
    condition = asyncio.Condition()
    stock: list[int] = []

    async def buyer() -> None:
        async with condition:
            await condition.wait_for(lambda: stock)
            stock.pop()

    task = asyncio.create_task(buyer())
    await checkpoint()
    async with condition:
        stock.append(1)
        condition.notify()
    await task
    assert not stock


async def uses_queue() -> None:
    queue: asyncio.Queue[int] = asyncio.Queue(1)
    got = []

    async def consumer() -> None:
        while True:
            got.append(await queue.get())
            queue.task_done()

    task = asyncio.create_task(consumer())
    for n in range(3):
        await queue.put(n)
    await queue.join()
    task.cancel()
    assert got == [0, 1, 2]


async def uses_barrier() -> None:
    barrier = asyncio.Barrier(2)
    assert sorted(await asyncio.gather(barrier.wait(), barrier.wait())) == [0, 1]


async def uses_gather() -> None:
    results = await asyncio.gather(asyncio.sleep(1, "a"), fails(), return_exceptions=True)
    assert results[0] == "a"
    assert isinstance(results[1], ValueError)


async def uses_wait() -> None:
    fast, slow = asyncio.create_task(asyncio.sleep(1)), asyncio.create_task(asyncio.sleep(2))
    assert await asyncio.wait([fast, slow], return_when=asyncio.FIRST_COMPLETED) == ({fast}, {slow})
    assert await asyncio.wait([slow], timeout=0.5) == (set(), {slow})
    assert [await each for each in asyncio.as_completed([slow, asyncio.sleep(3, "last")])] == [None, "last"]


async def uses_wait_for() -> None:
    assert await asyncio.wait_for(asyncio.sleep(1, "in time"), 2) == "in time"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.sleep(2), 1)


async def uses_timeout() -> None:
    outer, inner = asyncio.timeout(1), asyncio.timeout(5)
    try:
        async with outer, inner:
            await asyncio.sleep(3)
    except TimeoutError:
        assert (outer.expired(), inner.expired()) == (True, False)
    assert asyncio.get_running_loop().time() == 1


async def uses_task_group() -> None:
    others = []
    try:
        async with asyncio.TaskGroup() as group:
            others += [group.create_task(asyncio.sleep(1)) for _ in range(3)]
            group.create_task(fails())
    except* ValueError:
        pass
    assert [other.cancelled() for other in others] == [True, True, True]


async def uses_shield() -> None:
    inner = asyncio.create_task(asyncio.sleep(2, "kept"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(inner), 1)
    assert await inner == "kept"


async def uses_generator() -> None:
    closed = []

    async def numbers() -> Any:
        try:
            for n in range(3):
                await checkpoint()
                yield n
        finally:
            await checkpoint()
            closed.append(True)

    assert [n async for n in numbers()] == [0, 1, 2]
    async for _ in numbers():
        break
    await asyncio.sleep(1)
    assert closed == [True, True]


VARIABLE = contextvars.ContextVar("VARIABLE", default="unset")


async def uses_contextvars() -> None:
    async def child(value: str) -> str:
        assert VARIABLE.get() == "main's"
        VARIABLE.set(value)
        await checkpoint()
        return VARIABLE.get()

    VARIABLE.set("main's")
    assert list(await asyncio.gather(child("a"), child("b"))) == ["a", "b"]
    assert VARIABLE.get() == "main's"


async def uses_threads() -> None:
    results = await asyncio.gather(asyncio.to_thread(VARIABLE.get), asyncio.to_thread(len, "abc"))
    assert list(results) == ["unset", 3]
    with pytest.raises(ZeroDivisionError):
        await asyncio.get_running_loop().run_in_executor(None, divmod, 1, 0)


async def uses_runner_features() -> None:
    task = asyncio.create_task(checkpoint(), name="given")
    assert (task.get_name(), task in asyncio.all_tasks()) == ("given", True)
    task.cancel("why")
    with pytest.raises(asyncio.CancelledError, match="why"):
        await task


@pytest.mark.parametrize("main", [
    uses_event, uses_lock, uses_semaphore, uses_condition, uses_queue, uses_barrier, uses_gather, uses_wait,
    uses_wait_for, uses_timeout, uses_task_group, uses_shield, uses_generator, uses_contextvars, uses_threads,
    uses_runner_features,
], ids=lambda main: main.__name__.removeprefix("uses_"))
def test_asyncio_works_in_every_schedule(main: Main) -> None:
    for schedule in explore_schedules(main, preemptions=2, limit=3000):
        assert schedule.error is None, schedule


def test_threads_take_their_time() -> None:
    async def main() -> str:
        log: list[str] = []
        await asyncio.gather(*(asyncio.to_thread(log.append, name) for name in "ab"))
        return "".join(log)

    assert {s.value for s in explore_schedules(main)} == {"ab", "ba"}
    assert "thread: list.append" in " ".join(tell(record(main())))


def test_labels_and_checkpoints_do_nothing_elsewhere() -> None:
    async def main() -> str:
        label("unheard")
        await checkpoint()
        return "done"

    label("unheard")
    assert asyncio.run(main()) == "done"


def test_a_step_without_a_label_says_where_it_resumes() -> None:
    async def helper() -> None:
        await asyncio.sleep(2.5)

    async def main() -> None:
        await helper()

    start = main.__code__.co_firstlineno
    assert tell(record(main())) == [
        f"main: main:{start}", "timer: wakes main at 2.5 s", f"main: helper:{start - 2}"]


# --- determinism

def test_the_order_in_which_a_group_cancels_does_not_depend_on_addresses() -> None:
    async def worker() -> None:
        await asyncio.sleep(1)

    async def main(padding: int) -> None:
        tasks: list[asyncio.Task[None]] = []
        addresses.append([asyncio.create_task(checkpoint()) for _ in range(padding)])
        try:
            async with asyncio.TaskGroup() as group:
                tasks += [group.create_task(worker()) for _ in range(9)]
                await asyncio.sleep(0.5)
                raise ValueError("cancels the others")
        except* ValueError:
            addresses.append(tasks)

    addresses: list[list[asyncio.Task[None]]] = []  # kept, so that each run has others
    orders = {tuple(task for task in tell(record(main(n))) if "worker" in task) for n in range(20)}
    assert len(orders) == 1


PROGRAM = """
import asyncio
from cancelmark.conformance.schedule import checkpoint, label, record, seeded

async def worker(name):
    try:
        async with asyncio.timeout(len(name)):
            await asyncio.sleep(1)
            await asyncio.sleep(5)
    finally:
        label(f"{name} ends")

async def main():
    async def generator(name):
        try:
            yield 1
        finally:
            print(name, "closed")
    generators = [generator(n) for n in range(9)]
    for each in generators:
        await anext(each)
    async with asyncio.TaskGroup() as group:
        for n in range(9):
            group.create_task(worker("x" * n + "y"))
        await asyncio.wait({asyncio.create_task(checkpoint()) for _ in range(9)}, return_when=asyncio.FIRST_COMPLETED)

padding = [object() for _ in range(hash("seed") % 1000)]
for seed in range(20):
    print(record(main(), seeded(seed)))
"""


def test_the_same_choices_give_the_same_trace_in_every_process() -> None:
    def output(seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.run([sys.executable, "-W", "error", "-c", PROGRAM], env=environment, text=True, check=True,
                              capture_output=True).stdout

    first, *others = (output(seed) for seed in ("0", "1", "2"))
    assert "again: run(main(), replay([" in first
    assert all(a == b for a, b in pairwise([first, *others]))


# --- what the world does, and processes

async def send(picked: list[int]) -> None:
    picked += [pick("arrives", "is lost"), pick("is heard", "is late", "is lost")]


def test_what_the_world_does_is_chosen_and_enumerated_like_an_order() -> None:
    found: list[list[int]] = []

    def make() -> Coroutine[Any, Any, None]:
        found.append([])
        return send(found[-1])

    schedules = list(explore_schedules(make, in_order=True))
    assert found == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert [schedule.choices for schedule in schedules] == [tuple(each) for each in found]
    again: list[int] = []
    run(send(again), replay([1, 2]), in_order=True)
    assert again == [1, 2]
    assert "is lost" in schedules[-1].trace


def test_without_a_chooser_the_first_happens() -> None:
    picked: list[int] = []
    asyncio.run(send(picked))
    assert picked == [0, 0]


def test_in_order_the_choices_are_those_of_the_world_alone() -> None:
    async def main() -> list[int]:
        order: list[int] = []

        async def one(number: int) -> None:
            await checkpoint()
            order.append(number)

        await asyncio.gather(*map(one, range(3)))
        return order

    schedule = record(main(), seeded(3), in_order=True)
    assert schedule.result() == [0, 1, 2]
    assert schedule.choices == ()


def test_a_process_that_is_held_stands_still_while_time_passes_and_is_late_then() -> None:
    async def main() -> list[tuple[str, float]]:
        told: list[tuple[str, float]] = []
        loop = asyncio.get_running_loop()

        async def tick(name: str) -> None:
            process = current_process()
            assert process is not None
            assert process.name == name
            for _ in range(3):
                await asyncio.create_task(asyncio.sleep(1))  # of the same process
                told.append((name, loop.time()))

        held, free = Process("held"), Process("free")
        tasks = [process.start(tick(process.name)) for process in (held, free)]
        await asyncio.sleep(1.5)
        held.held = True
        await asyncio.sleep(5)
        held.held = False
        await asyncio.gather(*tasks)
        return told

    assert run(main()) == [("held", 1), ("free", 1), ("free", 2), ("free", 3), ("held", 6.5), ("held", 7.5)]


def test_a_process_that_is_held_for_ever_is_wound_up_like_all_that_is_left() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(9)
        finally:
            ended.append("work")

    async def main() -> None:
        process = Process("killed")
        process.start(work())
        await checkpoint()
        process.held = True

    run(main())
    assert ended == ["work"]


def test_a_coroutine_in_place_of_its_function_is_told_so() -> None:
    async def main() -> None: ...

    with pytest.raises(TypeError, match=r"main\(\) is a coroutine, which can run only once; pass the function"):
        find_failure(main())  # type: ignore[arg-type]
