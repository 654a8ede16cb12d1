"""The live page in a real browser, on a real server."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from support.browsing import Sight, chromium, inaccessible
from support.servers import Process

expect.set_options(timeout=30_000)  # milliseconds: only so that nothing hangs for ever


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Process]:
    """Whose built-in model pauses for so many seconds between words, and ten times as long if it is told to be slow."""
    with Process(tmp_path / "data", "--pace", getattr(request, "param", "0.02")) as process:
        yield process


ENDLESS = pytest.mark.parametrize("server", ["60"], indirect=True)  # a slow turn runs until somebody stops it


@pytest.fixture
def sight(browser: Browser, server: Process) -> Iterator[Sight]:
    with browser.new_context() as context:
        sight = Sight(context.new_page(), server.url)
        visit(sight.page, server)
        yield sight


@pytest.fixture
def page(sight: Sight) -> Page:
    return sight.page


def visit(page: Page, server: Process) -> None:
    page.goto(server.url)
    expect(page.get_by_role("status")).to_have_text("live")
    expect(page.locator(".lane").first).to_be_visible()


def send(page: Page, text: str, named: bool = True) -> None:
    lane = page.locator(".lane").first
    lane.get_by_label("run id").set_checked(named)
    lane.get_by_placeholder("Send a prompt").fill(text)
    lane.get_by_role("button", name="Send", exact=True).click()
    expect(lane.get_by_placeholder("Send a prompt")).to_have_value("")


def card(page: Page, state: str, text: str) -> None:
    """Waits until the prompt is in that column, and in no other."""
    expect(page.locator(f".{state} .card").filter(has_text=text)).to_have_count(1)
    expect(page.locator(".card").filter(has_text=text)).to_have_count(1)


def board(page: Page) -> dict[str, list[str]]:
    """What each column shows."""
    states = ("accepted", "canceled_on_entry", "queued", "active", "done")
    return {state: page.locator(f".{state} .card:visible").all_inner_texts() for state in states}


@pytest.mark.smoke
def test_a_prompt_runs_and_its_card_ends_in_done_with_the_answer(sight: Sight) -> None:
    send(sight.page, "fast: hello")
    card(sight.page, "done", "end turn")
    expect(sight.page.locator(".done .answer")).to_contain_text("You said: hello")
    expect(sight.page.locator("#events .run_complete")).to_have_count(1)
    expect(sight.page.locator("#announcements")).to_contain_text("done, end turn")
    assert sight.errors == []
    assert sight.elsewhere == []


def test_a_cancel_reaches_what_was_accepted_before_it_and_nothing_after(page: Page) -> None:
    send(page, "slow: first")
    card(page, "active", "first")
    send(page, "second")
    card(page, "queued", "second")
    page.get_by_role("button", name="Cancel all").click()
    send(page, "fast: third")
    for text, outcome in (("first", "canceled"), ("second", "canceled"), ("third", "end turn")):
        expect(page.locator(".done .card").filter(has_text=text)).to_contain_text(outcome)
    expect(page.locator("#events .run_complete")).to_have_count(3)


def test_the_mark_is_a_line_between_the_prompts_that_it_separates(page: Page, server: Process) -> None:
    send(page, "slow: one")
    send(page, "fast: two")
    card(page, "queued", "two")
    page.locator(".lane .cancel").first.click()
    send(page, "fast: three")
    card(page, "done", "three")
    expect(page.locator("#events .call .told")).to_have_text("cancel: all prompts up to #2")
    page.locator(".lane .clear").first.click()
    expect(page.locator("#events .call .told").first).to_have_text("clear queue")
    for _ in range(2):
        expect(page.locator(".lane-mark")).to_have_text("mark ≤ #2")
        expect(page.locator(".done .mark-line")).to_have_text("mark ≤ #2")
        shown = page.locator(".done ol > li").evaluate_all("(items) => items.map((item) => +item.dataset.seq)")
        assert shown == [3, 2.5, 2, 1], "what is done is shown the latest first"
        page.reload()
    expect(page.locator(".done .mark-line")).to_have_text("mark ≤ #2")
    assert inaccessible(page) == []


def test_clearing_the_queue_leaves_what_is_active(page: Page) -> None:
    send(page, "slow: first")
    card(page, "active", "first")
    send(page, "second")
    card(page, "queued", "second")
    page.get_by_role("button", name="Clear queue").click()
    expect(page.locator(".done .card").filter(has_text="second")).to_contain_text("canceled")
    expect(page.locator(".done .card").filter(has_text="first")).to_contain_text("end turn")


def test_a_prompt_that_fails_says_why(page: Page) -> None:
    send(page, "fail: tea")
    expect(page.locator(".done .card.error")).to_contain_text("because it was told to")


def test_two_tabs_agree(page: Page, server: Process) -> None:
    other = page.context.new_page()
    visit(other, server)
    send(page, "slow: from the first tab")
    send(other, "from the second tab")
    for each in (page, other):
        card(each, "active", "from the first tab")
        card(each, "queued", "from the second tab")
    other.get_by_role("button", name="Cancel all").click()
    for each in (page, other):
        expect(each.locator(".done .card.canceled")).to_have_count(2)
    assert board(page) == board(other)


def test_after_a_restart_the_page_comes_back_by_itself(page: Page, server: Process) -> None:
    send(page, "fast: before")
    card(page, "done", "before")
    send(page, "slow: during")
    card(page, "active", "during")
    server.kill()
    expect(page.get_by_role("status")).to_have_text("reconnecting")
    server.start()
    expect(page.get_by_role("status")).to_have_text("live")
    expect(page.locator(".done .card").filter(has_text="during")).to_contain_text("error")
    expect(page.locator("#events .run_complete")).to_have_count(2)
    send(page, "fast: after")
    card(page, "done", "after")
    assert re.findall(r"#\d+", " ".join(board(page)["done"])) == ["#3", "#2", "#1"]


def test_a_reloaded_page_shows_what_there_is(page: Page, server: Process) -> None:
    send(page, "fast: before")
    card(page, "done", "before")
    send(page, "slow: during")
    card(page, "active", "during")
    page.reload()
    card(page, "done", "before")
    card(page, "active", "during")


def test_the_keyboard_is_enough(page: Page) -> None:
    page.keyboard.press("n")
    expect(page.get_by_role("dialog", name="New session")).to_be_visible()
    page.keyboard.type("by hand")
    page.keyboard.press("Enter")
    lane = page.get_by_role("region", name="by hand")
    expect(lane.get_by_placeholder("Send a prompt")).to_be_focused()
    page.keyboard.type("slow: typed")
    page.keyboard.press("Enter")
    expect(lane.locator(".active .card")).to_contain_text("typed")
    page.keyboard.press("Escape")
    page.keyboard.press("c")
    expect(lane.locator(".done .card")).to_contain_text("canceled")
    page.keyboard.press("k")
    expect(page.locator(".lane").first.get_by_placeholder("Send a prompt")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390)])
def test_people_who_see_or_hear_it_differently_can_use_it(
    browser: Browser, server: Process, scheme: str, width: int,
) -> None:
    with browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900},  # type: ignore[arg-type]
                             reduced_motion="reduce") as context:
        page = context.new_page()
        visit(page, server)
        send(page, "fail: tea")
        card(page, "done", "tea")
        send(page, "slow: first")
        send(page, "second")
        card(page, "queued", "second")
        assert inaccessible(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
        page.get_by_role("button", name="Help").click()
        assert inaccessible(page) == []


def test_a_server_with_a_token_asks_for_it(browser: Browser, tmp_path: Path) -> None:
    token = tmp_path / "token"
    with Process(tmp_path / "data", "--token-file", str(token)) as server, browser.new_context() as context:
        page = context.new_page()
        page.goto(server.url)
        dialog = page.get_by_role("dialog", name="This server requires a token")
        expect(dialog).to_be_visible()
        page.keyboard.type("not the token")
        page.keyboard.press("Enter")
        expect(dialog).to_be_visible()
        dialog.get_by_role("textbox").fill(token.read_text().strip())
        page.keyboard.press("Enter")
        expect(page.get_by_role("status")).to_have_text("live")


def test_a_refusal_is_shown_and_the_text_is_kept(browser: Browser, tmp_path: Path) -> None:
    with Process(tmp_path / "data", "--max-prompt", "10") as server, browser.new_context() as context:
        page = context.new_page()
        visit(page, server)
        field = page.locator(".lane").first.get_by_placeholder("Send a prompt")
        field.fill("more than ten characters")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("exceed the limit of 10")
        expect(field).to_have_value("more than ten characters")


def test_of_many_sessions_the_latest_are_shown_and_earlier_ones_when_asked(browser: Browser, server: Process) -> None:
    with httpx.Client(base_url=server.url, verify=False) as http, browser.new_context() as context:
        workspace = http.post("/v1/workspaces", json={"path": "/tmp/cancelmark-many"}).json()["id"]
        for number in range(120):
            http.post(f"/v1/workspaces/{workspace}/sessions", json={"title": f"session {number}"})
        page = context.new_page()
        visit(page, server)
        titles, button = page.locator(".lane h2"), page.get_by_role("button", name="Earlier sessions")
        expect(titles).to_have_text([f"session {number}" for number in range(70, 120)])
        button.click()
        expect(titles).to_have_count(100)
        button.click()
        expect(titles).to_have_text([f"session {number}" for number in range(120)])
        expect(button).to_be_hidden()
        page.reload()
        expect(titles).to_have_count(50)


def test_a_lane_keeps_its_latest_prompts_alone_and_counts_the_others(sight: Sight, server: Process) -> None:
    page = sight.page
    with httpx.Client(base_url=server.url, verify=False) as http:
        [workspace] = http.get("/v1/workspaces").json()
        session = page.locator(".lane").first.get_attribute("data-session")
        for number in range(60):
            http.post(f"/v1/workspaces/{workspace['id']}/agent", json={
                "session_id": session, "prompt": "fast: hello", "run_id": f"r{number}"})
    expect(page.locator(".done .earlier")).to_have_text("and 54 earlier")
    expect(page.locator(".done .card")).to_have_count(50)
    assert sight.errors == []


def texts(page: Page, state: str) -> list[str]:
    """The texts of the cards in that column, from the top."""
    return page.locator(f".{state} .card:visible .text").all_inner_texts()


def told(page: Page, kind: str) -> list[str]:
    """What the list of events says, the first first."""
    return page.locator(f"#events li.{kind} .told").all_inner_texts()[::-1]


@ENDLESS
def test_a_queue_is_held_edited_reordered_dropped_and_resumed_by_keys_alone(sight: Sight) -> None:
    page, keys = sight.page, sight.page.keyboard
    keys.press("/")
    for text in ("slow: running", "fast: one", "fast: two", "fast: three"):
        keys.type(text)
        keys.press("Enter")
        expect(page.locator(".lane").first.get_by_placeholder("Send a prompt")).to_have_value("")
    expect(page.locator(".queued .card")).to_have_count(3)
    keys.press("Escape")
    keys.press("h")
    expect(page.locator(".lane-held")).to_have_text("held by you: queued prompts do not start until Resume")
    keys.press("ArrowDown")
    keys.press("ArrowDown")
    expect(page.get_by_label("Prompt 3", exact=True)).to_be_focused()
    keys.press("e")
    expect(page.get_by_role("dialog", name="Edit prompt #3")).to_be_visible()
    assert inaccessible(page) == []
    keys.press("ControlOrMeta+a")
    keys.type("fast: two, edited")
    keys.press("ControlOrMeta+Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_label("Prompt 3", exact=True)).to_be_focused()
    expect(page.get_by_label("Prompt 3", exact=True)).to_contain_text("edited")
    keys.press("ArrowDown")
    keys.press("u")
    expect(page.locator(".queued .card .text")).to_have_text(["fast: three", "fast: one", "fast: two, edited"])
    expect(page.locator(".queued .card .place")).to_have_text(["next", "2 of 3", "3 of 3"])
    expect(page.get_by_label("Prompt 4", exact=True)).to_be_focused()
    keys.press("ArrowDown")
    keys.press("d")
    expect(page.locator(".done .card")).to_contain_text("canceled")
    assert inaccessible(page) == []
    keys.press("s")
    expect(page.locator(".done .card")).to_have_count(2)  # what ran is stopped, and nothing follows
    assert texts(page, "queued") == ["fast: three", "fast: two, edited"]
    keys.press("h")
    expect(page.locator(".done .card")).to_have_count(4)
    expect(page.locator(".done .answer", has_text="You said: two, edited")).to_have_count(1)
    assert told(page, "call") == ["hold", "edit #3", "#4 to the front", "drop #2", "stop #1", "resume"]
    assert set(page.locator("#events li.call .kind").all_inner_texts()) == {"you"}
    assert told(page, "run_complete") == ["#2 canceled", "#1 canceled", "#4 end turn", "#3 end turn"]
    assert sight.errors == []


@ENDLESS
def test_two_people_edit_one_queue_and_whoever_is_late_is_told_what_the_server_says(
    browser: Browser, server: Process, page: Page,
) -> None:
    with browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, color_scheme="dark") as context:
        phone = context.new_page()
        send(page, "slow: running")
        send(page, "fast: one")
        send(page, "fast: two")
        visit(phone, server)
        phone.get_by_role("button", name="Edit prompt 2").tap()
        dialog = phone.get_by_role("dialog", name="Edit prompt #2")
        expect(dialog).to_be_visible()
        expect(page.locator(".lane-held")).to_contain_text("held by client")
        page.get_by_role("button", name="Edit prompt 2").click()
        page.get_by_label("Text (the session").fill("fast: theirs")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(dialog.get_by_role("alert")).to_have_text("Another client has changed the text: fast: theirs")
        expect(page.locator(".lane-held")).to_be_visible()  # it was not this page that held the session
        phone.get_by_label("Text (the session").fill("fast: mine")
        phone.get_by_role("button", name="Save").tap()
        expect(dialog.get_by_role("alert")).to_contain_text("Save again to overwrite it")
        assert inaccessible(phone) == []
        phone.get_by_role("button", name="Save").tap()
        expect(dialog).to_be_hidden()
        expect(page.locator(".lane-held")).to_be_hidden()
        expect(page.locator(".queued .text").first).to_have_text("fast: mine")
        phone.get_by_role("button", name="Edit prompt 3").tap()
        phone.get_by_label("Text (the session").fill("fast: too late")
        page.get_by_role("button", name="Drop prompt 3").click()
        late = phone.get_by_role("dialog", name="Edit prompt #3")
        expect(late.get_by_role("alert")).to_have_text("Prompt #3 is no longer waiting: it is canceled.")
        phone.get_by_role("button", name="Save").tap()
        expect(late.get_by_role("alert")).to_have_text(
            "prompt 3 can no longer be changed: it is canceled. Your text stays here until you close the editor.")
        expect(phone.get_by_label("Text (the session")).to_have_value("fast: too late")
        phone.close(run_before_unload=False)  # whoever closes the page edits no more
        expect(page.locator(".lane-held")).to_be_hidden()


@ENDLESS
def test_a_prompt_is_sent_now_or_only_if_idle_and_what_runs_is_stopped(page: Page) -> None:
    lane, field = page.locator(".lane").first, page.locator(".lane").first.get_by_placeholder("Send a prompt")
    send(page, "slow: one")
    card(page, "active", "one")
    field.fill("never")
    lane.get_by_role("button", name="If idle").click()
    expect(page.get_by_role("alert")).to_contain_text("is busy; retry when it is idle, or let the prompt queue")
    expect(field).to_have_value("never")
    field.fill("slow: urgent")
    page.keyboard.press("Control+Enter")
    card(page, "active", "urgent")
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator(".done .card").filter(has_text="one")).to_contain_text("canceled")
    send(page, "fast: later")
    lane.get_by_role("button", name="Stop and hold").click()
    expect(page.locator(".done .card").filter(has_text="urgent")).to_contain_text("canceled")
    expect(page.locator(".lane-held")).to_be_visible()
    card(page, "queued", "later")
    lane.get_by_role("button", name="Resume").click()
    card(page, "done", "later")
    lane.get_by_role("button", name="Stop", exact=False).first.click()
    expect(page.get_by_role("alert")).to_have_text("Nothing is running: nothing was stopped")


# --- questions

def question(page: Page, text: str) -> Locator:
    """The question on the card of the prompt."""
    return page.locator(".active .card").filter(has_text=text).get_by_role("group", name=re.compile("asks: Repeat"))


@pytest.mark.parametrize(("key", "answer", "said"), [
    ("y", "allowed by you", "You said: hello"), ("n", "denied by you", "")])
def test_a_question_is_answered_by_one_key(sight: Sight, key: str, answer: str, said: str) -> None:
    send(sight.page, "ask: hello")
    expect(question(sight.page, "hello")).to_contain_text("Repeat 'hello'?")
    expect(sight.page.locator("#announcements")).to_contain_text("asks: Repeat 'hello'?")
    sight.page.locator(".active .card").focus()
    sight.page.keyboard.press(key)
    card(sight.page, "done", "end turn")
    expect(sight.page.locator(".done .answered")).to_contain_text(answer)
    expect(sight.page.locator(".done .answer")).to_contain_text(said)
    expect(sight.page.locator(".done .question:visible")).to_have_count(0)
    assert sight.errors == []


def test_of_two_people_who_answer_one_wins_and_the_other_is_told_who(page: Page, server: Process) -> None:
    with page.context.browser.new_context() as context:  # type: ignore[union-attr]
        other = context.new_page()
        visit(other, server)
        send(page, "ask: hello")
        for tab in (page, other):
            expect(question(tab, "hello")).to_be_visible()
        other.route("**/v1/**/events**", lambda route: route.abort())  # it learns nothing more by itself
        page.get_by_role("button", name="Allow").click()
        card(page, "done", "end turn")
        expect(page.locator(".done .answered")).to_contain_text("allowed by you")
        if question(other, "hello").is_visible():
            other.get_by_role("button", name="Deny").click()
            expect(other.get_by_role("alert")).to_contain_text(re.compile("the question is closed: allowed by client"))
        else:
            expect(other.locator(".answered")).to_contain_text(re.compile("allowed by client [0-9a-f]{4}"))


def test_a_question_is_withdrawn_while_somebody_looks_at_it(page: Page, server: Process) -> None:
    send(page, "ask: hello")
    expect(question(page, "hello")).to_be_visible()
    page.get_by_role("button", name="Allow").focus()
    with httpx.Client(base_url=f"{server.url}/v1") as http:
        workspace = http.get("/workspaces").json()[0]["id"]
        session = http.get(f"/workspaces/{workspace}/sessions").json()[0]["id"]
        http.post(f"/workspaces/{workspace}/agent/sessions/{session}/cancel")
    card(page, "done", "canceled")
    expect(page.locator(".done .answered")).to_contain_text("withdrawn, because the prompt was canceled")
    expect(page.locator(".card:focus")).to_have_count(1)


def test_a_reloaded_page_shows_an_open_question(page: Page, server: Process) -> None:
    send(page, "ask: hello")
    expect(question(page, "hello")).to_be_visible()
    visit(page, server)
    expect(question(page, "hello")).to_be_visible()
    page.get_by_role("button", name="Deny").click()
    card(page, "done", "end turn")
