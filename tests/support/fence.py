"""The fence of a cluster, proved for any number of nodes, claims, deaths and lost answers.

The core of specs/cluster.md without prompts: who owns the session, in which epoch, and what each node takes for its
own. The claims are inductive: they hold at the start, and no action leads out of them. A node that starts again is
another node, since it has another id.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import z3

Node = z3.DeclareSort("Node")
NOBODY = z3.Const("nobody", Node)
N, M = z3.Consts("n m", Node)


@dataclass(frozen=True)
class Fence:
    """A state: the row's epoch, owner and dead nodes, and what each node holds, in which epoch."""

    epoch: z3.ArithRef
    owner: z3.ExprRef
    dead: z3.FuncDeclRef
    holds: z3.FuncDeclRef
    at: z3.FuncDeclRef

    @classmethod
    def named(cls, name: str) -> "Fence":
        return cls(z3.Int(f"epoch{name}"), z3.Const(f"owner{name}", Node),
                   z3.Function(f"dead{name}", Node, z3.BoolSort()), z3.Function(f"holds{name}", Node, z3.BoolSort()),
                   z3.Function(f"at{name}", Node, z3.IntSort()))


# --- what the database compares, which a mistake leaves out

@dataclass(frozen=True)
class Comparisons:
    raises_epoch: bool = True
    compares_death: bool = True
    compares_owner: bool = True  # whoever reads the row is its owner only if the row says so
    takes_back: bool = False


DESIGN = Comparisons()


# --- actions: each a relation between two states and a node

def same_row(s: Fence, t: Fence) -> z3.BoolRef:
    return z3.And(t.epoch == s.epoch, t.owner == s.owner)


def same_dead(s: Fence, t: Fence) -> z3.BoolRef:
    return z3.ForAll([N], t.dead(N) == s.dead(N))


def others_keep(s: Fence, t: Fence, node: z3.ExprRef) -> z3.BoolRef:
    """What nodes other than this one hold."""
    return z3.ForAll([N], z3.Implies(node != N, z3.And(t.holds(N) == s.holds(N), t.at(N) == s.at(N))))


def keeps(s: Fence, t: Fence, node: z3.ExprRef) -> z3.BoolRef:
    return z3.And(t.holds(node) == s.holds(node), t.at(node) == s.at(node))


def claim(s: Fence, t: Fence, node: z3.ExprRef, compares: Comparisons) -> z3.BoolRef:
    """The node becomes the owner; it learns of it now, or later if the answer is lost. A step after which there is
    nothing to do gives the session up at once."""
    free = z3.Or(s.owner == NOBODY, s.dead(s.owner)) if compares.compares_death else z3.BoolVal(True)
    told = z3.And(t.holds(node), t.at(node) == t.epoch)
    return z3.And(free, t.epoch == s.epoch + int(compares.raises_epoch), z3.Or(t.owner == node, t.owner == NOBODY),
                  same_dead(s, t), others_keep(s, t, node), z3.Or(told, keeps(s, t, node), z3.Not(t.holds(node))))


def read(s: Fence, t: Fence, node: z3.ExprRef, compares: Comparisons) -> z3.BoolRef:
    """The node reads the row: it is the owner in this epoch, or it holds nothing."""
    mine = s.owner == node if compares.compares_owner else z3.BoolVal(True)
    return z3.And(same_row(s, t), same_dead(s, t), others_keep(s, t, node),
                  z3.If(mine, z3.And(t.holds(node), t.at(node) == s.epoch), z3.Not(t.holds(node))))


def release(s: Fence, t: Fence, node: z3.ExprRef, compares: Comparisons) -> z3.BoolRef:
    """The session has no owner any more, as a step after which there is nothing to do leaves it, whoever takes it."""
    return z3.And(t.epoch == s.epoch, t.owner == NOBODY, same_dead(s, t), others_keep(s, t, node),
                  z3.Or(keeps(s, t, node), z3.Not(t.holds(node))))


def drop(s: Fence, t: Fence, node: z3.ExprRef, compares: Comparisons) -> z3.BoolRef:
    """The node is killed, learns that it is dead, or lets go."""
    return z3.And(same_row(s, t), same_dead(s, t), others_keep(s, t, node), z3.Not(t.holds(node)))


def die(s: Fence, t: Fence, node: z3.ExprRef, compares: Comparisons) -> z3.BoolRef:
    """The node is marked dead, and may live on: then it is a zombie."""
    return z3.And(same_row(s, t), t.dead(node), z3.ForAll([N], z3.Implies(node != N, t.dead(N) == s.dead(N))),
                  others_keep(s, t, node), keeps(s, t, node))


