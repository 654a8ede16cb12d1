# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 4. From model to server
#
# A correct model is worth little if the program that runs does something else. In this part everything runs: real
# prompts on a real event loop, a real database file, and a process that is really killed. At the end you test a server
# that *you* write. It takes about forty-five minutes.
#
# Until now our names for prompts were A, B, C. A real client gives its prompt its own name, the **run id**, so that it
# can recognize the prompt's terminal event among all the others.
#
# ## The runtime
#
# `Runtime` is the state machine of part 3 with everything around it that carries out its effects: it starts turns,
# stops them, writes the journal, and publishes terminal events. Instead of a language model we use a script. Asked for
# a story, it produces half a sentence and then waits forever, so that we can cancel it in the middle. It repeats any
# other prompt.

# %%
# %load_ext cancelmark.conformance.notebook
import os
import tempfile

from cancelmark.impl.models.scripted import ScriptedModel, Wait, say

os.chdir(tempfile.mkdtemp())  # a separate folder for the files of this part
model = ScriptedModel({"a story": [*say("Once upon a "), Wait("for ever")]})


async def a_cancel_in_the_middle(runtime):
    """A runs; B is accepted; a cancel; C is accepted. Returns their results."""
    await runtime.create_session("s")
    a = await runtime.accept("s", "a story", run_id="A")
    await model.gate("for ever").reached()  # A is running
    b = await runtime.accept("s", "and then?", run_id="B")
    await runtime.cancel("s")
    c = await runtime.accept("s", "hello", run_id="C")
    return [await a, await b, await c]


# %% [markdown]
# **Predict** how A, B and C end:

# %%
from cancelmark.views.course.exercises import predict

guess = predict(A=..., B=..., C=...)

# %% tags=["picture", "reveal"]
from pathlib import Path

from cancelmark.impl.runtime import Runtime
from cancelmark.impl.runtime.trace import TraceWriter

log = Path("trace.ndjson")
log.unlink(missing_ok=True)
with TraceWriter(log) as trace:
    async with Runtime(model, trace=trace) as runtime:
        results = await a_cancel_in_the_middle(runtime)

for result in results:
    print(result.run_id, result.outcome.value, repr(result.text))
guess.against({result.run_id: result.outcome.value for result in results})

# %% [markdown]
# `accept` returns as soon as the prompt is accepted: that is the 202. Await the *handle* to get the result. A was
# running and was stopped (its text so far is kept). B was accepted before the cancel and never ran. C was accepted
# after it and ran.
#
# ### The same steps on the model
#
# The runtime has written a trace: one line for each atomic step. If the runtime is correct, the model allows the same
# steps, one by one, and reaches the same states. Let us replay them. (`replay` raises an error at a step that is not
# possible.)

# %% tags=["picture"]
import json

from cancelmark.model.protocol import REFERENCE
from cancelmark.model.session import label
from cancelmark.model.trace import replay


def as_call(line):
    """A line of the trace as a call for `replay`."""
    step = json.loads(line)
    prompt = label(step["seq"]) if "seq" in step else ""
    more = "run id" if step["action"] == "accept" else step.get("outcome", "")
    return f"{step['action']} {prompt} {more}"


_, *lines = log.read_text().splitlines()  # the first: recovery of an empty store
replay(REFERENCE, map(as_call, lines))

# %% [markdown]
# This diagram shows what *happened* a moment ago, in this notebook. The last step, `close`, is the end of the `async
# with`: a close cancels everything and stops accepting prompts.
#
# The project's tests do this for every possible step of the model: they replay each edge of the state graph on the
# runtime.

# %% [markdown]
# ## Killed
#
# Now the worst case. The program below has two sessions. In the first, A is running and B is queued behind it. In the
# second, loading takes forever (the runtime awaits `ready` before a prompt enters): C is accepted, then a cancel
# arrives, then D is accepted. Everything is stored in a file, `prompts.db`. Then the program prints “ready”, and waits.

# %%
VICTIM = '''
import asyncio
import sys
from cancelmark.impl.models.scripted import ScriptedModel, Wait, say
from cancelmark.impl.runtime import Runtime
from cancelmark.impl.store import SqliteStore

async def loading(session):
    if session == "second":
        await asyncio.Event().wait()  # for ever

async def main(a, b, c, d):
    model = ScriptedModel({"a story": [*say("Once upon a "), Wait("for ever")]})
    runtime = Runtime(model, SqliteStore("prompts.db"), ready=loading)
    await runtime.start()
    await runtime.create_session("first")
    await runtime.create_session("second")
    await runtime.accept("first", "a story", a)
    await model.gate("for ever").reached()
    await runtime.accept("first", "a question", b)
    while not runtime.queued("first"):
        await asyncio.sleep(0.01)
    await runtime.accept("second", "never mind", c)
    await runtime.cancel("second")
    await runtime.accept("second", "this instead", d)
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
'''

