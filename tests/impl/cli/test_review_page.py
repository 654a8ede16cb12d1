"""The review page: made once by the command itself, judged by the model, then opened in a real browser."""

import io
import re
import shlex
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import pytest
from playwright.sync_api import Browser, Locator
from support.browsing import Sight, chromium, inaccessible
from support.reviewing import Review

from cancelmark.impl.cli.main import main
from cancelmark.impl.cli.review import command, findings
from cancelmark.impl.cli.review.cluster import DRAWN
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
from cancelmark.model.lifecycle import Feature, State
from cancelmark.model.properties import FAMILY_PROPERTIES, PROPERTIES, Bounds, ServerStep, SessionStep
from cancelmark.model.protocol import REFERENCE, Behaviour
from cancelmark.model.revisions.flaws import DISPATCH, FLAWS, FLAWS_BY_NAME
from cancelmark.model.revisions.matrix import JUDGED
from cancelmark.model.seeded import BUGS
from cancelmark.model.server import Change, Server, changes
from cancelmark.model.session import AnySession, Prompt
from cancelmark.model.trace import call_text
from cancelmark.views.traces.reasons import reason, rest_reason

WORDS = ("quiescence", "seq", "run id", "fold", "journal", "row", "turn", "registered", "reservation",
         "202", "terminal event", "fail", "drop", "interrupt", "interrupt (the call)",
         "node", "owner", "lease", "epoch", "zombie", "place")
PROTOCOLS: dict[str, Behaviour] = {**DISPATCH, "sessions": REFERENCE, LOGGED.name: LOGGED, LOSSY.name: LOSSY}


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
    assert "It holds." in review.html
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
    assert f"{spec['proof']['questions']} questions" in review.html
    assert f"{max(row['states'] for row in spec['spin']):,} states" in review.html
    for id in ("flag/no-lost-cancel", "counter/no-poisoning", "list/no-lost-cancel"):
        assert f'data-draw="{id}"' in review.html


def test_every_change_breaks_what_its_bug_declares(review: Review) -> None:
    for bug in BUGS:
        slug = next((id for id, change in CHANGES.items() if change.title == bug.name), None)
        if slug:
            assert set(review.found.changed[slug].broken) == bug.breaks, bug.name
            assert set(review.found.changed[slug].unmet) == bug.unmet, bug.name


def test_every_link_of_the_navigation_is_named_like_the_heading_that_it_leads_to(review: Review) -> None:
    for id, name in NAV.items():
        section = review.html.partition(f'<section id="{id}"')[2]
        heading = re.search(r"<h2[^>]*>(.*?)</h2>", section)
        assert heading
        assert heading[1] == name


def test_the_page_qualifies_what_it_says_first(review: Review) -> None:
    hero = re.sub(r"<[^>]+>", "", review.html.partition('<section class="hero"')[2].partition("</section>")[0])
    for words in ("folds into a running turn ends with that turn", "within bounds", "delivery apart",
                  "once callers stop and turns end", "merged into an agent server written in Go"):
        assert words in hero


def test_the_history_tells_what_was_wrong_with_a_flaw_of_the_merged_version(review: Review) -> None:
    section = review.html.partition('<section id="history"')[2].partition("</section>")[0]
    assert FLAWS_BY_NAME[TOLD].latest == "r4"
    assert f'data-show="flaw/{TOLD}"' in section
    for name in ("r0 ", "r1 ", "r2–r4 ", "r4 ", "The reference "):
        assert any(line.startswith(name) or f" {name}" in line for line in STORY)
    ladder = [{f.name for f in FLAWS if name in f.revisions} for name in findings.REVISIONS]
    counted = len(ladder[0]) + sum(len(now - was) for was, now in pairwise(ladder))
    assert (counted > len(FLAWS)) == ("came back, so it counts as new twice" in section)


