"""N nodes of production code and the simulated database in one event loop: clients call, a chooser lets things fail.

Whatever the chooser decides is a `pick`: what becomes of a commit, of a node, of a wake-up. The loop itself runs first
in, first out, as asyncio does. So the choices of a run are its faults, and the same choices give the same run.
"""

import asyncio
import json
import logging
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from math import inf
from random import Random
from typing import Any
from unittest.mock import patch
from uuid import UUID

import psycopg

from cancelmark.conformance.schedule import Process, current_process, pick
from cancelmark.impl.cluster.node import Lease
from cancelmark.impl.cluster.workspaces import SharedWorkspaces
from cancelmark.impl.models import Failure, Finish, FinishReason, ModelError, Role
from cancelmark.impl.models.scripted import Beat, Delay, Fail, Request, ScriptedModel, Stubborn, call, say
from cancelmark.impl.runtime.conversation import SUMMARIZE
from cancelmark.impl.runtime.refusals import Moved, Refusal, Stuck
from cancelmark.impl.runtime.workspace import Full
from cancelmark.impl.store import Event, StoreError, Unconfirmed
from cancelmark.impl.store.postgres import sending
from cancelmark.model.oracle import Call as OracleCall
from cancelmark.model.oracle import End, Span
from cancelmark.model.oracle import Prompt as Seen

from .database import Answered, SimulatedDatabase, SimulatedServer, has_steps, list_asked
from .faults import FINE, NOTHING, OF_COMMITS, OF_QUESTIONS, OF_TURNS, OF_WAKEUPS, Faults, Purse
from .step import Asked, Raised, Step

LEASE = Lease(6.0, 2.0)
HANG = 2.5 * LEASE.length  # seconds for which a node that hangs does
MUTE = 2.5 * LEASE.length  # for which beats are lost
LATE = 0.3  # seconds after which a commit arrives that is late: its sender has asked again
GRACE = 1.0  # seconds for a turn that is asked to stop
STALL = 3.5  # seconds after which an answer arrives that stalls: its client still waits, and no deadline is over
SLOW = 0.05  # seconds that a slow commit takes
TRIP = 0.001  # seconds to the database
OUTAGE = 1.5 * LEASE.length  # for which the database is away
PATIENCE = 5.5  # seconds after which a client asks another node
ROAM = 3.0  # seconds after which the roaming subscriber goes to another node
STAGGER = 0.0025  # seconds between the starts of two nodes: one looks while the other claims
BACK = 1.0  # seconds until a killed node is started again
LEAVE = 0.5  # seconds for the turns of a node that leaves
AFTERWARDS = 4.0  # seconds after the last call in which things go wrong
HORIZON = 60.0  # seconds by which everything has ended, or never will
PATH = "/simulated"
AGAIN = (Stuck, Moved, Full)  # 503 and 429: nothing definite is said of a prompt that was posted before


@dataclass(frozen=True)
class Do:
    """What a client does, at which node, and when: accept, cancel, or another call. `of` is the number of the prompt
    that it is about, in the order of the acceptances. The text of a prompt says what its turn does: see `Cluster`."""

    what: str
    node: str = "a"
    at: float = 0.0
    text: str = "says"
    of: int = 1
    session: str = "s"
    named: bool = True  # whether the prompt has a run id

    def __str__(self) -> str:
        return (f"{self.what}@{self.node}+{self.at:g}/{self.session}" + (f":{self.text}" if self.text != "says" else "")
                + (f"#{self.of}" if self.of != 1 else "") + ("" if self.named else "!"))

    @classmethod
    def read(cls, text: str) -> "Do":
        """From what `str` makes of it. Raises ValueError."""
        found = re.fullmatch(r"(\w+)@(\w)\+([\d.]+)/(\w)(?::(\w+))?(?:#(\d+))?(!)?", text)
        if not found:
            raise ValueError(f"{text!r} is no call; give WHAT@NODE+SECONDS/SESSION, as accept@a+0/s:waits")
        what, node, at, session, says, of, unnamed = found.groups()
        return cls(what, node, float(at), says or "says", int(of or 1), session, not unnamed)


@dataclass(frozen=True)
class Scenario:
    """Clients, nodes, and what may go wrong."""

    name: str
    clients: Sequence[Do]
    faults: Faults = NOTHING
    nodes: str = "ab"
    wake_ups: bool = True
    roams: bool = True
    sessions: str = "s"


