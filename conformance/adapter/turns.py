"""The language model for servers in this process: the kit controls how long each turn takes and how it ends."""

import asyncio
from collections.abc import Callable


class TurnFailed(Exception):
    """The language model failed, as the kit requested."""


class ContextFull(Exception):
    """The turn has overflowed its context; it can continue after a summary."""


def answer_to(name: str) -> str:
    return f"this is the answer to {name}"


def failure_of(name: str) -> str:
    return f"the turn of {name} failed"


class Turns:
    """The language model for servers in this process, controlled by the kit.

    `await turns(text)` is one turn: it returns the answer, or raises `TurnFailed`. The text must contain the prompt's
    text; if it contains several prompts, the turn is that of the last one. To cancel a turn, cancel the task that
    awaits it.
    """

    def __init__(self) -> None:
        self._known: dict[str, asyncio.Event] = {}
        self._summaries: dict[str, asyncio.Event] = {}
        self._how: dict[str, str] = {}  # how a waiting call returns: release, fail, again or outgrow
        self._started: dict[str, int] = {}
        self._summarized: dict[str, int] = {}
        self._closed: dict[str, int] = {}
        self._open: dict[str, int] = {}
        self.taken_in: dict[str, str] = {}
        """By the name of a folded prompt, the prompt whose turn folded it."""
        self._heard: dict[str, str] = {}
        self.changed: Callable[[], None] = lambda: None
        """Called when a turn or a summary has started, ended, or was aborted."""

    async def __call__(self, text: str) -> str:
        answer = await self.step(text)
        if answer is None:
            raise TypeError("the kit wants this turn to call the model again, but `turns(text)` is a single call; use "
                            "`turns.step`, or do not set `folds`")
        return answer

    async def step(self, text: str, *taken_in: str) -> str | None:
        """One call of a turn that may need several. Returns None if the turn has to call again. `taken_in` are the
        texts of prompts that the turn has folded since its last call. Raises `ContextFull` if a summary is needed
        first."""
        name = self._name_in(text)
        for other, its_text in zip(map(self._name_in, taken_in), taken_in):
            self._heard.setdefault(other, its_text)
            self.taken_in[other] = name
        self._heard.setdefault(name, text)
        let_go = self._known[name]
        await self._wait(name, let_go, self._started)
        how = self._how.get(name)
        if how in ("again", "outgrow"):
            let_go.clear()
        if how == "again":
            return None
        if how == "outgrow":
            raise ContextFull(f"the turn of {name} no longer fits")
        if how == "fail":
            raise TurnFailed(failure_of(name))
        return answer_to(name)

    async def make_summary(self, text: str) -> str:
        """Summarize a conversation that has overflowed its context, for the turn of this text."""
        name = self._name_in(text)
        made = self._summaries[name]
        await self._wait(name, made, self._summarized)
        made.clear()
        return f"this is the summary for {name}"

    async def _wait(self, name: str, let_go: asyncio.Event, asked: dict[str, int]) -> None:
        asked[name] = asked.get(name, 0) + 1
        self._open[name] = self._open.get(name, 0) + 1
        self.changed()
        try:
            await let_go.wait()
        except asyncio.CancelledError:
            self._closed[name] = self._closed.get(name, 0) + 1
            raise
        finally:
            self._open[name] -= 1
            self.changed()

    def _name_in(self, text: str) -> str:
        found = [(text.rfind(name), name) for name in self._known if name in text]
        if not found:
            raise LookupError(f"the text of this turn contains no prompt of the kit: {text:.200}; pass `prompt.text` "
                              "unchanged")
        return max(found)[1]

    # --- steering

    def hold(self, token: str) -> None:
        self._known[token], self._summaries[token] = asyncio.Event(), asyncio.Event()

    def release(self, token: str) -> None:
        self._let_go(token, "release")

    def fail(self, token: str) -> None:
        self._let_go(token, "fail")

    def again(self, token: str) -> None:
        """Let the waiting call return None: the turn has to call again."""
        self._let_go(token, "again")

    def outgrow(self, token: str) -> None:
        self._let_go(token, "outgrow")

    def flood(self, token: str) -> None:
        """As `release`: nothing is streamed here, so a long answer makes no difference."""
        self._let_go(token, "release")

    def summarize(self, token: str) -> None:
        self._summaries[token].set()

    def settle(self, token: str) -> None:
        """Do nothing: the text identifies the turn."""

    def heard(self, token: str) -> str:
        return self._heard.get(token, "")

    def _let_go(self, token: str, how: str) -> None:
        self._how[token] = how
        self._known[token].set()

    def count_starts(self, token: str) -> int:
        return self._started.get(token, 0)

    def count_summaries(self, token: str) -> int:
        return self._summarized.get(token, 0)

    def count_broken_off(self, token: str) -> int:
        return self._closed.get(token, 0)

    def count_open(self, token: str) -> int:
        return self._open.get(token, 0)
