"""A counterexample to induction as people read it: a few prompts, before and after, the action, and what it breaks.

It is a state that the invariant allows and a step that leads out of it, or that does what no step may. The state need
not be one that the protocol can reach: then it is the invariant that says too little.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import z3

from .actions import Action, Step
from .logic import Term, Universe, View


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
            words.append(f"{self.ends} terminal events")
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

    @property
    def text(self) -> str:
        """A table: one line a prompt, in order of seq."""
        several = len(self.before.marks) > 1
        rows = [("", "before", self.action or "(no action)")]
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
        widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
        lines = [f"  {a:{widths[0]}}   {b:{widths[1]}}   {c}".rstrip() for a, b, c in rows]
        return "\n".join([f"{self.claim} is broken: {self.sentence}", *lines]) + "\n"


def picture(claim: str, sentence: str, step: Step, action: Action | None, model: z3.ModelRef) -> Counterexample:
    universe = step.universe

    def value(term: Term) -> str:
        return str(model.eval(term, model_completion=True))

    told = ""
    if action:
        arguments = action.arguments(universe)
        shown = [value(term) for name, term in arguments.items() if action.parameters[name] in ("prompt", "outcome")
                 and (name != "first" or value(arguments.get("hands_off", z3.BoolVal(True))) == "True")]
        sessions = [value(term) for name, term in arguments.items() if action.parameters[name] == "session"]
        told = action.name + (f"({', '.join(shown)})" if shown else "")
        told += f" in session {sessions[0]}" if sessions and len(universe.sessions) > 1 else ""
    return Counterexample(claim, sentence, told, _pictured(universe, step.before, value),
                          _pictured(universe, step.after, value))


def _pictured(universe: Universe, view: View, value: Callable[[Term], str]) -> Picture:
    prompts = tuple(
        Prompt(str(p), value(view.home(p)), int(value(view.seq(p))), value(view.run_id(p)) == "True",
               value(view.state(p)), value(view.outcome(p)), value(view.reach(p)), int(value(view.ends(p))))
        for p in universe.prompts)
    return Picture(prompts, {str(s): int(value(view.mark(s))) for s in universe.sessions}, int(value(view.latest)),
                   value(view.closing) == "True", value(view.down) == "True")
