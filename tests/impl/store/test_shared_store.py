"""What a store promises that several nodes share: who may write to a session, what comes of a lost answer, who is dead.

Each is promised by PostgreSQL, and by the simulated database in its place: what nodes in a simulation may rely on is
here, or in the contract of all stores."""

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.budget import effort
from support.postgres import POSTGRES, enroll, open_stores, shared_database, shared_server
from support.simulation.database import SimulatedDatabase, SimulatedServer
from support.stores import committed, steps

from cancelmark.impl.cluster.node import BEAT, BURY, WORK
from cancelmark.impl.cluster.workspaces import BY_ID
from cancelmark.impl.store import (
    TERMINAL,
    AcceptPrompt,
    AppendEvent,
    ClosingSession,
    CommitRequest,
    Conflict,
    ConstraintViolation,
    HoldSession,
    Lost,
    MessageRecord,
    MovePrompt,
    NewSession,
    PutMessage,
    RaiseMark,
    StoreError,
    Unstorable,
)
from cancelmark.impl.store.postgres import Database, PostgresStore
from cancelmark.impl.store.postgres.sending import UNDER_WAY
from cancelmark.model.lifecycle import Outcome, State

ACCEPT = AcceptPrompt(0, "s", "a", "run-a")
KINDS = ("simulated", POSTGRES)


def make_databases(kind: str, number: int) -> list[Database]:
    """One database, as so many nodes see it."""
    if kind == "postgres":
        return [Database(shared_database(), connections=3) for _ in range(number)]
    server = SimulatedServer()
    return [SimulatedDatabase(server) for _ in range(number)]


Play = Callable[..., None]


@pytest.fixture(params=KINDS)
def play(request: pytest.FixtureRequest) -> Play:
    """So many nodes of a new workspace."""
    return lambda number=1: open_stores(make_databases(request.param, number))


async def kill_node(store: PostgresStore, node: UUID) -> None:
    await store.database.fetch("UPDATE cancelmark.nodes SET dead = true WHERE id = %s", node)


# --- who owns a session

async def test_a_session_without_an_owner_is_claimed_in_the_step_that_gives_it_work(play: Play) -> None:
    async with play(2) as (a, b):
        assert (await a.load("s")).free
        first = committed(await a.commit(steps("1", 0, ACCEPT, claim="adopt")))
        assert (first.version, first.epoch, len(first.seqs)) == (1, 1, 1)
        assert (await a.load("s"))[-2:] == (True, False)
        assert (await b.load("s"))[-2:] == (False, False)
        assert await b.commit(steps("2", 1, AcceptPrompt(0, "s", "b"), claim="adopt")) == Lost(), "it has an owner"
        second = committed(await b.commit(steps("2", 1, AcceptPrompt(0, "s", "b"))))
        assert second.epoch is None, "anybody may accept, and is no owner by that"
        assert second.seqs > first.seqs


@pytest.mark.rule("C3a", "C3b", "C4a", "C4c")
async def test_only_a_dead_owner_is_replaced_and_nothing_of_it_is_written_after_that(play: Play) -> None:
    async with play(2) as (a, b):
        (seq,) = committed(await a.commit(steps("1", 0, ACCEPT, claim="adopt"))).seqs
        await a.commit(steps("2", 1, MovePrompt(seq, State.ACTIVE), epoch=1))
        end = (MovePrompt(seq, State.DONE, Outcome.ERROR), AppendEvent("s", TERMINAL, {}))
        assert await b.commit(steps("3", 2, *end, claim="recover")) == Lost(), "its owner lives"
        await kill_node(b, a.database.node)
        assert committed(await b.commit(steps("3", 2, *end, claim="recover"))).epoch == 2
        assert await b.commit(steps("4", 3, claim="recover")) == Lost(), "the new owner lives"
        for late in (end, [PutMessage(MessageRecord("m", "s", "user", ()))]):
            assert await a.commit(steps("late", None, *late, epoch=1)) == Lost()
        assert await a.begin_append_messages("s", [MessageRecord("m", "s", "user", ())], 1) == Lost()
        assert await b.messages("s") == []
        assert [e.id for e in await b.events()] == [1]


async def test_a_dead_node_claims_nothing(play: Play) -> None:
    async with play() as [a]:
        await kill_node(a, a.database.node)
        assert await a.commit(steps("1", 0, ACCEPT, claim="adopt")) == Lost()


