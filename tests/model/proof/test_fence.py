"""The fence holds for any number of nodes; and what is proved is what the cluster's model does."""

import os
from dataclasses import replace

import pytest

from cancelmark.model.cluster.behaviour import ClusterBehaviour
from cancelmark.model.cluster.budget import Budget
from cancelmark.model.cluster.flaws import FLAWS
from cancelmark.model.cluster.rules import DESIGN as RULES
from cancelmark.model.cluster.rules import Rules
from cancelmark.model.cluster.state import Cluster, Id, Status

if os.environ.get("CI") != "true":
    pytest.importorskip("z3", reason="z3-solver is not installed: pip install 'cancelmark[prove]'")

import z3
from support.budget import long
from support.fence import (
    ACTIONS,
    DESIGN,
    MISTAKES,
    NOBODY,
    Comparisons,
    Fence,
    N,
    Node,
    obligations,
)

Told = tuple[int, Id | None, frozenset[Id], frozenset[tuple[Id, int]]]  # epoch, owner, the dead, who holds since when


def test_the_fence_is_proved() -> None:
    assert [o.name for o in obligations() if not o.prove()] == []


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_not_proved(mistake: str) -> None:
    assert mistake in {flaw.name for flaw in FLAWS}
    assert not all(o.prove() for o in obligations(MISTAKES[mistake]))


def test_the_fence_needs_no_clock() -> None:
    """A claim from an owner that lives costs a needless interruption. No second turn counts."""
    assert all(o.prove() for o in obligations(replace(DESIGN, compares_death=False)))


def tell(cluster: Cluster) -> Told:
    row = cluster.row
    holding = frozenset((cluster.id_of(i), node.hold.epoch) for i, node in enumerate(cluster.nodes)
                        if node.hold and node.status is not Status.DOWN)
    return row.epoch, row.owner, row.dead, holding


def steps_of(budget: Budget, rules: Rules = RULES) -> set[tuple[Told, Told]]:
    """Every step of the model, as far as the proof speaks of it. The proof lets the dead stay dead."""
    behaviour = ClusterBehaviour(budget, rules)
    seen, todo, steps = {behaviour.start}, [behaviour.start], set()
    for cluster in todo:
        for _, after in behaviour.onward(cluster):
            steps.add((tell(cluster), tell(after)))
            if (state := behaviour.normalize(after)) not in seen:
                seen.add(state)
                todo.append(state)
    return steps


def is_proved_step(before: Told, after: Told, compares: Comparisons = DESIGN) -> bool:
    """Whether one of the proof's actions leads from one to the other."""
    ids = sorted({id for _, owner, dead, holding in (before, after)
                  for id in ({owner} - {None}) | dead | {id for id, _ in holding} if id} | {Id(0), Id(1)})
    named = {id: z3.Const(str(id), Node) for id in ids}
    s, t = Fence.named(""), Fence.named("_after")
    solver = z3.Solver()
    solver.add(z3.Distinct(NOBODY, *named.values()),
               z3.ForAll([N], z3.Or(N == NOBODY, *(x == N for x in named.values()))))
    for fence, (epoch, owner, dead, holding) in ((s, before), (t, after)):
        since = dict(holding)
        solver.add(fence.epoch == epoch, fence.owner == (named[owner] if owner else NOBODY),
                   z3.Not(fence.holds(NOBODY)), z3.Not(fence.dead(NOBODY)))
        for id, node in named.items():
            solver.add(fence.dead(node) == (id in dead), fence.holds(node) == (id in since))
            solver.add(fence.at(node) == since.get(id, 0))
    solver.add(s.at(NOBODY) == t.at(NOBODY))
    solver.add(z3.Or(*(relation(s, t, node, compares) for relation in ACTIONS.values() for node in named.values())))
    return bool(solver.check() == z3.sat)


@pytest.mark.parametrize("budget", [
    Budget(1, expiries=1, doubts=1), long(Budget(1, cancels=1, expiries=1, doubts=1)),
    Budget(1, kills=1, restarts=1, drains=1), long(Budget(2, pauses=1)),
], ids=str)
def test_every_step_of_the_model_is_one_that_is_proved(budget: Budget) -> None:
    assert [step for step in steps_of(budget) if not is_proved_step(*step)] == []


@pytest.mark.parametrize("name", ["epoch-kept", "renew-takes-back"])
def test_a_flaw_of_the_model_takes_a_step_that_is_not_proved(name: str) -> None:
    flaw = next(flaw for flaw in FLAWS if flaw.name == name)
    assert not all(is_proved_step(*step) for step in steps_of(flaw.budget, flaw.rules))
