"""A server that is to be killed: it takes up what its last life has left, accepts and cancels at random, and closes.

    python killed.py FILE SEED reference|family [PHASE WRITE MOMENT]

It prints, as soon as a caller would know: `accepted RUN_ID`, then for each cancel that was acknowledged
`covered RUN_ID…`, those that were accepted before it and had not started; `closing`, and `closed`. With the last three
arguments it kills itself at that write of that phase (start, run or close), `before` or `after` the write is durable.
All its lives write one trace, FILE.ndjson.

In the family clients also revoke, stop, hold, resume, replace, go to the front, interrupt, and want an idle session.
Then it also prints `found SESSION held|free` when it starts, `maybe SESSION` before a call that holds or resumes and
`held` or `free SESSION` after it, `revoked RUN_ID` of a prompt that is canceled, and `replaced RUN_ID VERSION TEXT`.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from random import Random
from typing import Any

from cancelmark.impl.models import Failure, Finish, FinishReason, ModelError, Tool
from cancelmark.impl.models.scripted import Beat, Delay, Fail, Request, ScriptedModel, Wait, call, say
from cancelmark.impl.runtime import Busy, Handle, Runtime, TooLate
from cancelmark.impl.runtime.trace import TraceWriter
from cancelmark.impl.runtime.turn import ToolRunner
from cancelmark.impl.store import CommitAnswer, CommitRequest, SqliteStore
from cancelmark.model.family import Feature
from cancelmark.model.lifecycle import State
from cancelmark.model.protocol import FAMILY, REFERENCE, Protocol

SESSIONS = ("s", "t")
CALLS = 25


class Deadly(SqliteStore):
    """A store that kills its process at a chosen write."""

    def __init__(self, path: str, phase: str = "", write: str = "0", moment: str = "") -> None:
        super().__init__(path)
        self.phase = "start"
        self._fate, self._moment = (phase, int(write)), moment
        self._writes = dict.fromkeys(("start", "run", "close"), 0)

    def begin_commit(self, steps: CommitRequest) -> "asyncio.Future[CommitAnswer]":
        phase = self.phase
        self._writes[phase] += 1
        fatal = (phase, self._writes[phase]) == self._fate
        if fatal and self._moment == "before":
            die()
        written = super().begin_commit(steps)
        if fatal:
            written.add_done_callback(lambda _: die())
        return written


class Hesitant(Runtime):
    """A runtime that takes its time between acceptance and entry. Only then does a cancel leave prompts behind that
    nothing but the mark keeps from running after a restart."""

    def __init__(self, store: SqliteStore, random: Random, protocol: Protocol) -> None:
        tools = [ToolRunner(Tool("look", "looks", {"type": "object"}), look)]
        super().__init__(ScriptedModel(scene), store, tools=tools, grace=1.0, trace=TraceWriter(f"{store.path}.ndjson"),
                         protocol=protocol, ready=self._hesitate)
        self._random = random

    async def accept(self, *about: Any, **how: Any) -> Handle:
        self.ready = self._random.choice([None, self._hesitate])
        return await super().accept(*about, **how)

    async def _hesitate(self, session_id: str) -> None:
        await asyncio.sleep(self._random.choice([0, 0, 0.02]))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def tell(*words: str) -> None:
    print(*words, flush=True)


def scene(request: Request) -> Iterable[Beat] | None:
    """Turns of every kind: short ones, slow ones, some that call tools, that fail, that grow too long, or never end."""
    if "tool" in request.prompt and request.messages[-1].role != "tool":
        return (Delay(0.001), *call("c1", "look", {}), Finish(FinishReason.TOOL_USE))
    if "fail" in request.prompt:
        return (*say("well"), Fail(ModelError(Failure.UNAVAILABLE, "the model is down")))
    if "long" in request.prompt and request.messages[0].role != "system":
        return (Fail(ModelError(Failure.CONTEXT_TOO_LONG, "too long")),)
    if "never" in request.prompt:
        return (*say("I think"), Wait("for ever"))
    return (*say("hello"), Delay(0.002), *say(" there"))


async def look(arguments: str) -> str:
    await asyncio.sleep(0.001)
    return "nothing to see"


FAMILY_CALLS = ("revoke", "revoke", "stop", "hold", "resume", "replace", "replace", "next")
MODES = (None, None, Feature.INTERRUPT, Feature.REJECT)


async def main(path: str, seed: str, protocol: str, *fate: str) -> None:
    random, family = Random(int(seed)), protocol == "family"
    store = Deadly(path, *fate)
    runtime = Hesitant(store, Random(int(seed)), FAMILY if family else REFERENCE)
    await runtime.start()
    for session in SESSIONS:
        await runtime.create_session(session)
        if family:
            tell("found", session, "held" if runtime.is_held(session) else "free")
    store.phase = "run"
    accepted: dict[str, list[tuple[str, int]]] = {session: [] for session in SESSIONS}
    for number in range(CALLS):
        session = random.choice("ssst")
        action = random.choice(["accept"] * 8 + ["cancel", "clear_queue", "sleep", "sleep"])
        if family and random.random() < 0.4:
            await call_family(runtime, random, session, [run_id for run_id, _ in accepted[session]], number)
        elif action == "accept":
            run_id = random.choice([f"{seed}-{number}"] * 3 + [None])
            kind = random.choice(["plain", "plain", "tool", "fail", "long", "never"])
            mode = random.choice(MODES) if family else None
            try:
                handle = await runtime.accept(session, f"{kind} {seed}-{number}", run_id, (), mode)
            except Busy:
                continue
            if run_id is not None:
                tell("accepted", run_id)
                accepted[session].append((run_id, handle.seq))
        elif action == "cancel":
            before = list(accepted[session])
            await runtime.cancel(session)
            tell("covered", *[run_id for run_id, seq in before if not await has_started(store, seq)])
        elif action == "clear_queue":
            await runtime.clear_queue(session)
        else:
            await asyncio.sleep(random.uniform(0, 0.006))
    store.phase = "close"
    tell("closing")
    await runtime.close()
    if runtime.trace:
        runtime.trace.close()
    tell("closed")


async def call_family(runtime: Runtime, random: Random, session: str, run_ids: list[str], number: int) -> None:
    """One call of the family, and what its caller is told."""
    action = random.choice(FAMILY_CALLS)
    if action in ("hold", "resume", "stop"):
        holds = action == "hold" or (action == "stop" and random.random() < 0.5)
        if action != "stop" or holds:
            tell("maybe", session)
        if action == "stop":
            await runtime.stop(session, hold=holds)
        else:
            await (runtime.hold if holds else runtime.resume)(session)
        if action != "stop" or holds:
            tell("held" if holds else "free", session)
    elif run_ids:
        run_id = random.choice(run_ids[-4:])
        if action == "revoke":
            if (await runtime.revoke(session, run_id)).effect == "canceled":
                tell("revoked", run_id)
        elif action == "replace":
            text = f"plain-{run_id}-{number}"
            with suppress(TooLate):
                tell("replaced", run_id, str((await runtime.replace(session, run_id, text)).version), text)
        else:
            with suppress(TooLate):
                await runtime.next(session, run_id)


async def has_started(store: SqliteStore, seq: int) -> bool:
    return any(t.state is State.ACTIVE for t in await store.transitions(seq))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
