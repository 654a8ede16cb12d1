"""A server for the chaos: `cancelmark serve`, with a model whose turns are counted and not timed, and, if asked for,
with one of the errors that the chaos must find.

A prompt `work 5 …` calls a tool five times, and writes what it said each time; `work 1000000 …` ends only if somebody
ends it. All others go to the language model of the conformance kit.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import cancelmark.impl.models.scripted as demo
from cancelmark.impl.cli.main import main
from cancelmark.impl.cluster import node as nodes
from cancelmark.impl.cluster import workspaces
from cancelmark.impl.cluster.leased import Leased
from cancelmark.impl.models import ChatMessage, Delta, Finish, FinishReason, Role, Tool
from cancelmark.impl.models.openai import OpenAIModel
from cancelmark.impl.models.scripted import Beat, Delay, Request, ScriptedModel, call, say
from cancelmark.impl.runtime import Outbox
from cancelmark.impl.runtime.conversation import SUMMARIZE
from cancelmark.impl.store import Committed, Store, StoreError, Unconfirmed
from cancelmark.impl.store.postgres import schema
from cancelmark.impl.store.postgres import store as stores
from cancelmark.impl.store.postgres.sending import STEP

EMPTY = "CANCELMARK_CHAOS_EMPTY"  # names the file that notes each call of the model without a prompt


def counted_model(pace: float) -> ScriptedModel:
    def play(request: Request) -> Iterator[Beat]:
        words = request.prompt.split()
        rounds = int(words[1]) if words[0] == "work" else 0
        last = max((n for n, m in enumerate(request.messages) if m.role is Role.USER), default=0)
        done = sum(m.role is Role.TOOL for m in request.messages[last:])
        yield Delay(pace)
        if done < rounds:
            yield from call(f"c{done}", "look", {})
            yield Finish(FinishReason.TOOL_USE)
        else:
            yield from say("done")

    return ScriptedModel(lambda request: tuple(play(request)))


class DividedModel:
    """Counted turns, and those that the kit steers."""

    name, provider, hears = "divided", "chaos", None

    def __init__(self, pace: float) -> None:
        self._counted, self._steered = counted_model(pace), OpenAIModel("turn")

    def step(self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = ()) -> AsyncGenerator[Delta, None]:
        last = next((m.text for m in reversed(messages) if m.role is Role.USER), "")
        if not last:
            with open(os.environ[EMPTY], "a") as notes:
                notes.write(f"the model was asked with {len(messages)} messages, none of them a user's\n")
        return (self._counted if last.startswith(("work ", SUMMARIZE)) else self._steered).step(messages, tools)

    async def aclose(self) -> None:
        await self._steered.aclose()


# --- the errors

def leave_messages_unfenced() -> None:
    fenced = Store.begin_append_messages
    stores.PostgresStore.begin_append_messages = (  # type: ignore[method-assign]
        lambda self, session, messages, epoch=None, during=None: fenced(self, session, messages))


def retry_blindly() -> None:
    async def retry(self: stores.PostgresStore, steps: Any, values: Any) -> Any:
        while True:
            try:
                again = (*values[:3], uuid4().hex, *values[4:])
                return (await self.database.fetch(STEP, *again, once=True))[0]
            except Unconfirmed:
                await asyncio.sleep(0.02)

    stores.PostgresStore._try = retry  # type: ignore[method-assign]


def take_places_from_a_sequence() -> None:
    counter = ("UPDATE logs SET latest = latest + cardinality(noted) WHERE workspace_id = home"
               " RETURNING latest INTO number;")
    script = schema.MIGRATIONS[0]
    assert counter in script
    sequence = ("FOR i IN 1..cardinality(noted) LOOP number := nextval('places'); END LOOP;"
                " UPDATE logs SET latest = greatest(latest, number) WHERE workspace_id = home;")
    schema.MIGRATIONS = (script.replace(counter, sequence).replace(
        "CREATE SEQUENCE seqs CACHE 1;", "CREATE SEQUENCE seqs CACHE 1; CREATE SEQUENCE places;"),)


def hear_cancels_by_notice_only() -> None:
    look, is_behind = workspaces.SharedWorkspaces._look, Leased.is_behind
    heard = {"now": False, "next": False}

    def wake(self: nodes.Node) -> None:
        heard["next"] = True
        self._awake.set()

    async def look_if_told(self: workspaces.SharedWorkspaces, work: Any) -> None:
        heard["now"], heard["next"] = heard["next"], False
        await look(self, work)

    def is_behind_if_told(self: Leased, session: str, version: int) -> bool:
        box = self.home.boxes.get(session)
        return is_behind(self, session, version) and (heard["now"] or box is None or not box.owned)

    nodes.Node.wake = wake  # type: ignore[method-assign]
    workspaces.SharedWorkspaces._look = look_if_told  # type: ignore[method-assign]
    Leased.is_behind = is_behind_if_told  # type: ignore[method-assign]


def claim_without_recovering() -> None:
    async def claim(self: Leased, box: Outbox, snapshot: Any) -> None:
        answer = await self.home.writer.begin(box.session.id, box.version, [], None, "recover").answer
        if isinstance(answer, Committed):
            box.version, box.epoch, box.free = answer.version, answer.epoch, False
            box.reconcile_all()

    Leased._recover = claim  # type: ignore[method-assign]


def note_looks() -> None:
    """Writes down each look at all of this node's sessions in which nothing failed, and no session was passed over that
    waits for the database's answer to a step of its own, for `journals.AUDIT`."""
    look, look_at = workspaces.SharedWorkspaces._look, workspaces.SharedWorkspaces._look_at
    failed = {"now": False}

    async def look_and_note(self: workspaces.SharedWorkspaces, work: Any) -> None:
        began = (await self.database.fetch("SELECT clock_timestamp()"))[0][0]
        failed["now"] = False
        await look(self, work)
        if not failed["now"]:
            with suppress(StoreError):
                await self.database.fetch("INSERT INTO cancelmark.looks VALUES (%s, %s)", self.node.id, began)

    async def look_at_and_note(self: workspaces.SharedWorkspaces, one: Any) -> None:
        try:
            await look_at(self, one)
        except BaseException:
            failed["now"] = True
            raise
        workspace = self._open.get(str(one.workspace))
        box = workspace and workspace.runtime.boxes.get(one.session)
        failed["now"] |= bool(box and box.working)

    workspaces.SharedWorkspaces._look = look_and_note  # type: ignore[method-assign]
    workspaces.SharedWorkspaces._look_at = look_at_and_note  # type: ignore[method-assign]


FLAWS: dict[str, Callable[[], None]] = {
    "no fence on messages": leave_messages_unfenced,
    "blind retry": retry_blindly,
    "place from a sequence": take_places_from_a_sequence,
    "cancel by notice only": hear_cancels_by_notice_only,
    "claim without recover": claim_without_recovering,
}


if __name__ == "__main__":
    demo.demo_model = DividedModel  # type: ignore[assignment]
    if sys.argv[1]:
        FLAWS[sys.argv[1]]()
    note_looks()
    sys.exit(main(sys.argv[2:]))
