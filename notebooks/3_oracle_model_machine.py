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
# A test that cannot fail is worthless. So before we trust a checker we ask: what would make it complain?
#
# In this part we write an *invariant*, break the protocol on purpose, and read the *counterexample*. We let Hypothesis
# find the same bug at random and watch it **shrink** the failure. We take a closer look at the oracle. And then there
# are six protocols with one hidden bug each, for you to find. It takes forty minutes, plus as much time as you like for
# the exercises.
#
# ## An invariant of your own
#
# An **invariant** is a statement that is true in every reachable state, such as “A session never has two active
# prompts.” In this project it is a `Property`: an id, one plain sentence, and a function that checks one step.

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
# A step has `before` and `after` (the session), `started` (the prompts whose turns it starts), `effects` and a few more
# fields. A session has `prompts`, `queue`, `active`, `live` (the unfinished prompts) and `mark`.
#
# Here is another invariant that sounds just as plausible: *prompts start in the order in which they were accepted.*
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
# It does not: B is accepted after A but *enters* before it, because loading times vary. When an invariant is violated
# there are always two suspects, **the protocol and the invariant**. Here the invariant is too strong: the protocol
# never guaranteed it (see “What is not guaranteed” in specs/protocol.md). It guarantees only the order *in the queue*.
#
# **Your turn**: weaken `in_order` until it holds, even with three prompts. Which word has to go? (End the cell with
# `wrong` then: if the invariant holds, there is no violation to show.)
#
# <details><summary>One way</summary>
#
# `"accepted"`. If it compares only queued prompts, it holds. This project calls that property **fifo**: no prompt
# starts ahead of an earlier prompt that is *queued*.
#
# </details>

# %% [markdown]
# ## Break it on purpose
#
# Now the other suspect. The three `enter` rows of the table check the mark first, and then whether the session is busy.
# Suppose that a well-meaning refactoring swaps the checks: *if the session is busy, queue the prompt; check the mark
# only if the session is idle.*
#
# **Predict**: which guarantee does this violate? And how many steps does the shortest counterexample have?

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
# The explorer keeps a shortest trace for each violated property. A good way to read one is *backwards*: what is wrong
# in the last step? Why was that possible? Which earlier step caused it?

# %% tags=["picture"]
counterexample = broken.violations["no-lost-cancel"]
counterexample

# %% [markdown]
# <details><summary>Backwards</summary>
#
# In the last step B starts, and the dashed line crosses B: a cancel covers it, so it must not start. It could start
# because it was *queued*, and a queued prompt starts without another check of the mark. It was queued because the
# session was busy when it entered, and the refactored row did not check the mark.
#
# (It is no mistake that A ends `end_turn`, although the cancel covers it too. A was *running*: it is asked to stop, and
# may finish before the request arrives.)
#
# And why did the cancel not drop B from the queue? Because B was not queued yet. It was accepted, in the window of
# part 1.
#
# </details>

# %% [markdown]
# ## Hypothesis, and how it shrinks
#
# Exhaustive exploration works for small bounds. For larger systems there is random testing: take random steps for a
# while and check whether a property is violated. Random failures are long and full of irrelevant steps. **Hypothesis**
# removes them: once it has a failure, it tries smaller and smaller variants, as long as they still fail.
#
# Our test turns a list of actions into a walk: it takes each action if it is enabled, and skips it otherwise. We also
# keep every failing walk, to see how they get shorter.

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
# The first random failure:

# %% tags=["picture", "wide"]
failures[0]

# %% [markdown]
# **Predict**: how many steps will the last failure have? More than the six of the explorer, as many, or fewer?

# %% tags=["picture", "reveal"]
from IPython.display import display

from cancelmark.views.notebook import columns_picture

lengths = [len(trace) for trace in failures]
display(columns_picture(lengths, "failing walk", "steps"))
failures[-1]

# %% [markdown]
# Each column is one failing walk that Hypothesis kept while shrinking. It removes and simplifies steps as long as the
# test still fails. The remaining steps are the relevant ones.
#
# It usually ends with *four* steps. (If yours has six: Hypothesis stops when removing one more step no longer fails.)
# How can that be shorter than a shortest counterexample? The explorer's six steps were the shortest *within its
# bounds*, and those allowed no crash. With one crash, it finds an equally short trace:

