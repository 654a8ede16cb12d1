"""The client against servers that misbehave: broken streams, broken answers, and something else altogether."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.budget import effort
from support.hostile import (
    ACCEPTED,
    EVENTS,
    POST,
    STATUS,
    Hostile,
    Route,
    ended,
    event,
    open_stream,
    place,
    says,
    stream,
)
from support.openai_server import Act, Framing, Received, Reply

from cancelmark.impl.client import (
    BadAnswer,
    Client,
    ClientError,
    EndUnknown,
    Events,
    Message,
    Patience,
    Refusal,
    RunComplete,
    RunStream,
    Unreachable,
)
from cancelmark.impl.client import run as run_module

QUICK = Patience(first=0.001, longest=0.01, total=5.0, silence=5.0)
SOON = Patience(first=0.001, longest=0.01, total=0.1, silence=5.0)


@pytest.fixture(autouse=True)
def mine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that are not named have the id `mine`, so that servers can be told what to say about them."""
    monkeypatch.setattr(run_module, "uuid4", lambda: "mine")


async def run(server: Hostile, patience: Patience = QUICK, run_id: str | None = None) -> RunComplete:
    async with Client(server.address) as client, \
            RunStream(client, "w", "s", "hello", run_id=run_id, patience=patience) as stream:
        return await stream.end()


async def ran(events: Any, post: Any = ACCEPTED, status: Any = None, patience: Patience = QUICK) -> RunComplete:
    """How a run ends at a server with these routes."""
    async with Hostile({EVENTS: events, POST: post, STATUS: status or says(200, {})}) as server:
        return await run(server, patience)


async def calls(reply: Reply, call: Callable[[Client], Awaitable[object]]) -> object:
    """What a call makes of this answer, whatever it calls."""
    class Same(Hostile):
        def reply(self, received: Received) -> Reply:
            return reply

    async with Same({}) as server, Client(server.address) as client:
        return await call(client)


# --- answers

@pytest.mark.rule("R27b")
@pytest.mark.parametrize("status", [200, 202])
async def test_202_and_200_both_count_as_accepted(status: int) -> None:
    assert (await ran(open_stream(place(0), ended(1, "mine", text="hi")), says(status, b""))).text == "hi"


@pytest.mark.parametrize(("status", "body", "shown"), [
    (400, b'{"message": "session id is required"}', "the server refused (400 Bad Request): session id is required"),
    (401, b'{"message": "give the token"}', "the server refused (401 Unauthorized): give the token"),
    (404, b'{"message": "no workspace w"}', "the server refused (404 Not Found): no workspace w"),
    (409, b'{"message": "closing"}', "the server refused (409 Conflict): closing"),
    (429, b'{"message": "queue full"}', "the server refused (429 Too Many Requests): queue full"),
    (500, b'{"message": "oh"}', "the server refused (500 Internal Server Error): oh"),
    *((status, body, f"the server refused ({status} ") for status in (401, 404, 409, 429, 500, 503) for body in (
        b"", b"not json", b"<html><body>proxy error</body></html>", b'{"message": 7}', b'{"message": null}', b"[1]",
        b'"text"', b"\xff\xfe", b"{" * 5000)),
    (302, b"", "the server refused (302 Found)"),
])
async def test_error_bodies_are_decoded_and_when_malformed_or_empty_the_status_is_shown(
        status: int, body: bytes, shown: str) -> None:
    headers = {"content-type": "text/html"} if body.startswith(b"<") else {"content-type": "application/json"}
    with pytest.raises(Refusal) as refused:
        await calls(says(status, body, headers), lambda client: client.send("w", "s", "hello"))
    assert str(refused.value).startswith(shown)
    assert refused.value.status == status
    assert "html" not in str(refused.value)
    assert "not json" not in str(refused.value)


async def test_a_refusal_says_when_to_come_back() -> None:
    with pytest.raises(Refusal) as refused:
        await calls(says(429, {"message": "full"}, {"retry-after": "3"}), lambda client: client.send("w", "s", "hello"))
    assert refused.value.retry_after == 3
    with pytest.raises(Refusal) as refused:
        await calls(says(429, {}, {"retry-after": "Wed, 21 Oct 2015"}), lambda client: client.send("w", "s", "hello"))
    assert refused.value.retry_after is None


