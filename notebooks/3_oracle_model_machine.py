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
# # 3. Oracle, model, machine
#
# A test that cannot fail says nothing. So before we trust a checker we ask: what would it take for it to complain?
#
# Tonight we write an *invariant*, break the protocol on purpose, and read the *counterexample*. We let Hypothesis
# find the same bug by chance and watch it **shrink** what it found. We meet the oracle in person. And then there are
# six protocols with a hidden bug each, for you to find. Forty minutes, and the exercises are yours for as long as you
# like.
#
# ## An invariant of your own
#
# An **invariant** is something that is true in every state that can be reached. “A session never has two active
# prompts.” In this project it is a `Property`: an id, one plain sentence, and a function that looks at one step.

# %% tags=["picture"]
# %load_ext cancelmark.views.notebook
from cancelmark.model.check.explore import explore
from cancelmark.model.properties import Bounds, Property
from cancelmark.model.protocol import REFERENCE


def at_most_one(step):
    return len(step.after.active) <= 1


alone = Property("alone", "A session never has two active prompts.", at_most_one)
explore(REFERENCE, Bounds(prompts=3, cancels=1), properties=[alone])

# %% [markdown]
# A step has `before` and `after` (the session), `started` (the prompts whose turns it starts), `effects` and a few
# more. A session has `prompts`, `queue`, `active`, `live` (all that are not done) and `mark`.
#
# Here is another invariant that sounds just as true: *prompts start in the order in which they were accepted.*
#
# **Predict**: does it hold?

# %% tags=["picture", "reveal"]
def in_order(step):
    states = ("accepted", "queued")
    waiting = [p for p in step.after.live if p.state.value in states]
    return all(p.seq < q.seq for p in step.started for q in waiting)


order = Property("order", "Prompts start in order of acceptance.", in_order)
wrong = explore(REFERENCE, Bounds(prompts=2), properties=[order])
wrong.violations["order"]

# %% [markdown]
# It does not: B is accepted after A and *enters* before it, because loading takes as long as it takes. When an
# invariant breaks there are always two suspects, **the protocol and the invariant**. Here it is the invariant that
# asks for too much: nobody ever promised it (specs/protocol.md says so, under “What is not guaranteed”). What is
# promised is order *in the queue*.
#
# **Your turn**: weaken `in_order` until it holds, with three prompts too. Which word has to go? (End the cell with
# `wrong` then: when it holds, there is no violation to be shown.)
#
# <details><summary>One way</summary>
#
# `"accepted"`. Once only queued prompts are compared, it holds. That property is called **fifo** here: no prompt
# becomes active past an earlier one that is *queued*.
#
# </details>

# %% [markdown]
# ## Break it on purpose
#
# Now the other suspect. The three `enter` rows of the table ask about the mark first and then whether the session is
# busy. Somebody tidies up and asks the other way round: *if the session is busy, into the queue with it; only who
# finds it idle looks at the mark.*
#
# **Predict**: which promise breaks? And how many steps does the shortest story need?

# %%
from dataclasses import replace

from cancelmark.model.lifecycle import ROWS, Guard, Row, State, Trigger

ENTER, ACCEPTED = Trigger.ENTER, State.ACCEPTED
busy_first = (
    Row(ENTER, ACCEPTED, State.QUEUED, when=(Guard.BUSY,)),
    Row(ENTER, ACCEPTED, State.CANCELED_ON_ENTRY,
        when=(Guard.COVERED,), unless=(Guard.BUSY,)),
    Row(ENTER, ACCEPTED, State.ACTIVE, unless=(Guard.BUSY, Guard.COVERED)),
)
others = tuple(row for row in ROWS if row.trigger is not ENTER)
tidy = replace(REFERENCE, name="tidy", rows=busy_first + others)

# %% tags=["picture", "reveal"]
broken = explore(tidy, Bounds(prompts=2, cancels=1))
broken

# %% [markdown]
# ### Reading a counterexample
#
# The explorer keeps a shortest trace for each property that breaks. A good way to read one is *backwards*: what is
# wrong in the last step? Why was that possible? Which step made it so?

# %% tags=["picture"]
counterexample = broken.violations["no-lost-cancel"]
counterexample

