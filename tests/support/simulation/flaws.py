"""Errors that are put into the runtime, or into the database, and that a simulated cluster must show.

The names are those of `model/cluster` where it has the flaw. Each says in which scenario it shows, and how.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

from cancelmark.impl.cluster import node as nodes
from cancelmark.impl.cluster.leased import Leased
from cancelmark.impl.cluster.mirror import Mirror
from cancelmark.impl.cluster.node import Node, Work
from cancelmark.impl.cluster.workspaces import SharedWorkspace, SharedWorkspaces
from cancelmark.impl.runtime import Outbox, Runtime
from cancelmark.impl.runtime.entry import Decision, Entry
from cancelmark.impl.runtime.intents import Cancel, Enter
from cancelmark.impl.runtime.refusals import Moved
from cancelmark.impl.runtime.run import Handle, Run
from cancelmark.impl.runtime.session import LivePrompt
from cancelmark.impl.runtime.turns import Turns
from cancelmark.impl.store import (
    AppendEvent,
    CommitAnswer,
    CommitRequest,
    Committed,
    MessageRecord,
    Snapshot,
    Store,
    StoreError,
    Unconfirmed,
)
from cancelmark.impl.store.postgres import Database, PostgresStore
from cancelmark.impl.store.postgres.database import AWAY
from cancelmark.impl.store.postgres.sending import STEP
from cancelmark.model.lifecycle import State

from .cluster import Flaw
from .step import Asked, Row, Step

# --- in the database


class AnyVersion(Step):
    def is_known(self, row: Row) -> bool:
        return True


class Unconditional(AnyVersion):
    """What an UPDATE without conditions writes."""

    def is_fenced(self, row: Row) -> bool:
        return False

    def _move(self, seq: int, state: str, outcome: str | None, into: int | None) -> None:
        self._rows("UPDATE prompts SET state = 'accepted', outcome = NULL WHERE workspace_id = ? AND seq = ?"
                   " AND state = 'done'", self._home, seq)
        super()._move(seq, state, outcome, into)


class MessagesAfterTheEnd(Step):
    """Messages are not compared with the state of their prompt, which is a second guard."""

    def _message(self, id: str, session: str, *values: Any) -> None:
        super()._message(id, session, *values[:-1], None)


class UnfencedMessages(MessagesAfterTheEnd):
    def is_fenced(self, row: Row) -> bool:
        return self.asked.known is not None and super().is_fenced(row)


class UnfencedReleases(Step):
    """And on any version, which is a second guard."""

    def is_fenced(self, row: Row) -> bool:
        return not self.asked.frees and super().is_fenced(row)

    def is_known(self, row: Row) -> bool:
        return self.asked.frees == "handover" or super().is_known(row)


class UnlockedMessages(MessagesAfterTheEnd):
    """A message is compared in one statement, and written in the next."""

    @classmethod
    def begin(cls, server: Any, asked: Asked) -> None:
        if asked.known is None:
            sent = Step(server, asked)
            server.drawn.setdefault(asked.operations, []).append(sent.is_fenced(sent.row))

    def is_fenced(self, row: Row) -> bool:
        if self.asked.known is None:
            return bool(self.server.drawn[self.asked.operations].pop(0))
        return super().is_fenced(row)


class SameEpoch(MessagesAfterTheEnd):
    """And the owner's name is not compared, which is another guard."""

    def is_fenced(self, row: Row) -> bool:
        return self.asked.fence is not None and row.epoch != self.asked.fence

    def take_over(self, row: Row) -> None:
        epoch = row.epoch
        super().take_over(row)
        row.epoch = epoch or 1


class ClaimsAsRead(Step):
    def may_claim(self, row: Row) -> bool:
        return True


class RunIdsOfNodes(Step):
    def _accept(self, seq: int, session: str, text: str, run_id: str | None, *more: Any) -> None:
        super()._accept(seq, session, text, run_id and f"{run_id} at {self.asked.node}", *more)


