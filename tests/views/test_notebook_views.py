"""What the model's objects look like in a notebook, what a history notes, and what a prediction is held against."""

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any
from xml.etree import ElementTree

import pytest
from support.notebook_shell import html_of, svg_of
from support.samples.naive import NaiveAdapter

from cancelmark.conformance.kit import judge
from cancelmark.conformance.profile import Profile
from cancelmark.model.check.explore import explore
from cancelmark.model.examples import EXAMPLES
from cancelmark.model.oracle import Span
from cancelmark.model.properties import Bounds
from cancelmark.model.protocol import REFERENCE
from cancelmark.model.revisions import REVISIONS
from cancelmark.model.revisions.matrix import Column
from cancelmark.model.trace import replay
from cancelmark.views.course.exercises import predict
from cancelmark.views.course.recording import Recording
from cancelmark.views.notebook import columns_picture, growth_picture, matrix_sheet, table

SVG = "{http://www.w3.org/2000/svg}"


def ticking() -> Recording:
    moments = count()
    return Recording(lambda: float(next(moments)))


def lost() -> Recording:
    """A cancel that did not reach A."""
    history = ticking()
    history.accept("A")
    history.call("cancel")
    history.start("A")
    history.end("A", "end_turn")
    return history


PICTURES: Mapping[str, Callable[[], Any]] = {
    "trace": lambda: replay(REFERENCE, ["accept A", "cancel", "enter A", "settle A"]),
    "revision": lambda: explore(REVISIONS[1], Bounds(2, cancels=1)).violations["no-poisoning"],
    "history": lost, "empty history": ticking, "protocol": lambda: REFERENCE,
    "growth": lambda: growth_picture({"a": [1, 10, 100]}),
    "columns": lambda: columns_picture([1, 5, 2], "depth", "states"),
    "sessions": lambda: next(e for e in EXAMPLES if e.sessions > 1).trace,
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_brings_its_paper_and_says_in_words_what_it_shows(name: str) -> None:
    shown = PICTURES[name]()
    svg = svg_of(shown)
    root = ElementTree.fromstring(svg)
    assert root.get("class") == "cancelmark paper"
    assert root[0].tag == f"{SVG}title"
    assert root[0].text
    assert root[1].tag == f"{SVG}desc"
    style = root.find(f"{SVG}style")
    assert style is not None
    assert style.text
    assert style.text.count(".cancelmark.paper { background:") == 3, "on a light page, on a dark one, and on paper"
    assert svg == svg_of(shown)


def test_cards_and_tables_say_what_there_is() -> None:
    state = replay(REFERENCE, ["accept A", "enter A", "accept B", "cancel"]).states[-1]
    for html in (html_of(state), html_of(state.sessions[0])):
        assert "active, stopping" in html
        assert "≤ B" in html
        assert "<caption>" in html
    result = explore(REVISIONS[1], Bounds(2, cancels=1))
    assert "violates no-poisoning" in html_of(result)
    assert "after 4 steps" in html_of(result)
    held = explore(REFERENCE, Bounds(2, cancels=1))
    assert 'class="good">holds' in html_of(held)
    matrix = matrix_sheet([Column(r.protocol.name, "", r.violations, r.states) for r in (result, held)]).html
    assert 'class="bad">fails 4' in matrix
    assert 'class="good">holds' in matrix
    assert "&lt;b&gt;" in table("a < b", ("<b>",), [("<b>",)]).html


def test_a_history_notes_one_moment_after_the_other_even_if_the_clock_stands_still() -> None:
    history = Recording(lambda: 7.0)
    history.accept("A")
    history.call("cancel")
    history.accept("B")
    (a, b), [cancel] = history.prompts, history.calls
    assert a.accept == Span(7.0, 7.0)
    assert a.accept.end < cancel.begin < b.accept.begin


def test_a_history_complains_of_a_lost_cancel_and_draws_it() -> None:
    history = lost()
    assert history.ends == {"A": "end_turn"}
    [complaint] = history.complaints()
    assert "A starts, but could only end canceled" in complaint
    svg = svg_of(history)
    assert "the cancel must affect A" in svg
    assert "✗ A starts" in svg


def test_a_cancel_crosses_only_who_is_accepted_before_it() -> None:
    history = ticking()
    history.accept("A")
    history.end("A", "error")
    history.call("cancel")
    history.accept("B")
    assert "must affect" not in svg_of(history)
    assert "no end" in svg_of(history)


def test_a_history_refuses_what_cannot_be() -> None:
    history = ticking()
    history.accept("A")
    with pytest.raises(ValueError, match="prompt A was already accepted"):
        history.accept("A")
    with pytest.raises(LookupError, match="prompt B was never accepted; accepted: A"):
        history.start("B")


@pytest.mark.parametrize(("said", "shown"), [
    ("end_turn", ">right<"), ("canceled", ">wrong<"), (..., "no prediction")])
def test_a_prediction_is_held_against_what_happened(said: Any, shown: str) -> None:
    assert shown in html_of(predict(A=said).against(lost()))
    trace = replay(REFERENCE, ["accept A", "enter A", "finish A end_turn"])
    assert shown in html_of(predict(A=said).against(trace))
    assert "no end" in html_of(predict(Z=said).against(trace))


def test_a_report_of_the_kit_is_a_table_and_what_broke_a_guarantee_a_picture() -> None:
    few = Profile("few", histories=0, schedules=1, inside=0, repeats=1, shrinks=0, seconds=0)
    report = judge(NaiveAdapter, only=["all-done", "closed"], profile=few, scenarios={"queue-stranded-by-error"})
    assert 'class="bad">broken' in html_of(report)
    assert "all-done is broken" in svg_of(report.verdict("all-done"))
    with pytest.raises(KeyError, match="svg"):
        svg_of(report.verdict("closed"))
