"""Workspaces: limits that hold when everybody comes at once, and leaving while somebody comes back."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support.scenes import Scenes
from support.stores import Meddled

from cancelmark.conformance.schedule import explore_schedules
from cancelmark.impl.models.scripted import ScriptedModel
from cancelmark.impl.runtime import workspace as workspace_module
from cancelmark.impl.runtime.workspace import Busy, Full, Unknown, Workspace, Workspaces
from cancelmark.impl.store import CommitAnswer, CommitRequest, MemoryStore
from cancelmark.model.family import Feature

GRACE = 300.0  # seconds of a time that costs nothing


# --- limits

async def come_all_at_once(calls: list[Awaitable[object]]) -> tuple[int, int]:
    """How many calls were let in, and how many were refused because there is no room."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, Full)]
    others = [answer for answer in answers if isinstance(answer, BaseException) and answer not in refused]
    assert not others, others
    return len(answers) - len(refused), len(refused)


@pytest.mark.parametrize("limit", [1, 3])
async def test_a_session_has_no_more_prompts_than_its_limit_however_many_come_at_once(
    limit: int, tmp_path: Path,
) -> None:
    scenes = Scenes()
    gates = [scenes.holds(f"{n}") for n in range(limit)]
    workspaces = Workspaces(scenes.model, tmp_path / "data", queue=limit)
    workspace = await workspaces.open(str(tmp_path))
    await workspaces.ready(workspace)
    busy, idle = [(await workspace.create_session("")).id for _ in range(2)]
    prompts = [workspace.accept(busy, f"{n}", None) for n in range(limit + 7)]
    assert await come_all_at_once(list(prompts)) == (limit, 7)
    assert await come_all_at_once([workspace.accept(idle, "elsewhere", None)]) == (1, 0)
    for gate in gates:
        gate.open()
    while workspace.runtime.is_busy():
        await asyncio.sleep(0.001)
    assert await come_all_at_once([workspace.accept(busy, "later", None)]) == (1, 0)  # there is room again
    await workspaces.close()


class SlowStore(Meddled, MemoryStore):
    async def commit(self, steps: CommitRequest) -> CommitAnswer:
        for _ in range(20):
            await asyncio.sleep(0)
        return await super().commit(steps)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("mode", [None, Feature.REJECT, Feature.INTERRUPT])