# %% [markdown]
# <details><summary>Backwards</summary>
#
# In the last step B starts, and the dashed line crosses B: a cancel had reached it, so it must not. It was possible
# because B sat in the *queue*, and whoever is in the queue gets its turn without another question. It got there
# because when it entered the session was busy, and the tidy row did not ask about the mark.
#
# (That A ends `end_turn` is no mistake, though a cancel has reached it too. A was *running*: it is asked to stop, and
# may say its last word before it hears of it.)
#
# And why did the cancel not drop B from the queue? Because B was not in the queue yet. It was accepted, in the
# window of the first evening.
#
# </details>

# %% [markdown]
# ## Hypothesis, and how it shrinks
#
# Exploring everything works for small bounds. For larger things there is chance: take random steps for a while and
# look whether something breaks. Random failures are long and full of things that do not matter. **Hypothesis** throws
# them out: once it has a failure it tries smaller and smaller ones, for as long as they still fail.
#
# Our test takes a list of actions and makes a walk out of it: each is taken if it can happen, and passed over if not.
# We also keep every failing walk, to see how they get shorter.

# %%
from hypothesis import given, settings
from hypothesis import strategies as st

from cancelmark.model.check.walk import Walk

ACTIONS = ["accept", "enter", "finish", "cancel", "crash", "recover"]
failures = []


@settings(max_examples=400, deadline=None, database=None, derandomize=True)
@given(st.lists(st.sampled_from(ACTIONS), max_size=20))
def every_walk_keeps_the_promises(names):
    walk = Walk(tidy)
    for name in names:
        steps = [step for step in walk.possible if step.call.name == name]
        if steps:
            walk.take(steps[0])
    if "no-lost-cancel" in walk.broken:
        failures.append(walk.trace)
        raise AssertionError("a cancel was lost")


try:
    every_walk_keeps_the_promises()
except AssertionError as complaint:
    print(f"{complaint}, in {len(failures)} walks on the way")

# %% [markdown]
# The first failure that chance came up with:

# %% tags=["picture", "wide"]
failures[0]

# %% [markdown]
# **Predict**: how many steps will the last one have? More than the six of the explorer, as many, or fewer?

# %% tags=["picture", "reveal"]
from IPython.display import display

from cancelmark.views.notebook import columns_picture

lengths = [len(trace) for trace in failures]
display(columns_picture(lengths, "failing walk", "steps"))
failures[-1]

# %% [markdown]
# Each column is one failing walk that Hypothesis kept on its way down. It leaves out and simplifies for as long as
# the test still fails. What is left is what matters.
#
# Mostly it ends with *four* steps here. (If yours has six: it stops where leaving out one more thing no longer
# fails.) How can that be less than a shortest counterexample? The explorer's six steps were the shortest *within its
# bounds*, and we had not given it a crash. Do, and it finds a story as short:

# %%
wider = explore(tidy, Bounds(prompts=1, cancels=1, crashes=1))
len(wider.violations["no-lost-cancel"])

# %% [markdown]
# (It is the same bug. A server that comes back lets everybody enter before it starts anybody, so in that moment it
# counts as busy. The tidy row puts A into the queue without a look at the mark.)
#
# The explorer says *there is none* and means it, within its bounds. Hypothesis says *I found none*, without bounds,
# and needs nothing but a program to run. They are good at different things, and this project uses both.

# %% [markdown]
# ## The oracle
#
# To judge a random history of a real server, where nobody knows what is going on inside, we need somebody who knows
# what is *allowed*. If that somebody were as complicated as the server, we would only compare two mistakes. The
# **oracle** of this project is little more than a hundred lines that share no code with the model. From what clients
# see it says which ends each prompt may have.
#
# One thing makes that difficult. A client knows when its call *began* and when it was *answered*. In between it took
# effect, nobody knows when. So a history consists of **spans**.
#
# A is accepted in a call that lasts from 0 to 2. A cancel lasts from 1 to 3. A has not started. **Predict**: may A
# end `canceled`? May A be answered (`start`, then `end_turn`)?

# %% tags=["reveal"]
from cancelmark.model.oracle import Call, Prompt, Span, judge, may_end

