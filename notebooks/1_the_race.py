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
# Tonight we write such a server, in thirty lines, and cancel things in it. First a cancel will be **lost**. We repair
# that, and the repair **poisons**: a cancel hits a prompt that nobody wanted to cancel. We repair that too, and then
# it does both. All of this has happened in a real server, and its users said things like
#
# > “Cancel was acknowledged but the run went on.” · “The next prompt was canceled by the last Escape.”
#
# You need to know Python and a little asyncio: `async def`, `await`, tasks. About forty minutes. Now and then you are
# asked to **predict**: please do, before you go on. A wrong guess is what you will remember.
#
# There are two ways to read this: as a page, with paper and pencil, or as a notebook whose cells you can change and
# run. `make lab` opens the notebook.

# %% [markdown]
# This is what you will understand at the end of the evening, and mend on the next. (With a flag it goes wrong twice.)

# %% tags=["picture"]
from cancelmark.views.course.race import race_svg
from cancelmark.views.notebook import Picture, on_paper

Picture(on_paper(race_svg(), "With a flag B is canceled and A runs; "
                 "with the mark it is the other way round."))

# %% [markdown]
# ## A chat server in thirty lines
#
# One conversation, which we call a *session*. Clients `post` prompts and may `cancel`. Like most servers it says “I
# have it” at once (HTTP calls that *202 Accepted*) and does the work in the background, because two things take time:
# *loading* the conversation from disk, and *answering*, while the language model speaks. One answer at a time:
# whoever comes meanwhile waits for the lock.

# %%
import asyncio


class ChatServer:
    """One session, the way everybody writes it first."""

    def __init__(self, history):
        self.history = history  # where we write down what happens
        self.lock = asyncio.Lock()  # one answer at a time
        self.running = None  # the task that is answering
        self.tasks = []

    def post(self, name, loading=3):
        """A client sends a prompt. It is answered at once: 202 Accepted."""
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
            await asyncio.sleep(5)  # the language model speaks
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
# A *story* says what clients do and when. `play` runs a story on a server. It uses an event loop whose clock jumps:
# when everybody sleeps, it is simply later. So nobody waits, and every run is the same. The names come from this
# project: `Recording` writes down what was seen, and can be looked at (the first line tells the notebook how).

# %%
# %load_ext cancelmark.views.notebook
from IPython.display import display

from cancelmark.conformance.notebook import aside, play
from cancelmark.views.course.recording import Recording

# %% [markdown]
# The first story: one prompt, and a cancel in the middle of its answer.

# %% tags=["picture"]
async def stop_an_answer(server):
    server.post("A")
    await asyncio.sleep(5)
    server.cancel()


play(ChatServer, stop_an_answer)

# %% [markdown]
# Time goes to the right. A is *accepted* while it loads, then *active* while the model speaks. The dashed line is the
# cancel, and the cross says: A must be reached by it. A ends `canceled`. Our server works.
#
# Below the picture speaks the **oracle**, a short program of this project that knows which ends a prompt may have.
# You will meet it on the third evening. For now it is the referee: when it complains, something went wrong.

# %% [markdown]
# ## A cancel that is lost
#
# The same story, but the user is quicker: the cancel comes one second after the 202.
#
# **Predict** how A ends: `"canceled"`, or `"end_turn"` (the model spoke to its end)? Write it in place of the dots.

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
# The user pressed Stop. The server said yes. And then A was answered, to its end. The oracle says the same: A
# starts, but could only end `canceled`. (It also speaks of things that our toy does not have, such as a queue that can
# be cleared. Read over them for now.)
#
# Where is the mistake? Look at `cancel` again before you open this.
#
# <details><summary>Where it went wrong</summary>
#
# `cancel` looks for something that is *running*. While A loads, nothing is: `self.running` is `None`. So the cancel
# finds nobody, does nothing, and is forgotten. A moment later A begins.
#
# </details>
#
# Between “accepted” and “active” there is time, and in that time nobody but its own task knows of the prompt. We
# shall call this the **window**. It is not a detail of our toy. Whoever answers before the work begins has such a
# window, and whoever makes it smaller only makes the bug rarer.

# %% [markdown]
# ## “Just check a flag”
#
# The repair that everybody thinks of: a cancel leaves a note, and whoever is about to begin looks at it first. The
# note is a flag, and it has to be taken down again, or nothing would ever run after the first cancel. So whoever
# finds it takes it down.

# %%
class FlagServer(ChatServer):
    """A cancel sets a flag. Who is about to begin and finds it takes it down."""

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
# A never begins. Repaired!
#
# Now A is answered in peace, and the user presses Stop *after* the last word, as people do. A little later they send
# another prompt, B.
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
# B was sent *after* the cancel. Nobody wanted to stop it. It is dead all the same: the flag of an old cancel was
# still up, and B ran into it. We say that the cancel **poisoned** B.
#
# So the two ways to be wrong are each other's mirror image:
#
# | wrong | what happened | in the words of users |
# |---|---|---|
# | **lost** | a cancel did not reach a prompt that was accepted *before* it | “the run went on” |
# | **poisoned** | a cancel reached a prompt that was accepted *after* it | “canceled by the last Escape” |
#
# Well then: a cancel should only set the flag if there is somebody to be canceled, somebody who was accepted and has
# not begun. We count those. This is no straw man: it is what the real server did next, with a lock and a great deal
# of care. Its revisions have names in this project, and this one is called **r1**. The server before it, without a
# flag, is **r0**.

