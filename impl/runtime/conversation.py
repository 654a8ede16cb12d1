"""The conversation before a turn, as far as its model looks back, and the summaries that keep it short.

A language model has to read everything since the last summary, so the cost of a prompt grows with that. A summary makes
it short again: when the model reports that the conversation is too long, and at the latest after `LONGEST` messages. So
the cost of a prompt is bounded in a session of any length. A model that reads only the last messages pays only for
those: it says how many it `hears`.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

from ..models import ChatMessage, Conversation, Delta, Draft, EncodingCache, Failure, ModelError, Role, Text
from ..store import MessageRecord
from .messages import SUMMARY, is_summary, said

PAGE = 64  # messages read at a time
LONGEST = 1000  # messages of a conversation; then a summary replaces them
READ = 2 * LONGEST  # messages read at most; the last summary is among them
SIZE = 33_554_432  # characters cached, over all sessions

SUMMARIZE = "Summarize this conversation so that the work can go on from your summary alone. Leave nothing open out."

Read = Callable[..., Awaitable[Sequence[MessageRecord]]]  # `Store.messages` of one session


async def read_back(read: Read, before: str | None = None, limit: int | None = None) -> list[ChatMessage]:
    """The latest messages since the last summary, in order; with `before`, only those before that message."""
    return [words for _, words in await _read_with_ids(read, before, READ if limit is None else limit)]


async def _read_with_ids(read: Read, before: str | None, limit: int) -> list[tuple[str, ChatMessage]]:
    """The same, each with its message id. Other tasks run between two pages."""
    heard: list[tuple[str, ChatMessage]] = []
    complete = False
    while not complete and len(heard) < limit:
        size = min(PAGE, limit - len(heard))
        page = await read(before=before, last=size)
        complete = len(page) < size
        for message in reversed(page):
            before = message.id
            if (words := said(message)).parts:
                heard.append((message.id, words))
            if is_summary(message):
                complete = True
                break
        if not complete:
            await asyncio.sleep(0)
    return heard[::-1]


class ConversationCache:
    """A cache of the conversations of recent sessions, so the next turn of each reads only what is new.

    Before a turn starts, all earlier messages are final: only a running turn rewrites its messages, and there is one
    turn at a time. So the cached part stays valid whichever server has written to the session since, and later messages
    are read from the store.
    """

    def __init__(self, limit: int = SIZE) -> None:
        self._limit, self._size = limit, 0
        self._known: OrderedDict[str, _Known] = OrderedDict()  # by session, least recently used first

    async def recall(self, session_id: str, read: Read, prompt: str) -> Conversation:
        """The conversation before the prompt's message, since the last summary."""
        known = self._known.pop(session_id, None)
        self._size -= known.size if known else 0
        if known is None or not await known.extend(read, prompt):
            known = _Known(await _read_with_ids(read, prompt, READ))
        if known.last and known.size <= self._limit:
            self._known[session_id] = known
            self._size += known.size
        while self._size > self._limit:
            self._size -= self._known.popitem(last=False)[1].size
        return Conversation(known.said, len(known.said), known.kept)


class _Known:
    """The cached conversation of one session."""

    def __init__(self, heard: Sequence[tuple[str, ChatMessage]]) -> None:
        self.said, self.last = [words for _, words in heard], heard[-1][0] if heard else ""
        self.size = sum(map(_measure, self.said))
        self.kept = EncodingCache()

    async def extend(self, read: Read, prompt: str) -> bool:
        """Add the messages since. Returns False if the cache must be rebuilt: its last message is no longer stored, or
        there is a new summary."""
        found = await read(since=self.last, before=prompt)
        if not found or any(map(is_summary, found[1:])):
            return False
        new = [words for words in map(said, found[1:]) if words.parts]
        self.said += new
        self.last = found[-1].id
        self.size += sum(map(_measure, new))
        return len(self.said) <= READ


def _measure(heard: ChatMessage) -> int:
    """Its size in characters, approximately."""
    return 64 + sum(len(value) for part in heard.parts for value in vars(part).values() if isinstance(value, str))


async def summarize(
    ask: Callable[[Sequence[ChatMessage]], AsyncGenerator[Delta, None]], conversation: Sequence[ChatMessage],
) -> Text:
    """A summary that can replace the conversation.

    If the conversation is too long for the model, only its later half is summarized, and so on; an earlier summary is
    always included. Raises what the model raises if nothing fits.
    """
    request = ChatMessage(Role.USER, (Text(SUMMARIZE),))
    while True:
        draft = Draft()
        try:
            async with aclosing(ask([*conversation, request])) as deltas:
                async for delta in deltas:
                    draft.add(delta)
            return Text(SUMMARY + draft.message.text)
        except ModelError as failed:
            first = 1 if _begins_with_summary(conversation) else 0
            if failed.kind is not Failure.CONTEXT_TOO_LONG or len(conversation) == first:
                raise
            left = (len(conversation) - first) // 2
            conversation = [*conversation[:first], *conversation[len(conversation) - left:]]


def _begins_with_summary(conversation: Sequence[ChatMessage]) -> bool:
    return any(said.role is Role.SYSTEM and said.text.startswith(SUMMARY) for said in conversation[:1])
