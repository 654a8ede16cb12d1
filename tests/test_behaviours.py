"""The original's behaviours, each on everything that can show it: the models, the runtime and the server."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from support.behaviours import BEHAVIOURS, Behaviour, Sees
from support.model_player import play_on_model
from support.runtimes import OpenStore, World, fails, world
from support.scenes import Scenes
from support.servers import Place, Server, Watch, check_notices, finish_of, serving

from cancelmark.impl.models.scripted import Stubborn, Wait, say
from cancelmark.impl.runtime import Handle, Runtime
from cancelmark.impl.store import Store
from cancelmark.model.lifecycle import Outcome
from cancelmark.model.protocol import REFERENCE
from cancelmark.model.revisions import REVISIONS

DONE = {outcome.value for outcome in Outcome}
PATIENCE = 5000  # looks
PROBLEM, NOT_READY = "the model is down", "the agent is not ready"


class LivePlayer:
    """Holds prompts at the door and turns at a gate, each by its letter, which is also its text."""

    sessions: list[str]  # their ids

    def __init__(self, scenes: Scenes, runtime: Runtime, behaviour: Behaviour) -> None:
        self.scenes, self.runtime = scenes, runtime
        self.left, self.stubborn = behaviour.calls, behaviour.stubborn
        self.doors: dict[str, asyncio.Event] = {}
        self.seqs: dict[str, int] = {}
        self.home: dict[str, int] = {}  # the session of each prompt
        self.run_ids: dict[str, str | None] = {}
        self.let_go: set[str] = set()  # prompts whose turns end, or are told to stop
        self.ran: list[str] = []  # prompts that were seen to be active: each stays so until the script goes on

    async def accept(self, session: int, name: str, run_id: str | None) -> int:
        raise NotImplementedError

    async def call(self, session: int, what: str) -> None:
        """`cancel` or `clear_queue`."""
        raise NotImplementedError

    async def become(self) -> dict[str, str]:
        """The state of each prompt, or how it ended."""
        raise NotImplementedError

    async def read_ends(self) -> list[dict[str, Any]]:
        """The terminal events that everybody has been told."""
        raise NotImplementedError

    # --- doing

    async def play(self, step: str) -> None:
        """Makes the call, and returns when nothing more happens by itself."""
        assert self.left.pop(0) == step
        words, _, second = step.partition("@")
        here = int(second or 1) - 1
        match words.split():
            case ["accept", name, *more]:
                self.hold_turn(name)
                self.hold_at_door(name)
                self.home[name], self.run_ids[name] = here, f"run-{name}" if more else None
                self.seqs[name] = await self.accept(here, name, self.run_ids[name])
            case ["enter" | "fail", name]:
                self.doors[name].set()
            case ["finish", name, _]:
                self.let_go.add(name)
                folded = [other for other, state in (await self.become()).items() if state == "folded"]
                for gate in (name, *folded):  # the model may have been asked last for what the turn took in
                    self.scenes.model.gate(gate).open()
            case [what]:
                self.let_go |= {name for name in self.seqs if self.home[name] == here} - self.stubborn
                await self.call(here, what)
        for _ in range(PATIENCE):
            if await self.is_at_rest():
                return
            await asyncio.sleep(0.002)
        raise AssertionError(f"there is no rest after {step!r}: {await self.become()}, {await self.read_ends()}")

    def hold_at_door(self, name: str) -> None:
        """The next prompt stays accepted until its door is opened. Then it enters, or cannot start."""
        door, fails = asyncio.Event(), f"fail {name}" in self.left
        self.doors[name] = door

        async def wait_at_door(session_id: str) -> None:
            await door.wait()
            if fails:
                raise LookupError(NOT_READY)

        self.runtime.ready = wait_at_door

    def hold_turn(self, name: str) -> None:
        if name in self.stubborn:
            self.scenes.plays(name, (Stubborn((*say("half "), Wait(name), *say("done"))),))
        elif f"finish {name} error" in self.left:
            self.scenes.plays(name, (*say("half "), Wait(name), *fails(message=PROBLEM)))
        else:
            self.scenes.holds(name)

    def open_doors(self) -> None:
        for door in self.doors.values():
            door.set()

    async def is_at_rest(self) -> bool:
        became = await self.become()
        active = [name for name, state in became.items() if state == "active"]
        self.ran += [name for name in active if name not in self.ran]
        busy = {self.home[name] for name in active}
        for name, state in became.items():
            moves = {"accepted": self.doors[name].is_set(), "queued": self.home[name] not in busy,
                     "active": name in self.let_go, "canceled_on_entry": True}
            if moves.get(state):
                return False
        model = self.scenes.model
        ended = sum(state in DONE and state != "folded" for state in became.values())
        asked = sum(model.gate(name).arrivals for name in self.seqs)
        return len(await self.read_ends()) == ended and model.calls == asked == len(self.ran)

    # --- what is seen

    async def see(self) -> Sees:
        became, ends = await self.become(), await self.read_ends()
        names = {seq: name for name, seq in self.seqs.items()}
        for end in ends:
            self.check_end(end, names[end["seq"]], became)
        told = [f"{names[end['seq']]} {end['outcome']}" for end in ends]
        heard = {message.text for request in self.scenes.requests for message in request.messages}
        assert {name for name, state in became.items() if state == "folded"} <= heard, "what a turn takes in is heard"
        return Sees(
            became=", ".join(f"{name} {state}" for name, state in became.items()), ends=", ".join(told),
            all_ends=", ".join(sorted(told)), ran="".join(self.ran),
            errors="".join(names[end["seq"]] for end in ends if "error" in end))

    def check_end(self, end: dict[str, Any], name: str, became: dict[str, str]) -> None:
        """A terminal event is its own prompt's, and carries what its outcome asks for, and nothing else."""
        assert end["session_id"] == self.sessions[self.home[name]]
        assert (end.get("run_id"), end["outcome"]) == (self.run_ids[name], became[name])
        assert end.get("cancelled", False) is (end["outcome"] == "canceled")
        assert ("error" in end) is (end["outcome"] == "error")
        assert end.get("error") in (None, PROBLEM, NOT_READY)
        if end["outcome"] == "end_turn":
            assert end["text"] == "half done"


