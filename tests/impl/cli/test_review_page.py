"""The review page, made once by the command itself: what it says, judged by the model."""

import re
from dataclasses import replace
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.budget import long
from support.reviewing import Review, steps_by_state

from cancelmark.impl.cli.main import main
from cancelmark.impl.cli.protocols import known_protocols
from cancelmark.impl.cli.review import command, findings
from cancelmark.impl.cli.review.family import DRAWN
from cancelmark.impl.cli.review.page import NAV
from cancelmark.impl.cli.review.page import page as page_of
from cancelmark.impl.cli.review.reading import specification
from cancelmark.impl.cli.review.sections import STORY, TOLD
from cancelmark.impl.cli.review.whatif import CHANGES, limit_actions
from cancelmark.model.check.judging import properties_of
from cancelmark.model.cluster.bounds import BOUNDS, DEEP_BOUNDS, LOG_STATES
from cancelmark.model.cluster.flaws import ALL_FLAWS
from cancelmark.model.cluster.log import LOG_PROPERTIES
from cancelmark.model.cluster.properties import CLUSTER_PROPERTIES
from cancelmark.model.delivery import LOGGED, LOSSY
from cancelmark.model.family import QUEUE_FEATURES
from cancelmark.model.family_properties import FAMILY_PROPERTIES, REWORDED
from cancelmark.model.lifecycle import State
from cancelmark.model.properties import PROPERTIES, Bounds, ServerStep, SessionStep
from cancelmark.model.protocol import REFERENCE, Behaviour
from cancelmark.model.revisions.flaws import DISPATCH, FLAWS, FLAWS_BY_NAME
from cancelmark.model.revisions.matrix import JUDGED
from cancelmark.model.server import Change, Server, changes
from cancelmark.model.session import AnySession, Prompt
from cancelmark.model.trace import call_text
from cancelmark.model.variants.catalogue import BUGS
from cancelmark.views.traces.reasons import reason, rest_reason

WORDS = ("quiescence", "seq", "run id", "fold", "journal", "row", "turn", "registered", "reservation",
         "202", "terminal event", "fail", "drop", "interrupt", "interrupt (the call)",
         "node", "owner", "lease", "epoch", "zombie", "offset")
PROTOCOLS: dict[str, Behaviour] = {**DISPATCH, "sessions": REFERENCE, LOGGED.name: LOGGED, LOSSY.name: LOSSY}
EARLIER = findings.REVISIONS[:-1]


# --- what it says

def test_the_command_says_where_the_page_is_and_what_holds(review: Review) -> None:
    assert review.code == 0
    assert f"open {review.url}" in review.said
    assert re.search(r"no-poisoning +holds +542,262 +✗ 18 +✗ 4 ", review.said)
    assert re.search(r"no-late-fold +holds +542,262 +✗ 10 +✗ 6 ", review.said)
    assert f"{len(FLAWS)} of {len(FLAWS)} named flaws found" in review.said


def test_the_page_is_small_and_complete(review: Review) -> None:
    assert len(review.html.encode()) < 3_000_000
    assert "{{" not in review.html.split('<script type="application/json"')[0]
    assert "All properties hold." in review.html
    for p in JUDGED:
        assert f"<code>{p.id}</code>" in review.html
    for flaw in FLAWS:
        assert f'id="flaw-{flaw.name}"' in review.html
        assert f'data-show="flaw/{flaw.name}"' in review.html


def test_the_page_names_no_address_and_no_file_outside(review: Review) -> None:
    markup = re.sub(r"<script.*?</script>", "", review.html, flags=re.DOTALL)
    assert set(re.findall(r"\b(?:href|src)=\"([^#\"][^\"]*)", markup)) == {"data:,"}
    assert set(re.findall(r"https?://[^\"'\s<)]+", review.html)) == {"http://www.w3.org/2000/svg"}


