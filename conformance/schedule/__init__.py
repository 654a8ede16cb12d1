"""Choose, replay, enumerate and shrink the interleavings of a piece of asyncio code.

A *schedule* is one run, determined by a list of choices: which ready callback runs next. The code under test is
ordinary asyncio; `label` names a step in the trace, and `checkpoint` lets other tasks run. Here a cancel sets a flag,
and the first prompt that enters consumes it:

>>> import asyncio
>>> async def main():
...     accepted, active, flag = {"A", "B"}, set(), set()
...     async def enter(name):
...         label("canceled on entry" if flag else "active")
...         accepted.remove(name)
...         flag.clear() if flag else active.add(name)
...     async def cancel():
...         label("stops the active, sets the flag")
...         active.clear()
...         flag.update(["cancel"] if accepted else [])
...     await asyncio.gather(enter("A"), enter("B"), cancel())
...     assert not active, f"{active} survives the cancel"
>>> print(find_failure(main))
step  task     what
   1  main     main:1
   2* cancel   stops the active, sets the flag
   3  enter    canceled on entry
   4  enter-2  active
   5  cancel   gather._done_callback
   6  enter    gather._done_callback
   7  enter-2  gather._done_callback
   8  main     main:11
AssertionError: {'B'} survives the cancel
again: run(main(), replay([2]))

`run` and `record` take a chooser: `fifo` (the default, and what asyncio does), `seeded`, `replay`, `departing`,
`ranked`, or any function; `choosers` and `rankings` are Hypothesis strategies. `explore_schedules` enumerates all
schedules, and `find_failure` finds one that fails.

**Possible orders.** Every ready callback is one step, and any of them may be chosen next, with these exceptions:

- The steps of one task, and the done callbacks of one future, run in order.
- Callbacks passed to `call_soon` run in the order of the calls, as asyncio guarantees.
- A timer fires when it is due, and time passes only when nothing else is ready: running code takes no time. Timers that
  are due together may fire in any order, which asyncio leaves undefined.

This allows more orders than asyncio itself, where two tasks that one event wakes run in the order in which they waited.
But a task may always come later, because of one more `await` or a slower network, and this module is for code that
relies on the order of *tasks*. A function passed to `run_in_executor` or `to_thread` runs as one step, at any time.
Sockets, subprocesses, signals and calls from other threads raise `Refused`.

**The environment** is a choice too: `pick` lets the chooser decide what happens to a message, or whether a machine
fails. Tasks that are started in a `Process` pause and resume together: while it is held, none of its tasks runs and
time passes. With `in_order`, callbacks run as in asyncio, and only `pick` makes choices.

**Failures.** A schedule fails if main raises, if nothing can run and main is not done (`Deadlock`, which names what
each task waits for), after too many steps (`Livelock`), or if an exception was never handled (`Unhandled`). When main
is done, the remaining tasks are canceled as in `asyncio.run`, first in, first out; this is not part of the trace, and
has no choices. The code under test must be deterministic: no clock, no random numbers, no iteration over sets. If it
behaves otherwise, the error is `Diverged`.

**Rejected.** Perturbing the real loop, with random sleeps or a patched selector, cannot enumerate schedules and cannot
repeat a run exactly. Keeping asyncio's order and choosing only when I/O completes finds fewer bugs, and every test
would have to declare its I/O. Skipping equivalent orders would save runs, but equivalence depends on everything that
the code reads. So every order counts here, and a bound on preemptions keeps the number small.
"""

from .search import *  # noqa: F403
from .search import __all__ as __all__
