"""Quantifier instantiation: turns a question about any number of prompts into one that a solver always decides.

A question to the solver is a set of premises that should be contradictory. Existential premises are Skolemized.
Universal premises are instantiated with the prompts, sessions and turns' questions that it names, then with those that
the instances name in turn, for a limited number of rounds. The result is quantifier-free. Instances follow from their
premises, so if the instances are contradictory, the premises are too, and the claim is proved for any number of
prompts. Otherwise nothing is proved.
"""

from collections.abc import Iterator
from itertools import product

import z3

from .logic import Term, Universe


def instances(universe: Universe, question: Term, rounds: int) -> Iterator[Term]:
    """The question with every universal premise replaced by its instances. Yields the result of each round, as long as
    a round names new terms."""
    skolemized = result = z3.Tactic("snf")(question).as_expr()
    before: set[int] = set()
    for _ in range(rounds):
        terms = named(universe, result)
        if before and terms.keys() == before:
            return
        before = set(terms)
        result = applied(skolemized, list(terms.values()))
        yield result


def named(universe: Universe, term: Term) -> dict[int, Term]:
    """The prompts, sessions and questions that a term names: its ground subterms of those sorts."""
    found: dict[int, Term] = {}
    _is_open(term, (universe.prompt, universe.session, universe.question), found, {})
    return found


def _is_open(term: Term, sorts: tuple[Term, ...], found: dict[int, Term], known: dict[int, bool]) -> bool:
    """Whether the term contains a variable. Ground terms of these sorts are added to `found`."""
    key = term.get_id()
    if key not in known:
        parts = [term.body()] if z3.is_quantifier(term) else term.children()
        inner = [_is_open(part, sorts, found, known) for part in parts]
        known[key] = z3.is_var(term) or z3.is_quantifier(term) or any(inner)
        if not known[key] and term.sort() in sorts:
            found[key] = term
    return known[key]


def applied(term: Term, terms: list[Term]) -> Term:
    """The term with each universal quantifier replaced by its instances for `terms`."""
    return _applied(term, terms, {})


# A cache by term id. It keeps the term alive too, because z3 reuses the id of a freed term.
# No function here is a recursive closure. That would be a reference cycle, which Python can free at any time and in any
# thread, and z3 must not be called from two threads.
Done = dict[int, tuple[Term, Term]]


def _applied(term: Term, terms: list[Term], done: Done) -> Term:
    key = term.get_id()
    if key not in done:
        if z3.is_quantifier(term):
            result = _instances_of(term, terms, done)
        elif not has_quantifier(term):
            result = term
        else:
            result = rebuilt(term, [_applied(child, terms, done) for child in term.children()])
        done[key] = (term, result)
    return done[key][1]


def _instances_of(quantifier: Term, terms: list[Term], done: Done) -> Term:
    if not quantifier.is_forall():
        raise ValueError(f"not in Skolem normal form: {quantifier}")
    body = quantifier.body()
    choices = [[t for t in terms if t.sort() == quantifier.var_sort(i)] for i in range(quantifier.num_vars())]
    found = [z3.substitute_vars(body, *reversed(chosen)) for chosen in product(*choices)]
    return z3.And(*([_applied(one, terms, done) for one in found] if has_quantifier(body) else found))


def has_quantifier(term: Term) -> bool:
    goal = z3.Goal()
    goal.add(term)
    return bool(z3.Probe("has-quantifiers")(goal))


def rebuilt(term: Term, children: list[Term]) -> Term:
    if all(new.eq(old) for new, old in zip(children, term.children())):
        return term
    if z3.is_and(term):
        return z3.And(*children)
    return z3.Or(*children) if z3.is_or(term) else term.decl()(*children)
