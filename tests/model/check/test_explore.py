"""The explorer: complete, exact, shortest, and honest when it is stopped."""

from collections import deque

import pytest
from support.counts import PINNED

from cancelmark.model.check.explore import Explorer, Progress, explore
from cancelmark.model.lifecycle import State
from cancelmark.model.properties import BOUND_NAMES, Bounds
from cancelmark.model.protocol import REFERENCE
from cancelmark.model.server import Server, changes
from cancelmark.model.session import Session
from cancelmark.model.variants.catalogue import VARIANTS


@pytest.mark.parametrize("bounds", PINNED, ids=str)
def test_state_counts_are_pinned_and_everything_holds(bounds: Bounds) -> None:
    result = explore(REFERENCE, bounds)
    assert (result.states, result.edges, result.depth) == PINNED[bounds]
    assert (result.verdict, result.violations, result.unmet) == ("holds", {}, [])
    assert sum(result.levels) == result.states


def plain_search(bounds: Bounds) -> tuple[int, int, int]:
    """States, edges and depth by the most obvious search there is: whole states, no splitting, no numbering."""
    limits = [getattr(bounds, name) for name in BOUND_NAMES]
    start = (Server(sessions=(Session(),) * bounds.sessions), (0,) * len(limits))
    depth = {start: 0}
    todo = deque([start])
    edges = 0
    while todo:
        server, spent = todo.popleft()
        for change in changes(REFERENCE, server):
            after = list(spent)
            if change.call.action.bound is not None:
                after[BOUND_NAMES.index(change.call.action.bound)] += 1
            if any(n > limit for n, limit in zip(after, limits)):
                continue
            edges += 1
            state = (change.after, tuple(after))
            if state not in depth:
                depth[state] = depth[server, spent] + 1
                todo.append(state)
    return len(depth), edges, max(depth.values())


@pytest.mark.parametrize("bounds", [
    Bounds(1, 1, 1, 1, 1, 1), Bounds(2, 1, 1), Bounds(2, 1, 0, 1, 1, 1), Bounds(2, 1, 1, sessions=2),
    Bounds(2, 0, 0, 0, 1, 1, sessions=2),
], ids=str)
def test_splitting_states_changes_no_count(bounds: Bounds) -> None:
    result = explore(REFERENCE, bounds)
    assert (result.states, result.edges, result.depth) == plain_search(bounds)


def test_a_decoded_state_is_whole() -> None:
    explorer = Explorer(REFERENCE, Bounds(2, cancels=1, sessions=2))
    explorer.search()
    for state in explorer.parent:
        server = explorer.decode(state)
        assert [p.seq for p in server.prompts] == list(range(1, server.seq + 1))


def test_every_trace_is_a_behaviour_of_the_protocol() -> None:
    result = explore(REFERENCE, Bounds(2, cancels=1, clears=1, requeues=1, crashes=1, closes=1, sessions=2))
    assert len(result.met) == len(result.goals)
    for trace in result.met.values():
        server = trace.start
        for step in trace.steps:
            [change] = [c for c in changes(REFERENCE, server) if c.call == step.call]
            assert (change.after, change.effects) == (step.after, step.effects)
            server = step.after


def test_traces_are_shortest() -> None:
    met = explore(REFERENCE, Bounds(2, cancels=1)).met
    assert [str(s.call) for s in met["row settle→done"].steps] == ["accept(A)", "cancel", "enter(A)", "settle(A)"]
    assert len(met["row fold→done"]) == 5


def test_bounds_and_properties_that_leave_nothing_to_judge_are_refused() -> None:
    for wrong in ({"prompts": 0}, {"sessions": 0}, {"cancels": -1}):
        with pytest.raises(ValueError, match="leave nothing to explore"):
            Bounds(**wrong)
    with pytest.raises(ValueError, match="no properties to check"):
        explore(REFERENCE, Bounds(1), properties=[])


# --- stopped searches never claim that anything holds

def test_a_state_limit_is_named_and_leaves_the_verdict_open() -> None:
    result = explore(REFERENCE, Bounds(3, cancels=2), max_states=500)
    assert result.verdict == "incomplete"
    assert result.stopped == "more than 500 states"
    assert result.unmet == []


def test_a_watcher_sees_progress_and_can_stop_the_search() -> None:
    seen: list[Progress] = []

    def watch(progress: Progress) -> str | None:
        seen.append(progress)
        return "enough" if progress.states > 1000 else None

    result = explore(REFERENCE, Bounds(3, cancels=2), watch=watch)
    assert (result.verdict, result.stopped) == ("incomplete", "enough")
    assert [p.states for p in seen] == sorted(p.states for p in seen)
    assert all(p.frontier > 0 for p in seen)


def test_an_interrupt_keeps_what_was_found() -> None:
    def interrupt(progress: Progress) -> str | None:
        if progress.states > 1000:
            raise KeyboardInterrupt
        return None

    result = explore(REFERENCE, Bounds(3, cancels=2), watch=interrupt)
    assert result.verdict == "interrupted"
    assert result.states > 1000
    assert result.edges > 0


def test_running_out_of_numbers_or_memory_is_a_stop_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cancelmark.model.check.plain.SITUATION_MASK", 63)
    result = explore(REFERENCE, Bounds(2, cancels=1))
    assert (result.verdict, result.stopped) == ("incomplete", "more than 63 situations")

    def exhausted(progress: Progress) -> str | None:
        raise MemoryError

    assert explore(REFERENCE, Bounds(2, cancels=1), watch=exhausted).stopped == "out of memory"


def test_a_violation_found_before_the_stop_is_still_a_violation() -> None:
    bug = VARIANTS["the mark is one too high"]
    result = explore(bug.protocol, Bounds(3, cancels=2), max_states=500)
    assert result.stopped
    assert result.verdict == "violated"
    assert "no-poisoning" in result.violations


def test_a_circle_is_reported_as_a_path_and_a_loop() -> None:
    bug = VARIANTS["a canceled prompt is tried again"]
    trace = explore(bug.protocol, bug.bounds).violations["progress"]
    assert trace.loop is not None
    assert trace.states[trace.loop] == trace.states[-1]
    assert all(step.call.action.system for step in trace.steps[trace.loop:])


def test_quiescence_is_reached_with_everything_done() -> None:
    explorer = Explorer(REFERENCE, Bounds(2, cancels=1, crashes=1))
    explorer.search()
    quiet = [explorer.decode(s) for s in explorer.parent if (o := explorer.onward[s & 0xFFFFFF]) and o.quiet]
    assert quiet
    assert all(p.state is State.DONE and p.ends == 1 for server in quiet for p in server.prompts)
