"""A close waits for what is under way, and for nothing longer: in virtual time."""

import asyncio

import pytest
from support.stores import Meddled

from cancelmark.conformance.schedule import run
from cancelmark.impl.models.scripted import ScriptedModel
from cancelmark.impl.runtime import Runtime
from cancelmark.impl.store import (
    AcceptPrompt,
    CommitAnswer,
    CommitRequest,
    ConstraintViolation,
    MemoryStore,
    StoreError,
)
from cancelmark.model.lifecycle import Outcome

GRACE = 100.0  # seconds of a time that costs nothing


class Late(Meddled, MemoryStore):
    """It takes a second to accept a prompt, and then it may fail."""

    def __init__(self, failure: type[StoreError] | None) -> None:
        super().__init__()
        self.failure = failure

    async def commit(self, steps: CommitRequest) -> CommitAnswer:
        (operation, *_) = steps.operations
        if isinstance(operation, AcceptPrompt):
            await asyncio.sleep(1)
            if self.failure is ConstraintViolation:
                raise ConstraintViolation("the store", operation)
            if self.failure:
                raise self.failure("the store", "fails", "try again")
        return await super().commit(steps)


@pytest.mark.rule("R15a", "R15c")
@pytest.mark.parametrize("caller", ["stays", "is canceled"])
@pytest.mark.parametrize("failure", [None, ConstraintViolation, StoreError])
def test_a_close_is_over_when_the_last_acceptance_is(failure: type[StoreError] | None, caller: str) -> None:
    async def main() -> None:
        runtime = Runtime(ScriptedModel(), Late(failure), grace=GRACE)
        await runtime.start()
        await runtime.create_session("s")
        accepting = asyncio.ensure_future(runtime.accept("s", "a", "run-a"))
        await asyncio.sleep(0.5)
        closing = asyncio.ensure_future(runtime.close())
        await asyncio.sleep(0.25)
        if caller == "is canceled":
            accepting.cancel()
        await closing
        assert asyncio.get_running_loop().time() == 1.0
        (accepted,) = await asyncio.gather(accepting, return_exceptions=True)
        assert isinstance(accepted, BaseException) == (failure is not None or caller == "is canceled")
        assert runtime.ended == dict.fromkeys(Outcome, 0) | {Outcome.CANCELED: int(failure is None)}

    run(main())
