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
# Each solution is a search, a counterexample, and one sentence. `show_bug` makes sure that the counterexample is
# something which the reference does not do.

# %%
# %load_ext cancelmark.views.notebook
from IPython.display import display

from cancelmark.model.check.explore import explore
from cancelmark.model.properties import Bounds, Property
from cancelmark.model.protocol import REFERENCE
from cancelmark.views.course.exercises import exercise, show_bug


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
display(trace, show_bug(1, trace))

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
display(trace, show_bug(2, trace))

# %% [markdown]
# ## Exercise 3
#
# B waits in the queue, A's turn ends in an error, and nobody starts B. Nothing that is forbidden happens here.
# Something that was promised does *not* happen. Such promises are called **liveness**: they are judged when the
# system has come to rest. “Queued prompts hang until another is sent”, said the users.

# %% tags=["picture"]
name, trace = shortest(3, Bounds(prompts=2))
print("breaks", name)
display(trace, show_bug(3, trace))

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
display(trace, show_bug(4, trace))

# %% [markdown]
# The mark has to be **durable**: written down before the client who canceled is told so. Tomorrow we kill a real
# server to see whether ours is.

# %% [markdown]
# ## Exercise 5
#
# With two prompts one runs and one waits, and a queue of one is in any order you like. It takes three.

# %% tags=["picture"]
name, trace = shortest(5, Bounds(prompts=3))
print("breaks", name)
display(trace, show_bug(5, trace))

# %% [markdown]
# Who came last is served first: a `pop()` where a `pop(0)` was meant. What a search cannot express it cannot find.
# Bounds are assumptions, and “it holds” is always “within these bounds”.

# %% [markdown]
# ## Exercise 6
#
# All properties hold, whatever the bounds.

# %% tags=["picture"]
silent = explore(exercise(6), Bounds(prompts=2, cancels=2, clears=1, crashes=1))
silent

# %% [markdown]
# The properties say which *ends* are right, and here all ends are right. A prompt without a run id may be folded into
# the running turn, and so it is, and its end says `folded`. Only: nobody has handed its words to that turn! The answer
# comes, and passes over what was asked. So ask for what folding is *for*:

# %% tags=["picture"]
from cancelmark.model.effects import Fold
from cancelmark.model.lifecycle import Outcome


def hands_over(step):
    waiting = {p.seq for p in step.before.queue}
    folded = {p.seq for p in step.after.prompts if p.outcome is Outcome.FOLDED}
    handed = {e.seq for e in step.effects if isinstance(e, Fold)}
    return folded & waiting <= handed


heard = Property("heard", "The turn is handed what it takes in.", hands_over)
name, trace = shortest(6, Bounds(prompts=2), properties=[heard])
reference = explore(REFERENCE, Bounds(prompts=2), properties=[heard])
print("the last step asks for:", *trace.steps[-1].effects or ["nothing"])
print("the reference:", reference.verdict)
display(trace, show_bug(6, trace))

# %% [markdown]
# In the picture nothing is wrong. B is *done: folded*, says the model; the turn itself never got to read it. What is
# missing does not show.
#
# Had nobody in the project noticed? Somebody would have: other checks compare *every* edge of the model with the
# runtime, and what each step asks for is part of it. But no property says it, and you may well ask why not. A checker
# finds what it was asked for. The asking is your job.
