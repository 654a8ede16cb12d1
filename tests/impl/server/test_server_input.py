"""What clients send, good and bad: bad input is refused with a message that names the field, and strangers stay out."""

import asyncio
import json
import os
import re
import socket
import subprocess
from asyncio import gather
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import thread_time
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx2 as httpx
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from support.budget import effort
from support.servers import PATIENCE, Place, Process, Server, placed, serving, web

from cancelmark.impl.cli.serve import token_in
from cancelmark.impl.server.app import CALLS, document
from cancelmark.impl.server.guard import Guard
from cancelmark.impl.server.listening import bind_unix
from cancelmark.impl.server.schemas import VALUES, BadInput, check_request, parse_body
from cancelmark.impl.server.site import BODY, Limits
from cancelmark.impl.wire import CreateSession, OpenWorkspace, SendPrompt

TOKEN = "a-token-of-32-characters-or-more"


# --- bad input

BODIES: list[tuple[bytes, str]] = [
    (b"{", "the body is not JSON: Expecting property name"),
    (b"hello", "the body is not JSON: Expecting value at line 1, column 1"),
    (b'{"session_id": "s", "prompt": "p"} x', "the body is not JSON: Extra data"),
    (b'{"session_id": "s", "prompt": "a\nb"}', "the body is not JSON: Invalid control character"),
    (b"null", "the body is null; send a JSON object with session_id, prompt"),
    (b"[1]", "the body is an array"),
    (b'"text"', "the body is a string"),
    (b"3", "the body is a number"),
    (b"true", "the body is a boolean"),
    (b"", "session_id: field required; prompt: field required"),
    (b"{}", "session_id: field required; prompt: field required"),
    (b'{"session_id": "SID"}', "prompt: field required"),
    (b'{"session_id": "SID", "prompt": 3}', "prompt: input should be a valid string"),
    (b'{"session_id": "SID", "prompt": null}', "prompt: input should be a valid string"),
    (b'{"session_id": "SID", "prompt": ["x"]}', "prompt: input should be a valid string"),
    (b'{"session_id": 1, "prompt": "x"}', "session_id: input should be a valid string"),
    (b'{"session_id": {"a": 1}, "prompt": "x"}', "session_id: input should be a valid string"),
    (b'{"session_id": "SID", "prompt": "x", "run_id": 3}', "run_id: input should be a valid string"),
    (b'{"session_id": "SID", "prompt": "x", "run_id": "' + b"r" * 201 + b'"}', "run_id: string should have at"),
    (b'{"session_id": "SID", "prompt": "x", "attachments": [{}]}', "attachments.0.mime_type: field required"),
    (b'{"session_id": "SID", "prompt": " \\n "}', "prompt: empty; send a text or an attachment"),
    (b'{"session_id": "SID", "prompt": "", "attachments": []}', "prompt: empty; send a text or"),
    (b'{"session_id": "SID", "prompt": "x", "attachments": [{"mime_type": "text/plain", "content": "aGk="},'
     b' {"mime_type": "image/png", "content": "aGk="}]}', "attachments.1.mime_type: 'image/png' is not supported"),
    (b'{"session_id": "SID", "prompt": "x", "attachments": [{"mime_type": "text/plain", "content": "a"}]}',
     "attachments.0.content: it is not valid base64; encode it"),
    (b'{"session_id": "SID", "prompt": "x", "attachments": [{"mime_type": "text/plain", "content": "/w=="}]}',
     "attachments.0.content: it is not valid UTF-8 at byte 0; send text"),
    (b'{"session_id": "SID", "prompt": "x", "attachments": [{"mime_type": "text/plain", "content": "AA=="}]}',
     "attachments.0.content: it contains a null character"),
    (b'{"session_id": "SID", "prompt": "x", "attachments": [{"mime_type": "text/plain", "content": "aGk=",'
     b' "file_path": "\\ud800"}]}', "attachments.0.file_path: it contains half a character"),
    (b'{"session_id": "SID", "prompt": "x", "attachments": [' + b", ".join(
        101 * [b'{"mime_type": "text/plain", "content": "aGk="}']) + b"]}", "attachments: list should have at most"),
    (b'{"session_id": "SID", "prompt": "x", "attachments": "no"}', "attachments: input should be a valid list"),
    (b'{"session_id": "SID", "prompt": "x", "prompt": "y"}', "duplicate key 'prompt'"),
    (b'{"session_id": "SID", "prompt": "x", "more": {"a": 1, "a": 2}}', "duplicate key 'a'"),
    (b'{"session_id": "SID", "prompt": "x", "more": NaN}', "NaN is not valid JSON"),
    (b'{"session_id": "SID", "prompt": "\\ud800"}', "prompt: it contains half a character"),
    (b'{"session_id": "SID", "prompt": "x", "run_id": "\\udfff"}', "run_id: it contains half a character"),
    (b'{"session_id": "SID", "prompt": "a\\u0000b"}', "prompt: it contains a null character"),
    (b'{"prompt": "\xff"}', "the body is not UTF-8: byte 12 is 0xff"),
    (b'{"session_id": "SID", "prompt": "\xed\xa0\x80"}', "the body is not UTF-8"),
    ('{"session_id": "SID", "prompt": "x"}'.encode("utf-16"), "the body is not UTF-8"),
    (b'\xef\xbb\xbf{"session_id": "SID", "prompt": "x"}', "the body is not JSON: Unexpected UTF-8 BOM"),
    (bytes(range(256)), "the body is not UTF-8"),
    (b"[" * 9_000, "the body is nested too deeply"),
    (b'{"a":' * 9_000, "the body is nested too deeply"),
    (b"[" * 100_000, "the body has more than 10,000 values"),
    (b'{"more": [' + b"1," * 10_000 + b"1]}", "the body has more than 10,000 values"),
    (b'{"more": [' + b'"",' * 30_000 + b'""]}', "the body has more than 10,000 values"),
    (b'"' + b'\\",[' * 100_000, "the body is not JSON: Unterminated string"),
    (b'{"n": ' + b"9" * 10_000 + b"}", "invalid body: "),
]


