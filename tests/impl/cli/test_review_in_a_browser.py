"""The review page in a real browser: the explorer, the counterexamples, keys, links, copies, contrast and paper."""

import io
import re
import shlex
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from typing import Any, Self

import pytest
from playwright.sync_api import Browser, Locator
from support.browsing import Sight, chromium, inaccessible
from support.reviewing import Review, steps_by_state

from cancelmark.impl.cli.main import main
from cancelmark.model.revisions.flaws import FLAWS


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
    assert opened.page.evaluate(count) < 3_300
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
    assert "Quiescent" in opened.part("next").inner_text()
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
        other.page.get_by_text("The link continues with jump.A, which is not possible here.").wait_for()
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
        assert page.locator("dialog h2").inner_text() == id.replace("/", " violates ")
        broken = page.evaluate("""(length) => {
            const seen = [];
            for (let i = 0; i < length; i++) {
                document.querySelector('dialog [data-part="on"]').click();
                seen.push(document.querySelector('dialog [aria-current] .breaks')?.textContent ?? "");
            }
            return seen; }""", length)
        assert page.locator("dialog .step").count() == length
        assert f"violates {id.split('/')[1]}" in page.locator("dialog [aria-current]").inner_text()
        assert all(re.match(r"✗ violates [\w-]+ \S.* The property: ", text.replace("\n", " "))
                   for text in page.locator("dialog [aria-current] .breaks").all_inner_texts()), "a reason is given"
        assert not any(f"violates {id.split('/')[1]} " in text for text in broken[:-1])
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog[open]", state="detached")


def test_a_flaw_opens_and_goes_on_in_the_explorer(opened: Opened) -> None:
    page = opened.page
    opened.unfold("#flaws")
    page.locator('[data-show="flaw/clear-races-handoff"]').click()
    page.locator('dialog [data-part="last"]').click()
    assert "violates one-terminal" in page.locator("dialog [aria-current]").inner_text()
    page.locator('dialog [data-part="explore"]').click()
    page.wait_for_selector("dialog[open]", state="detached")
    assert opened.part("protocol").input_value() == "r4"
    assert "one-terminal" in opened.broken()


def test_find_me_a_violation(opened: Opened) -> None:
    opened.part("find").click()
    assert re.fullmatch(r"No violation of any property is reachable: all [\d,]+ reachable states were searched\.",
                        opened.part("said").inner_text())
    opened.part("protocol").select_option("r4")
    opened.take("accept(A, run id)")
    opened.part("wanted").select_option("all-done")
    opened.part("find").click()
    assert opened.broken()[-1] == "all-done" or "all-done" in opened.broken()
    assert opened.steps()[0] == "accept(A, run id)"
    assert "Violated: all-done" in opened.part("said").inner_text()


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
    assert "Several actions take this arrow: finish(A, end_turn), finish(A, error)" in opened.part("said").inner_text()


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
            assert "step 4 violates no-poisoning" in capsys.readouterr().out
        case "mermaid":
            assert copied.startswith("sequenceDiagram\n")
            assert "Client->>S1: accept(A, run id)" in copied
        case "text":
            assert "✗ violates no-poisoning: B is canceled on entry, but nothing has canceled it" in copied
        case "svg":
            assert ElementTree.fromstring(copied).tag == "{http://www.w3.org/2000/svg}svg"


def test_two_protocols_step_together(opened: Opened) -> None:
    opened.part("beside").select_option("flag")
    opened.take("accept(A)", "cancel", "accept(B)")
    assert "every prompt is in the same state in both" in opened.part("apart").inner_text()
    opened.take("enter(B)")
    assert opened.part("apart").inner_text() == (
        "They differ from step 4 on, enter(B). Violated in this protocol: no-poisoning.")
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
    assert "violates no-poisoning" in page.locator("dialog [aria-current]").inner_text()
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


def test_paper_has_what_the_screen_folds_in_one_flow_and_letters_that_can_be_read(opened: Opened) -> None:
    shown = opened.page.locator("#guarantees .stories-grid").first.locator("article")
    before = shown.count()
    widths = "(all) => all.map((one) => one.getBoundingClientRect().width)"
    wide = opened.page.locator("#guarantees .strip").evaluate_all(widths)
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    opened.page.emulate_media(media="print")
    assert shown.count() > before, "one flow"
    assert all(told.is_visible() and told.inner_text() for told in opened.page.locator("p.told").all())
    size = """(text) => { const drawn = text.closest("svg"), whole = drawn.getBoundingClientRect().width;
        return parseFloat(getComputedStyle(text).fontSize) * whole / drawn.viewBox.baseVal.width; }"""
    for text in opened.page.locator("#why .strip .said, #guarantees .strip .said").all():
        assert text.evaluate(size) > 8, "pixels of a 96th of an inch: 6 points"
    opened.page.emulate_media(media="screen")
    opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert shown.count() == before
    assert opened.page.locator("#guarantees .strip").evaluate_all(widths) == wide
