"""The official TypeScript client, from npm, as an editor of `cancelmark acp`: `python -m examples.field.editor`.

A prompt runs, another one waits, both are canceled, and a third comes right behind the cancel: in process, and as a
bridge to a running server. Exits 1 if the client is told anything but that the first two were canceled and the third
was answered.
"""

import argparse
import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from cancelmark.conformance.adapter.process import Home, ServerProcess
from examples.field.agents import CACHE, Listed, Skipped, install

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
    finally:
        home.remove()
    if done.returncode:
        raise SystemExit(f"the client has failed: {done.stderr.strip()[-1000:]}")
    return dict(json.loads(done.stdout))


def speak_to_server(packages: Path) -> dict[str, Any]:
    server = ServerProcess([*CANCELMARK, "serve", "--port", "{port}", *PACE])
    try:
        asyncio.run(server.start())
        return speak(packages, "--url", server.url)
    finally:
        asyncio.run(server.close())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.field.editor", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=CACHE, help="for installations (default: %(default)s)")
    options = parser.parse_args()
    try:
        packages = install(CLIENT, options.cache).parent.parent
    except Skipped as why:
        print(f"{CLIENT.name}: skipped: {why}", file=sys.stderr)
        return 0
    told = {"in process": speak(packages, "--memory", *PACE), "as a bridge": speak_to_server(packages)}
    for how, each in told.items():
        print(f"{CLIENT.package}, {how}: {', '.join(each['ends'])}")
    return 0 if all(each["ends"] == ENDS and LAST in each["heard"] for each in told.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
