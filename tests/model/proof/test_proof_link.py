"""The proof speaks of the protocol that the explorer explores: on every reachable state they allow the same steps.

The solver's own terms are evaluated: each reachable state of the Python model is given to them as facts, and the guard,
the state after and the effects of every action are worked out from those. The terms are compiled for that. On every
fiftieth state the solver evaluates its terms itself, and must say the same.
"""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import pytest
from support.budget import DEEP, long, one_for_each

from cancelmark.model import effects as model
from cancelmark.model.actions import Reach
from cancelmark.model.ask import NUMBERS
from cancelmark.model.check.explore import Explorer
from cancelmark.model.family import Feature
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.observer import wish_of
from cancelmark.model.properties import Bounds
from cancelmark.model.protocol import REFERENCE, Protocol
from cancelmark.model.questions import Question
from cancelmark.model.server import Change, Server, changes
from cancelmark.model.variants.catalogue import VARIANTS

if os.environ.get("CI") != "true":
    pytest.importorskip("z3", reason="z3-solver is not installed: pip install 'cancelmark[prove]'")

import z3
from support.compiled_terms import Facts, compile_term
from support.seeded_ask_proof import ASK_BUGS
from support.seeded_proof import BUGS, ProofBug

from cancelmark.model.proof import logic
from cancelmark.model.proof.actions import ACTIONS, Action, Step
from cancelmark.model.proof.invariant import INVARIANT, at_rest
from cancelmark.model.proof.logic import Universe, View
from cancelmark.model.proof.steps import SYSTEM

# Bugs in what is not compared: the order of effects, and whose text an event carries. The last has a symbol of its own.
UNSEEN = ("the next turn starts before the end is published", "an end carries its neighbour's text",
          "a question is withdrawn after the end is published", "an answer goes to the question that is open now")

NONE = frozenset[Feature]()
BOUNDS = [
    (NONE, Bounds(2, cancels=1, clears=1, requeues=1)),
    long(NONE, Bounds(2, crashes=1, closes=1)),
    (NONE, Bounds(1, cancels=1, clears=1, requeues=1, crashes=1, closes=1, sessions=2)),
    long(NONE, Bounds(2, crashes=1, sessions=2)),
    *([(NONE, Bounds(3, cancels=1, clears=1, requeues=1)),
       (NONE, Bounds(2, cancels=2, clears=1, requeues=1, crashes=1, closes=1)),
       (NONE, Bounds(2, cancels=1, clears=1, crashes=1, closes=1, sessions=2))] if DEEP else []),
]

ASK = Feature.ASK
MOST_ASKS = len(NUMBERS)  # of one prompt
ALL = frozenset(Feature)
FAMILY_BOUNDS = [
    long(frozenset({Feature.REVOKE, Feature.STOP, Feature.HOLD}), Bounds(2, revokes=1, stops=1, holds=1)),
    (frozenset({Feature.NEXT, Feature.REPLACE}), Bounds(2, replaces=1, nexts=1)),
    long(frozenset({Feature.NEXT, Feature.REPLACE}), Bounds(2, requeues=1, replaces=1, nexts=1)),
    long(frozenset({Feature.HOLD, Feature.INTERRUPT, Feature.REJECT}), Bounds(2, holds=1, requeues=1)),
    long(frozenset({Feature.STOP, Feature.INTERRUPT}), Bounds(2, stops=1, crashes=1)),
    (ALL, Bounds(1, cancels=1, clears=1, requeues=1, crashes=1, closes=1, revokes=1, stops=1, holds=1, replaces=1,
                 nexts=1)),
    (ALL, Bounds(1, crashes=1, holds=1, sessions=2)),
    (frozenset({ASK}), Bounds(1, cancels=1, closes=1, requeues=1, crashes=1, asks=2)),
    long(frozenset({ASK}), Bounds(2, crashes=1, asks=1, sessions=2)),
    long(frozenset({ASK, Feature.INTERRUPT}), Bounds(2, cancels=1, requeues=1, asks=1)),
    long(frozenset({ASK, Feature.REVOKE, Feature.STOP, Feature.HOLD}), Bounds(1, revokes=1, stops=1, holds=1, asks=2)),
    *([(ALL, Bounds(2, crashes=1, revokes=1, stops=1, holds=1, replaces=1, nexts=1)),
       (ALL, Bounds(2, cancels=1, requeues=1, closes=1, stops=1, holds=1)),
       (frozenset({Feature.NEXT, Feature.INTERRUPT, Feature.HOLD}), Bounds(3, holds=1, nexts=1))] if DEEP else []),
]

