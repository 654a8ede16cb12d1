"""A protocol's state graph, exported for a program that only walks it: states as display text, steps already checked.

The graph is the union of several searches, each within a profile, and of the traces to show. A state is stored without
its finished prompts and without the spent bounds, so that more histories share it. A walk can therefore go further than
any single profile, and is still a history of the protocol, step by step. Each state lists the calls that the protocol
allows there and the graph leaves out.

The walking program has to keep the finished prompts itself: each step lists the prompts that it ends, and no later step
reads them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cancelmark.model.check.graph import NOTHING_SPENT, Search, StateGraph
from cancelmark.model.check.judging import at_rest, broken_at_rest, broken_by, properties_of
from cancelmark.model.protocol import Behaviour
from cancelmark.model.revisions.matrix import Profile
from cancelmark.model.server import Change, Server
from cancelmark.model.session import AnySession, Prompt, label
from cancelmark.model.trace import Trace, call_text

from ..traces import content, sequence
from ..traces.facts import facts
from ..traces.reasons import reason, rest_reason


class Edge(NamedTuple):
    """A step from one state of the graph to another."""

    change: Change
    target: int
    broken: tuple[str, ...]  # ids of the properties that it violates


@dataclass(frozen=True)
class ExportedGraph:
    """A state graph with numbered states. The first one is the start."""

    behaviour: Behaviour
    sessions: int
    states: list[Server]
    edges: list[list[Edge]]  # by state
    omitted: list[tuple[str, ...]]  # by state: the calls that the protocol allows there but the graph leaves out
    quiet: list[bool]  # by state: whether the system is quiescent

    def path(self, trace: Trace) -> list[int]:
        """The trace as a walk: for each step, the index of its edge. Raises LookupError if the trace is not in the
        graph."""
        walk, state, ended = [], 0, Ended()
        for step in trace.steps:
            for number, edge in enumerate(self.edges[state]):
                after = ended.and_by(edge.change)
                if edge.change.call == step.call and after.added_to(self.states[edge.target]) == step.after:
                    walk.append(number)
                    state, ended = edge.target, after
                    break
            else:
                raise LookupError(f"step {len(walk) + 1}, {step.call}, is not in the graph of {self.behaviour.name}")
        return walk


class Ended(NamedTuple):
    """The prompts finished during a walk, each with the index of its session."""

    prompts: tuple[tuple[int, Prompt], ...] = ()

    def and_by(self, change: Change) -> "Ended":
        return Ended((*self.prompts, *((i, p) for i, move in change.moves for p in move.ended)))

    def added_to(self, server: Server) -> Server:
        """The complete state."""
        return server._replace(sessions=tuple(
            session.with_prompts((*session.prompts, *(p for at, p in self.prompts if at == i)))
            for i, session in enumerate(server.sessions)))


def states_within(graph: StateGraph, profile: Profile) -> Iterator[int]:
    """Every state within the profile."""
    def onward(point: tuple[int, tuple[int, ...]]) -> Iterator[tuple[Change, tuple[int, tuple[int, ...]]]]:
        number, spent = point
        for change, after in graph.ways(number):
            if (left := profile.spend(spent, change.call)) is not None:
                yield change, (after, left)

    return (number for number, _ in Search([(0, NOTHING_SPENT)], onward))


def states_along(graph: StateGraph, trace: Trace) -> Iterator[int]:
    """Every state of the trace."""
    number, ended = 0, Ended()
    yield number
    for step in trace.steps:
        found = next((
            (after, so_far) for change, after in graph.ways(number) if change.call == step.call
            and (so_far := ended.and_by(change)).added_to(graph.states[after]) == step.after), None)
        if found is None:  # the protocol changes a finished prompt, or loses a prompt
            raise LookupError(f"{step.call} changes a finished prompt or loses one, so the trace cannot be exported")
        number, ended = found
        yield number


def graph_of(
    behaviour: Behaviour, profiles: Sequence[Profile], traces: Iterable[Trace] = (), sessions: int = 1,
) -> ExportedGraph:
    """The graph of all states within any of the profiles or on any of the traces, and every step between them."""
    known = StateGraph(behaviour, sessions, whole=False)
    wanted = {number for profile in profiles for number in states_within(known, profile)}
    wanted |= {number for trace in traces for number in states_along(known, trace)}
    order = list(Search([0], lambda number: (way for way in known.ways(number) if way.after in wanted)))
    numbers = {number: place for place, number in enumerate(order)}
    properties = properties_of(behaviour)
    graph = ExportedGraph(behaviour, sessions, [], [], [], [])
    for number in order:
        server, ways = known.states[number], known.ways(number)
        graph.states.append(server)
        graph.edges.append([Edge(change, numbers[after], broken_by(properties, server, change))
                            for change, after in ways if after in wanted])
        graph.omitted.append(tuple(dict.fromkeys(
            call_text(change.call, sessions) for change, after in ways if after not in wanted)))
        graph.quiet.append(at_rest(way.change for way in ways))
    return graph


# --- JSON

class ValueColumn:
    """A dictionary-encoded column: each distinct value once, and the sequence of their numbers."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        self.data: list[int] = []

    def add(self, value: Any) -> None:
        self.data.append(self.number(value))

    def number(self, value: Any) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    @property
    def values(self) -> list[Any]:
        return list(self.numbers)


