"""What a prompt costs, and what stays of it. Times are CPU time of the process, and waiting for a disk is no cost here:
files are put where there is none, if the machine has such a place.

**A null prompt** is one whose model ends its step at once. Its whole life is measured as a caller sees it, `await` for
the acceptance and `await` for the end, one prompt after the other. **The bare worker** does nothing with the same
calls: a coroutine puts a text and a future into an `asyncio.Queue` and returns the future, one task takes both out and
sets the text as the result, and the caller awaits that.

**Flat** means that a prompt costs the same whatever came before it. Sessions with short and long histories are measured
alternately, and so are runtimes with few and many sessions. The null model looks at nothing; the reader hears all that
was said, as a language model has to, and has a window of so many messages, so that it asks for a summary now and then.
"""

import asyncio
import gc
import tempfile
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from statistics import median
from time import process_time

from cancelmark.impl.models import FinishReason, Model
from cancelmark.impl.runtime import Runtime
from cancelmark.impl.runtime.machine import lifecycle_of
from cancelmark.impl.runtime.messages import finished, user_message
from cancelmark.impl.runtime.session import Counter, Prompt, Session
from cancelmark.impl.store import (
    TERMINAL,
    AcceptPrompt,
    AppendEvent,
    MemoryStore,
    Message,
    MovePrompt,
    NewSession,
    Operation,
    PutMessage,
    SqliteStore,
    Store,
)
from cancelmark.model.lifecycle import INITIAL, Outcome, State, Trigger
from cancelmark.model.protocol import REFERENCE

from ..report import Goal, Report, Table
from ..setting import Setting
from .models import Null, Reader

CHUNKS = 10  # a round, for each of which the clock is looked at
PROMPTS = {"memory": 200, "SQLite": 50}  # a chunk
HISTORIES = (1, 1_000, 100_000)  # prompts in one session
SESSIONS = (1, 100, 10_000)
WINDOW = 64  # messages
FINISHED = 10_000  # prompts, for the memory that they leave
SHARED_MEMORY = Path("/dev/shm")
FLAT = ("By profile no function has a twentieth of it. Three steps of the session take a fifth, two fifths of that "
        "the machine; three commits to the store and the list of what they keep take a quarter, the turn with its "
        "messages a fifth; the rest is its task, the loop, what is told and the garbage collector. Of some 610 calls "
        "of functions the goal leaves 260: less than the steps and the commits alone.")

STORES: Mapping[str, Callable[[Path], Store]] = {"memory": lambda path: MemoryStore(), "SQLite": SqliteStore}


def files() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(
        prefix="cancelmark-bench-", dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None)


# --- One prompt -----------------------------------------------------------------------------------------------------

class BareWorker:
    """A queue, and one task that does nothing with what is in it."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[str, asyncio.Future[str]]] = asyncio.Queue()
        self.task = asyncio.ensure_future(self._work())

    async def accept(self, text: str) -> "asyncio.Future[str]":
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        await self._queue.put((text, future))
        return future

    async def _work(self) -> None:
        while True:
            text, future = await self._queue.get()
            future.set_result(text)


async def spent(work: Callable[[int], Awaitable[object]], times: int) -> float:
    """CPU seconds for each of so many times."""
    start = process_time()
    for number in range(times):
        await work(number)
    return (process_time() - start) / times


async def null_prompts(chunks: int) -> list[tuple[float, float, float]]:
    """CPU seconds of a job of the bare worker, of the two triggers in a null prompt's life, and of a null prompt."""
    worker, numbers, figures = BareWorker(), count(), []
    prompt, lifecycle = Prompt(Session("", Counter()), 1), lifecycle_of(REFERENCE)

    async def job(_: int) -> None:
        await (await worker.accept("hello"))

    async def triggers(_: int) -> None:
        prompt.__init__(prompt.session, 1, state=INITIAL)  # type: ignore[misc]
        lifecycle.fire(prompt, Trigger.ENTER)
        lifecycle.fire(prompt, Trigger.FINISH_END_TURN)

    async with Runtime(Null()) as runtime:
        await runtime.create_session("s")

        async def life(_: int) -> None:
            await (await runtime.accept("s", "hello", f"r{next(numbers)}"))

        for work in (job, triggers, life):
            await spent(work, PROMPTS["memory"])  # warm
        for _ in range(chunks):
            figures.append((await spent(job, 5 * PROMPTS["memory"]), await spent(triggers, PROMPTS["memory"]),
                            await spent(life, PROMPTS["memory"])))
    worker.task.cancel()
    return figures


def one_prompt(rounds: int) -> Report:
    figures = asyncio.run(null_prompts(rounds * CHUNKS))
    bare, triggers, life = (median(column) for column in zip(*figures))
    rows = [("job of the bare worker", bare * 1e6, 1.0),
            ("two triggers of the machine, alone", triggers * 1e6, triggers / bare),
            ("null prompt, store in memory", life * 1e6, life / bare)]
    return Report(
        [Table("A null prompt's whole life", ("what", "µs", "× bare"), rows)],
        [Goal("a null prompt's whole life against a job of the bare worker",
              tuple(life / bare for bare, _, life in figures), "at most", 8, why=FLAT)])


# --- Many prompts, many sessions ------------------------------------------------------------------------------------