def test_every_rule_and_every_word_of_the_page_is_explained_on_it(review: Review) -> None:
    cited = set(re.findall(r'href="#rule-(R\d+[a-z]?)"', review.html))
    assert cited > {clause for p in JUDGED for clause in p.clauses}
    for rule in cited:
        assert f'id="rule-{rule}"' in review.html
    prose = re.sub(r"<(script|style|svg).*?</\1>|<[^>]+>", " ", review.html.partition('id="rules"')[0], flags=re.DOTALL)
    linked = re.findall(r">(R\d+[a-z]?)<", review.html.partition('id="rules"')[0])
    svg = re.findall(r"<svg.*?</svg>", review.html.partition('id="rules"')[0], flags=re.DOTALL)
    assert len(re.findall(r"\bR\d+[a-z]?\b", prose)) == len(linked) - sum(
        len(re.findall(r">(R\d+[a-z]?)<", picture)) for picture in svg), "a rule is cited without a link"
    terms = set(re.findall(r"<dt>([^<]+)</dt>", review.html))
    for word in WORDS:
        assert any(word in term for term in terms), word


def test_the_page_says_why_the_mark_works_and_what_others_found(review: Review) -> None:
    spec = specification()
    assert f"{spec['proof']['questions']} queries" in review.html
    assert f"{max(row['states'] for row in spec['spin']):,} states" in review.html
    for id in ("flag/no-lost-cancel", "counter/no-poisoning", "list/no-lost-cancel"):
        assert f'data-draw="{id}"' in review.html


def test_every_change_breaks_what_its_bug_declares(review: Review) -> None:
    for bug in BUGS:
        slug = bug.slug
        assert set(review.found.changed[slug].broken) == set(bug.breaks), bug.name
        assert set(review.found.changed[slug].unmet) == bug.unmet, bug.name


def test_every_link_of_the_navigation_is_named_like_the_heading_that_it_leads_to(review: Review) -> None:
    for id, name in NAV.items():
        section = review.html.partition(f'<section id="{id}"')[2]
        heading = re.search(r"<h2[^>]*>(.*?)</h2>", section)
        assert heading
        assert heading[1] == name


def test_the_page_qualifies_what_it_says_first(review: Review) -> None:
    hero = re.sub(r"<[^>]+>", "", review.html.partition('<section class="hero"')[2].partition("</section>")[0])
    for words in ("joins the running turn and finishes with it", "Within bounds", "All properties except delivery",
                  "was model-checked over 45 states",
                  "Once clients make no more calls and every turn ends", "merged into a Go agent server"):
        assert words in hero


def test_the_history_tells_what_was_wrong_with_a_flaw_of_the_merged_version(review: Review) -> None:
    section = review.html.partition('<section id="history"')[2].partition("</section>")[0]
    assert FLAWS_BY_NAME[TOLD].latest == "r4"
    assert f'data-show="flaw/{TOLD}"' in section
    for name in ("r0 ", "r1 ", "r2–r4 ", "r4 ", "The reference "):
        assert any(line.startswith(name) or f" {name}" in line for line in STORY)
    ladder = [{f.name for f in FLAWS if name in f.revisions} for name in findings.REVISIONS]
    counted = len(ladder[0]) + sum(len(now - was) for was, now in pairwise(ladder))
    assert (counted > len(FLAWS)) == (" was fixed and later reintroduced" in section)


def test_no_flaw_is_shorter_than_the_counterexample_of_its_property(review: Review) -> None:
    for name, (_, walk) in review.found.flaws.items():
        flaw = FLAWS_BY_NAME[name]
        assert len(walk) >= int(review.found.chapters[flaw.latest].cells[flaw.breaks].split()[1]), name


def test_every_property_is_seen_to_break_on_the_page(review: Review) -> None:
    broken = set[str]().union(*(changed.broken for changed in review.found.changed.values()))
    assert broken == {p.id for p in PROPERTIES}
    assert review.found.chapters["r4"].cells["delivery"].startswith("fails")


