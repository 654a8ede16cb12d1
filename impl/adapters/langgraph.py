"""The adapter for LangGraph API servers.

| the kit | the API |
| --- | --- |
| a session | a thread |
| a prompt is accepted | `POST /threads/{id}/runs` returns a run; 409 refuses it |
| cancel | `POST /runs/cancel` with the ids of the thread's live runs |
| revoke | `POST /runs/cancel` with one run id |
| its terminal event | `GET …/runs/{id}/join` returns, or the thread's stream publishes `run_done` |
| `end_turn`, `canceled`, `error` | the run's status is `success`, `interrupted`, or one of `error` and `timeout` |

With `multitask_strategy` the caller chooses what happens to a second run: *enqueue* queues it, *reject* refuses it, and
*interrupt* ends the first run, which then does not count as poisoned. All prompts of a judgement use the same strategy.
With *reject* every prompt requires an idle thread; with *interrupt* every prompt stops the running one; the kit judges
them accordingly. *rollback* deletes the first run. The guarantees do not cover that outcome, so it is not supported.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, ClassVar

import httpx2

from cancelmark.conformance.adapter import GUARANTEES, Adapter, Ended, Refused, Sent, ServerGone

from ..client.errors import Unreachable
from ..http import Answer
from ..sse import Parser
from .connections import Connections

POLICIES = ("enqueue", "reject", "interrupt")
WATCHES = ("join", "stream")
STATES = {"success": "end_turn", "interrupted": "canceled", "error": "error", "timeout": "error"}
GOES_ON = ("pending", "running")
REFUSALS = (HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
AGAIN = 0.05  # seconds between two polls of a run that was reported as done, and is not done yet
SILENT = "the text is silent"
CLAUSES: Mapping[str, Mapping[str, str]] = {
    "enqueue": {
        "fifo": "LangSmith docs, Double texting, Enqueue: requests are “queued and executed sequentially”",
        "single-active": "LangSmith docs, Double texting, Enqueue: the current run may “finish before processing any "
                         "new input”",
        "all-done": "LangSmith docs, Double texting, Enqueue: requests are executed “once prior runs complete”",
    },
    "reject": {
        "reject": "LangSmith docs, Double texting, Reject: “prevents concurrent execution”",
        "single-active": "LangSmith docs, Double texting, Reject: “prevents concurrent execution”",
    },
    "interrupt": {
        "send-now": "LangSmith docs, Double texting, Interrupt: it “halts the current execution”",
        "single-active": "LangSmith docs, Double texting, Interrupt: it “halts the current execution”",
        "all-done": "LangSmith docs, Double texting, Interrupt: the new input is inserted, and “execution continues”",
    },
}
SAID = {"revoke-exact": "Agent Server API, Cancel Runs: “Cancel one or more runs”",
        "some-terminal": "Agent Server API, Join Run: “Wait for a run to finish”",
        "no-lost-cancel": "Agent Server API, Cancel Runs: “Cancel one or more runs”",
        "cancel-stops": "Agent Server API, Cancel Runs, action: `interrupt` “will simply cancel the run”"}
"""For every policy."""
STREAMED = {"some-terminal": "Agent Server API, Join Thread Stream: `lifecycle` has “run start/end events”, of “each "
                             "run executed”; the text is silent about a run that was canceled before it was"}
"""If the kit detects ends by the thread's stream."""
OVERRULED = frozenset({"no-poisoning", "isolation", "idle-cancel-noop"})
"""Not claimed with *interrupt*: each guarantees that only a cancel of its own can end a prompt as canceled."""


