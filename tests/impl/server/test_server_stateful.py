"""Random lives of a server as its clients live them: over HTTP, several at once, judged by the oracle.

Each rule is something that clients do at the same time, or that a turn does, or that befalls the server. The clients
write down when each call began and was answered, and which ends they have seen; the oracle judges that history. A rule
ends when the server has come to rest and every client has seen everything.

Who comes first of those who call at the same time is nobody's to decide, so what is drawn never depends on the server.
"""

import asyncio
import re
import shutil
import sqlite3
import tempfile
import traceback
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from support.budget import effort
from support.runtime_bugs import (
    RANDOM,
    cancel_is_answered_too_early,
    conflicts_are_ignored,
    run_ids_are_lost,
    runs_twice,
)
from support.runtimes import fails
from support.servers import PATIENCE, Place, Server, Watch, serving
from support.stores import at_once, unfinished

from cancelmark.impl.models.scripted import Beat, Request, Wait, say
from cancelmark.impl.runtime.messages import text_of
from cancelmark.impl.runtime.workspace import Workspace
from cancelmark.impl.server.stream import Encoder
from cancelmark.impl.store import Store
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.oracle import Call, CallKind, End, Prompt, Span, certain, judge

T = TypeVar("T")

CLIENTS = 3
SESSIONS = 2
A_SESSION = st.sampled_from([0, 0, 0, 1])  # prompts must get in each other's way
A_CLIENT = st.integers(0, CLIENTS - 1)
SELDOM = st.integers(0, 3).map(lambda n: n == 0)
TURNS: dict[str, tuple[Beat, ...]] = {"speaks": say("hello"), "fails": fails()}
DO = st.one_of(
    st.tuples(st.just("accept"), A_CLIENT, A_SESSION, st.booleans(), st.sampled_from(list(TURNS))),
    st.tuples(st.just("accept"), A_CLIENT, A_SESSION, st.just(True), st.just("speaks")),
    st.tuples(st.sampled_from(["interrupt", "reject"]), A_CLIENT, A_SESSION, st.booleans(), st.just("speaks")),
    st.tuples(st.sampled_from(["revoke", "replace", "next"]), A_CLIENT, A_SESSION, st.integers(0, 99), st.none()),
    st.tuples(st.sampled_from(["stop", "hold", "resume", "resume"]), A_CLIENT, A_SESSION, st.booleans(), st.none()),
    st.tuples(st.just("stop one"), A_CLIENT, A_SESSION, st.integers(0, 99), st.none()),
    st.tuples(st.just("cancel"), A_CLIENT, A_SESSION, st.none(), st.none()),
    st.tuples(st.just("clear"), A_CLIENT, A_SESSION, st.none(), st.none()),
    st.tuples(st.just("again"), A_CLIENT, A_SESSION, st.integers(0, 99), st.none()),
    st.tuples(st.just("other"), A_CLIENT, A_SESSION, st.integers(0, 99), st.none()))

CHANGE = st.tuples(st.sampled_from(["replace", "replace", "next", "revoke"]), A_CLIENT, A_SESSION, st.integers(0, 99),
                   st.none())


