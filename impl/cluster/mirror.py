"""Shows subscribers at this node what other nodes do in a workspace: the states of prompts, saved messages, and
sessions that were taken over from a dead node.

Every node publishes terminal events from the log. Everything else is an update, which may be missed (`runtime.events`).
At each poll, this node derives the updates for what other nodes do from the tables that they have written. It shows a
message only before it has published the end of the message's prompt; after that, clients can read the message.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from cancelmark.model.lifecycle import State

from .. import wire
from ..runtime.events import Broker, Update
from ..runtime.messages import list_names, wire_message
from ..runtime.publisher import SESSION, SHOWN
from ..runtime.run import STATE
from ..store import MessageRecord, PromptRecord, SessionRecord
from ..store.postgres import PostgresStore

# Each poll looks back this far: the time of a step precedes its commit, and the first poll must cover the time since
# the first subscriber came.
OVERLAP = "2 seconds"
FINISHED, LAST = 8, 12  # how many done prompts and how many messages to read per changed session
REMEMBERED = 4096  # updates kept to avoid repeating them

BEGIN = f"SELECT clock_timestamp() - interval '{OVERLAP}'"
CHANGED = f"""
SELECT clock_timestamp() - interval '{OVERLAP}', s.id, s.title, s.mark, s.created_at, s.held, s.version, s.owner, n.url
FROM cancelmark.sessions s LEFT JOIN cancelmark.nodes n ON n.id = s.owner
WHERE s.workspace_id = %s AND s.id IN (
    SELECT session_id FROM cancelmark.steps WHERE workspace_id = %s AND made_at > %s
    UNION SELECT id FROM cancelmark.sessions WHERE workspace_id = %s AND owner IS NOT NULL)
"""
TAKEN_OVER = """
SELECT t.session_id, t.version, t.node, n.url, before.node, gone.url
FROM cancelmark.steps t LEFT JOIN cancelmark.nodes n ON n.id = t.node
LEFT JOIN cancelmark.steps before ON before.workspace_id = t.workspace_id AND before.session_id = t.session_id
    AND before.epoch = t.epoch - 1 AND before.claim <> ''
LEFT JOIN cancelmark.nodes gone ON gone.id = before.node
WHERE t.workspace_id = %s AND t.made_at > %s AND t.claim = 'recover'
ORDER BY t.made_at
"""
OWNER = """
SELECT n.id, n.url FROM cancelmark.sessions s JOIN cancelmark.nodes n ON n.id = s.owner
WHERE s.workspace_id = %s AND s.id = %s
"""


def name_node(id: UUID | None, url: str | None) -> str:
    """A readable name of a node: where it listens, and the start of its id, which changes with each life."""
    return f"{urlsplit(url or '').netloc or 'node'}#{str(id)[:4]}" if id else "unknown"


class Mirror:
    """Shows one workspace at one node. `register_session` returns whether the session is new."""

    def __init__(self, store: PostgresStore, broker: Broker, register_session: Callable[[SessionRecord], bool]) -> None:
        self._store, self._broker, self._register_session = store, broker, register_session
        self._since: datetime | None = None  # on the database's clock
        self._versions: dict[str, int] = {}
        self._held: dict[str, bool] = {}
        self._shown: OrderedDict[Any, Any] = OrderedDict()  # the last update of each prompt and message

    async def find_owner(self, session_id: str) -> str:
        rows = await self._store.database.fetch(OWNER, self._store.workspace, session_id)
        return name_node(*rows[0]) if rows else ""

    async def look(self) -> None:
        """Publish what other nodes have done since the last poll. A new subscriber reads the present state itself."""
        if not self._broker.watched:
            self._since = None
            return
        database, workspace, latest = self._store.database, self._store.workspace, self._broker.latest
        since = self._since or (await database.fetch(BEGIN))[0][0]
        rows = await database.fetch(CHANGED, workspace, workspace, since, workspace)
        self._show_taken_over(await database.fetch(TAKEN_OVER, workspace, since))
        for _, *record, held, version, owner, url in rows:
            if owner != database.node:
                self._show_session(SessionRecord(*record), held)
                await self._look_at(record[0], version, name_node(owner, url) if owner else "", latest)
        self._since = rows[0][0] if rows else since
        while len(self._shown) > REMEMBERED:
            self._shown.popitem(last=False)

    async def _look_at(self, session_id: str, version: int, node: str, latest: int) -> None:
        """Publish the changes of a session that this node does not own."""
        if version == self._versions.get(session_id) and not node:
            return
        prompts = await self._store.prompts(session_id, FINISHED)
        messages = await self._store.messages(session_id, last=LAST)
        ends = {event.payload["seq"]: event.id for event in await self._store.events(
            latest, session=session_id, terminal=True)}
        self._versions[session_id] = version
        for prompt in prompts:
            key = (session_id, prompt.seq)
            if prompt.state is State.ACTIVE and not node:  # claimed since; the next poll shows the owner
                continue
            if prompt.state is not State.DONE or key in self._shown or prompt.seq in ends:  # else it ended long ago
                self._show(key, _describe(prompt, node))
        if self._broker.latest <= max([latest, *ends.values()]):  # else a prompt's end may already be published
            self._show_messages(messages, {p.seq: p for p in prompts if p.state is not State.DONE
                                           or ends.get(p.seq, 0) > self._broker.latest})

    def _show_session(self, session: SessionRecord, held: bool) -> None:
        told = {"id": session.id, "title": session.title, "created_at": session.created_at}
        if self._register_session(session):
            self._broker.publish(Update(session.id, SESSION, told))
        if self._held.setdefault(session.id, held) is not held:
            self._held[session.id] = held
            self._broker.publish(Update(session.id, SESSION, {**told, "held": held}))

    def _show_messages(self, messages: Iterable[MessageRecord], prompts: dict[int, PromptRecord]) -> None:
        for message in messages:
            seq = message.id.removeprefix("p").partition("-")[0]
            if seq.isdecimal() and (prompt := prompts.get(int(seq))):
                self._show(message.id, Update(message.session_id, "message", {
                    **wire_message(message), "seq": prompt.seq}, prompt.run_id))

    def _show_taken_over(self, rows: Iterable[tuple[Any, ...]]) -> None:
        for session_id, version, id, url, gone, gone_url in rows:
            told = wire.TakenOver(session_id, name_node(id, url), name_node(gone, gone_url))
            self._show((session_id, "version", version), Update(session_id, "taken_over", wire.to_json(told)))

    def _show(self, key: Any, update: Update) -> None:
        """Publish the update, unless it equals the last one under the key."""
        if self._shown.get(key) != update.payload:
            self._shown[key] = update.payload
            self._shown.move_to_end(key)
            self._broker.publish(update)


def _describe(prompt: PromptRecord, node: str) -> Update:
    told = {"run_id": prompt.run_id, "outcome": prompt.outcome and prompt.outcome.value,
            "attachments": list_names(prompt.attachments), "version": prompt.traits.version,
            "front": prompt.traits.front, "node": node if prompt.state is State.ACTIVE else ""}
    return Update(prompt.session_id, STATE, {
        "seq": prompt.seq, "session_id": prompt.session_id, "text": prompt.text[:SHOWN], "state": prompt.state.value,
        **{name: value for name, value in told.items() if value}}, prompt.run_id)