async def test_who_releases_a_session_is_its_owner_no_more(play: Play) -> None:
    async with play(2) as (a, b):
        (seq,) = committed(await a.commit(steps("1", 0, ACCEPT, claim="adopt"))).seqs
        end = (MovePrompt(seq, State.DONE, Outcome.END_TURN), AppendEvent("s", TERMINAL, {}))
        assert committed(await a.commit(steps("2", 1, *end, epoch=1, release="idle"))).epoch is None
        assert (await b.load("s")).free
        assert await a.begin_append_messages("s", [MessageRecord("m", "s", "user", ())], 1) == Lost()
        assert committed(await b.commit(steps("3", 2, ACCEPT._replace(run_id="b"), claim="adopt"))).epoch == 2


# --- seqs, places, ids

@pytest.mark.rule("C1d")
async def test_a_seq_is_above_every_mark_and_a_sequence_that_was_set_back_is_noticed(play: Play) -> None:
    async with play() as [a]:
        (seq,) = committed(await a.commit(steps("1", 0, ACCEPT))).seqs
        await a.commit(steps("2", 1, RaiseMark("s", seq + 1_000_000)))
        with pytest.raises(StoreError, match="reset below a seq already given out"):
            await a.commit(steps("3", 2, AcceptPrompt(0, "s", "b")))
        assert len((await a.load("s")).prompts) == 1


@pytest.mark.rule("C8a")
async def test_places_have_no_gap_whoever_writes_and_whatever_is_refused(play: Play) -> None:
    async with play(2) as (a, b):
        await a.write([NewSession(name) for name in "tuvw"])

        async def write(store: PostgresStore, session: str) -> None:
            for n in range(20):
                event = AppendEvent(session, TERMINAL, {"n": n})
                if n % 3:
                    await store.commit(CommitRequest("", session, None, [event]))
                else:
                    with pytest.raises(ConstraintViolation):
                        await store.commit(CommitRequest("", session, None, [event, NewSession("s")]))

        await asyncio.gather(*(write(store, session) for store in (a, b) for session in "tuvw"))
        places = [event.id for event in await a.events()]
        assert places == list(range(1, len(places) + 1))
        assert len(places) == 2 * 4 * 13


@pytest.mark.rule("C2b")
async def test_an_answer_that_was_lost_is_found_under_the_id_of_the_step(play: Play) -> None:
    """Whoever commits hears of a connection that broke. The same steps come again, and are there once."""
    async with play() as [a]:
        fetch, lost = a.database.fetch, 0

        async def lose(query: str, *values: Any, **more: Any) -> Any:
            nonlocal lost
            rows = await fetch(query, *values, **more)
            if "step(" in query and lost < 2:
                lost += 1
                raise StoreError("here", "the answer is lost", "ask again")
            return rows

        a.database.fetch = lose  # type: ignore[method-assign]
        answer = committed(await a.commit(steps("1", 0, ACCEPT, AppendEvent("s", TERMINAL, {}), claim="adopt")))
        assert (answer.version, answer.repeated, answer.epoch, answer.events) == (1, True, 1, (1,))
        assert [p.seq for p in (await a.load("s")).prompts] == list(answer.seqs)


@pytest.mark.rule("C1c")
async def test_a_session_that_is_closing_accepts_nothing_and_neither_does_one_that_is_made_then(play: Play) -> None:
    async with play() as [a]:
        await a.database.fetch("UPDATE cancelmark.sessions SET closing = true WHERE workspace_id = %s", a.workspace)
        with pytest.raises(ClosingSession):
            await a.commit(steps("1", 0, ACCEPT))
        await a.write([NewSession("new")])
        with pytest.raises(ClosingSession):
            await a.commit(CommitRequest("2", "new", 0, [ACCEPT._replace(session_id="new")]))


# --- what can be stored

async def test_nul_is_kept_in_what_was_said_and_refused_in_a_text(play: Play) -> None:
    async with play() as [a]:
        message = MessageRecord("m", "s", "user", ({"type": "text", "data": {"text": "nul \0, half \ud800"}},))
        await a.commit(steps("1", 0, PutMessage(message), AppendEvent("s", TERMINAL, {"text": "\0"})))
        assert await a.messages("s") == [message]
        assert (await a.events())[0].payload == {"text": "\0"}
        for op in (AcceptPrompt(0, "s", "\0"), AcceptPrompt(0, "s", "\ud800"), NewSession("\0")):
            with pytest.raises(Unstorable):
                await a.commit(steps("2", 1, op))
        assert await a.prompt("\0") is None


# --- the life of a node

async def age(store: PostgresStore, **by: int) -> None:
    """Makes times of the node so many hours older."""
    for column, hours in by.items():
        await store.database.fetch(f"UPDATE cancelmark.nodes SET {column} = {column} - %s * interval '1 hour'"
                                   " WHERE id = %s", hours, store.database.node)


