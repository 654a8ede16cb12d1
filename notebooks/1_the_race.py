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
# # 1. The race
#
# You press *Send*, and a chat server starts to answer. You press *Stop*, and it stops. What could be simpler?
#
# In this part we write such a server, in thirty lines, and cancel prompts in it. First a cancel will be **lost**. We
# fix that, and the fix **poisons**: a cancel kills a prompt that was sent after it. We fix that too, and then the
# server does both. All of this has happened in a real server, whose users reported
#
# > “Cancel was acknowledged but the run went on.” · “The next prompt was canceled by the last Escape.”
#
# You need to know Python and a little asyncio: `async def`, `await`, tasks. This part takes about forty minutes. From
# time to time you are asked to **predict** an outcome. Please do, before you continue: you will remember the wrong
# guesses.
#
# You can read this as a page, with pencil and paper, or as a notebook whose cells you can change and run. `make lab`
# opens the notebook.

# %% [markdown]
# This is the race that you will understand at the end of this part, and fix in the next. (With a flag, it goes wrong
# twice.)

# %% tags=["picture"]
from cancelmark.views.course.race import race_svg
from cancelmark.views.notebook import Picture, on_paper

Picture(on_paper(race_svg(), "With a flag, B is canceled and A runs; "
                 "with the mark, A is canceled and B runs."))

# %% [markdown]
# ## A chat server in thirty lines
#
# The server has one conversation, which we call a *session*. Clients `post` prompts and can `cancel`. Like most servers
# it acknowledges a prompt immediately (*202 Accepted* in HTTP) and does the work in the background, because two things
# take time: *loading* the conversation from disk, and *answering*, while the language model generates text. The server
# gives one answer at a time; a prompt that arrives in the meantime waits for the lock.

# %%
import asyncio


class ChatServer:
    """One session, as most people would write it first."""

    def __init__(self, history):
        self.history = history  # records what happens
        self.lock = asyncio.Lock()  # one answer at a time
        self.running = None  # the task that is answering
        self.tasks = []

    def post(self, name, loading=3):
        """A client sends a prompt. The server responds at once: 202 Accepted."""
        self.history.accept(name)
        self.tasks.append(asyncio.create_task(self.work(name, loading)))

    async def work(self, name, loading):
        await asyncio.sleep(loading)  # load the conversation
        async with self.lock:
            await self.answer(name)

    async def answer(self, name):
        self.running = asyncio.current_task()
        self.history.start(name)
        try:
            await asyncio.sleep(5)  # the language model generates
            self.history.end(name, "end_turn")
        except asyncio.CancelledError:
            self.history.end(name, "canceled")
        self.running = None

    def cancel(self):
        """A client presses Stop."""
        self.history.call("cancel")
        if self.running:
            self.running.cancel()


# %% [markdown]
# Read it once more: would you have written it differently?
#
# A *story* defines what clients do, and when. `play` runs a story on a server. It uses an event loop with a simulated
# clock: when all tasks sleep, the clock jumps ahead. Nothing really waits, and every run is the same. These tools are
# part of this project: a `Recording` is the history of a run, and the first line below makes the notebook display it.

# %%
# %load_ext cancelmark.views.notebook
from IPython.display import display

from cancelmark.conformance.notebook import aside, play
from cancelmark.views.course.recording import Recording

# %% [markdown]
# The first story: one prompt, and a cancel during its answer.

# %% tags=["picture"]
async def stop_an_answer(server):
    server.post("A")
    await asyncio.sleep(5)
    server.cancel()


play(ChatServer, stop_an_answer)

# %% [markdown]
# Time runs to the right. A is *accepted* while it loads, then *active* while the model generates. The dashed line is
# the cancel, and the cross means that the cancel must affect A. A ends `canceled`. Our server works.
#
# The text below the diagram comes from the **oracle**, a short program of this project that knows which outcomes a
# prompt can have. You will meet it in part 3. For now it is the referee: when it complains, something went wrong.

