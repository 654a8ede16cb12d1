"""A test of `cancelmark acp` with the official TypeScript client from npm: `make field ONLY=typescript-client`.

One prompt is running, another is queued, the client cancels both, and sends a third right after the cancel. The agent
runs in process, and then as a bridge to a running server. The test passes if the first two end as canceled, and the
third is answered.
"""

import asyncio
import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

from cancelmark.conformance.adapter.process import Home, ServerProcess
from examples.field.agents import Listed, Skipped, install

CLIENT = Listed("typescript-client", (), "", npm="@agentclientprotocol/sdk@2.4.0")
EDITOR = Path(__file__).with_name("editor.mjs")
CANCELMARK = (sys.executable, "-m", "cancelmark.impl.cli.main")
ENDS = ["cancelled", "cancelled", "end_turn"]
LAST = "This one came after the cancel."
PACE = ("--model", "scripted", "--pace", "0.1")
LIMIT = 120  # seconds


def speak(packages: Path, *options: str) -> dict[str, Any]:
    """Run the client with an agent that is started with these options, and return its observations."""
    home = Home("cancelmark-editor-")
    try:
        done = subprocess.run(["node", EDITOR, *CANCELMARK, "acp", *options], cwd=packages, env=home.environment,
                              capture_output=True, text=True, check=False, timeout=LIMIT)
    except subprocess.TimeoutExpired as error:
        raise Skipped(f"the client did not exit within {LIMIT} s") from error
    finally:
        home.remove()
    if done.returncode:
        raise Skipped(f"the client failed: {done.stderr.strip()[-1000:]}")
    return dict(json.loads(done.stdout))


def speak_to_server(packages: Path) -> dict[str, Any]:
    server = ServerProcess([*CANCELMARK, "serve", "--port", "{port}", *PACE])
    try:
        asyncio.run(server.start())
        return speak(packages, "--url", server.url)
    finally:
        asyncio.run(server.close())


def try_client(cache: Path) -> dict[str, Any]:
    """The client's observations, in process and as a bridge, and whether they are right."""
    packages = install(CLIENT, cache).parent.parent
    told = {"in process": speak(packages, "--memory", *PACE), "as a bridge": speak_to_server(packages)}
    return {"package": CLIENT.package, "day": date.today().isoformat(),
            "told": {how: each["ends"] for how, each in told.items()},
            "right": all(each["ends"] == ENDS and LAST in each["heard"] for each in told.values())}
