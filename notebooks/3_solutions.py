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
# # 3. Solutions
#
# Six protocols, one change each. If you have not tried them yet, close this: the third evening is where they are.
#
# Each solution is a search, a counterexample, and one sentence. `found` makes sure that the counterexample is
# something which the reference does not do.

# %%
from IPython.display import display

from cancelmark.model.exercises import exercise, found
from cancelmark.model.explore import explore
from cancelmark.model.properties import Bounds, Property
from cancelmark.model.session import REFERENCE


def shortest(number, bounds, **more):
    """The shortest counterexample of all, and the name of what it breaks."""
    result = explore(exercise(number), bounds, **more)
    return min(result.violations.items(), key=lambda item: len(item[1]))


# %% [markdown]
# ## Exercise 1
#
# A prompt is canceled that was accepted *after* the only cancel: poison. After the cancel the mark is one higher than
# any seq that was given out, so it waits for the next prompt to come along.

# %% tags=["picture"]
name, trace = shortest(1, Bounds(prompts=2, cancels=1))
print("breaks", name)
display(trace, found(1, trace))

# %% [markdown]
# An off-by-one. `mark := latest seq` and `mark := next seq` look alike, and a test that accepts a prompt, cancels,
# and looks at *that* prompt does not notice.

# %% [markdown]
# ## Exercise 2
#
# The tidy protocol of the third evening: who finds the session busy goes into the queue and is not asked about the
# mark.

# %% tags=["picture"]
name, trace = shortest(2, Bounds(prompts=2, cancels=1))
print("breaks", name)
display(trace, found(2, trace))

# %% [markdown]
# ## Exercise 3
#
# B waits in the queue, A's turn ends in an error, and nobody starts B. Nothing that is forbidden happens here.
# Something that was promised does *not* happen. Such promises are called **liveness**: they are judged when the
# system has come to rest. “Queued prompts hang until another is sent”, said the users.

# %% tags=["picture"]
name, trace = shortest(3, Bounds(prompts=2))
print("breaks", name)
display(trace, found(3, trace))

# %% [markdown]
# In code it is the `return` in the error path, above the lines that hand off to the next. The reference makes the
# handoff a part of `finish`, whatever the outcome, so that no path can forget it.

# %% [markdown]
# ## Exercise 4
#
# Within two prompts and a cancel everything holds. With a crash it does not: the server comes back and has forgotten
# that there was a cancel.

# %% tags=["picture"]
name, trace = shortest(4, Bounds(prompts=1, cancels=1, crashes=1))
print("breaks", name)
display(trace, found(4, trace))

# %% [markdown]
# The mark has to be **durable**: written down before the client who canceled is told so. Tomorrow we kill a real
# server to see whether ours is.

# %% [markdown]
# ## Exercise 5
#
# One session cancels, and the mark of the *other* one rises with it. Nobody is hurt yet, but whoever waits there will
# not begin.

# %% tags=["picture"]
name, trace = shortest(5, Bounds(prompts=2, cancels=1, sessions=2))
print("breaks", name)
display(trace, found(5, trace))

# %% [markdown]
# With one session in the bounds this cannot be seen. What a search cannot express it cannot find: bounds are
# assumptions.

# %% [markdown]
# ## Exercise 6
#
# All properties hold.

# %% tags=["picture"]
explore(exercise(6), Bounds(prompts=3, cancels=1, clears=1))

# %% [markdown]
# The properties say that nothing bad happens. `clear_queue` that does nothing at all does nothing bad. So ask for
# what it is *for*:

# %% tags=["picture"]
def clears(step):
    return step.call != "clear_queue" or not step.after.queue


cleared = Property("cleared", "After clear_queue the queue is empty.", clears)
name, trace = shortest(6, Bounds(prompts=2, clears=1), properties=[cleared])
reference = explore(REFERENCE, Bounds(prompts=2, clears=1), properties=[cleared])
print("the reference:", reference.verdict)
display(trace, found(6, trace))

# %% [markdown]
# Had nobody in the project noticed? Somebody had: other checks compare *every* edge of the model with the runtime,
# and the oracle knows that a prompt which a clear_queue has found in the queue must not start any more. But no
# property says it, and you may well ask why not. A checker finds what it was asked for. The asking is your job.
