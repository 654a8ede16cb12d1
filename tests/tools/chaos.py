"""Chaos: three servers on one PostgreSQL, clients that post, cancel and watch at all of them, and every fault that a
machine, a network and a database can have. Then the judgement: by rows, by the journal replayed through the protocol,
by the log, and by what the clients were told and saw.

    make chaos                                     ten minutes, or SECONDS=60
    PYTHONPATH=tests python tests/tools/chaos.py --seconds 30 --flaw "blind retry"

With `--crowd N`, N more clients post to every session. Posts are then in flight to all sessions whenever a fault
strikes, which is what a node needs to meet its own late answers.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import httpx2 as httpx
import psycopg
from support.chaos_node import EMPTY, FLAWS
from support.commands import COMMAND
from support.journals import AUDIT, KINDS, Problem, judge
from support.postgres import FAST, PostgresServer, free_port
from support.proxies import Proxy
from support.servers import web

NODES, SESSIONS, QUIET, PACE = 3, 9, 3, 0.03
FAULTS = ("kill", "terminate", "freeze", "end_connections", "crash_database", "cut", "stall", "half_open",
          "lose_answers", "lose_answers", "deliver_late")
CROWD = 20  # posts in flight when a fault strikes, from which on it counts as crowded
LATE = 7.0  # seconds, after which whoever has asked the database has given up
JUDGEMENTS = 3  # that are begun by the kit, until one is not disturbed by a node that was too slow for its lease
SCRIPT = Path(__file__).parent.parent / "support" / "chaos_node.py"


@dataclass
class Member:
    """One node: its process, and the proxy between it and the database."""

    proxy: Proxy
    port: int = 0
    process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@dataclass
class Told:
    """What clients were told and saw."""

    acknowledged: dict[str, int] = field(default_factory=dict)  # seq by text
    canceled: list[tuple[str, list[int]]] = field(default_factory=list)  # session, seqs acknowledged before
    seen: dict[str, list[tuple[str, int, str]]] = field(default_factory=dict)  # by watcher: place, seq, outcome
    refused: dict[str, set[str]] = field(default_factory=dict)  # by text: answers that say that it was not accepted
    posts: int = 0
    family: Counter[str] = field(default_factory=Counter)  # the other calls


class Chaos:
    """One run."""

    def __init__(self, seed: int, lease: float, flaw: str, log: Path, mix: Sequence[str] = FAULTS, crowd: int = 0,
                 ) -> None:
        self.random, self.lease, self.flaw, self.log, self.mix = Random(seed), lease, flaw, log, mix
        self.crowd, self.in_flight, self.crowded = crowd, 0, Counter[str]()
        self.told, self.faults = Told(), Counter[str]()
        self.llm_port, self.judgements = free_port(), list[str]()
        self.database = PostgresServer(FAST)
        self.home = Path(tempfile.mkdtemp(prefix="chaos-"))
        self.notes = self.home / "model-without-a-prompt"
        self.members: list[Member] = []
        self.workspace, self.sessions = "", list[str]()
        self.ready = set[str]()  # watchers that have their first place
        self.over = False

    # --- the cluster

    async def start(self) -> None:
        for _ in range(NODES):
            proxy = Proxy("127.0.0.1", self.database.port)
            await proxy.start()
            self.members.append(Member(proxy))
        for member in self.members:
            await self.start_node(member)
        self.database.execute(AUDIT)
        async with web(self.members[0].url) as http:
            told = (await http.post("/v1/workspaces", json={"path": "/tmp/cancelmark-chaos"})).json()
            self.workspace = told["id"]
            (await http.post(f"/v1/workspaces/{told['id']}/agent/init", json={})).raise_for_status()
            for _ in range(SESSIONS):
                made = await http.post(f"/v1/workspaces/{told['id']}/sessions", json={"title": "chaos"})
                assert made.is_success, made.text
                self.sessions.append(made.json()["id"])

    async def start_node(self, member: Member) -> None:
        """Starts it, until it serves: the database may be away."""
        directory = tempfile.mkdtemp(dir=self.home)
        wake_ups = ("--wake-ups", "none") if member is self.members[-1] else ()  # one node has to look by itself
        while not self.over or member.process is None:
            url = self.database.url("postgres", member.proxy.port)
            with self.log.open("ab") as log:
                member.process = await asyncio.create_subprocess_exec(
                    sys.executable, str(SCRIPT), self.flaw, "serve", "--port", str(member.port), "--database", url,
                    "--lease", str(self.lease), "--poll", "0.2", "--drain", "0.5", "--pace", str(PACE),
                    "--log-level", "warning", "--data-dir", directory, *wake_ups,
                    stdout=asyncio.subprocess.PIPE, stderr=log,
                    env={**os.environ, "PYTHONPATH": str(SCRIPT.parent.parent), "OPENAI_API_KEY": "none",
                         EMPTY: str(self.notes),
                         "OPENAI_BASE_URL": f"http://127.0.0.1:{self.llm_port}/v1"})
            assert member.process.stdout is not None
            line = (await member.process.stdout.readline()).decode()
            if line.startswith("serving at "):
                member.port = int(line.split(":")[2].split("/")[0])
                return
            await member.process.wait()
            await asyncio.sleep(0.2)

    async def end_node(self, member: Member, number: signal.Signals) -> None:
        assert member.process is not None
        with suppress(ProcessLookupError):
            member.process.send_signal(number)
        try:
            async with asyncio.timeout(20):
                await member.process.wait()
        except TimeoutError:
            member.process.kill()
            await member.process.wait()

    # --- faults

    async def kill(self, member: Member) -> None:
        await self.end_node(member, signal.SIGKILL)
        await asyncio.sleep(self.random.uniform(0, 2 * self.lease))
        await self.start_node(member)

    async def terminate(self, member: Member) -> None:
        await self.end_node(member, signal.SIGTERM)
        await self.start_node(member)

    async def freeze(self, member: Member) -> None:
        """For longer than its lease, and then it goes on."""
        assert member.process is not None
        member.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(self.lease * self.random.uniform(1.3, 2.5))
        member.process.send_signal(signal.SIGCONT)

    async def end_connections(self, member: Member) -> None:
        await asyncio.to_thread(self.database.execute, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                                                       " WHERE application_name = 'cancelmark'")

    async def crash_database(self, member: Member) -> None:
        await asyncio.to_thread(self.database.stop)
        await asyncio.sleep(self.random.choice([0, 1.5 * self.lease]))
        await asyncio.to_thread(self.database.start)

    async def cut(self, member: Member) -> None:
        member.proxy.refuses = True
        member.proxy.cut()
        await asyncio.sleep(self.random.uniform(0, 2 * self.lease))
        member.proxy.heal()

    async def stall(self, member: Member) -> None:
        """Nothing passes, in neither direction; then all of it does, late."""
        member.proxy.requests.clear()
        member.proxy.answers.clear()
        await asyncio.sleep(self.random.uniform(0.2, 2.5 * self.lease))
        member.proxy.heal()

    async def half_open(self, member: Member) -> None:
        """The database has lost the connections, and the node does not know."""
        member.proxy.half_open()
        await asyncio.sleep(self.random.choice([self.random.uniform(0.2, 2 * self.lease), LATE]))
        member.proxy.cut()
        member.proxy.heal()

    async def lose_answers(self, member: Member) -> None:
        """What is asked is done, and nobody hears of it: at least one prompt that is accepted, if any comes."""
        member.proxy.answers.clear()
        before, last = member.proxy.accepts, time.monotonic() + 2 * self.lease
        while member.proxy.accepts == before and time.monotonic() < last:
            await asyncio.sleep(0.01)
        await asyncio.sleep(self.random.uniform(0.05, 0.5))
        member.proxy.cut()
        member.proxy.heal()

    async def deliver_late(self, member: Member) -> None:
        """What is asked is done after whoever has asked has given up, or has asked again on another connection."""
        member.proxy.requests.clear()
        await asyncio.sleep(self.random.choice([self.random.uniform(0.5, 2 * self.lease), LATE]))
        member.proxy.requests.set()

    async def do_faults(self, end: float, gap: float) -> None:
        bag: list[str] = []
        while time.monotonic() < end:
            if not bag:
                bag = self.random.sample(self.mix, len(self.mix))
            fault, member = bag.pop(), self.random.choice(self.members)
            does: Callable[[Member], Awaitable[None]] = getattr(self, fault)
            if self.in_flight >= CROWD:
                self.crowded[fault] += 1
            await does(member)
            self.faults[fault] += 1
            await asyncio.sleep(self.random.uniform(0, gap))

    # --- clients

    async def ask(self, path: str, body: Any, *, times: int | None = None) -> httpx.Response | None:
        """Asks any node, and another if there is no answer that says yes."""
        while times is None or times > 0:
            times = None if times is None else times - 1
            with suppress(httpx.TransportError, TimeoutError):
                async with asyncio.timeout(8), web(self.random.choice(self.members).url) as http:
                    answer = await http.post(f"/v1/workspaces/{self.workspace}/{path}", json=body)
                    if answer.status_code < 300:
                        return answer
                    if path == "agent":
                        self.note_refusal(body, answer, once=times is not None)
            await asyncio.sleep(0.05)
        return None

    def note_refusal(self, body: Any, answer: httpx.Response, *, once: bool) -> None:
        """A client takes 4xx for "not accepted", and 503 too if it asks only once: then it posts the prompt anew. 500
        is doubt, 408 and 429 say "ask again", and under a run id asking again is safe after 503."""
        status = answer.status_code
        if (400 <= status < 500 and status not in (408, 429)) or (once and status == 503):
            self.told.refused.setdefault(body["prompt"], set()).add(f"{status} {answer.text[:200]}")

    async def post(self, session: str, text: str, *, named: bool = True) -> int | None:
        """Posts a prompt, without a run id only once. Its seq, if it was acknowledged."""
        body = {"session_id": session, "prompt": text, **({"run_id": text[-12:]} if named else {})}
        self.told.posts += 1
        self.in_flight += 1
        try:
            answer = await self.ask("agent", body, times=None if named else 1)
        finally:
            self.in_flight -= 1
        if answer is None:
            return None
        seq: int = answer.json()["seq"]
        self.told.acknowledged[text] = seq
        return seq

    async def press(self, session: str, end: float) -> None:
        """One of a crowd: posts prompts that end soon, one after the other."""
        while time.monotonic() < end:
            text = f"work {self.random.choice([0, 0, 0, 2])} {uuid4().hex[:12]}"
            await self.post(session, text, named=self.random.random() < 0.7)

    async def write(self, session: str, end: float) -> None:
        """Posts, and cancels now and then. Sometimes without a run id, and then once."""
        known: list[int] = []
        while time.monotonic() < end:
            rounds = self.random.choice([0, 0, 1, 3, 8, 1_000_000])
            seq = await self.post(session, f"work {rounds} {uuid4().hex[:12]}", named=self.random.random() < 0.5)
            if seq is not None:
                known.append(seq)
            if rounds > 100 or self.random.random() < 0.15:
                await asyncio.sleep(self.random.uniform(0, 0.5))
                before = list(known)
                if await self.ask(f"agent/sessions/{session}/cancel", None) is not None:
                    self.told.canceled.append((session, before))
            if self.random.random() < 0.15:
                await self.call_family(session, known)
            await asyncio.sleep(self.random.uniform(0, 0.1))

    async def be_quiet(self, session: str, end: float) -> None:
        """Posts a prompt that does not end by itself, cancels it, and does nothing else: nothing but the cancel makes
        its owner look."""
        while time.monotonic() < end:
            seq = await self.post(session, f"work 1000000 {uuid4().hex[:12]}")
            assert seq is not None
            await asyncio.sleep(self.random.uniform(0.1, 1))
            await self.ask(f"agent/sessions/{session}/cancel", None)
            self.told.canceled.append((session, [seq]))
            await asyncio.sleep(8 * self.random.random())

    async def call_family(self, session: str, known: list[int]) -> None:
        """One of the other calls; a hold does not last."""
        what = self.random.choice(["hold", "stop", "prompts/clear", "revoke"])
        path = f"agent/sessions/{session}"
        if what == "revoke":
            with suppress(httpx.TransportError, TimeoutError):
                async with asyncio.timeout(8), web(self.random.choice(self.members).url) as http:
                    if known:
                        await http.delete(f"/v1/workspaces/{self.workspace}/{path}/prompts/{known[-1]}")
        else:
            await self.ask(f"{path}/{what}", {} if what == "stop" else None, times=3)
        if what == "hold":
            await asyncio.sleep(self.random.uniform(0, 0.5))
            await self.ask(f"{path}/resume", None)
        self.told.family[what] += 1

    async def watch(self, name: str, choose: Callable[[], Member]) -> None:
        """Sees every end, and comes back to its place whenever it is cut off."""
        seen = self.told.seen.setdefault(name, [])
        place, client = "", str(uuid4())
        while True:
            headers = {"last-event-id": place} if place else {}
            with suppress(httpx.HTTPError, TimeoutError):
                async with asyncio.timeout(5 + 5 * self.random.random()), web(choose().url) as http, http.stream(
                        "GET", f"/v1/workspaces/{self.workspace}/events", params={"client_id": client},
                        headers=headers) as answer:
                    coming = place
                    async for line in answer.aiter_lines():
                        if line.startswith("id: "):
                            coming = line[4:]
                            self.ready.add(name)
                        elif line.startswith("data: ") and (told := json.loads(line[6:]))["type"] == "run_complete":
                            end = told["payload"]["payload"]
                            seen.append((coming, end["seq"], end["outcome"]))
                            place = coming
                        elif not line:  # only now it has been told
                            place = coming
            await asyncio.sleep(0.05)

    # --- the run

    async def run(self, seconds: float, gap: float, kit: Sequence[str], times: int) -> list[Problem]:
        """Faults for so long; so many times, at last after the faults, the kit judges the nodes."""
        await self.start()
        begin = time.monotonic()
        end = begin + seconds
        watching = [asyncio.ensure_future(self.watch(f"at {n}", lambda member=member: member))  # type: ignore[misc]
                    for n, member in enumerate(self.members)]
        watching.append(asyncio.ensure_future(self.watch("roaming", lambda: self.random.choice(self.members))))
        try:
            while len(self.ready) < len(watching):
                await asyncio.sleep(0.05)
            problems = list[Problem]()
            clients = asyncio.gather(*(self.be_quiet(session, end) for session in self.sessions[:QUIET]),
                                     *(self.write(session, end) for session in self.sessions[QUIET:]),
                                     *(self.press(session, end) for session in self.sessions * self.crowd))
            for n in range(times - 1):
                await self.do_faults(begin + seconds * (n + 1) / times, gap)
                problems += await self.ask_kit(kit)
            await self.do_faults(end, gap)
            await clients
            problems += await self.settle()
            if kit:
                problems += await self.ask_kit(kit)
            await self.let_watchers_see()
        finally:
            self.over = True
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
        return problems + self.judge()

    async def ask_kit(self, options: Sequence[str]) -> list[Problem]:
        """Has the conformance kit judge the nodes as one server, while nothing is done to them. A turn whose node was
        too slow for its lease ends with an error, and rightly so: then it judges again."""
        out = ""
        for _ in range(JUDGEMENTS):
            before = await self.count_recoveries()
            kit = await asyncio.create_subprocess_exec(
                *COMMAND, "conform", *(member.url for member in self.members), "--llm-port", str(self.llm_port),
                *options, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
            out = (await kit.communicate())[0].decode()
            if kit.returncode == 0:
                self.judgements.append(out.strip().splitlines()[-1])
                return []
            if await self.count_recoveries() == before:
                return [Problem("kit", f"the kit says: {out}")]
        self.judgements.append(f"disturbed by recoveries {JUDGEMENTS} times; the last said: {out.strip()[-500:]}")
        return []

    async def count_recoveries(self) -> int:
        while True:
            with suppress(psycopg.Error):
                return int(self.rows("SELECT count(*) FROM cancelmark.steps WHERE claim = 'recover'"
                                     f" AND workspace_id <> '{self.workspace}'")[0][0])
            await asyncio.sleep(0.1)

    async def settle(self) -> list[Problem]:
        """Cancels what is left, and waits until everything has ended."""
        for session in self.sessions:
            await self.ask(f"agent/sessions/{session}/cancel", None)
        last = time.monotonic() + 6 * self.lease + 20
        while time.monotonic() < last:
            with suppress(psycopg.Error):
                if not self.rows("SELECT seq FROM cancelmark.prompts WHERE state <> 'done'"):
                    return []
            await asyncio.sleep(0.1)
        return [Problem("unfinished", "prompts were canceled, and have not ended in time")]

    async def let_watchers_see(self) -> None:
        number = self.rows(f"SELECT count(*) FROM cancelmark.events WHERE workspace_id = '{self.workspace}'")[0][0]
        last = time.monotonic() + 20
        while time.monotonic() < last and any(len(seen) < number for seen in self.told.seen.values()):
            await asyncio.sleep(0.1)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.database.execute(query)

    def judge(self) -> list[Problem]:
        with psycopg.connect(self.database.address(), autocommit=True) as connection:
            problems = judge(connection)
        stored = dict(self.rows("SELECT text, seq FROM cancelmark.prompts"))
        lost = {text for text, seq in self.told.acknowledged.items() if stored.get(text) != seq}
        problems += [Problem("lost", f"{text!r} was acknowledged, and is not there") for text in lost]
        problems += [Problem("wrong answer", f"{text!r} was accepted as {stored[text]}, and its client heard: {told}")
                     for text, answers in self.told.refused.items() if text in stored for told in answers]
        if self.notes.exists():
            problems += [Problem("no prompt", told) for told in self.notes.read_text().splitlines()]
        marks = dict(self.rows("SELECT id, mark FROM cancelmark.sessions"))
        problems += [Problem("cancel lost", f"a cancel of {session} was acknowledged, and has not reached {max(seqs)}")
                     for session, seqs in self.told.canceled if seqs and marks[session] < max(seqs)]
        log = self.rows("SELECT place, (payload->>'seq')::bigint, payload->>'outcome' FROM cancelmark.events"
                        f" WHERE workspace_id = '{self.workspace}' ORDER BY place")
        for name, seen in self.told.seen.items():
            found = [(int(place.rpartition("-")[2]), seq, outcome) for place, seq, outcome in seen]
            if found != log:
                places = sorted({place for place, *_ in log} - {place for place, *_ in found})
                problems.append(Problem("not seen", f"the watcher {name} has seen {len(seen)} ends, and not the "
                                                    f"{len(log)} of the log in order; it has missed {places[:9]}"))
        return problems

    async def stop(self, keep: bool) -> None:
        """Ends the nodes and the database, and leaves its files if they are to be looked at."""
        for member in self.members:
            if member.process and member.process.returncode is None:
                member.process.kill()
                await member.process.wait()
            await member.proxy.stop()
        if keep:
            self.database.stop("fast")
        else:
            self.database.remove()
        shutil.rmtree(self.home, ignore_errors=True)


async def run_chaos(seconds: float, *, seed: int = 0, lease: float = 1.0, gap: float = 1.0, flaw: str = "",
                    log: Path = Path(os.devnull), kit: Sequence[str] = (), times: int = 1, keep: bool = False,
                    mix: Sequence[str] = FAULTS, crowd: int = 0) -> tuple[list[Problem], dict[str, Any]]:
    """What is wrong after so long, and what was done. If anything is, the database can be kept."""
    chaos = Chaos(seed, lease, flaw, log, mix, crowd)
    problems = list[Problem]()
    try:
        problems = await chaos.run(seconds, gap, kit, times)
        steps = dict(chaos.rows("SELECT claim, count(*) FROM cancelmark.steps WHERE claim <> '' GROUP BY 1"))
        return problems, {
            "seed": seed, "faults": dict(chaos.faults), "in a crowd": dict(chaos.crowded), "posts": chaos.told.posts,
            "acknowledged": len(chaos.told.acknowledged), "cancels": len(chaos.told.canceled),
            "other calls": dict(chaos.told.family), "claims": steps,
            "most writes after a cancel": chaos.rows(
                "SELECT coalesce(max(n), 0)::int FROM (SELECT count(DISTINCT transaction) AS n"
                " FROM cancelmark.covered_messages GROUP BY seq) counted")[0][0],
            "outcomes": dict(chaos.rows("SELECT outcome, count(*) FROM cancelmark.prompts GROUP BY 1")),
            "kit": chaos.judgements,
            "found": {kind: sum(one.kind == kind for one in problems) for kind in (*KINDS, "kit")},
            **({"database": str(chaos.database.directory)} if keep and problems else {})}
    finally:
        await chaos.stop(keep and bool(problems))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--lease", type=float, default=1.0)
    parser.add_argument("--gap", type=float, default=1.0, help="seconds between two faults, at most")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--fault", nargs="+", default=FAULTS, choices=sorted({*FAULTS}), help="only these faults")
    parser.add_argument("--crowd", type=int, default=0, help="more clients that post to each session")
    parser.add_argument("--flaw", default="", choices=["", *FLAWS])
    parser.add_argument("--kit", type=int, default=1, metavar="TIMES", help="how often the conformance kit judges")
    parser.add_argument("--keep", action="store_true", help="leave the database to be looked at, if anything is wrong")
    parser.add_argument("--log", type=Path, default=Path(os.devnull), help="what the nodes say")
    given = parser.parse_args()
    seed = Random().randrange(10**9) if given.seed is None else given.seed
    problems, done = asyncio.run(run_chaos(given.seconds, seed=seed, lease=given.lease, gap=given.gap, flaw=given.flaw,
                                           log=given.log, kit=("--profile", "quick") if given.kit else (),
                                           times=max(given.kit, 1), keep=given.keep, mix=given.fault,
                                           crowd=given.crowd))
    print(json.dumps(done, indent=2))
    for problem in problems:
        print(f"violated: {problem.kind}: {problem.says}")
    print("nothing is lost" if not problems else f"{len(problems)} problems; try again with --seed {seed}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