@pytest.mark.parametrize("store", ["memory", "slow", "file"])
@pytest.mark.rule("R22b", "R35a")
async def test_copies_of_a_prompt_get_the_same_answer_however_close_they_come(
    store: str, mode: Feature | None, busy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    if store == "slow":
        monkeypatch.setattr(workspace_module, "MemoryStore", SlowStore)
    scenes = Scenes()
    gates = [scenes.holds("a"), *(scenes.holds(f"{apart}") for apart in range(12))]
    workspaces = Workspaces(scenes.model, tmp_path / "data" if store == "file" else None)
    workspace = await workspaces.open(str(tmp_path))
    await workspaces.ready(workspace)

    async def send(session: str, apart: int, after: int) -> object:
        for _ in range(after):
            await asyncio.sleep(0)
        return await workspace.accept(session, f"{apart}", f"run-{apart}", (), mode)

    for apart in range(12):
        session = (await workspace.create_session("")).id
        if busy:
            await workspace.accept(session, "a", None)
        answers = await asyncio.gather(*(send(session, apart, n * apart) for n in range(3)), return_exceptions=True)
        assert len({repr(answer) for answer in answers}) == 1, (apart, answers)
        assert isinstance(answers[0], Busy) == (busy and mode is Feature.REJECT)
        if busy and mode is None:  # also if it was edited since
            for text in ("edited", "edited twice", "edited three times"):
                await workspace.runtime.replace(session, f"run-{apart}", text)
                assert await send(session, apart, 0) == answers[0]
    for gate in gates:
        gate.open()
    await workspaces.close()


async def test_who_is_refused_for_another_reason_leaves_room(tmp_path: Path) -> None:
    workspaces = Workspaces(ScriptedModel(), tmp_path / "data", queue=2)
    workspace = await workspaces.open(str(tmp_path))
    await workspaces.ready(workspace)
    session = (await workspace.create_session("")).id
    seq = (await workspace.accept(session, "a", "run-a")).seq
    for _ in range(5):
        assert (await workspace.accept(session, "a", "run-a")).seq == seq  # the store refuses it each time
    while workspace.runtime.is_busy():
        await asyncio.sleep(0.001)
    assert await come_all_at_once([workspace.accept(session, f"{n}", None) for n in range(2)]) == (2, 0)
    await workspaces.close()


# --- leaving and coming back

async def come_by_path(workspaces: Workspaces, workspace: Workspace) -> Workspace:
    return await workspaces.open(workspace.path)


async def come_by_id(workspaces: Workspaces, workspace: Workspace) -> Workspace:
    try:
        return workspaces.get(workspace.id)
    except Unknown:
        return await workspaces.open(workspace.path)


LEAVING: dict[str, Callable[[Workspace], Awaitable[None]]] = {}


def leaving(way: Callable[[Workspace], Awaitable[None]]) -> Callable[[Workspace], Awaitable[None]]:
    LEAVING[way.__name__] = way
    return way


@leaving
async def released(workspace: Workspace) -> None:
    workspace.claim("me")
    await asyncio.sleep(3 * GRACE / 4)
    assert workspace.release("me")


@leaving
async def released_while_it_watches(workspace: Workspace) -> None:
    with workspace.watch("me", None):
        await asyncio.sleep(3 * GRACE)
        assert workspace.release("me")


@leaving
async def watched(workspace: Workspace) -> None:
    with workspace.watch("me", None):
        await asyncio.sleep(3 * GRACE)


@leaving
async def watched_twice(workspace: Workspace) -> None:
    with workspace.watch("me", None), workspace.watch("me", None):
        await asyncio.sleep(3 * GRACE)


@leaving
async def asked(workspace: Workspace) -> None:
    await asyncio.sleep(3 * GRACE / 4)
    workspace.claim()


@leaving
async def another_is_released_first(workspace: Workspace) -> None:
    workspace.claim("other")
    with workspace.watch("me", None):
        await asyncio.sleep(GRACE / 2)
        workspace.release("other")
        await asyncio.sleep(3 * GRACE)


@pytest.mark.parametrize("way", LEAVING)
@pytest.mark.rule("R26")
def test_however_the_last_client_leaves_the_workspace_stays_for_the_grace_period(way: str) -> None:
    async def main() -> None:
        workspaces = Workspaces(ScriptedModel(), grace=GRACE)
        workspace = await workspaces.open("/a")
        await LEAVING[way](workspace)
        await asyncio.sleep(GRACE * 0.9)
        assert workspace in list(workspaces), "it was closed early"
        await asyncio.sleep(GRACE * 1.2)
        assert not list(workspaces), "it was not closed"
        await workspaces.close()

    for schedule in explore_schedules(main, preemptions=0):
        schedule.result()


@pytest.mark.parametrize(("come", "preemptions"), [(come_by_path, 3), (come_by_id, 2)])
@pytest.mark.rule("R26")
def test_a_workspace_does_not_close_under_a_client_that_comes_back(
    come: Callable[[Workspaces, Workspace], Awaitable[Workspace]], preemptions: int,
) -> None:
    """A client comes back at the moment when nobody has a claim any more."""
    same: set[bool] = set()

    async def main() -> None:
        workspaces = Workspaces(ScriptedModel(), grace=GRACE)
        first = await workspaces.open("/a")
        await asyncio.sleep(GRACE)
        second = await come(workspaces, first)
        same.add(second is first)
        if second.runtime.closing:  # the client came by the id of one that was closing, and opens it anew
            second = await workspaces.open("/a")
        await asyncio.sleep(GRACE / 2)
        assert second in list(workspaces), "it was closed under a client that had come back"
        assert not second.runtime.closing
        await asyncio.sleep(GRACE)
        assert not list(workspaces), "nobody is left, and it is still open"
        await workspaces.close()

    for schedule in explore_schedules(main, preemptions=preemptions):
        schedule.result()
    assert True in same  # there were schedules in which it came in time
