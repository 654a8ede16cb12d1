"""What runs is what was checked: an action that is changed in one place is changed everywhere."""

import asyncio

import pytest
from tools.specs.tables import actions_table

from cancelmark.impl.models.scripted import ScriptedModel, Stubborn, Wait
from cancelmark.impl.runtime import Runtime, Stuck
from cancelmark.impl.runtime.session import Counter, Session
from cancelmark.model.actions import Argument, Port, finish, stop_active
from cancelmark.model.check.explore import explore
from cancelmark.model.lifecycle import Guard, State, Trigger
from cancelmark.model.properties import Bounds
from cancelmark.model.protocol import REFERENCE, Protocol
from cancelmark.model.trace import replay
from cancelmark.views.states.session import session_mermaid


def cancel_keeps(step: Port, arg: Argument) -> None:
    """The active prompt is asked to stop, everything accepted so far is covered, and the queue stays."""
    stop_active(step)
    step.mark = arg.seq


KEEP = REFERENCE.changed("keep", cancel={"apply": cancel_keeps})


def test_the_explorer_names_the_guarantees_that_break() -> None:
    assert set(explore(KEEP, Bounds(2, cancels=1)).violations) == {"no-lost-cancel", "queue-dropped"}


@pytest.mark.parametrize(("protocol", "queued"), [(REFERENCE, []), (KEEP, ["b"])], ids=["reference", "keep"])
def test_a_runtime_lives_by_the_protocol_that_it_is_given(protocol: Protocol, queued: list[str]) -> None:
    async def main() -> None:
        model = ScriptedModel([Stubborn((Wait("gate"),))])
        async with Runtime(model, protocol=protocol) as runtime:
            await runtime.create_session("s")
            await runtime.accept("s", "a")
            await model.gate("gate").reached()
            await runtime.accept("s", "b", "run-b")
            await runtime.cancel("s")
            assert runtime.queued("s") == queued
            model.gate("gate").open()

    asyncio.run(main())


def test_model_diagram_page_and_session_change_together() -> None:
    """The same history, and what model, diagram, table of specs/protocol.md and runtime's session make of it."""
    def told(protocol: Protocol) -> tuple[object, ...]:
        trace = replay(protocol, ("accept A", "accept(B, run id)", "enter A", "enter B", "cancel"))
        session = Session("s", Counter(), protocol=protocol)
        for run_id in (None, "run-b"):
            session.take("enter", session.accept(run_id=run_id)[0])
        effects = session.take("cancel")
        assert (trace.steps[-1].effects, trace.states[-1].prompts[1].state is State.QUEUED) == (
            tuple(effects), bool(session.queue)), "model and runtime agree"
        return trace.states[-1], session_mermaid(protocol), actions_table(protocol), list(effects)

    before, after = told(REFERENCE), told(KEEP)
    assert all(one != other for one, other in zip(before, after, strict=True))
    assert "and the queue stays" in str(after[2])


def test_what_a_guard_means_is_said_by_the_protocol() -> None:
    never_busy = REFERENCE.changed("never busy", guards={Guard.BUSY: lambda port, prompt: False})
    assert "single-active" in explore(never_busy, Bounds(2)).violations
    session = Session("s", Counter(), protocol=never_busy)
    for _ in range(2):
        session.take("enter", session.accept()[0])
    assert len(session.active) == 2
    assert "single-active" not in explore(REFERENCE, Bounds(2)).violations


def test_an_action_that_is_not_there_cannot_be_changed() -> None:
    with pytest.raises(LookupError, match="protocol ref has no action cancle; it has accept, enter"):
        REFERENCE.changed("misspelt", cancle={"apply": cancel_keeps})


def test_a_runtime_whose_protocol_breaks_its_own_rows_stands_still(caplog: pytest.LogCaptureFixture) -> None:
    def finish_twice(step: Port, arg: Argument) -> None:
        finish(step, arg)
        step.fire(arg.subject, Trigger.ENTER)

    async def main() -> None:
        broken = REFERENCE.changed("broken", finish={"apply": finish_twice})
        async with asyncio.timeout(30), Runtime(ScriptedModel(), protocol=broken) as runtime:
            await runtime.create_session("s")
            handle = await runtime.accept("s", "a")
            with pytest.raises(Stuck, match="is stuck: IllegalTrigger"):
                await handle

    asyncio.run(main())
    assert "is stuck" in caplog.text
