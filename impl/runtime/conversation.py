"""What was said in a session before a turn, as far as its model looks back, and what is left of that in a summary.

A language model has to hear everything that was said since the last summary, so that a prompt costs as much as that is
long. A summary makes it short again: when the model says that it is too long, and at the latest after `LONGEST`
messages. So a prompt costs no more in a session of any length. A model that looks at the last message alone pays for
no more than that: it says how many messages it `hears`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

from ..models import Draft, Failure, Model, ModelError, Role, Text
from ..models import Message as Said
from ..store import Message
from .messages import SUMMARY, is_summary, said

PAGE = 64  # messages that are read at a time
LONGEST = 1000  # messages of a conversation; then a summary takes their place
READ = 2 * LONGEST  # messages that are read at most: the last summary is among them
SUMMARIZE = "Summarize this conversation so that the work can go on from your summary alone. Leave nothing open out."

Read = Callable[..., Awaitable[Sequence[Message]]]  # `Store.messages` of one session


async def read_back(read: Read, before: str | None = None, limit: int | None = None) -> list[Said]:
    """What was said before that message, or at all, since the last summary: the latest of it, in order. Others run
    between two pages."""
    limit = READ if limit is None else limit
    heard: list[Said] = []
    complete = False
    while not complete and len(heard) < limit:
        size = min(PAGE, limit - len(heard))
        page = await read(before=before, last=size)
        complete = len(page) < size
        for message in reversed(page):
            before = message.id
            if (words := said(message)).parts:
                heard.append(words)
            if is_summary(message):
                complete = True
                break
        if not complete:
            await asyncio.sleep(0)
    return heard[::-1]


async def summarize(model: Model, conversation: Sequence[Said]) -> Text:
    """The summary that can take the conversation's place. Where all of it is too long for the model, the later half is
    summarized, and so on; what an earlier summary says is kept. Raises what the model raises if nothing fits."""
    request = Said(Role.USER, (Text(SUMMARIZE),))
    while True:
        draft = Draft()
        try:
            async with aclosing(model.step([*conversation, request])) as deltas:
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