def test_the_family_is_on_the_page_with_every_set_of_its_calls(review: Review) -> None:
    section = review.html.partition('<section id="family"')[2].partition("</section>")[0]
    told = specification()["family"]
    assert len(told["sets"]) == told["holding"] == 2 ** len(Feature)
    assert f"all {len(told['sets'])} sets of them were searched" in section
    for p in PROPERTIES:
        assert (escape(p.in_family or p.sentence) + "</td>" in section) == bool(p.reworded_for)
    for states in told["sets"].values():
        assert f">{states}</td>" in section
    matrix = section.partition("family-matrix")[2].partition("</table>")[0]
    for p in (*FAMILY_PROPERTIES, *PROPERTIES):
        features = re.findall(rf">{p.id}</code></th>(.*?)</tr>", matrix)
        assert bool(features) == bool(p.feature or p.reworded_for)
        if features:
            cells = re.findall(r'data-head="([\w-]+)">(.*?)</td>', features[-1])
            said = {name: re.sub("<[^>]+>", "", cell) for name, cell in cells}
            assert said == {f.value: "new" if p.feature is f else "reworded" if f in p.reworded_for else ""
                            for f in Feature}


def test_several_servers_are_on_the_page_with_their_histories(review: Review) -> None:
    section = review.html.partition('<section id="cluster"')[2].partition("</section>")[0]
    assert f"{sum(b.states for b in (*BOUNDS, *DEEP_BOUNDS)) + LOG_STATES:,} states nothing breaks" in section
    assert section.count("<svg") == section.count("✗ breaks ") == len(DRAWN)
    assert f"{len((*CLUSTER_PROPERTIES, *LOG_PROPERTIES))} properties" in section
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

def targets_of(graph: dict[str, Any]) -> list[int]:
    met, found = 1, []
    for back in graph["targets"]:
        found.append(met - back)
        met += back == 0
    return found


def steps_by_state(graph: dict[str, Any]) -> list[list[tuple[list[Any], int]]]:
    """For each state its steps, each with the state it leads to."""
    whole = iter(zip((graph["steps"]["values"][i] for i in graph["steps"]["data"]), targets_of(graph)))
    return [[next(whole) for _ in range(degree)] for degree in graph["degrees"]]


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


@pytest.mark.parametrize("name", PROTOCOLS)
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
    monkeypatch.setitem(findings.PROTOCOLS, "ref", bug.protocol)
    bounds = Bounds(2, cancels=1, clears=1)
    checked = {**review.found.checked, bounds: findings.check(bounds)}
    found = replace(review.found, checked=checked)
    monkeypatch.setattr(command, "find_out", lambda workers: found)
    path = tmp_path / "broken.html"
    assert main(["review", "-o", str(path)]) == 1
    assert re.search(r"no-poisoning +violated", capsys.readouterr().out)
    html = path.read_text()
    assert "It does not hold." in html
    assert "no-poisoning is violated within 2 prompts" in html


def test_a_broken_reference_has_its_counterexample_in_the_matrix(
    review: Review, monkeypatch: pytest.MonkeyPatch,
) -> None:
    bug = next(b for b in BUGS if "no-poisoning" in b.breaks)
    monkeypatch.setitem(findings.PROTOCOLS, "ref", bug.protocol)
    monkeypatch.setattr(findings, "EXAMPLES", ())
    chapters = {**review.found.chapters, "ref": findings.chapter("ref")}
    found = replace(review.found, chapters=chapters)
    assert any("no-poisoning" in what for what in found.wrong)
    assert 'data-show="ref/no-poisoning"' in page_of(found)


# --- in a browser

@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


class Opened:
    """The page in a browser."""

    def __init__(self, browser: Browser, url: str, **context: Any) -> None:
        self.context = browser.new_context(**{"reduced_motion": "reduce", **context})
        self.page = self.context.new_page()
        self.sight = Sight(self.page, url.split("#")[0])
        self.page.goto(url)
        self.page.wait_for_selector("html[data-ready]")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.context.close()
        assert error[0] or self.sight.errors + self.sight.elsewhere == []

    def part(self, name: str) -> Locator:
        return self.page.locator(f'#explorer [data-part="{name}"]')

    def take(self, *calls: str) -> None:
        for call in calls:
            self.page.locator(f'#explorer [data-call="{call}"]').click()

    def unfold(self, within: str) -> None:
        self.page.evaluate("(s) => document.querySelectorAll(`${s} details`).forEach((d) => { d.open = true })", within)

    def prompts(self) -> dict[str, str]:
        """The prompts in the explorer and their states."""
        rows = self.page.locator('#explorer [data-part="session"] tbody tr').all()
        return {row.locator("th").inner_text().split()[0]: row.locator("td").first.inner_text() for row in rows}

    def broken(self) -> list[str]:
        items = self.page.locator("#explorer .properties .broken").all()
        return [item.get_attribute("data-property") for item in items]

    def steps(self) -> list[str]:
        return [re.sub(r"^\d+ ", "", text).split(":")[0] for text in
                self.page.locator('#explorer [data-part="trace"] .step > .call').all_text_contents()]


