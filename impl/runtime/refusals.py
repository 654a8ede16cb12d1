"""Why a runtime does not do what it is asked for."""

import asyncio

from cancelmark.model.lifecycle import Outcome, State

PAUSES = (0.002, 0.01, 0.05, 0.2)  # seconds before a call is made again: a node that is dead may not know of it yet


class Refusal(Exception):
    """A prompt was not accepted. Nothing of it is kept."""


class Closing(Refusal):
    """The runtime is closing, or closed."""


class RunIdInUse(Refusal):
    """Another prompt has that run id."""


class NoSession(Refusal):
    """There is no session of that id."""


class NoPrompt(Refusal):
    """The session has never accepted such a prompt."""


class Busy(Refusal):
    """The session has prompts that are not done, or is held."""


class PromptRefusal(Refusal):
    """A prompt does not take what was asked for. Where it is, how it ended, and the version of its text."""

    def __init__(self, why: str, state: State, outcome: Outcome | None, version: int) -> None:
        super().__init__(why)
        self.told = {"state": state.value, "outcome": outcome.value if outcome else "", "version": version}


class TooLate(PromptRefusal):
    """The prompt has begun, is canceled, or is done."""


class OtherVersion(PromptRefusal):
    """The prompt has another text than the caller knows."""


class Stuck(Refusal):
    """The session's journal cannot be written, for good. A restart goes on from what it has."""


class Moved(Refusal):
    """The session belongs to another server by now."""


async def pause(attempts: int) -> None:
    """Waits before a call is made again that was made in vain so often, the longer the more often."""
    await asyncio.sleep(PAUSES[min(attempts, len(PAUSES)) - 1])


TOO_LATE = Closing("the server has closed and could not write this; a restart ends it")