def test_the_family_is_on_the_page_with_every_set_of_its_calls(review: Review) -> None:
    section = review.html.partition('<section id="family"')[2].partition("</section>")[0]
    told = specification()["family"]
    assert len(told["sets"]) == told["holding"] == 2 ** len(QUEUE_FEATURES)
    assert f"all {len(told['sets'])} combinations were explored" in section
    for p in REWORDED.values():
        assert escape(p.sentence) + "</td>" in section
    states = sorted(int(states.replace(",", "")) for states in told["sets"].values())
    assert f"({states[0]:,} to {states[-1]:,} states)" in section
    assert "within 2 prompts, 1 cancel, 1 revoke, 1 stop, 1 hold, 1 replace, 1 next" in section
    matrix = section.partition("family-matrix")[2].partition("</table>")[0]
    for p in (*FAMILY_PROPERTIES, *PROPERTIES):
        features = re.findall(rf">{p.id}</code></th>(.*?)</tr>", matrix)
        needs = getattr(REWORDED.get(p.id, p), "needs", frozenset())
        assert bool(features) == bool(needs)
        if features:
            cells = re.findall(r'data-head="([\w-]+)">(.*?)</td>', features[-1])
            said = {name: re.sub("<[^>]+>", "", cell) for name, cell in cells}
            word = "restated" if p.id in REWORDED else "new"
            assert said == {f.value: word if f in needs else "" for f in QUEUE_FEATURES}


def test_several_servers_are_on_the_page_with_their_histories(review: Review) -> None:
    section = review.html.partition('<section id="cluster"')[2].partition("</section>")[0]
    assert f"All hold in {sum(b.states for b in (*BOUNDS, *DEEP_BOUNDS)) + LOG_STATES:,} states" in section
    assert section.count("<svg") == section.count("✗ breaks ") == len(DRAWN)
    assert f"{len((*CLUSTER_PROPERTIES, *LOG_PROPERTIES))} cluster properties" in section
    for flaw in ALL_FLAWS:
        assert (f"{flaw.name}: breaks {flaw.property}" in section) == (flaw.name in DRAWN)


def test_the_ladder_says_how_many_flaws_are_new(review: Review) -> None:
    rows = re.findall(r'<tr><th scope="row">(r\d|ref)</th><td class="number"[^>]*>(\d+)</td>', review.html)
    assert {name: int(count) for name, count in rows} == {
        name: sum(name in flaw.revisions for flaw in FLAWS) for name in ("r0", "r1", "r2", "r3", "r4", "ref")}


def test_the_same_findings_make_the_same_page(review: Review) -> None:
    assert page_of(review.found) == review.html


def test_every_failing_cell_tells_its_counterexample_and_every_flaw_its_story(review: Review) -> None:
    traces = {trace["id"]: trace for trace in review.told["traces"]}
    cells = {f"{c.name}/{id}": cell for c in review.found.chapters.values() for id, cell in c.cells.items()}
    failing = {id: int(cell.split()[1]) for id, cell in cells.items() if cell.startswith("fails")}
    assert len(failing) > 50
    for id, length in failing.items():
        assert len(traces[id]["path"]) == length
        assert f'data-show="{id}"' in review.html
        assert {FLAWS_BY_NAME[name].breaks for name in traces[id]["stories"]} <= {id.split("/")[1]}
    assert sum(id.startswith("flaw/") for id in traces) == len(FLAWS)


# --- the graphs are the model

def broken_by_hand(behaviour: Behaviour, before: Server, change: Change) -> list[str]:
    """The properties that a step breaks, asked one by one."""
    steps = [SessionStep.of(before.sessions[i], move) for i, move in change.moves]
    return [p.id for p in properties_of(behaviour)
            if (p.on_session and not all(p.on_session(s) for s in steps))
            or (p.on_server and not p.on_server(ServerStep.of(before, change)))]


