"""Writes a trace of any length to standard output, as a runtime with a dozen sessions would, or as others might log it.

    PYTHONPATH=tests python tests/support/long_trace.py LINES [observed] | /usr/bin/time -v cancelmark trace check -

It is how the figures in specs/trace.md were measured.
"""

import json
import sys
from collections.abc import Iterator
from itertools import islice
from random import Random

from support.tracing import Line, observed

from cancelmark.impl.runtime.session import Counter, Session, TakenStep
from cancelmark.model.effects import encode_effect
from cancelmark.model.lifecycle import Outcome, State

SESSIONS = 12
MOST = 4  # unfinished prompts of a session


def steps(random: Random) -> Iterator[tuple[Session, TakenStep]]:
    """A server that is always busy: every session has a prompt or a few, and now and then a cancel."""
    counter = Counter()
    sessions = [Session(f"session-{number}", counter) for number in range(SESSIONS)]
    while True:
        session = random.choice(sessions)
        chance = random.random()
        if chance < 0.03:
            yield session, session.take("cancel")
        elif chance < 0.05:
            yield session, session.take("clear_queue")
        elif len(session.prompts) < MOST and chance < 0.5:
            prompt, effects = session.accept(run_id=random.choice([f"run-{counter.latest}", None]))
            yield session, effects
            yield session, session.take("enter", prompt)
            if prompt.state is State.CANCELED_ON_ENTRY:
                yield session, session.take("settle", prompt)
        elif session.active:
            active, = session.active
            if session.can("step", active) and chance < 0.7:
                yield session, session.take("step", active)
            else:
                outcome = Outcome.CANCELED if active.covered else random.choice([Outcome.END_TURN, Outcome.ERROR])
                yield session, session.take("finish", active, outcome)


def lines(random: Random) -> Iterator[Line]:
    for n, (session, effects) in enumerate(steps(random), 1):
        line = {"v": 1, "n": n, "time": 0.0, "action": effects.action, "session": session.id, "mark": effects.mark,
                "rows": [{"seq": prompt.seq, "row": row.name} for prompt, row in effects.moved],
                "effects": [encode_effect(effect) for effect in effects]}
        if effects.prompt:
            line |= {"seq": effects.prompt.seq, "run_id": effects.prompt.run_id}
        if isinstance(effects.variant, Outcome):
            line["outcome"] = effects.variant.value
        if effects.action == "accept":
            line["after"] = n - 1
        yield line


def text(count: int, style: str = "complete") -> Iterator[str]:
    made = lines(Random(1))
    if style == "observed":
        made = (seen for line in made for seen in observed([line]))
    return (json.dumps(line, separators=(",", ":")) + "\n" for line in islice(made, count))


if __name__ == "__main__":
    sys.stdout.writelines(text(int(sys.argv[1]), *sys.argv[2:]))