# %% [markdown]
# We start it, wait for its “ready”, and kill it with `SIGKILL`. No process can catch that signal: nothing is cleaned
# up, and no `finally` block runs. For the program it is like a power failure.

# %%
import subprocess
import sys


def kill_one(*names):
    """Start the program with these run ids, and kill it when it is ready."""
    command = [sys.executable, "-c", VICTIM, *names]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        said = process.stdout.readline().strip()
        process.kill()
    if said != "ready":
        raise RuntimeError("the program did not start; use new run ids")
    return f"it printed {said!r} and was killed by signal {-process.returncode}"


kill_one("A", "B", "C", "D")

# %% [markdown]
# Only the file is left. Let us look into it.

# %% tags=["picture"]
from cancelmark.impl.store import SqliteStore
from cancelmark.views.notebook import Word, table


async def journal():
    """The state of each prompt in the file, and the mark of its session."""
    store = SqliteStore("prompts.db")
    rows = []
    for session in await store.sessions():
        for p in await store.prompts(session.id, finished=100):
            state = Word(f"state {p.state.value}", p.state.value.replace("_", " "))
            outcome = p.outcome.value if p.outcome else "–"
            rows.append((session.id, session.mark, p.run_id, p.seq, state, outcome))
    store.close()
    heads = ("session", "mark", "prompt", "seq", "state", "outcome")
    return table("prompts.db", heads, rows)


await journal()

# %% [markdown]
# Everything that the server acknowledged is there: four acceptances, and the cancel, as the mark of the second session.
# That is rule R16c: *a step is journaled before any of its results is visible to clients*. The server sent the 202 for
# D after D was in the file. If it had responded before writing, a crash in between would have turned the 202 into a
# lie. (All sessions share one seq counter, and each session has its own mark.)
#
# **Predict**: we start a server on this file again. How will each of the four prompts end: `end_turn`, `canceled` or
# `error`? (Think of exercise 4.)

# %%
guess = predict(A=..., B=..., C=..., D=...)

# %% tags=["picture", "reveal"]
import asyncio

from IPython.display import display


async def restarted():
    """Run a server on the file until it is idle; return all terminal events."""
    async with Runtime(ScriptedModel(), SqliteStore("prompts.db")) as runtime:
        while runtime.is_busy():
            await asyncio.sleep(0.01)
        return [event for event in await runtime.store.events() if event.terminal]


ends = {event.run_id: event.payload["outcome"] for event in await restarted()}
display(guess.against(ends), await journal())

# %% [markdown]
# - **A** was running. It ends with an *error* whose message says why: “interrupted by a restart”. Why does the server
#   not run it again? Its turn may already have sent an email. The caller decides whether to retry.
# - **B** was queued, and runs as if nothing had happened.
# - **C** was canceled before it entered, and the mark has survived the crash. It ends *canceled*.
# - **D** was accepted after the cancel, and runs.
#
# (Both marks are at 4 now, because leaving the `async with` closes the runtime, and a close cancels every session.)
#
# The same story on the model, crash and all:

# %% tags=["picture", "wide"]
replay(REFERENCE, [
    "accept A run id @1", "enter A @1", "accept B run id @1", "enter B @1",
    "accept C run id @2", "cancel @2", "accept D run id @2",
    "crash", "recover",
    "settle C @2", "finish B end_turn @1", "finish D end_turn @2",
], sessions=2)

# %% [markdown]
# ### Exactly one terminal event
#
# The second guarantee of the protocol: every prompt has **exactly one** terminal event. Without one, a client would
# wait forever. With two, a client could act twice. So far there was one restart. Let us restart once more for no
# reason, kill the program twice more, with four new prompts each time, and count.
#
# **Predict**: how many terminal events does the file contain in the end, and how many does A have?

# %% tags=["picture", "reveal"]
from collections import Counter

await restarted()
kill_one("E", "F", "G", "H")
kill_one("I", "J", "K", "L")
count = Counter(event.run_id for event in await restarted())
table("Terminal events", ("prompt", "count"), sorted(count.items()))

# %% [markdown]
# Twelve prompts, twelve terminal events. (The project's own tests kill such a server dozens of times, at chosen writes
# and at random times, and count.)

