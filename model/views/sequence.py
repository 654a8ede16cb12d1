"""A trace as a Mermaid sequence diagram: who called whom, and which events reached the client."""

from collections.abc import Iterator
from typing import assert_never

from ..explore import Trace
from ..lifecycle import Outcome, State
from ..server import Server
from ..session import Acknowledge, Actor, Effect, End, Fold, Record, Report, Start, Stop, label
from . import telling

CLIENT = "Client"


def trace_mermaid(trace: Trace) -> str:
    """The trace as a `sequenceDiagram`. A prompt's bar is its turn; arrows to the client are what it is told."""
    lanes = telling.lanes(trace)
    several = len(trace.start.sessions) > 1
    lines = ["sequenceDiagram", f"    actor {CLIENT}"]
    for index in range(len(trace.start.sessions)):
        lines.append(f"    participant {_session(index)} as Session{f' {index + 1}' if several else ''}")
        lines += [f"    participant {_prompt(lane.prompt.seq)} as {lane.title}"
                  for lane in lanes if lane.session == index]
    everyone = f"{CLIENT},{_prompt(lanes[-1].prompt.seq) if lanes else _session(0)}"
    for scene in telling.scenes(trace):
        if scene.number - 1 == trace.loop:
            lines.append("    loop for ever")
        lines += [f"    {line}" for line in _messages(scene, everyone)]
    if trace.loop is not None:
        lines.append("    end")
    return "\n".join(lines) + "\n"


def _session(index: int) -> str:
    return f"S{index + 1}"


def _prompt(seq: int) -> str:
    return f"P{seq}"


def _messages(scene: telling.Scene, everyone: str) -> Iterator[str]:
    call = scene.call
    if call is None:
        return
    if call.session is None:
        yield f"Note over {everyone}: {scene.title}"
    else:
        home = _session(call.session)
        outside = call.action.actor in (Actor.CLIENT, Actor.OPERATOR)
        caller = CLIENT if outside else home if call.seq is None else _prompt(call.seq)
        yield f"{caller}->>{home}: {scene.title}"
    for index in range(len(scene.after.sessions)):
        if mark := scene.new_mark(index):
            yield f"Note over {_session(index)}: mark {mark}"
    for effect in scene.effects:
        yield _effect(scene.after, effect)
    told = {effect.seq for effect in scene.effects}
    was_active = {p.seq for p in scene.before.prompts if p.state is State.ACTIVE}
    for prompt in scene.after.prompts:
        name = _prompt(prompt.seq)
        if scene.cells[prompt.seq].changed and prompt.seq not in told:
            yield f"Note over {name}: {scene.cells[prompt.seq].text}"
        if (prompt.seq in was_active) != (prompt.state is State.ACTIVE):
            yield f"{'deactivate' if prompt.seq in was_active else 'activate'} {name}"


def _effect(server: Server, effect: Effect) -> str:
    home, prompt = _session(server.home(effect.seq)), _prompt(effect.seq)
    match effect:
        case Acknowledge():
            return f"{home}-->>{CLIENT}: 202 for {label(effect.seq)}"
        case Start():
            return f"{home}->>{prompt}: start"
        case Stop():
            return f"{home}->>{prompt}: stop"
        case Fold():
            return f"{prompt}->>{_prompt(effect.into)}: folds into the turn"
        case Record():
            return f"Note over {prompt}: recorded as canceled"
        case End(outcome=Outcome.FOLDED):
            return f"Note over {prompt}: done: folded, no event of its own"
        case End():
            return f"{prompt}-->>{CLIENT}: RunComplete {effect.outcome.value} ({_under(server, effect)})"
        case Report():
            return f"{prompt}-->>{CLIENT}: error notice ({_under(server, effect)})"
    assert_never(effect)


def _under(server: Server, event: End | Report) -> str:
    """The run id that an event is published under, and whose text it carries if not its own prompt's."""
    named = server.sessions[server.home(event.seq)].prompt(event.seq).run_id
    run_id = f"run id {label(event.seq)}" if named else "no run id"
    return run_id if event.of == event.seq else f"{run_id}, text of {label(event.of)}"
