"""The solver in its own process, so that Ctrl-C ends it at once: z3 swallows the signal."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from ..files import UsageError
from .interrupts import interrupts_deferred

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
    with interrupts_deferred():
        solver.start()
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