@pytest.mark.parametrize(("body", "named"), [
    (b"<html>hello</html>", "does not respond with JSON; check the address"),
    (b"", "does not respond with JSON"),
    (b"[]", "there should be a JSON object, not []"),
    (b"{}", "field 'id' should be text, not missing"),
    (b'{"id": 7, "path": "/"}', "field 'id' should be text, not 7"),
])
async def test_an_answer_that_makes_no_sense_is_named(body: bytes, named: str) -> None:
    with pytest.raises(BadAnswer) as bad:
        await calls(says(200, body), lambda client: client.workspace("w"))
    assert named in str(bad.value)
    assert "127.0.0.1" in str(bad.value)


@pytest.mark.parametrize("body", [b'"2"', b"true", b"null", b"{}", b"2.5"])
async def test_a_queue_length_is_a_number(body: bytes) -> None:
    assert await calls(says(200, b"2"), lambda client: client.queued("w", "s")) == 2
    with pytest.raises(BadAnswer):
        await calls(says(200, body), lambda client: client.queued("w", "s"))


async def test_an_empty_list_may_be_null() -> None:
    assert await calls(says(200, b"null"), lambda client: client.queue("w", "s")) == ()
    assert await calls(says(200, b"null"), lambda client: client.sessions("w")) == ()
    with pytest.raises(BadAnswer):
        await calls(says(200, b"[1]"), lambda client: client.queue("w", "s"))


async def test_nobody_there_is_said_plainly(tmp_path: Path) -> None:
    async with Hostile({}) as server:
        address = server.address
    for nobody in (address, f"unix:{tmp_path}/none"):
        async with Client(nobody) as client:
            with pytest.raises(Unreachable, match="cannot connect to") as unreachable:
                await client.health()
            assert not unreachable.value.sent


@pytest.mark.parametrize(("reply", "said"), [
    (Reply((b"SSH-2.0-OpenSSH_9.2\r\n", Act.DROP), head=False, framing=Framing.UNTIL_CLOSE),
     "without a valid response; check the address"),
    (Reply((b"HTTP/9.9 what\r\n\r\n",), head=False, framing=Framing.UNTIL_CLOSE), "without a valid response"),
    (Reply((Act.DROP,), head=False), "closed the connection without a valid response"),
    (Reply((Act.RESET,), head=False), "closed the connection"),
    (Reply((b"{", Act.RESET)), "closed the connection"),
])
async def test_something_else_on_that_port_is_said_plainly(reply: Reply, said: str) -> None:
    with pytest.raises(Unreachable, match=said) as unreachable:
        await calls(reply, lambda client: client.version())
    assert unreachable.value.sent


@pytest.mark.parametrize("server", ["", "localhost:80", "ftp://localhost", "http://", "unix:", "/tmp/socket"])
def test_a_server_is_named_by_a_url_or_a_socket(server: str) -> None:
    with pytest.raises(ValueError, match="unix:"):
        Client(server)


async def test_the_token_is_sent_with_each_call_and_ids_are_quoted() -> None:
    async with Hostile({EVENTS: open_stream()}) as server, Client(server.address, token="secret") as client:
        with pytest.raises(Refusal):
            await client.session("a/b?c#d", "é ..")
        async with Events(client, "w"):
            pass
    assert [r.headers.get("authorization") for r in server.received] == ["Bearer secret"] * 2
    assert server.received[0].path == "/v1/workspaces/a%2Fb%3Fc%23d/sessions/%C3%A9%20.."
    assert f"client_id={client.client_id}" in server.received[1].path


async def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    await calls(says(200, {}), lambda client: client.health())


# --- a run, and whose events are whose

async def test_run_ids_survive_the_wire() -> None:
    """Whatever is in it: the end that is taken is the one with exactly this id."""
    odd = "a/b ?&=#\"'\\é→\U0001f600"
    events = open_stream(place(0), ended(1, odd + "x", text="no"), ended(2, odd, text="yes"))
    async with Hostile({EVENTS: events, POST: ACCEPTED}) as server:
        assert (await run(server, run_id=odd)).text == "yes"
        [posted] = server.to(POST)
        assert posted.body == {"session_id": "s", "prompt": "hello", "run_id": odd}


