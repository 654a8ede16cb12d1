"""Property checks for a single step or a state at quiescence, for callers that do not explore the whole graph.

Only an exploration can check `progress`, which is a property of the whole graph.
"""

from collections.abc import Iterable, Sequence

from ..delivery import DELIVERY, Delivery
from ..family_properties import properties_for
from ..properties import Property, ServerStep, SessionStep
from ..protocol import Behaviour
from ..server import Change, Server, changes
from ..session import Prompt


def properties_of(behaviour: Behaviour) -> Sequence[Property]:
    """The properties that apply to a behaviour. Delivery is a separate model with its own property."""
    return (DELIVERY,) if isinstance(behaviour, Delivery) else properties_for(behaviour)


def broken_by(properties: Iterable[Property], before: Server, change: Change) -> tuple[str, ...]:
    """The ids of the properties that a step violates."""
    on_server = ServerStep.of(before, change)
    on_session = [SessionStep.of(before.sessions[i], move) for i, move in change.moves]
    return tuple(p.id for p in properties
                 if (p.on_server and not p.on_server(on_server))
                 or (p.on_session and not all(map(p.on_session, on_session))))


def broken_at_rest(properties: Iterable[Property], prompts: Sequence[Prompt]) -> tuple[str, ...]:
    """The ids of the liveness properties that these prompts violate, given that the system is quiescent."""
    return tuple(p.id for p in properties if p.at_rest and not all(map(p.at_rest, prompts)))


def at_rest(possible: Iterable[Change]) -> bool:
    """Whether the system is quiescent: none of the possible next steps is the system's own."""
    return not any(change.call.action.system for change in possible)


def broken_now(behaviour: Behaviour, server: Server) -> tuple[str, ...]:
    """The ids of the liveness properties that this state violates. Empty unless the system is quiescent."""
    return broken_at_rest(properties_of(behaviour), server.owed) if at_rest(changes(behaviour, server)) else ()