@pytest.fixture
def opened(browser: Browser, review: Review) -> Iterator[Opened]:
    with Opened(browser, review.url, viewport={"width": 1280, "height": 900}) as made:
        yield made


RACE = ("accept(A)", "cancel", "accept(B)", "enter(B)", "enter(A)")


def test_opens_from_disk_without_errors_or_requests(opened: Opened, review: Review) -> None:
    assert opened.page.url == review.url
    assert opened.sight.errors + opened.sight.elsewhere == []
    assert opened.page.title() == "Cancelmark: the review"
    assert opened.page.locator(".sequence.still .step").count() > 50, "the guarantees are drawn"
    assert opened.part("size").inner_text().startswith(f"{review.found.chapters['ref'].graph.states:,} states")
    opened.unfold("#guarantees")
    assert opened.page.locator("#guarantees .lanes").last.evaluate("(e) => e.scrollWidth") > 300, "also what was folded"


def test_what_a_client_is_told_is_an_arrow_that_is_seen(opened: Opened) -> None:
    arrows = opened.page.locator("#why line.arrow.told")
    assert arrows.count() > 5
    assert set(arrows.evaluate_all("(all) => all.map((one) => getComputedStyle(one).display)")) == {"inline"}


def test_ten_minutes_are_enough_to_read_it(opened: Opened) -> None:
    """Words that are seen, those in pictures left out: at once, and with everything unfolded."""
    count = """() => {
        document.querySelectorAll("svg, select, .unseen").forEach((part) => part.remove());
        return document.body.innerText.match(/\\S+/g).length; }"""
    assert opened.page.evaluate(count) < 3_500
    opened.unfold("body")
    opened.page.wait_for_timeout(500)  # what was folded is drawn
    assert opened.page.evaluate(count) < 8_000


def test_the_diagram_of_a_prompt_is_enlarged_and_leads_to_the_rules(opened: Opened) -> None:
    figure = opened.page.get_by_role("group", name="The lifecycle diagram", exact=True)
    before = figure.locator("svg").evaluate("(svg) => svg.getBoundingClientRect().width")
    opened.page.get_by_role("button", name="The lifecycle diagram: larger").click()
    assert figure.locator("svg").evaluate("(svg) => svg.getBoundingClientRect().width") == pytest.approx(before * 1.5)
    opened.page.get_by_role("button", name="The lifecycle diagram: fit").click()
    assert "MUST be queued" in (figure.locator('a[href="#rule-R5a"] title').text_content() or "")
    figure.locator('a[href="#rule-R5a"] text').dispatch_event("click")
    opened.page.locator("#rule-R5a").wait_for(state="visible")


def test_the_page_reads_a_graph_as_it_was_written(opened: Opened, review: Review) -> None:
    read = opened.page.evaluate(
        "async () => { const g = await loadGraph('ref');"
        " return [...Array(g.states).keys()].map((s) => g.edges(s).map(({step, target}) => [step.call, target])) }")
    assert read == [[[step[0], target] for step, target in steps] for steps in steps_by_state(review.graph("ref"))]