async def test_a_run_subscribes_before_it_posts() -> None:
    async with Hostile({EVENTS: open_stream(ended(1, "mine")), POST: ACCEPTED}) as server:
        await run(server)
        assert [received.method for received in server.received] == ["GET", "POST"]


@pytest.mark.rule("R28b")
async def test_the_end_of_another_run_is_not_ours() -> None:
    end = await ran(open_stream(
        place(0), ended(1, "", text="no run id"), ended(2, "other", text="other"), ended(3, "other", cancelled=True),
        event(4, "session", id="s", title="t"), event(5, "file", name="x"), ended(6, "mine", "elsewhere", text="ours")))
    assert (end.text, end.outcome) == ("ours", "end_turn")


@pytest.mark.parametrize(("payload", "outcome"), [
    ({"text": "t"}, "end_turn"), ({"error": "e"}, "error"), ({"cancelled": True}, "canceled"),
    ({"cancelled": True, "error": "context canceled"}, "canceled"), ({"outcome": "error"}, "error"),
    ({"cancelled": None, "error": None, "text": None}, "end_turn")])
async def test_the_outcome_is_told_or_follows(payload: dict[str, object], outcome: str) -> None:
    assert (await ran(open_stream(ended(1, "mine", **payload)))).outcome == outcome


@pytest.mark.parametrize("foreign", [
    {"run_id": "other", "session_id": "s"}, {"run_id": "other", "session_id": "t"}, {"run_id": "other"},
    {"session_id": "t"}, {}])
