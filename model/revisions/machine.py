"""Adapts a revision to the explorer: each of its named steps becomes an action on one goroutine or session."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, NamedTuple, Self

from ..actions import Action, Actor, Variant
from ..lifecycle import Outcome, Row
from ..protocol import Move
from .agent import Agent, Frame, World

BOUND = {"accept": "prompts", "cancel": "cancels", "clear_queue": "clears", "summarize": "requeues", "close": "closes"}
ACTOR = {"accept": Actor.CLIENT, "cancel": Actor.CLIENT, "clear_queue": Actor.CLIENT, "close": Actor.OPERATOR,
         "step": Actor.TURN, "finish": Actor.TURN, "summarize": Actor.TURN}


class Do(NamedTuple):
    """A possible step of a goroutine: the action's name, its variant, and the method that carries it out."""

    action: str
    method: str
    variant: Variant = None


@cache
def action_named(name: str) -> Action:
    closes = name == "close"
    return Action(name, ACTOR.get(name, Actor.SERVER), _by_name, guard="", rule="", bound=BOUND.get(name),
                  everywhere=closes, while_closing=name not in ("accept", "close"),
                  sets_closing=True if closes else None)


def _by_name(revision: "Revision", method: str, world: World, *arguments: object) -> None:
    getattr(revision, method)(world, *arguments)


@dataclass(frozen=True)
class Revision:
    """A revision of the original protocol, as the explorer sees it."""

    accepts: tuple[Variant, ...] = (False, True, "in process")  # without a run id, with a run id, in-process
    names: tuple[str, ...] = ()  # the names of the actions it is restricted to; empty: all

    name: ClassVar[str]
    title: ClassVar[str]
    rows: ClassVar[tuple[Row, ...]] = ()
    start: ClassVar[Agent] = Agent()

    CALLS: ClassVar[tuple[str, ...]]  # the calls of clients and operators, each a method of that name
    LATER: ClassVar[dict[str, str]] = {}  # for calls of two steps: the method for the second
    STEPS: ClassVar[dict[str, tuple[Do, ...]]]  # the possible steps of a frame, by its position

    @property
    def actions(self) -> tuple[Action, ...]:
        steps = (do.action for at in self.STEPS.values() for do in at)
        names = dict.fromkeys(("accept", *self.CALLS, *(f"{c}…" for c in self.LATER), *steps))
        return tuple(action_named(n) for n in names if not self.names or n in self.names)

    def limited(self, actions: tuple[Action, ...]) -> Self:
        return replace(self, names=tuple(a.name for a in actions))

    def moves(self, agent: Agent, seq: int) -> Iterator[Move]:
        allowed = set(self.names)

        def may(name: str) -> bool:
            return not allowed or name in allowed

        if may("accept"):
            for variant in self.accepts:
                yield self.move(agent, "accept", None, variant, "accept", variant, seq + 1)
        for name in self.CALLS:
            if may(name):
                yield self.move(agent, name, None, None, name)
        for caller in agent.callers:
            yield self.move(agent, f"{caller.name}…", None, None, self.LATER[caller.name], caller)
        for g in agent.goroutines:
            for do in self.STEPS[g.top.at]:
                if may(do.action) and self.possible(agent, g.top, do):
                    yield self.move(agent, do.action, g.top.seq, do.variant, do.method, g.head, do.variant)

    def possible(self, agent: Agent, frame: Frame, do: Do) -> bool:
        """Whether a frame at the right position can take the step now."""
        if agent.dead and frame.at == "begin":  # every read of the database fails
            return do.action == "fail"
        if do.variant is Outcome.CANCELED:
            return frame.stop
        return bool(agent.queue_entries) if do.action == "step" else True

    def move(self, agent: Agent, name: str, seq: int | None, variant: Variant, method: str, *arguments: object) -> Move:
        world = World(agent)
        action = action_named(name)
        action.apply(self, method, world, *arguments)
        live, ended = world.agent.retire()
        return Move(action, seq, variant, world.agent, tuple(world.effects), (), live, ended)
