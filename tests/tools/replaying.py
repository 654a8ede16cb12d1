"""Replays every edge of the model's reachable graph on an implementation, and compares what it does.

An implementation is anything with the actions of specs/protocol.md as methods (`Subject`), made from nothing but a
number of sessions. It is brought into each situation along a shortest path from the start, takes the edge, and must ask
for the same effects and come to the same state as the model. What the model does not allow there, it must refuse
without a change. To try one that is not part of this project:

    PYTHONPATH=tests python tests/tools/replaying.py mymodule:MyServer
"""

import argparse
import importlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from inspect import getsource
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from typing import Protocol as Interface

from cancelmark.model.actions import Action, Reach
from cancelmark.model.check.graph import NOTHING_SPENT, Search, live_after, spend
from cancelmark.model.effects import Acknowledge, Effect, End, Fold, Record, Start, Stop
from cancelmark.model.lifecycle import IllegalTrigger, State
from cancelmark.model.properties import BOUND_NAMES, Bounds
from cancelmark.model.protocol import REFERENCE, Protocol
from cancelmark.model.questions import Question
from cancelmark.model.server import Call, Change, Server, changes
from cancelmark.model.session import DEFAULT_TRAITS, Prompt, Session, Traits
from cancelmark.model.trace import call_text

Asked: TypeAlias = tuple[str | int, ...]
View: TypeAlias = tuple[int, dict[int, str]]


class Subject(Interface):
    """A server, with sessions that are numbered from 0. Prompts are named by their seq.

    Each method is one atomic step. It returns the effects that it asks for, in order, or it raises and has changed
    nothing. An effect is one of ("acknowledge", seq), ("start", seq), ("stop", seq), ("fold", seq, into_seq),
    ("record", seq) and ("end", seq, outcome). States and outcomes are strings, as in the tables of protocol.md.
    """

    def accept(self, session: int, run_id: bool) -> Iterable[Asked]: ...  # and a `mode` where the family is replayed
    def enter(self, seq: int) -> Iterable[Asked]: ...
    def fail(self, seq: int) -> Iterable[Asked]: ...
    def settle(self, seq: int) -> Iterable[Asked]: ...
    def step(self, seq: int) -> Iterable[Asked]: ...
    def requeue(self, seq: int) -> Iterable[Asked]: ...
    def finish(self, seq: int, outcome: str) -> Iterable[Asked]: ...
    def cancel(self, session: int) -> Iterable[Asked]: ...
    def clear_queue(self, session: int) -> Iterable[Asked]: ...
    def close(self) -> Iterable[Asked]: ...
    def crash(self) -> Iterable[Asked]: ...
    def recover(self) -> Iterable[Asked]: ...

    def view(self, session: int) -> View:
        """The session's mark, and the state of each of its prompts that is not done, by seq."""


Make: TypeAlias = Callable[[int], Subject]  # from a number of sessions


class Difference(AssertionError):
    """The implementation and the model part ways. Says after which calls, and how."""

    def __init__(self, path: Sequence[str], call: str, what: str, model: object, subject: object) -> None:
        super().__init__(f"after [{', '.join(path)}], {call}: {what} differ\n"
                         f"  the model:          {model}\n  the implementation: {subject}")


# --- The graph ---------------------------------------------------------------------------------------------------

class Situation(NamedTuple):
    """A state of the model without its finished prompts, which no action looks at, and what is spent of the bounds."""

    server: Server
    spent: tuple[int, ...] = NOTHING_SPENT


class Edge(NamedTuple):
    change: Change
    after: Situation
    ended: frozenset[tuple[int, Prompt]]  # with their sessions