class SeqsInStock(Step):
    def next_seq(self) -> int:
        stock = self.server.drawn.setdefault(str(self.asked.node), [])
        if not stock:
            stock += [self.server.next_seq() for _ in range(10)]
        return int(stock.pop(0))


class AcceptsWhileClosing(Step):
    def _accept(self, *values: Any) -> None:
        self.row.closing = False
        super()._accept(*values)


class PlacesFromSequence(Step):
    """A place is taken when the step begins, and not when it commits."""

    @classmethod
    def begin(cls, server: Any, asked: Asked) -> None:
        for op in json.loads(asked.operations):
            if op[0] == "event":
                server.drawn["place"] = server.drawn.get("place", 0) + 1
                server.drawn.setdefault(asked.step_id, []).append(server.drawn["place"])

    def take_places(self, number: int) -> list[int]:
        places = [int(self.server.drawn[self.asked.step_id].pop(0)) for _ in range(number)]
        self._rows("UPDATE logs SET latest = max(latest, ?) WHERE workspace_id = ?", places[-1], self._home)
        return places


# --- in the runtime

def swap(owner: Any, **methods: Any) -> Callable[[], AbstractContextManager[Any]]:
    """What puts these in place of the owner's own."""
    @contextmanager
    def swapped() -> Iterator[None]:
        with ExitStack() as stack:
            for name, method in methods.items():
                stack.enter_context(patch.object(owner, name, method))
            yield

    return swapped


async def claim_only(self: Leased, box: Outbox, snapshot: Snapshot) -> None:
    answer = await self.home.writer.begin(box.session.id, box.version, [], None, "recover").answer
    if isinstance(answer, Committed):
        box.version, box.epoch, box.free = answer.version, answer.epoch, False
        for prompt in box.session.live:
            if prompt.state is not State.ACTIVE:
                box._reconcile(prompt)


async def claim_and_run(self: Leased, box: Outbox, snapshot: Snapshot) -> None:
    answer = await self.home.writer.begin(box.session.id, box.version, [], None, "recover").answer
    if isinstance(answer, Committed):
        box.version, box.epoch, box.free = answer.version, answer.epoch, False
        box.reconcile_all()


async def adopt_whatever(self: Leased, box: Outbox) -> None:
    answer = await self.home.writer.begin(box.session.id, box.version, [], None, "adopt").answer
    if isinstance(answer, Committed) and answer.epoch is not None:
        box.version, box.epoch, box.free = answer.version, answer.epoch, False
        box.reconcile_all()


def renew_sessions() -> AbstractContextManager[Any]:
    beat = Node._beat

    async def take_back(self: Node, afresh: bool = False) -> None:
        workspaces = self._look.__self__  # type: ignore[attr-defined]
        for workspace in workspaces:
            mine = [id for id, box in workspace.runtime.boxes.items() if box.owned]
            await self.database.fetch("UPDATE cancelmark.sessions SET owner = %s WHERE id = ANY(%s)", self.id, mine)
        await beat(self, afresh)

    return patch.object(Node, "_beat", take_back)


def look_when_told() -> AbstractContextManager[Any]:
    look, is_behind, wake = SharedWorkspaces._look, Leased.is_behind, Node.wake
    told: dict[str, bool] = {}

    def hear(self: Node) -> None:
        told["next"] = True
        wake(self)

    async def look_if_told(self: SharedWorkspaces, work: list[Work]) -> None:
        told["now"] = told.pop("next", False)
        await look(self, work)

    def is_behind_if_told(self: Leased, session: str, version: int) -> bool:
        box = self.home.boxes.get(session)
        return is_behind(self, session, version) and (told["now"] or box is None or not box.owned)

    stack = ExitStack()
    stack.enter_context(patch.object(Node, "wake", hear))
    stack.enter_context(patch.object(SharedWorkspaces, "_look", look_if_told))
    stack.enter_context(patch.object(Leased, "is_behind", is_behind_if_told))
    return stack


