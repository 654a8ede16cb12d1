"""The adapter for opencode's own HTTP API.

| the kit | opencode |
| --- | --- |
| a prompt is accepted | `POST /session/{sessionID}/prompt_async` returns 204 |
| cancel | `POST /session/{sessionID}/abort` returns 200 |
| a prompt | a user message, identified by its text, which contains the kit's name, because the server assigns ids |
| a run id | none |
| its terminal event | the assistant message that has it as `parentID` is complete (`message.updated` in `GET /event`) |
| `end_turn`, `error`, `canceled` | complete without an error, with one, with a `MessageAbortedError` |
| a session's messages | `GET /session/{sessionID}/message` |

`message.updated` carries the current state of a message, and is published several times for one message. The adapter
reports the first one that is complete, and a later one only if its outcome differs. A message that is complete because
of a tool call is not an end. Neither is `session.idle`, which names no prompt.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import httpx2 as httpx

from cancelmark.conformance.adapter import Adapter, Ended, Refused, Sent, Spoken

ABORTED = "MessageAbortedError"
PROMPT, ABORT = "POST /session/{sessionID}/prompt_async", "POST /session/{sessionID}/abort"
MESSAGES = "GET /session/{sessionID}/message"


@dataclass(frozen=True)
class Promise:
    """The operation in the server's own description (`GET /doc`) that promises a guarantee, and how we read it."""

    operation: str
    reading: str


PROMISES = {
    "no-lost-cancel": Promise(ABORT, (
        "What is running stops. A prompt that is accepted and does not run yet is not mentioned; we read it as part of "
        "the session that is aborted.")),
    "no-poisoning": Promise(PROMPT, (
        "A prompt that comes after an abort starts the session again. That an abort could reach it is not mentioned.")),
    "idle-cancel-noop": Promise(ABORT, "It speaks of an active session: in an idle one there is nothing to abort."),
    "isolation": Promise(ABORT, "It names one session."),
    "all-done": Promise(PROMPT, (
        "The session starts if needed, for every prompt that is accepted. What becomes of one that is sent while the "
        "session is busy is not mentioned; we read it as being answered in the end.")),
    "attribution": Promise(MESSAGES, "Every response has a `parentID`, which we read as the prompt it responds to."),
    "record": Promise(MESSAGES, "All prompts and responses are there, those that were aborted included."),
    "progress": Promise(PROMPT, "It returns immediately."),
}
"""The guarantees that we consider promised. All others are neither promised nor denied."""

class Opencode(Adapter):
    """One client of the opencode server at this address."""

    claims: ClassVar[frozenset[str]] = frozenset(PROMISES)
    outside = True
    patience = 5.0

    def __init__(self, url: str) -> None:
        self.url = url
        self.names: dict[str, str] = {}  # of prompts, by their texts
        self.asked: dict[str, str] = {}  # names of prompts, by the ids of their messages
        self.texts: dict[str, str] = {}  # of messages, by their ids
        self.told: set[tuple[str, str]] = set()  # the reported messages, with their outcomes

    async def open(self) -> None:
        await self.subscribe()

    async def subscribe(self) -> None:
        self.http = httpx.AsyncClient(base_url=self.url, timeout=None, verify=False)
        self.stream = await self.http.send(self.http.build_request("GET", "/event"), stream=True)
        lines = self.stream.aiter_lines()
        await anext(lines)  # the server confirms the subscription: no event is missed from now on
        self.listening = asyncio.create_task(self._listen(lines))

    async def close(self) -> None:
        await self.unsubscribe()

    async def unsubscribe(self) -> None:
        self.listening.cancel()
        with suppress(asyncio.CancelledError, httpx.HTTPError):
            await self.listening
        await self.stream.aclose()
        await self.http.aclose()

    async def session(self) -> str:
        return str((await self._post("/session"))["id"])

    async def accept(self, session: str, prompt: Sent) -> None:
        self.names[prompt.text] = prompt.name
        await self._post(f"/session/{session}/prompt_async", {"parts": [{"type": "text", "text": prompt.text}]})

    async def cancel(self, session: str) -> None:
        await self._post(f"/session/{session}/abort")

    async def messages(self, session: str) -> list[Spoken]:
        answer = await self.http.get(f"/session/{session}/message")
        answer.raise_for_status()
        return [Spoken(
            message["info"]["role"], "".join(part["text"] for part in message["parts"] if part["type"] == "text"),
            "canceled" if _error(message["info"]) == ABORTED else message["info"].get("finish"),
        ) for message in answer.json()]

    async def _listen(self, lines: AsyncIterator[str]) -> None:
        async for line in lines:
            if line.startswith("data:"):
                self._hear(json.loads(line.removeprefix("data:")))

    async def _post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        answer = await self.http.post(path, json=body or {})
        if answer.status_code >= 400:
            raise Refused(f"{path}: {answer.status_code} {answer.text:.200}")
        return answer.json() if answer.content else None

    def _hear(self, event: dict[str, Any]) -> None:
        said = event["properties"]
        if event["type"] == "message.part.updated" and said["part"]["type"] == "text":
            id, text = said["part"]["messageID"], said["part"]["text"]
            self.texts[id] = text
            if text in self.names:
                self.asked[id] = self.names[text]
        elif event["type"] == "message.updated" and said["info"].get("parentID") in self.asked:
            self._answered(said["info"])

    def _answered(self, message: dict[str, Any]) -> None:
        """Report the end of the prompt if the message is complete, unless this outcome was already reported."""
        error = _error(message)
        outcome = "canceled" if error == ABORTED else "error" if error else "end_turn"
        complete = "completed" in message["time"] and (error or message.get("finish") != "tool-calls")
        if complete and (message["id"], outcome) not in self.told:
            self.told.add((message["id"], outcome))
            self.tell(Ended(self.asked[message["parentID"]], outcome, self.texts.get(message["id"]),
                            message["error"]["data"].get("message") if outcome == "error" else None))


def _error(message: dict[str, Any]) -> str | None:
    return (message.get("error") or {}).get("name")