class Life:
    """One life of the server, and the connections of its clients."""

    def __init__(self, loop: asyncio.AbstractEventLoop, directory: Path, place: Place | None) -> None:
        self.loop, self.directory = loop, directory
        self.gates: dict[int, str] = {}  # where the turn of a prompt's session waits, by the prompt's seq
        self.freely = False  # turns wait no more
        self.stack = AsyncExitStack()
        self.run(self._start(place))

    async def _start(self, place: Place | None) -> None:
        self.server: Server = await self.stack.enter_async_context(serving(self.directory, stop=1.0))
        self.server.model._choose = self._scene
        self.https = [await self.stack.enter_async_context(self.server.client()) for _ in range(CLIENTS)]
        self.place = place.seen_by(self.https[0]) if place else await self.server.workspace(self.https[0])

    def _scene(self, request: Request) -> Iterable[Beat]:
        session, turn, name = request.prompt.split()
        beats = TURNS[turn]
        if self.freely:
            return beats
        self.gates[int(session)] = f"{name} {request.number}"
        return (*say("well, "), Wait(self.gates[int(session)]), *beats)

    def run(self, work: Awaitable[T]) -> T:
        async def within() -> T:
            async with asyncio.timeout(PATIENCE):
                return await work

        return self.loop.run_until_complete(within())

    @property
    def workspace(self) -> Workspace:
        (workspace,) = self.server.site.workspaces
        return workspace

    @property
    def store(self) -> Store:
        return self.workspace.runtime.store

    @property
    def waiting(self) -> list[int]:
        """The sessions whose turn waits at a gate."""
        active = {int(p.text.split()[0]) for p in at_once(unfinished(self.store)) if p.state is State.ACTIVE}
        return sorted(s for s in active & set(self.gates) if self.server.model.gate(self.gates[s]).arrivals)

    @property
    def at_rest(self) -> bool:
        """Everybody waits: in the queue, or at a gate."""
        marks = {session.id: session.mark for session in at_once(self.store.sessions())}
        left = at_once(unfinished(self.store))
        active = [p for p in left if p.state is State.ACTIVE]
        return (len(active) == self.server.model.running == len(self.waiting)
                and all(p.seq > marks[p.session_id] and not p.traits.revoked for p in active)
                and all(p.state in (State.ACTIVE, State.QUEUED) for p in left))

    def release(self, session: int) -> None:
        self.server.model.gate(self.gates.pop(session)).open()

    def end(self) -> None:
        self.run(self.stack.aclose())