# %%
wider = explore(tidy, Bounds(prompts=1, cancels=1, crashes=1))
len(wider.violations["no-lost-cancel"])

# %% [markdown]
# (It is the same bug. A server that recovers lets all prompts enter before it starts any, so during recovery the
# session counts as busy. The refactored row queues A without checking the mark.)
#
# The explorer can report that *no counterexample exists* within its bounds. Hypothesis can only report that it *found
# none*, but it has no bounds and needs only a program to run. They have different strengths, and this project uses
# both.

# %% [markdown]
# ## The oracle
#
# To check a random history of a real server, whose internals we cannot see, we need something that knows what is
# *allowed*. If it were as complicated as the server, we would only compare one set of bugs with another. The **oracle**
# of this project has little more than a hundred lines and shares no code with the model. From the observations of
# clients it derives which outcomes each prompt can have.
#
# One thing makes that difficult. A client knows when its call *started* and when it *returned*. The call took effect at
# some unknown time in between. So a history consists of **spans**.
#
# A is accepted in a call that lasts from 0 to 2. A cancel lasts from 1 to 3. A has not started. **Predict**: can A end
# `canceled`? Can A be answered (`start`, then `end_turn`)?

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
# Both! The calls overlap. If the acceptance came first, the cancel covers A; if the cancel came first, it does not. The
# client cannot know, so the oracle must allow both. (`error` means that A could not start; `folded` is the outcome of a
# prompt that was folded into another turn.)
#
# Now let the cancel start at 2.5, after the acceptance has returned:

# %%
later = Call(2.5, 3, "cancel")
print("A, not started, may end:", *sorted(may_end(never_started, [later])))
print("if A starts at 4:", *judge([started_at_4], [later], complete=False))

# %% [markdown]
# Now the order is certain, and only `canceled` is possible. This oracle never complains about a history that may have
# been correct. It is the referee of part 1.
#
# ## The machine
#
# The third formulation is the code that runs. At run time each prompt is a state machine (of the library
# `transitions`), built from the *same rows* as the explorer's tables and the diagram. An illegal trigger raises an
# exception and changes nothing:

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
# So there are three: oracle, model, machine. The oracle is *simple enough to trust*, the model is *complete*, and the
# machine is *what runs*. Each is tested against the others. Model and machine are built from the same rows, so both
# would have the same mistake in a row. That is why the oracle shares nothing with them.

# %% [markdown]
# ## Exercises: six hidden bugs
#
# Each of six protocols has one change. You get them by number: `exercise(1)` to `exercise(6)`. When you think that you
# have found a change, pass a trace to `show_bug`. The trace must show something that this protocol does and the
# reference does not.
#
# Try to *describe the change in one sentence* before you call `show_bug`. The solutions are in the next notebook; hints
# are below. Here is an example, with the bug that you already know:

# %% tags=["picture"]
from cancelmark.views.course.exercises import exercise, show_bug

suspect = exercise(2)
search = explore(suspect, Bounds(prompts=2, cancels=1))
search

# %% tags=["picture"]
show_bug(2, search.violations["no-lost-cancel"])

# %% [markdown]
# **1.** Two prompts and a cancel are enough. Read the counterexample. Where is the mark, and where should it be?
#
# **3.** No cancel is needed. A prompt waits forever: what is it waiting for?
#
# **4.** With two prompts and a cancel, everything holds! What else can happen to a server?
#
# **5.** With two prompts everything holds, however many crashes there are. How many prompts does it take to form a
# *queue*?
#
# **6.** All properties hold, whatever the bounds. And yet there is a bug. What does no property check?
#
# <details><summary>Hint for 4</summary>
#
# `Bounds(prompts=1, cancels=1, crashes=1)`. What has to survive a crash?
#
# </details>
#
# <details><summary>Hint for 6</summary>
#
# B is sent while A is being answered, and *folds* into A's turn. What does the author of B expect of the answer? Replay
# it:
# `from cancelmark.model.trace import replay`, then `replay(exercise(6), ["accept A", "enter A", …, "step A"])`, and the
# same with `REFERENCE`. The effects of a step are in `trace.steps[-1].effects`, and a property can check
# `step.after.prompts` and `step.effects`.
#
# </details>

# %%
# Your turn: pick a number, choose bounds, explore, read the counterexample, and submit your trace.