@pytest.mark.rule("C5b")
async def test_a_beat_renews_the_lease_of_its_own_node_and_a_dead_one_has_none(play: Play) -> None:
    async with play(2) as (a, b):
        for store in (a, b):
            await age(store, expires=2)
        assert len(await a.database.fetch(BEAT, 60, False, a.database.node)) == 1
        alive = "SELECT id FROM cancelmark.nodes WHERE expires > clock_timestamp() AND id = %s"
        assert await a.database.fetch(alive, a.database.node)
        assert not await a.database.fetch(alive, b.database.node)
        await kill_node(b, a.database.node)
        assert await a.database.fetch(BEAT, 60, False, a.database.node) == []


async def test_a_node_is_buried_when_its_lease_is_over_by_one_that_has_beaten_without_a_break(play: Play) -> None:
    async with play(2) as (a, b):
        async def bury() -> bool:
            return (b.database.node,) in await a.database.fetch(BURY, a.database.node, 60)

        await age(a, since=1)
        assert not await bury(), "its lease is not over"
        await age(b, expires=2)
        await a.database.fetch("UPDATE cancelmark.nodes SET since = clock_timestamp() WHERE id = %s", a.database.node)
        assert not await bury(), "who buries has begun just now: all leases may be over"
        await age(a, since=1, expires=2)
        assert not await bury(), "the lease of who buries is over too"
        await a.database.fetch(BEAT, 60, False, a.database.node)
        assert not await bury(), "after a break one has to beat for a while again"
        await age(a, since=1)
        assert await bury()
        assert not await bury(), "nobody dies twice"


async def test_a_node_sees_what_is_its_own_what_nobody_has_and_what_the_dead_have_left(play: Play) -> None:
    async with play(2) as (a, b):
        async def work(store: PostgresStore) -> list[tuple[int, bool]]:
            rows = await store.database.fetch(WORK, store.database.node)
            return [(version, owned) for home, session, version, owned in rows if home == a.workspace]

        assert await work(a) == [], "a session without work is nobody's"
        await a.commit(steps("1", 0, ACCEPT, claim="adopt"))
        assert (await work(a), await work(b)) == ([(1, True)], [])
        await a.commit(steps("2", 1, epoch=1, release="handover"))
        assert (await work(a), await work(b)) == ([(2, False)], [(2, False)])
        await b.commit(steps("3", 2, claim="adopt"))
        assert (await work(a), await work(b)) == ([], [(3, True)])
        await kill_node(a, b.database.node)
        assert await work(a) == [(3, False)]
        await a.commit(steps("4", 3, claim="recover", release="idle"))
        assert await work(a) == []


@pytest.mark.rule("C3c")
@pytest.mark.parametrize("release", ["idle", "handover"])
async def test_a_session_is_given_up_in_the_epoch_of_its_owner_only(play: Play, release: str) -> None:
    async with play(2) as (a, b):
        await a.commit(steps("1", 0, ACCEPT, claim="adopt"))
        await kill_node(b, a.database.node)
        await b.commit(steps("2", 1, claim="recover"))
        assert await a.commit(steps("3", 2, epoch=1, release=release)) == Lost()
        assert (await b.load("s")).owned


async def test_the_answer_of_a_claim_that_comes_again_says_whether_the_session_is_still_this_nodes(play: Play) -> None:
    async with play(2) as (a, b):
        claim = steps("1", 0, ACCEPT, claim="adopt")
        assert committed(await a.commit(claim)).epoch == 1
        assert committed(await a.commit(claim)).epoch == 1
        await kill_node(b, a.database.node)
        await b.commit(steps("2", 1, claim="recover"))
        again = committed(await a.commit(claim))
        assert (again.repeated, again.epoch, again.version) == (True, None, 1)


async def test_a_step_that_was_refused_leaves_a_gap_in_the_seqs_and_none_in_the_log(play: Play) -> None:
    async with play() as [a]:
        (first,) = committed(await a.commit(steps("1", 0, ACCEPT, AppendEvent("s", TERMINAL, {})))).seqs
        with pytest.raises(ConstraintViolation):
            await a.commit(steps("2", 1, ACCEPT, AppendEvent("s", TERMINAL, {})))
        (third,) = committed(await a.commit(steps(
            "3", 1, ACCEPT._replace(run_id="b"), AppendEvent("s", TERMINAL, {})))).seqs
        assert third > first + 1
        assert [event.id for event in await a.events()] == [1, 2]


# --- any steps

