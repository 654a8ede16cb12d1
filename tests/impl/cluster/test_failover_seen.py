"""The live page and `watch` at one node, while another is killed: who runs a prompt, and who took over from whom."""

import subprocess
from pathlib import Path
from select import select

import httpx2 as httpx
from playwright.sync_api import expect
from support.browsing import Sight, chromium, inaccessible
from support.commands import COMMAND
from support.postgres import shared_server
from support.servers import Process

PATIENCE = 60_000  # milliseconds: only so that nothing hangs for ever
PHONE = {"width": 390, "height": 844}


def test_a_failover_is_seen_on_the_page_and_in_watch(tmp_path: Path) -> None:
    expect.set_options(timeout=PATIENCE)
    database = shared_server()
    options = ("--database", database.url(database.new_database()), "--lease", "3", "--poll", "0.2", "--pace", "60")
    with (Process(tmp_path / "one", *options) as one, Process(tmp_path / "two", *options) as two,
          chromium() as browser, browser.new_context() as context):
        opened = httpx.post(f"{two.url}/v1/workspaces", json={"path": str(tmp_path)}).json()
        base = f"/v1/workspaces/{opened['id']}"
        httpx.post(f"{two.url}{base}/agent/init", json={})
        session = httpx.post(f"{two.url}{base}/sessions", json={"title": "talk"}).json()["id"]
        sight = Sight(context.new_page(), one.url)
        page = sight.page
        page.goto(f"{one.url}/#workspace={tmp_path}")
        expect(page.get_by_role("status")).to_have_text("live")
        with subprocess.Popen([*COMMAND, "watch", "--server", one.url, "--workspace", str(tmp_path)], text=True,
                              stdout=subprocess.PIPE, env=one.environment) as watching:
            try:
                assert watching.stdout is not None
                while not select([watching.stdout], [], [], 0.5)[0]:  # until it sees what happens
                    httpx.post(f"{one.url}{base}/agent/sessions/{session}/cancel")
                sent = {"session_id": session, "prompt": "a story", "run_id": "story"}
                assert httpx.post(f"{two.url}{base}/agent", json=sent).status_code == 202
                at = page.locator(".active .card .node")
                expect(at).to_contain_text(f"at {two.url.removeprefix('http://')}#")
                gone = at.inner_text().removeprefix("at ")
                assert not inaccessible(page)
                seen = ""
                while f"active (at {gone}) a story" not in seen:
                    seen = watching.stdout.readline()
                two.kill()
                expect(page.locator("#events .taken_over")).to_contain_text(f"took over from {gone}")
                expect(page.locator("#announcements")).to_contain_text(f"took over talk from {gone}")
                expect(page.locator(".done .card")).to_contain_text("the server that ran it is gone")
                while f"took over from {gone}" not in seen:
                    seen = watching.stdout.readline()
                assert seen.startswith(f"talk {one.url.removeprefix('http://')}#")
            finally:
                watching.kill()
        page.screenshot(path=tmp_path / "wide.png")
        page.set_viewport_size(PHONE)  # type: ignore[arg-type]
        page.screenshot(path=tmp_path / "phone.png", full_page=True)
        assert page.evaluate("""[...document.querySelectorAll("main *, aside *, header *")].filter(
            (one) => one.getBoundingClientRect().right > innerWidth).map((one) => one.id || one.className)""") == []
        assert sight.errors == []
        two.start()