# The values of each field of a prompt in the order in which both sides count them.
STATES = ["absent", *(s.value for s in State)]
OUTCOMES = ["none", *(o.value for o in Outcome)]
REACHES = [r.value for r in Reach]
ASKED = ("started", "stopped", "folded", "takes_in", "recorded", "published")
ASKS = {model.Start: "started", model.Stop: "stopped", model.Fold: "folded", model.Record: "recorded",
        model.End: "published"}
STATUSES = ["unasked", *(q.value for q in Question)]
OF_QUESTIONS = ("status", "owner", "called", "believed")  # what a state says of a question
TOLD = {model.Ask: 1, model.Withdraw: 8, model.Run: 16, model.Unsure: 32}  # and an answer: 2 if allowed, 4 if denied
TRAITS = ("revoked", "front", "version", "begun", "urgent")  # of a prompt that is not done
WISHES = ("place", "wanted", "ran")  # history: what the observer of the Python model keeps of such a prompt
FIELDS = ("seq", "home", "run_id", "state", "outcome", "reach", "ends", *TRAITS, *ASKED)
OF_PROMPTS = (*FIELDS[:-len(ASKED)], *WISHES, "heard")  # what a state says of a prompt
BASE = 256  # a digit is a byte
ASKED_ITSELF = 50  # the solver evaluates its own terms on one state of so many

# A step in digits: the action, the state after it (latest, closing, down, marks, holds), then each prompt's fields.
Digits = tuple[int, ...]
Evaluate = Callable[[Any], int]  # a term, in one state


def python_step(change: Change, prompts: int, asks: bool) -> Digits:
    after = change.after
    asked: dict[str, set[int]] = {name: set() for name in ASKED}
    for effect in change.effects:
        if name := ASKS.get(type(effect)):
            asked[name].add(effect.seq)
        if isinstance(effect, model.Fold):
            asked["takes_in"].add(effect.into)
    digits = [[a.name for a in ACTIONS].index(change.call.name), after.seq, after.closing, after.sessions[0].down,
              *(s.mark for s in after.sessions), *(s.held for s in after.sessions)]
    for p in after.prompts:
        digits += [p.seq, after.home(p.seq), p.run_id, STATES.index(p.state.value),
                   OUTCOMES.index(p.outcome.value if p.outcome else "none"), REACHES.index(p.reach.value), p.ends,
                   *(getattr(p, name) if p.state is not State.DONE else 0 for name in TRAITS),
                   *(p.seq in asked[name] for name in ASKED)]
    digits += [0] * len(FIELDS) * (prompts - after.seq)
    return (*map(int, digits), *digits_of_questions(change, prompts)) if asks else tuple(map(int, digits))


def digits_of_questions(change: Change, prompts: int) -> Iterator[int]:
    """The status of each question of a prompt that is not done, and what the step says about it."""
    known = {(p.seq, n): STATUSES.index(question.value) for p in change.after.prompts if p.state is not State.DONE
             for n, question in enumerate(p.asks, 1)}
    told: Counter[tuple[int, int]] = Counter()
    for e in change.effects:
        if isinstance(e, model.Answered):
            told[e.seq, e.ask] += 2 if e.answer == "allow" else 4
        elif isinstance(e, model.Ask | model.Withdraw | model.Run | model.Unsure):
            told[e.seq, e.ask] += TOLD[type(e)]
    for seq, n in itertools.product(range(1, prompts + 1), range(1, MOST_ASKS + 1)):
        yield known.get((seq, n), 0)
        yield told[seq, n]


