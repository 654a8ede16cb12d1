"""Generates specs/proof.md: the invariant, its consequences, and an example of a failed proof. Needs z3-solver."""

from cancelmark.model.family_properties import EVERY_PROPERTY
from cancelmark.model.proof.actions import ACTIONS
from cancelmark.model.proof.invariant import CONSEQUENCES, GUARANTEES, INVARIANT, REMARKS, UNPROVED
from cancelmark.model.proof.prover import Obligation, Prover
from cancelmark.model.proof.steps import STEPS
from cancelmark.views.pages.tables import table

PAGE = """\
# What is proved, claim by claim

`cancelmark prove` proves all of this for any number of prompts, cancels, sessions and crashes, and for every choice of
features, in {obligations} proof obligations. [formal.md](formal.md) explains the method. The formulas of these claims
are in `model/proof/invariant.py` and `model/proof/steps.py`. A *canceling call* is a cancel, close, revoke or stop, or
the entry of an interrupt. A call *targets* the prompts that it is meant for.

## The invariant

Each conjunct holds initially. If all of them hold before one of the {actions} actions, then all of them hold after it.

{invariant}
## Step claims

If the invariant holds before an action, then the step satisfies each of these:

{steps}
## Consequences

{consequences}
## The guarantees

Each guarantee follows from the claims in its row, once the whole invariant is proved.

{guarantees}
{remarks}
Not proved:

{unproved}
## An example of a failed proof

Without `{without}` the rest of the invariant is still inductive. But it allows a state in which a prompt is queued in
an idle session, and then a later prompt can overtake it. The solver finds that state and the step that violates the
claim (`cancelmark prove --without {without}`):

```
{counterexample}```

The state in a counterexample to induction satisfies the invariant, but the protocol need not be able to reach it. This
one is unreachable, and the omitted conjunct is what excludes it.
"""

WITHOUT = "queue-has-a-turn"


def proof_page() -> str:
    claims = [table(("claim", "statement"), ((f"**{c.name}**", c.sentence) for c in chosen))
              for chosen in (INVARIANT, STEPS, CONSEQUENCES)]
    [overtaken] = [claim for claim in STEPS if claim.name == "first-comes-first"]
    [enter] = [action for action in ACTIONS if action.name == "enter"]
    broken = Prover(invariant=[c for c in INVARIANT if c.name != WITHOUT]).judge(Obligation(overtaken, enter))
    assert broken.counterexample, f"the proof succeeds without {WITHOUT}, so the page needs another example"
    return PAGE.format(
        obligations=len(Prover().obligations()), actions=len(ACTIONS),
        invariant=claims[0], steps=claims[1], consequences=claims[2], guarantees=table(
            ("guarantee", "statement", "claims"),
            ((f"**{p.id}**", p.sentence, ", ".join(GUARANTEES[p.id]))
             for p in EVERY_PROPERTY)),
        remarks="".join(f"- **{id}**: {remark}\n" for id, remark in REMARKS.items()),
        unproved="".join(f"- **{id}**: {reason}.\n" for id, reason in UNPROVED.items()),
        without=WITHOUT, counterexample=broken.counterexample.text)