def test_the_later_prompt_runs_and_the_earlier_is_canceled_on_entry(opened: Opened) -> None:
    opened.take(*RACE)
    assert opened.prompts() == {"A": "canceled on entry", "B": "active"}
    assert opened.broken() == []
    assert opened.steps() == list(RACE)
    tokens = opened.page.locator("#explorer .board .token title").all_text_contents()
    assert sorted(tokens) == ["A: canceled on entry", "B: active"]
    lit = opened.page.locator("#explorer .board .way.lit").all()
    assert [way.get_attribute("class").split()[2] for way in lit] == ["accepted-canceled_on_entry"]
    assert opened.part("events").inner_text().split("\n") == ["3", "202 for B", "1", "202 for A"]
    opened.take("settle(A)", "finish(B, end_turn)")
    assert "At rest" in opened.part("next").inner_text()
    assert "RunComplete end_turn" in opened.part("events").inner_text()


def test_the_same_play_breaks_two_properties_of_r1_the_moment_they_break(opened: Opened) -> None:
    opened.part("protocol").select_option("r1")
    opened.take(*RACE[:3])
    assert opened.broken() == []
    opened.take("enter(B)")
    assert opened.broken() == ["no-poisoning"]
    opened.take("enter(A)")
    assert opened.broken() == ["no-poisoning", "no-lost-cancel"]
    assert opened.prompts() == {"A": "active", "B": "canceled on entry"}


def test_undo_redo_and_jump(opened: Opened) -> None:
    opened.take(*RACE)
    opened.part("undo").click()
    assert opened.prompts() == {"A": "accepted", "B": "active"}
    opened.part("redo").click()
    assert opened.part("redo").is_disabled()
    opened.page.locator("#explorer .step").nth(1).locator("button").click(position={"x": 5, "y": 5})
    assert opened.prompts() == {"A": "accepted"}
    assert opened.steps() == list(RACE), "what was undone is still shown"
    opened.take("accept(B)")
    assert opened.steps() == list(RACE), "taking the same step again is a redo"
    opened.part("undo").click()
    opened.take("enter(A)")
    assert opened.steps() == [*RACE[:2], "enter(A)"], "taking another forgets what was undone"
    opened.part("restart").click()
    assert opened.steps() == []


def test_a_link_restores_the_walk(opened: Opened, browser: Browser, review: Review) -> None:
    opened.part("protocol").select_option("r4")
    opened.take("accept(A, run id)", "accept(B, run id)", "enter(A)", "enter(B)", "cancel", "finish(A, canceled)")
    link = opened.page.url
    assert link == (f"{review.url}#play/r4/accept.A.run_id/accept.B.run_id/enter.A/enter.B/cancel/finish.A.canceled")
    with Opened(browser, link) as other:
        assert other.part("protocol").input_value() == "r4"
        assert other.steps() == opened.steps()
        assert other.prompts() == opened.prompts() != {}
        other.page.goto(link.replace("finish.A.canceled", "jump.A") + "/more")
        other.page.get_by_text("The link goes on with jump.A, which cannot happen here in this page.").wait_for()
        assert len(other.steps()) == 5


def test_every_told_trace_is_its_own_link(opened: Opened, review: Review) -> None:
    """The words of a walk lead to that walk and no other, also where a call has several results."""
    lost = opened.page.evaluate("""async () => {
        const lost = [];
        for (const trace of payload.traces) {
            const graph = await loadGraph(trace.protocol);
            const walk = new Walk(graph, trace.path), again = new Walk(graph);
            if (again.follow(walk.words) !== null || again.now.state !== walk.now.state) lost.push(trace.id);
        }
        return lost; }""")
    assert lost == []


def test_a_link_tells_the_results_of_one_call_apart(opened: Opened) -> None:
    opened.part("protocol").select_option("r0")
    links = opened.page.evaluate("""async () => {
        const graph = await loadGraph("r0"), way = [null];  // a walk to each state, breadth first
        for (let state = 0; state < graph.states; state++) {
            const edges = graph.edges(state), calls = edges.map(({ step }) => step.call);
            const second = calls.findIndex((call, i) => calls.indexOf(call) < i);
            if (second >= 0) {
                const numbers = [second];
                for (let at = state; at; at = way[at].state) numbers.unshift(way[at].number);
                const walk = new Walk(graph, numbers), again = new Walk(graph);
                again.follow(walk.words);
                return { words: walk.words, same: again.now.state === walk.now.state };
            }
            edges.forEach(({ target }, number) => { if (target) way[target] ??= { state, number }; });
        } }""")
    assert links["words"][-1].endswith("~2")
    assert links["same"]