class RuntimePlayer(LivePlayer):
    """A runtime in this process."""

    def __init__(self, w: World, behaviour: Behaviour) -> None:
        super().__init__(w, w.runtime, behaviour)
        self.w, self.handles, self.sessions = w, dict[str, Handle](), ["s", "t"]

    async def accept(self, session: int, name: str, run_id: str | None) -> int:
        self.handles[name] = await self.w.accept(name, run_id, self.sessions[session])
        return self.handles[name].seq

    async def call(self, session: int, what: str) -> None:
        await getattr(self.runtime, what)(self.sessions[session])

    async def become(self) -> dict[str, str]:
        last = {name: (await self.w.store.transitions(seq))[-1] for name, seq in self.seqs.items()}
        return {name: (t.outcome or t.state).value for name, t in last.items()}

    async def read_ends(self) -> list[dict[str, Any]]:
        events = await self.w.store.events()
        assert all(event.terminal for event in events)
        return [dict(event.payload) for event in events]

    async def is_at_rest(self) -> bool:
        """And callers have been told. Whoever was folded is told when the turn is over."""
        unfinished = {"st"[self.home[name]] for name, state in (await self.become()).items() if state not in DONE}
        if {session for session in "st" if self.runtime.is_busy(session)} != unfinished:
            return False
        became = await self.become()
        told = {name for name, handle in self.handles.items() if handle.result}
        waiting = {"folded"} if "active" in became.values() else set()
        return await super().is_at_rest() and told >= {
            name for name, state in became.items() if state in DONE - waiting}

    async def see(self) -> Sees:
        became, seen, store = await self.become(), await super().see(), self.w.store
        mark = next(s.mark for s in await store.sessions() if s.id == "s")
        await self.check_callers(became)
        return Sees(
            seen.became, seen.ends, seen.all_ends, errors=seen.errors, mark=mark,
            messages=" ".join(reason or role for role, reason in self.w.messages()),
            ran=seen.ran, queue="".join(self.runtime.queued("s")),
            pending=any(state == "accepted" and self.seqs[name] <= mark for name, state in became.items()))

    async def check_callers(self, became: dict[str, str]) -> None:
        """Whoever has the handle or the run id of a prompt is told the same."""
        for name, handle in self.handles.items():
            if result := handle.result:
                assert result.outcome.value == became[name]
                assert (result.error is not None) is (became[name] == "error")
            if run_id := self.run_ids[name]:
                status = await self.runtime.status(run_id)
                assert status
                assert (status.text, status.run_id) == (name, run_id)
                assert (status.outcome or status.state).value == became[name]
        said = [m.parts[0]["data"]["text"] for m in await self.w.store.messages("s") if m.role == "user"]
        assert len(set(said)) == len(said)
        assert set(said) <= self.seqs.keys()


