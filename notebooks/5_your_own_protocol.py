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
# # 5. Your own protocol
#
# This part is short: twenty minutes. Suppose that you have an idea for a better protocol. You write it as a value, see
# it fail, fix it, and find out whether you can trust it.
#
# The idea: **a cancel should not drop the queue.** Users who press Stop mean the running prompt, don't they? The
# prompts that they have queued should stay.

# %% [markdown]
# ## The idea as a value
#
# In this project a protocol consists of rows, guards and actions. `REFERENCE.changed` copies the reference and replaces
# the function of one of its actions. An action is a short function on a `step`: this one asks the running turn to stop
# and raises the mark. The reference also drops the queue; we leave that out.

# %%
# %load_ext cancelmark.views.notebook
from cancelmark.model.actions import stop_active
from cancelmark.model.protocol import REFERENCE


def cancel_and_keep(step, arg):
    """Asks the active prompt to stop and raises the mark. Keeps the queue."""
    stop_active(step)
    step.mark = max(step.mark, arg.seq)


KEEP = REFERENCE.changed("keep", cancel={"apply": cancel_and_keep})

# %% [markdown]
# ## See it fail
#
# **Predict**: A is running and B is queued. A cancel arrives, and then A's turn ends. What happens to B? And which of
# the guarantees does that violate, if any?

# %% tags=["picture", "reveal"]
from cancelmark.model.trace import replay

replay(KEEP, ["accept A", "accept B", "enter A", "enter B", "cancel",
              "finish A end_turn"])

# %% [markdown]
# B starts. It was accepted before the cancel, so the mark covers it, and it should not have started. Our cancel
# promises one thing (“cancel every prompt accepted so far”) and does another. The explorer tries every order, and
# agrees:

# %% tags=["picture"]
from cancelmark.model.check.explore import explore
from cancelmark.model.properties import Bounds

failed = explore(KEEP, Bounds(prompts=2, cancels=1))
failed

# %% [markdown]
# ## Fix it
#
# There are two options. Either the cancel drops the queue after all, or it does not cover the queued prompts. The
# second is our idea, so let us try it: the mark should cover only prompts that are *not* queued … but a mark is one
# number, and the queued prompts lie in the middle.
#
# **Predict** what happens if the cancel leaves the mark unchanged whenever a prompt is queued.

# %% tags=["picture", "reveal"]
def cancel_unless_queued(step, arg):
    """As before, but does not raise the mark while a prompt is queued."""
    stop_active(step)
    if not step.queue:
        step.mark = max(step.mark, arg.seq)


SECOND = REFERENCE.changed("second try", cancel={"apply": cancel_unless_queued})
second = explore(SECOND, Bounds(prompts=3, cancels=1))
min(second.violations.values(), key=len)

# %% [markdown]
# This is worse: the running turn is asked to stop, but the mark does not cover it, so it cannot end `canceled`. And a
# prompt that is accepted but not yet queued is not canceled at all. Half a cancel is no cancel.
#
# Users want a different call with a different guarantee: *stop this one turn, and continue with the queue*. To
# guarantee that, the call must name the prompt that it stops. A cancel is not that call. So we fix the cancel properly,
# and check again. **Predict**: does it hold now?

# %% tags=["picture", "reveal"]
from cancelmark.model.lifecycle import Trigger


def cancel_and_drop(step, arg):
    """Asks the running turn to stop, raises the mark, and drops the queue."""
    stop_active(step)
    step.mark = max(step.mark, arg.seq)
    for prompt in list(step.queue):
        step.fire(prompt, Trigger.DROP)


MENDED = REFERENCE.changed("mended", cancel={"apply": cancel_and_drop})
mended = explore(MENDED, Bounds(prompts=3, cancels=2, clears=1, crashes=1))
mended

# %% [markdown]
# ## Can we trust it?
#
# It holds within the bounds. Beyond the bounds there is the proof of part 2, but that is about the reference. So check
# whether the two protocols are equivalent: explore both in lockstep, and look for a call that behaves differently.

# %% tags=["picture"]
from cancelmark.model.check.comparison import compare
from cancelmark.views.notebook import table


def differences(protocol):
    found = compare(REFERENCE, protocol).differences.values()
    return [(d.call, d.number) for d in found] or [("none", "–")]


table("Where our protocols differ from the reference",
      ("protocol", "call", "at step"),
      [(p.name, call, step) for p in (KEEP, SECOND, MENDED)
       for call, step in differences(p)])

# %% [markdown]
# `mended` behaves like the reference wherever both were explored, so the proof applies to it too. The other two differ
# at the cancel.
#
# Now try your own idea instead of ours. If you put it into a file, you can check it, draw it, step through it, and
# generate a review page that compares it with the reference:
#
#     cancelmark check --protocol idea.py:MINE --prompts 2 --cancels 1
#     cancelmark play --protocol idea.py:MINE
#     cancelmark review --protocol idea.py:MINE -o idea.html
