"""The one search: nearest first, shortest paths, and no more questions than it has to ask."""

from collections.abc import Iterator
from itertools import islice

from cancelmark.model.check.graph import NOTHING_SPENT, Search, StateGraph, spend
from cancelmark.model.properties import BOUND_NAMES, Bounds
from cancelmark.model.protocol import REFERENCE
from cancelmark.model.server import changes

GRAPH = {"a": "bc", "b": "d", "c": "e", "d": "f", "e": "f", "f": "a", "z": "f"}


def onward(node: str) -> Iterator[tuple[str, str]]:
    return ((node + after, after) for after in GRAPH[node])


def test_nodes_come_nearest_first_each_once_with_a_shortest_path() -> None:
    search = Search("a", onward)
    assert list(search) == ["a", "b", "c", "d", "e", "f"]
    assert search.depths == {"a": 0, "b": 1, "c": 1, "d": 2, "e": 2, "f": 3}
    assert search.path("f") == ["ab", "bd", "df"]
    assert search.path("a") == []


def test_a_search_from_several_starts_takes_the_nearest() -> None:
    search = Search("az", onward)
    assert list(search) == ["a", "z", "b", "c", "f", "d", "e"]
    assert search.path("f") == ["zf"]


def test_what_is_left_comes_first_and_the_path_is_still_shortest() -> None:
    left = {"a": 3, "c": 2, "e": 1, "f": 0}
    search = Search("a", onward, left=lambda node: left.get(node, 9))
    assert list(search)[:4] == ["a", "c", "e", "f"]
    assert search.path("f") == ["ac", "ce", "ef"]


def test_a_path_that_is_found_later_and_shorter_counts() -> None:
    """`b` is met first by a detour that seems good."""
    roads = {"a": [("long", "c"), ("straight", "b")], "c": [("detour", "b")], "b": []}
    search = Search("a", roads.__getitem__, left=lambda node: 0 if node == "c" else 0.5)
    assert list(search) == ["a", "c", "b"]
    assert search.path("b") == ["straight"]


def test_a_caller_who_leaves_asks_for_no_more() -> None:
    asked = []

    def noted(node: str) -> Iterator[tuple[str, str]]:
        asked.append(node)
        return onward(node)

    assert list(islice(Search("a", noted), 2)) == ["a", "b"]
    assert asked == ["a"]


def test_a_graph_of_states_has_every_change_once_with_or_without_finished_prompts() -> None:
    whole, live = StateGraph(REFERENCE, whole=True), StateGraph(REFERENCE, whole=False)
    for graph in (whole, live):
        for number in islice(Search([0], graph.ways), 40):
            assert [way.change for way in graph.ways(number)] == list(changes(REFERENCE, graph.states[number]))
            assert graph.ways(number) is graph.ways(number)
    assert any(p.outcome for server in whole.states for p in server.prompts)
    assert not any(p.outcome for server in live.states for p in server.prompts)


def test_bounds_are_spent_by_the_calls_that_they_limit() -> None:
    graph = StateGraph(REFERENCE, whole=True)
    calls = {way.change.call.name: way.change.call for way in graph.ways(0)}
    once = spend(Bounds(1, cancels=1), NOTHING_SPENT, calls["cancel"])
    assert once == tuple(int(name == "cancels") for name in BOUND_NAMES)
    assert spend(Bounds(1, cancels=1), once, calls["cancel"]) is None
    assert spend(Bounds(1), NOTHING_SPENT, calls["cancel"]) is None
