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
# # 2. The mark
#
# In part 1 we looked for a way to cancel **exactly the prompts that were accepted before the cancel**. A flag recorded
# *that* there was a cancel, a counter recorded *how many* prompts it was for, and the wrong prompt consumed them.
#
# This part gives the solution, which is two numbers, and proves it correct in five lines. Then it introduces another
# way to check a protocol: a program that visits *everything* that can happen. It takes about forty minutes.
#
# ## Numbers that identify the prompts
#
# “Accepted before” is about order, so let us number the prompts in the order of acceptance. The number is called
# **seq**. The server assigns it when it sends the 202, before anything else happens to the prompt.
#
# A cancel then needs no list of its prompts. It only records the latest number. That is the **mark**: *all prompts up
# to here*. It is a *high-water mark*, like the line that a flood leaves on a wall.
#
# Before a prompt starts, the server checks whether its seq is at or below the mark. If it is, a cancel came after the
# prompt's acceptance, and the prompt must not start. The server only *compares*. Nothing is cleared or consumed, so the
# check is correct for the next prompt too.
#
# Here is the server of part 1 with these two numbers. Five lines are new; they are marked.

# %%
import asyncio


class MarkServer:
    """One session. A prompt at or below the mark does not start."""

    def __init__(self, history):
        self.history = history
        self.lock = asyncio.Lock()
        self.running = None
        self.tasks = []
        self.latest = self.mark = 0  # new: the latest seq, and the mark

    def post(self, name, loading=3):
        self.history.accept(name)
        self.latest += 1  # new
        work = self.work(name, loading, self.latest)
        self.tasks.append(asyncio.create_task(work))

    async def work(self, name, loading, seq):
        await asyncio.sleep(loading)
        async with self.lock:
            if seq <= self.mark:  # new
                self.history.end(name, "canceled")  # new
            else:
                await self.answer(name)

    async def answer(self, name):
        self.running = asyncio.current_task()
        self.history.start(name)
        try:
            await asyncio.sleep(5)
            self.history.end(name, "end_turn")
        except asyncio.CancelledError:
            self.history.end(name, "canceled")
        self.running = None

    def cancel(self):
        self.history.call("cancel")
        self.mark = self.latest  # new
        if self.running:
            self.running.cancel()


# %% [markdown]
# We also need `play`, as in part 1:

# %%
# %load_ext cancelmark.views.notebook
from IPython.display import display

from cancelmark.conformance.notebook import aside, play
from cancelmark.conformance.schedule import explore_schedules
from cancelmark.views.course.exercises import predict
from cancelmark.views.course.recording import Recording

# %% [markdown]
# This was the worst story of part 1: A is accepted and takes long to load, a cancel arrives, and then C is accepted and
# loads quickly. The careful flag canceled C and let A run.
#
# **Predict.** Which seqs do A and C get, where is the mark, and how do they end?

# %%
guess = predict(A=..., C=...)

# %% tags=["picture", "reveal"]
async def overtaken(server):
    server.post("A", loading=6)
    await asyncio.sleep(1)
    server.cancel()
    await asyncio.sleep(1)
    server.post("C", loading=1)


right = play(MarkServer, overtaken)
display(right, guess.against(right))

# %% [markdown]
# A has seq 1, the cancel sets the mark to 1, and C has seq 2. For C, 2 ≤ 1 is false, so C starts. For A, 1 ≤ 1 is true,
# so A is canceled. The order of the two checks does not matter.
#
# Run the other stories of part 1 too, if you like. Here are all orders at once, counted as before:

# %%
def every_order(kind):
    """The number of orders, and the number of orders with a complaint."""
    async def main():
        history = Recording(asyncio.get_running_loop().time)
        server = kind(history)

        async def another_client():
            server.cancel()

        canceling = asyncio.create_task(another_client())
        server.post("A", loading=0)
        await asyncio.sleep(0)
        server.post("B", loading=0)
        for task in [canceling, *server.tasks]:
            await task
        return bool(history.complaints())

    wrong = [schedule.result() for schedule in explore_schedules(main)]
    return f"{sum(wrong)} of {len(wrong)} orders are wrong"


aside(every_order, MarkServer)

