"""The examples in the specification are run, come to the ends that they state, and are drawn as they happened."""

import re
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from support.paths import ROOT

from cancelmark.model.actions import Actor, Reach
from cancelmark.model.effects import Acknowledge, End, Fold
from cancelmark.model.examples import EXAMPLES, FAMILY_EXAMPLES, Example
from cancelmark.model.lifecycle import Outcome, State
from cancelmark.model.session import label
from cancelmark.model.trace import call_text
from cancelmark.views.drawing.svg import LETTER
from cancelmark.views.traces.lifelines import trace_svg
from cancelmark.views.traces.sequence import trace_mermaid

PROTOCOL = (ROOT / "specs" / "protocol.md").read_text(encoding="utf-8")
DRAWN = (*EXAMPLES, *FAMILY_EXAMPLES)
CHANGES = {  # what a call of the family changes in these examples, and no state of a prompt shows
    "hold": ["the session is held"], "stop hold": ["the session is held"], "resume": ["the hold ends"],
    "next": ["C moves to the front"], "accept interrupt": ["C moves to the front"], "replace": ["B has a new text"]}
SVG = "{http://www.w3.org/2000/svg}"


def by_name(name: str) -> Example:
    return next(example for example in EXAMPLES if example.name == name)


def elements(example: Example, kind: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(trace_svg(example.trace, example.title, example.says)).iter(f"{SVG}{kind}"))


def words(example: Example) -> list[str]:
    return ["".join(text.itertext()) for text in elements(example, "text")]


def test_there_is_an_example_of_each_guarantee() -> None:
    assert {example.name for example in EXAMPLES} == {
        "cancel-on-entry", "cancel-with-siblings", "follow-up-after-cancel", "fold", "run-id-kept", "requeue",
        "handoff-after-error", "shutdown", "crash-and-recovery"}
    assert [example.rule for example in FAMILY_EXAMPLES] == ["R30", "R31", "R32", "R33", "R34", "R35", "R36"]


@pytest.mark.parametrize("example", DRAWN, ids=lambda e: e.name)
def test_an_example_ends_with_everything_done_and_is_shown_in_the_specification(example: Example) -> None:
    assert all(p.state is State.DONE and p.ends == 1 for p in example.trace.states[-1].prompts)
    assert PROTOCOL.count(f"](diagrams/{example.name}.svg)") == 1


def test_an_example_that_is_not_what_happens_is_refused() -> None:
    example = by_name("fold")
    with pytest.raises(ValueError, match="example fold ends with"):
        assert replace(example, ends={"A": Outcome.END_TURN, "B": Outcome.CANCELED}).trace
    with pytest.raises(ValueError, match="not enabled here"):
        assert replace(example, calls=("accept(A)", "step(A)")).trace


@pytest.mark.parametrize("example", DRAWN, ids=lambda e: e.name)
def test_a_sequence_diagram_shows_every_call_every_state_and_everything_that_clients_are_told(example: Example) -> None:
    shown = words(example)
    expected = [example.title, example.says]
    for step in example.trace.steps:
        expected.append(call_text(step.call, example.sessions))
        variant = "" if step.call.variant in (None, True, False) else f" {step.call.variant}"
        expected += CHANGES.get(f"{step.call.name}{variant}", [])
        for effect in step.effects:
            if isinstance(effect, Acknowledge):
                expected.append(f"202: {label(effect.seq)} is accepted")
            elif isinstance(effect, End) and effect.outcome is not Outcome.FOLDED:
                expected.append(f"{label(effect.seq)} done: {effect.outcome.value}")
            elif isinstance(effect, End):
                expected.append("done: folded")
            elif isinstance(effect, Fold):
                expected.append(f"+ {label(effect.seq)}")
    for text in expected:
        assert text in shown
    assert sum(text.startswith("done: ") for text in shown) == len(example.ends)


@pytest.mark.parametrize("example", DRAWN, ids=lambda e: e.name)
def test_arrows_are_calls_and_what_clients_are_told(example: Example) -> None:
    calls = sum(step.call.action.actor is Actor.CLIENT for step in example.trace.steps)
    folds = sum(isinstance(e, Fold) for step in example.trace.steps for e in step.effects)
    told = sum(isinstance(e, Acknowledge) or (isinstance(e, End) and e.outcome is not Outcome.FOLDED)
               for step in example.trace.steps for e in step.effects)
    dashed = [path for path in elements(example, "path") if path.get("stroke-dasharray")]
    assert (len(dashed), len(elements(example, "polygon"))) == (told, told + calls + folds)


@pytest.mark.parametrize("example", DRAWN, ids=lambda e: e.name)
def test_the_line_of_a_cancel_crosses_just_the_prompts_that_it_reaches(example: Example) -> None:
    reached = {p.seq for p in example.trace.states[-1].prompts if p.reach is Reach.CANCEL}
    marks = sum(session.mark > 0 for session in example.trace.states[-1].sessions)
    lines = [line for line in elements(example, "line") if line.get("class") == "cancel"]
    assert len(lines) == len(reached) + marks
    heads = {"".join(text.itertext()): float(text.get("x", 0)) for text in elements(example, "text")
             if re.fullmatch(r"[A-Z]( \(run id\))?", "".join(text.itertext()))}
    crossed = {name[0] for name, x in heads.items()
               for line in lines if float(line.get("x1", 0)) < x < float(line.get("x2", 0))}
    assert crossed == {label(seq) for seq in reached}


@pytest.mark.parametrize("example", DRAWN, ids=lambda e: e.name)
def test_words_stay_inside_the_picture_and_beside_each_other(example: Example) -> None:
    (root,) = elements(example, "svg")
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    places: dict[float, list[tuple[float, float, str]]] = {}
    for text in elements(example, "text"):
        said = "".join(text.itertext())
        wide = len(said) * LETTER * 0.9
        x, y = float(text.get("x", 0)), float(text.get("y", 0))
        left = {"start": x, "middle": x - wide / 2, "end": x - wide}[text.get("text-anchor", "start")]
        assert left >= 0
        assert left + wide <= width, said
        assert y <= height
        places.setdefault(y, []).append((left, left + wide, said))
    for line in places.values():
        line.sort()
        for (_, end, one), (begin, _, other) in pairwise(line):
            assert end <= begin, (one, other)


def test_the_same_trace_gives_the_same_picture_and_another_gives_another() -> None:
    pictures = [trace_svg(example.trace, "", "") for example in DRAWN]
    assert pictures == [trace_svg(replace(example).trace, "", "") for example in DRAWN]
    assert len(set(pictures)) == len(DRAWN)
    assert len({trace_mermaid(example.trace) for example in DRAWN}) == len(DRAWN)
