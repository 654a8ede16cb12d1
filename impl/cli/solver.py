"""The solver in its own process, so that Ctrl-C ends it at once: z3 swallows the signal."""

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
    """Sends the verdict on each obligation, with its counterexample, then any reason why the proof is vacuous."""
    from cancelmark.model.proof.invariant import INVARIANT
    from cancelmark.model.proof.prover import Prover

    prover = Prover(invariant=[claim for claim in INVARIANT if claim.name in invariant], timeout=timeout)
    for obligation in prover.obligations():
        _, *answer = prover.judge(obligation)
        pipe.send(answer)
    pipe.send(list(prover.hollows()))


@contextmanager
def open_solver(invariant: Sequence[str], timeout: float, work: Work = answer_all) -> Iterator[Iterator[Any]]:
    """The answers, as they come. The process is gone on exit."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    solver = context.Process(target=work, args=(there, invariant, timeout), daemon=True)
    # A terminal sends Ctrl-C to every process of the command. Only this one handles it, and it kills the solver.
    resource_tracker.ensure_running()  # otherwise `start` below starts it, which unblocks the signal
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
            raise UsageError("the solver process was killed, perhaps for lack of memory; the result is inconclusive: "
                             "free some memory and try again") from None
