"""A protocol's state graph for a program that only walks it: every state told in words, every step judged.

The graph is the union of searches within a few profiles, and of traces that are to be told. A state is kept without its
finished prompts and without what is spent of the bounds, so that histories which lead to the same place share it; so a
walk may go further than any one of the profiles, and is still a history of the protocol, step by step. What the
protocol could do in a state and the graph leaves out is listed there.

Whoever walks keeps what has ended: each step says which prompts it ends, and no step looks at them again.
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

from ..traces import sequence, telling
from ..traces.facts import facts
from ..traces.reasons import reason, rest_reason


class Edge(NamedTuple):
    """One step from one state of the graph to another."""

    change: Change
    target: int
    broken: tuple[str, ...]  # ids of the properties that it breaks


@dataclass(frozen=True)
class ExportedGraph:
    """States by number; the first is the start."""

    behaviour: Behaviour
    sessions: int
    states: list[Server]
    edges: list[list[Edge]]  # by state
    omitted: list[tuple[str, ...]]  # by state: the calls that the protocol has there and the graph has not
    quiet: list[bool]  # by state: whether the system has nothing left to do by itself

    def path(self, trace: Trace) -> list[int]:
        """The trace as a walk: which of its state's edges each step is. A trace that is not in the graph is a
        LookupError."""
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
    """The prompts that have ended on a walk, each with the index of its session."""

    prompts: tuple[tuple[int, Prompt], ...] = ()

    def and_by(self, change: Change) -> "Ended":
        return Ended((*self.prompts, *((i, p) for i, move in change.moves for p in move.ended)))

    def added_to(self, server: Server) -> Server:
        """The whole state."""
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
        if found is None:  # as of a protocol that changes a prompt after its end, or forgets it
            raise LookupError(f"{step.call} does something to a prompt that is done, or forgets one")
        number, ended = found
        yield number


def graph_of(
    behaviour: Behaviour, profiles: Sequence[Profile], traces: Iterable[Trace] = (), sessions: int = 1,
) -> ExportedGraph:
    """The states within any of the profiles or along any of the traces, and every step between them."""
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


# --- as data

class ValueColumn:
    """Values that repeat, kept once, and the number of each in order."""

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

    `columns` has one entry for each fact and for each prompt of a session, and in its `data` a value for each state.
    `degrees` has the number of steps on from each state; then for each of all steps, in order, `steps` says what
    happens and `targets` where it leads, as a distance back from the first state that no step before it has led to.
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
    """A prompt: its kind (a CSS class), its state in words, whether it has a run id, whether a cancel has reached it,
    how many terminal events it has had, and what it breaks if the system is at rest, each with the reason."""
    text, kind = telling.prompt_text(session, prompt)
    return (kind, text, int(prompt.run_id), prompt.reach.value, prompt.ends,
            tuple((id, rest_reason(id, prompt))
                  for id in broken_at_rest(properties_of(graph.behaviour), [prompt])))


def _step(graph: ExportedGraph, before: Server, edge: Edge, ended: tuple[tuple[int, str, int], ...]) -> tuple[Any, ...]:
    """A step: its call and who decides on it, the messages it makes a sequence diagram of, the properties it breaks,
    each with the reason, and the prompts it ends."""
    change = edge.change
    title = call_text(change.call, graph.sessions)
    messages = [sequence.call_message(change.call, title),
                *(sequence.effect_message(change.after, effect) for effect in change.effects)]
    return (title, change.call.name, change.call.action.actor.value,
            tuple((m.arrow.name.lower(), m.source, m.dest, m.text) for m in messages),
            tuple((id, reason(id, before, change)) for id in edge.broken), ended)
