"""Takes the picture of the review page that the README shows: docs/review.png. Run `make review` first.

    PYTHONPATH=tests python tests/tools/picture.py
"""

from support.browsing import chromium
from support.paths import ROOT

REVIEW = ROOT / "build" / "review" / "review.html"


def main() -> None:
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1160, "height": 900}, reduced_motion="reduce")
        page.goto(REVIEW.as_uri())
        page.select_option("#explorer [data-part=protocol]", "r4")
        page.select_option("#explorer [data-part=wanted]", "no-lost-cancel")
        page.get_by_role("button", name="Find a violation").click()
        page.get_by_text("Violated: no-lost-cancel").wait_for()
        page.add_style_tag(content="header { display: none }")
        page.locator("#explorer").screenshot(path=ROOT / "docs" / "review.png")


if __name__ == "__main__":
    main()