OPERATIONS = st.sampled_from([
    AcceptPrompt(0, "s", "a", "run-a"), AcceptPrompt(0, "s", "b"), AcceptPrompt(0, "t", "c"), RaiseMark("s", 1),
    RaiseMark("t", 9), HoldSession("s", True), HoldSession("t", False), AppendEvent("s", TERMINAL, {"n": 1}, "run-a"),
    AppendEvent("t", TERMINAL, {}), PutMessage(MessageRecord("m", "s", "user", ())),
    PutMessage(MessageRecord("m", "t", "user", ())), NewSession("s"), NewSession("u"), MovePrompt(1, State.ACTIVE),
    MovePrompt(2, State.ACTIVE), MovePrompt(1, State.DONE, Outcome.ERROR), MovePrompt(2, State.QUEUED)])
STEPS = st.builds(
    CommitRequest, st.sampled_from(["", *"abcdef"]), st.sampled_from(["s", "s", "t", ""]),
    st.sampled_from([None, 0, 1, 1, 2, 2, 3]), st.lists(OPERATIONS, max_size=3),
    st.sampled_from([None, None, 0, 1, 1, 2]), st.sampled_from(["", "", "adopt", "adopt", "recover"]),
    st.sampled_from(["", "", "", "idle", "handover"]), st.just(()))
DEATH = None  # of the node in place of a step
ROWS = (
    "SELECT id, mark, held, owner, epoch, version, live, wanted FROM cancelmark.sessions WHERE workspace_id = %s"
    " ORDER BY position",
    "SELECT seq, session_id, run_id, state, outcome, begun FROM cancelmark.prompts WHERE workspace_id = %s ORDER BY 1",
    "SELECT seq, state, outcome FROM cancelmark.transitions WHERE workspace_id = %s ORDER BY position",
    "SELECT id, session_id FROM cancelmark.messages WHERE workspace_id = %s",
    "SELECT place, session_id, run_id, type FROM cancelmark.events WHERE workspace_id = %s ORDER BY 1",
    "SELECT latest, floor FROM cancelmark.logs WHERE workspace_id = %s",
    "SELECT id, session_id, computed, version, epoch, node, claim, released, places, seqs FROM cancelmark.steps"
    " WHERE workspace_id = %s ORDER BY 1")