def stay(s: Fence, t: Fence, node: z3.ExprRef, compares: Comparisons) -> z3.BoolRef:
    """Any other step: a call of a client, a turn's message or end. Nobody's ownership changes."""
    return z3.And(same_row(s, t), same_dead(s, t), others_keep(s, t, node), keeps(s, t, node))


def take_back(s: Fence, t: Fence, node: z3.ExprRef, compares: Comparisons) -> z3.BoolRef:
    """A mistake: a beat writes the node into its session as the owner."""
    return z3.And(t.epoch == s.epoch, t.owner == node, same_dead(s, t), others_keep(s, t, node), keeps(s, t, node))


ACTIONS: Mapping[str, Callable[[Fence, Fence, z3.ExprRef, Comparisons], z3.BoolRef]] = {
    "claim": claim, "read": read, "release": release, "drop": drop, "die": die, "stay": stay}


# --- what always holds

def not_ahead(s: Fence) -> z3.BoolRef:
    return z3.ForAll([N], z3.Implies(s.holds(N), s.at(N) <= s.epoch))


def current_is_owner(s: Fence) -> z3.BoolRef:
    current = z3.And(s.holds(N), s.at(N) == s.epoch)
    return z3.ForAll([N], z3.Implies(current, z3.Or(s.owner == N, s.owner == NOBODY)))


def one_epoch_each(s: Fence) -> z3.BoolRef:
    return z3.ForAll([N, M], z3.Implies(z3.And(N != M, s.holds(N), s.holds(M)), s.at(N) != s.at(M)))


def nobody_is_no_node(s: Fence) -> z3.BoolRef:
    return z3.Not(s.holds(NOBODY))


INVARIANT: Mapping[str, tuple[str, Callable[[Fence], z3.BoolRef]]] = {
    "not-ahead": ("Nobody holds a session in an epoch that is still to come.", not_ahead),
    "current-is-owner": ("Whoever holds a session in its current epoch is its owner, unless it has none.",
                         current_is_owner),
    "one-epoch-each": ("No two nodes hold a session in the same epoch: at most one turn counts.", one_epoch_each),
    "nobody": ("Nobody is no node.", nobody_is_no_node),
}


def invariant(s: Fence) -> z3.BoolRef:
    return z3.And(*(holds(s) for _, holds in INVARIANT.values()))


def may_write(s: Fence, node: z3.ExprRef) -> z3.BoolRef:
    """What the database lets an owner write, and its turn say."""
    return z3.And(s.holds(node), s.at(node) == s.epoch, s.owner == node)


def alone(s: Fence, node: z3.ExprRef) -> z3.BoolRef:
    """That nobody else holds the session in its current epoch."""
    return z3.ForAll([N], z3.Implies(node != N, z3.Not(z3.And(s.holds(N), s.at(N) == s.epoch))))


@dataclass(frozen=True)
class Obligation:
    """One thing to prove: it holds unless its denial can be satisfied."""

    name: str
    denial: z3.BoolRef

    def prove(self) -> bool:
        solver = z3.Solver()
        solver.set("timeout", 60_000)
        solver.add(self.denial)
        answer = solver.check()
        if answer == z3.unknown:
            raise TimeoutError(f"{self.name}: no answer within a minute")
        return bool(answer == z3.unsat)


def obligations(compares: Comparisons = DESIGN) -> list[Obligation]:
    """The start, every action against every claim, and that what is written is of the only turn that counts."""
    s, t, node = Fence.named(""), Fence.named("_after"), z3.Const("node", Node)
    start = z3.And(s.epoch == 0, s.owner == NOBODY, z3.ForAll([N], z3.Not(s.holds(N))))
    made = [Obligation(f"start: {name}", z3.And(start, z3.Not(holds(s)))) for name, (_, holds) in INVARIANT.items()]
    actions = {**ACTIONS, **({"take back": take_back} if compares.takes_back else {})}
    for action, relation in actions.items():
        step = z3.And(invariant(s), node != NOBODY, relation(s, t, node, compares))
        made += [Obligation(f"{action}: {name}", z3.And(step, z3.Not(holds(t))))
                 for name, (_, holds) in INVARIANT.items()]
    written = z3.And(invariant(s), node != NOBODY, may_write(s, node), z3.Not(alone(s, node)))
    return [*made, Obligation("what is written is of the only turn that counts", written)]


MISTAKES: Mapping[str, Comparisons] = {  # by the flaw of the cluster's model
    "epoch-kept": replace(DESIGN, raises_epoch=False),
    "renew-takes-back": replace(DESIGN, takes_back=True),
    "renew-any-lease": replace(DESIGN, compares_owner=False),
}
