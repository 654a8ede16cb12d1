"""What is exported for walking: counts that the explorer confirms, and walks that are its traces."""

import json
from dataclasses import replace

import pytest

from cancelmark.model.check.explore import explore
from cancelmark.model.check.judging import at_rest
from cancelmark.model.check.walk import Walk
from cancelmark.model.examples import EXAMPLES, Example
from cancelmark.model.lifecycle import ROWS, State
from cancelmark.model.properties import Bounds
from cancelmark.model.protocol import REFERENCE, Behaviour
from cancelmark.model.revisions import REVISIONS
from cancelmark.model.revisions.flaws import DISPATCH, FLAWS_BY_NAME
from cancelmark.model.revisions.matrix import ANY, NAMED, Profile, search
from cancelmark.model.trace import replay
from cancelmark.views.drawing.plots import columns, growth, shares
from cancelmark.views.states.board import lifecycle_board
from cancelmark.views.states.export import document, graph_of
from cancelmark.views.states.levels import count_levels
from cancelmark.views.traces.facts import facts

SMALL = Profile(Bounds(2, cancels=1, clears=1), ANY, "")


@pytest.mark.parametrize(("protocol", "profile"), [
    (REFERENCE, SMALL),
    (REFERENCE, Profile(Bounds(2, crashes=1, sessions=2), ANY, "")),
    (REVISIONS[4], Profile(Bounds(2, closes=1), NAMED, "")),
], ids=["ref", "two sessions", "r4"])
def test_the_census_counts_what_the_explorer_counts(protocol: Behaviour, profile: Profile) -> None:
    assert [level.states for level in count_levels(protocol, profile)] == search(protocol, profile).levels


def test_the_census_counts_every_prompt() -> None:
    levels = count_levels(REFERENCE, SMALL)
    assert sum(levels[1].prompts.values()) == 2, "two states have a prompt: with and without a run id"
    assert levels[-1].prompts == {"done": 2 * levels[-1].states}


def test_a_walk_is_broken_where_the_explorer_says() -> None:
    result = search(REVISIONS[4], Profile(Bounds(2, cancels=1), NAMED, ""))
    assert len(result.violations) >= 5
    for id, trace in result.violations.items():
        assert Walk.along(REVISIONS[4], trace).broken[id] == len(trace)


def test_a_graph_has_its_traces_and_says_what_it_leaves_out() -> None:
    flaw = FLAWS_BY_NAME["clear-races-handoff"]
    trace = flaw.trace("r4")
    assert trace
    graph = graph_of(DISPATCH["r4"], [], [trace])
    state = 0
    for number in graph.path(trace):
        state = graph.edges[state][number].target
    assert "accept(A)" in graph.omitted[0]
    assert "accept(A, run id)" not in graph.omitted[0]
    other = FLAWS_BY_NAME["canceled-twice"].trace("r4")
    assert other
    with pytest.raises(LookupError, match=r"step 5, clear_queue, is not in the graph of r4"):
        graph.path(other)


def test_the_same_graph_gives_the_same_document() -> None:
    first, second = (json.dumps(document(graph_of(REFERENCE, [SMALL]))) for _ in range(2))
    assert first == second


def test_facts_tell_the_original_s_machinery() -> None:
    trace = replay(DISPATCH["r4"], [
        "accept(A, run id)", "accept(B, run id)", "enter A", "enter B", "finish A end_turn", "clear_queue", "leave A",
        "hand_off A"])
    told = facts(trace.states[-1].sessions[0])
    assert told["calls in progress"] == "clear_queue… (has read B)"
    assert told["goroutines"].splitlines()[0] == "A: A at clean_up › B at enter, buffers the terminal event of A"
    assert told["registered"] == "–"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
def test_the_guarantees_by_example_break_nothing_and_end_at_rest(example: Example) -> None:
    walk = Walk.along(REFERENCE, example.trace)
    assert walk.broken == {}
    assert at_rest(walk.possible)
    assert all(p.ends == 1 for p in walk.server.prompts)


def test_the_board_has_every_way_of_the_rows() -> None:
    board = lifecycle_board()
    for row in REFERENCE.rows:
        assert f" {row.source.value}-{row.dest.value}\"" in board
    without = lifecycle_board(tuple(row for row in ROWS if row.dest is not State.QUEUED))
    assert "accepted-queued" not in without


def test_plots_have_every_value() -> None:
    levels = explore(REFERENCE, Bounds(2, cancels=1)).levels
    drawn = columns("t", levels, "x", "y")
    assert all(f"<title>{i}: {n:,}</title>" in drawn for i, n in enumerate(levels))
    assert drawn.count('class="bar"') == len(levels)
    parts = shares("t", [{"active": 1, "done": 3}, {}], ("active", "done"), "x", "y")
    assert "0: active 25%" in parts
    assert "0: done 75%" in parts
    lines = growth("t", {"one": [1, 10, 100], "two": [2, 20, 199]}, "x", "y")
    assert "two, 3: 199" in lines
    heights = [float(part.split(",")[1]) for part in lines.split('points="')[1].split('"')[0].split()]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2]), "powers of ten are equally far apart"


def test_undone_steps_are_forgotten_when_another_is_taken() -> None:
    walk = Walk.along(REFERENCE, replay(REFERENCE, ["accept A", "cancel", "enter A"]))
    walk.jump(1)
    assert len(walk.taken) == 3
    walk.take(next(c for c in walk.possible if str(c.call) == "enter(A)"))
    assert [str(step.call) for step in walk.trace.steps] == ["accept(A)", "enter(A)"]
    walk.jump(99)
    assert walk.at == 2
    assert replace(walk.trace, loop=None) == walk.trace