@pytest.mark.real
def test_any_steps_of_any_nodes_are_answered_alike_and_leave_the_same_rows() -> None:
    """By PostgreSQL and by the simulated database. Both begin with the same seq, and the nodes have the same names."""
    async def play_on(databases: list[Database], nodes: list[UUID], asked: list[tuple[int, CommitRequest | None]],
                      ) -> list[object]:
        for database, node in zip(databases, nodes):
            database.node = node
            await enroll(database)
        stores = [PostgresStore(database, nodes[0]) for database in databases]
        await stores[0].make("/", "log")
        await stores[0].write([NewSession("s"), NewSession("t")])
        told: list[object] = []
        for who, step in asked:
            if step is None:
                await kill_node(stores[0], nodes[who])
                continue
            try:
                told.append(await stores[who].commit(step))
            except (StoreError, LookupError) as error:
                told.append((type(error), getattr(error, "problem", "")))
        return [*told, *[await databases[0].fetch(query, nodes[0]) for query in ROWS]]

    async def compare(asked: list[tuple[int, CommitRequest | None]]) -> None:
        await real[0].fetch("SELECT setval('cancelmark.seqs', 1, false)")
        nodes, server = [uuid4(), uuid4()], SimulatedServer()
        found = await play_on(real, nodes, asked)
        assert await play_on([SimulatedDatabase(server), SimulatedDatabase(server)], nodes, asked) == found

    with asyncio.Runner() as runner:
        address = shared_server().address(shared_server().new_database())
        real = [Database(address, connections=1), Database(address, connections=1)]
        for database in real:
            runner.run(database.open())

        @given(st.lists(st.tuples(st.integers(0, 1), st.one_of(STEPS, STEPS, STEPS, st.just(DEATH))), max_size=12))
        @settings(max_examples=effort(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
        def check(asked: list[tuple[int, CommitRequest | None]]) -> None:
            runner.run(compare(asked))

        try:
            check()
        finally:
            for database in real:
                runner.run(database.close())


def note_statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that are sent from now on."""
    told: list[str] = []
    fetch = Database.fetch

    async def note(self: Database, query: str, *values: Any, **how: Any) -> list[tuple[Any, ...]]:
        told.append(query)
        return await fetch(self, query, *values, **how)

    monkeypatch.setattr(Database, "fetch", note)
    return told


async def test_steps_of_many_sessions_share_few_statements_and_each_is_judged_by_itself(
        play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async with play(2) as (a, b):
        names = [f"s{n}" for n in range(12)]
        for name in names:
            await a.commit(CommitRequest("", name, None, [NewSession(name)]))
        await b.commit(CommitRequest("b", "s4", 0, [AcceptPrompt(0, "s4", "", "taken")], claim="adopt"))
        told = note_statements(monkeypatch)
        operations = {name: [AcceptPrompt(0, name, "", f"run-{name}"), AppendEvent(name, TERMINAL, {"of": name})]
                      for name in names}
        operations["s5"] = [AcceptPrompt(0, "s5", "", "taken")]
        operations["s6"] = [PutMessage(MessageRecord("m", "s6", "user", ({"text": "\0"},)))]
        operations["s7"] = [PutMessage(MessageRecord("\0", "s7", "user", ()))]
        versions = {**dict.fromkeys(names, 0), "s8": 7}
        answers: dict[str, Any] = dict(zip(names, await asyncio.gather(*(
            a.commit(CommitRequest(f"step-{name}", name, versions[name], operations[name], claim="adopt"))
            for name in names), return_exceptions=True)))
        assert len([query for query in told if "cancelmark.step_all(" in query]) == 1
        assert len(told) == UNDER_WAY + 1 + 2 + 2, "two have failed and are sent alone, and two are loaded"
        assert answers.pop("s4") == Conflict(await a.load("s4"))
        assert isinstance(answers.pop("s5"), ConstraintViolation)
        assert committed(answers.pop("s6")).events == ()
        assert isinstance(answers.pop("s7"), Unstorable)
        assert isinstance(answers.pop("s8"), Conflict)
        events = {name: committed(answer).events for name, answer in answers.items()}
        assert sorted(place for places in events.values() for place in places) == [*range(1, len(answers) + 1)]
        assert {e.payload["of"]: (e.id,) for e in await a.events()} == events
        seqs = [seq for answer in answers.values() for seq in answer.seqs]
        assert len({*seqs}) == len(answers)
        again = await a.commit(CommitRequest("step-s0", "s0", 0, operations["s0"], claim="adopt"))
        assert again == answers["s0"]._replace(repeated=True)


async def test_steps_of_many_workspaces_share_few_statements_each_under_the_name_that_its_node_had(
        play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async with play() as [a]:
        stores = [PostgresStore(a.database, uuid4()) for _ in range(12)]
        for store in stores:
            await store.make(str(store.workspace), "log")
            await store.write([NewSession("s")])
        told = note_statements(monkeypatch)
        first = a.database.node

        begun = []
        for n, store in enumerate(stores):
            if n == 6:  # the node was declared dead, and goes on as another
                asyncio.get_running_loop().call_soon(setattr, a.database, "node", uuid4())
            begun.append(store.begin_commit(steps(
                f"step-{n}", 0, AcceptPrompt(0, "s", f"prompt {n}"), AppendEvent("s", TERMINAL, {}), claim="adopt")))
        answers = await asyncio.gather(*begun)
        assert len(told) == UNDER_WAY + 1
        assert [committed(answer).events for answer in answers] == [(1,)] * len(stores)
        for n, store in enumerate(stores):
            assert [p.text for p in (await store.load("s")).prompts] == [f"prompt {n}"]
        owners = [(await a.database.fetch("SELECT owner FROM cancelmark.sessions WHERE workspace_id = %s",
                                          store.workspace))[0][0] for store in stores]
        assert owners == [first] * 6 + [a.database.node] * 6


async def test_a_node_that_writes_to_many_sessions_at_once_and_one_that_closes_them_wait_for_each_other(
    play: Play,
) -> None:
    async with play(2) as (a, b):
        names = [f"s{n}" for n in range(24)]
        for name in names:
            await a.commit(CommitRequest("", name, None, [NewSession(name)]))

        async def write(store: PostgresStore, order: list[str]) -> None:
            for n in range(5):
                await asyncio.gather(*(store.commit(CommitRequest(f"{id(store)}-{name}-{n}", name, None, [
                    AppendEvent(name, TERMINAL, {})])) for name in order))

        async def close() -> None:
            for _ in range(20):
                await a.database.fetch(
                    f"UPDATE cancelmark.sessions SET closing = NOT closing WHERE workspace_id = %s AND {BY_ID}",
                    a.workspace, a.workspace)

        async with asyncio.timeout(30):
            await asyncio.gather(write(a, names), write(b, names[::-1]), close())
        assert await a.latest_event() == 2 * 5 * len(names)