def document(graph: ExportedGraph) -> dict[str, Any]:
    """The graph as JSON, small enough for a page.

    `columns` has one entry per fact and per prompt of a session; its `data` has one value per state. `degrees` has the
    number of steps from each state. For all steps in order, `steps` has their content and `targets` the state they lead
    to, as a distance back from the first state that no earlier step has led to.
    """
    cells, steps, omitted = ValueColumn(), ValueColumn(), ValueColumn()
    columns: dict[tuple[int, str], ValueColumn] = {}
    prompts = max(server.seq for server in graph.states)
    for server, left_out in zip(graph.states, graph.omitted):
        omitted.add(left_out)
        for i, session in enumerate(server.sessions):
            told = {**facts(session), "closing": "closing" if server.closing else ""}
            told |= {label(seq): "" for seq in range(1, prompts + 1)}
            told |= {p.label: str(cells.number(_cell(graph, session, p))) for p in session.prompts}
            for name, value in told.items():
                columns.setdefault((i, name), ValueColumn()).add(value)
    targets, met = [], 1
    for source, edges in enumerate(graph.edges):
        for edge in edges:
            ended = tuple((i, p.label, cells.number(_cell(graph, edge.change.after.sessions[i], p)))
                          for i, move in edge.change.moves for p in move.ended)
            steps.add(_step(graph, graph.states[source], edge, ended))
            targets.append(met - edge.target)
            met += edge.target == met
    return {
        "name": graph.behaviour.name, "sessions": graph.sessions, "prompts": prompts,
        "properties": [p.id for p in properties_of(graph.behaviour)],
        "cells": cells.values,
        "columns": [{"session": i, "name": name, "values": column.values, "data": column.data}
                    for (i, name), column in columns.items()],
        "omitted": {"values": omitted.values, "data": omitted.data},
        "quiet": [int(quiet) for quiet in graph.quiet],
        "degrees": [len(edges) for edges in graph.edges],
        "steps": {"values": steps.values, "data": steps.data},
        "targets": targets,
    }


def _cell(graph: ExportedGraph, session: AnySession, prompt: Prompt) -> tuple[Any, ...]:
    """A prompt: its kind (a CSS class), its state as text, whether it has a run id, which call has targeted it, its
    number of terminal events, and the properties that it violates at quiescence, each with the reason."""
    text, kind = content.prompt_text(session, prompt)
    return (kind, text, int(prompt.run_id), prompt.reach.value, prompt.ends,
            tuple((id, rest_reason(id, prompt))
                  for id in broken_at_rest(properties_of(graph.behaviour), [prompt])))


def _step(graph: ExportedGraph, before: Server, edge: Edge, ended: tuple[tuple[int, str, int], ...]) -> tuple[Any, ...]:
    """A step: its call and actor, its messages for the sequence diagram, the properties it violates, each with the
    reason, and the prompts it ends."""
    change = edge.change
    title = call_text(change.call, graph.sessions)
    messages = [sequence.call_message(change.call, title),
                *(sequence.effect_message(change.after, effect) for effect in change.effects)]
    return (title, change.call.name, change.call.action.actor.value,
            tuple((m.arrow.name.lower(), m.source, m.dest, m.text) for m in messages),
            tuple((id, reason(id, before, change)) for id in edge.broken), ended)