@dataclass
class Member:
    """One life of one node."""

    name: str
    process: Process
    workspaces: SharedWorkspaces
    number: int = 0  # of the life
    up: bool = False  # and takes calls
    gone: bool = False
    mute: float = 0.0  # until then its beats are lost


@dataclass(frozen=True)
class Flaw:
    """An error that is put into the runtime, or into the database."""

    name: str
    says: str  # what is left out
    scenario: str  # where it shows
    breaks: str  # a part of the complaint
    steps: type[Step] = Step
    keeps_id: bool = False  # a node that starts again does so under its old id
    patches: Callable[[], AbstractContextManager[Any]] = field(default=nullcontext)
    choices: str = "-"  # with which it shows; where the runtime has changed, a search finds others


class _Said(logging.Handler):
    """What nodes log is a part of the story."""

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        super().__init__(logging.INFO)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        process = current_process()
        self._tell(process.name if process else "", f"({record.getMessage()})")

    @contextmanager
    def listening(self) -> Iterator[None]:
        log = logging.getLogger("cancelmark")
        before = log.propagate, log.level
        log.addHandler(self)
        log.propagate = False
        log.setLevel(logging.INFO)
        try:
            yield
        finally:
            log.removeHandler(self)
            log.propagate = before[0]
            log.setLevel(before[1])


