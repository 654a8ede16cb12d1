"""What was said in a session before a turn, as far as its model looks back, and what is left of that in a summary.

A language model has to hear everything that was said since the last summary, so that a prompt costs as much as that is
long. A summary makes it short again: when the model says that it is too long, and at the latest after `LONGEST`
messages. So a prompt costs no more in a session of any length. A model that looks at the last message alone pays for
no more than that: it says how many messages it `hears`.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

from ..models import Conversation, Delta, Draft, Failure, Kept, ModelError, Role, Text
from ..models import Message as Said
from ..store import Message
from .messages import SUMMARY, is_summary, said

PAGE = 64  # messages that are read at a time
LONGEST = 1000  # messages of a conversation; then a summary takes their place
READ = 2 * LONGEST  # messages that are read at most: the last summary is among them
SIZE = 33_554_432  # characters that are remembered of all sessions together

SUMMARIZE = "Summarize this conversation so that the work can go on from your summary alone. Leave nothing open out."

Read = Callable[..., Awaitable[Sequence[Message]]]  # `Store.messages` of one session


async def read_back(read: Read, before: str | None = None, limit: int | None = None) -> list[Said]:
    """What was said before that message, or at all, since the last summary: the latest of it, in order."""
    return [words for _, words in await _read_with_ids(read, before, READ if limit is None else limit)]


async def _read_with_ids(read: Read, before: str | None, limit: int) -> list[tuple[str, Said]]:
    """The same, each with the id of its message. Others run between two pages."""
    heard: list[tuple[str, Said]] = []
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


class Memory:
    """What was said in the sessions that ran last, so that the next turn of each reads only what is new.

    Before a turn, everything that was said earlier is as it will stay: only the messages of a turn that runs are still
    written again, and there is one turn at a time. So what was read before the last turn holds, whoever has written to
    the session since, and the messages after it are read from the store.
    """

    def __init__(self, limit: int = SIZE) -> None:
        self._limit, self._size = limit, 0
        self._known: OrderedDict[str, _Known] = OrderedDict()  # by session, the latest last

    async def recall(self, session_id: str, read: Read, prompt: str) -> Conversation:
        """What was said in the session before the prompt's message, since the last summary."""
        known = self._known.pop(session_id, None)
        self._size -= known.size if known else 0
        if known is None or not await known.go_on(read, prompt):
            known = _Known(await _read_with_ids(read, prompt, READ))
        if known.last and known.size <= self._limit:
            self._known[session_id] = known
            self._size += known.size
        while self._size > self._limit:
            self._size -= self._known.popitem(last=False)[1].size
        return Conversation(known.said, len(known.said), known.kept)


class _Known:
    """What is remembered of one session."""

    def __init__(self, heard: Sequence[tuple[str, Said]]) -> None:
        self.said, self.last = [words for _, words in heard], heard[-1][0] if heard else ""
        self.size = sum(map(_measure, self.said))
        self.kept = Kept()

    async def go_on(self, read: Read, prompt: str) -> bool:
        """Adds what was said since. False if that cannot be told from here, or it is time for a summary to be found."""
        found = await read(since=self.last, before=prompt)
        if not found or any(map(is_summary, found[1:])):
            return False
        new = [words for words in map(said, found[1:]) if words.parts]
        self.said += new
        self.last = found[-1].id
        self.size += sum(map(_measure, new))
        return len(self.said) <= READ


def _measure(heard: Said) -> int:
    """About how many characters it takes."""
    return 64 + sum(len(value) for part in heard.parts for value in vars(part).values() if isinstance(value, str))


async def summarize(ask: Callable[[Sequence[Said]], AsyncGenerator[Delta, None]], conversation: Sequence[Said],
                    ) -> Text:
    """The summary that can take the conversation's place. Where all of it is too long for the model, the later half is
    summarized, and so on; what an earlier summary says is kept. Raises what the model raises if nothing fits."""
    request = Said(Role.USER, (Text(SUMMARIZE),))
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


def _begins_with_summary(conversation: Sequence[Said]) -> bool:
    return any(said.role is Role.SYSTEM and said.text.startswith(SUMMARY) for said in conversation[:1])
