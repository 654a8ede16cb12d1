"""Views show what the model says, all of it, and the same every time."""

import json
import re
import sys
from dataclasses import replace
from itertools import pairwise
from types import ModuleType
from xml.etree import ElementTree

import pydot
import pytest

from cancelmark.model.actions import ACTIONS
from cancelmark.model.check.explore import explore
from cancelmark.model.lifecycle import ROWS, Guard, Outcome, State
from cancelmark.model.properties import Bounds
from cancelmark.model.protocol import FAMILY, REFERENCE, Protocol
from cancelmark.model.trace import Trace, replay
from cancelmark.views.drawing.render import render_png, render_svg
from cancelmark.views.drawing.theme import PROMPT_LOOKS, STOPPING
from cancelmark.views.states.lifecycle import label_of, lifecycle_graph, lifecycle_mermaid
from cancelmark.views.states.session import DOWN, quotient, session_graph, session_mermaid
from cancelmark.views.traces.chain import trace_dot
from cancelmark.views.traces.itf import itf_calls, trace_itf
from cancelmark.views.traces.lifelines import trace_svg
from cancelmark.views.traces.sequence import trace_mermaid
from cancelmark.views.traces.text import trace_text

RACE = ("accept A", "enter A", "accept(B, run id)", "enter B", "accept C", "cancel", "enter C", "finish A canceled",
        "settle C", "accept D", "enter D", "finish(D, end_turn)")
TWO_SESSIONS = ("accept A", "accept B@2", "enter A@1", "enter B@2", "cancel@2", "crash", "recover", "close")


@pytest.fixture(scope="module")
def met() -> dict[str, Trace]:
    return explore(REFERENCE, Bounds(2, cancels=1, crashes=1, requeues=1)).met


@pytest.fixture(scope="module")
def race() -> Trace:
    return replay(REFERENCE, RACE)


@pytest.fixture(scope="module")
def two() -> Trace:
    return replay(REFERENCE, TWO_SESSIONS, sessions=2)


@pytest.fixture(scope="module")
def lasso() -> Trace:
    """A turn that is summarized for ever: A goes back to the queue and starts again."""
    return replace(replay(REFERENCE, ["accept A", "enter A", "requeue A"]), loop=2)


def shown(svg: str) -> list[str]:
    """Every line of text in a picture, which must be well-formed."""
    root = ElementTree.fromstring(svg)
    return ["".join(text.itertext()).strip() for text in root.iter("{http://www.w3.org/2000/svg}text")]


def labels(graph: pydot.Graph) -> list[str]:
    """Every line of label in a graph, as it should be read."""
    parts = [str(part.get("label") or "") for part in [graph, *graph.get_nodes(), *graph.get_edges()]]
    lines = [line.strip("‹› ") for part in parts for line in re.split(r"\n|\\l", part)]
    return [line for line in lines if line] + [line for sub in graph.get_subgraphs() for line in labels(sub)]


# --- The lifecycle

def test_every_row_is_on_the_lifecycle_diagram() -> None:
    dot, mermaid = lifecycle_graph(ROWS).to_string(), lifecycle_mermaid(ROWS)
    for row in ROWS:
        assert f"{label_of(row)} ‹{row.rule}›" in dot
        assert label_of(row) in mermaid
    assert "enter [covered]" in mermaid
    assert "settle / canceled" in mermaid


def test_a_changed_row_changes_the_lifecycle_diagram() -> None:
    drop = next(row for row in ROWS if row.trigger.value == "drop")
    changed = replace(drop, unless=(Guard.FIRST,), outcome=Outcome.ERROR, rule="R99")
    rows = tuple(changed if row is drop else row for row in ROWS)
    dot = lifecycle_graph(rows).to_string()
    assert "drop [not first] / error ‹R99›" in dot
    assert "drop / canceled" not in dot
    assert "queued --> done : ⚡ drop [not first] / error" in lifecycle_mermaid(rows)


def test_lines_tell_the_paths_apart_without_colour() -> None:
    style = {(edge.get("class"), edge.get("style")) for edge in lifecycle_graph().get_edges()}
    assert style == {("happy", "bold"), ("ordinary", "solid"), ("cancel", "dashed"), ("fault", "dotted")}
    happy = [(e.get_source(), e.get_destination()) for e in lifecycle_graph().get_edges() if e.get("class") == "happy"]
    assert happy == [("start", "accepted"), ("accepted", "active"), ("active", "done")]


