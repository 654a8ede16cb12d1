"""A counterexample to induction for display: a few prompts before and after an action, and the violated claim.

It is a state that the invariant allows, with a step that leaves the invariant or violates a step claim. The protocol
need not be able to reach the state. If it cannot, the invariant is too weak.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import z3

from .actions import Action, Step
from .logic import (
    ABSENT,
    ACCEPTED,
    ACTIVE,
    CANCELED,
    CANCELED_ON_ENTRY,
    END_TURN,
    ERROR,
    FEATURES,
    NOTHING,
    QUEUED,
    UNASKED,
    Term,
    Universe,
    View,
)


class PromptValues(NamedTuple):
    """One prompt of a counterexample."""

    name: str
    session: str
    seq: int
    run_id: bool
    state: str
    outcome: str
    reach: str
    ends: int
    revoked: bool
    front: int
    place: int  # as the calls require
    version: int
    wanted: int  # as the calls require
    urgent: bool
    ran: bool

    def __str__(self) -> str:
        if self.state == "absent":
            return "–"
        words = [self.state if self.outcome == "none" else f"{self.state} ({self.outcome})"]
        if self.reach != "nothing":
            words.append(f"reached by {self.reach}")
        if self.ends != (self.state == "done"):
            words.append(f"{self.ends} terminal event{'s' if self.ends != 1 else ''}")
        if self.state != "done":
            words += [word for word, said in (
                ("revoked", self.revoked), (f"front {self.front}", self.front),
                (f"requested front {self.place}", self.place != self.front), (f"text {self.version}", self.version),
                (f"requested text {self.wanted}", self.wanted != self.version),
                ("has run", self.ran and self.state != "active")) if said]
        return ", ".join(words)


class QuestionValues(NamedTuple):
    """One question of a counterexample."""

    name: str
    prompt: str
    status: str
    called: str  # as the calls require
    believed: bool  # subscribers believe that it is open

    def __str__(self) -> str:
        if (self.status, self.called, self.believed) == ("unasked", "unasked", False):
            return "–"
        words = [f"{self.status}, of {self.prompt}"]
        if self.called != self.status:
            words.append(f"{self.called} by the calls")
        if self.believed != (self.status == "open"):
            words.append(f"subscribers believe it {'open' if self.believed else 'closed'}")
        return ", ".join(words)


class Picture(NamedTuple):
    """A state with concrete values."""

    prompts: tuple[PromptValues, ...]
    questions: tuple[QuestionValues, ...]
    marks: Mapping[str, int]  # by session
    held: Mapping[str, bool]
    told_to_hold: Mapping[str, bool]  # as the calls require
    latest: int
    closing: bool
    down: bool


@dataclass(frozen=True)
class Counterexample:
    claim: str
    sentence: str
    action: str  # with its arguments; empty if the state itself is the counterexample
    before: Picture
    after: Picture
    asked: tuple[str, ...]  # the effects of the action
    features: tuple[str, ...] = ()  # the relevant features of the protocol

    @property
    def text(self) -> str:
        """A table with one line per prompt, in seq order."""
        several = len(self.before.marks) > 1
        rows = [("", "before", f"after {self.action}" if self.action else "after (no action)")]
        afters = {p.name: p for p in self.after.prompts}
        for p in sorted(self.before.prompts, key=lambda p: (p.state == "absent", afters[p.name].seq)):
            now = afters[p.name]
            facts = f"{p.name}  seq {now.seq}{', run id' if now.run_id else ''}{', interrupt' if now.urgent else ''}"
            rows.append((f"{facts}, session {now.session}" if several else facts, str(p), str(now)))
        for x, then in zip(self.before.questions, self.after.questions):
            if str(x) != "–" or str(then) != "–":
                rows.append((f"question {x.name}", str(x), str(then)))
        for session, mark in self.before.marks.items():
            whose = f"mark of session {session}" if several else "mark"
            rows.append((whose, str(mark), str(self.after.marks[session])))
        for session in self.before.marks:
            for name, was, now_is in (("held", self.before.held, self.after.held),
                                      ("told to hold", self.before.told_to_hold, self.after.told_to_hold)):
                if was[session] or now_is[session]:
                    whose = f"{name}, session {session}" if several else name
                    rows.append((whose, yes_or_no(was[session]), yes_or_no(now_is[session])))
        rows.append(("latest seq", str(self.before.latest), str(self.after.latest)))
        for name in ("closing", "down"):
            before, after = getattr(self.before, name), getattr(self.after, name)
            if before or after:
                rows.append((name, yes_or_no(before), yes_or_no(after)))
        if self.asked:
            rows.append(("effects", "", ", ".join(self.asked)))
        if self.features:
            rows.append(("features", ", ".join(self.features), ""))
        widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
        lines = [f"  {a:{widths[0]}}   {b:{widths[1]}}   {c}".rstrip() for a, b, c in rows]
        return "\n".join([f"{self.claim} is broken: {self.sentence}", *lines]) + "\n"


def yes_or_no(flag: bool) -> str:
    return "yes" if flag else "no"


def wishes(step: Step) -> Iterator[Term]:
    """Constraints that simplify a counterexample, the most useful first: low numbers, names in seq order, no irrelevant
    history. The last ones fix the remaining choices, so that the same bug always gives the same counterexample."""
    universe, before = step.universe, step.before
    yield from map(z3.Not, FEATURES)
    yield before.latest <= len(universe.prompts)
    yield before.wishes <= len(universe.prompts)
    yield z3.Not(before.closing)
    yield z3.Not(before.down)
    for session in universe.sessions:
        yield before.mark(session) == 0
        yield z3.Not(before.held(session))
        yield z3.Not(before.told(session))
    for x in universe.questions:
        yield before.status(x) == before.called(x)
        yield before.status(x) == UNASKED
        yield z3.Not(before.believed(x))
    for number, p in enumerate(universe.prompts, 1):
        yield before.state(p) != ABSENT
        yield step.after.seq(p) == number
    for p in universe.prompts:
        yield before.reach(p) == NOTHING
        yield z3.Not(step.after.run_id(p))
        yield z3.Not(step.after.urgent(p))
        yield from (z3.Not(flag(p)) for flag in (before.revoked, before.begun, before.ran))
        yield from (number(p) == 0 for number in (
            before.front, before.place, before.version, before.wanted, before.heard))
        yield step.after.home(p) == universe.sessions[0]
    for x in universe.questions:
        yield before.owner(x) == universe.prompts[0]
    for term in step.arguments.values():
        if z3.is_expr(term) and term.sort() == universe.question:
            yield term == universe.questions[0]
        elif z3.is_bool(term):
            yield z3.Not(term)
    for p in universe.prompts:
        yield from (before.state(p) == state for state in (ACTIVE, QUEUED, ACCEPTED, CANCELED_ON_ENTRY))
        yield from (step.after.outcome(p) == outcome for outcome in (END_TURN, ERROR, CANCELED))


def picture(claim: str, sentence: str, step: Step, action: Action | None, model: z3.ModelRef) -> Counterexample:
    universe = step.universe

    def value(term: Term) -> str:
        return str(model.eval(term, model_completion=True))

    told = ""
    if action:
        arguments = action.arguments(universe)
        shown = [value(term) for name, term in arguments.items() if name in ("p", "x", "how")]
        sessions = [value(term) for name, term in arguments.items() if action.parameters[name] == "session"]
        told = action.name + (f"({', '.join(shown)})" if shown else "")
        told += f" in session {sessions[0]}" if sessions and len(universe.sessions) > 1 else ""
    return Counterexample(claim, sentence, told, _pictured(universe, step.before, value),
                          _pictured(universe, step.after, value), tuple(_asked(step, value)), tuple(
                              name for name, term in FEATURES._asdict().items() if value(term) == "True"))


def _asked(step: Step, value: Callable[[Term], str]) -> Iterator[str]:
    asks = {"started": "{} starts", "stopped": "{} is asked to stop", "folded": "{} is folded",
            "recorded": "{}'s messages are written"}
    for p in step.universe.prompts:
        yield from (words.format(p) for field, words in asks.items() if value(getattr(step.seen, field)(p)) == "True")
        if value(step.seen.published(p)) != "0":
            text = value(step.seen.carries(p))
            yield f"{p}'s terminal event" + ("" if text == str(p) else f" with the text of {text}")
    said = {"opened": "question {} is published", "withdrawn": "question {} is withdrawn",
            "unsure": "the tool of question {} may have run"}
    for x in step.universe.questions:
        yield from (words.format(x) for field, words in said.items() if value(getattr(step.seen, field)(x)) == "True")
        if (given := value(step.seen.answered(x))) != "unasked":
            yield f"question {x} is {given}"
        if value(step.seen.tools(x)) != "0":
            yield f"the tool of question {x} starts"
        if value(step.seen.overdue(x)) == "True":
            yield f"the end of question {x} is published after its prompt's terminal event"
    if value(step.seen.late) == "True":
        yield "a terminal event is published after a start"


def _pictured(universe: Universe, view: View, value: Callable[[Term], str]) -> Picture:
    def flag(term: Term) -> bool:
        return value(term) == "True"

    def number(term: Term) -> int:
        return int(value(term))

    prompts = tuple(
        PromptValues(str(p), value(view.home(p)), number(view.seq(p)), flag(view.run_id(p)), value(view.state(p)),
               value(view.outcome(p)), value(view.reach(p)), number(view.ends(p)), flag(view.revoked(p)),
               number(view.front(p)), number(view.place(p)), number(view.version(p)), number(view.wanted(p)),
               flag(view.urgent(p)), flag(view.ran(p)))
        for p in universe.prompts)
    questions = tuple(
        QuestionValues(str(x), value(view.owner(x)), value(view.status(x)), value(view.called(x)),
                       flag(view.believed(x))) for x in universe.questions)
    return Picture(
        prompts, questions, {str(s): number(view.mark(s)) for s in universe.sessions},
        {str(s): flag(view.held(s)) for s in universe.sessions},
        {str(s): flag(view.told(s)) for s in universe.sessions},
        number(view.latest), flag(view.closing), flag(view.down))
