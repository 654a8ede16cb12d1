"""The workers of a review: this process only, or a pool of processes."""

import gc
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

from cancelmark.impl.files import UsageError
from cancelmark.model.check.explore import StoppedError

from ..interrupts import interrupts_deferred
from ..terminal import progress_bar

P = ParamSpec("P")
T = TypeVar("T")


def processors() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """Runs each piece of work in the pool; without a pool, in this process, when its result is requested."""

    def __init__(self, pool: ProcessPoolExecutor | None, done: Callable[[int, int], None]) -> None:
        self.pool, self.done = pool, done

    def begin(self, work: Callable[P, T], *arguments: P.args, **more: P.kwargs) -> Callable[[], T]:
        """Starts a piece of work and returns a function that waits for its result."""
        self.done(0, 1)
        future: Future[T] | None = None
        if self.pool:
            with interrupts_deferred():  # the pool starts a process when it needs one more
                future = self.pool.submit(_run_to_end, work, arguments, more)
            future.add_done_callback(lambda _: self.done(1, 0))

        def found() -> T:
            try:
                if future:
                    return future.result()
                result = work(*arguments, **more)
            except BrokenProcessPool:
                raise UsageError("a worker process was killed, perhaps for lack of memory; the result is inconclusive: "
                                 "try --jobs 1") from None
            self.done(1, 0)
            return result

        return found


def _run_to_end(work: Callable[..., T], arguments: tuple[object, ...], more: dict[str, object]) -> T:
    """Runs the work, and turns `StoppedError`, which cannot be pickled, into a `UsageError`."""
    try:
        return work(*arguments, **more)
    except StoppedError as error:
        raise UsageError(f"{error}; the result is inconclusive") from None


def _settle_in() -> None:
    """Turns a worker's garbage collection off.

    States are tuples without cycles, and traversing millions of them takes a third of the time and frees nothing."""
    gc.disable()


@contextmanager
def progress() -> Iterator[Callable[[int, int], None]]:
    """Shows a bar on a terminal. Yields a function that reports finished pieces of work and adds new ones."""
    bar = progress_bar(SpinnerColumn(), TextColumn("checking"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    task = bar.add_task("checking", total=0)

    def done(pieces: int, more: int) -> None:
        bar.update(task, advance=pieces, total=(bar.tasks[0].total or 0) + more)

    with bar:
        yield done


@contextmanager
def open_workers(jobs: int) -> Iterator[Workers]:
    """Opens the workers. All processes are gone on exit."""
    with progress() as done:
        if jobs == 1:
            yield Workers(None, done)
            return
        pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_settle_in)
        try:
            yield Workers(pool, done)
        except BaseException:
            for process in multiprocessing.active_children():
                process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
