"""The official TypeScript client, from npm, as an editor of `cancelmark acp`: `make field ONLY=typescript-client`.

A prompt runs, another one waits, both are canceled, and a third comes right behind the cancel: in process, and as a
bridge to a running server. It is right if the client is told that the first two were canceled and the third was
answered.
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
    """What the client was told by the agent that is started with these options."""
    home = Home("cancelmark-editor-")
    try:
        done = subprocess.run(["node", EDITOR, *CANCELMARK, "acp", *options], cwd=packages, env=home.environment,
                              capture_output=True, text=True, check=False, timeout=LIMIT)
    except subprocess.TimeoutExpired as error:
        raise Skipped(f"the client has not ended in {LIMIT} s") from error
    finally:
        home.remove()
    if done.returncode:
        raise Skipped(f"the client has failed: {done.stderr.strip()[-1000:]}")
    return dict(json.loads(done.stdout))


def speak_to_server(packages: Path) -> dict[str, Any]:
    server = ServerProcess([*CANCELMARK, "serve", "--port", "{port}", *PACE])
    try:
        asyncio.run(server.start())
        return speak(packages, "--url", server.url)
    finally:
        asyncio.run(server.close())


def try_client(cache: Path) -> dict[str, Any]:
    """What the client was told in either way, and whether that is right."""
    packages = install(CLIENT, cache).parent.parent
    told = {"in process": speak(packages, "--memory", *PACE), "as a bridge": speak_to_server(packages)}
    return {"package": CLIENT.package, "day": date.today().isoformat(),
            "told": {how: each["ends"] for how, each in told.items()},
            "right": all(each["ends"] == ENDS and LAST in each["heard"] for each in told.values())}
