"""Choose, replay, enumerate and shrink the interleavings of a piece of asyncio code.

A *schedule* is one run, decided by a list of choices: which of the callbacks that are ready runs next. The code under
test is ordinary asyncio; `label` says in a trace what a step did, `checkpoint` is a place where others may run. Here a
cancel sets a flag, and the first prompt that enters consumes it:

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
`ranked`, or any function; `choosers` and `rankings` are Hypothesis strategies. `explore_schedules` goes through all
schedules, and `find_failure` looks for one that fails.

**Which orders are possible.** Every ready callback is one step, and any of them may be chosen next, except that

- the steps of one task, and the done callbacks of one future, run in order;
- callbacks given to `call_soon` run in the order in which they were given, as asyncio promises;
- a timer fires when its time has come, and time passes only when nothing else is ready: running code takes no time.
  Timers that are due together may fire in any order, which asyncio leaves undefined.

This is more than asyncio does by itself: there, two tasks that one event wakes run in the order in which they waited.
But a task may always come later, because of one more `await` or a slower network, and code that counts on the order of
*tasks* is what this module is for. A function given to `run_in_executor` or `to_thread` runs as one step, at any time.
Sockets, subprocesses, signals and calls from other threads are `Refused`.

**What the world does** is a choice too: `pick` asks the chooser what becomes of a message, or whether a machine fails.
Tasks that are started in a `Process` stop and go together: while it is held nothing of it runs and time passes. With
`in_order` callbacks run as in asyncio, and the choices are those of `pick` alone.

**What is reported.** A schedule fails if main raises, if nothing can run and main is not done (`Deadlock`, which names
who waits for what), after too many steps (`Livelock`), or if an exception was never handled (`Unhandled`). When main
is done, the tasks that are left are canceled as in `asyncio.run`, first in first out: that is no part of the trace and
has no choices. The code under test must itself be deterministic: no clock, no random numbers, no order of a set. Where
it shows that it is not, the error is `Diverged`.

**Rejected.** Disturbing the real loop, with sleeps put in at random or a patched selector, cannot enumerate and cannot
repeat a run exactly. Keeping asyncio's order and choosing only when I/O completes finds fewer bugs, and every test
would have to say what its I/O is. Leaving out orders that cannot be told apart would save runs, but what can be told
apart depends on all that the code reads: here every order counts, and a bound on preemptions keeps the number small.
"""

from .search import (
    Choose,
    Deadlock,
    Diverged,
    Incomplete,
    Livelock,
    LoopStep,
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
    "ranked",
    "rankings",
    "record",
    "replay",
    "run",
    "seeded",
]