def enter_own() -> AbstractContextManager[Any]:
    settle, look_at = Outbox._settle, Outbox._reconcile
    mine: set[tuple[int, int]] = set()

    def settle_and_enter(self: Outbox, batch: Sequence[Entry], answer: Committed) -> None:
        settle(self, batch, answer)
        for run in [entry.intent.run for entry in batch if entry.intent.run]:
            mine.add((id(self.home), run.prompt.seq))
            if not self.owned and run.prompt.state is State.ACCEPTED:
                self.submit_nowait(Enter(run))

    def look_at_own(self: Outbox, prompt: LivePrompt) -> None:
        if prompt.state is not State.ACCEPTED or (id(self.home), prompt.seq) in mine:
            look_at(self, prompt)

    stack = ExitStack()
    stack.enter_context(patch.object(Outbox, "_settle", settle_and_enter))
    stack.enter_context(patch.object(Outbox, "_reconcile", look_at_own))
    return stack


def go_on_regardless() -> AbstractContextManager[Any]:
    """What was asked meanwhile stays as it was applied, on a session without the prompt that has entered."""
    load_again = Outbox._reload

    async def load_if_told(self: Outbox, snapshot: Snapshot | None = None) -> None:
        if snapshot or self.session.torn:
            await load_again(self, snapshot)

    number = Outbox._assign_seqs

    def number_batch(self: Outbox, *numbered: Any) -> None:
        waiting, self.entries = self.entries, []
        number(self, *numbered)
        self.entries = waiting

    stack = ExitStack()
    stack.enter_context(patch.object(Outbox, "_reload", load_if_told))
    stack.enter_context(patch.object(Outbox, "_assign_seqs", number_batch))
    return stack


async def retry_as_new(self: PostgresStore, steps: CommitRequest, values: Sequence[Any]) -> tuple[Any, ...]:
    while True:
        try:
            return (await self.database.fetch(STEP, *values, once=True))[0]
        except Unconfirmed:
            values = (*values[:3], uuid4().hex, *values[4:])
            await asyncio.sleep(0.02)


async def take_for_done(self: PostgresStore, steps: CommitRequest, values: Sequence[Any]) -> tuple[Any, ...]:
    try:
        return (await self.database.fetch(STEP, *values, once=True))[0]
    except Unconfirmed:
        mine = self.database.node if steps.epoch or steps.claim else None
        return "ok", (steps.version or 0) + 1, steps.epoch or 1, mine, [], [99]


async def take_for_failed(self: PostgresStore, steps: CommitRequest, values: Sequence[Any]) -> tuple[Any, ...]:
    try:
        return (await self.database.fetch(STEP, *values, once=True))[0]
    except Unconfirmed:
        raise StoreError("here", *AWAY) from None


def say_unfenced(self: PostgresStore, session: str, messages: Sequence[MessageRecord], epoch: int | None = None,
                 during: int | None = None) -> Any:
    return Store.begin_append_messages(self, session, messages)


def publish_first() -> AbstractContextManager[Any]:
    commit = PostgresStore._commit

    async def tell_and_commit(self: PostgresStore, steps: CommitRequest) -> CommitAnswer:
        number = sum(isinstance(op, AppendEvent) for op in steps.operations)
        if number:
            self.hear(await self.latest_event() + number)
        return await commit(self, steps)

    return patch.object(PostgresStore, "_commit", tell_and_commit)


async def leave_running(self: Turns, box: Outbox, run: Run) -> None:
    """A node that leaves does not wait for its turns."""


async def hear_nothing(self: SharedWorkspace) -> None:
    """Where a subscriber goes on is judged by what this node has heard of."""


async def enroll_again(self: Node, id: UUID) -> None:
    self.renewed_at, self.database.node = asyncio.get_running_loop().time(), id
    await self.database.fetch("DELETE FROM cancelmark.nodes WHERE id = %s", id)
    await self.database.fetch(
        "INSERT INTO cancelmark.nodes VALUES (%s, %s, clock_timestamp(),"
        " clock_timestamp() + make_interval(secs => %s), false, false)", id, self.url, self.lease.length)