async def test_a_bad_body_is_400_with_a_message_that_names_what_is_wrong_and_nothing_is_accepted() -> None:
    async with placed() as (_, place):
        for body, message in BODIES:
            body = body.replace(b"SID", place.session.encode())
            answer = await place.http.post(f"{place.url}/agent", content=body)
            assert answer.status_code == 400, body[:80]
            assert message in answer.json()["message"], body[:80]
        assert await place.get("prompts") == []
        await place.send("and it still works", "run-1")


@pytest.mark.parametrize(("body", "message"), [
    ({}, "path: field required"), ({"path": 3}, "path: input should be a valid string"), ({"path": ""}, "path: "),
    ({"path": "relative/path"}, "path: it is a relative path"),
    ({"path": "/x", "client_id": "me"}, "client_id: 'me' is not"),
    ({"path": "/x", "client_id": 3}, "client_id: input should be a valid string"),
    ({"path": "/" + "x" * 5000}, "path: string should have at most 4096"),
    ({"path": "/a\0b"}, "path: it contains a null"),
    ({"path": "/\ud800"}, "path: it contains half a character"),
])
async def test_a_bad_path_or_client_is_named(body: dict[str, Any], message: str) -> None:
    async with placed() as (_, place):
        answer = await place.http.post("/v1/workspaces", content=json.dumps(body))
        assert answer.status_code == 400
        assert answer.json()["message"].startswith(message)


ODD = ["unknown", "%2e%2e", "%00", "a%00b", "%ff", "☃", "a b", "'; DROP TABLE sessions; --", "<script>", "%",
       "x" * 5000, "0", "-1", "null", "%0d%0aset-cookie:x", "{id}", "*"]


async def test_a_text_may_have_as_many_commas_and_brackets_as_it_likes() -> None:
    async with placed() as (_, place):
        for text in ("[1, {2}]," * 20_000, 'say "[,]" ' * 15_000, "\\,\"" * 60_000):
            await place.send(text)


