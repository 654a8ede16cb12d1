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
# A short evening: twenty minutes. You have an idea for a better protocol, as everybody has. Tonight you write it down
# as a value, see it fail, mend it, and find out whether you may believe it.
#
# The idea: **a cancel should not throw away the queue.** Users who press Stop mean what is running, don't they? What
# they have queued should stay.

# %% [markdown]
# ## The idea as a value
#
# A protocol of this project is rows, guards and actions. `REFERENCE.changed` takes the reference and puts another
# function in place of one of its actions. An action is a few lines that speak to a `step`: here it asks the running
# turn to stop, and raises the mark. The reference goes on to drop the queue; we leave that out.

# %%
# %load_ext cancelmark.views.notebook
from cancelmark.model.actions import stop_active
from cancelmark.model.protocol import REFERENCE


def cancel_and_keep(step, arg):
    """The active prompt is asked to stop, and the mark rises. The queue stays."""
    stop_active(step)
    step.mark = max(step.mark, arg.seq)


KEEP = REFERENCE.changed("keep", cancel={"apply": cancel_and_keep})

# %% [markdown]
# ## See it fail
#
# **Predict**: A is running and B is queued. A cancel comes, and then A's turn ends. What becomes of B? And which of the
# guarantees is broken by that, if any?

# %% tags=["picture", "reveal"]
from cancelmark.model.trace import replay

replay(KEEP, ["accept A", "accept B", "enter A", "enter B", "cancel",
              "finish A end_turn"])

# %% [markdown]
# B starts. It was accepted before the cancel, so the mark covers it: it should have been reached. Our cancel says one
# thing (“everything accepted so far”) and does another. The explorer tries every order, and says the same:

# %% tags=["picture"]
from cancelmark.model.check.explore import explore
from cancelmark.model.properties import Bounds

failed = explore(KEEP, Bounds(prompts=2, cancels=1))
failed

# %% [markdown]
# ## Mend it
#
# Two ways out. Either the cancel drops the queue after all, or it does not cover what is queued. The second is our
# idea, so let us mean it: the mark rises only up to the prompts that have *not* been queued yet … but a mark is one
# number, and the queued ones lie in the middle.
#
# **Predict** what happens if the cancel leaves the mark alone as soon as anything is queued.

# %% tags=["picture", "reveal"]
def cancel_unless_queued(step, arg):
    """As before, but the mark stays where it is while anything is queued."""
    stop_active(step)
    if not step.queue:
        step.mark = max(step.mark, arg.seq)


SECOND = REFERENCE.changed("second try", cancel={"apply": cancel_unless_queued})
second = explore(SECOND, Bounds(prompts=3, cancels=1))
min(second.violations.values(), key=len)

# %% [markdown]
# Worse: the running turn is asked to stop and the mark does not cover it, so it cannot end `canceled`; and whoever was
# accepted and not yet queued is not reached at all. Half a cancel is no cancel.
#
# What users want is another call, with another promise: *stop this one turn, and go on with the queue*. To say that
# without a lie, the call must name whom it stops. A cancel is not that call. So we mend the cancel in the honest way,
# and look once more. **Predict**: does it hold now?

# %% tags=["picture", "reveal"]
from cancelmark.model.lifecycle import Trigger


def cancel_and_drop(step, arg):
    """The running turn is asked to stop, the mark rises, and the queue goes."""
    stop_active(step)
    step.mark = max(step.mark, arg.seq)
    for prompt in list(step.queue):
        step.fire(prompt, Trigger.DROP)


MENDED = REFERENCE.changed("mended", cancel={"apply": cancel_and_drop})
mended = explore(MENDED, Bounds(prompts=3, cancels=2, clears=1, crashes=1))
mended

# %% [markdown]
# ## May we believe it?
#
# It holds within the bounds. For more than the bounds there is the proof of the second evening, but that speaks about
# the reference. So ask whether the two are the same protocol: walk through both side by side, and look for a call that
# they answer differently.

# %% tags=["picture"]
from cancelmark.model.check.comparison import compare
from cancelmark.views.notebook import table


def differences(protocol):
    found = compare(REFERENCE, protocol).differences.values()
    return [(d.call, d.number) for d in found] or [("none", "–")]


table("Where our protocols depart from the reference",
      ("protocol", "call", "at step"),
      [(p.name, call, step) for p in (KEEP, SECOND, MENDED)
       for call, step in differences(p)])

# %% [markdown]
# `mended` does what the reference does, wherever both were walked: the proof speaks for it too. The other two depart at
# the cancel.
#
# Now put your own idea in place of ours. In a file, it can be checked, drawn, played and reviewed, as a page beside the
# reference:
#
#     cancelmark check --protocol idea.py:MINE --prompts 2 --cancels 1
#     cancelmark play --protocol idea.py:MINE
#     cancelmark review --protocol idea.py:MINE -o idea.html