def test_every_cell_opens_and_steps_through_to_the_violation(opened: Opened, review: Review) -> None:
    page = opened.page
    cells = page.locator(".matrix button.fails").all()
    verdicts = [cell for chapter in review.found.chapters.values() for cell in chapter.cells.values()]
    assert len(cells) == sum(cell.startswith("fails") for cell in verdicts)
    for cell in cells:
        id = cell.get_attribute("data-show")
        length = int(re.search(r"\d+", cell.inner_text())[0])  # type: ignore[index]
        cell.click()
        page.wait_for_selector("dialog[open]")
        assert page.locator("dialog h2").inner_text() == id.replace("/", " breaks ")
        broken = page.evaluate("""(length) => {
            const seen = [];
            for (let i = 0; i < length; i++) {
                document.querySelector('dialog [data-part="on"]').click();
                seen.push(document.querySelector('dialog [aria-current] .breaks')?.textContent ?? "");
            }
            return seen; }""", length)
        assert page.locator("dialog .step").count() == length
        assert f"breaks {id.split('/')[1]}" in page.locator("dialog [aria-current]").inner_text()
        assert all(re.match(r"✗ breaks [\w-]+ \S.* It must hold: ", text.replace("\n", " "))
                   for text in page.locator("dialog [aria-current] .breaks").all_inner_texts()), "a reason is given"
        assert not any(f"breaks {id.split('/')[1]} " in text for text in broken[:-1])
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog[open]", state="detached")


def test_a_flaw_opens_and_goes_on_in_the_explorer(opened: Opened) -> None:
    page = opened.page
    opened.unfold("#flaws")
    page.locator('[data-show="flaw/clear-races-handoff"]').click()
    page.locator('dialog [data-part="last"]').click()
    assert "breaks one-terminal" in page.locator("dialog [aria-current]").inner_text()
    page.locator('dialog [data-part="explore"]').click()
    page.wait_for_selector("dialog[open]", state="detached")
    assert opened.part("protocol").input_value() == "r4"
    assert "one-terminal" in opened.broken()


def test_find_me_a_violation(opened: Opened) -> None:
    opened.part("find").click()
    assert re.fullmatch(r"No violation of any property within reach: all [\d,]+ states that lie ahead were searched\.",
                        opened.part("said").inner_text())
    opened.part("protocol").select_option("r4")
    opened.take("accept(A, run id)")
    opened.part("wanted").select_option("all-done")
    opened.part("find").click()
    assert opened.broken()[-1] == "all-done" or "all-done" in opened.broken()
    assert opened.steps()[0] == "accept(A, run id)"
    assert "Broken: all-done" in opened.part("said").inner_text()


def test_a_found_violation_is_played_step_by_step(browser: Browser, review: Review) -> None:
    with Opened(browser, review.url, reduced_motion="no-preference") as opened:
        opened.part("protocol").select_option("r1")
        opened.part("find").click()
        assert len(opened.steps()) == 1
        opened.page.wait_for_selector("#explorer .properties .broken", timeout=30_000)
        assert len(opened.steps()) == 3


def test_two_sessions_are_kept_apart(opened: Opened) -> None:
    opened.part("protocol").select_option("sessions")
    opened.take("accept(A)@1", "accept(B)@2", "cancel@1", "enter(B)@2", "enter(A)@1")
    assert opened.prompts() == {"A": "canceled on entry", "B": "active"}
    assert opened.page.locator("#explorer .session").count() == 2


def test_back_and_forward_step_through_the_walk(opened: Opened, review: Review) -> None:
    opened.take(*RACE)
    page = opened.page
    for steps in (4, 3):
        page.go_back()
        opened.page.get_by_text(f"step {steps} of 5", exact=True).wait_for()
    assert opened.prompts() == {"A": "accepted", "B": "accepted"}
    page.go_forward()
    opened.page.get_by_text("step 4 of 5", exact=True).wait_for()
    assert opened.prompts() == {"A": "accepted", "B": "active"}
    page.locator('[data-show="r1/no-poisoning"]').click()
    page.wait_for_selector("dialog[open]")
    page.go_back()
    page.wait_for_selector("dialog[open]", state="detached")
    assert opened.prompts() == {"A": "accepted", "B": "active"}