def cell_of(behaviour: Behaviour, session: AnySession, p: Prompt) -> list[Any]:
    stopping = p.state is State.ACTIVE and session.covered(p)
    text = p.state.value + (f": {p.outcome.value}" if p.outcome else ", stopping" if stopping else "")
    restless = [[q.id, rest_reason(q.id, p)] for q in properties_of(behaviour) if q.at_rest and not q.at_rest(p)]
    return ["stopping" if stopping else p.state.value, text, int(p.run_id), p.reach.value, p.ends, restless]


def assert_same_state(behaviour: Behaviour, graph: dict[str, Any], number: int, server: Server) -> None:
    told = {(c["session"], c["name"]): c["values"][c["data"][number]] for c in graph["columns"]}
    for i, session in enumerate(server.sessions):
        for p in session.prompts:
            assert graph["cells"][int(told.pop((i, p.label)))] == cell_of(behaviour, session, p)
        for label in "ABCDEFGH":
            assert not told.get((i, label)), f"state {number} has a prompt {label} that the model has not"
        assert bool(told[i, "closing"]) == server.closing
        if hasattr(session, "queue_entries"):
            assert told[i, "queue"] == (", ".join(chr(64 + e.seq) for e in session.queue_entries) or "–")
            assert told[i, "goroutines"].count(" at ") == sum(len(g.frames) for g in session.goroutines)
        elif (i, "queue") in told:
            assert told[i, "queue"] == (", ".join(p.label for p in session.queue) or "–")
            assert told[i, "mark"] == (f"≤ {chr(64 + session.mark)}" if session.mark else "–")
            assert (told[i, "server"] == "down") == session.down


def assert_is_the_model(behaviour: Behaviour, graph: dict[str, Any]) -> None:
    """Every state and every step of an exported graph, made again by the model: identical, and nothing left out that is
    not said to be."""
    start = Server(sessions=(behaviour.start,) * graph["sessions"])
    servers = {0: start}
    for number, steps in enumerate(steps_by_state(graph)):
        server = servers[number]
        assert_same_state(behaviour, graph, number, server)
        omitted = graph["omitted"]["values"][graph["omitted"]["data"][number]]
        left = list(steps)
        possible = list(changes(behaviour, server))
        assert graph["quiet"][number] == (not any(c.call.action.system for c in possible))
        for change in possible:
            call = call_text(change.call, graph["sessions"])
            live = change.after._replace(sessions=tuple(
                dict(change.moves)[i].live if i in dict(change.moves) else s
                for i, s in enumerate(change.after.sessions)))
            if not left or left[0][0][0] != call or servers.get(left[0][1], live) != live:
                assert call in omitted
                continue
            (_, name, actor, messages, broken, ended), target = left.pop(0)
            servers.setdefault(target, live)
            assert (name, actor) == (change.call.name, change.call.action.actor.value)
            assert messages[0][3] == call
            assert len(messages) == 1 + len(change.effects)
            assert [id for id, _ in broken] == broken_by_hand(behaviour, server, change)
            assert all(why == reason(id, server, change) != "" for id, why in broken)
            assert [(i, label, graph["cells"][cell]) for i, label, cell in ended] == [
                (i, p.label, cell_of(behaviour, change.after.sessions[i], p))
                for i, move in change.moves for p in move.ended]
        assert not left, f"state {number}: the model has no step {left[0][0][0]}"
    assert len(servers) == len(graph["degrees"])


@pytest.mark.parametrize("name", [long(name) if name in EARLIER else name for name in PROTOCOLS])
def test_every_step_of_the_exported_graph_is_a_step_of_the_model(review: Review, name: str) -> None:
    assert_is_the_model(PROTOCOLS[name], review.graph(name))


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_every_step_of_a_changed_graph_is_a_step_of_the_change(review: Review, name: str) -> None:
    change = CHANGES[name]
    assert_is_the_model(limit_actions(change.protocol, change.bounds), review.graph(name))