@asynccontextmanager
async def play_on_runtime(store: Store, behaviour: Behaviour) -> AsyncIterator[LivePlayer]:
    async with world(store) as w:
        player = RuntimePlayer(w, behaviour)
        try:
            yield player
        finally:
            player.open_doors()


class ServerPlayer(LivePlayer):
    """A server and two of its clients, on connections of their own: one posts, the other cancels, both watch."""

    def __init__(self, server: Server, mine: Place, theirs: Place, watches: tuple[Watch, Watch],
                 behaviour: Behaviour) -> None:
        super().__init__(server, server.site.workspaces.get(mine.id).runtime, behaviour)
        self.server, self.mine, self.theirs, self.watches = server, mine, theirs, watches
        self.sessions = [mine.session]

    async def accept(self, session: int, name: str, run_id: str | None) -> int:
        while len(self.sessions) <= session:
            self.sessions.append(await self.mine.new_session())
        return await self.mine.send(name, run_id, self.sessions[session])

    async def call(self, session: int, what: str) -> None:
        path = {"cancel": "cancel", "clear_queue": "prompts/clear"}[what]
        assert (await self.theirs.do(path, self.sessions[session])).status_code == 200

    async def become(self) -> dict[str, str]:
        told = [p for session in self.sessions for p in await self.theirs.get("prompts", session)]
        assert all(p["text"] in (name for name, seq in self.seqs.items() if seq == p["seq"]) for p in told)
        return {p["text"]: p.get("outcome") or p["state"] for p in sorted(told, key=lambda p: int(p["seq"]))}

    async def read_ends(self) -> list[dict[str, Any]]:
        """What one client was told, if the other was told the same."""
        one, other = (watch.of("run_complete") for watch in self.watches)
        return [end for end in one if end in other]

    async def see(self) -> Sees:
        seen = await super().see()
        for watch in self.watches:
            check_notices(watch.seen)
        for name, run_id in self.run_ids.items():
            if run_id and name not in self.ran:
                self.check_record(run_id)
        return Sees(
            seen.became, seen.ends, seen.all_ends, errors=seen.errors,
            messages=" ".join(reason or role for role, reason in await self.mine.spoken()),
            ran=seen.ran, queue="".join(await self.theirs.get("prompts/list")))


    async def is_at_rest(self) -> bool:
        """And both clients have seen every message, and how it ended."""
        kept = [m for session in self.sessions for m in await self.mine.messages(session)]
        told = [{m["id"]: finish_of(m) for m in seen} for seen in (kept, *(w.of("message") for w in self.watches))]
        return told[0] == told[1] == told[2] and await super().is_at_rest()

    def check_record(self, run_id: str) -> None:
        """A prompt that was canceled on entry has its record before its end, and never says anything."""
        told = [e for e in self.watches[0].seen if e["payload"]["payload"].get("run_id") == run_id]
        states = [e["payload"]["payload"]["state"] for e in told if e["type"] == "prompt"]
        if "canceled_on_entry" in states:
            assert states == ["accepted", "canceled_on_entry", "done"]
            assert [e["type"] for e in told if e["type"] != "prompt"] == ["message", "message", "run_complete"]
            parts = [part for e in told if e["type"] == "message" for part in e["payload"]["payload"]["parts"]]
            assert [part["type"] for part in parts] == ["text", "finish"], "the user's text"


@asynccontextmanager
async def play_on_server(behaviour: Behaviour) -> AsyncIterator[LivePlayer]:
    async with serving() as server, server.client() as one, server.client() as other:
        mine = await server.workspace(one)
        theirs = mine.seen_by(other)
        async with mine.watching() as first, theirs.watching() as second:
            player = ServerPlayer(server, mine, theirs, (first, second), behaviour)
            try:
                yield player
            finally:
                player.open_doors()


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
