"""Ctrl-C, while a command starts processes of its own."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Start processes in this block: Ctrl-C reaches this process after it, and never the processes.

    A terminal sends Ctrl-C to every process of a command. Only this one handles it, and ends the others: they inherit
    the blocked signal. Without the block, a process that is interrupted before it has read what to do prints a
    traceback."""
    resource_tracker.ensure_running()  # otherwise the first process starts it, which unblocks the signal
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
