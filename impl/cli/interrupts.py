"""Ctrl-C, while a command starts processes of its own."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Defers Ctrl-C in the `with` statement. Processes started in it never receive Ctrl-C; this process receives it
    afterwards.

    A terminal sends Ctrl-C to every process of a command. Only this process handles it, and ends the others, which
    inherit the blocked signal. Otherwise a process that is interrupted while it starts prints a traceback."""
    resource_tracker.ensure_running()  # otherwise the first process starts it, which unblocks the signal
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