# %% [markdown]
# ## Delivery
#
# (You can skip this section; the next one does not depend on it.)
#
# Published does not mean delivered. The event is in the server's log, but the client may be offline. In the original
# server each subscriber had a buffer, and when the buffer was full, the server *permanently* dropped events for that
# subscriber. Here is a model of this mechanism: one subscriber, which can disconnect once, and a buffer of size one.
#
# **Predict**: how many prompts does it take to lose a terminal event?

# %% tags=["picture", "reveal"]
from cancelmark.model.check.explore import explore
from cancelmark.model.delivery import DELIVERY, LOGGED, LOSSY
from cancelmark.model.properties import Bounds

# A disconnect uses the bound for crashes.
lossy = explore(LOSSY, Bounds(prompts=2, crashes=1), properties=[DELIVERY])
lossy.violations["delivery"]

# %% [markdown]
# One is enough, and the buffer need not overflow: A's terminal event is still in the buffer when the subscriber
# disconnects, and the server never sends it again. In the diagram no arrow notifies the client. The fix is the same
# idea as the mark: do not consume, **compare**. The server keeps a log in which each event has an offset, and the
# subscriber remembers the last offset it has seen. When it reconnects, it sends that offset (`Last-Event-ID` in HTTP),
# and resumes from there.

# %% tags=["picture"]
explore(LOGGED, Bounds(prompts=2, crashes=1), properties=[DELIVERY])

# %% [markdown]
# Here is the same on the runtime. The subscriber receives one terminal event, disconnects, misses two, and reconnects
# with its offset:

# %%
async def ends_seen(runtime, place, how_many):
    """Read so many terminal events after an offset; return them and the new one."""
    seen = []
    with runtime.broker.subscribe(after=place) as subscription:
        async for notice in subscription:
            if getattr(notice, "terminal", False):
                seen.append(notice.run_id)
                place = notice.id
            if len(seen) == how_many:
                break
    return seen, place


async with Runtime(ScriptedModel()) as runtime:
    await runtime.create_session("s")
    await (await runtime.accept("s", "one", run_id="A"))
    seen, place = await ends_seen(runtime, 0, 1)
    print("receives", seen, "and disconnects")
    await (await runtime.accept("s", "two", run_id="B"))
    await (await runtime.accept("s", "three", run_id="C"))
    seen, place = await ends_seen(runtime, place, 2)
    print("reconnects and receives", seen)

# %% [markdown]
# One more term deserves an example. No client waits on a prompt *without* a run id. If such a prompt arrives while a
# turn is running, it may be **folded** into that turn: the language model receives it at the turn's next step, and it
# ends with that turn.

# %% tags=["picture"]
from cancelmark.model.examples import EXAMPLES

next(example for example in EXAMPLES if example.name == "fold").trace

# %% [markdown]
# ## Test your own server
#
# You know how it is done by now. Here is the server of part 2 once more, with sessions, and with a model that it calls.
# It has seqs, marks, and one answer at a time.

# %%
from collections import defaultdict


class LockServer:
    """Seqs, marks, and a lock: one answer at a time."""

    def __init__(self, model, tell):
        self.model, self.tell = model, tell
        self.latest = 0
        self.marks, self.running = defaultdict(int), {}
        self.locks = defaultdict(asyncio.Lock)
        self.tasks = []

    def post(self, session, name, text):
        self.latest += 1
        work = self.work(session, name, text, self.latest)
        self.tasks.append(asyncio.create_task(work))

    async def work(self, session, name, text, seq):
        await asyncio.sleep(0)  # load the conversation
        async with self.locks[session]:
            if seq <= self.marks[session]:
                self.tell(name, "canceled")
                return
            self.running[session] = asyncio.current_task()
            try:
                await self.model(text)
                how = "end_turn"
            except asyncio.CancelledError:
                how = "canceled"
            except Exception:
                how = "error"
            del self.running[session]
            self.tell(name, how)

    def cancel(self, session):
        self.marks[session] = self.latest
        if session in self.running:
            self.running[session].cancel()


# %% [markdown]
# The **conformance kit** tests any server, in any language, as a black box. It needs an *adapter*: a few lines that
# post prompts, cancel, and report terminal events. Then it runs scenarios for known flaws and random histories, in many
# orders, and checks them with the oracle. It also stands in for the language model (`self.turns`), so it controls when
# each turn ends. If an adapter cannot do something (such as restart the server), the kit reports the guarantees that
# need it as not observable.

# %%
from cancelmark.conformance.adapter import Adapter, Ended
from cancelmark.conformance.kit import judge