# --- The session

def test_the_session_diagram_is_what_the_model_does() -> None:
    found = quotient(REFERENCE)
    names = {node.name for node in found.stays}
    assert names == {"idle", "running", "running_waiting", "stopping", "stopping_waiting", "down"}
    edges = {(edge.source.name, edge.dest.name): names for edge, names in found.edges.items()}
    assert edges["idle", "running"] == ["enter"]
    assert edges["stopping_waiting", "running"] == ["finish"]
    assert ("stopping", "running") not in edges  # who is asked to stop never goes on
    assert found.arrivals[DOWN] == ["crash"]
    groups = [found.everywhere, *found.stays.values(), *found.edges.values(), *found.arrivals.values()]
    assert {name for names in groups for name in names} == {action.name for action in ACTIONS}


def test_two_prompts_would_be_too_few_for_the_session_diagram() -> None:
    assert len(quotient(prompts=2).edges) < len(quotient().edges)


def test_a_protocol_without_crashes_has_no_node_for_them() -> None:
    calm = Protocol("calm", actions=tuple(a for a in ACTIONS if a.name not in ("crash", "recover")))
    assert "down" in session_mermaid(REFERENCE)
    assert "down" not in session_mermaid(calm)


# --- Pictures

def test_svg_has_every_label_of_its_graph(race: Trace, two: Trace) -> None:
    for dot in (lifecycle_graph(), session_graph(), trace_dot(race), trace_dot(two)):
        text = [line.replace("‹", "").replace("›", "") for line in shown(render_svg(dot))]
        for label in labels(dot):
            assert label.replace("‹", "").replace("›", "") in text
    assert {state.value for state in State} <= set(shown(render_svg(lifecycle_graph())))


def test_svg_stands_alone_and_suits_light_dark_and_paper(race: Trace) -> None:
    for svg in (render_svg(lifecycle_graph()), trace_svg(race)):
        root = ElementTree.fromstring(svg)
        assert root.get("role") == "img"
        assert {"width", "height", "viewBox"} <= set(root.attrib)
        assert root[0].tag.endswith("title")
        assert root[0].text
        assert "prefers-color-scheme: dark" in svg
        assert "@media print" in svg
        assert "<!--" not in svg
        assert " id=" not in svg
        assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")


def test_a_label_that_would_vanish_is_refused() -> None:
    dot = pydot.Dot("g", graph_type="digraph")
    inner = pydot.Subgraph("s")
    inner.add_node(pydot.Node("a", label="<<b>bold</b>>"))
    dot.add_subgraph(inner)
    with pytest.raises(ValueError, match="Graphviz would drop it"):
        render_svg(dot)


def test_the_same_input_gives_the_same_bytes(race: Trace) -> None:
    def everything() -> list[str]:
        return [render_svg(lifecycle_graph()), render_svg(session_graph()), lifecycle_mermaid(), session_mermaid(),
                trace_text(race), trace_mermaid(race), trace_svg(race), render_svg(trace_dot(race)),
                json.dumps(trace_itf(race))]

    assert everything() == everything()


# --- PNG

@pytest.mark.usefixtures("font")
def test_png_has_text_on_white() -> None:
    svg = render_svg(lifecycle_graph())
    png = render_png(svg)
    assert png.startswith(b"\x89PNG\r\n")
    assert len(png) > len(render_png(re.sub(r"<text.*?</text>", "", svg)))


def test_png_without_its_extra_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(RuntimeError, match=re.escape("pip install 'cancelmark[png]'")):
        render_png("<svg/>")


def test_png_without_a_font_fails_and_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    blind = ModuleType("resvg_py")
    blind.svg_to_bytes = lambda **_: b"no text"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "resvg_py", blind)
    with pytest.raises(RuntimeError, match="needs a font"):
        render_png("<svg/>")


# --- Traces

def test_text_of_a_short_trace(met: dict[str, Trace]) -> None:
    assert trace_text(met["row settle→done"]) == """\
step  call       mark  A                   what happened
   1  accept(A)  –     accepted*           A acknowledged
   2  cancel     ≤ A*  accepted
   3  enter(A)   ≤ A   canceled_on_entry*
   4  settle(A)  ≤ A   done: canceled*     A recorded as canceled, A ends: canceled
"""