async def test_an_error_event_of_another_run_id_or_another_session_is_ignored(
        foreign: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An error event of another run id is ignored, whatever its session; with no run id, another session's is."""
    monkeypatch.setattr(run_module, "GRACE", 0.05)
    quiet = [event(None, "agent_event", type="error", error="foreign", **foreign)]
    idle = says(200, {"id": "s", "title": "", "is_busy": False})
    async with Hostile({EVENTS: stream(place(0), *quiet, Act.HOLD, ended(1, "mine")), POST: ACCEPTED,
                        STATUS: idle}) as server:
        running = asyncio.create_task(run(server))
        await asyncio.wait((running,), timeout=0.3)
        assert not running.done()
        assert not server.to(STATUS), "nobody had a doubt"
        server.released.set()
        assert (await running).outcome == "end_turn"


@pytest.mark.parametrize("ours", [{"run_id": "mine", "session_id": "t"}, {"run_id": "mine"}, {"session_id": "s"}])
async def test_our_own_error_event_ends_the_run_if_no_end_follows_and_nothing_is_left_to_do(
        ours: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "GRACE", 0.05)
    events = open_stream(place(0), event(None, "agent_event", type="error", error="my boom", **ours))
    busy, idle = (says(200, {"id": "s", "title": "", "is_busy": busy}) for busy in (True, False))
    end = await ran(events, status=[busy, idle, busy, idle])
    assert (end.outcome, end.error, end.run_id) == ("error", "my boom", "mine")


async def test_a_terminal_event_says_more_than_an_error_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbour without a run id fails in our session while we are queued behind it: our own end is what counts."""
    monkeypatch.setattr(run_module, "GRACE", 0.05)
    failed = event(None, "agent_event", type="error", error="the neighbour's", session_id="s")
    end = await ran(open_stream(place(0), failed, ended(1, "mine", text="fine")))
    assert (end.outcome, end.error, end.text) == ("end_turn", "", "fine")
    busy = says(200, {"id": "s", "title": "", "is_busy": True})
    routes = {EVENTS: stream(place(0), failed, Act.HOLD, ended(1, "mine", text="fine")), POST: ACCEPTED,
              STATUS: busy}
    async with Hostile(routes) as server:
        running = asyncio.create_task(run(server))
        while len(server.to(STATUS)) < 4:
            await asyncio.sleep(0.01)
        server.released.set()
        assert (await running).outcome == "end_turn"


async def test_an_end_that_is_on_its_way_when_the_session_turns_idle_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_module, "GRACE", 0.2)
    def status(received: Received) -> Reply:
        server.released.set()
        return says(200, {"id": "s", "title": "", "is_busy": False})

    boom = event(None, "agent_event", type="error", error="the neighbour's", session_id="s")
    routes = {EVENTS: stream(place(0), boom, Act.HOLD, ended(1, "mine", text="fine"), Act.HOLD), POST: ACCEPTED,
              STATUS: status}
    async with Hostile(routes) as server:
        assert (await run(server)).outcome == "end_turn"
        assert len(server.to(STATUS)) == 1


async def test_an_error_event_fills_in_what_the_end_leaves_out() -> None:
    boom = event(None, "agent_event", type="error", error="boom", run_id="mine")
    assert (await ran(open_stream(place(0), boom, ended(1, "mine", outcome="error")))).error == "boom"


async def test_a_run_shows_what_is_its_own() -> None:
    def message(run_id: str, text: str) -> bytes:
        parts = [{"type": "text", "data": {"text": text}}]
        return event(None, "message", id="m", session_id="s", role="assistant", parts=parts, run_id=run_id)

    events = open_stream(place(0), message("mine", "a"), message("other", "b"), message("", "c"),
                         message("mine", "ad"), event(None, "message", id="m"), ended(1, "mine", text="ad"))
    async with Hostile({EVENTS: events, POST: ACCEPTED}) as server, Client(server.address) as client, \
            RunStream(client, "w", "s", "hello") as stream:
        shown = [notice.payload async for notice in stream.events()]
    assert [p.text for p in shown if isinstance(p, Message | RunComplete)] == ["a", "ad", "ad"]
    assert len(shown) == 3


# --- streams that break

def resumed(*events: bytes, cuts: list[int], ending: Act | None = Act.DROP, overlap: int = 0) -> Route:
    """A server with these events in its log, the first at place 1. It goes on from the place that a client names, or
    `overlap` before it, and cuts its stream after so many bytes, each time after the next number."""
    remaining = iter(cuts)

    def reply(received: Received) -> Reply:
        start = int(received.headers.get("last-event-id", "0"))
        whole = place(start) + b"".join(events[max(0, start - overlap):])
        cut = next(remaining, None)
        if cut is None:
            return open_stream(whole)
        return stream(whole[:cut], *([ending] if ending else []))

    return reply


@pytest.mark.rule("R28b")
@pytest.mark.parametrize("ending", [Act.DROP, Act.RESET, None])
async def test_a_stream_that_ends_before_the_terminal_event_is_resumed(ending: Act | None) -> None:
    other, mine = ended(1, "other"), ended(2, "mine", text="done")
    cuts = [len(place(0)) + len(other) // 2, len(place(0)) + len(other) + 20, 0, 9]
    events = resumed(other, mine, cuts=cuts, ending=ending)
    async with Hostile({EVENTS: events, POST: ACCEPTED}) as server:
        assert (await run(server)).text == "done"
        places = [received.headers.get("last-event-id") for received in server.to(EVENTS)]
        assert places == [None, "0", "1", "1", "1"]
        assert len(server.to(POST)) == 1


ENDS = tuple(ended(number, f"run-{number}", text="x" * number) for number in range(1, 6))
WHOLE = sum(map(len, ENDS)) + len(place(0))


@settings(max_examples=effort(60), deadline=None)
@given(st.lists(st.integers(0, WHOLE), max_size=6), st.sampled_from([Act.DROP, Act.RESET, None]), st.integers(0, 5))
@example([len(place(0)) + len(ENDS[0]) - 1], None, 0)
@example([WHOLE], None, 5)
async def test_wherever_the_stream_is_cut_each_terminal_event_is_seen_exactly_once(
        cuts: list[int], ending: Act | None, overlap: int) -> None:
    """Also when the server delivers some of them again."""
    async with Hostile({EVENTS: resumed(*ENDS, cuts=cuts, ending=ending, overlap=overlap)}) as server, \
            Client(server.address) as client, Events(client, "w", patience=QUICK) as events:
        seen = [(await anext(events)).payload for _ in ENDS]
        assert [end.run_id for end in seen if isinstance(end, RunComplete)] == [f"run-{n}" for n in range(1, 6)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await anext(events)


async def test_ends_without_a_run_id_are_told_apart_by_their_places() -> None:
    one, two = ended(1, "", text="a"), ended(2, "", text="b")
    routes = {EVENTS: [stream(one, one, two), open_stream(one, two, ended(3, "", text="c"))]}
    async with Hostile(routes) as server, Client(server.address) as client, \
            Events(client, "w", patience=QUICK) as events:
        seen = [(await anext(events)).payload for _ in range(3)]
        assert [end.text for end in seen if isinstance(end, RunComplete)] == ["a", "b", "c"]


GARBAGE = [b"data: not json\n\n", b"data: {}\n\n", b"data: []\n\n", b'data: {"type": "run_complete"}\n\n',
           b'data: {"type": "x", "payload": 7}\n\n', b"data: \xff\xfe\n\n",
           b'data: {"type": "run_complete", "payload": {"type": "updated", "payload": {"run_id": 7}}}\n\n']


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_what_cannot_be_read_comes_again_and_is_not_taken_for_anything(garbage: bytes) -> None:
    """An event that was garbled on its way is asked for again, by the place before it."""
    routes = {EVENTS: [stream(place(4), ended(5, "other"), b"id: 6\n" + garbage, ended(7, "mine", text="too far")),
                       open_stream(ended(6, "mine", text="here"))], POST: ACCEPTED}
    async with Hostile(routes) as server:
        assert (await run(server)).text == "here"
        assert server.to(EVENTS)[1].headers["last-event-id"] == "5"


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_a_server_that_sends_nothing_but_garbage_is_given_up(garbage: bytes) -> None:
    with pytest.raises(BadAnswer, match="unreadable event"):
        await ran(stream(place(1), b": comment\n\n", garbage))


@pytest.mark.parametrize("kind", ["text/html", "application/json", "", "text/event-streams"])
async def test_a_stream_of_another_content_type_is_refused_at_once(kind: str) -> None:
    headers = {"content-type": kind} if kind else {}
    with pytest.raises(BadAnswer, match=f"{kind or 'no content type'} instead of events; check the address"):
        await ran(Reply((ended(1, "mine"),), headers=headers))


@pytest.mark.parametrize("status", [400, 401, 404, 204, 302])
async def test_a_server_that_refuses_its_stream_for_good_is_believed(status: int) -> None:
    refused = says(status, {"message": "never"})
    with pytest.raises(Refusal) as first:
        await ran(refused)
    assert first.value.status == status
    with pytest.raises(Refusal) as later:
        await ran([stream(place(0)), refused])
    assert later.value.status == status


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
@pytest.mark.parametrize("body", [b"", b"<html>", b'{"message": "later"}'])
async def test_a_server_that_refuses_its_stream_for_now_is_asked_again(status: int, body: bytes) -> None:
    refused = says(status, body, {"retry-after": "0.001"})
    assert (await ran([stream(place(0)), refused, refused, open_stream(ended(1, "mine", text="t"))])).text == "t"


async def test_a_server_that_does_not_come_back_is_given_up_and_success_is_not_claimed() -> None:
    async with Hostile({EVENTS: open_stream(place(0)), POST: ACCEPTED}) as server:
        running = asyncio.create_task(run(server, SOON))
        while not server.to(POST):
            await asyncio.sleep(0.01)
    with pytest.raises(Unreachable, match="cannot connect to"):
        await running


async def test_trouble_that_was_overcome_is_not_counted_again() -> None:
    patience = Patience(first=0.001, longest=0.01, total=0.3)
    routes = {EVENTS: [stream(place(0)), stream(place(0), Act.HOLD), open_stream(ended(1, "mine", text="t"))],
              POST: ACCEPTED}
    async with Hostile(routes) as server:
        running = asyncio.create_task(run(server, patience))
        await server.holding.wait()
        await asyncio.sleep(0.5)
        server.released.set()
        assert (await running).text == "t"


async def test_a_stream_that_is_silent_is_taken_for_dead() -> None:
    patience = Patience(first=0.001, longest=0.01, total=0.01, silence=0.2)
    slow = [open_stream(place(0)), open_stream(ended(1, "mine", text="t"))]
    assert (await ran(slow, patience=patience)).text == "t", "silence is not counted as trouble"


async def test_comments_are_a_sign_of_life() -> None:
    waiting = asyncio.Event()

    class Beating(Hostile):
        async def _send(self, reply: Reply, writer: asyncio.StreamWriter) -> bool:
            if reply.headers.get("content-type", "").startswith("text/event-stream"):
                await super()._send(stream(place(0), framing=Framing.UNTIL_CLOSE), writer)
                for _ in range(20):
                    await asyncio.sleep(0.05)
                    writer.write(b": \n\n")
                writer.write(ended(1, "mine", text="t"))
                await waiting.wait()
            return await super()._send(reply, writer)

    async with Beating({EVENTS: stream(), POST: ACCEPTED}) as server:
        assert (await run(server, Patience(silence=0.5))).text == "t"
        assert len(server.to(EVENTS)) == 1


def test_the_server_says_how_long_to_wait_before_coming_back() -> None:
    assert Patience(first=0.1, longest=5).delay(0, least=3) >= 1.5
    assert Patience(first=0.1, longest=5).delay(0) <= 0.1
    assert Patience(first=0.1, longest=5).delay(10**6) <= 5
    assert len({Patience().delay(3) for _ in range(10)}) > 1, "clients do not come all at once"
    assert Patience(longest=5).delay(0, Refusal(429, "", 7.0)) == 7
    assert Patience(longest=5).delay(0, Refusal(429, "", 7e9)) == 50


async def test_a_server_without_places_that_published_the_end_while_we_were_cut_off_is_not_waited_for_for_ever(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "GRACE", 0.05)
    busy, idle = (says(200, {"id": "s", "title": "", "is_busy": busy}) for busy in (True, False))
    with pytest.raises(EndUnknown, match="run mine finished while disconnected"):
        await ran([stream(ended(None, "other")), open_stream()], status=[busy, busy, idle])


async def test_a_server_without_places_may_still_publish_the_end_after_we_were_cut_off(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "GRACE", 0.05)
    assert (await ran([stream(), open_stream(ended(None, "mine", text="t"))])).text == "t"


async def test_an_end_that_came_before_the_first_place_is_found_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream breaks before it has told a place; the run ends; whoever comes back without a place is told only what
    comes after."""
    monkeypatch.setattr(run_module, "GRACE", 0.05)
    idle = says(200, {"id": "s", "title": "", "is_busy": False})
    events = [stream(), open_stream(place(2)), open_stream(place(0), ended(1, "other"), ended(2, "mine", text="t"))]
    async with Hostile({EVENTS: events, POST: ACCEPTED, STATUS: idle}) as server:
        assert (await run(server)).text == "t"
        assert [r.headers.get("last-event-id") for r in server.to(EVENTS)] == [None, None, "0"]


async def test_an_end_that_is_in_no_log_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "GRACE", 0.05)
    with pytest.raises(EndUnknown):
        await ran([stream(), open_stream(place(2)), open_stream(place(0), ended(1, "other"))],
            status=says(200, {"id": "s", "title": "", "is_busy": False}))


