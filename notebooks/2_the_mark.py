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
# Last night we looked for a way to cancel **exactly the prompts that were accepted before the cancel**. A flag said
# *that* there was a cancel, a counter *how many* it was for, and both were used up by the wrong prompt.
#
# Tonight: the answer, which is two numbers; why it is right, in five lines; and then a different kind of looking, in
# which a program goes through *everything* that can happen. About forty minutes.
#
# ## Numbers that say who
#
# “Accepted before” is a question about order, so let us number the prompts in the order of acceptance. The number is
# called **seq**. It is given at the very moment of the 202, before anything else happens to the prompt.
#
# A cancel then need not keep a list of those it is meant for. It only notes how far the numbers have got. That is the
# **mark**: *everybody up to here*. It is the idea of a *high-water mark*, the line that a flood leaves on a wall.
#
# And a prompt that is about to begin asks: is my seq at or below the mark? Then a cancel came after my acceptance,
# and I must not begin. It *compares*. Nothing is taken down, nothing is used up, so the next one who asks gets its
# own right answer.
#
# Here is the server of last night with these two numbers. Five lines are new; they are marked.

# %%
import asyncio


class MarkServer:
    """One session. Who is at or below the mark does not begin."""

    def __init__(self, history):
        self.history = history
        self.lock = asyncio.Lock()
        self.running = None
        self.tasks = []
        self.latest = self.mark = 0  # new: the last seq given out, and the mark

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
# We also need `play`, as last night:

# %%
# %load_ext cancelmark.views.notebook
from IPython.display import display

from cancelmark.conformance.notebook import aside, play
from cancelmark.conformance.schedule import explore_schedules
from cancelmark.views.course.exercises import predict
from cancelmark.views.course.recording import Recording

# %% [markdown]
# The worst story of last night: A is accepted and loads for long; a cancel; C is accepted and loads quickly. The
# careful flag canceled C and let A run.
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
# A has seq 1, the cancel sets the mark to 1, C has seq 2. C asks: 2 ≤ 1? No, so it begins. A asks: 1 ≤ 1? Yes. It
# does not matter who asks first.
#
# Tell it the other stories of last night too, if you like. Here are all orders at once, as we counted them then:

# %%
def every_order(kind):
    """How many orders there are, and in how many of them the oracle complains."""
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
# Trying is not proving. Here is why no order whatever can go wrong. We write *covered* for “seq at or below the
# mark”.
#
# 1. Seqs are given at acceptance and only rise. So whoever is accepted later has a higher seq.
# 2. A cancel sets the mark to the latest seq. So at that moment it covers everybody who was accepted, and nobody who
#    will be.
# 3. Nothing else moves the mark, and it never falls: it is only ever set to the *latest* seq, which only rises.
# 4. Hence, at every moment: **a prompt is covered if and only if a cancel came after its acceptance.**
# 5. Before a prompt begins it asks whether it is covered, and begins or ends *in the same step*. By 4 it begins only
#    if no cancel came since its acceptance (nothing is lost), and is canceled only if one did (nobody is poisoned). ∎
#
# (Who is running already is asked to stop, as before.) Read line 5 again: *in the same step*. A question, and what
# follows from the answer, have to happen at once.
#
# **Predict**: below, somebody has put a tiny pause between the question and the beginning. A log line, a metric,
# anything with an `await`. Does it matter?

# %% tags=["reveal"]
class HesitantServer(MarkServer):
    """It asks, pauses for an instant, and then begins."""

    async def answer(self, name):
        await asyncio.sleep(0)
        await super().answer(name)


aside(every_order, HesitantServer)

# %% [markdown]
# The numbers are right and the server is wrong. To look and then to act, with a gap between, is the oldest race there
# is: in the gap the answer goes stale. So from here on we speak of **atomic steps**: things that happen all at once,
# with nothing in between. A protocol is a list of atomic steps.

# %% [markdown]
# ## The protocol as a table
#
# Our toy leaves much out. A real server has a queue that can be cleared, prompts that fail before they begin,
# crashes, several sessions. All of it is written down in this project as one table of what can happen to a prompt.
# Here it is, drawn: each arrow is a row. (A `Protocol` shows itself in a notebook.)

# %% tags=["picture", "wide"]
from cancelmark.model.protocol import REFERENCE

REFERENCE

# %% [markdown]
# Five states, and arrows with a *trigger*, its *guards* in brackets, the end that it leads to if there is one, and
# the number of the rule (in specs/protocol.md). Find the three arrows called `enter`. Together they are line 5 of the
# proof: one atomic step that asks `covered`, then `busy`.
#
# - `enter [covered]` leads to *canceled on entry*: it will not begin. (It still has to be written down; that is
#   `settle`.)
# - `enter [busy, not covered]` leads to the queue.
# - `enter [not covered, not busy]` leads to *active*.
#
# Two arrows belong to turns that are longer than our toy's. While a turn runs, it may take in what is queued: at a
# *step* of the turn, queued prompts without a run id **fold** into it, as one more message of the same conversation.
# And a conversation can outgrow what the language model takes. Then the turn is summed up, goes back to the queue
# (that is `requeue`), and goes on later from the summary.
#
# Some arrows are not steps of their own but parts of another one: when a turn has its `finish`, the first in the
# queue has its `start` in the same step, and a `cancel` means `drop` for everybody in the queue. The others need not
# worry you tonight.
#
# To play a story on the model, say what happens, step by step. What comes back is a `Trace`. Here is the worst story
# once more. (`cancelmark play` is the same in a terminal, with a quiz.)

# %% tags=["picture"]
from cancelmark.model.trace import replay

