"""The original's behaviours, each on everything that can show it: the models, the runtime and the server."""

import asyncio
import logging
from contextlib import AbstractAsyncContextManager

import pytest
from support.behaviours import BEHAVIOURS, Behaviour, Sees
from support.live_players import LivePlayer, play_on_runtime, play_on_server
from support.model_player import play_on_model
from support.runtimes import OpenStore

from cancelmark.model.protocol import REFERENCE
from cancelmark.model.revisions import REVISIONS

every_behaviour = pytest.mark.parametrize(
    "behaviour", [pytest.param(behaviour, id=behaviour.name, marks=behaviour.marks or ()) for behaviour in BEHAVIOURS])


async def play_live(name: str, opened: AbstractAsyncContextManager[LivePlayer], behaviour: Behaviour) -> None:
    async with opened as player:
        for step in behaviour.steps:
            if isinstance(step, Sees):
                step.check(name, await player.see())
            else:
                for call in step.split("; "):
                    await player.play(call)


@every_behaviour
def test_the_reference_shows(behaviour: Behaviour) -> None:
    play_on_model(REFERENCE, behaviour)


@every_behaviour
@pytest.mark.parametrize("number", range(len(REVISIONS)), ids=lambda number: REVISIONS[number].name)
def test_a_revision_shows_what_it_has_and_not_what_came_later(behaviour: Behaviour, number: int) -> None:
    if number >= behaviour.since:
        play_on_model(REVISIONS[number], behaviour)
    else:
        with pytest.raises((AssertionError, ValueError)):
            play_on_model(REVISIONS[number], behaviour)


@every_behaviour
def test_the_runtime_shows(behaviour: Behaviour, open_store: OpenStore, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        asyncio.run(play_live("runtime", play_on_runtime(open_store(), behaviour), behaviour))
    assert caplog.messages == []


@every_behaviour
def test_the_server_shows(behaviour: Behaviour) -> None:
    asyncio.run(play_live("server", play_on_server(behaviour), behaviour))


def test_every_behaviour_has_a_name_of_its_own() -> None:
    assert len({behaviour.name for behaviour in BEHAVIOURS}) == len(BEHAVIOURS)
