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
# Six protocols, one change each. If you have not tried them yet, close this page: the exercises are in part 3.
#
# Each solution consists of a search, a counterexample, and one sentence. `show_bug` checks that the reference does not
# allow the counterexample.

# %%
# %load_ext cancelmark.views.notebook
from IPython.display import display

from cancelmark.model.check.explore import explore
from cancelmark.model.properties import Bounds, Property
from cancelmark.model.protocol import REFERENCE
from cancelmark.views.course.exercises import exercise, show_bug


def shortest(number, bounds, **more):
    """The shortest counterexample, and the property that it violates."""
    result = explore(exercise(number), bounds, **more)
    return min(result.violations.items(), key=lambda item: len(item[1]))


# %% [markdown]
# ## Exercise 1
#
# A prompt that was accepted *after* the only cancel is canceled: it is poisoned. After the cancel, the mark is one
# higher than any assigned seq, so it covers the next prompt that arrives.

# %% tags=["picture"]
name, trace = shortest(1, Bounds(prompts=2, cancels=1))
print("violates", name)
display(trace, show_bug(1, trace))

# %% [markdown]
# This is an off-by-one error. `mark := latest seq` and `mark := next seq` look alike, and a test that accepts a prompt,
# cancels, and checks *that* prompt does not notice the difference.

# %% [markdown]
# ## Exercise 2
#
# This is the refactored protocol of part 3: a prompt that enters a busy session is queued without a check of the mark.

# %% tags=["picture"]
name, trace = shortest(2, Bounds(prompts=2, cancels=1))
print("violates", name)
display(trace, show_bug(2, trace))

# %% [markdown]
# ## Exercise 3
#
# B is queued, A's turn ends with an error, and nothing starts B. No forbidden step happens here. Instead, something
# that was guaranteed does *not* happen. Such guarantees are called **liveness** properties, and they are checked when
# the system is quiescent. Users reported: “Queued prompts hang until another is sent.”

# %% tags=["picture"]
name, trace = shortest(3, Bounds(prompts=2))
print("violates", name)
display(trace, show_bug(3, trace))

# %% [markdown]
# In code, it is a `return` in the error path, above the lines that hand off to the next prompt. In the reference the
# handoff is part of `finish`, whatever the outcome, so that no path can forget it.

# %% [markdown]
# ## Exercise 4
#
# With two prompts and a cancel, everything holds. With a crash it does not: after the restart, the server has forgotten
# the cancel.

# %% tags=["picture"]
name, trace = shortest(4, Bounds(prompts=1, cancels=1, crashes=1))
print("violates", name)
display(trace, show_bug(4, trace))

# %% [markdown]
# The mark has to be **durable**: the server must persist it before it acknowledges the cancel. In part 4 we kill a real
# server to see whether its mark is durable.

# %% [markdown]
# ## Exercise 5
#
# With two prompts, one runs and one waits, and a queue of one is always in order. It takes three prompts.

# %% tags=["picture"]
name, trace = shortest(5, Bounds(prompts=3))
print("violates", name)
display(trace, show_bug(5, trace))

# %% [markdown]
# The last queued prompt starts first: a `pop()` instead of a `pop(0)`. A search cannot find what its bounds exclude.
# Bounds are assumptions, and “it holds” always means “within these bounds”.

# %% [markdown]
# ## Exercise 6
#
# All properties hold, whatever the bounds.

# %% tags=["picture"]
silent = explore(exercise(6), Bounds(prompts=2, cancels=2, clears=1, crashes=1))
silent

# %% [markdown]
# The properties determine which *outcomes* are correct, and here all outcomes are correct. A prompt without a run id
# may be folded into the running turn, and this one is, with the outcome `folded`. But its text is never passed to that
# turn! The answer arrives and ignores the question. So check the *purpose* of folding:

# %% tags=["picture"]
from cancelmark.model.effects import Fold
from cancelmark.model.lifecycle import Outcome


def hands_over(step):
    waiting = {p.seq for p in step.before.queue}
    folded = {p.seq for p in step.after.prompts if p.outcome is Outcome.FOLDED}
    handed = {e.seq for e in step.effects if isinstance(e, Fold)}
    return folded & waiting <= handed


heard = Property("heard", "A turn gets each folded prompt's text.", hands_over)
name, trace = shortest(6, Bounds(prompts=2), properties=[heard])
reference = explore(REFERENCE, Bounds(prompts=2), properties=[heard])
print("effects of the last step:", *trace.steps[-1].effects or ["none"])
print("the reference:", reference.verdict)
display(trace, show_bug(6, trace))

# %% [markdown]
# The diagram looks correct. B is *done: folded*, but the turn never received its text. A diagram does not show what is
# missing.
#
# Would the project have noticed? Yes: other checks compare *every* edge of the model with the runtime, including the
# effects of each step. But no property covers it, and you may well ask why not. A checker finds only violations of the
# properties that it is given. Writing the properties is your job.