# %% [markdown]
# ## The proof, in five lines
#
# Testing is not proving. Here is why no order can go wrong. A prompt is *covered* if its seq is at or below the mark.
#
# 1. Seqs are assigned at acceptance and only rise. So a prompt that is accepted later has a higher seq.
# 2. A cancel sets the mark to the latest seq. So at that moment it covers every prompt accepted so far, and no prompt
#    that is accepted later.
# 3. Nothing else changes the mark, and it never falls: it is only ever set to the *latest* seq, which only rises.
# 4. Hence, at every moment: **a prompt is covered if and only if a cancel came after its acceptance.**
# 5. The server checks whether a prompt is covered, and starts or ends it *in the same step*. By 4, the prompt starts
#    only if no cancel came since its acceptance (no cancel is lost), and is canceled only if one did (no prompt is
#    poisoned). ∎
#
# (A prompt that is already running is asked to stop, as before.) Read line 5 again: *in the same step*. The check and
# the action that depends on it must be atomic.
#
# **Predict**: the server below has a tiny pause between the check and the start, for a log line, a metric, or anything
# else with an `await`. Does it matter?

# %% tags=["reveal"]
class HesitantServer(MarkServer):
    """Checks, pauses for an instant, and then starts the prompt."""

    async def answer(self, name):
        await asyncio.sleep(0)
        await super().answer(name)


aside(every_order, HesitantServer)

# %% [markdown]
# The numbers are right, but the server is wrong. Check-then-act is the oldest kind of race: in the gap between check
# and action, the result of the check becomes stale. From now on we think in **atomic steps**, which nothing can
# interrupt. A protocol is a list of atomic steps.

# %% [markdown]
# ## The protocol as a table
#
# Our toy server leaves much out. A real server has a queue that can be cleared, prompts that fail before they start,
# crashes, and several sessions. In this project, one table lists all transitions of a prompt. Here it is as a diagram;
# each arrow is a row of the table. (Notebooks display a `Protocol` in this way.)

# %% tags=["picture", "wide"]
from cancelmark.model.protocol import REFERENCE

REFERENCE

# %% [markdown]
# There are five states. Each arrow has a *trigger*, its *guards* in brackets, the outcome if there is one, and the
# number of the rule (in specs/protocol.md). Find the three arrows called `enter`. Together they are line 5 of the
# proof: one atomic step that checks `covered`, then `busy`.
#
# - `enter [covered]` leads to *canceled on entry*: the prompt will not start. (Its messages still have to be written;
#   that is `settle`.)
# - `enter [busy, not covered]` leads to the queue.
# - `enter [not covered, not busy]` leads to *active*.
#
# Two arrows belong to turns that are longer than those of our toy server. While a turn runs, queued prompts can join
# it: at a *step* of the turn, queued prompts without a run id **fold** into it, as one more message of the same
# conversation. And a conversation can outgrow the context window of the language model. Then it is compacted into a
# summary, and its prompt goes back to the queue (that is `requeue`) and resumes later from the summary.
#
# Some arrows are not steps of their own but part of another step. When a turn has its `finish`, the first queued prompt
# has its `start` in the same step, and a `cancel` triggers `drop` for every queued prompt. You can ignore the other
# arrows for now.
#
# To replay a story on the model, list the steps. The result is a `Trace`. Here is the worst story once more.
# (`cancelmark play` does the same in a terminal, with a quiz.)

# %% tags=["picture"]
from cancelmark.model.trace import replay

calls = ["accept A", "cancel", "accept B", "enter B", "enter A", "settle A"]
trace = replay(REFERENCE, calls)
trace

# %% [markdown]
# The column *mark* shows `≤ A` from the cancel on. The dashed line crosses A's bar but not B's, because B is not
# accepted yet: the diagram shows “exactly the prompts accepted before”. And this is the state after the last step:

# %% tags=["picture"]
trace.states[-1]

# %% [markdown]
# **Your turn**: change the calls above. Cancel twice, let A enter before the cancel, or accept three prompts. A turn
# ends with `"finish A end_turn"`, or `error`, or (if it is covered) `canceled`. If a step is not possible, the error
# message lists the possible ones.

# %% [markdown]
# ## Everything that can happen
#
# A trace is one path through the table. Now we want all paths. In each state the model knows *every* possible next
# step: the calls that clients can make, the actions of the server, and the outcomes of a turn. Follow all of them,
# repeat this from every state reached, and stop when no new state appears. This is called **exploring the state
# space**.
#
# For one prompt and one cancel, the state space is small enough to look at. Start at the top. Each path downwards is
# one interleaving.
#
# **Predict** before you look: how many different states will there be?

# %% tags=["picture", "reveal"]
from cancelmark.model.properties import Bounds
from cancelmark.model.revisions.matrix import Profile
from cancelmark.views.states.export import graph_of


def space(prompts):
    """All states with that many prompts and one cancel."""
    bounds = Bounds(prompts, cancels=1)
    return graph_of(REFERENCE, [Profile(bounds, (True,), "for a picture")])


space(1)

