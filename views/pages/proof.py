"""The proof as a page: the invariant, what follows from it, and what a broken one looks like. Needs z3-solver."""

from cancelmark.model.family_properties import ALL_PROPERTIES
from cancelmark.model.proof.actions import ACTIONS
from cancelmark.model.proof.invariant import CONSEQUENCES, GUARANTEES, INVARIANT, REMARKS, UNPROVED
from cancelmark.model.proof.prover import Obligation, Prover
from cancelmark.model.proof.steps import STEPS

from .tables import table

PAGE = """\
# What is proved, sentence by sentence

`cancelmark prove` shows all of this for any number of prompts, cancels, sessions and crashes, and for every choice of
features, in {obligations} questions to a solver. [formal.md](formal.md) says what that means. The same sentences are
formulas in `model/proof/invariant.py` and `model/proof/steps.py`. A *call that cancels* is a cancel, close, revoke or
stop, or the entry of an interrupt.

## The invariant

Each holds at the start, and if all hold before an action then all hold after it, whichever of the {actions} actions it
is.

{invariant}
## Every step

If the invariant holds before an action, then of the action:

{steps}
## What follows

{consequences}
## The guarantees

A guarantee is the claims beside it, once the whole invariant is shown.

{guarantees}
{remarks}
Not proved:

{unproved}
## What it looks like when it breaks

Without `{without}` the rest of the invariant is still inductive, but it allows a state in which a prompt
waits in the queue of an idle session, and then nothing keeps a later one from overtaking it. The solver finds that
state and the step out of it (`cancelmark prove --without {without}`):

```
{counterexample}```

A state in a counterexample to induction is one that the invariant allows. It need not be one that the protocol can
reach: this one is not, and the conjunct that was left out is what says so.
"""

WITHOUT = "queue-has-a-turn"


def proof_page() -> str:
    claims = [table(("claim", "what it says"), ((f"**{c.name}**", c.sentence) for c in chosen))
              for chosen in (INVARIANT, STEPS, CONSEQUENCES)]
    [overtaken] = [claim for claim in STEPS if claim.name == "first-comes-first"]
    [enter] = [action for action in ACTIONS if action.name == "enter"]
    broken = Prover(invariant=[c for c in INVARIANT if c.name != WITHOUT]).judge(Obligation(overtaken, enter))
    assert broken.counterexample, "a conjunct that is needed is not"
    return PAGE.format(
        obligations=len(Prover().obligations()), actions=len(ACTIONS),
        invariant=claims[0], steps=claims[1], consequences=claims[2], guarantees=table(
            ("guarantee", "what it says", "claims"),
            ((f"**{p.id}**", p.sentence, ", ".join(GUARANTEES[p.id]))
             for p in ALL_PROPERTIES)),
        remarks="".join(f"- **{id}**: {remark}\n" for id, remark in REMARKS.items()),
        unproved="".join(f"- **{id}**: {reason}.\n" for id, reason in UNPROVED.items()),
        without=WITHOUT, counterexample=broken.counterexample.text)
