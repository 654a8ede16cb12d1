"""Text attachments: accepted with a prompt, stored as parts, heard by the model, and compared under a run id."""

import asyncio
from base64 import b64encode
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from support.commands import read_refusal, run_command
from support.servers import Place, Process, serving, threaded, web

from cancelmark.impl.models import Attachment, ChatMessage, Role, Text
from cancelmark.impl.models.chat_request import encode_request
from cancelmark.impl.models.scripted import ScriptedModel
from cancelmark.impl.runtime import Runtime
from cancelmark.impl.runtime.refusals import Refusal
from cancelmark.impl.runtime.retention import Keep, forget_prompts
from cancelmark.impl.server.site import Limits
from cancelmark.impl.store import MemoryStore, SqliteStore

NOTES = Attachment("notes.txt", "text/plain", "é, and a line\n")


def attached(text: str, name: str = "a.txt", kind: str = "text/plain") -> dict[str, str]:
    return {"mime_type": kind, "content": b64encode(text.encode()).decode(), "file_path": name, "file_name": name}


async def post(place: Place, prompt: str, *attachments: dict[str, str], run_id: str = "") -> httpx.Response:
    body: dict[str, Any] = {"session_id": place.session, "prompt": prompt, "attachments": list(attachments)}
    return await place.http.post(f"{place.url}/agent", json=body | ({"run_id": run_id} if run_id else {}))


@pytest.mark.rule("R1c", "R22b", "R22c")
async def test_attachments_are_accepted_stored_as_parts_heard_and_compared() -> None:
    async with serving() as server, server.client() as http:
        place = await server.workspace(http)
        async with place.watching() as watch:
            markdown = "Text/Markdown; charset=utf-8"
            sent = attached("x = 1\n", "a.py", "text/x-python"), attached("été", "b.md", markdown)
            answer = await post(place, "look", *sent, run_id="run-1")
            assert answer.status_code == 202
            await watch.end("run-1")
            again = await post(place, "look", *sent, run_id="run-1")
            assert (again.status_code, again.json()) == (202, answer.json())
            for other in ((), sent[:1], sent[::-1]):
                assert (await post(place, "look", *other, run_id="run-1")).status_code == 409
            assert (await post(place, "", attached(""), run_id="run-2")).status_code == 202
            await watch.end("run-2")
            first, _, second, _ = await place.messages()
            assert first["parts"] == [
                {"type": "text", "data": {"text": "look"}},
                {"type": "binary", "data": {"Path": "a.py", "MIMEType": "text/x-python",
                                            "Data": sent[0]["content"]}},
                {"type": "binary", "data": {"Path": "b.md", "MIMEType": markdown, "Data": sent[1]["content"]}}]
            assert [part["type"] for part in second["parts"]] == ["binary"]
            assert server.requests[0].prompt.startswith("look\n\n[attached: a.py (text/x-python)]\nx = 1\n")
            assert "été" in server.requests[0].prompt
            assert "[attached: a.txt" in server.requests[1].prompt
            assert [p.get("attachments") for p in await place.get("prompts")] == [["a.py", "b.md"], ["a.txt"]]
            assert all(p["attachments"] for p in watch.of("prompt"))


async def test_the_limit_is_on_the_prompt_and_its_attachments_together() -> None:
    async with serving(limits=Limits(prompt=100)) as server, server.client() as http:
        place = await server.workspace(http)
        assert (await post(place, "x" * 40, attached("y" * 60))).status_code == 202
        refused = await post(place, "x" * 40, attached("y" * 61))
        assert (refused.status_code, refused.json()["message"]) == (
            400, "prompt: 101 characters with its attachments exceed the limit of 100; send less")


@pytest.mark.rule("R7a", "R9a", "R16a")
def test_attachments_outlive_a_kill_and_are_recorded_folded_and_heard(tmp_path: Path) -> None:
    async def main(server: Process) -> None:
        async with web(server.url) as http:
            told = (await http.post("/v1/workspaces", json={"path": "/tmp"})).json()
            place = Place(http, told["id"])
            await http.post(f"{place.url}/agent/init", json={})
            place.session = await place.new_session()
            await place.send("slow: one two three", "run-1")
            await place.until(lambda prompts: prompts[0]["state"] == "active")
            assert (await post(place, "fast: look", attached("inside"), run_id="run-2")).status_code == 202
            await place.until(lambda prompts: prompts[1]["state"] == "queued")
        server.kill()
        server.start()
        async with web(server.url) as http:
            place = Place(http, told["id"], place.session)
            await place.until(lambda prompts: prompts[1]["state"] == "done")
            *_, question, answer = await place.messages()
            assert [part["type"] for part in question["parts"]] == ["text", "binary"]
            assert "inside" in answer["parts"][0]["data"]["text"]
            again = await post(place, "fast: look", attached("inside"), run_id="run-2")
            assert again.json()["seq"] == 2

    with Process(tmp_path / "data", "--pace", "0.5") as server:
        asyncio.run(main(server))


@pytest.mark.rule("R22d")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_what_is_forgotten_is_still_compared(kind: str, tmp_path: Path) -> None:
    store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "test.db")
    async with Runtime(ScriptedModel(), store) as runtime:
        await runtime.create_session("s")
        await (await runtime.accept("s", "a", "run-a", [NOTES]))
        await (await runtime.accept("s", "b"))
        before = await store.prompt("run-a")
        assert before is not None
        assert before.was("a", before.attachments)
        assert before.attachments
        await forget_prompts(store, Keep(1), 0)
        known = await store.prompt("run-a")
        assert known is not None
        assert (known.text, known.attachments) == ("", ())
        assert known.was("a", before.attachments)
        assert not known.was("a")


async def test_the_runtime_refuses_a_prompt_without_anything_and_halves_of_characters() -> None:
    async with Runtime(ScriptedModel(), MemoryStore()) as runtime:
        await runtime.create_session("s")
        with pytest.raises(Refusal, match="empty; send a text or an attachment"):
            await runtime.accept("s", " ")
        with pytest.raises(Refusal, match="half a character"):
            await runtime.accept("s", "x", None, [Attachment("a", "text/plain", "\ud800")])
        assert "[attached: notes.txt" in (await (await runtime.accept("s", "", None, [NOTES]))).text


def test_a_model_behind_an_endpoint_hears_the_text_and_then_each_attachment() -> None:
    message = ChatMessage(Role.USER, (Text("look"), NOTES))
    body = asyncio.run(encode_request("m", [message], []))
    assert message.text == "look\n\n[attached: notes.txt (text/plain)]\né, and a line\n\n[end of notes.txt]"
    assert "[attached: notes.txt (text/plain)]\\né, and a line".encode() in body


def test_a_file_is_attached_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "app.json").write_text('{"level": "error"}')
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with threaded() as server:
        where = ("--server", server.url, "--workspace", str(tmp_path))
        told = run_command("run", *where, "--attach", str(tmp_path / "app.json"), "what went wrong?").stdout
        assert told.startswith("You said: what went wrong?\n")
        assert '{"level": "error"}' in told
        assert "level" in run_command("run", *where, "--attach", str(tmp_path / "app.json")).stdout
        run_command("send", *where, "--attach", str(tmp_path / "app.json"))
        assert "picture.png: not UTF-8 at byte 0; attach a text" in read_refusal(
            "run", *where, "--attach", str(tmp_path / "picture.png"), "look")
        assert "absent: No such file" in read_refusal("send", *where, "--attach", "absent", "look")
        assert "the prompt is empty; give a text, or attach a file with --attach" in read_refusal("send", *where)
