"""Questions about the reference protocol: after a trace, what does the next action do to a prompt? The model answers.

Each answer is explained by the transition that moved the prompt, with its guards, or by the action if none did.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from cancelmark.model.check.walk import Walk
from cancelmark.model.effects import Stop
from cancelmark.model.family import FAMILY_GUARD_MEANING
from cancelmark.model.lifecycle import Guard, Outcome, Row, State, Symbol
from cancelmark.model.protocol import REFERENCE
from cancelmark.model.server import Change, Server
from cancelmark.model.session import Prompt, Session
from cancelmark.model.trace import Trace
from cancelmark.views.traces.content import mark_text, prompt_text

PROMPTS = 4  # maximum number of prompts in a trace
STEPS = range(3, 9)  # possible lengths of a trace
ASKED = ("enter", "fail", "settle", "step", "finish", "cancel", "clear_queue", "close")
SAME, STOP = "nothing: it is unchanged", "it is asked to stop"
BECOMES = {State.ACTIVE: "it starts: active", State.QUEUED: "it waits: queued",
           State.CANCELED_ON_ENTRY: "it is canceled on entry"}
CHOICES = (SAME, STOP, *BECOMES.values(), *(f"it ends: {outcome.value}" for outcome in Outcome))


@dataclass(frozen=True)
class Question:
    """One question, the answers to choose from, the right one, and why it is right."""

    trace: Trace
    text: str
    choices: tuple[str, ...]
    answer: str
    why: str


def questions(random: Random) -> Iterator[Question]:
    """An endless sequence of questions."""
    while True:
        walk = Walk(REFERENCE)
        for _ in range(random.choice(STEPS)):
            walk.take(random.choice([c for c in walk.possible if _fits(walk.server, c)]))
        if question := ask(walk, random):
            yield question


def _fits(server: Server, change: Change) -> bool:
    """Whether the change makes an interesting trace: no crash or close, few prompts, no step without effect."""
    if change.call.name == "accept":
        return server.seq < PROMPTS
    return change.call.name not in ("crash", "close") and bool(server.sessions[0].live) and change.after != server


def ask(walk: Walk, random: Random) -> Question | None:
    """A question about a possible next step, or None if there is nothing to ask."""
    session = walk.server.sessions[0]
    assert isinstance(session, Session)
    asked = [(change, p) for change in walk.possible if change.call.name in ASKED for p in session.live
             if change.call.seq in (None, p.seq) or _after(change, p) != p]
    if not asked:
        return None
    action = random.choice(sorted({change.call.name for change, _ in asked}))  # rare actions as often as common ones
    change, prompt = random.choice([(change, p) for change, p in asked if change.call.name == action])
    text, choices, answer = f"{change.call} comes next. ", CHOICES, _became(session, change, prompt)
    if change.call.name == "enter":
        text += f"Will {prompt.label} be canceled?"
        choices, answer = ("yes", "no"), "yes" if answer == BECOMES[State.CANCELED_ON_ENTRY] else "no"
    else:
        state = prompt_text(session, prompt)[0].replace("_", " ")
        text += f"What happens to {prompt.label}, which is {state}?"
    return Question(walk.trace, text, choices, answer, explain(session, change, prompt))


def _after(change: Change, prompt: Prompt) -> Prompt:
    return change.after.sessions[0].prompt(prompt.seq)


def _became(session: Session, change: Change, prompt: Prompt) -> str:
    after = _after(change, prompt)
    if after.outcome:
        return f"it ends: {after.outcome.value}"
    if after.state is not prompt.state:
        return BECOMES[after.state]
    return STOP if Stop(prompt.seq) in change.effects else SAME


def explain(session: Session, change: Change, prompt: Prompt) -> str:
    """Why the change has this effect on the prompt, by rule."""
    action, after, name = change.call.action, _after(change, prompt), prompt.label
    lines = [f"{action.rule}, {action.name}: {action.effect}"]
    mark = mark_text(change.after.sessions[0])
    if after.state is not prompt.state:
        lines.append(_row(session, prompt, next(
            r for r in change.rows if (r.source, r.dest, r.outcome) == (prompt.state, after.state, after.outcome))))
    elif Stop(prompt.seq) in change.effects:
        lines.append(f"{name} is active, and the mark ({mark}) covers it now: its turn is asked to stop and finishes "
                     "later.")
    elif after.state is State.ACCEPTED and after != prompt:
        lines.append(f"{name} is accepted, and the mark ({mark}) covers it now: it will be canceled when it enters.")
    else:
        lines.append(f"No transition applies to {name}.")
    return "\n".join(lines)


def _row(session: Session, prompt: Prompt, row: Row) -> str:
    asked = [*((g, True) for g in row.when), *((g, False) for g in row.unless)]
    guards = "".join(f"\n  {'' if yes else 'not '}{g.value}: {_meaning(session, prompt, g)}" for g, yes in asked)
    outcome = f", with outcome {row.outcome.value}" if row.outcome else ""
    return (f"{row.rule}: {row.trigger.value} moves {prompt.label} from {row.source.value} to {row.dest.value}"
            f"{outcome}.{guards}")


def _meaning(session: Session, prompt: Prompt, guard: Symbol) -> str:
    if guard is Guard.COVERED:
        says = "covers" if session.covered(prompt) else "does not cover"
        return f"the mark ({mark_text(session)}) {says} {prompt.label}"
    return FAMILY_GUARD_MEANING[guard]