# %% [markdown]
# ## A lost cancel
#
# The same story, but the user is quicker: the cancel arrives one second after the 202.
#
# **Predict** how A ends: `"canceled"`, or `"end_turn"` (the model completed its answer)? Replace the dots.

# %%
from cancelmark.views.course.exercises import predict

guess = predict(A=...)

# %% tags=["picture", "reveal"]
async def stop_at_once(server):
    server.post("A")
    await asyncio.sleep(1)
    server.cancel()


lost = play(ChatServer, stop_at_once)
display(lost, guess.against(lost))

# %% [markdown]
# The user pressed Stop, and the server acknowledged it. And yet A was answered completely. The oracle agrees: A starts,
# but could only end `canceled`. (It also mentions things that our toy server does not have, such as a queue that can be
# cleared. Ignore them for now.)
#
# Where is the mistake? Look at `cancel` again before you open the answer.
#
# <details><summary>Where it went wrong</summary>
#
# `cancel` looks for a prompt that is *running*. While A loads, there is none: `self.running` is `None`. The cancel
# finds no prompt, does nothing, and is forgotten. A moment later, A starts.
#
# </details>
#
# Time passes between “accepted” and “active”, and during that time only the prompt's own task knows about it. We call
# this the **window**. It is not a peculiarity of our toy: every server that responds before the work starts has such a
# window. Making the window smaller only makes the bug rarer.

# %% [markdown]
# ## “Just check a flag”
#
# The obvious fix: a cancel sets a flag, and a prompt that is about to start checks it first. The flag has to be cleared
# again, or no prompt would ever run after the first cancel. So the prompt that finds the flag clears it.

# %%
class FlagServer(ChatServer):
    """A cancel sets a flag. The next prompt to start clears it and is canceled."""

    flag = False

    def cancel(self):
        super().cancel()
        self.flag = True

    async def answer(self, name):
        if self.flag:
            self.flag = False
            self.history.end(name, "canceled")
        else:
            await super().answer(name)


# %% tags=["picture"]
play(FlagServer, stop_at_once)

# %% [markdown]
# A never starts. Fixed!
#
# In the next story A is answered completely, and the user presses Stop *after* the last word, as people do. A little
# later they send another prompt, B.
#
# **Predict.**

# %%
guess = predict(A=..., B=...)

# %% tags=["picture", "reveal"]
async def stop_too_late(server):
    server.post("A")
    await asyncio.sleep(11)
    server.cancel()
    await asyncio.sleep(2)
    server.post("B")


poisoned = play(FlagServer, stop_too_late)
display(poisoned, guess.against(poisoned))

# %% [markdown]
# ## A cancel that poisons
#
# B was sent *after* the cancel, and no user wanted to stop it. It is canceled anyway: the flag of the earlier cancel
# was still set, and B found it. We say that the cancel **poisoned** B.
#
# The two failures are mirror images of each other:
#
# | failure | what happened | what users report |
# |---|---|---|
# | **lost** | a cancel did not stop a prompt that was accepted *before* it | “the run went on” |
# | **poisoned** | a cancel stopped a prompt that was accepted *after* it | “canceled by the last Escape” |
#
# So a cancel should set the flag only if there is a prompt to cancel: one that is accepted and has not started. We
# count those. This is not a straw man: the real server did exactly this next, with a lock and a great deal of care. Its
# revisions have names in this project. This one is called **r1**, and the server before it, without a flag, is **r0**.

# %%
class CarefulFlagServer(FlagServer):
    """A cancel sets the flag only if some accepted prompt has not started."""

    waiting = 0

    def post(self, name, loading=3):
        self.waiting += 1
        super().post(name, loading)

    def cancel(self):
        super().cancel()
        self.flag = self.waiting > 0

    async def answer(self, name):
        self.waiting -= 1
        await super().answer(name)


# %% tags=["picture"]
play(CarefulFlagServer, stop_too_late)

