"""Lists in pages: all of it is had page by page, whoever does not ask gets the latest, and others run meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import pytest
from support.servers import Place, Server, placed

from cancelmark.impl.client import Client
from cancelmark.impl.server.lists import LIMIT, PIECE, SIZE
from cancelmark.impl.store import AcceptPrompt, MessageRecord, MovePrompt, NewSession, Operation, PutMessage, Store
from cancelmark.model.lifecycle import Outcome, State

Story = Callable[[Server, Place, Store], Awaitable[None]]


@asynccontextmanager
async def stored() -> AsyncIterator[tuple[Server, Place, Store]]:
    async with placed() as (server, place):
        yield server, place, server.site.workspaces.get(place.id).runtime.store


def history(session: str, prompts: int, text: str = "hello", first: int = 10_000) -> list[Operation]:
    """Prompts that are done, each with its message."""
    return [operation for seq in range(first, first + prompts) for operation in (
        AcceptPrompt(seq, session, text), MovePrompt(seq, State.DONE, Outcome.END_TURN),
        PutMessage(MessageRecord(f"p{seq}", session, "user", ({"type": "text", "data": {"text": text}},))))]


async def pages(place: Place, url: str, query: str = "") -> list[list[Any]]:
    """Every page of a list, as a client gets them that follows the links: the latest first."""
    found = []
    while True:
        answer = await place.http.get(url + query)
        assert answer.status_code == 200, answer.text
        found.append(answer.json())
        if "prev" not in answer.links:
            return found
        query = answer.links["prev"]["url"]
        assert query.startswith("?")


def in_order(found: list[list[Any]]) -> list[Any]:
    return [item for page in reversed(found) for item in page]


async def test_messages_come_in_pages_and_whoever_does_not_ask_gets_the_latest() -> None:
    async with stored() as (_, place, store):
        await store.write(history(place.session, LIMIT + 100))
        url = f"{place.url}/sessions/{place.session}/messages"
        expected = [f"p{10_000 + number}" for number in range(LIMIT + 100)]
        assert [m["id"] for m in await place.messages()] == expected[100:]
        assert [m["id"] for m in in_order(await pages(place, url))] == expected
        small = await pages(place, url, "?limit=90")
        assert [len(page) for page in small] == [90] * 12 + [20]
        assert [m["id"] for m in in_order(small)] == expected
        assert [m["id"] for m in (await place.http.get(f"{url}?before=p10003")).json()] == expected[:3]
        exact = await place.http.get(f"{url}?limit=2&before=p10002")
        assert (len(exact.json()), exact.links) == (2, {}), "nothing comes before these"


async def test_a_page_of_long_messages_has_fewer_and_at_least_one() -> None:
    async with stored() as (_, place, store):
        await store.write(history(place.session, 9, "x" * (SIZE // 4)))
        await store.write(history(place.session, 1, "y" * (2 * SIZE), first=20_000))
        found = await pages(place, f"{place.url}/sessions/{place.session}/messages")
        assert [len(page) for page in found] == [1, 4, 4, 1]
        assert len(in_order(found)) == 10


async def test_sessions_come_in_pages() -> None:
    async with stored() as (_, place, _):
        made = [place.session, *[await place.new_session(f"session {number}") for number in range(6)]]
        found = await pages(place, f"{place.url}/sessions", "?limit=3")
        assert [len(page) for page in found] == [3, 3, 1]
        assert [session["id"] for session in in_order(found)] == made
        assert len(await pages(place, f"{place.url}/sessions")) == 1


async def test_prompts_that_are_done_come_in_pages_after_those_that_are_not() -> None:
    async with stored() as (server, place, store):
        server.holds("hold")
        await place.send("hold")
        await place.send("queued")
        await store.write(history(place.session, PIECE + 100))
        url = f"{place.url}/agent/sessions/{place.session}/prompts"
        expected = [10_000 + number for number in range(PIECE + 100)]
        first, *others = await pages(place, url)
        assert [(p["seq"], p["state"]) for p in first][:2] == [(1, "active"), (2, "queued")]
        assert [p["seq"] for p in first][2:] == expected[-50:]
        assert [p["seq"] for p in in_order(others)] == expected[:-50], "and those that are not done come once"
        assert [len(page) for page in others] == [50, 50, PIECE - 50]
        [page] = await pages(place, url, "?limit=1000")
        assert [p["seq"] for p in page] == [1, 2, *expected]


@pytest.mark.parametrize(("query", "says"), [
    ("limit=0", "limit: '0' is not a number from 1 to 1000"), ("limit=1001", "limit: '1001'"), ("limit=-1", "limit"),
    ("limit=", "limit: ''"), ("limit=1e3", "limit"), ("limit=٣", "limit"), ("limit=" + "9" * 5000, "limit"),
    ("before=nobody", "before: "), ("before=", "before: "), ("before=%00", "before: "), ("before=-1", "before: "),
])
async def test_a_page_that_cannot_be_is_refused_by_the_name_of_the_field(query: str, says: str) -> None:
    async with stored() as (_, place, _):
        for url in (f"{place.url}/sessions", f"{place.url}/sessions/{place.session}/messages",
                    f"{place.url}/agent/sessions/{place.session}/prompts"):
            answer = await place.http.get(f"{url}?{quote(query, safe='=%')}")
            assert answer.status_code == 400, (url, answer.text)
            assert answer.json()["message"].startswith(says)


async def test_the_message_of_another_session_is_no_place() -> None:
    async with stored() as (_, place, store):
        other = await place.new_session()
        await store.write(history(other, 3))
        assert (await place.http.get(f"{place.url}/sessions/{place.session}/messages?before=p10001")).status_code == 400


@pytest.mark.parametrize("what", ["messages", "prompts?limit=1000"])
async def test_others_run_while_a_long_page_is_made(what: str) -> None:
    """Counted by what the store reads between two turns of the event loop."""
    async with stored() as (_, place, store):
        await store.write(history(place.session, LIMIT, "x" * 3000))
        read = most = 0

        def count(reading: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*arguments: Any, **options: Any) -> Any:
                nonlocal read
                read += 1
                return reading(*arguments, **options)
            return counted

        for name in ("messages", "prompts"):
            setattr(store, name, count(getattr(store, name)))

        async def other() -> None:
            nonlocal most
            while True:
                before = read
                await asyncio.sleep(0)
                most = max(most, read - before)

        running = asyncio.ensure_future(other())
        above = f"{place.url}/sessions" if what == "messages" else f"{place.url}/agent/sessions"
        answer = await place.http.get(f"{above}/{place.session}/{what}")
        running.cancel()
        assert len(answer.json()) == LIMIT
        assert read >= LIMIT // PIECE
        assert most <= 2, "with a piece of the page at a time"


async def test_a_client_gets_all_of_it_or_the_latest() -> None:
    async with stored() as (server, place, store):
        await store.write(history(place.session, 2 * LIMIT + 5))
        await store.write([NewSession("unseen")])
        async with Client(server.url) as client:
            everything = await client.messages(place.id, place.session)
            assert [m.id for m in everything] == [f"p{10_000 + number}" for number in range(2 * LIMIT + 5)]
            for latest in (0, 1, 7, LIMIT, LIMIT + 3, 9 * LIMIT):
                some = await client.messages(place.id, place.session, latest=latest)
                assert some == everything[max(0, len(everything) - latest):]
            sessions = await client.sessions(place.id)
            assert sessions[-1:] == await client.sessions(place.id, latest=1)


async def test_a_list_of_what_is_queued_is_whole_and_in_order() -> None:
    async with stored() as (server, place, _):
        server.holds("hold")
        await place.send("hold")
        for number in range(5):
            await place.send(f"{number}" + "x" * 150_000)
        assert [text[0] for text in await place.get("prompts/list")] == list("01234")