class LanggraphAdapter(Adapter):
    """A client of a server that is already running."""

    outside = True
    server: ClassVar[str]
    assistant: ClassVar[str]
    policy: ClassVar[str] = "enqueue"
    watches: ClassVar[str] = "join"

    async def open(self) -> None:
        self.calls, self.joins = Connections(self.server), Connections(self.server)
        self.names: dict[str, str] = {}  # of prompts, by the ids of their runs
        self.named = asyncio.Event()
        self.running: dict[str, set[str]] = {}  # ids of the runs that have not ended, by thread
        self.streams: list[Answer] = []

    async def warm(self, n: int) -> None:
        await self.calls.warm(n)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for stream in self.streams:
            stream.close()
        for thread, runs in self.running.items():
            if runs:
                await self.cancel(thread)
        await self.calls.close()
        await self.joins.close()

    async def session(self) -> str:
        thread = str(_result(await self.ask("POST", "/threads", {}))["thread_id"])
        self.running[thread] = set()
        if self.watches == "stream":
            stream = await self.joins.begin("GET", f"/threads/{thread}/stream?stream_modes=lifecycle")
            self.streams.append(stream)
            self.spawn(self._read_ends(thread, stream), name="stream")
        return thread

    async def accept(self, session: str, prompt: Sent) -> None:
        said = {"messages": [{"role": "user", "content": prompt.text}]}
        answer = await self.ask("POST", f"/threads/{session}/runs", {
            "assistant_id": self.assistant, "input": said, "multitask_strategy": self.policy})
        if answer.status_code in REFUSALS:
            raise Refused(answer.text)
        run = str(_result(answer)["run_id"])
        self.names[run] = prompt.name
        self.running[session].add(run)
        self.named.set()
        if self.watches == "join":
            self.spawn(self._join(session, run), name="join")

    async def cancel(self, session: str) -> None:
        if runs := sorted(self.running[session]):
            await self.cancel_runs(session, runs)

    async def revoke(self, session: str, prompt: Sent) -> None:
        runs = [run for run, name in self.names.items() if name == prompt.name]
        if not runs:
            raise Refused("its run id is not known yet, because the response to its acceptance has not arrived")
        await self.cancel_runs(session, runs)

    async def cancel_runs(self, session: str, runs: Sequence[str]) -> None:
        answer = await self.ask("POST", "/runs/cancel?action=interrupt", {"thread_id": session, "run_ids": runs})
        if answer.status_code != HTTPStatus.NOT_FOUND:  # 404: the runs have ended meanwhile
            _check(answer)

    async def queued(self, session: str) -> int:
        return len(_result(await self.ask("GET", f"/threads/{session}/runs?status=pending&limit=100")))

    async def delete(self, session: str) -> None:
        _check(await self.ask("DELETE", f"/threads/{session}"))

    # --- ends

    async def _join(self, thread: str, run: str) -> None:
        _check(await _reach(self.joins.ask("GET", f"/threads/{thread}/runs/{run}/join")))
        await self._tell_end(thread, run)

    async def _read_ends(self, thread: str, stream: Answer) -> None:
        parser = Parser()
        async for piece in stream.pieces():
            for event in parser.feed(piece):
                said = json.loads(event.data or "{}") if event.type == "metadata" else {}
                if said.get("status") == "run_done":
                    while said["run_id"] not in self.names:  # its end may arrive before the response with its id
                        self.named.clear()
                        await self.named.wait()
                    await self._tell_end(thread, said["run_id"])
        raise ServerGone(f"{self.server} ended its event stream")

    async def _tell_end(self, thread: str, run: str) -> None:
        while (state := await self._look(thread, run)) in GOES_ON:
            await asyncio.sleep(AGAIN)
        if state not in STATES:
            raise ValueError(f"the server reports the run status {state!r:.80}, which the API does not define")
        self.running[thread].discard(run)
        self.tell(Ended(self.names[run], STATES[state]))

    async def _look(self, thread: str, run: str) -> str:
        answer = await _reach(self.joins.ask("GET", f"/threads/{thread}/runs/{run}"))
        if answer.status_code == HTTPStatus.NOT_FOUND:  # the thread was deleted, and its runs with it
            return "interrupted"
        return str(_result(answer)["status"])

    async def ask(self, method: str, path: str, sent: Mapping[str, Any] | None = None) -> httpx2.Response:
        return await _reach(self.calls.ask(method, path, sent))


async def _reach(call: Any) -> httpx2.Response:
    try:
        return await call  # type: ignore[no-any-return]
    except Unreachable as error:
        raise ServerGone(str(error)) from error


def _check(answer: httpx2.Response) -> None:
    if not answer.is_success:
        raise ValueError(f"the server responds with {answer.status_code}: {answer.text:.200}")


def _result(answer: httpx2.Response) -> Any:
    _check(answer)
    return answer.json()


def langgraph_adapter(server: str, assistant: str, policy: str, watches: str) -> type[LanggraphAdapter]:
    """The adapter class for the server at this URL, with this strategy for a second run."""
    said = {**SAID, **CLAUSES[policy], **(STREAMED if watches == "stream" else {})}
    overruled = OVERRULED if policy == "interrupt" else frozenset()
    return type(f"{policy.capitalize()}Client", (LanggraphAdapter,), {
        "server": server, "assistant": assistant, "policy": policy, "watches": watches,
        "always": policy if policy != "enqueue" else "", "if_busy": frozenset({policy} - {"enqueue"}),
        "claims": GUARANTEES - overruled,
        "promises": {guarantee: said.get(guarantee, SILENT) for guarantee in GUARANTEES}})