class Solver:
    """All steps of the proof's protocol in a universe of known size, ready to be evaluated."""

    def __init__(
        self, bounds: Bounds, actions: Sequence[Action] = ACTIONS, features: frozenset[Feature] | None = frozenset(),
    ) -> None:
        self.actions, self.asks = actions, ASK in (features or ())
        self.chosen = [(has, z3.BoolVal(Feature(name) in features)) for name, has in logic.FEATURES._asdict().items()] \
            if features is not None else []  # None: of every protocol
        questions = bounds.prompts * MOST_ASKS if self.asks else 1
        self.universe = Universe(bounds.prompts, bounds.sessions, questions)
        self.view = View.free(self.universe)
        self.length = 4 + 2 * bounds.sessions + bounds.prompts * len(FIELDS) + 2 * questions * self.asks
        self.functions: dict[int, Callable[[Facts], Any]] = {}
        self.invariant = z3.And(*(claim.holds(self.universe, self.view) for claim in INVARIANT))

    @cached_property
    def steps(self) -> list[tuple[Any, Any, Action, int | None]]:
        """The guard of each step, its digits as one number, its action, and the prompt that it accepts or the question
        that it asks, if any."""
        found = []
        for number, action in enumerate(self.actions):
            for values in itertools.product(*map(self.values, action.parameters.values())):
                arguments = dict(zip(action.parameters, values))
                if arguments.get("mode", logic.QUEUE) is not logic.QUEUE and z3.is_true(arguments["named"]):
                    continue  # the Python model has no such variant
                step = action.step(self.universe, self.view, arguments)
                guard = z3.simplify(z3.substitute(step.guard, *self.chosen))
                if z3.is_false(guard):
                    continue
                code: Any = z3.IntVal(0)
                for digit in self.digits(number, step):
                    code = code * BASE + digit
                new = {"accept": (self.universe.prompts, "p"), "ask": (self.universe.questions, "x")}.get(action.name)
                made = new[0].index(arguments[new[1]]) if new else None
                if action.name == "ask" and made // MOST_ASKS != self.universe.prompts.index(arguments["p"]):
                    continue  # this question is another prompt's
                found.append((guard, z3.simplify(z3.substitute(code, *self.chosen)), action, made))
        return found

    def values(self, kind: str) -> list[Any]:
        prompts, sessions = self.universe.prompts, self.universe.sessions
        if kind == "first":
            return [lambda s, chosen=chosen: numbered(s, sessions, chosen)
                    for chosen in itertools.product(prompts, repeat=len(sessions))]
        return {"prompt": list(prompts), "session": list(sessions), "question": list(self.universe.questions),
                "yes": [z3.BoolVal(False), z3.BoolVal(True)],
                "outcome": members(logic.OUTCOME), "mode": [logic.QUEUE, logic.REJECT, logic.INTERRUPT]}[kind]

    def digits(self, action: int, step: Step) -> Iterator[Any]:
        after, seen = step.after, step.seen
        yield action
        yield after.latest
        yield from (z3.If(flag, 1, 0) for flag in (after.closing, after.down))
        yield from map(after.mark, self.universe.sessions)
        yield from (z3.If(after.held(s), 1, 0) for s in self.universe.sessions)
        for p in self.universe.prompts:
            fields = [after.seq(p), numbered(after.home(p), self.universe.sessions), z3.If(after.run_id(p), 1, 0),
                      numbered(after.state(p), members(logic.STATE)),
                      numbered(after.outcome(p), members(logic.OUTCOME)),
                      numbered(after.reach(p), members(logic.REACH)), after.ends(p),
                      *(z3.If(after.live(p), as_number(getattr(after, name)(p)), 0) for name in TRAITS),
                      *(z3.If(getattr(seen, name)(p), 1, 0) for name in ASKED[:-1]), seen.published(p)]
            yield from (z3.If(after.state(p) == logic.ABSENT, 0, field) for field in fields)
        for number, x in enumerate(self.universe.questions if self.asks else ()):
            p = self.universe.prompts[number // MOST_ASKS]
            status = numbered(after.status(x), members(logic.STATUS))
            yield z3.If(z3.And(after.live(p), after.owner(x) == p), status, 0)
            yield z3.Sum(*(z3.If(when, weight, 0) for when, weight in (
                (seen.opened(x), 1), (seen.answered(x) == logic.ALLOWED, 2), (seen.answered(x) == logic.DENIED, 4),
                (seen.withdrawn(x), 8), (seen.unsure(x), 32))), 16 * seen.tools(x))

    def facts(self, server: Server) -> Facts:
        """The state in the words of the terms. Of a prompt that is not accepted yet only what `given` says counts."""
        rows = []
        for p in server.prompts:
            wish = wish_of(p)
            rows.append((p.seq, server.home(p.seq), p.run_id, STATES.index(p.state.value),
                         OUTCOMES.index(p.outcome.value if p.outcome else "none"), REACHES.index(p.reach.value), p.ends,
                         *(getattr(p, name) for name in TRAITS), wish.place, wish.version, wish.ran, 0))
        absent = [(0,) * len(OF_PROMPTS)] * (len(self.universe.prompts) - server.seq)
        questions = [(0, x // MOST_ASKS, 0, False) for x in range(len(self.universe.questions))]
        for p in server.prompts:
            history = wish_of(p)
            for n, question in enumerate(p.asks):
                questions[(p.seq - 1) * MOST_ASKS + n] = (
                    STATUSES.index(question.value), p.seq - 1, STATUSES.index(history.asks[n].value),
                    n + 1 in history.told)
        return {
            "latest": server.seq, "closing": server.closing, "down": server.sessions[0].down, "wishes": BASE,
            "mark": [s.mark for s in server.sessions], "held": [s.held for s in server.sessions],
            "told": [s.wished_hold for s in server.sessions],
            **{str(has.decl().name()): z3.is_true(chosen) for has, chosen in self.chosen},
            **dict(zip(OF_PROMPTS, zip(*rows, *absent), strict=True)),
            **dict(zip(OF_QUESTIONS, zip(*questions), strict=True))}

    def compiled(self, server: Server) -> Evaluate:
        """Evaluates terms in that state, by their compiled forms."""
        facts = self.facts(server)

        def evaluate(term: Any) -> int:
            if term.get_id() not in self.functions:
                self.functions[term.get_id()] = compile_term(term)
            return int(self.functions[term.get_id()](facts))

        return evaluate

    def itself(self, server: Server) -> Evaluate:
        """Evaluates terms in that state, as the solver does."""
        known = self.given(self.facts(server))

        def evaluate(term: Any) -> int:
            value = known.eval(term, model_completion=True)
            return int(z3.is_true(value)) if z3.is_bool(value) else int(value.as_long())

        return evaluate

    def given(self, facts: Facts) -> z3.ModelRef:
        """The state as the solver knows it. Nothing is said of a prompt that is not accepted yet but that it is absent,
        and that nothing has happened to it."""
        v, solver = self.view, z3.Solver()
        solver.add(*(getattr(v, name) == facts[name] for name in ("latest", "closing", "down", "wishes")))
        solver.add(*(has == chosen for has, chosen in self.chosen))
        for i, s in enumerate(self.universe.sessions):
            solver.add(*(getattr(v, name)(s) == facts[name][i] for name in ("mark", "held", "told")))
        for i, p in enumerate(self.universe.prompts):
            said = OF_PROMPTS if i < facts["latest"] else ("state", "outcome", "reach", "ends")
            solver.add(*(self.fact(field, p, int(facts[field][i])) for field in said))
        for i, x in enumerate(self.universe.questions):
            solver.add(*(self.fact(field, x, int(facts[field][i])) for field in OF_QUESTIONS))
        assert solver.check() == z3.sat
        return solver.model()

    def fact(self, field: str, one: Any, value: int) -> Any:
        term = getattr(self.view, field)(one)
        if z3.is_bool(term):
            return term == bool(value)
        return term == (value if z3.is_int(term) else members(term.sort())[value])

    @cached_property
    def guards(self) -> Any:
        """All guards as the bits of one number: a question to the solver's model has its price."""
        return z3.simplify(z3.Sum(*(z3.If(guard, 1 << i, 0) for i, (guard, *_) in enumerate(self.steps))))

    def successors(self, server: Server, evaluate: Evaluate) -> Iterator[Digits]:
        open_guards = evaluate(self.guards)
        new = {"accept": {server.seq}, "ask": {(p.seq - 1) * MOST_ASKS + len(p.asks) for p in server.prompts}}
        for i, (_, code, action, made) in enumerate(self.steps):
            if open_guards >> i & 1 and (made is None or made in new[action.name]):
                yield tuple(evaluate(code).to_bytes(self.length))


def members(sort: Any) -> list[Any]:
    return [sort.constructor(i)() for i in range(sort.num_constructors())]


def as_number(term: Any) -> Any:
    return z3.If(term, 1, 0) if z3.is_bool(term) else term


def numbered(term: Any, values: Any, results: Any = range(BASE)) -> Any:
    """The result that belongs to the value that `term` has: its number, unless other results are given."""
    *others, (_, found) = zip(values, results)
    for value, result in others:
        found = z3.If(term == value, result, found)
    return found


def servers(bounds: Bounds, protocol: Protocol = REFERENCE) -> set[Server]:
    explorer = Explorer(protocol, bounds)
    explorer.search()
    return {explorer.decode(state) for state in explorer.parent}


def edges(server: Server, prompts: int, protocol: Protocol = REFERENCE) -> set[Digits]:
    asks = ASK in protocol.features
    return {python_step(c, prompts, asks) for c in changes(protocol, server)
            if c.after.seq <= prompts and all(len(p.asks) <= MOST_ASKS for p in c.after.prompts)}


@pytest.mark.parametrize(
    ("features", "bounds"), [*BOUNDS, *FAMILY_BOUNDS],
    ids=lambda of: str(of) if isinstance(of, Bounds) else ",".join(f.value for f in Feature if f in of) or "reference")
def test_the_steps_of_the_proof_are_the_edges_of_the_model(features: frozenset[Feature], bounds: Bounds) -> None:
    solver, protocol = Solver(bounds, features=features), Protocol("proved", features=features)
    for number, server in enumerate(servers(bounds, protocol)):
        known = edges(server, bounds.prompts, protocol)
        for evaluate in (solver.compiled(server), *([] if number % ASKED_ITSELF else [solver.itself(server)])):
            assert set(solver.successors(server, evaluate)) == known
            assert evaluate(solver.invariant), "the invariant holds wherever the model gets"


SEEN = [bug for bug in (*BUGS, *ASK_BUGS) if bug.name not in UNSEEN]


@pytest.mark.parametrize("bug", one_for_each(
    lambda bug: ["question" if bug in ASK_BUGS else "system" if bug.action.name in SYSTEM else "caller"], SEEN),
    ids=lambda bug: bug.name)
def test_a_proof_of_another_protocol_would_be_noticed(bug: ProofBug) -> None:
    bounds = VARIANTS[bug.name].bounds
    features = VARIANTS[bug.name].protocol.features
    solver = Solver(bounds, [bug.action if a.name == bug.action.name else a for a in ACTIONS], features)
    right = Protocol("right", features=features)
    assert any(set(solver.successors(server, solver.compiled(server))) != edges(server, bounds.prompts, right)
               for server in servers(bounds, right))


@pytest.mark.parametrize("size", [Bounds(1), Bounds(2), long(Bounds(3)), long(Bounds(2, sessions=2))], ids=str)
def test_at_rest_means_that_the_system_has_nothing_to_do(size: Bounds) -> None:
    """For every state that the invariant allows in a universe of that size, reachable or not."""
    known = Solver(size, [action for action in ACTIONS if action.system], features=None)
    can_act = z3.Or(*(guard for guard, *_ in known.steps))
    solver = z3.Solver()
    solver.add(known.invariant, can_act == at_rest(known.universe, known.view))
    assert solver.check() == z3.unsat