async def test_canceling_the_reader_loses_nothing() -> None:
    async with Hostile({EVENTS: resumed(*ENDS, cuts=[WHOLE - 3])}) as server, Client(server.address) as client, \
            Events(client, "w", patience=QUICK) as events:
        seen: list[str] = []
        impatience = 0.0
        while len(seen) < len(ENDS):
            impatience += 0.001
            try:
                async with asyncio.timeout(impatience):
                    end = (await anext(events)).payload
            except TimeoutError:
                continue
            assert isinstance(end, RunComplete)
            seen.append(end.run_id)
            impatience = 0.0
        assert seen == [f"run-{n}" for n in range(1, 6)]


async def test_canceling_the_reader_is_no_trouble_with_the_server() -> None:
    """The stream is taken up again at once: nothing is told of a lost connection, and no patience is spent."""
    told: list[ClientError | None] = []
    routes = [open_stream(place(0)), open_stream(place(0)), open_stream(ended(1, "run-1"))]
    async with Hostile({EVENTS: routes}) as server, Client(server.address) as client, \
            Events(client, "w", patience=QUICK, changed=told.append) as events:
        for _ in range(2):
            reading = asyncio.ensure_future(anext(events))
            while not events.place or events.trouble:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.02)
            reading.cancel()
            await asyncio.wait((reading,))
        assert isinstance((await anext(events)).payload, RunComplete)
        assert told == [None] * 3


