"""The solver, in a process of its own: inside z3 a Ctrl-C is swallowed, and here it ends that process at once."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from ..files import UsageError

Work = Callable[[Connection, Sequence[str], float], None]


def answer_all(pipe: Connection, invariant: Sequence[str], timeout: float) -> None:
    """Sends the verdict on each obligation, with its counterexample, and at last what makes the proof an empty one."""
    from cancelmark.model.proof.invariant import INVARIANT
    from cancelmark.model.proof.prover import Prover

    prover = Prover(invariant=[claim for claim in INVARIANT if claim.name in invariant], timeout=timeout)
    for obligation in prover.obligations():
        _, *answer = prover.judge(obligation)
        pipe.send(answer)
    pipe.send(list(prover.hollows()))


@contextmanager
def open_solver(invariant: Sequence[str], timeout: float, work: Work = answer_all) -> Iterator[Iterator[Any]]:
    """The answers, as they come. Leaves no process behind."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    solver = context.Process(target=work, args=(there, invariant, timeout), daemon=True)
    # Ctrl-C at a terminal is sent to every process of the command. It is for this one, which ends the other.
    resource_tracker.ensure_running()  # the first process to start would start it, and that unblocks the signal
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        solver.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    there.close()
    try:
        yield _receive(here)
    finally:
        solver.kill()
        solver.join()


def _receive(pipe: Connection) -> Iterator[Any]:
    while True:
        try:
            yield pipe.recv()
        except EOFError:
            raise UsageError("the process of the solver has ended before its work, perhaps for want of memory: nothing "
                             "is claimed") from None
