"""From quantifiers to instances: how a question about any number of prompts becomes one that a solver always answers.

A question is a set of premises that are to contradict each other. Existential ones are given a name (Skolem), and
universal ones are applied to the prompts and sessions that the question names, then to those that this names in turn,
for so many rounds. What is left has no quantifier. Instances follow from their premises: if the instances contradict
each other, so do the premises, and the claim is shown for every number of prompts. If they do not, nothing is shown.
"""

from itertools import product

import z3

from .logic import Term, Universe


def instances(universe: Universe, question: Term, rounds: int) -> Term:
    """The question with every universal premise replaced by its instances."""
    skolemized = result = z3.Tactic("snf")(question).as_expr()
    for _ in range(rounds):
        result = applied(skolemized, list(named(universe, result).values()))
    return result


def named(universe: Universe, term: Term) -> dict[int, Term]:
    """The prompts and sessions that a term names: its subterms of those sorts in which no variable occurs."""
    found: dict[int, Term] = {}
    open_terms: dict[int, bool] = {}  # whether a variable occurs, by term

    def is_open(t: Term) -> bool:
        key = t.get_id()
        if key not in open_terms:
            inner = [is_open(child) for child in ([t.body()] if z3.is_quantifier(t) else t.children())]
            open_terms[key] = z3.is_var(t) or z3.is_quantifier(t) or any(inner)
            if not open_terms[key] and t.sort() in (universe.prompt, universe.session):
                found[key] = t
        return open_terms[key]

    is_open(term)
    return found


def applied(term: Term, terms: list[Term]) -> Term:
    """The term with each universal quantifier replaced by its instances for these terms."""
    done: dict[int, tuple[Term, Term]] = {}  # by id, which is only sure to be a term's own while the term is kept

    def go(t: Term) -> Term:
        key = t.get_id()
        if key not in done:
            done[key] = (t, of_quantifier(t) if z3.is_quantifier(t) else rebuilt(t, [go(c) for c in t.children()]))
        return done[key][1]

    def of_quantifier(t: Term) -> Term:
        if not t.is_forall():
            raise ValueError(f"not in Skolem normal form: {t}")
        body = t.body()
        choices = [[x for x in terms if x.sort() == t.var_sort(i)] for i in range(t.num_vars())]
        found = [z3.substitute_vars(body, *reversed(chosen)) for chosen in product(*choices)]
        return z3.And(*(map(go, found) if has_quantifier(body) else found))

    return go(term)


def has_quantifier(term: Term) -> bool:
    return bool(z3.is_quantifier(term)) or any(map(has_quantifier, term.children()))


def rebuilt(term: Term, children: list[Term]) -> Term:
    if all(new.eq(old) for new, old in zip(children, term.children())):
        return term
    if z3.is_and(term):
        return z3.And(*children)
    return z3.Or(*children) if z3.is_or(term) else term.decl()(*children)