# --- posting

LOST = Reply((Act.RESET,), head=False)


async def test_a_prompt_that_may_have_arrived_is_posted_again_under_the_same_run_id() -> None:
    async with Hostile({EVENTS: open_stream(place(0), ended(1, "mine", text="t")), POST: [LOST, LOST, ACCEPTED],
                        }) as server:
        assert (await run(server)).text == "t"
        assert [r.body["run_id"] for r in server.to(POST)] == ["mine"] * 3


async def test_a_prompt_that_may_have_arrived_at_a_server_without_places_is_not_posted_twice() -> None:
    async with Hostile({EVENTS: open_stream(), POST: [LOST, ACCEPTED]}) as server:
        with pytest.raises(Unreachable, match="closed the connection"):
            await run(server)
        assert len(server.to(POST)) == 1


@pytest.mark.parametrize("status", [400, 404, 409, 429, 503])
async def test_a_prompt_that_is_refused_is_not_posted_again(status: int) -> None:
    async with Hostile({EVENTS: open_stream(place(0)), POST: says(status, {"message": "no"})}) as server:
        with pytest.raises(Refusal, match=r"no$"):
            await run(server)
        assert len(server.to(POST)) == 1


@pytest.mark.rule("R1d", "R22b")
@pytest.mark.parametrize("places", [True, False])
async def test_a_prompt_of_which_nobody_knows_is_posted_again_where_run_ids_are_known(places: bool) -> None:
    stream = open_stream(place(0)) if places else open_stream()
    async with Hostile({EVENTS: stream, POST: says(500, {"message": "nobody knows"})}) as server:
        with pytest.raises(Refusal, match=r"nobody knows$"):
            await run(server, patience=SOON)
        assert (len(server.to(POST)) > 1) is places


