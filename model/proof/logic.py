"""The language of the proof: a universe of prompts, sessions and questions, and a state of the server over it."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import z3

Term: TypeAlias = Any  # a z3 term; names indicate its sort
OfOne: TypeAlias = Callable[[Term], Term]  # a function of a prompt, of a session or of a question

STATE, (ABSENT, ACCEPTED, CANCELED_ON_ENTRY, QUEUED, ACTIVE, DONE) = z3.EnumSort(
    "State", ["absent", "accepted", "canceled_on_entry", "queued", "active", "done"])
OUTCOME, (NONE, END_TURN, ERROR, CANCELED, FOLDED) = z3.EnumSort(
    "Outcome", ["none", "end_turn", "error", "canceled", "folded"])
REACH, (NOTHING, CLEAR, CANCEL) = z3.EnumSort("Reach", ["nothing", "clear_queue", "cancel"])
STATUS, (UNASKED, OPEN, ALLOWED, DENIED, RAN, WITHDRAWN, VOID) = z3.EnumSort(
    "Status", ["unasked", "open", "allowed", "denied", "ran", "withdrawn", "void"])
MODE, (QUEUE, REJECT, INTERRUPT) = z3.EnumSort("Mode", ["queue", "reject", "interrupt"])


class Features(NamedTuple):
    """The features of a protocol, as unconstrained constants: a proof holds for every choice of features."""

    revoke: Term
    stop: Term
    hold: Term
    replace: Term
    next: Term
    reject: Term
    interrupt: Term
    ask: Term


FEATURES = Features(*(z3.Bool(f"feature {name}") for name in Features._fields))


def one_of(term: Term, *values: Term) -> Term:
    return z3.Or(*(term == value for value in values))


@cache
def _sort(name: str, size: int | None, names: str) -> tuple[Term, tuple[Term, ...]]:
    if size is None:
        return z3.DeclareSort(name), ()
    sort, members = z3.EnumSort(f"{name}{size}", list(names[:size]))
    return sort, tuple(members)


class Universe:
    """All prompts, sessions and questions: any number of them, or a fixed number.

    In a universe of fixed size every quantifier is expanded, so the formulas are quantifier-free. A question has no
    number here: that the questions of a prompt are told apart is all that the protocol needs.
    """

    def __init__(self, prompts: int | None = None, sessions: int | None = None, questions: int = 1) -> None:
        self.prompt, self.prompts = _sort("Prompt", prompts, "ABCDEFGH")
        self.session, self.sessions = _sort("Session", sessions, "1234")
        self.question, self.questions = _sort("Question", None if prompts is None else questions, "stuvwxyz")

    def every_prompt(self, says: OfOne) -> Term:
        return self._every(self.prompt, self.prompts, says)

    def every_session(self, says: OfOne) -> Term:
        return self._every(self.session, self.sessions, says)

    def every_question(self, says: OfOne) -> Term:
        return self._every(self.question, self.questions, says)

    def some_question(self, says: OfOne) -> Term:
        return z3.Not(self.every_question(lambda x: z3.Not(says(x))))

    def every_pair(self, says: Callable[[Term, Term], Term]) -> Term:
        return self.every_prompt(lambda p: self.every_prompt(lambda q: says(p, q)))

    def some_prompt(self, says: OfOne) -> Term:
        return z3.Not(self.every_prompt(lambda p: z3.Not(says(p))))

    def _every(self, sort: Term, members: tuple[Term, ...], says: OfOne) -> Term:
        if members:
            return z3.And(*map(says, members))
        one = z3.FreshConst(sort, "x")
        return z3.ForAll([one], says(one))


@dataclass(frozen=True)
class View:
    """A state of the server. Each field is a function of a prompt, of a question or of a session, or a term. An
    arbitrary state has free symbols; the state after a step has terms over them."""

    state: OfOne
    outcome: OfOne
    seq: OfOne
    home: OfOne  # the prompt's session
    run_id: OfOne
    reach: OfOne  # history: the strongest call that targeted the prompt between its acceptance and its end
    ends: OfOne  # history: the number of its terminal events; the count stops at 2
    revoked: OfOne
    front: OfOne  # a prompt with a higher front is ahead
    version: OfOne  # of its text
    begun: OfOne  # it has been active; tracked only if texts can be replaced
    urgent: OfOne  # it is an interrupt
    place: OfOne  # history: the number of the last call that moved it to the front; 0: none
    wanted: OfOne  # history: the version of the last accepted text
    ran: OfOne  # history: its turn has started
    heard: OfOne  # history: the latest seq when its turn last folded a prompt
    status: OfOne  # of a question
    owner: OfOne  # of a question: the prompt that asked it
    called: OfOne  # history: the status of a question, derived from the calls only
    believed: OfOne  # history: subscribers believe that the question is open
    mark: OfOne  # of a session
    held: OfOne  # of a session
    told: OfOne  # history: whether the last call to hold or resume the session was a hold
    latest: Term  # the latest seq that was assigned
    wishes: Term  # history: how many calls moved a prompt to the front
    closing: Term
    down: Term  # crashed and not yet recovered

    @classmethod
    def free(cls, universe: Universe, name: str = "") -> "View":
        def of_prompt(field: str, sort: Term) -> OfOne:
            function: OfOne = z3.Function(field + name, universe.prompt, sort)
            return function

        def of_session(field: str, sort: Term) -> OfOne:
            function: OfOne = z3.Function(field + name, universe.session, sort)
            return function

        def of_question(field: str, sort: Term) -> OfOne:
            function: OfOne = z3.Function(field + name, universe.question, sort)
            return function

        number, flag = z3.IntSort(), z3.BoolSort()
        of_prompts = {"state": STATE, "outcome": OUTCOME, "seq": number, "home": universe.session, "run_id": flag,
                      "reach": REACH, "ends": number, "revoked": flag, "front": number, "version": number,
                      "begun": flag, "urgent": flag, "place": number, "wanted": number, "ran": flag, "heard": number}
        of_questions = {"status": STATUS, "owner": universe.prompt, "called": STATUS, "believed": flag}
        of_sessions = {"mark": number, "held": flag, "told": flag}
        return cls(
            **{field: of_prompt(field, sort) for field, sort in of_prompts.items()},
            **{field: of_question(field, sort) for field, sort in of_questions.items()},
            **{field: of_session(field, sort) for field, sort in of_sessions.items()},
            latest=z3.Int("latest" + name), wishes=z3.Int("wishes" + name), closing=z3.Bool("closing" + name),
            down=z3.Bool("down" + name))

    def put(self, one: Term, **values: Term) -> "View":
        """The same state with these fields of one prompt or question changed."""
        return replace(self, **{field: put(getattr(self, field), one, value) for field, value in values.items()})

    # --- predicates

    def is_in(self, p: Term, session: Term, *states: Term) -> Term:
        return z3.And(self.home(p) == session, one_of(self.state(p), *states))

    def live(self, p: Term) -> Term:
        return z3.And(self.state(p) != ABSENT, self.state(p) != DONE)

    def covered(self, p: Term) -> Term:
        return z3.Or(self.seq(p) <= self.mark(self.home(p)), self.revoked(p))

    def ahead(self, p: Term, q: Term) -> Term:
        """Whether p is ahead of q in the queue."""
        return _before(self.front, self.seq, p, q)

    def wished_ahead(self, p: Term, q: Term) -> Term:
        """Whether p should be ahead of q, derived from the calls only."""
        return _before(self.place, self.seq, p, q)

    def same_prompt(self, other: "View", p: Term) -> Term:
        """Whether the prompt is the same in both states."""
        return z3.And(*(getattr(self, f)(p) == getattr(other, f)(p) for f in OF_PROMPT))

    def same_question(self, other: "View", x: Term) -> Term:
        """Whether the question is the same in both states."""
        return z3.And(*(getattr(self, f)(x) == getattr(other, f)(x) for f in OF_QUESTION))


def _before(place: OfOne, seq: OfOne, p: Term, q: Term) -> Term:
    return z3.Or(place(p) > place(q), z3.And(place(p) == place(q), seq(p) < seq(q)))


OF_PROMPT = tuple(f.name for f in fields(View))[:16]
OF_QUESTION = tuple(f.name for f in fields(View))[16:20]


def put(function: OfOne, argument: Term, value: Term) -> OfOne:
    return lambda x: z3.If(x == argument, value, function(x))


NO = z3.BoolVal(False)


def _none(_: Term) -> Term:
    return NO


@dataclass(frozen=True)
class Seen:
    """The effects of a step, as functions of a prompt or of a question."""

    started: OfOne = _none  # its turn starts
    stopped: OfOne = _none  # its turn is asked to stop
    folded: OfOne = _none  # its text is passed to another prompt's turn
    takes_in: OfOne = _none  # its turn folds other prompts
    recorded: OfOne = _none  # its user message and a canceled assistant message are written
    published: OfOne = lambda _: z3.IntVal(0)  # the number of terminal events published
    carries: OfOne = lambda p: p  # the prompt whose text and error its event carries
    said: OfOne = lambda _: z3.IntVal(0)  # the version of the text with which it starts or folds
    late: Term = NO  # an event is published after a turn was started
    opened: OfOne = _none  # the question is published
    answered: OfOne = lambda _: UNASKED  # its answer is published: allowed or denied
    withdrawn: OfOne = _none  # its withdrawal is published
    overdue: OfOne = _none  # its answer or withdrawal is published after its prompt's terminal event
    tools: OfOne = lambda _: z3.IntVal(0)  # how often its tool is started
    unsure: OfOne = _none  # its tool is reported as one that may have run

    @classmethod
    def free(cls, universe: Universe) -> "Seen":
        def of_prompt(field: str, sort: Term) -> OfOne:
            function: OfOne = z3.Function(field, universe.prompt, sort)
            return function

        return cls(
            **{field: of_prompt(field, z3.BoolSort()) for field in ("started", "stopped", "folded", "takes_in",
                                                                    "recorded")},
            published=of_prompt("published", z3.IntSort()), carries=of_prompt("carries", universe.prompt),
            said=of_prompt("said", z3.IntSort()), late=z3.Bool("late"),
            **{field: z3.Function(field, universe.question, sort) for field, sort in {
                "opened": z3.BoolSort(), "answered": STATUS, "withdrawn": z3.BoolSort(), "overdue": z3.BoolSort(),
                "tools": z3.IntSort(), "unsure": z3.BoolSort()}.items()})

    def closed(self, x: Term) -> Term:
        """Whether the question's answer or withdrawal is published."""
        return z3.Or(self.answered(x) != UNASKED, self.withdrawn(x))

    def no_word(self, x: Term) -> Term:
        """Whether nothing is published about the question, and its tool does not start."""
        return z3.Not(z3.Or(self.opened(x), self.closed(x), self.tools(x) > 0, self.unsure(x)))

    def nothing(self, p: Term) -> Term:
        return z3.Not(z3.Or(self.started(p), self.stopped(p), self.folded(p), self.takes_in(p), self.recorded(p),
                            self.published(p) > 0))