accepted, cancel = Span(0, 2), Call(1, 3, "cancel")
never_started = Prompt("A", accepted)
started_at_4 = Prompt("A", accepted, starts=(Span(4, 4),))
print("A, not started, may end:", *sorted(may_end(never_started, [cancel])))
# complete=False: there may be more to come, so A need not have ended yet
complaints = judge([started_at_4], [cancel], complete=False)
print("if A starts at 4:", *complaints or ["no complaint"])

# %% [markdown]
# Both! The calls overlap. If the acceptance came first, the cancel covers A; if the cancel came first, it does not.
# The client cannot know, so the oracle must allow either. (`error` means that A could not start; `folded` is another
# end, which you will meet tomorrow.)
#
# Now let the cancel begin at 2.5, after the acceptance was answered:

# %%
later = Call(2.5, 3, "cancel")
print("A, not started, may end:", *sorted(may_end(never_started, [later])))
print("if A starts at 4:", *judge([started_at_4], [later], complete=False))

# %% [markdown]
# No doubt any more, and only `canceled` is left. An oracle like this never complains about something that may have
# been right. It is the referee of the first evening.
#
# ## The machine
#
# The third statement of the truth is what runs. At run time a library for state machines (`transitions`) moves each
# prompt, and it is made from the *same rows* that the explorer explores and that the diagram is drawn from. An
# illegal trigger raises, and changes nothing:

# %%
from cancelmark.impl.runtime.machine import Lifecycle
from cancelmark.model.lifecycle import IllegalTrigger


class Desk:
    """A session made of paper, with its mark at 7: it answers the guards."""

    mark, down, active, queue = 7, False, (), ()


class Paper:
    """A prompt made of paper, which that mark covers."""

    seq, run_id, state, outcome, session = 7, None, State.ACCEPTED, None, Desk()


prompt, machine = Paper(), Lifecycle(REFERENCE)
print(machine.fire(prompt, Trigger.ENTER).name)
try:
    machine.fire(prompt, Trigger.START)
except IllegalTrigger as error:
    print("refused:", str(error).partition(": ")[2])
print("still", prompt.state.value)

# %% [markdown]
# Oracle, model, machine. The oracle is *obviously right*, the model is *complete*, the machine is *what runs*. Each
# is tested against the others. Model and machine are made from the same rows, so a mistake in a row would be in both:
# that is why the oracle shares nothing with them.

# %% [markdown]
# ## Exercises: six hidden bugs
#
# Somebody has made one change to the protocol, six times. You get them by number: `exercise(1)` to `exercise(6)`.
# When you think you have one, show a trace of it to `show_bug`: it must be something that this protocol does and the
# reference does not.
#
# Try to *say in a sentence* what was changed before you ask `show_bug`. Solutions are in the next notebook; a hint for
# each is below. Here is how it goes, with the one that you know already:

# %% tags=["picture"]
from cancelmark.views.course.exercises import exercise, show_bug

suspect = exercise(2)
search = explore(suspect, Bounds(prompts=2, cancels=1))
search

# %% tags=["picture"]
show_bug(2, search.violations["no-lost-cancel"])

# %% [markdown]
# **1.** Two prompts and a cancel are enough. Read the counterexample and say where the mark is, and where it should
# be.
#
# **3.** No cancel at all. Somebody waits for ever: what did they wait for?
#
# **4.** With two prompts and a cancel everything holds! What else can happen to a server?
#
# **5.** With two prompts everything holds, crash as much as you like. How many does it take to make a *queue*?
#
# **6.** All properties hold, whatever the bounds. There is a bug all the same. What did nobody ask?
#
# <details><summary>Hint for 4</summary>
#
# `Bounds(prompts=1, cancels=1, crashes=1)`. What has to survive a crash?
#
# </details>
#
# <details><summary>Hint for 6</summary>
#
# B is sent while A is answered, and *folds* into A's turn. What does whoever wrote B expect of the answer? Play it:
# `from cancelmark.model.trace import replay`, then `replay(exercise(6), ["accept A", "enter A", …, "step A"])`, and the
# same with `REFERENCE`. What a step asks of the world is in `trace.steps[-1].effects`, and a property can look at
# `step.after.prompts` and at `step.effects`.
#
# </details>

# %%
# Yours: take a number, choose bounds, explore, read, and show what you found.