@pytest.mark.parametrize("name", PROTOCOLS)
def test_everything_that_can_happen_first_can_be_played(review: Review, name: str) -> None:
    graph = review.graph(name)
    assert graph["omitted"]["values"][graph["omitted"]["data"][0]] == []
    assert len(graph["degrees"]) > 20


@pytest.mark.parametrize("damage", ["target", "call", "broken", "cell", "omitted", "quiet"])
def test_a_damaged_graph_is_noticed(review: Review, damage: str) -> None:
    graph = review.graph("buffers")
    match damage:
        case "target":
            graph["targets"][7] += 1
        case "call":
            graph["steps"]["values"][1][0] = "finish(B)"
        case "broken":
            graph["steps"]["values"][2][4] = [["delivery", "why"]]
        case "cell":
            graph["cells"][0][1] = "queued"
        case "omitted":
            graph["degrees"][3] -= 1
            graph["degrees"][4] += 1
        case "quiet":
            graph["quiet"][5] = 1 - graph["quiet"][5]
    with pytest.raises((AssertionError, IndexError, KeyError)):
        assert_is_the_model(PROTOCOLS["buffers"], graph)


def test_every_told_trace_ends_in_what_it_tells(review: Review) -> None:
    graphs = {name: review.graph(name) for name in (*PROTOCOLS, *CHANGES)}
    walks = {name: steps_by_state(graph) for name, graph in graphs.items()}
    for trace in review.told["traces"]:
        graph, state, ended = graphs[trace["protocol"]], 0, []
        broken: list[list[str]] = []
        for number in trace["path"]:
            step, state = walks[trace["protocol"]][state][number]
            ended += [cell for _, _, cell in step[5]]
            live = [int(c["values"][c["data"][state]]) for c in graph["columns"]
                    if len(c["name"]) == 1 and c["values"][c["data"][state]]]
            rest = [id for cell in (*ended, *live) for id, _ in graph["cells"][cell][5] if graph["quiet"][state]]
            broken.append([id for id, _ in step[4]] + rest)
        kind, _, name = trace["id"].partition("/")
        if kind == "example":
            assert broken == [[]] * len(broken)
            assert graph["quiet"][state]
        elif kind == "flaw":
            assert FLAWS_BY_NAME[name].breaks in set().union(*broken)
        else:
            assert name in broken[-1]
            assert not any(name in earlier for earlier in broken[:-1]), "a shorter one exists"


# --- what does not hold

def test_a_seeded_bug_makes_the_review_fail_and_the_page_say_so(
    review: Review, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    bug = next(b for b in BUGS if "no-poisoning" in b.breaks)
    bounds = Bounds(2, cancels=1, clears=1)
    with monkeypatch.context() as patch:
        patch.setitem(known_protocols(), "ref", bug.protocol)
        checked = {**review.found.checked, bounds: findings.check(bounds)}
    found = replace(review.found, checked=checked)
    monkeypatch.setattr(command, "compute_findings", lambda workers: found)
    path = tmp_path / "broken.html"
    assert main(["review", "-o", str(path)]) == 1
    assert re.search(r"no-poisoning +violated", capsys.readouterr().out)
    html = path.read_text()
    assert "The check failed." in html
    assert "no-poisoning is violated within 2 prompts" in html


def test_a_broken_reference_has_its_counterexample_in_the_matrix(
    review: Review, monkeypatch: pytest.MonkeyPatch,
) -> None:
    bug = next(b for b in BUGS if "no-poisoning" in b.breaks)
    monkeypatch.setitem(known_protocols(), "ref", bug.protocol)
    monkeypatch.setattr(findings, "EXAMPLES", ())
    chapters = {**review.found.chapters, "ref": findings.chapter("ref")}
    found = replace(review.found, chapters=chapters)
    assert any("no-poisoning" in what for what in found.wrong)
    assert 'data-show="ref/no-poisoning"' in page_of(found)