async def keep_stuck(self: Leased) -> None:
    """A session with which its owner cannot go on stays the owner's."""


def stand_still_for_ever() -> AbstractContextManager[Any]:
    fetch = Database.fetch

    async def leak(self: Database, *asked: Any, **how: Any) -> list[tuple[Any, ...]]:
        try:
            return await fetch(self, *asked, **how)
        except StoreError as error:
            raise error.__cause__ if isinstance(error.__cause__, asyncio.CancelledError) else error from None

    stack = ExitStack()
    stack.enter_context(patch.object(Database, "fetch", leak))
    stack.enter_context(patch.object(Leased, "give_up_stuck", keep_stuck))
    return stack


def lose_by_id(self: Outbox) -> None:
    self.home.boxes.pop(self.session.id, None)
    self.stop(Moved(f"session {self.session.id} has moved to another server; retry the call"))


def ask_after_the_commit() -> AbstractContextManager[Any]:
    accept = Runtime.accept

    async def accept_and_ask(self: Runtime, session_id: str, *about: Any) -> Handle:
        handle = await accept(self, session_id, *about)
        await asyncio.sleep(2)  # for whatever takes a while
        handle.held = self.is_held(session_id)
        return handle

    return patch.object(Runtime, "accept", accept_and_ask)


def take_unknown_for_no() -> AbstractContextManager[Any]:
    prompt = PostgresStore.prompt

    async def find(self: PostgresStore, key: int | str) -> Any:
        try:
            return await prompt(self, key)
        except StoreError:
            return None

    return patch.object(PostgresStore, "prompt", find)


async def show_all(self: Mirror, session_id: str, version: int, node: str, latest: int) -> None:
    """Messages are shown whether the end of their prompt was heard of or not."""
    messages = await self._store.messages(session_id, last=12)
    prompts = await self._store.prompts(session_id, 8)
    self._show_messages(messages, {prompt.seq: prompt for prompt in prompts})


async def release_once(self: Leased, box: Outbox) -> None:
    """A node that leaves does not try again if others have called meanwhile."""
    await box.lock()
    if box.owned and not box.stuck:
        await self._send_release(box, box.version, "handover" if self.needs_owner(box) else "idle")
        self._forget_ownership(box)
    box.unlock()


def reach_as_first(self: Cancel, box: Outbox) -> Decision:
    self._reach = self._reach or box.session.counter.latest
    return Decision([box.session.take("cancel", None, None, self._reach)], None, self.told(box))


async def forget_doubt(self: PostgresStore, steps: CommitRequest, values: Any) -> Any:
    """What is busy after a doubt is told as busy."""
    for _ in range(3):
        try:
            return (await self.database.fetch(STEP, *values, once=True))[0]
        except StoreError as error:
            last = error
            await asyncio.sleep(0.02)
    raise last


def stay_closing() -> AbstractContextManager[Any]:
    delete = SharedWorkspaces.delete

    async def delete_and_stay(self: SharedWorkspaces, id: str, *about: Any, **how: Any) -> None:
        try:
            await delete(self, id, *about, **how)
        except StoreError:
            for workspace in self:
                workspace.runtime.closing = True
            raise

    return patch.object(SharedWorkspaces, "delete", delete_and_stay)


def begin_grace_again() -> AbstractContextManager[Any]:
    look_at = Outbox._reconcile

    def look(self: Outbox, prompt: LivePrompt) -> None:
        run = self.runs.get(prompt.seq)
        if run and run.grace and prompt.state is State.ACTIVE:
            run.grace.cancel()
            run.grace = None
        look_at(self, prompt)

    return patch.object(Outbox, "_reconcile", look)


