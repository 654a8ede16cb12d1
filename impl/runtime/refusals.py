"""Why a runtime refuses a call."""

import asyncio

from cancelmark.model.lifecycle import Outcome, State

from .. import wire

PAUSES = (0.002, 0.01, 0.05, 0.2)  # seconds of backoff: a fenced node may not know yet that it is dead


class Refusal(Exception):
    """The runtime has refused the call, and nothing of it is kept."""


class Closing(Refusal):
    """The runtime is closing, or closed."""

    def __init__(self, why: str = "the server is closing; retry when it is back") -> None:
        super().__init__(why)


class Leaving(Closing):
    """This server is closing, and other servers take over its sessions."""

    def __init__(self, why: str = "this server is closing; retry at another, or here when it is back") -> None:
        super().__init__(why)


class RunIdInUse(Refusal):
    """Another prompt has that run id."""


class NoSession(Refusal):
    """There is no session with that id."""


class NoPrompt(Refusal):
    """The session has never accepted such a prompt."""


class Busy(Refusal):
    """The session has prompts that are not done, or is held."""


class PromptRefusal(Refusal):
    """The prompt cannot take the call. Carries its state, its outcome, and the version of its text."""

    def __init__(self, why: str, state: State, outcome: Outcome | None, version: int) -> None:
        super().__init__(why)
        self.told = {"state": state.value, "outcome": outcome.value if outcome else "", "version": version}


class TooLate(PromptRefusal):
    """A late caller: the prompt has started, is canceled, or is done."""


class OtherVersion(PromptRefusal):
    """The prompt has another text than the caller expects."""


class NoQuestion(Refusal):
    """The prompt's turn has never asked such a question."""


class QuestionClosed(Refusal):
    """A late caller: the question has another answer, or was withdrawn. Carries the question."""

    def __init__(self, why: str, question: wire.Ask) -> None:
        super().__init__(why)
        self.question = question


class Stuck(Refusal):
    """The session's journal can no longer be written. A restart resumes from what is stored."""


class Moved(Refusal):
    """Another server owns the session now."""


async def pause(attempts: int) -> None:
    """Wait for the backoff after so many failed attempts."""
    await asyncio.sleep(PAUSES[min(attempts, len(PAUSES)) - 1])