class Cluster:
    """One run. The text of a prompt begins with what its turn does: `says` something at once, `waits` for three
    seconds, `works` through three calls of a tool, `grows` too long and goes on after a summary, is `endless`, or is
    `stubborn` and does not stop."""

    def __init__(self, scenario: Scenario, flaw: Flaw | None = None) -> None:
        self.scenario, self.flaw = scenario, flaw
        self.story: list[str] = []
        self.complaints: list[str] = []
        self.faults: list[str] = []
        self.members: dict[str, Member] = {}
        self.acknowledged: dict[str, int] = {}  # seqs by text
        self.texts: dict[int, str] = {}
        self.calls: list[OracleCall] = []
        self.seen: list[int] = []  # events of the roaming subscriber
        self._server: SimulatedServer
        self._purse = Purse(scenario.faults)
        self._outside: Context
        self._now = 0
        self._accepts: dict[int, tuple[str, Span]] = {}  # session and moment, by seq
        self._stops: set[tuple[str, int]] = set()  # sessions and moments of stops that have not returned
        self._moves: defaultdict[int, list[tuple[int, str, str | None]]] = defaultdict(list)
        self._lives = 0
        self._asked: defaultdict[str, Counter[tuple[int, int]]] = defaultdict(Counter)  # by text: in which life, and
        # after how many calls of a tool, the model was asked
        self._owner: dict[str, UUID | None] = {}  # of each session, as the committed claims say
        self._named: set[int] = set()  # the prompts that have a run id
        self._grown: set[str] = set()
        self.attempts: Counter[str] = Counter()  # calls that were made, by kind
        self.taken: Counter[str] = Counter()  # and that are in the journal
        self._doubtful: set[str] = set()  # texts of acceptances that nobody knows the end of
        self.refused: dict[str, str] = {}  # by text: an answer after which a client posts the prompt as a new one
        self._quiet = False  # nothing goes wrong any more
        self._locked: set[str] = set()  # ids of steps that meet a lock from now on
        self._reached: list[tuple[float, str, int]] = []  # marks: when, in which session, up to which seq
        self._away: dict[str, float] = {}  # until when the database does not answer a node
        self._workspace = ""

    # --- the run

    async def main(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(patch.object(os, "urandom", Random(0).randbytes))
            stack.enter_context(patch.object(sending, "UNDER_WAY", 1))  # steps gather though there are few
            if self.flaw:
                stack.enter_context(self.flaw.patches())
            stack.enter_context(_Said(self.tell).listening())
            self._outside = copy_context()
            self._server = SimulatedServer(self.flaw.steps if self.flaw else Step)
            self._server.hears = self._hears
            await self._begin()
            roaming = asyncio.create_task(self._roam()) if self.scenario.roams else None
            clients = [asyncio.create_task(self._client(n, do)) for n, do in enumerate(self.scenario.clients, 1)]
            await asyncio.wait(clients)
            for task in clients:
                task.result()
            await self._be_quiet_within(AFTERWARDS)
            self._quiet = True
            await self._settle()
            if roaming:
                roaming.cancel()

    async def _begin(self) -> None:
        """All nodes are up, and have beaten long enough to declare another dead."""
        self._quiet = True
        await self._boot(self.scenario.nodes[0])
        await asyncio.gather(*(self._boot(name, n * STAGGER) for n, name in enumerate(self.scenario.nodes[1:])))
        first = self.members[self.scenario.nodes[0]]
        for session in self.scenario.sessions:
            await first.process.start(next(iter(first.workspaces)).runtime.create_session(session))
        await asyncio.sleep(LEASE.length + 2 * LEASE.poll)
        self._quiet = False
        self.tell("", "begins")

    async def _boot(self, name: str, after: float = 0.0) -> None:
        await asyncio.sleep(after)
        process = Process(name)
        model = ScriptedModel(lambda request: self._play(member, request))
        database = SimulatedDatabase(self._server, lambda query, values: self._carry(member, query, values))
        self._lives += 1
        member = Member(name, process, SharedWorkspaces(
            model, database, lease=LEASE, wake_ups="direct" if self.scenario.wake_ups else None, stop=GRACE,
        ), self._lives)

        async def start() -> None:
            await member.workspaces.start()
            if not self._workspace:
                workspace = await member.workspaces.open(PATH)
                await member.workspaces.ready(workspace)
                self._workspace = workspace.id
            with suppress(LookupError):  # it is closed
                await member.workspaces.find(self._workspace)

        if self.flaw and self.flaw.keeps_id and name in self.members:
            database.node = self.members[name].workspaces.database.node
        self.members[name] = member
        await process.start(start())
        member.up = True

    async def _settle(self) -> None:
        """Nothing goes wrong any more: everything ends, nobody owns anything, and all of it is seen. What runs for ever
        since it was posted again after its cancel is canceled again."""
        if not await self._be_quiet_within(HORIZON):
            for id, seqs in self._find_endless().items():
                await self._ask(next(m for m in self.members.values() if m.up), Do("cancel", session=id), f"of {seqs}")
        if await self._be_quiet_within(HORIZON):
            return
        for id, owner, live in self.rows("SELECT id, owner, live FROM sessions WHERE owner IS NOT NULL"):
            self.complain(f"session {id} with {live} live prompts is not given up by {self._name(owner)}")

    async def _be_quiet_within(self, seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            await asyncio.sleep(1.0)
            busy = self.rows("SELECT 1 FROM sessions WHERE owner IS NOT NULL OR (live > 0 AND NOT held)")
            events = self.rows("SELECT latest FROM logs")[0][0]
            if not busy and (not self.scenario.roams or len(self.seen) >= events):
                return True
        return False

    def _find_endless(self) -> dict[str, list[int]]:
        """The prompts that nobody has canceled and that do not end by themselves, by session."""
        found: dict[str, list[int]] = {}
        for id, seq, text in self.rows("SELECT s.id, p.seq, p.text FROM prompts p JOIN sessions s ON"
                                       " s.id = p.session_id WHERE p.state = 'active' AND p.seq > s.mark"):
            if "endless" in text:
                found.setdefault(id, []).append(seq)
        return found

    # --- what clients do

    async def _client(self, number: int, do: Do) -> None:
        await asyncio.sleep(do.at)
        text = f"{do.text} {number}"
        order = self.scenario.nodes[self.scenario.nodes.index(do.node):] + self.scenario.nodes
        for name in [*order] * 10:
            member = self.members[name]
            if not member.up:
                await asyncio.sleep(0.01)
                continue
            if await self._ask(member, do, text):
                return
            if do.what == "accept" and not do.named:
                return
        self.complain(f"nobody answers {do}")

    async def _ask(self, member: Member, do: Do, text: str) -> bool:
        """One attempt of the call: whether the client is done with it."""
        self.tell("client", f"{do.what} {text if do.what == 'accept' else ''} at {member.name}")
        place, begin = len(self.calls), self.tick()
        before = [seq for seq, (session, _) in self._accepts.items() if session == do.session]
        self.attempts[do.what] += 1
        if do.what in ("cancel", "clear_queue", "hold", "resume", "close"):
            session = None if do.what == "close" else do.session
            self.calls.append(OracleCall(begin, inf, do.what, session))  # type: ignore[arg-type]
        asking = member.process.start(self._call(member, do, text))
        done, _ = await asyncio.wait([asking], timeout=PATIENCE)
        if not done:
            self.tell("client", f"{do.what} {text if do.what == 'accept' else ''} is not answered by {member.name}")
            asking.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._doubtful.add(text)
            return False
        error = asking.exception()
        self.tell("client", f"{do.what} {text if do.what == 'accept' else ''}: {error or asking.result()}")
        if isinstance(error, Unconfirmed):
            self._doubtful.add(text)
        elif isinstance(error, StoreError) and text in self.texts.values() and text not in self._doubtful:
            self.complain(f"{text!r} was accepted, and its client is told that it failed: {error}")
        if do.what == "accept" and isinstance(error, Refusal | LookupError) and not isinstance(error, AGAIN) and (
                member.up or text in self.texts.values()):  # else the client asks another node
            self.refused[text] = f"{type(error).__name__}: {error}"
        if do.what == "close" and error and not member.workspaces.closing and any(
                workspace.runtime.closing for workspace in member.workspaces):
            self.complain(f"a close has failed, and {member.name} refuses prompts all the same")
        if isinstance(error, StoreError | Stuck | Moved) or (isinstance(error, Refusal) and not member.up):
            return False
        if isinstance(error, Refusal | LookupError):
            return True
        if error:
            raise error
        if place < len(self.calls) and self.calls[place].begin == begin:
            self.calls[place] = replace(self.calls[place], end=self.tick())
        if do.what == "accept":
            self.acknowledged[text] = asking.result()
        if do.what == "cancel":
            ((mark,),) = self.rows("SELECT mark FROM sessions WHERE id = ?", do.session)
            if missed := [seq for seq in before if seq > mark]:
                self.complain(f"a cancel up to {mark} has not reached {missed}, which were accepted before")
        return True

    async def _call(self, member: Member, do: Do, text: str) -> Any:
        workspace = await member.workspaces.find(self._workspace)
        if do.what == "accept":
            return (await workspace.accept(do.session, text, text if do.named else None)).seq
        if do.what == "close":
            return await member.workspaces.delete(self._workspace)
        await workspace.look(do.session)
        runtime = workspace.runtime
        about = [self._find(do.of)] if do.what in ("revoke", "replace", "next") else []
        if about == [None]:
            raise Refusal("the prompt was never accepted")
        if do.what == "replace":
            about.append(f"replaced {text}")
        begin = self.tick()
        if do.what in ("revoke", "stop"):  # whom a stop reaches is known when it returns
            self.calls += [OracleCall(begin, inf, "revoke", do.session, str(seq)) for seq in self._accepts
                           if do.what == "stop" or seq == about[0]]
        if do.what != "stop":
            return await getattr(runtime, do.what)(do.session, *about)
        self._stops.add((do.session, begin))
        told = await runtime.stop(do.session)
        self._stops.discard((do.session, begin))
        return told

    def _find(self, number: int) -> int | None:
        """The seq of the prompt that was accepted as so many-th."""
        return [*self._accepts, *[None] * number][number - 1]

    async def _roam(self) -> None:
        """Watches at one node after the other, and comes back with its place."""
        place, turn = 0, 0
        while True:
            member = self.members[self.scenario.nodes[turn % len(self.scenario.nodes)]]
            turn += 1
            if not member.up:
                await asyncio.sleep(0.1)
                continue
            heard: list[int] = []  # by this visit
            places = [place]
            visit = member.process.start(self._watch(member, places, heard))
            await asyncio.wait([visit], timeout=ROAM)
            visit.cancel()
            visit.add_done_callback(lambda task: task.cancelled() or task.exception())
            self.seen += heard
            place = places[-1]
            if visit.done():
                await asyncio.sleep(0.1)

    async def _watch(self, member: Member, places: list[int], heard: list[int]) -> None:
        with suppress(StoreError, LookupError):
            workspace = await member.workspaces.find(self._workspace)
            await workspace.hear()
            over: set[int] = set()  # prompts whose end was seen
            with workspace.watch("roaming", places[0]) as watch:
                while (notice := await watch.take()) or not watch.over:
                    if notice is None:
                        await watch.wait()
                    places.append(watch.offset)
                    if isinstance(notice, Event):
                        heard.append(notice.id)
                        over.add(notice.payload["seq"])
                    elif notice and notice.type == "message" and notice.payload.get("seq") in over:
                        self.complain(f"a watcher at {member.name} sees message {notice.payload['id']} after the end")

    # --- what the model does

    def _play(self, member: Member, request: Request) -> Iterable[Beat] | None:
        text = request.prompt
        if not text:
            self.complain(f"the model is asked at {member.name} without a prompt")
        if text == SUMMARIZE:
            return say("in short")
        self._asked[text][member.number, _count_rounds(request)] += 1
        self.tell(member.name, f"runs {text!r}")
        self._let_fail(member, OF_TURNS)
        return tuple(self._say(request, text))

    def _say(self, request: Request, text: str) -> Iterator[Beat]:
        kind = text.removeprefix("replaced ").split()[0]
        rounds = _count_rounds(request)
        if kind == "stubborn":
            yield Stubborn((Delay(100.0),))
        yield Delay({"says": 0.01, "waits": 3.0, "endless": 10_000.0}.get(kind, 1.0))
        if kind == "grows" and text not in self._grown:
            self._grown.add(text)
            yield Fail(ModelError(Failure.CONTEXT_TOO_LONG, f"{text} is too long"))
        elif kind == "works" and rounds < 3:
            yield from call(f"c{rounds}", "look", {})
            yield Finish(FinishReason.TOOL_USE)
        else:
            yield from say(f"answer to {text}")

    # --- what goes wrong

    def _let_fail(self, member: Member, kinds: dict[str, str]) -> str:
        """What the chooser lets go wrong now."""
        if self._quiet or member.gone:
            return FINE
        if not member.up:  # it leaves
            kinds = {name: kind for name, kind in kinds.items() if kind != "drains"}
        others = any(m.up and not m.process.held for m in self.members.values() if m is not member)
        possible = self._purse.list_possible(kinds, spared=not others)
        chosen = [FINE, *possible][pick(FINE, *possible)]
        if chosen != FINE:
            self._purse.pay(chosen)
            self.faults.append(chosen)
            self.tell(member.name, f"*** {chosen}")
        if chosen in OF_TURNS:
            self._harm(member, chosen)
        return chosen

    def _harm(self, member: Member, how: str) -> None:
        loop = asyncio.get_running_loop()
        if "hangs" in how:
            member.process.held = True
            loop.call_later(HANG, self._thaw, member, context=self._outside)
        elif "killed" in how:
            member.process.held, member.up, member.gone = True, False, True
            loop.call_later(BACK, self._restart, member.name, context=self._outside)
        elif "beats" in how:
            member.mute = loop.time() + MUTE
        elif "leaves" in how:
            member.up = False
            member.process.start(self._leave(member))

    def _thaw(self, member: Member) -> None:
        self.tell(member.name, "goes on")
        member.process.held = False

    def _restart(self, name: str) -> None:
        self.tell(name, "is started again")
        asyncio.get_running_loop().create_task(self._boot(name))

    async def _leave(self, member: Member) -> None:
        await member.workspaces.close(LEAVE)
        self.tell(member.name, "has left")
        member.gone = True
        asyncio.get_running_loop().call_later(BACK, self._restart, member.name, context=self._outside)

    def _hears(self) -> bool:
        """Whether somebody hears a wake-up."""
        if self._quiet or not (possible := self._purse.list_possible(OF_WAKEUPS, False)):
            return True
        if pick("the wake-up is heard", *possible):
            self._purse.pay(possible[0])
            self.faults.append(possible[0])
            self.tell("", f"*** {possible[0]}")
            return False
        return True

    async def _carry(self, member: Member, query: str, values: Sequence[Any]) -> Answered:
        """Takes a statement to the database, and its answer back."""
        loop = asyncio.get_running_loop()
        if "SET since" in query and loop.time() < member.mute:
            raise psycopg.OperationalError("the beat is lost")
        if loop.time() < self._away.get(member.name, 0):
            await asyncio.sleep(TRIP)
            raise psycopg.OperationalError("the database is away")
        fate = self._let_fail_on_its_way(member, query)
        if has_steps(query):
            for asked in list_asked(query, values):
                self._server.steps.begin(self._server, asked)
        if "before it sends" in fate:
            self._harm(member, fate)
            await asyncio.sleep(0)
        answer: asyncio.Future[Answered] = loop.create_future()
        after = LATE if "late" in fate else SLOW if "slow" in fate else TRIP
        loop.call_later(after, self._arrive, member, query, values, fate, answer, context=self._outside)
        if "before it hears" in fate:
            self._harm(member, fate)
        elif "late" in fate:
            await asyncio.sleep(TRIP)
            raise psycopg.OperationalError("the connection is lost")
        elif "question is lost" in fate:
            raise psycopg.OperationalError("the connection is lost")
        elif "database is away" in fate:
            self._away = dict.fromkeys(self.members, loop.time() + OUTAGE) | {
                member.name: loop.time() + OUTAGE + 2 * LEASE.poll}  # which is back last
        elif "leaks" in fate:
            await answer
            raise asyncio.CancelledError("of a connection")
        return await answer

    def _let_fail_on_its_way(self, member: Member, query: str) -> str:
        if has_steps(query):
            return self._let_fail(member, OF_COMMITS)
        faults = self.scenario.faults
        return self._let_fail(member, OF_QUESTIONS) if faults.questions or faults.leaks else FINE

    def _arrive(self, member: Member, query: str, values: Sequence[Any], fate: str, answer: "asyncio.Future[Answered]",
                ) -> None:
        if "commit is lost" in fate:
            result: Answered | Exception = psycopg.OperationalError("the connection is lost")
        else:
            try:
                asked = list_asked(query, values) if has_steps(query) else []
                if any(one.step_id in self._locked for one in asked):
                    raise Raised("55P03", "canceling statement due to lock timeout")
                if "locked" in fate:
                    self._locked |= {one.step_id for one in asked}
                result = self._do_step(member, query, values) if asked else self._server.do(query, values)
            except (psycopg.Error, UnicodeError) as error:
                result = error
            except Exception as error:
                self.complain(f"the simulated database cannot do {query!r}: {error!r}")
                result = psycopg.InternalError(repr(error))
            if "answer is lost" in fate:
                result = psycopg.OperationalError("the connection is lost")
        if "stalls" in fate:
            asyncio.get_running_loop().call_later(STALL, self._give, answer, result, context=self._outside)
        else:
            self._give(answer, result)

    def _give(self, answer: "asyncio.Future[Answered]", result: Answered | Exception) -> None:
        if not answer.done():
            if isinstance(result, Exception):
                answer.set_exception(result)
                answer.exception()  # nobody may wait for it any more
            else:
                answer.set_result(result)

    # --- what is seen of it

    def _do_step(self, member: Member, query: str, values: Sequence[Any]) -> Answered:
        asked = list_asked(query, values)
        late = [[op[1] for op in json.loads(one.operations) if op[0] == "message" and self._is_over(op[1])]
                for one in asked]
        answer = self._server.do(query, values)
        for one, messages, row in zip(asked, late, answer.rows):
            self._see_step(member, one, messages, row)
        return answer

    def _see_step(self, member: Member, asked: Asked, late: Sequence[str], row: Sequence[Any]) -> None:
        operations = json.loads(asked.operations)
        status, version, epoch, _, places, seqs = row
        names = ", ".join(f"{name} {seq or ''}".strip() for name, seq, *_ in json.loads(asked.actions))
        names = names or asked.claim or asked.frees or ", ".join(dict.fromkeys(op[0] for op in operations))
        self.tell(member.name, f"{names}: {status}, version {version}"
                  + (f", epoch {epoch}" if epoch is not None else "") + (f", seq {seqs[0]}" if seqs else "")
                  + (f", place {places}" if places else ""))
        if status == "ok":
            for id in late:
                self.complain(f"message {id} was written after the end of its prompt")
            self._note(asked, operations, iter(seqs))

    def _is_over(self, message: str) -> bool:
        """Whether the prompt of the message is done."""
        moves = self._moves.get(int(message[1:].partition("-")[0])) if message[0] == "p" else None
        return bool(moves) and moves[-1][1] == "done"  # type: ignore[index]

    def _note(self, asked: Asked, operations: Sequence[Sequence[Any]], seqs: Iterator[int]) -> None:
        now, taken = self.tick(), 0
        self._note_owner(asked)
        self.taken.update(name for name, *_ in json.loads(asked.actions))
        for what, *values in operations:
            if what == "accept":
                taken = seq = values[0] or next(seqs)
                session, text = values[1], values[2]
                self._named |= {seq} if values[3] else set()
                self._accepts[seq], self.texts[seq] = (session, Span(now, now)), text
                self.calls += [OracleCall(begin, inf, "revoke", session, str(seq)) for of, begin in self._stops
                               if of == session]
                ((mark,),) = self.rows("SELECT mark FROM sessions WHERE id = ?", session)
                if seq <= mark:
                    self.complain(f"prompt {seq} is accepted below the mark {mark}")
            elif what == "mark":
                self._reached += [(asyncio.get_running_loop().time(), values[0], values[1])]
            elif what == "move":
                self._moves[values[0] or taken].append((now, values[1], values[2]))
                if values[1] == "done":
                    self._judge_patience(values[0] or taken)

    def _judge_patience(self, seq: int) -> None:
        """A turn that does not stop is abandoned a grace after the first cancel that has reached it."""
        session, now = self._accepts[seq][0], asyncio.get_running_loop().time()
        first = next((at for at, where, mark in self._reached if where == session and seq <= mark), now)
        if not self.faults and now - first > GRACE + 1.0:
            self.complain(f"prompt {seq} was canceled, and ends {now - first:.1f} s later")

    def _note_owner(self, asked: Asked) -> None:
        """A session is taken from a dead owner only, and given up by its owner alone."""
        owner = self._owner.get(asked.sid)
        if asked.claim == "recover" and not self.rows("SELECT 1 FROM nodes WHERE id = ? AND dead", owner):
            self.complain(f"session {asked.sid} is recovered, and its owner {self._name(owner)} is not dead")
        if asked.claim == "adopt" and owner is not None:
            self.complain(f"session {asked.sid} is adopted, and belongs to {self._name(owner)}")
        if asked.claim:
            owner = self._owner[asked.sid] = asked.node
        if asked.frees:
            if owner not in (None, asked.node):
                self.complain(f"session {asked.sid} of {self._name(owner)} is given up by {self._name(asked.node)}")
            self._owner[asked.sid] = None

    def judge_prompts(self) -> Iterator[Seen]:
        """What was seen of each prompt, for the oracle."""
        for seq, (session, accept) in self._accepts.items():
            moves = self._moves[seq]
            starts = tuple(Span(now, now) for now, state, _ in moves if state == "active")
            ends = tuple(End(now, now, outcome or "") for now, state, outcome in moves if state == "done")
            entered = Span(moves[0][0], moves[0][0]) if moves else None
            yield Seen(str(seq), accept, seq in self._named, entered, starts, ends, session)

    def count_lives(self) -> Iterator[tuple[str, int, int, int]]:
        """Of each prompt, how many lives have run it, how often one of them has asked the model the same, and how often
        it was started."""
        for seq, text in self.texts.items():
            if self._moves[seq] and self._moves[seq][-1][2] == "folded":
                continue  # it has run in the turn of another
            asked = self._asked[text]
            starts = sum(state == "active" for _, state, _ in self._moves[seq])
            yield text, len({life for life, _ in asked}), max(asked.values(), default=0), starts

    def list_failed(self) -> list[str]:
        """The prompts that ended with an error."""
        return [self.texts[seq] for seq, moves in self._moves.items() if moves and moves[-1][2] == "error"]

    def has_run(self, text: str) -> bool:
        """Whether the model was asked about the prompt."""
        return bool(self._asked[text])

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._server.execute(query, values).fetchall()

    @property
    def server(self) -> SimulatedServer:
        return self._server

    def complain(self, what: str) -> None:
        self.tell("", f"!!! {what}")
        self.complaints.append(what)

    def tick(self) -> int:
        self._now += 1
        return self._now

    def tell(self, who: str, what: str) -> None:
        self.story.append(f"{asyncio.get_running_loop().time():9.3f}  {who:6}  {what}")

    def _name(self, node: UUID | None) -> str:
        return next((m.name for m in self.members.values() if m.workspaces.database.node == node), str(node))


def _count_rounds(request: Request) -> int:
    """How many tools were called since the prompt."""
    last = max((n for n, m in enumerate(request.messages) if m.role is Role.USER), default=0)
    return sum(m.role is Role.TOOL for m in request.messages[last:])
