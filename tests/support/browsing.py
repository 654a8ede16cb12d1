"""Real Chromium, for tests of pages. Without it a test is skipped; with CI=true it fails."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--no-first-run")


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser of this machine."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        reason = "there is no Chromium on this machine: install the package chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class Sight:
    """A page with everything that went wrong in it: errors, and requests to other places than it came from."""

    def __init__(self, page: Page, origin: str) -> None:
        self.page = page
        self.errors: list[str] = []
        self.elsewhere: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        page.on("request", lambda request: self.elsewhere.append(request.url)
                if not request.url.startswith((origin, "data:", "blob:")) else None)


SETTLED = """() => Promise.all(document.getAnimations()
    .filter((one) => one.effect.getComputedTiming().iterations !== Infinity)
    .map((one) => one.finished.catch(() => null))).then(() => null)"""


def inaccessible(page: Page, within: str | None = None) -> list[str]:
    """What axe finds wrong: contrast, labels, roles and the like, one line each. What fades in has no contrast yet."""
    page.evaluate(SETTLED)
    found: Any = Axe().run(page, within).response["violations"]
    return [f"{problem['id']}: {node['html'][:200]}" for problem in found for node in problem["nodes"]]