# %% [markdown]
# B survives, and `stop_at_once` still works (try it). Are we done?
#
# **Predict** two more stories. In the first, A and B are both accepted before a single cancel. In the second, A is
# accepted and takes long to load, then a cancel arrives, and *then* C is accepted, which loads quickly.

# %%
guess_siblings = predict(A=..., B=...)
guess_overtaken = predict(A=..., C=...)

# %% tags=["picture", "reveal"]
async def two_and_a_cancel(server):
    server.post("A")
    server.post("B")
    await asyncio.sleep(1)
    server.cancel()


siblings = play(CarefulFlagServer, two_and_a_cancel)
display(siblings, guess_siblings.against(siblings))

# %% [markdown]
# One cancel, one flag, two prompts. A clears the flag, and B finds none.

# %% tags=["picture", "reveal"]
async def overtaken(server):
    server.post("A", loading=6)
    await asyncio.sleep(1)
    server.cancel()
    await asyncio.sleep(1)
    server.post("C", loading=1)


eaten = play(CarefulFlagServer, overtaken)
display(eaten, guess_overtaken.against(eaten))

# %% [markdown]
# This is the worst case: C, which the user did not cancel, is canceled instead of A, which the user did cancel, and A
# runs. One cancel is lost *and* poisons.
#
# ### Your turn: a counter?
#
# “Then let us count! The cancel records *how many* prompts to cancel, and each canceled prompt decrements the number.”
# Write it, with a number instead of `flag`, and run both stories on it. (It is easier to start from `ChatServer`: the
# `answer` of the flag servers, which `super()` would call, only understands a flag.)

# %%
class CounterServer(CarefulFlagServer):
    """Your code here. For now it is the careful flag again."""


# %% tags=["picture"]
play(CounterServer, two_and_a_cancel)

# %% tags=["picture"]
play(CounterServer, overtaken)

# %% [markdown]
# <details><summary>What happens with a counter</summary>
#
# ```python
# class CounterServer(ChatServer):
#     waiting = to_cancel = 0
#
#     def post(self, name, loading=3):
#         self.waiting += 1
#         super().post(name, loading)
#
#     def cancel(self):
#         super().cancel()
#         self.to_cancel = self.waiting
#
#     async def answer(self, name):
#         self.waiting -= 1
#         if self.to_cancel:
#             self.to_cancel -= 1
#             self.history.end(name, "canceled")
#         else:
#             await super().answer(name)
# ```
#
# The siblings are both canceled now. But C is still canceled instead of A. A counter records how *many* prompts to
# cancel, but not *which*. Whatever the first prompt consumes, the wrong prompt can consume.
#
# </details>

# %% [markdown]
# ## It is not bad luck
#
# “My tests pass; who presses Stop in exactly that second?” Let us count the possibilities. `explore_schedules` runs a
# program once for *every* order in which its tasks can run. One client posts A and then B, another client cancels, and
# loading takes almost no time, so any of them can come first.
#
# **Predict**: for about what share of all orders does the oracle complain, for each of our three servers?

# %% tags=["picture", "reveal"]
from cancelmark.conformance.schedule import explore_schedules
from cancelmark.views.notebook import table


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
    return len(wrong), sum(wrong)


rows = []
for kind in (ChatServer, FlagServer, CarefulFlagServer):
    orders, wrong = aside(every_order, kind)
    rows.append((kind.__name__, orders, wrong, f"{wrong / orders:.0%}"))
table("Two prompts and a cancel, in every order",
      ("server", "orders", "with a complaint", "share"), rows)

# %% [markdown]
# The first server is correct only if A is being answered and B is not sent yet when the cancel arrives: the cancel
# misses prompts that are loading or waiting for the lock. The third server has a careful programmer, a lock and a count
# of waiting prompts, and still a third of all orders go wrong. In production most of these orders are rare, and that is
# the problem: trial and error does not find a bug that occurs once in ten thousand cancels.

# %% [markdown]
# ## The real server
#
# This project has a model of each revision of the real server, at the granularity of its locks. `explore` visits
# *every* interleaving of two prompts and a cancel in a model, and checks each step. First r0, before any fix.