def history(session: str, first: int, last: int) -> list[Operation]:
    """What prompts that are done have left, as the runtime writes it."""
    operations: list[Operation] = []
    for seq in range(first, last):
        answer = finished(Message(f"p{seq}-2", session, "assistant", ()), FinishReason.END_TURN)
        operations += [
            AcceptPrompt(seq, session, "hello", f"r{seq}"), MovePrompt(seq, State.ACTIVE),
            PutMessage(user_message(session, seq, "hello")), PutMessage(answer),
            MovePrompt(seq, State.DONE, Outcome.END_TURN),
            AppendEvent(session, TERMINAL, {"session_id": session, "outcome": "end_turn", "seq": seq}, f"r{seq}")]
    return operations


class Subject:
    """A runtime with a past, whose next prompts are measured."""

    def __init__(self, runtime: Runtime, sessions: int) -> None:
        self.runtime, self.sessions = runtime, sessions
        self.figures: list[float] = []
        self._numbers = count()

    async def measure(self, prompts: int) -> None:
        self.figures.append(await spent(self._life, prompts))

    async def _life(self, _: int) -> None:
        number = next(self._numbers)
        await (await self.runtime.accept(f"s{number % self.sessions}", "hello", f"new{number}"))


@asynccontextmanager
async def subject(store: Store, model: Model, sessions: int, prompts: int) -> AsyncIterator[Subject]:
    for first in range(0, sessions, 1000):
        await store.write([NewSession(f"s{number}") for number in range(first, min(first + 1000, sessions))])
    for first in range(1, prompts + 1, 1000):
        await store.write(history("s0", first, min(first + 1000, prompts + 1)))
    async with Runtime(model, store) as runtime:
        yield Subject(runtime, sessions)


async def compared(
    place: str, model: Callable[[], Model], pasts: Sequence[tuple[int, int]], chunks: int,
) -> list[list[float]]:
    """CPU seconds of a prompt for each (sessions, prompts in the first of them), measured alternately."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(files()))
        subjects = [await stack.enter_async_context(subject(
            STORES[place](directory / f"{number}.db"), model(), *past)) for number, past in enumerate(pasts)]
        gc.collect()
        for each in subjects:
            await each.measure(PROMPTS[place])  # warm
            each.figures.clear()
        for _ in range(chunks):
            for each in subjects:
                await each.measure(PROMPTS[place])
        return [each.figures for each in subjects]


def flat(title: str, what: str, sizes: Sequence[int], pasts: Sequence[tuple[int, int]], rounds: int,
         models: Mapping[str, Callable[[], Model]]) -> Report:
    """The cost of a prompt for each size, and what it is at the largest against the smallest."""
    rows, goals = [], []
    for place in STORES:
        for name, model in models.items():
            figures = asyncio.run(compared(place, model, pasts, rounds * CHUNKS))
            rows.append((f"{name}, {place}", *(median(column) * 1e6 for column in figures)))
            goals.append(Goal(f"{title}, {name}, {place}: {sizes[-1]:,} {what} against {sizes[0]}",
                              tuple(last / first for first, last in zip(figures[0], figures[-1])), "at most", 1.5))
    columns = tuple(f"{size:,}" for size in sizes)
    return Report([Table(f"{title}: µs a prompt by {what}", ("what", *columns), rows)], goals)


# --- Memory ---------------------------------------------------------------------------------------------------------

async def held(path: Path, sessions: int, prompts: int) -> tuple[float, float]:
    """Bytes of memory for each idle session, and for each prompt that is done. The store is a file."""
    async with Runtime(Null(), SqliteStore(path)) as runtime:
        await runtime.create_session("s")

        async def run(first: int, number: int) -> None:
            for seq in range(first, first + number):
                await (await runtime.accept("s", "hello", f"r{seq}"))

        tracemalloc.start()
        try:
            await run(0, prompts)  # what is cached is there after this
            start = traced()
            await run(prompts, prompts)
            done = traced()
            for number in range(sessions):
                await runtime.create_session(f"s{number}")
            return (traced() - done) / sessions, (done - start) / prompts
        finally:
            tracemalloc.stop()


def traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def memory() -> Report:
    with files() as directory:
        session, prompt = asyncio.run(held(Path(directory) / "bench.db", SESSIONS[-1], FINISHED))
    return Report(
        [Table("Memory of a runtime on SQLite", ("what", "bytes"),
               [("an idle session", session), ("a prompt that is done", prompt)])],
        [Goal("memory of an idle session", (session,), "at most", 1024, " bytes"),
         Goal("memory of a prompt that is done", (prompt,), "at most", 16, " bytes")])


def measure(setting: Setting) -> Report:
    """Everything."""
    rounds = setting.rounds
    reports = [
        one_prompt(rounds),
        flat("Long history", "prompts in the session", HISTORIES, [(1, prompts) for prompts in HISTORIES], rounds,
             {"null model": Null, f"reader of {WINDOW} messages": lambda: Reader(WINDOW)}),
        flat("Many sessions", "sessions", SESSIONS, [(sessions, 0) for sessions in SESSIONS], rounds,
             {"null model": Null}),
        memory(),
    ]
    return Report([table for report in reports for table in report.tables],
                  [goal for report in reports for goal in report.goals])