@pytest.mark.rule("R1d", "R22b")
@settings(max_examples=effort(60))
@given(st.lists(st.sampled_from(["reset", "500", "429", "503", "408", "404", "409"]), min_size=1, max_size=5),
       st.booleans())
async def test_a_prompt_that_may_have_been_accepted_is_never_called_refused(answers: list[str], for_ever: bool) -> None:
    """Answers in any sequence: a server may have accepted the prompt with any that is lost, and with a 500."""
    posts: list[Route] = [LOST if how == "reset" else says(int(how), {}) for how in answers]
    async with Hostile({EVENTS: open_stream(place(0), ended(1, "mine")),
                        POST: posts if for_ever else [*posts, ACCEPTED]}) as server:
        ending = asyncio.gather(run(server, patience=SOON if for_ever else QUICK), return_exceptions=True)
        result, told = (await ending)[0], answers[:len(server.to(POST))]
        doubtful = {"reset", "500"} & set(told)
        if isinstance(result, Refusal) and not result.unknown:
            assert not doubtful, told
            assert len(told) == 1, "it was refused, and posted again"
        elif isinstance(result, Unreachable | Refusal):
            assert doubtful
            assert for_ever or {"404", "409"} & set(told), "it was given up too soon"
        else:
            assert isinstance(result, RunComplete)
            assert not for_ever


async def test_a_post_that_cannot_succeed_ends() -> None:
    with pytest.raises(Unreachable):
        await ran(open_stream(place(0)), LOST, patience=SOON)


async def test_leaving_a_run_leaves_no_task_behind() -> None:
    before = asyncio.all_tasks()
    async with Hostile({EVENTS: open_stream(place(0)), POST: ACCEPTED}) as server, Client(server.address) as client:
        async with RunStream(client, "w", "s", "hello", patience=QUICK) as stream:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await stream.end()
        await server.to(EVENTS)[0].left_early.wait()
    assert asyncio.all_tasks() == before


async def test_json_that_is_too_deep_is_no_answer() -> None:
    deep = b"[" * 50_000
    with pytest.raises(BadAnswer):
        await calls(says(200, deep), lambda client: client.version())
    with pytest.raises(Refusal):
        await calls(says(500, deep), lambda client: client.version())
    with pytest.raises(BadAnswer):
        await ran(stream(place(0), b"data: " + deep + b"\n\n"))


def test_every_error_is_a_client_error() -> None:
    assert all(issubclass(kind, ClientError) for kind in (BadAnswer, EndUnknown, Refusal, Unreachable))
    assert str(Refusal(599)) == "the server refused (599 unknown status)"
