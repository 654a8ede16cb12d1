"""A trace as a Mermaid sequence diagram: calls between the client, sessions and prompts, and events to the client."""

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from cancelmark.model.actions import Actor
from cancelmark.model.effects import Acknowledge, Effect, End, Fold, Report, Start, Stop
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.server import Call, Server
from cancelmark.model.session import label
from cancelmark.model.trace import Trace

from . import content

CLIENT = "Client"


class Arrow(Enum):
    """How a message is drawn: an arrow for a call, a dashed arrow for an event to the client, or a note."""

    CALL = "->>"
    TOLD = "-->>"
    NOTE = ""
    EVERYONE = "everyone"  # a note across all lanes

    __hash__ = object.__hash__


class Message(NamedTuple):
    """One line of a sequence diagram, from one lane to another. A note is over its source."""

    arrow: Arrow
    source: str
    dest: str
    text: str


def session_lane(index: int) -> str:
    return f"S{index + 1}"


def prompt_lane(seq: int) -> str:
    return f"P{seq}"


def call_message(call: Call, title: str) -> Message:
    """The message for a call, from its caller: a client, the session itself, or a prompt's task."""
    if call.session is None:
        return Message(Arrow.EVERYONE, "", "", title)
    home = session_lane(call.session)
    outside = call.action.actor in (Actor.CLIENT, Actor.OPERATOR)
    caller = CLIENT if outside else home if call.seq is None else prompt_lane(call.seq)
    return Message(Arrow.CALL, caller, home, title)


def _home(server: Server, seq: int) -> int:
    """The index of the prompt's session, or 0 if the protocol has lost the prompt."""
    return next((i for i, s in enumerate(server.sessions) if any(p.seq == seq for p in s.prompts)), 0)


def effect_message(server: Server, effect: Effect) -> Message:
    home, prompt = session_lane(_home(server, effect.seq)), prompt_lane(effect.seq)
    match effect:
        case Acknowledge():
            return Message(Arrow.TOLD, home, CLIENT, f"202 for {label(effect.seq)}")
        case Start():
            return Message(Arrow.CALL, home, prompt, "start")
        case Stop():
            return Message(Arrow.CALL, home, prompt, "stop")
        case Fold():
            return Message(Arrow.CALL, prompt, prompt_lane(effect.into), "folds into the turn")
        case End(outcome=Outcome.FOLDED):
            return Message(Arrow.NOTE, prompt, "", "done: folded")
        case End():
            return Message(Arrow.TOLD, prompt, CLIENT, f"RunComplete {effect.outcome.value} ({_under(server, effect)})")
        case Report():
            return Message(Arrow.TOLD, prompt, CLIENT, f"error notice ({_under(server, effect)})")
        case _:
            return Message(Arrow.NOTE, prompt, "", content.effect_words(effect))


def _under(server: Server, event: End | Report) -> str:
    """The run id that an event is published under, and the prompt whose text it carries if that is another."""
    named = server.sessions[server.home(event.seq)].prompt(event.seq).run_id
    run_id = f"run id {label(event.seq)}" if named else "no run id"
    return run_id if event.of == event.seq else f"{run_id}, text of {label(event.of)}"


# --- Mermaid

def trace_mermaid(trace: Trace) -> str:
    """The trace as a `sequenceDiagram`. A prompt's bar is its turn; dashed arrows are events to the client."""
    lanes = content.lanes(trace)
    several = len(trace.start.sessions) > 1
    lines = ["sequenceDiagram", f"    actor {CLIENT}"]
    for index in range(len(trace.start.sessions)):
        lines.append(f"    participant {session_lane(index)} as Session{f' {index + 1}' if several else ''}")
        lines += [f"    participant {prompt_lane(lane.prompt.seq)} as {lane.title}"
                  for lane in lanes if lane.session == index]
    everyone = f"{CLIENT},{prompt_lane(lanes[-1].prompt.seq) if lanes else session_lane(0)}"
    for scene in content.scenes(trace):
        if scene.number - 1 == trace.loop:
            lines.append("    loop forever")
        lines += [f"    {line}" for line in _statements(scene, everyone)]
    if trace.loop is not None:
        lines.append("    end")
    return "\n".join(lines) + "\n"


def _statements(scene: content.Scene, everyone: str) -> Iterator[str]:
    if scene.call is None:
        return
    yield statement(call_message(scene.call, scene.title), everyone)
    for index in range(len(scene.after.sessions)):
        if mark := scene.new_mark(index):
            yield f"Note over {session_lane(index)}: mark {mark}"
    for effect in scene.effects:
        yield statement(effect_message(scene.after, effect), everyone)
    told = {effect.seq for effect in scene.effects}
    was_active = {p.seq for p in scene.before.prompts if p.state is State.ACTIVE}
    for prompt in scene.after.prompts:
        name = prompt_lane(prompt.seq)
        if scene.cells[prompt.seq].changed and prompt.seq not in told:
            yield f"Note over {name}: {scene.cells[prompt.seq].text}"
        if (prompt.seq in was_active) != (prompt.state is State.ACTIVE):
            yield f"{'deactivate' if prompt.seq in was_active else 'activate'} {name}"


def statement(message: Message, everyone: str) -> str:
    """One line of a `sequenceDiagram`."""
    if message.arrow in (Arrow.NOTE, Arrow.EVERYONE):
        return f"Note over {message.source or everyone}: {message.text}"
    return f"{message.source}{message.arrow.value}{message.dest}: {message.text}"