# %% tags=["picture"]
from dataclasses import replace

from cancelmark.model.check.explore import explore
from cancelmark.model.properties import Bounds
from cancelmark.model.revisions import REVISIONS

# One kind of prompt is enough here, and keeps the search small.
r0, r1 = (replace(revision, accepts=(True,)) for revision in REVISIONS[:2])
first = explore(r0, Bounds(prompts=2, cancels=1))
first

# %% [markdown]
# A *state* is a possible situation of the server, an *edge* is a step from one state to another, and no state is more
# than *depth* steps away from the start. Each line that starts with *violates* names a **property**, a guarantee that
# should hold. For each violated property the explorer keeps a shortest example.
#
# Here is the lost cancel of r0. In this *sequence diagram* time runs downwards. A client's call is an arrow to the
# right, the server's own actions are written next to its line, and each prompt has a column that shows its state.

# %% tags=["picture"]
first.violations["no-lost-cancel"]

# %% [markdown]
# You know this story. The cancel takes two steps in r0: `cancel` stops the running prompt, and `cancel…` empties the
# *queue*, in which the real server keeps prompts that arrive while another is being answered. The cancel finds no
# prompt. Then A checks whether another prompt is being answered, finds none, and starts. Two terms in the diagrams are
# explained in later parts: a *run id* is a name that the client gives to its prompt, and the *mark* is the topic of
# part 2.
#
# Now r1, the careful flag. (The flag itself is not shown. Keep track of it at each step.)

# %% tags=["picture"]
second = explore(r1, Bounds(prompts=2, cancels=1))
second.violations["no-poisoning"]

# %% [markdown]
# **Go through it** step by step: what sets the flag, which prompt clears it, and which prompt should have?
#
# <details><summary>The answer</summary>
#
# The cancel sets the flag for A, the only prompt accepted so far. B is accepted after the cancel and enters first. B
# finds the flag, clears it, and is canceled on entry: poisoned. A has not entered yet, and will find no flag.
#
# </details>
#
# Here are both next to the protocol that we are going to build, the *reference*. (A *terminal event* is the message
# that reports the outcome of a prompt, and *quiescence* is the state in which the system has nothing left to do.)

# %% tags=["picture"]
from cancelmark.model.properties import PROPERTIES
from cancelmark.model.protocol import REFERENCE
from cancelmark.model.revisions.matrix import Column
from cancelmark.views.notebook import matrix_sheet

reference = explore(REFERENCE, Bounds(prompts=2, cancels=1))
judged = [Column(r.protocol.name, "", r.violations, r.states)
          for r in (first, second, reference)]
asked = {"no-lost-cancel", "no-poisoning", "no-late-fold", "some-terminal",
         "single-active"}
matrix_sheet(judged, [p for p in PROPERTIES if p.id in asked])

# %% [markdown]
# Two things in the column of r0 may surprise you. Without a flag no prompt is poisoned, but *no-late-fold* is violated:
# r0 folds a queued prompt, even one that was sent after the cancel, into a turn that has been asked to stop, and both
# end together. And two prompts can be active at once: each *checks* before the other *starts*. The lock of our toy
# server prevents that.
#
# ## What a fix has to do
#
# Write down, in one sentence, what a cancel should do. Then compare.
#
# <details><summary>Our sentence</summary>
#
# **A cancel affects exactly the prompts that were accepted before it.** If it affects fewer, it is lost. If it affects
# more, it poisons. And this must be true however often a cancel is sent.
#
# </details>
#
# Three things went wrong in this part, and each shows a requirement:
#
# - The cancel looked for a *running* prompt. It has to know about prompts **from acceptance on**.
# - The flag recorded *that* there was a cancel, and the counter *how many* prompts it was for. It has to record
#   **which** prompts.
# - Flag and counter were **consumed**. One prompt's consumption deprives another prompt.
#
# In the next part: one number that does all three, and is never consumed.