@dataclass
class Graph:
    """Every situation within the bounds, the path to each, and the edges that leave it."""

    bounds: Bounds
    protocol: Protocol = REFERENCE
    edges: dict[Situation, list[Edge]] = field(default_factory=dict)
    paths: dict[Situation, tuple[Call, ...]] = field(default_factory=dict)
    occurrences: Counter[Situation] = field(default_factory=Counter)  # the whole states that it stands for

    def walk(self) -> Iterator[Situation]:
        """Each situation once, those with the shortest paths first. Nothing is known of what comes later."""
        start = Situation(Server(sessions=(self.protocol.start,) * self.bounds.sessions))
        self.paths[start] = ()
        for situation, _ in Search([(start, frozenset[tuple[int, Prompt]]())], self._onward):
            self.occurrences[situation] += 1
            if self.occurrences[situation] == 1:
                yield situation

    def _onward(
        self, state: tuple[Situation, frozenset[tuple[int, Prompt]]],
    ) -> Iterator[tuple[Edge, tuple[Situation, frozenset[tuple[int, Prompt]]]]]:
        situation, ended = state
        for edge in self.edges_of(situation):
            self.paths.setdefault(edge.after, (*self.paths[situation], edge.change.call))
            yield edge, (edge.after, ended.union(edge.ended))

    def edges_of(self, situation: Situation) -> list[Edge]:
        if situation not in self.edges:
            self.edges[situation] = list(self._leaving(situation))
        return self.edges[situation]

    def _leaving(self, situation: Situation) -> Iterator[Edge]:
        left = {name for name, n in zip(BOUND_NAMES, situation.spent) if n < getattr(self.bounds, name)}
        actions = tuple(a for a in self.protocol.actions if a.bound is None or a.bound in left)
        for change in changes(limited(self.protocol, actions), situation.server):
            spent = spend(self.bounds, situation.spent, change.call)
            assert spent is not None
            yield Edge(change, Situation(live_after(change), spent),
                       frozenset((index, prompt) for index, move in change.moves for prompt in move.ended))

    def count(self) -> int:
        """The edges between whole states: an edge between situations counts as often as it occurs."""
        return sum(len(edges) * self.occurrences[situation] for situation, edges in self.edges.items())


# --- The comparison ----------------------------------------------------------------------------------------------

def asked(effect: Effect) -> Asked:
    match effect:
        case Acknowledge(seq):
            return "acknowledge", seq
        case Start(seq):
            return "start", seq
        case Stop(seq):
            return "stop", seq
        case Fold(seq, into):
            return "fold", seq, into
        case Record(seq):
            return "record", seq
        case End(seq, outcome):
            return "end", seq, outcome.value
    return effect.kind, effect.seq, *(getattr(effect, name) for name in effect.details)


def view(session: Session) -> View:
    return session.mark, describe(session.held, (
        (p.seq, p.state, p.traits or DEFAULT_TRAITS, p.asks) for p in session.prompts if p.state is not State.DONE))


def describe(held: bool, prompts: Iterable[tuple[int, State, Traits, Iterable[Question]]]) -> dict[int, str]:
    """The state of each prompt, with what calls of the family have made of it. A hold stands under 0."""
    found = {seq: " ".join([state.value, *(f"{name}={value}" for name, value in traits._asdict().items() if value),
                            *(question.value for question in asks)])
             for seq, state, traits, asks in prompts}
    return {0: "held", **found} if held else found


def apply(subject: Subject, call: Call) -> list[Asked]:
    """The call on the implementation."""
    name = call.name
    if name == "accept":
        assert call.session is not None
        modes = {"mode": call.variant} if isinstance(call.variant, str) else {}
        return list(subject.accept(call.session, run_id=call.variant is True, **modes))
    if call.action.everywhere:
        return list(getattr(subject, name)(*([call.variant] if call.variant else [])))
    if call.action.subject is None:
        return list(getattr(subject, name)(call.session, *([call.variant] if call.variant else [])))
    arguments = [] if call.variant is None else [getattr(call.variant, "value", call.variant)]
    return list(getattr(subject, name)(call.seq, *arguments))


def by_session(server: Server, effects: Iterable[Asked]) -> dict[int, list[Asked]]:
    """Effects in order for each session: there is no order between sessions. A bug may ask something of a prompt that
    was done before, and that no session has any more."""
    sorted_out: dict[int, list[Asked]] = {}
    for effect in effects:
        home = next((i for i, s in enumerate(server.sessions) if any(p.seq == effect[1] for p in s.prompts)), 0)
        sorted_out.setdefault(home, []).append(tuple(effect))
    return sorted_out


def forbidden(server: Server, protocol: Protocol) -> Iterator[Call]:
    """Every call that the model does not allow here. A seq that no session has belongs to a prompt that is done."""
    possible = {change.call for change in attempted(protocol, server)}
    home = {p.seq: i for i, session in enumerate(server.sessions) for p in session.prompts}
    for action in protocol.actions:
        places: list[tuple[int | None, int | None]]
        if action.everywhere:
            places = [(None, None)]
        elif action.subject is None:
            places = [(i, server.seq + 1 if action.name == "accept" else None) for i in range(len(server.sessions))]
        else:
            places = [(home.get(seq, 0), seq) for seq in range(1, server.seq + 1)]
        for place in places:
            yield from (call for variant in action.variants
                        if (call := Call(action, *place, variant)) not in possible)


@cache
def limited(protocol: Protocol, actions: tuple[Action, ...]) -> Protocol:
    return protocol.limited(actions)


