"""The report as a page: what it says, and how it looks in a real browser."""

from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.browsing import Sight, chromium, inaccessible
from support.samples.naive import NaiveAdapter

from cancelmark.conformance import judge
from cancelmark.conformance.profile import Profile
from cancelmark.conformance.report import Report
from cancelmark.conformance.report.page import report_page

FEW = Profile("few", histories=0, schedules=4, inside=10, repeats=1, shrinks=20, seconds=0)


@pytest.fixture(scope="module")
def report() -> Report:
    return replace(judge(NaiveAdapter, profile=FEW), name="mine <b>", notes=("a note & more",))


class Text(HTMLParser):
    """All that is text, and the elements that were opened."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.opened, self.ids = "", list[str](), list[str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened.append(tag)
        self.ids += [str(value) for name, value in attrs if name == "id"]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_has_everything_that_the_report_has(report: Report) -> None:
    page = report_page(report)
    read = Text(page)
    assert "mine <b>" in read.text
    assert escape("a note & more") in page
    for verdict in report.rows:
        assert verdict.guarantee in read.text
        assert verdict.sentence in read.text
        if verdict.finding:
            assert verdict.guarantee in read.ids
            assert verdict.finding.reproduce in read.text
            assert verdict.about in read.text
    assert read.opened.count("svg") == len(report.broken) == 3
    assert all(name in read.text for name in report.scenarios)
    assert len(set(read.ids)) == len(read.ids)
    assert "script" not in read.opened
    assert "{" not in read.text.partition("@media print")[2].rpartition("}")[2]


def test_a_report_without_findings_says_what_it_is() -> None:
    none = judge(NaiveAdapter, scripts=["accept A"], times=1)
    page = report_page(none)
    assert "nothing broken in 1 run" in page
    assert "</code> is broken" not in page


def test_it_can_be_read_by_everybody_everywhere(report: Report, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(report_page(report))
    with chromium() as browser:
        for width, scheme in ((1280, "light"), (390, "dark")):
            context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
            sight = Sight(context.new_page(), file.as_uri())
            sight.page.goto(file.as_uri())
            assert sight.page.evaluate("document.documentElement.scrollWidth") == width  # nothing sticks out
            assert inaccessible(sight.page) == []
            assert (sight.errors, sight.elsewhere) == ([], [])
            sight.page.emulate_media(media="print")
            assert sight.page.locator("svg text").first.evaluate("e => getComputedStyle(e).fill") == "rgb(0, 0, 0)"
            context.close()