# %%
class CarefulFlagServer(FlagServer):
    """A cancel sets the flag only if somebody waits who has not begun."""

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
# B lives, and `stop_at_once` still works (try it). Are we done?
#
# **Predict** two more stories. In the first, A and B are both accepted, and then comes one cancel. In the second, A
# is accepted and takes long to load; a cancel; and *then* C is accepted, which loads quickly.

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
# One cancel, one flag, two prompts. A takes the flag down, and B finds none.

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
# The worst of all: C, which nobody wanted to cancel, dies in the place of A, which somebody did, and A runs. One
# cancel is lost *and* poisons.
#
# ### Your turn: a counter?
#
# “Then let us count! The cancel notes *how many* have to be canceled, and each that is canceled counts it down.”
# Write it: a number in place of `flag`. Then tell it both stories. (It is easier to begin from `ChatServer`: the
# `answer` of the flag servers, which `super()` would call, knows only up and down.)

# %%
class CounterServer(CarefulFlagServer):
    """Your code here. As it stands it is the careful flag again."""


# %% tags=["picture"]
play(CounterServer, two_and_a_cancel)

# %% tags=["picture"]
play(CounterServer, overtaken)

# %% [markdown]
# <details><summary>What becomes of the counter</summary>
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
# The siblings are both canceled now. But C still dies for A. A counter says how *many*, and not *who*. Whatever is
# consumed by whoever comes first will be consumed by the wrong one.
#
# </details>

# %% [markdown]
# ## It is not bad luck
#
# “My tests pass; who presses Stop in just that second?” Let us ask how many ways there are. `explore_schedules` runs
# a program once for *every* order in which its tasks can run. One client posts A and then B, another one cancels, and
# loading takes no time to speak of, so anybody may be first.
#
# **Predict**: for about which share of all orders has the oracle a complaint, for each of our three servers?

# %% tags=["picture", "reveal"]
from cancelmark.conformance.schedule import explore_schedules
from cancelmark.views.notebook import table


def every_order(kind):
    """How many orders there are, and in how many of them something goes wrong."""
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
# The first server is right only if the cancel finds A answering and B not yet sent: whoever loads or waits for the
# lock is missed. And then a careful programmer, a lock, a count of those who wait, and still a third of all orders is
# wrong. In production most of these orders are rare: that is the trouble. A bug that shows once in ten thousand
# cancels is not found by trying.

# %% [markdown]
# ## The real server
#
# The project has models of the real server, revision by revision, as precise as its locks. `explore` walks through
# *every* interleaving of two prompts and a cancel in a model, and judges each step. First r0, before any repair.

# %% tags=["picture"]
from dataclasses import replace

from cancelmark.model.check.explore import explore
from cancelmark.model.properties import Bounds
from cancelmark.model.revisions import REVISIONS

# Prompts of one kind are enough for us, and there is less to go through.
r0, r1 = (replace(revision, accepts=(True,)) for revision in REVISIONS[:2])
first = explore(r0, Bounds(prompts=2, cancels=1))
first

# %% [markdown]
# A *state* is a situation the server can be in, an *edge* is a step from one to another, and no state is more than
# *depth* steps away from the start. Each line that *breaks* something names a **property**, a promise that should
# hold; for each that is broken the explorer has kept a shortest example.
#
# Here is the lost cancel of r0. In such a *sequence diagram* time goes down. What clients do is an arrow to the
# right; what the server does by itself stands beside its line; each prompt has a column that says what it is.

# %% tags=["picture"]
first.violations["no-lost-cancel"]

# %% [markdown]
# You know this story. The cancel (which takes two steps in r0: `cancel` stops who is running, and `cancel…` empties
# the *queue*, in which the real server keeps those who came while another was answered) finds nobody. Then A looks
# whether somebody is answering, nobody is, and A begins. Two words in the pictures are for later evenings: a *run id*
# is a name that the client gives to its prompt, and the *mark* is tomorrow's topic.
#
# Now r1, the careful flag. (The flag itself is not drawn. Think it up or down at each step.)

# %% tags=["picture"]
second = explore(r1, Bounds(prompts=2, cancels=1))
second.violations["no-poisoning"]

# %% [markdown]
# **Read it aloud**, step by step: who sets the flag, who takes it down, and who should have?
#
# <details><summary>The answer</summary>
#
# The cancel sets the flag for A, the only one accepted so far. B is accepted after it and enters first. B finds the
# flag, takes it down and is canceled on entry: poisoned. A is still to come, and will find no flag.
#
# </details>
#
# And both side by side with the protocol that we are going to build, the *reference*. (A *terminal event* is the
# message that says how a prompt ended, and *quiescence* is when everything has come to rest.)

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
# Two things may surprise you in the column of r0. Without a flag nobody is poisoned, but *no-late-fold* is broken: r0
# takes a queued prompt, even one that was sent after the cancel, into a turn that has been told to stop, and both end
# together. And two can be active at once: each *looks* before the other *begins*. Our toy has its lock against that.
#
# ## What a repair has to do
#
# Write down, in one sentence, what a cancel should do. Then compare.
#
# <details><summary>Our sentence</summary>
#
# **A cancel reaches exactly the prompts that were accepted before it.** Not fewer: that would be lost. Not more: that
# would be poison. And however often it has been asked.
#
# </details>
#
# Three things went wrong tonight, and each says what is needed:
#
# - The cancel looked for what was *running*. It has to know of prompts **from acceptance on**.
# - The flag said *that* there was a cancel, the counter *how many* it was for. Needed is **for whom**.
# - Flag and counter were **consumed**. Whoever consumes takes something away from somebody else.
#
# Tomorrow: one number that does all three, and is never consumed.