def test_text_says_what_the_calls_of_the_family_change() -> None:
    trace = replay(FAMILY, ["accept A", "hold", "accept B", "enter A", "enter B", "next B", "replace A", "accept C",
                            "revoke C", "resume"])
    told = [line.partition("queued")[2] or line for line in trace_text(trace).splitlines()]
    for number, words in {2: "the session is held", 6: "B moves to the front", 7: "A has a new text",
                          9: "C will be canceled on entry", 10: "B starts, the hold ends"}.items():
        assert told[number].endswith(words)


def test_text_stays_within_its_width(race: Trace, two: Trace) -> None:
    for trace in (race, two):
        assert max(map(len, trace_text(trace).splitlines())) <= 110
    for told in ("A asked to stop, B ends: canceled", "D ends: end_turn"):
        assert told in trace_text(race)


def test_text_of_several_sessions_says_where(two: Trace) -> None:
    header, *lines = trace_text(two).splitlines()
    assert header.split() == ["step", "call", "mark@1", "A@1", "mark@2", "B@2", "what", "happened"]
    assert "cancel@2" in lines[4]
    assert "active, stopping*" in lines[4]
    assert lines[4].count("*") == 2  # the mark and B; A in the other session is as it was
    assert "server down" in lines[5]


def test_loops_are_shown_in_every_view(lasso: Trace) -> None:
    assert "↻ 3  requeue(A)" in trace_text(lasso)
    assert trace_text(lasso).endswith("↻ step 3 repeats forever\n")
    assert "↻ step 3 repeats forever" in shown(trace_svg(lasso))
    assert trace_mermaid(lasso).index("loop forever") < trace_mermaid(lasso).index("requeue(A)")
    assert trace_mermaid(lasso).endswith("    end\n")
    assert [(e.get_source(), e.get_destination()) for e in trace_dot(lasso).get_edges()] == [
        ("0", "1"), ("1", "2"), ("2", "2")]
    assert trace_itf(lasso)["loop"] == 3  # the state that the repeated step leads to


def test_picture_has_a_lane_for_each_prompt_and_a_line_for_each_cancel(race: Trace, two: Trace) -> None:
    text = shown(trace_svg(race))
    assert {"A", "B (run id)", "C", "D", "canceled_on_entry", "active, stopping", "done: end_turn", "≤ C"} <= set(text)
    assert trace_svg(race).count('<line class="cancel"') == 4  # from the mark across A, B and C; D came later
    assert {"session 1", "session 2", "cancel@2"} <= set(shown(trace_svg(two)))
    assert '<g class="down">' in trace_svg(two)


def test_chain_names_every_call_and_state(race: Trace) -> None:
    edges = trace_dot(race).get_edges()
    assert len(edges) == len(race)
    assert all(step.call.name in str(edge.get("label")) for step, edge in zip(race.steps, edges))
    assert "C canceled_on_entry" in labels(trace_dot(race))


STATEMENT = re.compile(
    r"sequenceDiagram|actor \w+|participant \w+ as [\w ()]+|(de)?activate \w+|loop forever|end"
    r"|\w+(->>|-->>)\w+: [^;#]+|Note over \w+(,\w+)?: [^;#]+")


def test_sequence_diagrams_are_well_formed(met: dict[str, Trace], race: Trace, two: Trace, lasso: Trace) -> None:
    for trace in (*met.values(), race, two, lasso):
        lines = [line.strip() for line in trace_mermaid(trace).splitlines()]
        assert [line for line in lines if not STATEMENT.fullmatch(line)] == []
        bars: set[str] = set()
        for line in lines:  # Mermaid refuses to end a bar that has not begun
            if line.startswith("activate"):
                bars.add(line.split()[1])
            elif line.startswith("deactivate"):
                bars.remove(line.split()[1])


def test_sequence_diagram_says_what_the_client_is_told(race: Trace, met: dict[str, Trace]) -> None:
    mermaid = trace_mermaid(race)
    assert "S1-->>Client: 202 for A" in mermaid
    assert "P2-->>Client: RunComplete canceled (run id B)" in mermaid
    assert "P3-->>Client: RunComplete canceled (no run id)" in mermaid
    assert "Note over S1: mark ≤ C" in mermaid
    assert "RunComplete" not in trace_mermaid(met["row fold→done"])