def test_keys_work_wherever_the_focus_is(opened: Opened) -> None:
    page = opened.page
    page.locator("#rules summary").focus()
    page.keyboard.press("1")
    assert len(opened.steps()) == 1
    page.locator("#still").focus()
    page.keyboard.press("1")
    assert len(opened.steps()) == 1, "not while something is being typed or chosen"


def test_an_arrow_of_the_board_is_a_step(opened: Opened) -> None:
    opened.take("accept(A)")
    opened.page.locator("#explorer .way.accepted-active").dispatch_event("click")
    assert opened.prompts() == {"A": "active"}
    opened.page.locator("#explorer .way.active-done").dispatch_event("click")
    assert opened.prompts() == {"A": "active"}
    assert "Several steps go this way: finish(A, end_turn), finish(A, error)" in opened.part("said").inner_text()


@pytest.mark.parametrize("form", ["link", "command", "mermaid", "text", "svg"])
def test_a_walk_is_copied_in_any_form(opened: Opened, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    opened.part("protocol").select_option("flag")
    opened.take("accept(A, run id)", "cancel", "accept(B)", "enter(B)")
    opened.page.locator("#explorer .menu summary").click()
    opened.page.locator(f'#explorer [data-copy="{form}"]').click()
    copied = opened.page.evaluate("explorer.copied")
    match form:
        case "link":
            assert copied == opened.page.url
        case "command":
            name, *arguments = shlex.split(copied)
            assert name == "cancelmark"
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("sys.stdin", io.StringIO("quit\n"))
                assert main(arguments) == 0
            assert "no-poisoning broken by step 4" in capsys.readouterr().out
        case "mermaid":
            assert copied.startswith("sequenceDiagram\n")
            assert "Client->>S1: accept(A, run id)" in copied
        case "text":
            assert "✗ breaks no-poisoning: B is canceled on entry, but no cancel has come" in copied
        case "svg":
            assert ElementTree.fromstring(copied).tag == "{http://www.w3.org/2000/svg}svg"


def test_two_protocols_step_together(opened: Opened) -> None:
    opened.part("beside").select_option("flag")
    opened.take("accept(A)", "cancel", "accept(B)")
    assert "every prompt is in the same state in both" in opened.part("apart").inner_text()
    opened.take("enter(B)")
    assert opened.part("apart").inner_text() == "They differ since step 4, enter(B). Broken there: no-poisoning."
    assert opened.prompts() == {"A": "accepted", "B": "active"}


def test_only_the_flaws_that_are_still_there(opened: Opened) -> None:
    opened.unfold("#flaws")
    shown = opened.page.locator("#flaws article:visible")
    assert shown.count() == len(FLAWS)
    opened.page.locator("#still").check()
    assert shown.count() == sum("r4" in flaw.revisions for flaw in FLAWS)


def test_a_cited_rule_leads_to_its_words(opened: Opened) -> None:
    opened.page.locator('.properties-table a[href="#rule-R12b"]').first.click()
    opened.page.locator("#rule-R12b").wait_for(state="visible")
    assert "latest seq" in opened.page.locator("#rule-R12b + dd").inner_text()


def test_what_is_beyond_the_bounds_is_listed(opened: Opened) -> None:
    opened.take("accept(A)", "accept(B)", "accept(C)")
    omitted = opened.page.locator("#explorer .omitted")
    assert omitted.locator("summary").inner_text() == "2 more beyond this page’s bounds"
    assert omitted.locator("p").text_content() == "accept(D) · accept(D, run id)"


# --- without a mouse

def tab_to(opened: Opened, selector: str) -> None:
    for _ in range(200):
        if opened.page.evaluate("(s) => document.activeElement.matches(s)", selector):
            return
        opened.page.keyboard.press("Tab")
    raise AssertionError(f"{selector} cannot be reached with the Tab key")


def test_the_explorer_needs_only_a_keyboard(opened: Opened) -> None:
    keyboard = opened.page.keyboard
    tab_to(opened, '#explorer [data-part="protocol"]')
    keyboard.type("r1")
    opened.page.wait_for_function("document.querySelector('#explorer [data-part=size]').textContent.startsWith('6,')")
    tab_to(opened, '#explorer [data-call="accept(A)"]')
    keyboard.press("Enter")
    assert opened.steps() == ["accept(A)"]
    assert opened.page.evaluate("document.activeElement.closest('[data-part=next]') !== null"), "focus stays there"
    tab_to(opened, '#explorer [data-call="cancel"]')
    keyboard.press("Space")
    assert opened.steps() == ["accept(A)", "cancel"]
    for key, at in (("u", 1), ("r", 2), ("1", 3)):
        keyboard.press(key)
        assert opened.part("at").inner_text() == f"step {at} of {max(at, 2)}"
    keyboard.press("f")
    assert opened.broken()
    tab_to(opened, '#explorer .step:first-child > .call')
    keyboard.press("Enter")
    assert opened.part("at").inner_text().startswith("step 1 of ")


def test_a_counterexample_needs_only_a_keyboard(opened: Opened) -> None:
    page, keyboard = opened.page, opened.page.keyboard
    page.evaluate("document.querySelector('#history h2').tabIndex = -1; document.querySelector('#history h2').focus()")
    tab_to(opened, '[data-show="r1/no-poisoning"]')
    keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    assert page.evaluate("document.activeElement.dataset.part") == "on"
    keyboard.press("Enter")
    keyboard.press("ArrowRight")
    assert page.locator('dialog [data-part="at"]').inner_text() == "step 2 of 4"
    keyboard.press("End")
    assert "breaks no-poisoning" in page.locator("dialog [aria-current]").inner_text()
    keyboard.press("Home")
    keyboard.press("Escape")
    page.wait_for_selector("dialog[open]", state="detached")
    assert page.evaluate("document.activeElement.dataset.show") == "r1/no-poisoning", "focus goes back to where it was"


# --- for everybody

@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_and_labels(browser: Browser, review: Review, scheme: str) -> None:
    race = "#play/r1/accept.A/cancel/accept.B/enter.B/enter.A"
    with Opened(browser, review.url + race, color_scheme=scheme, viewport={"width": 1280, "height": 900}) as opened:
        opened.part("undo").click()
        assert inaccessible(opened.page) == []
        opened.page.locator('[data-show="r4/one-terminal"]').click()
        opened.page.locator('dialog [data-part="on"]').click()
        assert inaccessible(opened.page, "dialog") == []


def test_bad_contrast_and_missing_labels_would_be_noticed(opened: Opened) -> None:
    opened.page.evaluate("""() => {
        document.querySelector('.eyebrow').style.color = '#ddd';
        const labelled = document.querySelector('#explorer [data-part="wanted"]').parentElement;
        labelled.replaceWith(document.createElement('select')); }""")
    found = [*inaccessible(opened.page, ".hero"), *inaccessible(opened.page, "#explorer")]
    assert {"color-contrast", "select-name"} <= {problem.split(":")[0] for problem in found}


@pytest.mark.parametrize("width", [360, 820, 1280])
def test_nothing_is_wider_than_the_screen(browser: Browser, review: Review, width: int) -> None:
    walk = "#play/r4/accept.A.run_id/accept.B.run_id/enter.A/enter.B"
    with Opened(browser, review.url + walk, viewport={"width": width, "height": 844}) as opened:
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        opened.page.locator('[data-show="r0/one-terminal"]').click()
        assert opened.page.evaluate("document.querySelector('dialog').scrollWidth <= innerWidth")


def test_prints_without_what_cannot_be_used_on_paper(opened: Opened) -> None:
    opened.page.emulate_media(media="print")
    assert not opened.page.locator("#play").is_visible()
    assert opened.page.locator("#history .matrix").is_visible()
    assert opened.page.pdf(format="A4").startswith(b"%PDF")