ANYBODY = nodes.BURY.replace("AND me.since < clock_timestamp() - make_interval(secs => %s)", "AND %s > 0")
assert ANYBODY != nodes.BURY
ANY_LEASE = nodes.BEAT.replace("WHERE id = %s AND NOT dead", "WHERE (id = %s OR id IN (SELECT owner FROM"
                               " cancelmark.sessions)) AND NOT dead")
NOT_FREE = nodes.WORK.replace("WHERE wanted", "WHERE wanted AND false")
assert ANY_LEASE != nodes.BEAT
assert NOT_FREE != nodes.WORK

FLAWS: Sequence[Flaw] = (
    Flaw("version-ignored", "steps are written onto any version", "at-the-end", "protocol does not allow", AnyVersion),
    Flaw("finish-unfenced", "a turn's end is written without conditions", "cancel", "ends", Unconditional,
         choices="5:6"),
    Flaw("message-unfenced", "the database does not compare the epoch of a message", "works",
         "after the end of its prompt", UnfencedMessages, choices="3:5"),
    Flaw("message-without-epoch", "a node does not send the epoch of a message", "works",
         "after the end of its prompt", patches=swap(PostgresStore, begin_append_messages=say_unfenced), choices="3:5"),
    Flaw("message-unlocked", "a message is compared in one statement and written in the next", "works",
         "after the end of its prompt", UnlockedMessages, choices="2:5"),
    Flaw("claim-only", "a claim does not recover", "cancel", "not by recovering it",
         patches=swap(Leased, _recover=claim_only), choices="6:5"),
    Flaw("claim-runs-again", "a claim runs what is active", "works", "has run in 2 lives",
         patches=swap(Leased, _recover=claim_and_run), choices="5:5"),
    Flaw("epoch-kept", "a claim keeps the epoch", "works", "after the end of its prompt", SameEpoch, choices="3:6"),
    Flaw("claim-as-read", "that the owner is dead is not compared in the claim", "works", "is not dead", ClaimsAsRead,
         choices="15:10"),
    Flaw("renew-takes-back", "a beat writes its node into the sessions", "works", "is not dead",
         patches=renew_sessions, choices="3:5"),
    Flaw("renew-any-lease", "a beat renews the lease of every owner", "works", "is not given up",
         patches=swap(nodes, BEAT=ANY_LEASE), choices="18:7"),
    Flaw("no-poll", "an owner looks only when it is told", "no-wake-ups", "is not given up", patches=look_when_told),
    Flaw("entry-by-acceptor", "who accepts a prompt takes it in", "cancel", "is accepted", patches=enter_own,
         choices="4:7"),
    Flaw("entered-unseen", "what is taken while a prompt enters is not taken again", "as-it-ends",
         "ended with an error before it ran", patches=go_on_regardless, choices="4:4"),
    Flaw("retry-as-new", "a step in doubt is sent under a new id", "anonymous", "was accepted 2 times",
         patches=swap(PostgresStore, _try=retry_as_new), choices="3:1"),
    Flaw("retry-cancels-twice", "a cancel in doubt is sent under a new id", "echo", "cancel was called 1 times",
         patches=swap(PostgresStore, _try=retry_as_new), choices="2:1"),
    Flaw("doubt-is-done", "a step in doubt is taken for done", "cancel", "has not reached",
         patches=swap(PostgresStore, _try=take_for_done), choices="5:2"),
    Flaw("doubt-is-failed", "a step in doubt is taken for failed", "anonymous", "is told that it failed",
         patches=swap(PostgresStore, _try=take_for_failed), choices="3:1"),
    Flaw("publish-first", "a node tells of an end before it is committed", "cancel", "the roaming subscriber",
         patches=publish_first, choices="6:2"),
    Flaw("release-unfenced", "a session is given up in any epoch", "leaves-and-hangs", "is given up by",
         UnfencedReleases, choices="4:3,1:1"),
    Flaw("release-running", "a node that leaves does not end its turns", "works", "has run in 2 lives",
         patches=swap(Turns, interrupt=leave_running), choices="18:10"),
    Flaw("run-ids-in-memory", "run ids are known to their node only", "cancel", "was accepted 2 times", RunIdsOfNodes,
         choices="3:6"),
    Flaw("id-kept", "a node starts again under its old id", "works", "has run in 2 lives", keeps_id=True,
         patches=swap(Node, _enroll=enroll_again), choices="18:7"),
    Flaw("seqs-in-stock", "nodes keep seqs in stock", "stock", "below the mark", SeqsInStock),
    Flaw("closing-in-memory", "the row does not say that a session closes", "close", "accepted after a close",
         AcceptsWhileClosing),
    Flaw("no-adopt", "nobody claims what was handed over", "works", "is accepted|is queued|is active",
         patches=swap(nodes, WORK=NOT_FREE), choices="15:10"),
    Flaw("held-keeps-owner", "only an empty session is given up", "held", "is not given up",
         patches=swap(Leased, needs_owner=lambda self, box: bool(box.session.prompts))),
    Flaw("idle-adopted", "a session without work is adopted and kept", "race", "is not given up",
         patches=swap(Leased, _adopt=adopt_whatever), choices="7:1"),
    Flaw("stuck-kept", "a session with which its owner cannot go on stays the owner's", "unanswered",
         "is not given up", patches=stand_still_for_ever, choices="17:1"),
    Flaw("place-from-sequence", "a place is taken when a step begins", "two", "the roaming subscriber",
         PlacesFromSequence, choices="4:2"),
    Flaw("lost-by-id", "a late answer to an old outbox of a session removes its new one", "revived",
         "has asked the model the same", patches=swap(Outbox, lose=lose_by_id), choices="4:1,4:1"),
    Flaw("answer-after-commit", "what an acceptance is answered with is asked for after its commit", "crowd",
         "its client is told: NoSession", patches=ask_after_the_commit, choices="55:1"),
    Flaw("unknown-is-no", "a prompt that cannot be looked up is taken for one that was not accepted", "repeated",
         "its client is told: NoSession", patches=take_unknown_for_no, choices="2:2,12:1"),
    Flaw("cancel-as-first", "a cancel that is taken again reaches no further than at first", "busy-owner",
         "has not reached", patches=swap(Cancel, decide=reach_as_first), choices="2:1"),
    Flaw("messages-after-ends", "messages of other nodes are shown though their prompt's end was", "works",
         "after the end", patches=swap(Mirror, _look_at=show_all), choices="18:5"),
    Flaw("released-once", "a node that leaves keeps a session to which others have written", "leaves",
         "was recovered, though", patches=swap(Leased, _release=release_once), choices="0:2,4:1"),
    Flaw("held-given-up", "a held session is given up with prompts that have not entered", "leaves-held",
         "is accepted|is active",
         patches=swap(Leased, needs_owner=lambda self, box: bool(box.session.prompts) and not box.session.held),
         choices="2:2"),
    Flaw("outage-is-death", "a node that was cut off itself declares others dead", "outage", "was declared dead",
         patches=swap(nodes, BURY=ANYBODY), choices="14:1"),
    Flaw("doubt-forgotten", "a step in doubt that is busy when it is sent again is told as not kept", "locked",
         "is told that it failed", patches=swap(PostgresStore, _try=forget_doubt), choices="2:1"),
    Flaw("closing-kept", "a workspace that could not be closed accepts nothing more", "close",
         "refuses prompts all the same", patches=stay_closing, choices="95:1"),
    Flaw("grace-begun-again", "a turn that is to stop has another grace whenever others write", "stubborn",
         "was canceled, and ends", patches=begin_grace_again),
    Flaw("place-clamped", "a subscriber's place is judged by what the node has heard of", "roams",
         "the roaming subscriber", patches=swap(SharedWorkspace, hear=hear_nothing)),
)
BY_NAME = {flaw.name: flaw for flaw in FLAWS}