def test_state_diagrams_are_well_formed() -> None:
    transition = re.compile(r"(\[\*\]|\w+) --> (\[\*\]|\w+)( : [^:;#]+)?")
    for text in (lifecycle_mermaid(), session_mermaid()):
        head, direction, *lines = [line.strip() for line in text.splitlines()]
        assert (head, direction) == ("stateDiagram-v2", "direction LR")
        note = lines.index(next(line for line in lines if line.startswith("note left of")))
        assert lines[-1] == "end note"
        assert all(transition.fullmatch(line) or re.match(r"\w+ : [^:]", line) for line in lines[:note])


# --- ITF and replay

def test_itf_round_trip(met: dict[str, Trace], race: Trace) -> None:
    for trace in (*met.values(), race):
        document = json.loads(json.dumps(trace_itf(trace)))
        assert replay(REFERENCE, itf_calls(document)) == trace


def test_itf_round_trip_with_several_sessions(two: Trace) -> None:
    assert replay(REFERENCE, itf_calls(trace_itf(two)), sessions=2) == two


def test_itf_is_as_the_format_wants_it(race: Trace) -> None:
    document = trace_itf(race)
    assert set(document) == {"#meta", "vars", "states"}
    assert all(set(state) == {"#meta", *document["vars"]} for state in document["states"])
    assert document["states"][-1]["seq"] == {"#bigint": "4"}
    assert not re.search(r": \d", json.dumps([{**state, "#meta": None} for state in document["states"]]))


@pytest.mark.parametrize(("document", "problem"), [
    ([], "a JSON object, not list"),
    ({"states": []}, '"vars" must'),
    ({"vars": ["mark"], "states": []}, '"vars" must'),
    ({"vars": ["call"], "states": []}, '"states" must'),
    ({"vars": ["call"], "states": {"call": "init"}}, '"states" must'),
    ({"vars": ["call"], "states": [{"call": "init"}, {"call": 3}]}, "state 1 must"),
    ({"vars": ["call"], "states": [{"call": "accept(A)"}]}, 'state 0 must have "init"'),
])
def test_what_is_not_itf_is_refused(document: object, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        itf_calls(document)


def test_replay_reads_loose_and_printed_forms() -> None:
    loose = ["accept A run_id", "enter A", "accept  B", "clear queue", "finish A end turn"]
    printed = ["accept(A, run id)", "enter(A)", "accept(B)", "clear_queue", "finish(A, end_turn)"]
    assert replay(REFERENCE, loose) == replay(REFERENCE, printed)
    assert [str(step.call) for step in replay(REFERENCE, loose).steps] == printed


def test_replay_passes_through_every_state(race: Trace) -> None:
    assert len(race) == len(RACE)
    assert all(before != after for before, after in pairwise(race.states))


@pytest.mark.parametrize(("calls", "sessions", "problem"), [
    (["jump A"], 1, "step 1, 'jump A': no such action; protocol ref has accept, enter, "),
    (["accept A", "enter B"], 1,
     "step 2, 'enter B': not enabled here; enabled: accept(B), accept(B, run id), enter(A)"),
    (["accept A", "enter A", "finish A canceled"], 1, "step 3, 'finish A canceled': not enabled here; enabled: "),
    (["cancel@2"], 1, "step 1, 'cancel@2': no such session; there are 1, counted from 1"),
    (["accept A@2", "enter A"], 2, "step 2, 'enter A': not enabled here; enabled: accept(B)@1, "),
    (["close@2"], 2, "step 1, 'close@2': not enabled here; enabled: "),
    ([""], 1, "step 1, '': no such action"),
])
def test_replay_says_what_is_wrong_in_one_line(calls: list[str], sessions: int, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)) as error:
        replay(REFERENCE, calls, sessions)
    assert "\n" not in str(error.value)


def test_every_state_has_a_look() -> None:
    assert list(PROMPT_LOOKS) == [kind for state in State for kind in (
        [state.value, STOPPING] if state is State.ACTIVE else [state.value])]
