"""A counterexample to induction as people read it: a few prompts, before and after, the action, and what it breaks.

It is a state that the invariant allows and a step that leads out of it, or that does what no step may. The state need
not be one that the protocol can reach: then it is the invariant that says too little.
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
    NOTHING,
    QUEUED,
    Term,
    Universe,
    View,
)


class Prompt(NamedTuple):
    """One prompt in a picture."""

    name: str
    session: str
    seq: int
    run_id: bool
    state: str
    outcome: str
    reach: str
    ends: int

    def __str__(self) -> str:
        if self.state == "absent":
            return "–"
        words = [self.state if self.outcome == "none" else f"{self.state} ({self.outcome})"]
        if self.reach != "nothing":
            words.append(f"reached by {self.reach}")
        if self.ends != (self.state == "done"):
            words.append(f"{self.ends} terminal event{'s' if self.ends != 1 else ''}")
        return ", ".join(words)


class Picture(NamedTuple):
    """A state with every value filled in."""

    prompts: tuple[Prompt, ...]
    marks: Mapping[str, int]  # by session
    latest: int
    closing: bool
    down: bool


@dataclass(frozen=True)
class Counterexample:
    claim: str
    sentence: str
    action: str  # with its arguments; empty: no action, the state itself is the counterexample
    before: Picture
    after: Picture
    asked: tuple[str, ...]  # what the action asks the world to do

    @property
    def text(self) -> str:
        """A table: one line a prompt, in order of seq."""
        several = len(self.before.marks) > 1
        rows = [("", "before", f"after {self.action}" if self.action else "the same")]
        afters = {p.name: p for p in self.after.prompts}
        for p in sorted(self.before.prompts, key=lambda p: (p.state == "absent", afters[p.name].seq)):
            now = afters[p.name]
            facts = f"{p.name}  seq {now.seq}{', run id' if now.run_id else ''}"
            rows.append((f"{facts}, session {now.session}" if several else facts, str(p), str(now)))
        for session, mark in self.before.marks.items():
            whose = f"mark of session {session}" if several else "mark"
            rows.append((whose, str(mark), str(self.after.marks[session])))
        rows.append(("latest seq", str(self.before.latest), str(self.after.latest)))
        for name in ("closing", "down"):
            was, now_is = getattr(self.before, name), getattr(self.after, name)
            if was or now_is:
                rows.append((name, "yes" if was else "no", "yes" if now_is else "no"))
        if self.asked:
            rows.append(("asked for", "", ", ".join(self.asked)))
        widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
        lines = [f"  {a:{widths[0]}}   {b:{widths[1]}}   {c}".rstrip() for a, b, c in rows]
        return "\n".join([f"{self.claim} is broken: {self.sentence}", *lines]) + "\n"


def wishes(step: Step) -> Iterator[Term]:
    """What makes a counterexample plain, most wanted first: low numbers, names in order of seq, nothing that happened
    before and does not matter. The rest leaves the solver no choice, so that the same bug always looks the same."""
    universe, before = step.universe, step.before
    yield before.latest <= len(universe.prompts)
    yield z3.Not(before.closing)
    yield z3.Not(before.down)
    for session in universe.sessions:
        yield before.mark(session) == 0
    for number, p in enumerate(universe.prompts, 1):
        yield before.state(p) != ABSENT
        yield step.after.seq(p) == number
    for p in universe.prompts:
        yield before.reach(p) == NOTHING
        yield z3.Not(step.after.run_id(p))
        yield step.after.home(p) == universe.sessions[0]
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
        shown = [value(term) for name, term in arguments.items() if name in ("p", "how")]
        sessions = [value(term) for name, term in arguments.items() if action.parameters[name] == "session"]
        told = action.name + (f"({', '.join(shown)})" if shown else "")
        told += f" in session {sessions[0]}" if sessions and len(universe.sessions) > 1 else ""
    return Counterexample(claim, sentence, told, _pictured(universe, step.before, value),
                          _pictured(universe, step.after, value), tuple(_asked(step, value)))


def _asked(step: Step, value: Callable[[Term], str]) -> Iterator[str]:
    asks = {"started": "{} starts", "stopped": "{} is to stop", "folded": "{} is folded", "recorded": "{}'s record"}
    for p in step.universe.prompts:
        yield from (words.format(p) for field, words in asks.items() if value(getattr(step.seen, field)(p)) == "True")
        if value(step.seen.published(p)) != "0":
            text = value(step.seen.carries(p))
            yield f"{p}'s terminal event" + ("" if text == str(p) else f" with the text of {text}")
    if value(step.seen.late) == "True":
        yield "an event only after a start"


def _pictured(universe: Universe, view: View, value: Callable[[Term], str]) -> Picture:
    prompts = tuple(
        Prompt(str(p), value(view.home(p)), int(value(view.seq(p))), value(view.run_id(p)) == "True",
               value(view.state(p)), value(view.outcome(p)), value(view.reach(p)), int(value(view.ends(p))))
        for p in universe.prompts)
    return Picture(prompts, {str(s): int(value(view.mark(s))) for s in universe.sessions}, int(value(view.latest)),
                   value(view.closing) == "True", value(view.down) == "True")