def adapter(kind):
    """The kit's adapter for our server."""
    class Mine(Adapter):
        name = kind.__name__

        async def open(self):
            self.server = kind(self.turns, self.tell_end)

        def tell_end(self, name, how):
            self.tell(Ended(name, how))

        async def accept(self, session, prompt):
            self.server.post(session, prompt.name, prompt.text)

        async def cancel(self, session):
            self.server.cancel(session)

    return Mine


# %% [markdown]
# In part 2 we proved that no cancel is lost and no prompt is poisoned. **Predict**: is the server correct, then? If
# not, which guarantee does it violate?

# %% tags=["picture", "reveal"]
report = judge(adapter(LockServer))
report

# %% [markdown]
# The guarantees that we proved hold. But the protocol has more guarantees than those. (specs/protocol.md defines each
# of them, under “What is guaranteed”.) Here is the shortest history for each violation. To find out whether a terminal
# event is missing, the kit waits, and reports the waiting time. An event that has not been published by then counts as
# missing; only afterwards does the kit release the turns that it has held back.

# %% tags=["picture", "reveal"]
display(*(report.verdict(guarantee) for guarantee in report.broken))

# %% [markdown]
# **What is wrong**, in your own words? Both violations have to do with the lock.
#
# <details><summary>What is wrong</summary>
#
# *fifo*: a lock serves tasks in the order in which they *reach the lock*. The queue has to be in seq order, whatever
# the order of entry.
#
# *some-terminal*: A was accepted, then canceled. But it waits for the lock behind B, and notices the cancel only after
# B has been answered, which may take an hour. A client that waits for A has to wait just as long. The server has to
# check the mark **before** it checks whether the session is busy, and a cancel has to end queued prompts immediately.
# You have seen the mirror image of this bug in exercise 2.
#
# </details>
#
# So the lock has to go, and with it the idea that a task “waits”. The queue becomes *data*, and each action becomes one
# atomic step, just as in the model: `enter`, `finish` (which includes the handoff), and `cancel`. None of them has an
# `await`.

# %%
from collections import namedtuple

Prompt = namedtuple("Prompt", "seq name text")


class Session:
    """The protocol's state of a session."""

    def __init__(self):
        self.mark, self.active, self.queue = 0, None, []


class MyServer:
    """From `enter` on, every method is one atomic step."""

    def __init__(self, model, tell):
        self.model, self.tell = model, tell
        self.latest, self.sessions = 0, defaultdict(Session)
        self.tasks = []

    def post(self, session, name, text):
        self.latest += 1
        prompt = Prompt(self.latest, name, text)
        load = self.load(self.sessions[session], prompt)
        self.tasks.append(asyncio.create_task(load))

    async def load(self, session, prompt):
        await asyncio.sleep(0)
        self.enter(session, prompt)

    def enter(self, session, prompt):
        if prompt.seq <= session.mark:  # the mark first
            self.tell(prompt.name, "canceled")
        elif session.active:  # and then whether it is busy
            session.queue = sorted([*session.queue, prompt])
        else:
            self.start(session, prompt)

    def start(self, session, prompt):
        turn = session.active = asyncio.create_task(self.model(prompt.text))
        turn.add_done_callback(lambda turn: self.finish(session, prompt, turn))

    def finish(self, session, prompt, turn):
        if turn.cancelled():
            self.tell(prompt.name, "canceled")
        else:
            self.tell(prompt.name, "error" if turn.exception() else "end_turn")
        session.active = None
        if session.queue:  # the handoff, in the same step
            self.start(session, session.queue.pop(0))

    def cancel(self, session):
        session = self.sessions[session]
        session.mark = self.latest
        for prompt in session.queue:
            self.tell(prompt.name, "canceled")
        session.queue = []
        if session.active:
            session.active.cancel()


# %% tags=["picture", "reveal"]
verdict = judge(adapter(MyServer))
verdict

# %% [markdown]
# Compare it with the table of the protocol: it is the same protocol.
#
# **Your turn**, if you have time: break it. Leave out the `sorted`. Hand off only after an `end_turn`. Check
# `session.active` before the mark. Put a pause between the check and `start` (make `enter` a coroutine, and await it in
# `load`). Each time, predict the kit's verdict, and look at the history of the violation, for example with
# `verdict.verdict("fifo")`. Then write your own server, or an adapter for one that you use.
#
# ## What you have achieved
#
# At the start of this course a cancel was a flag. Now it is a mark, with a five-line proof, a model whose every
# interleaving has been checked, an oracle that knows what is allowed, and a server that survives being killed.
#
# To continue: `specs/protocol.md` has every rule with its rationale (read “Why it is so”), `cancelmark explain`
# describes the flaws of the original by name, `cancelmark serve` runs a server, and `cancelmark review` generates the
# review page. The last part of the course is short: you write your own protocol.
