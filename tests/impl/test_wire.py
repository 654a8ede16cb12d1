"""One definition of the wire: what the server says by it, its document allows, and the client reads back."""

import asyncio
import json
import subprocess
import sys
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_type_hints

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cancelmark.impl import wire
from cancelmark.impl.client import BadAnswer
from cancelmark.impl.client.results import read
from cancelmark.impl.models import Role
from cancelmark.impl.models.scripted import ScriptedModel
from cancelmark.impl.runtime import Runtime
from cancelmark.impl.runtime.events import Update
from cancelmark.impl.server.app import CALLS, document
from cancelmark.impl.server.schemas import check_request
from cancelmark.impl.store import MemoryStore
from cancelmark.model.lifecycle import Outcome, State

ANSWERS = [kind for kind in vars(wire).values()
           if isinstance(kind, type) and is_dataclass(kind) and kind.__name__ in document()["components"]["schemas"]
           and not issubclass(kind, wire.Request)]


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Whatever the server may say in an answer of this kind."""
    hints = get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{field.name: _values(hints[field.name]) for field in fields(kind)})


def _values(hint: Any) -> st.SearchStrategy[Any]:
    rule = next((one for one in get_args(hint) if isinstance(one, wire.Rule)), None)
    if rule and rule.schema:
        return st.sampled_from(rule.schema["enum"])
    json = st.dictionaries(st.text(), st.integers())
    plain = {wire.Json | None: json, Any: st.integers(),
             str: st.text(), int: st.integers(), bool | None: st.booleans(), bool: st.booleans(),
             tuple[str, ...]: st.lists(st.text()).map(tuple),
             tuple[wire.Json, ...]: st.lists(json).map(tuple)}
    return plain[hint]


@pytest.mark.parametrize("kind", ANSWERS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_what_the_server_says_its_document_allows_and_the_client_reads_back(kind: Any, data: st.DataObject) -> None:
    value = data.draw(values_of(kind))
    said = wire.to_json(value)
    schema = {**document()["components"]["schemas"][kind.__name__]}
    jsonschema.validate({name: list(one) if isinstance(one, tuple) else one for name, one in said.items()}, schema)
    assert read(kind, {name: list(one) if isinstance(one, tuple) else one for name, one in said.items()}) == value


def test_every_answer_of_a_call_is_a_type_of_the_wire() -> None:
    named = {kind.__name__ for kind in ANSWERS}
    assert len(ANSWERS) > 8
    for call in CALLS:
        for answer in get_args(call.answer) if isinstance(call.answer, UnionType) else [call.answer]:
            inner = next(iter(get_args(answer)), answer)
            assert inner in (None, int, str, dict, Any) or getattr(inner, "__name__", "") in named, call.name


def test_names_are_those_of_the_table_and_of_the_models() -> None:
    assert set(wire.ROLES) == set(Role)
    prompt = document()["components"]["schemas"]["Prompt"]["properties"]
    assert prompt["state"]["enum"] == [state.value for state in State]
    assert prompt["outcome"]["enum"] == [outcome.value for outcome in Outcome]


def test_what_the_client_sends_the_server_takes() -> None:
    client = "0F0F0F0F-0000-4000-8000-00000000000a"
    for sent in (wire.OpenWorkspace("/a", client), wire.OpenWorkspace("/a"), wire.CreateSession("a"),
                 wire.InitAgent(True), wire.SendPrompt("s", "hello", "r"), wire.SendPrompt("s", "hello"),
                 wire.SendPrompt("s", "", "r", [wire.Attachment.of("été", "a.txt")])):
        taken = check_request(type(sent), json.loads(json.dumps(sent, default=wire.to_json)))
        assert taken == sent or taken == wire.OpenWorkspace("/a", client.lower())


def test_updates_have_the_fields_that_the_wire_says() -> None:
    async def scene() -> list[Update]:
        async with Runtime(ScriptedModel(), MemoryStore()) as runtime:
            await runtime.create_session("s")
            with runtime.broker.subscribe() as subscription:
                handle = await runtime.accept("s", "hello", run_id="r")
                await runtime.cancel("s")
                await handle
                notices = []
                while subscription.held:
                    notices.append(await anext(subscription))
                return [notice for notice in notices if isinstance(notice, Update)]

    updates = asyncio.run(scene())
    assert {update.type for update in updates} == {"prompt", "message", "call"}
    assert [update.payload for update in updates if update.type == "call"] == [
        {"session_id": "s", "call": "cancel", "mark": 1}]
    for update in (update for update in updates if update.type != "call"):
        kind = wire.Prompt if update.type == "prompt" else wire.Message
        assert wire.to_json(read(kind, update.payload)).keys() == update.payload.keys()


def test_a_client_does_without_what_other_servers_leave_out_or_mean_otherwise() -> None:
    assert read(wire.Session, {"id": "s"}) == wire.Session("s", "", 0, None)
    assert read(wire.Workspace, {"id": "w", "path": "/", "clients": 3}) == wire.Workspace("w", "/")
    with pytest.raises(BadAnswer, match="field 'title' should be text, not 3"):
        read(wire.Session, {"id": "s", "title": 3})
    assert read(wire.Prompt, {"seq": 1, "session_id": "s", "state": "unheard of"}).state == "unheard of"


def test_the_client_loads_neither_pydantic_nor_the_server() -> None:
    code = ("import sys\nfor name in ('pydantic', 'starlette', 'uvicorn'): sys.modules[name] = None\n"
            "import cancelmark.impl.client, cancelmark.impl.adapters.wire\n"
            "print([name for name in sys.modules if name.startswith('cancelmark.impl.server')])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
