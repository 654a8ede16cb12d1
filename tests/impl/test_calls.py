"""One table of calls: everything that is made from it has all of them, and a new row is enough to be on the wire."""

import inspect
from typing import Any

import httpx2
import pytest
from starlette.requests import Request
from support.servers import threaded

from cancelmark.conformance.adapter import Adapter
from cancelmark.conformance.adapter.table import TableAdapter
from cancelmark.conformance.playing.script import script
from cancelmark.impl import wire
from cancelmark.impl.client import Client
from cancelmark.impl.client.calls import write_call
from cancelmark.impl.runtime import Runtime
from cancelmark.impl.server import app
from cancelmark.impl.server.answers import Response, answer
from cancelmark.model.actions import Actor
from cancelmark.model.calls import CALLS, CALLS_BY_NAME, CALLS_BY_WORD, ClientCall
from cancelmark.model.family import ALL_ACTIONS

EVERY = pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)


def test_the_table_has_every_action_of_a_client_on_a_session() -> None:
    asked = {action.name for action in ALL_ACTIONS if action.actor is Actor.CLIENT}
    assert set(CALLS_BY_NAME) == asked - {"accept", "answer"}  # an answer names a question
    assert len(CALLS) == len(CALLS_BY_WORD) == len({(call.method, call.names_prompt, call.path) for call in CALLS})


@EVERY
def test_a_call_is_everywhere_under_its_name(call: ClientCall) -> None:
    runtime = inspect.signature(getattr(Runtime, call.name)).parameters
    assert set(call.takes.values()) == runtime.keys() - {"self", "session_id", "key", "by"}
    assert ("key" in runtime) is call.names_prompt
    assert set(inspect.signature(getattr(wire, call.sent)).parameters if call.sent else ()) == call.takes.keys()
    assert hasattr(wire, call.answer)
    assert inspect.iscoroutinefunction(getattr(Client, call.name))
    word = call.word or call.name
    assert getattr(TableAdapter, word) is not getattr(Adapter, word)
    done = script(f"accept A; {word} A" if call.names_prompt else f"accept A; {word}").batches[-1].together[0]
    assert done.needs == ({call.feature.value} if call.feature else set())
    assert bool(call.queue[0]) is bool(call.queue[1]) is call.names_prompt


def test_a_request_is_about_a_prompt_exactly_if_the_call_names_one() -> None:
    stop, replace = CALLS_BY_NAME["stop"], CALLS_BY_NAME["replace"]
    assert write_call(stop, "w", "s", hold=True) == (
        "POST", "/v1/workspaces/w/agent/sessions/s/stop", wire.StopPrompt(hold=True))
    assert write_call(replace, "w", "s", "a/b", text="new") == (
        "PUT", "/v1/workspaces/w/agent/sessions/s/prompts/run%3Aa%2Fb/text", wire.ReplaceText("new"))
    for call, prompt in ((stop, 1), (replace, None)):
        with pytest.raises(AssertionError, match=f"{call.name}: prompt missing or unexpected"):
            write_call(call, "w", "s", prompt, text="new")


def test_calls_on_a_prompt_may_share_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    async def pin(site: Any, request: Request) -> Response:
        """Made up"""
        return answer(wire.Placed(7))

    pinned = app.Call("POST", app.PROMPT + "/pin", pin, wire.Placed)
    for calls in ([*app.CALLS, pinned], [pinned, *app.CALLS]):
        monkeypatch.setattr(app, "CALLS", calls)
        with threaded() as server:
            url = f"{server.url}/v1/workspaces/w/agent/sessions/s/prompts"
            assert httpx2.post(f"{url}/1/pin").json() == {"ahead": 7}
            assert httpx2.post(f"{url}/run:a/next/pin").json() == {"ahead": 7}
            assert "there is no workspace" in httpx2.post(f"{url}/1/next").json()["message"]
