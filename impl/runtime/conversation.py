"""What a model is to hear, read from the store when it is looked at.

A language model has to hear everything that was said since the last summary, so that a prompt in a long conversation
costs as much as the conversation is long; only a summary makes it short again. That is the model's business. Everything
else about a turn costs the same however long its session is, and a model that looks at the last message alone pays for
no more than that.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import overload

from ..models import Message as Said
from ..store import Message
from .messages import is_summary, said

PAGE = 64  # messages that are read at a time

Read = Callable[..., Sequence[Message]]  # `Store.messages` of one session


class Earlier:
    """What was said before a message of a session, since the last summary. It iterates from the latest on."""

    def __init__(self, read: Read, before: str) -> None:
        self._read, self._first = read, before
        self._heard: list[Said] = []
        self._complete = False

    def __iter__(self) -> Iterator[Said]:
        place = 0
        while True:
            while place < len(self._heard):
                yield self._heard[place]
                place += 1
            if self._complete:
                return
            self._turn_page()

    def _turn_page(self) -> None:
        page = self._read(before=self._first, last=PAGE)
        self._complete = len(page) < PAGE
        for message in reversed(page):
            self._first = message.id
            if (heard := said(message)).parts:
                self._heard.append(heard)
            if is_summary(message):
                self._complete = True
                return


class Conversation(Sequence[Said]):
    """Everything that was said before, and what was said since. The former is read as far as somebody looks at it."""

    def __init__(self, earlier: Earlier | None, since: Sequence[Message]) -> None:
        self._earlier, self._messages = earlier, since

    def __reversed__(self) -> Iterator[Said]:
        return chain(reversed(self._since), self._earlier or ())

    @cached_property
    def _since(self) -> list[Said]:
        return [heard for heard in map(said, self._messages) if heard.parts]

    @cached_property
    def _all(self) -> list[Said]:
        return list(reversed(self))[::-1]

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Said]:
        return iter(self._all)

    @overload
    def __getitem__(self, index: int) -> Said: ...
    @overload
    def __getitem__(self, index: slice) -> list[Said]: ...
    def __getitem__(self, index: int | slice) -> Said | list[Said]:
        if isinstance(index, int) and -len(self._since) <= index < 0:
            return self._since[index]
        return self._all[index]
