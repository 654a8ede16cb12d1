"""An asyncio event loop in which a chooser decides which callback runs next, with virtual time.

The loop uses no clock, socket or thread, so the same choices give the same run. Other sources of nondeterminism in
asyncio are fixed too. Tasks and futures are hashed by their number, because `TaskGroup` and `wait` iterate over sets of
them. Tasks are named after their coroutine, because asyncio numbers them over the whole process.
"""

import asyncio
import threading
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from concurrent.futures import Executor
from contextvars import Context
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeVar, TypeVarTuple, cast
from weakref import WeakKeyDictionary

from .process import is_held
from .ready import Choose, Job, Option, Ready, find_owner, name_of, waiting

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Deadlock(RuntimeError):
    """No callback is ready and no timer is set, but main is not done."""


class Livelock(RuntimeError):
    """The run exceeded its limit of steps."""


class Refused(RuntimeError):
    """The code used a feature of the loop that a schedule cannot support or repeat."""


class LoopStep(NamedTuple):
    """One callback that ran."""

    number: int
    task: str  # whose step it was
    what: str  # the labels given in it or, without any, where it resumed
    choice: int  # which of those that were ready it was; 0 is the first in, first out order
    options: int  # how many there were to choose from


class NumberedTask(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address."""

    def __init__(self, number: int, coro: Any, **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class NumberedFuture(asyncio.Future[Any]):
    """A future whose place in a set does not depend on its address."""

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class Loop(asyncio.BaseEventLoop):
    """Runs one callback at a time, the one that `choose` picks, for at most `max_steps`. With `in_order`, callbacks run
    first in, first out, and `choose` decides only what the code under test passes to `pick`.

    `unhandled` collects exceptions in callbacks, and those that are never retrieved.
    """

    _ready: deque[asyncio.Handle]  # where asyncio's own call_soon puts them

    def __init__(self, choose: Choose, max_steps: int, in_order: bool = False) -> None:
        super().__init__()
        self.steps: list[LoopStep] = []
        self.labels: list[str] = []  # given in the step that runs now
        self.unhandled: list[dict[str, Any]] = []
        self._choose, self._max_steps, self._last_step = choose, max_steps, max_steps
        self._winding_up, self._in_order = False, in_order
        self._now = 0.0
        self._timers: list[asyncio.TimerHandle] = []  # in the order in which they were set
        self._born: list[asyncio.Future[Any]] = []  # tasks too: held, so that no garbage collection ends one
        self._names: Counter[str] = Counter()
        self._generators: WeakKeyDictionary[AsyncGenerator[Any, Any], None] = WeakKeyDictionary()
        self._until: Callable[[], bool] = lambda: False
        self._home = threading.get_ident()

    # --- running

    def drive(self, until: Callable[[], bool]) -> None:
        """Run until `until()` holds, which is asked before each step."""
        self._until = until
        self.run_forever()

    def stop(self) -> None:
        raise Refused("stop() would end the run before main is done; let main return instead")

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        goal = asyncio.ensure_future(cast(Awaitable[T], future), loop=self)
        self.drive(goal.done)
        return goal.result()

    def _run_once(self) -> None:
        if self._until():
            super().stop()
            return
        offers = self._offers()
        if not offers:
            raise Deadlock(f"deadlock after {len(self.steps)} steps: nothing is ready and no timer is set\n"
                           + "\n".join(f"  {waiting(task)}" for task in self.pending()))
        if len(self.steps) >= self._last_step:
            raise Livelock(f"not done after {len(self.steps):,} steps; next would be {offers[0].task} at "
                           f"{offers[0].place}. Is something waiting in a loop? If not, raise max_steps")
        number = len(self.steps)
        chosen = self._decide(offers)
        del self._ready[chosen.position]
        self.labels = []
        try:
            chosen.handle._run()
        finally:
            if self.labels:
                self.steps[number] = self.steps[number]._replace(what=", ".join(self.labels))

    def pick(self, options: Sequence[str]) -> int:
        """Which of these happens: the first, unless the chooser departs from it."""
        if len(options) < 2 or self._winding_up:
            return 0
        nothing = asyncio.Handle(lambda: None, (), self)
        return self._decide([Ready(nothing, place, Option(text)) for place, text in enumerate(options)]).position

    def _decide(self, offers: Sequence[Ready]) -> Ready:
        """The one that the chooser picks, which is noted as the next step."""
        choice = self._choose(offers) if len(offers) > 1 else 0
        if not 0 <= choice < len(offers):
            raise IndexError(f"the chooser picked {choice} of {len(offers)} callbacks, counted from 0")
        chosen = offers[choice]
        self.steps.append(LoopStep(len(self.steps) + 1, chosen.task, chosen.place, choice, len(offers)))
        return chosen

    def _offers(self) -> list[Ready]:
        """The first callback of every owner. Time passes only if there is none, and then to the next timer."""
        self._ready = deque([handle for handle in self._ready if not handle.cancelled()])
        self._timers = [timer for timer in self._timers if not timer.cancelled()]
        timers = [timer for timer in self._timers if self._may_run(timer)]
        if timers and not any(map(self._may_run, self._ready)):
            self._now = max(self._now, min(timer.when() for timer in timers))
        due = [timer for timer in timers if timer.when() <= self._now]
        if due:
            self._timers = [timer for timer in self._timers if timer.when() > self._now or not self._may_run(timer)]
            due.sort(key=asyncio.TimerHandle.when)
            self._ready.extend(due)
        firsts: dict[int, Ready] = {}
        for position, handle in enumerate(self._ready):
            if self._may_run(handle):
                owner = find_owner(handle)
                if id(owner) not in firsts:
                    firsts[id(owner)] = Ready(handle, position, owner)
                    if self._winding_up or self._in_order:
                        break
        return list(firsts.values())

    def _may_run(self, handle: asyncio.Handle) -> bool:
        return self._winding_up or not is_held(handle)

    def wind_up(self) -> None:
        """What `asyncio.run` does in the end, first in first out: cancel what is left, close async generators, close.

        What goes wrong is not raised but kept in `unhandled`.
        """
        self._winding_up, self._last_step = True, len(self.steps) + self._max_steps
        try:
            while left := self.pending():
                for task in left:
                    task.cancel()
                self.drive(lambda: self._idle() and all(task.done() for task in left))
            if self._generators:
                self.run_until_complete(self.shutdown_asyncgens())
            self.drive(self._idle)
        except (Deadlock, Livelock) as stuck:
            self.call_exception_handler({"message": "what was left did not end when it was canceled",
                                         "exception": stuck})
        finally:
            for task in self.pending():
                cast(Any, task)._log_destroy_pending = False
            for future in self._born:
                if future._log_traceback:
                    kind = f"task {future.get_name()}" if isinstance(future, asyncio.Task) else "a future"
                    self.call_exception_handler({"message": f"exception of {kind} was never retrieved",
                                                 "exception": future.exception(), "future": future})
            self.close()

    def _idle(self) -> bool:
        return all(handle.cancelled() for handle in self._ready)

    def pending(self) -> list[asyncio.Task[Any]]:
        """The tasks that are not done, in the order in which they were made."""
        return [task for task in self._born if isinstance(task, asyncio.Task) and not task.done()]

    # --- what asyncio calls

    def time(self) -> float:
        return self._now

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers.append(timer)
        return timer

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None,
    ) -> asyncio.Handle:
        if threading.get_ident() != self._home:
            _refuse("call_soon_threadsafe() from another thread")
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts,
    ) -> asyncio.Future[T]:
        """The function runs here, as one step that may be chosen at any time, like a thread that takes its time. It
        must not wait for the loop."""
        job = Job(self.create_future(), func, args)
        self.call_soon(job.run)
        return job.future

    def create_future(self) -> asyncio.Future[Any]:
        self._born.append(NumberedFuture(len(self._born), self))
        return self._born[-1]

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        options["name"] = options.get("name") or self._fresh_name(coro)
        if self.get_task_factory() is None:
            task: asyncio.Task[Any] = NumberedTask(len(self._born), coro, loop=self, **options)
        else:
            task = super().create_task(coro, **options)
        self._born.append(task)
        return task

    def _fresh_name(self, coro: Any) -> str:
        name = getattr(coro, "__name__", type(coro).__name__)
        self._names[name] += 1
        return name if self._names[name] == 1 else f"{name}-{self._names[name]}"

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        if self.is_closed():
            super().default_exception_handler(context)
        else:
            self.unhandled.append(context)

    def _asyncgen_firstiter_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        self._generators[agen] = None

    async def shutdown_asyncgens(self) -> None:
        for agen in list(self._generators):
            try:
                await agen.aclose()
            except Exception as error:
                self.call_exception_handler({"message": f"closing {name_of(agen)} failed", "exception": error})


def _refuse(what: str, *_: object, **__: object) -> NoReturn:
    raise Refused(f"{what} depends on the environment, which a schedule cannot repeat; replace it by something that "
                  "awaits a future, a queue or a sleep")


for _method in (
    "add_reader", "add_writer", "add_signal_handler", "connect_accepted_socket", "connect_read_pipe",
    "connect_write_pipe", "create_connection", "create_datagram_endpoint", "create_server", "create_unix_connection",
    "create_unix_server", "getaddrinfo", "getnameinfo", "sendfile", "sock_accept", "sock_connect", "sock_recv",
    "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into", "sock_sendall", "sock_sendfile", "sock_sendto",
    "start_tls", "subprocess_exec", "subprocess_shell",
):
    setattr(Loop, _method, staticmethod(partial(_refuse, f"{_method}()")))
