"""opencode's own HTTP, as far as it goes without npm: how its events are read, and what it is held to."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT

from cancelmark.conformance.adapter import GUARANTEES, Ended
from cancelmark.conformance.adapter.process import NotRunning
from examples.opencode.adapter import PROMISES, Opencode
from examples.opencode.circumstances import SILENT, quote_promises
from examples.opencode.process import OpencodeServer

ABORTED = {"name": "MessageAbortedError", "data": {"message": "Aborted"}}


def part(message: str, text: str, kind: str = "text") -> dict[str, Any]:
    return {"type": "message.part.updated", "properties": {"part": {"type": kind, "messageID": message, "text": text}}}


def answer(message: str, parent: str, **more: Any) -> dict[str, Any]:
    info = {"id": message, "role": "assistant", "parentID": parent, "time": {"created": 1, "completed": 2}, **more}
    return {"type": "message.updated", "properties": {"info": info}}


def heard(*events: dict[str, Any]) -> list[Ended]:
    """What the kit is told, if these prompts were sent: m1 is `one` and m2 is `two`."""
    async def scene() -> list[Ended]:
        adapter = Opencode("http://127.0.0.1:1")
        adapter.names = {"say one": "one", "say two": "two"}
        for event in (part("m1", "say one"), part("m2", "say two"), *events):
            adapter._hear(event)
        told: list[Ended] = []
        while not adapter._inbox.empty():
            event = adapter._inbox.get_nowait()
            assert isinstance(event, Ended)
            told.append(event)
        return told
    return asyncio.run(scene())


def test_the_first_complete_answer_is_the_end_of_its_prompt() -> None:
    running = answer("m3", "m2", time={"created": 1})
    done = answer("m3", "m2", finish="stop")
    told = heard(running, part("m3", "all about two"), done, done)
    assert told == [Ended("two", "end_turn", "all about two")]


@pytest.mark.parametrize(("error", "end"), [
    (ABORTED, Ended("one", "canceled")),
    ({"name": "APIError", "data": {"message": "no: one"}}, Ended("one", "error", None, "no: one")),
    ({"name": "UnknownError", "data": {}}, Ended("one", "error")),
])
def test_the_error_of_an_answer_says_how_it_ended(error: dict[str, Any], end: Ended) -> None:
    assert heard(answer("m3", "m1", error=error)) == [end]


def test_an_answer_that_says_something_else_later_is_a_second_end() -> None:
    told = heard(answer("m3", "m1", finish="stop"), answer("m3", "m1", finish="stop", error=ABORTED))
    assert [end.outcome for end in told] == ["end_turn", "canceled"]


def test_what_is_no_end_is_not_taken_for_one() -> None:
    assert not heard(
        answer("m3", "m1", finish="tool-calls"), answer("m3", "m9", finish="stop"), part("m3", "say one", "reasoning"),
        {"type": "session.idle", "properties": {"sessionID": "s"}}, {"type": "server.heartbeat", "properties": {}},
        {"type": "message.updated", "properties": {"info": {"id": "m1", "role": "user", "time": {"created": 1}}}})
    aborted = answer("m3", "m1", finish="tool-calls", error=ABORTED)
    assert [end.outcome for end in heard(aborted)] == ["canceled"]


def test_promises_are_about_guarantees_that_there_are_and_quote_what_the_server_says() -> None:
    assert Opencode.claims == PROMISES.keys() < GUARANTEES
    quoted = quote_promises({promise.operation: f"as {promise.operation} says" for promise in PROMISES.values()})
    assert quoted.keys() == GUARANTEES
    for guarantee, text in quoted.items():
        promise = PROMISES.get(guarantee)
        assert text == SILENT if promise is None else f"“as {promise.operation} says” {promise.reading}" in text


def test_the_committed_page_is_of_the_wording_that_is_committed() -> None:
    text = " ".join((ROOT / "specs" / "field" / "opencode.md").read_text().split())
    for promise in PROMISES.values():
        assert promise.reading in text


@pytest.mark.real
def test_opencode_is_told_which_model_to_use_and_to_stay_at_home(tmp_path: Path) -> None:
    server = OpencodeServer(tmp_path / "opencode", "http://127.0.0.1:1/v1")
    try:
        told = json.loads((server.work / "opencode.json").read_text())
        assert told["provider"]["fake"]["options"]["baseURL"] == "http://127.0.0.1:1/v1"
        assert server.environment["OPENCODE_DISABLE_AUTOUPDATE"] == "1"
        assert str(server.port) in server.command
        with pytest.raises(NotRunning, match=r"cannot start .*opencode: No such file"):
            asyncio.run(server.start())
    finally:
        asyncio.run(server.close())