def attempted(protocol: Protocol, server: Server) -> list[Change]:
    """What can happen here. A bug in the protocol may let an action fire where no row applies: that cannot happen."""
    try:
        return list(changes(protocol, server))
    except IllegalTrigger:
        if len(protocol.actions) == 1:
            return attempted_one_by_one(protocol, server)
        return [change for action in protocol.actions for change in attempted(limited(protocol, (action,)), server)]


def attempted_one_by_one(protocol: Protocol, server: Server) -> list[Change]:
    """The same for a protocol of one action, of which some prompt is the reason that it cannot happen."""
    (action,) = protocol.actions
    found: list[Change] = []
    for asked_for in server.prompts if action.subject else ():
        def subject(port: Any, prompt: Any, variant: Any, seq: int = asked_for.seq) -> bool:
            return prompt.seq == seq and action.subject is not None and action.subject(port, prompt, variant)

        with suppress(IllegalTrigger):
            one = protocol.limited((replace(action, subject=subject),))
            found += [change._replace(call=change.call._replace(action=action)) for change in changes(one, server)]
    return found


def visible(server: Server) -> Server:
    """The server without the history that an observer keeps: what an implementation can know."""
    return server._replace(sessions=tuple(
        session.with_prompts(p._replace(reach=Reach.NOTHING, ends=0, wish=None) for p in session.prompts)
        ._replace(wished_hold=False)  # type: ignore[attr-defined]
        for session in server.sessions))


def replay(make: Make, bounds: Bounds, protocol: Protocol = REFERENCE) -> int:
    """Replays every edge within the bounds, and returns how many those are; raises `Difference` at the first that
    differs. What only an observer can tell apart is replayed once."""
    graph = Graph(bounds, protocol)
    tried: set[object] = set()
    for situation in graph.walk():
        here = Situation(visible(situation.server), situation.spent)
        way = graph.paths[situation]
        path = [call_text(call, bounds.sessions) for call in way]
        for change, after, _ in graph.edges_of(situation):
            if (here, change.call) in tried:
                continue
            tried.add((here, change.call))
            text = call_text(change.call, bounds.sessions)
            subject = brought(make(bounds.sessions), way)
            expected = by_session(change.after, map(asked, change.effects))
            try:
                effects = by_session(change.after, apply(subject, change.call))
            except Exception as error:
                raise Difference(path, text, "answers", expected, repr(error)) from error
            if effects != expected:
                raise Difference(path, text, "effects", expected, effects)
            compare(path, text, after.server, subject)
        if here not in tried and not any(s.down for s in here.server.sessions):  # who is down cannot be called
            tried.add(here)
            try_forbidden(brought(make(bounds.sessions), way), path, here.server, protocol)
    return graph.count()


def brought(subject: Subject, way: Iterable[Call]) -> Subject:
    for call in way:
        apply(subject, call)
    return subject


def try_forbidden(subject: Subject, path: Sequence[str], server: Server, protocol: Protocol) -> None:
    """What the model does not allow must be refused, and change nothing. A step that can take in nobody may as well
    do nothing."""
    for call in forbidden(server, protocol):
        text = call_text(call, len(server.sessions))
        try:
            effects = apply(subject, call)
        except Exception:
            pass
        else:
            if call.name != "step" or effects:
                raise Difference(path, text, "answers", "an error, for this cannot happen here", effects)
        compare(path, f"{text}, which is refused", server, subject)


def compare(path: Sequence[str], call: str, server: Server, subject: Subject) -> None:
    expected = [view(session) for session in server.sessions]  # type: ignore[arg-type]
    found = [subject.view(i) for i in range(len(server.sessions))]
    if found != expected:
        raise Difference(path, call, "states", expected, found)


# --- For implementations from elsewhere --------------------------------------------------------------------------

SMALL = (
    Bounds(1, cancels=1),
    Bounds(2, cancels=1, clears=1),
    Bounds(2, cancels=2, clears=1, requeues=1, crashes=1, closes=1),
    Bounds(2, cancels=1, crashes=1, closes=1, sessions=2),
    Bounds(3, cancels=2, clears=1),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=f"{__doc__}\n{getsource(Subject)}",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("make", metavar="MODULE:CLASS", help="called with a number of sessions, makes a server")
    name, _, attribute = parser.parse_args(arguments).make.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        make: Any = getattr(importlib.import_module(name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        parser.error(f"{name}:{attribute}: {error}; give a module of this directory and a class in it, as mine:Server")
    for bounds in SMALL:
        try:
            print(f"{bounds}: {replay(make, bounds):,} edges agree", flush=True)
        except Difference as difference:
            print(f"{bounds}: {difference}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
