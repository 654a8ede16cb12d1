"""What was said in a session before a turn, as far as its model looks back.

A language model has to hear everything that was said since the last summary, so that a prompt in a long conversation
costs as much as the conversation is long; only a summary makes it short again. That is the model's business. Everything
else about a turn costs the same however long its session is, and a model that looks at the last message alone pays for
no more than that: it says how many messages it `hears`.
"""

from collections.abc import Awaitable, Callable, Sequence

from ..models import Message as Said
from ..store import Message
from .messages import is_summary, said

PAGE = 64  # messages that are read at a time

Read = Callable[..., Awaitable[Sequence[Message]]]  # `Store.messages` of one session


async def read_back(read: Read, before: str, limit: int | None = None) -> list[Said]:
    """What was said before that message, since the last summary: the latest of it if there is a limit, in order."""
    heard: list[Said] = []
    complete = False
    while not complete and (limit is None or len(heard) < limit):
        size = PAGE if limit is None else min(PAGE, limit - len(heard))
        page = await read(before=before, last=size)
        complete = len(page) < size
        for message in reversed(page):
            before = message.id
            if (words := said(message)).parts:
                heard.append(words)
            if is_summary(message):
                complete = True
                break
    return heard[::-1]