COSTLY: dict[str, Callable[[int], bytes]] = {
    "a name twice": lambda size: b"{%s, \"last\": 1, \"last\": 1}" % b",".join(
        b'"%d": 0' % n for n in range(min(size // 14, VALUES - 10))),
    "names": lambda size: b"{%s}" % b",".join(b'"%d": 0' % n for n in range(size // 14)),
    "names in vain": lambda size: b"{%s}" % b",".join(b'"%d": 0' % n for n in range(VALUES - 10)) + b" " * size,
    "many objects": lambda size: b"[%s 1]" % (b'{"": 0},' * (size // 8)),
    "many lists": lambda size: b"[%s 1]" % (b"[]," * (size // 3)),
    "many numbers": lambda size: b"[%s 1]" % (b"1e300," * (size // 6)),
    "many texts": lambda size: b"[%s 1]" % (b'"\\n",' * (size // 5)),
    "nested": lambda size: b"[" * size,
    "nested over and over": lambda size: b"[%s 1]" % ((b"[" * 900 + b"]" * 900 + b",") * (size // 1801)),
    "a long whole number": lambda size: b"1" * size,
    "a long fraction": lambda size: b"0." + b"1" * size,
    "a long exponent": lambda size: b"1e" + b"1" * size,
    "long numbers": lambda size: b"[%s 1]" % ((b"9" * 4299 + b",") * (size // 4300)),
    "escapes": lambda size: b'{"prompt": "%s"}' % (b"\\ud83d\\ude00" * (size // 12)),
    "a text without an end": lambda size: b'"' + b'\\",' * (size // 3),
    "many texts without an end": lambda size: b'"[,\\' * (size // 4),
    "spaces": lambda size: b" " * size + b"x",
    "lines": lambda size: b"\n" * size + b"x",
    "a prompt of spaces": lambda size: b'{"session_id": "s", "prompt": "%s"}' % (b" " * size),
    "attachments": lambda size: b'{"session_id": "s", "prompt": "x", "attachments": [%s 1]}' % (b"1," * (VALUES - 20)),
}


def cost(body: bytes) -> float:
    """Seconds of processor time in which this body is taken or refused: the least of some tries."""
    tries = []
    for _ in range(5):
        began = thread_time()
        with suppress(BadInput):
            check_request(SendPrompt, parse_body(body))
        tries.append(thread_time() - began)
    return min(tries)


@pytest.mark.parametrize("kind", COSTLY)
def test_no_body_costs_much_more_than_an_honest_one_of_its_size(kind: str) -> None:
    """Everybody waits while a body is parsed. An honest one: a prompt of that size with a line end now and then."""
    honest = b'{"session_id": "s", "prompt": "%s"}' % (b"a line\\n" * (BODY // 8))
    assert cost(COSTLY[kind](BODY)) < 15 * cost(honest)


async def test_unknown_ids_are_404_however_odd_they_are() -> None:
    async with placed() as (_, place):
        for odd in ODD:
            for path in (f"/v1/workspaces/{odd}", f"/v1/workspaces/{odd}/agent", f"{place.url}/sessions/{odd}",
                         f"{place.url}/agent/sessions/{odd}/prompts/queued"):
                answer = await place.http.get(path)
                assert answer.status_code == 404, path
                assert answer.json()["message"].startswith(("there is no ", "not found: "))
                assert len(answer.content) < 1000
            assert (await place.do("cancel", odd)).status_code == 404
            assert (await place.post("hello", None, odd[:200])).status_code == 400


NAMES = st.text(st.sampled_from("ab\n\r\t /%?#.:;+&=é\u2028\ufffd☃😀"), min_size=1, max_size=8) | st.sampled_from(
    ["list", "queued", "clear", "1", "run:x", "..", "x/text", "x/next", "x\n", "\n", "x/text\n", "%0a", "%ff"])


@given(st.lists(NAMES, min_size=2, max_size=8, unique=True))
@example(["x", "x\n", "a\nb"])
@settings(max_examples=effort(20), deadline=None)
async def test_a_call_by_run_id_reaches_that_prompt_and_no_other(names: list[str]) -> None:
    """Whatever characters a run id has."""
    async with placed() as (server, place):
        server.holds("first")
        await place.send("first", "first")
        for name in names:
            await place.send("one that waits", name)
        waiting = set(names)
        for name in reversed(names):
            url = f"{place.url}/agent/sessions/{place.session}/prompts/run:{quote(name, safe='')}"
            found = await place.get(f"prompts?run_id={quote(name, safe='')}")
            assert [one["run_id"] for one in found] == [name]
            for call in (place.http.put(f"{url}/text", json={"prompt": "edited"}), place.http.post(f"{url}/next")):
                assert (await call).status_code == 200
            queue = await place.get("prompts/list?full=true")
            assert queue[0]["run_id"] == name
            assert {one["run_id"] for one in queue if one["text"] == "edited"} == {name}
            assert (await place.http.delete(url)).json()["effect"] == "canceled"
            waiting.remove(name)
            assert {one["run_id"] for one in await place.get("prompts/list?full=true")} == waiting


async def test_a_name_that_is_not_utf_8_is_nobodys() -> None:
    async with placed() as (server, place):
        server.holds("first")
        await place.send("first", "\ufffd")
        url = f"{place.url}/agent/sessions/{place.session}/prompts"
        for answer in (await place.http.delete(f"{url}/run:%ff"), await place.http.get(f"{url}?run_id=%ff")):
            assert answer.status_code == 404
        assert (await place.get())["is_busy"]


async def test_what_is_no_call_is_said_so() -> None:
    async with placed() as (_, place):
        for path in ("/v1", "/v1/", "/v2/health", "/v1/health/", "/favicon.ico", "//v1/health", "/v1/workspaces/"):
            assert (await place.http.get(path)).status_code == 404
        wrong = await place.http.put("/v1/workspaces")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, POST")
        assert (await place.http.head(f"{place.url}/events")).status_code == 405
        for client in ("", "me", "3" * 36, str(uuid4()) + "x", str(uuid4())[:-1], "{" + str(uuid4()) + "}"):
            answer = await place.http.get(f"{place.url}/events", params={"client_id": client})
            assert answer.status_code == 400
            assert answer.json()["message"].startswith("client_id: ")
        assert (await place.http.get(f"/v1/workspaces/x/events?client_id={uuid4()}")).status_code == 404


async def test_a_call_that_takes_no_body_does_not_mind_one() -> None:
    async with placed() as (_, place):
        for size, status in (10, 200), (100_000, 200), (BODY, 200), (3_000_000, 413):
            answer = await place.http.post(f"{place.url}/agent/sessions/{place.session}/cancel", content=b"x" * size)
            assert answer.status_code == status
            assert (await place.http.get("/v1/health")).status_code == 200


@pytest.mark.parametrize("framing", ["content-length: 1000000000000", "transfer-encoding: chunked"])
@pytest.mark.parametrize("host", ["localhost", "evil.example"])
async def test_no_call_takes_a_body_without_an_end(host: str, framing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is answered, and whether or not the call takes a body."""
    monkeypatch.setattr("cancelmark.impl.server.connections.UNWANTED", 100_000)
    piece = b"10000\r\n%s\r\n" % (b"x" * 65_536) if "chunked" in framing else b"x" * 65_536
    calls = {(call.method, call.path) for call in CALLS} | {("PATCH", "/v1/workspaces"), ("GET", "/nowhere")}
    async with placed(limits=Limits(body=10_000)) as (server, place):
        address, port = server.url.removeprefix("http://").split(":")
        for method, path in sorted(calls):
            path = path.format(id=place.id, sid=place.session, prompt="1", ask="1.1", client_id=uuid4())
            _, writer = await asyncio.open_connection(address, int(port))
            writer.write(f"{method} {path} HTTP/1.1\r\nhost: {host}\r\n{framing}\r\n\r\n".encode())
            sent = 0
            with suppress(ConnectionError):
                while sent < 100_000_000:
                    writer.write(piece)
                    await writer.drain()
                    sent += len(piece)
            assert sent < 100_000_000, (method, path)
            writer.close()


async def test_a_body_that_does_not_arrive_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cancelmark.impl.server.guard.PATIENCE", 0.2)
    async with placed() as (server, place):
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST {place.url}/agent HTTP/1.1\r\nhost: {host}\r\ncontent-length: 100\r\n\r\n{{".encode())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
        assert head.startswith(b"HTTP/1.1 408 ")
        writer.close()


@pytest.mark.parametrize("sent", [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET\r\n\r\n", b"\0" * 100, b"GET / HTTP/1.1\r\n\r\n",
    b"GET /v1/health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
    b"POST /v1/workspaces HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
    b"POST /v1/workspaces HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
    b"POST /v1/workspaces HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
], ids=lambda sent: repr(sent[:30]))
async def test_what_is_no_http_is_refused_and_the_server_goes_on(sent: bytes) -> None:
    async with placed() as (server, place):
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), PATIENCE)
        assert answer == b"" or re.match(rb"HTTP/1.1 4\d\d ", answer)
        writer.close()
        assert (await place.http.get("/v1/health")).status_code == 200


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("framing", [
    "content-length: 5\r\ntransfer-encoding: chunked", "transfer-encoding: chunked\r\ncontent-length: 44",
    "transfer-encoding: chunked\r\ntransfer-encoding: chunked", "transfer-encoding: chunked, identity",
    "transfer-encoding: gzip, chunked", "transfer-encoding: xchunked", "content-length: 5, 6", "content-length: +5",
])
async def test_a_request_whose_end_can_be_read_in_two_ways_is_the_last_of_its_connection(
    framing: str, version: str,
) -> None:
    """A proxy may see another request in what follows."""
    async with placed() as (server, _):
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST /v1/workspaces HTTP/{version}\r\nhost: {host}\r\n{framing}\r\n\r\n0\r\n\r\n"
                     f"GET /v1/health HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.read(), PATIENCE)
        assert re.match(rb"HTTP/1.1 (400|501) ", answer)
        assert len(re.findall(rb"HTTP/1.1 \d", answer)) == 1
        writer.close()


@given(data=st.binary(max_size=60) | st.text(max_size=60).map(lambda text: json.dumps(text).encode()))
@settings(max_examples=effort(100), deadline=None)
def test_whatever_bytes_are_sent_they_are_taken_or_refused(data: bytes) -> None:
    for kind in (OpenWorkspace, CreateSession, SendPrompt):
        with suppress(BadInput):
            check_request(kind, parse_body(data))


# --- the OpenAPI document

async def test_the_document_has_every_call_and_is_served() -> None:
    async with placed() as (_, place):
        served = (await place.http.get("/openapi.json")).json()
        assert served == document()
        assert {(method.upper(), path) for path, calls in served["paths"].items() for method in calls} == {
            (call.method, call.path) for call in CALLS}
        ids = [operation["operationId"] for calls in served["paths"].values() for operation in calls.values()]
        assert len(ids) == len(set(ids))


def test_schemathesis_finds_no_500_no_hang_and_no_answer_that_the_document_does_not_allow(tmp_path: Path) -> None:
    """Random calls, good and bad, from the document; most of them on a workspace and a session that exist."""
    import schemathesis

    often = st.integers(0, 3).map(bool)
    options = ("--memory", "--pace", "0.01", "--max-queue", "20", "--max-workspaces", "1000000")
    with Process(tmp_path / "data", *options) as server:
        workspace, session = asyncio.run(one_place(server.url))
        schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        statuses: Counter[int] = Counter()
        known = {"id": workspace, "sid": session}

        @given(data=st.data())
        @settings(max_examples=effort(10), deadline=None, phases=[Phase.generate, Phase.shrink],
                  suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
        def call(data: st.DataObject) -> None:
            case = data.draw(operation.as_strategy() | operation.as_strategy(
                generation_mode=schemathesis.GenerationMode.NEGATIVE))
            if data.draw(often) and isinstance(case.path_parameters, dict):
                case.path_parameters = {**case.path_parameters, **{
                    name: known[name] for name in known if name in case.path_parameters}}
            if data.draw(often) and isinstance(case.body, dict) and "session_id" in case.body:
                case.body = {**case.body, "session_id": session}
            if case.method == "DELETE" and (case.path_parameters or {}).get("id") == workspace:
                return
            answer = case.call(timeout=PATIENCE)
            statuses[answer.status_code] += 1
            case.validate_response(answer, excluded_checks=[
                schemathesis.checks.positive_data_acceptance, schemathesis.checks.negative_data_rejection,
                schemathesis.checks.missing_required_header, schemathesis.checks.ignored_auth,
                schemathesis.checks.use_after_free, schemathesis.checks.ensure_resource_availability])

        for found in schema.get_all_operations():
            operation = found.ok()
            if not operation.path.endswith("/events"):  # it never ends
                call()
        assert asyncio.run(accepts(server.url, workspace, session)) == 202, "and it still works"
    assert {200, 400, 404} <= set(statuses), statuses
    assert all(status < 500 for status in statuses), statuses


async def one_place(url: str) -> tuple[str, str]:
    async with web(url) as http:
        place = await Server().workspace(http)
        return place.id, place.session


async def accepts(url: str, workspace: str, session: str) -> int:
    async with web(url) as http:
        place = Place(http, workspace, session)
        await place.do("cancel")
        return (await place.post("hello")).status_code


# --- limits are taken in the step that checks them

async def test_no_limit_is_passed_by_many_who_come_at_once(tmp_path: Path) -> None:
    """On files: to open one, or to accept something, takes a while, and all of them have asked meanwhile."""
    many = 200
    async with (serving(tmp_path, workspaces=4, queue=5, limits=Limits(connections=4 * many)) as server,
                server.client(limits=httpx.Limits(max_connections=many)) as http):
        place = await server.workspace(http)
        opened = await gather(*(http.post("/v1/workspaces", json={"path": f"/tmp/hammered/{n}"})
                                for n in range(many)))
        assert Counter(answer.status_code for answer in opened) == {200: 3, 429: many - 3}
        assert len(list(server.site.workspaces)) == 4
        again = next(answer.json()["id"] for answer in opened if answer.status_code == 200)
        await http.delete(f"/v1/workspaces/{again}")
        opened = await gather(*(http.post("/v1/workspaces", json={"path": f"/tmp/hammered/{n}"})
                                for n in range(3, many)))
        assert sum(answer.status_code == 200 for answer in opened) == 1, "the place that was given back"

        gate = server.holds("a")
        await place.send("a")
        await gate.reached()
        posted = await gather(*(place.post(f"prompt {n}") for n in range(many)))
        assert Counter(answer.status_code for answer in posted) == {202: 4, 429: many - 4}
        assert len(await place.get("prompts")) == 5
        gate.open()


async def test_figures_have_names_from_a_closed_set_whatever_strangers_call() -> None:
    async with serving(token=TOKEN) as server, server.client() as http:
        friend = {"authorization": f"Bearer {TOKEN}"}
        before = (await http.get("/metrics", headers=friend)).text.count("\n")
        for n in range(100):
            for headers in ({}, friend):
                for path in ("/v1/health", "/", "/app.js", f"/v1/{n}", f"/v1/workspaces/{n}"):
                    await http.request(f"METHOD{n}", path, headers=headers)
                    await http.get(f"{path}?q={n}", headers=headers)
        figures = (await http.get("/metrics", headers=friend)).text
        assert figures.count("\n") < before + 30
        assert "METHOD" not in figures


# --- strangers

async def test_no_call_works_without_the_token() -> None:
    async with serving(token=TOKEN, hosts=None) as server:
        good = {"authorization": f"Bearer {TOKEN}"}
        async with server.client(headers=good) as friend:
            place = await server.workspace(friend)
            gate = server.holds("a")
            await place.send("a", "run-a")
            await gate.reached()
        bad: list[dict[str, str]] = [
            {}, {"authorization": ""}, {"authorization": "Bearer"},
            {"authorization": TOKEN}, {"authorization": f"Basic {TOKEN}"}, {"authorization": f"Bearer {TOKEN}x"},
            {"authorization": f"Bearer {TOKEN[:-1]}"}, {"authorization": f"Bearer {TOKEN.upper()}"},
            {"authorization": "Bearer ünïcödé".encode().decode("latin-1")}, {"cookie": f"token={TOKEN}"},
            {"x-authorization": f"Bearer {TOKEN}"}]
        for headers in bad:
            async with server.client() as stranger:
                for call in CALLS:
                    path = call.path.format(id=place.id, sid=place.session, client_id=uuid4(), prompt=1, ask="1.1")
                    answer = await stranger.request(call.method, path, headers={
                        name: value.encode("latin-1") for name, value in headers.items()},  # type: ignore[misc]
                        params={"client_id": str(uuid4()), "token": TOKEN}, content=b"{}")
                    assert answer.status_code == 401, (headers, call)
                    assert answer.headers["www-authenticate"] == "Bearer"
        async with server.client(headers=good) as friend:
            assert (await place.seen_by(friend).get())["is_busy"], "nobody has canceled it"
        gate.open()


def test_the_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr("hmac.compare_digest", compare)
    guard = Guard(lambda *_: None, hosts=None, token=TOKEN, public=(), note_answer=lambda *_: None)  # type: ignore[arg-type, return-value]
    assert guard._is_authorized(f"Bearer {TOKEN}".encode())
    assert not guard._is_authorized(b"Bearer x")
    assert compared == [(TOKEN.encode(), TOKEN.encode()), (b"x", TOKEN.encode())]


FOREIGN: list[dict[str, str]] = [
    {"origin": "https://evil.example"}, {"origin": "null"}, {"origin": "http://localhost.evil.example"},
    {"origin": "http://127.0.0.1:1"}, {"origin": "http://127.0.0.1"}, {"origin": "file://"}, {"origin": ""},
    {"origin": "chrome-extension://abc"}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"},
    {"host": "evil.example"}, {"host": "evil.example:PORT"}, {"host": ""}, {"host": "127.0.0.1.evil.example"},
    {"host": "localhost.evil.example"}, {"host": "evil.example", "origin": "http://evil.example"},
    {"host": "127.0.0.1@evil.example"}, {"host": "[::1].evil.example"},
    {"origin": "http://["}, {"origin": "http://[::1"}, {"origin": "http://127.0.0.1:99999999"}, {"origin": "//"},
    {"origin": "http://\xff"}, {"host": "["}, {"host": "[::1"}, {"host": ":"}, {"host": "127.0.0.1:x"},
    {"host": "\xff"}, {"host": "127.0.0.1:PORT, evil.example"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
async def test_a_page_of_another_origin_cannot_drive_the_server(headers: dict[str, str]) -> None:
    async with placed() as (server, place):
        port = server.url.rpartition(":")[2]
        sent: Any = {name: value.replace("PORT", port).encode("latin-1") for name, value in headers.items()}
        gate = server.holds("a")
        await place.send("a", "run-a")
        await gate.reached()
        for call in CALLS:
            path = call.path.format(id=place.id, sid=place.session, client_id=uuid4(), prompt=1, ask="1.1")
            answer = await place.http.request(call.method, path, headers=sent, content=b"{}",
                                              params={"client_id": str(uuid4())})
            assert answer.status_code == 403, call
            assert "access-control-allow-origin" not in answer.headers
        sent["access-control-request-method"] = b"POST"
        preflight = await place.http.options(f"{place.url}/agent", headers=sent)
        assert preflight.status_code == 403
        assert (await place.get())["is_busy"], "nobody has canceled it"
        gate.open()


@pytest.mark.parametrize("headers", [
    {}, {"origin": "http://127.0.0.1:PORT"}, {"origin": "http://127.0.0.1:PORT", "sec-fetch-site": "same-origin"},
    {"host": "localhost:PORT", "origin": "http://localhost:PORT"}, {"host": "LOCALHOST:PORT"}, {"host": "localhost"},
    {"host": "[::1]:PORT"}, {"sec-fetch-site": "none"}], ids=str)
async def test_its_own_page_and_plain_clients_can(headers: dict[str, str]) -> None:
    async with placed() as (server, place):
        port = server.url.rpartition(":")[2]
        sent = {name: value.replace("PORT", port) for name, value in headers.items()}
        assert (await place.http.post(f"{place.url}/agent", headers=sent, json={
            "session_id": place.session, "prompt": "hello"})).status_code == 202


async def test_the_page_is_served_with_a_strict_policy_and_nothing_beside_it() -> None:
    async with serving(token=TOKEN) as server, server.client() as http:
        for path, kind in (("/", "text/html"), ("/app.js", "text/javascript"), ("/style.css", "text/css")):
            answer = await http.get(path, headers={"sec-fetch-site": "cross-site"})  # from a link
            assert answer.status_code == 200
            assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert (await http.post(path)).status_code == 405
            assert (await http.head(path)).content == b""
        for path in ("/__init__.py", "/..%2fapp.py", "/../app.py", "/%2e%2e/app.py", "/page/index.html",
                     "//etc/passwd", "/..%5c..%5capp.py", "/index.html/../../app.py"):
            answer = await http.get(path, headers={"authorization": f"Bearer {TOKEN}"})
            assert answer.status_code == 404, path
            assert "import" not in answer.text


async def test_a_path_cannot_escape_the_data_directory(tmp_path: Path) -> None:
    """It is the name of a workspace, and never that of a file."""
    data = tmp_path / "data"
    before = sorted(tmp_path.rglob("*"))
    async with serving(data) as server, server.client() as http:
        for path in ("/../../../etc/passwd", "/../" * 50, f"{tmp_path}/x/../../y", "/proc/self/cwd", "/%2e%2e/x",
                     "/" + "☃" * 300, "/a\nb", str(data), "/dev/null", "/" + "d/" * 2000):
            assert (await http.post("/v1/workspaces", json={"path": path})).status_code == 200, path
    made = [path for path in sorted(tmp_path.rglob("*")) if path not in before]
    for path in made:
        assert re.fullmatch(r"data(/index\.db|/workspaces(/[0-9a-f-]{36}\.db(-lock|-wal|-shm)?)?)?",
                            str(path.relative_to(tmp_path))), path


async def test_a_path_that_cannot_be_followed_is_refused() -> None:
    """As that of another user's process: it is a link that does not say where it leads."""
    dead = subprocess.Popen(["true"])
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)  # dead, and not buried
    try:
        async with placed() as (_, place):
            for path in (f"/proc/{dead.pid}/exe", f"/proc/{dead.pid}/cwd/x", f"/proc/{dead.pid}/root"):
                answer = await place.http.post("/v1/workspaces", json={"path": path})
                assert answer.status_code == 400, path
                assert answer.json()["message"].startswith(f"path: '{path}' cannot be resolved: ")
    finally:
        dead.wait()


async def test_files_are_for_their_user_alone(tmp_path: Path) -> None:
    token = token_in(tmp_path / "token")
    assert len(token) >= 32
    assert token_in(tmp_path / "token") == token, "it is made once"
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    async with serving(tmp_path / "data"):
        assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    mask = os.umask(0)
    os.umask(mask)
    with bind_unix(tmp_path / "socket"):
        assert (tmp_path / "socket").stat().st_mode & 0o777 == 0o600
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "socket"))
    other = os.umask(mask)
    assert other == mask, "and the umask is as it was"