class Clients(RuleBasedStateMachine):
    """Clients of a server, and the history that they write down together."""

    bug: ClassVar[Callable[[pytest.MonkeyPatch], None]] = staticmethod(lambda patch: None)
    examples: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).examples += 1
        self.patch = pytest.MonkeyPatch()
        type(self).bug(self.patch)
        self.top = tempfile.TemporaryDirectory(prefix="cancelmark-")
        self.loop = asyncio.new_event_loop()
        self.lives = 0
        self.life = Life(self.loop, self.directory, None)
        self.sessions = [self.life.place.session, self.life.run(self.life.place.new_session())]
        self.now = self.looked = 0
        self.prompts: dict[int, Prompt] = {}  # by seq
        self.texts: dict[int, tuple[str, str | None, int]] = {}  # text, run id and session, by seq
        self.calls: list[Call] = []
        self.named: list[tuple[Span, CallKind, int, int]] = []  # calls of one prompt: when, what, session and seq
        self.versions: dict[int, dict[int, str]] = {}  # the texts that were taken, by seq and version
        self.canceled: set[int] = set()  # prompts of which somebody was told that they are canceled
        self.rejects: set[int] = set()  # prompts that found everybody done
        self.modes: dict[int, dict[str, str]] = {}  # how prompts were posted, by seq
        self.seen: list[list[dict[str, Any]]] = [[] for _ in range(CLIENTS)]  # what each client has seen before
        self.watches: list[Watch | None] = [None] * CLIENTS
        self.streams: list[AsyncExitStack] = [AsyncExitStack() for _ in range(CLIENTS)]
        self.places = [""] * CLIENTS
        for client in range(CLIENTS):
            self.life.run(self.arrive(client))

    @property
    def directory(self) -> Path:
        return Path(self.top.name) / str(self.lives)

    # --- what happens

    @rule(calls=st.lists(DO, min_size=1, max_size=5))
    def at_the_same_time(self, calls: Sequence[tuple[Any, ...]]) -> None:
        self.life.run(self.together([self.do(*call) for call in calls]))
        self.look()

    @rule(session=A_SESSION, calls=st.lists(DO, max_size=2))
    def a_turn_goes_on_meanwhile(self, session: int, calls: Sequence[tuple[Any, ...]]) -> None:
        if session in self.life.waiting:
            self.life.release(session)
        self.life.run(self.together([self.do(*call) for call in calls]))
        self.look()

    @rule(client=A_CLIENT, session=A_SESSION, changes=st.lists(CHANGE, min_size=1, max_size=3), crash=st.booleans())
    def what_waits_is_changed(self, client: int, session: int, changes: Sequence[tuple[Any, ...]], crash: bool) -> None:
        """In a session that is held, so that somebody waits; and what was changed may have to outlive a crash."""
        self.life.run(self.do("hold", client, session, None, None))
        self.life.run(self.do("accept", client, session, True, "speaks"))
        self.life.run(self.together([self.do(*change) for change in changes]))
        self.look()
        self.the_server_crashes(crash)

    @rule(kind=st.sampled_from(["reject", "reject", "interrupt", "accept"]), client=A_CLIENT, session=A_SESSION,
          idle=st.booleans())
    def an_answer_is_lost(self, kind: str, client: int, session: int, idle: bool) -> None:
        """Whoever has posted posts again: in a session that was idle before, or as it happens to be."""
        for call in ("cancel", "resume") if idle else ():
            self.life.run(self.do(call, client, session, None, None))
        self.rest()
        self.life.run(self.do(kind, client, session, True, "speaks"))
        self.life.run(self.do("again", client, session, -1, None))
        self.look()

    @rule(client=A_CLIENT, calls=st.lists(DO, min_size=1, max_size=3))
    def a_client_is_away_meanwhile(self, client: int, calls: Sequence[tuple[Any, ...]]) -> None:
        self.life.run(self.leave(client))
        self.life.run(self.together([self.do(*call) for call in calls]))
        self.rest()
        self.life.run(self.arrive(client))
        self.look()

    @rule(often_enough=SELDOM)
    def the_server_is_stopped_and_started(self, often_enough: bool) -> None:
        if often_enough:
            begin = self.tick()
            self.life.run(self.life.server.site.workspaces.close())
            self.calls.append(Call(begin, self.tick(), "close"))
            self.restart()

    @rule(often_enough=SELDOM)
    def the_server_crashes(self, often_enough: bool) -> None:
        if not often_enough:
            return
        old = self.directory
        self.lives += 1
        (self.directory / "workspaces").mkdir(parents=True)
        shutil.copy(old / "index.db", self.directory)
        for file in (old / "workspaces").glob("*.db"):
            with closing(sqlite3.connect(file)) as now, \
                    closing(sqlite3.connect(self.directory / "workspaces" / file.name)) as copy:
                now.backup(copy)
        self.restart()

    # --- how it is done

    async def together(self, calls: Sequence[Awaitable[None]]) -> None:
        await asyncio.gather(*calls)

    async def do(self, kind: str, client: int, session: int, which: Any, turn: str | None) -> None:
        place = self.life.place.seen_by(self.life.https[client])
        begin = self.tick()
        if kind in ("accept", "interrupt", "reject"):
            run_id = f"run-{begin}" if which else None
            text = f"{session} {turn} {begin}"
            mode = {} if kind == "accept" else {"if_busy": kind}
            answer = await place.post(text, run_id, self.sessions[session], **mode)
            if kind == "reject" and answer.status_code == 409:
                return
            assert answer.status_code == 202
            seq = int(answer.json()["seq"])
            self.prompts[seq] = Prompt(text, Span(begin, self.tick()), bool(which), session=str(session))
            self.texts[seq], self.modes[seq] = (text, run_id, session), mode
            if kind == "interrupt":
                self.named.append((self.prompts[seq].accept, "interrupt", session, seq))
            elif kind == "reject":
                self.rejects.add(seq)
        elif kind in ("revoke", "replace", "next"):
            if self.texts:
                await self.change(kind, place, self.choose(which), begin)
        elif kind == "stop one":
            if self.texts:
                await self.stop_one(place, self.choose(which), begin)
        elif kind in ("stop", "hold", "resume"):
            answer = await place.do(kind, self.sessions[session], {"hold": which} if kind == "stop" else None)
            assert answer.status_code == 200
            span = Span(begin, self.tick())
            if kind != "stop" or which:
                assert answer.json()["held"] is (kind != "resume")
                self.calls.append(Call(span.begin, span.end, "resume" if kind == "resume" else "hold", str(session)))
            if kind == "stop" and (seq := answer.json()["stopped"]):
                self.named.append((span, "stop", session, seq))
        elif kind in ("cancel", "clear"):
            answer = await place.do("cancel" if kind == "cancel" else "prompts/clear", self.sessions[session])
            assert answer.status_code == 200
            self.calls.append(Call(begin, self.tick(), "cancel" if kind == "cancel" else "clear_queue", str(session)))
        elif named := [(seq, *told) for seq, told in self.texts.items() if told[1]]:
            seq, text, run_id, its_session = named[which % len(named)]
            answer = await place.post(text if kind == "again" else "0 speaks other", run_id, self.sessions[its_session],
                                      **self.modes[seq])
            assert answer.status_code == (202 if kind == "again" else 409)
            assert kind == "other" or answer.json()["seq"] == seq

    def choose(self, which: int) -> int:
        """A prompt that waits, as far as clients know; now and then one of the latest, which may run or be done."""
        waiting = [seq for seq, prompt in sorted(self.prompts.items()) if not (prompt.starts or prompt.ends)]
        among = waiting if waiting and which % 4 else sorted(self.texts)[-3:]
        return among[which // 4 % len(among)]

    async def stop_one(self, place: Place, seq: int, begin: int) -> None:
        """A stop that names its prompt can be repeated: it reaches that one, or nobody."""
        session = self.texts[seq][2]
        for _ in range(2):
            answer = await place.do("stop", self.sessions[session], {"seq": seq})
            assert answer.status_code == 200
            stopped = answer.json()["stopped"]
            assert stopped in (None, 0, seq), "a stop reached another prompt than the one that was named"
            if stopped:
                self.named.append((Span(begin, self.tick()), "stop", session, seq))

    async def change(self, kind: str, place: Place, seq: int, begin: int) -> None:
        """A call on one prompt. What its caller is told must be true later on."""
        session = self.texts[seq][2]
        text = f"{session} speaks {begin}"
        method, path, body = {"revoke": ("DELETE", "", None), "replace": ("PUT", "/text", {"prompt": text}),
                              "next": ("POST", "/next", None)}[kind]
        url = f"{place.url}/agent/sessions/{self.sessions[session]}/prompts/{seq}{path}"
        answer = await place.http.request(method, url, **({"json": body} if body else {}))
        told = answer.json()
        if kind == "revoke":
            assert answer.status_code == 200
            self.named.append((Span(begin, self.tick()), "revoke", session, seq))
            if told["effect"] == "canceled":
                self.canceled.add(seq)
            assert told["effect"] != "none" or told["state"] == "done"
        elif answer.status_code == 409:
            assert told["code"] == "too_late"
        else:
            assert answer.status_code == 200
            if kind == "replace":
                assert told["version"] not in self.versions.setdefault(seq, {}), "two texts have one version"
                self.versions[seq][told["version"]] = text

    async def arrive(self, client: int) -> None:
        place = self.life.place.seen_by(self.life.https[client])
        self.watches[client] = await self.streams[client].enter_async_context(
            place.watching(last_event_id=self.places[client] or None))

    async def leave(self, client: int) -> None:
        watch = self.watches[client]
        assert watch is not None
        await watch.until(lambda w: w.last_event_id)
        await self.streams[client].aclose()
        self.seen[client] += watch.seen
        self.places[client] = watch.last_event_id
        self.watches[client] = None

    def restart(self) -> None:
        begin = self.tick()
        for client in range(CLIENTS):
            self.life.run(self.leave(client))
        place = self.life.place
        self.life.end()
        self.life = Life(self.loop, self.directory, place)
        self.calls.append(Call(begin, self.tick(), "crash"))
        for client in range(CLIENTS):
            self.life.run(self.arrive(client))
        self.look()

    def tick(self) -> int:
        self.now += 1
        return self.now

    def rest(self) -> None:
        async def wait() -> None:
            while not self.life.at_rest:
                await asyncio.sleep(0.001)

        self.life.run(wait())

    def look(self) -> None:
        """Comes back when the server is at rest and everybody has seen everything, and notes what is new."""
        self.rest()
        latest = at_once(self.life.store.latest_event())
        published = self.life.workspace.runtime.broker

        def caught_up(watch: Watch) -> bool:
            return watch.last_event_id.endswith(f"-{latest}") and self.states(watch) >= current

        current = {(p.seq, p.state.value) for p in at_once(unfinished(self.life.store))}
        for watch in self.watches:
            assert watch is not None
            with suppress(TimeoutError):  # what it has not seen by then it never will, and the invariants say so
                self.life.run(asyncio.wait_for(watch.until(caught_up), 5))
        assert published.statistics().skipped == 0
        self.note()

    def states(self, watch: Watch) -> set[tuple[int, str]]:
        """What has been told of the prompts that are not done; after a restart, what is asked for."""
        told = {p.seq: p.state.value for p in at_once(unfinished(self.life.store))} if not watch.of("prompt") else {}
        for prompt in watch.of("prompt"):
            told[prompt["seq"]] = prompt["state"]
        return {(p.seq, told.get(p.seq, p.state.value)) for p in at_once(unfinished(self.life.store))}

    def ends(self, client: int) -> list[tuple[int, str | None, str]]:
        """Every end that a client has seen, in all lives of the server."""
        watch = self.watches[client]
        told = self.seen[client] + (watch.seen if watch else [])
        ends = [e["payload"]["payload"] for e in told if e["type"] == "run_complete"]
        return [(end["seq"], end.get("run_id"), end["outcome"]) for end in ends]

    def note(self) -> None:
        since, now = self.looked, self.tick()
        ends = self.ends(0)
        folded, starts = self.journal()
        for seq, prompt in self.prompts.items():
            outcomes = [outcome for s, _, outcome in ends if s == seq] + ["folded"] * (seq in folded)
            self.prompts[seq] = replace(
                prompt,
                starts=(*prompt.starts, *[Span(since, now)] * (starts[seq] - len(prompt.starts))),
                ends=(*prompt.ends, *(End(since, now, outcome) for outcome in outcomes[len(prompt.ends):])))
        self.looked = now

    def journal(self) -> tuple[set[int], dict[int, int]]:
        """Which prompts were folded, and how often each has started: what nobody is told who was away."""
        transitions = {seq: at_once(self.life.store.transitions(seq)) for seq in self.prompts}
        return ({seq for seq, lines in transitions.items() if lines[-1].outcome is Outcome.FOLDED},
                {seq: sum(line.state is State.ACTIVE for line in lines) for seq, lines in transitions.items()})

    @invariant()
    def the_oracle_has_no_complaint(self) -> None:
        self.judge(complete=False)

    @invariant()
    def all_clients_have_seen_the_same_ends(self) -> None:
        first = self.ends(0)
        assert len(first) == len({seq for seq, _, _ in first}), "an end came twice"
        for client in range(1, CLIENTS):
            assert self.ends(client) == first, "a client has missed an end, or seen one twice"
        for seq, run_id, _ in first:
            assert seq in self.texts, "an end that nobody has asked for"
            assert self.texts[seq][1] == run_id, "an end under another run id"

    @invariant()
    def callers_were_told_the_truth(self) -> None:
        outcomes = {seq: outcome for seq, _, outcome in self.ends(0)}
        for seq in self.canceled & set(outcomes):
            assert outcomes[seq] == "canceled", "a prompt that a revoke has canceled ended otherwise"
        heard = {m.id: m for session in self.sessions for m in at_once(self.life.store.messages(session))}
        for seq, (first, _, _) in self.texts.items():
            if prompt := heard.get(f"p{seq}"):
                texts = {0: first, **self.versions.get(seq, {})}
                assert text_of(prompt) == texts[max(texts)], "a turn began with another text than the latest"
        for seq in self.rejects:
            mine = self.prompts[seq]
            for other in self.prompts.values():
                waits = not other.ends or certain(mine.accept, other.ends[0])
                assert not (other.session == mine.session and certain(other.accept, mine.accept) and waits), (
                    "a prompt that wanted an idle session was accepted in a busy one")

    @invariant()
    def the_queue_is_listed_by_place(self) -> None:
        for session in self.sessions:
            listed = self.life.run(self.life.place.get("prompts/list?full=true", session))
            places = [(-p.get("front", 0), p["seq"]) for p in listed]
            assert places == sorted(places)
            for p in listed:
                texts = {0: self.texts[p["seq"]][0], **self.versions.get(p["seq"], {})}
                assert p.get("version", 0) in texts, "a version that nobody was told"
                assert p["text"] == texts[p.get("version", 0)], "a text is listed that is not of its version"
            assert [p["text"] for p in listed] == self.life.run(self.life.place.get("prompts/list", session))

    def teardown(self) -> None:
        """Turns wait no more, and nobody holds a session: when the server is at rest, every prompt has ended."""
        try:
            self.life.freely = True
            for number, session in enumerate(self.sessions):
                begin = self.tick()
                self.life.run(self.life.place.do("resume", session))
                self.calls.append(Call(begin, self.tick(), "resume", str(number)))
            for session in list(self.life.gates):
                self.life.release(session)

            async def over() -> None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(5):
                        while (await unfinished(self.life.store)):
                            await asyncio.sleep(0.001)

            self.life.run(over())
            self.look()
            self.judge(complete=True)
            self.all_clients_have_seen_the_same_ends()
        finally:
            for stack in self.streams:
                self.life.run(stack.aclose())
            self.life.end()
            self.loop.close()
            self.patch.undo()
            self.top.cleanup()

    def judge(self, complete: bool) -> None:
        calls = [*self.calls, *(Call(span.begin, span.end, kind, str(session), self.prompts[seq].name)
                                for span, kind, session, seq in self.named)]
        complaints = judge(self.prompts.values(), calls, complete)
        assert not complaints, "\n".join(complaints)


TestClients = pytest.mark.real(Clients.TestCase)
TestClients.settings = settings(max_examples=effort(12), stateful_step_count=15, deadline=None,
                                suppress_health_check=[HealthCheck.too_slow])


# --- The machine can fail -------------------------------------------------------------------------------------------

def places_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Who comes back is shown what happens from now on."""
    patch.setattr(Encoder, "parse_offset", lambda self, last_event_id, latest: None)


def everything_is_shown_again(patch: pytest.MonkeyPatch) -> None:
    """Who comes back is shown everything."""
    patch.setattr(Encoder, "parse_offset", lambda self, last_event_id, latest: 0)


BUGS: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    runs_twice: "that nobody has asked for",
    conflicts_are_ignored: "409",
    cancel_is_answered_too_early: "ends canceled|starts, but|starts again, but",
    places_are_forgotten: "missed an end|has 0 terminal events",
    everything_is_shown_again: "twice|has 2 terminal events",
    run_ids_are_lost: "another run id|409|folded",
    **RANDOM,
}


@pytest.mark.parametrize("bug", list(BUGS), ids=lambda bug: bug.__name__)
def test_the_machine_catches(bug: Callable[[pytest.MonkeyPatch], None]) -> None:
    budget = settings(max_examples=60, stateful_step_count=15, deadline=None, derandomize=True, print_blob=False,
                      phases=[Phase.generate], report_multiple_bugs=False, suppress_health_check=[HealthCheck.too_slow])
    class Buggy(Clients):
        examples = 0

    Buggy.bug = staticmethod(bug)
    with pytest.raises((AssertionError, Flaky)) as caught:  # played again, those who race may finish otherwise
        run_state_machine_as_test(Buggy, settings=budget)
    assert re.search(BUGS[bug], "".join(traceback.format_exception(caught.value)))
    print(f"{bug.__name__}: caught within {Buggy.examples} examples")