# %% [markdown]
# The graph contains both sides of the race: on the left A starts first and is then asked to stop, and on the right the
# cancel comes first and A never starts. There is no path on which the cancel comes first and A starts. You have just
# *proved* this for one prompt, by looking at every state.
#
# With two prompts, each dot is a state. In a green state a prompt is active, in an orange state a prompt is stopping.

# %% tags=["picture"]
space(2)

# %% [markdown]
# And three:

# %% tags=["picture"]
space(3)

# %% [markdown]
# This is too large to inspect by hand. `explore` visits every state and checks all properties on every step, at about a
# hundred thousand states per second. It counts more states than the diagrams show, because it also keeps track of the
# finished prompts and of the number of cancels left.

# %% tags=["picture"]
from cancelmark.model.check.explore import explore

result = explore(REFERENCE, Bounds(prompts=3, cancels=2))
result

# %% [markdown]
# The search is breadth-first: all states that are one step away, then two, then three. That is why a counterexample, if
# there is one, is always a *shortest* one. The levels grow and then shrink again:

# %% tags=["picture"]
from cancelmark.views.notebook import columns_picture

columns_picture(result.levels, "steps from the start", "states")

# %% [markdown]
# ### How fast it grows
#
# `Bounds` limits what can happen. **Predict**: three prompts and no cancel give 899 states. About how many are there
# with *four* prompts? Ten more? Twice as many? And does a prompt add more states than a cancel?

# %% tags=["picture", "reveal"]
from cancelmark.views.notebook import growth_picture


def states(cancels, most):
    sizes = range(1, most + 1)
    return [explore(REFERENCE, Bounds(n, cancels=cancels)).states for n in sizes]


series = {"no cancel": states(0, 4), "one": states(1, 3), "two": states(2, 3)}
growth_picture(series)

# %% [markdown]
# There is a line for each number of cancels. The scale is *logarithmic*: every further prompt multiplies the number of
# states by ten or more. The first cancel adds nearly as much as a prompt; the second merely doubles the number. This is
# the **state explosion**, and it is why models are small: two or three prompts, one or two cancels. Is that enough?
# Every flaw in this project's collection appears with three prompts or fewer. But that is experience, not proof, so we
# come back to this question soon.
#
# **Experiment with the bounds.** How many states do `clears`, `crashes`, `closes`, `requeues` and `sessions` add? (Up
# to a million states, a search takes seconds.)

# %% tags=["picture"]
explore(REFERENCE, Bounds(prompts=2, cancels=1, clears=1, crashes=1))

# %% [markdown]
# ## Line 4, checked by a machine
#
# The heart of the proof is line 4: a prompt is covered if and only if a cancel came after its acceptance. Let the
# explorer check it. For each prompt, the model records which call has *reached* it since its acceptance. No action
# reads this record; it exists for properties. A property is a function from a step to a boolean. (`live` are the
# unfinished prompts.)

# %% tags=["picture"]
from cancelmark.model.actions import Reach
from cancelmark.model.properties import Property


def covered_is_reached(step):
    now = step.after
    return all(now.covered(p) == (p.reach is Reach.CANCEL) for p in now.live)


line_4 = Property("line-4", "Covered iff a cancel came later.", covered_is_reached)
explore(REFERENCE, Bounds(prompts=3, cancels=2, clears=1), properties=[line_4])

# %% [markdown]
# It holds in all those states. Does it hold for more than three prompts? Line 4 can be proved **by induction**: it
# holds initially, and every step preserves it. (The induction needs a few other claims, such as line 1, which are
# proved in the same way.) This argument does not depend on the number of prompts, and the solver z3 can check it, one
# action at a time:

# %% tags=["picture"]
from cancelmark.model.proof.actions import ACTIONS
from cancelmark.model.proof.invariant import INVARIANT
from cancelmark.model.proof.prover import Obligation, Prover
from cancelmark.views.notebook import table

[claim] = [claim for claim in INVARIANT if claim.name == "covered-is-reached"]
verdicts = [Prover().judge(Obligation(claim, action)) for action in ACTIONS]
table(claim.sentence, ("after the action", "for any number of prompts"),
      [(v.obligation.action.name, v.verdict.value) for v in verdicts])

# %% [markdown]
# (`cancelmark prove` does this for all conjuncts of the invariant and for every guarantee.)
#
# ## What you have learned
#
# - Each prompt has a **seq** from acceptance on, and there is one **mark**. It is compared, never consumed.
# - A five-line proof shows that this is correct, on one condition: check and action must be **one atomic step**.
# - There are two ways to verify a protocol: **explore** everything within bounds, or **prove** it by induction without
#   bounds.
#
# We have not asked whether we are checking the right properties. Would the explorer notice if the protocol were wrong?
# In part 3 we break it on purpose, and find out.
