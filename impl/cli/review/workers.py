"""Who does the work of a review: this process alone, or one process for each processor."""

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

from cancelmark.impl.files import UsageError
from cancelmark.model.check.explore import StoppedError

from ..terminal import progress_bar

P = ParamSpec("P")
T = TypeVar("T")


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Here:
    """Does each piece of work in this process, when what it found is asked for."""

    def __init__(self, done: Callable[[int, int], None]) -> None:
        self.done = done

    def begin(self, work: Callable[P, T], *arguments: P.args, **more: P.kwargs) -> Callable[[], T]:
        self.done(0, 1)

        def found() -> T:
            result = work(*arguments, **more)
            self.done(1, 0)
            return result

        return found


class Elsewhere:
    """Does the work in other processes."""

    def __init__(self, pool: ProcessPoolExecutor, done: Callable[[int, int], None]) -> None:
        self.pool, self.done = pool, done

    def begin(self, work: Callable[P, T], *arguments: P.args, **more: P.kwargs) -> Callable[[], T]:
        self.done(0, 1)
        future: Future[T] = self.pool.submit(_run_to_end, work, arguments, more)
        future.add_done_callback(lambda _: self.done(1, 0))
        return lambda: self.result(future)

    def result(self, future: Future[T]) -> T:
        try:
            return future.result()
        except BrokenProcessPool:
            raise UsageError("a process of the review was killed, perhaps for want of memory: nothing is claimed; "
                             "try --jobs 1") from None


def _run_to_end(work: Callable[..., T], arguments: tuple[object, ...], more: dict[str, object]) -> T:
    """A search that was stopped cannot cross over to another process as it is."""
    try:
        return work(*arguments, **more)
    except StoppedError as error:
        raise UsageError(f"{error}; nothing is claimed") from None


def _settle_in() -> None:
    """Ctrl-C is for the process that shows the progress; it ends the others. States are tuples that never refer back to
    themselves: to look for circles among millions of them takes a third of the time and finds none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()


@contextmanager
def progress() -> Iterator[Callable[[int, int], None]]:
    """On a terminal, a bar. What it yields is told how many pieces of work are done, and how many more there are."""
    bar = progress_bar(SpinnerColumn(), TextColumn("checking"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    task = bar.add_task("checking", total=0)

    def done(pieces: int, more: int) -> None:
        bar.update(task, advance=pieces, total=(bar.tasks[0].total or 0) + more)

    with bar:
        yield done


@contextmanager
def open_workers(jobs: int) -> Iterator[Here | Elsewhere]:
    """Somebody to do the work. Leaves no process behind."""
    with progress() as done:
        if jobs == 1:
            yield Here(done)
            return
        pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_settle_in)
        try:
            yield Elsewhere(pool, done)
        except BaseException:
            for process in multiprocessing.active_children():
                process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