calls = ["accept A", "cancel", "accept B", "enter B", "enter A", "settle A"]
trace = replay(REFERENCE, calls)
trace

# %% [markdown]
# The column *mark* says `≤ A` from the cancel on. The dashed line crosses A's bar and not B's, because B is not there
# yet: that is “exactly those accepted before” as a picture. And this is the state after the last step:

# %% tags=["picture"]
trace.states[-1]

# %% [markdown]
# **Your turn**: change the calls above. Cancel twice; let A enter before the cancel; accept three. A turn ends with
# `"finish A end_turn"`, or `error`, or (if it is covered) `canceled`. When a step cannot happen, the error says which
# ones can.

# %% [markdown]
# ## Everything that can happen
#
# A trace is one way through the table. Now for all of them. In each state the model knows *every* next step: what
# clients may do, what the server may do, how a turn may end. Follow them all, from each state reached follow them all
# again, and stop when nothing new appears. This is called **exploring the state space**.
#
# For one prompt and one cancel it is so small that we can look at it. Start at the top. Each path downwards is one
# interleaving.
#
# **Predict** before you look: how many different states will there be?

# %% tags=["picture", "reveal"]
from cancelmark.model.properties import Bounds
from cancelmark.model.revisions.matrix import Profile
from cancelmark.views.states.export import graph_of


def space(prompts):
    """All states of so many prompts and one cancel."""
    bounds = Bounds(prompts, cancels=1)
    return graph_of(REFERENCE, [Profile(bounds, (True,), "for a picture")])


space(1)

# %% [markdown]
# Both sides of the race are in it: on the left A begins first and is then asked to stop, on the right the cancel
# comes first and A never begins. There is no path on which the cancel comes first and A begins. You have just
# *proved* something, for one prompt, by looking at everything.
#
# Two prompts: each dot is a state. Green means that somebody is active, orange that somebody is being stopped.

# %% tags=["picture"]
space(2)

# %% [markdown]
# And three:

# %% tags=["picture"]
space(3)

# %% [markdown]
# Nobody looks through this by hand, and nobody has to. `explore` goes through every state and judges every step by
# all properties, about a hundred thousand states a second. It counts more states than the pictures show, because it
# also keeps the prompts that are done, and how many cancels are still to come.

# %% tags=["picture"]
from cancelmark.model.check.explore import explore

result = explore(REFERENCE, Bounds(prompts=3, cancels=2))
result

# %% [markdown]
# The search goes level by level: all states that are one step away, then two, then three. That is why a
# counterexample, if there is one, is always a *shortest* one. The levels swell and shrink again:

# %% tags=["picture"]
from cancelmark.views.notebook import columns_picture

columns_picture(result.levels, "steps from the start", "states")

# %% [markdown]
# ### How fast it grows
#
# `Bounds` says how much may happen. **Predict**: three prompts and no cancel give 899 states. About how many with
# *four*? Ten more? Twice as many? And is a prompt more expensive than a cancel?

# %% tags=["picture", "reveal"]
from cancelmark.views.notebook import growth_picture


def states(cancels, most):
    sizes = range(1, most + 1)
    return [explore(REFERENCE, Bounds(n, cancels=cancels)).states for n in sizes]


series = {"no cancel": states(0, 4), "one": states(1, 3), "two": states(2, 3)}
growth_picture(series)

# %% [markdown]
# A line for each number of cancels. The scale goes up by *tens*: every further prompt multiplies the states by ten or
# more. The first cancel costs nearly as much as a prompt; the second merely doubles them. This is the **state
# explosion**, and it is why models are small: two or three prompts, one or two cancels. Is that enough? Every flaw in
# this project's collection shows with three prompts or fewer. But that is experience and not proof, so keep the doubt
# for a moment.
#
# **Play with the bounds.** What do `clears`, `crashes`, `closes`, `requeues` and `sessions` cost? (Below a million
# states it takes seconds.)

# %% tags=["picture"]
explore(REFERENCE, Bounds(prompts=2, cancels=1, clears=1, crashes=1))

# %% [markdown]
# ## Line 4, checked by a machine
#
# The heart of the proof is line 4: covered if and only if a cancel came after acceptance. Let us have the explorer
# look at it. The model keeps, for each prompt, which call has *reached* it since its acceptance. No action ever looks
# at that; it is there for properties. A property is a function from a step to yes or no. (`live` are the prompts that
# are not done yet.)

# %% tags=["picture"]
from cancelmark.model.actions import Reach
from cancelmark.model.properties import Property


def covered_is_reached(step):
    now = step.after
    return all(now.covered(p) == (p.reach is Reach.CANCEL) for p in now.live)


line_4 = Property("line-4", "Covered iff a cancel came later.", covered_is_reached)
explore(REFERENCE, Bounds(prompts=3, cancels=2, clears=1), properties=[line_4])

# %% [markdown]
# It holds in all those states. For more prompts than three? Here is the doubt again, and here is how to end it. Line
# 4 can be shown **by induction**: it holds at the start, and no step leads from a state in which it holds to one in
# which it does not. (It needs a few other sentences beside it, such as line 1; they are shown in the same way.) That
# question has no number of prompts in it, and a solver, z3, can answer it, one action at a time:

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
# (`cancelmark prove` does this for all twelve sentences of the invariant and for every guarantee.)
#
# ## What you have
#
# - A **seq** for each prompt, from acceptance on, and one **mark**. Compared, never consumed.
# - A proof of five lines, with one condition: to ask and to act must be **one atomic step**.
# - Two ways to be sure: **explore** everything within bounds, and **prove** by induction without any.
#
# What we have not asked is whether we are checking the right things. Would the explorer notice if the protocol were
# wrong? Tomorrow we break it on purpose, and find out.
