"""opencode from the npm registry, installed and run so that nothing of this machine's user is read or changed."""

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from urllib.request import urlopen

from cancelmark.conformance.adapter.fake_llm import SIDE, TURN
from cancelmark.conformance.adapter.process import NotRunning, ServerProcess

START = 120.0  # seconds
OFFLINE = dict.fromkeys((
    "OPENCODE_DISABLE_AUTOUPDATE", "OPENCODE_DISABLE_MODELS_FETCH", "OPENCODE_DISABLE_LSP_DOWNLOAD",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS"), "1")


def install(directory: Path, version: str) -> Path:
    """The program, installed into this directory if it is not there already."""
    npm = shutil.which("npm")
    if npm is None:
        raise NotRunning("npm is needed and is not on the PATH; install Node.js with npm (Debian: apt install npm)")
    done = subprocess.run(
        [npm, "install", "--prefix", str(directory), "--no-audit", "--no-fund", "--loglevel=error",
         f"opencode-ai@{version}"], capture_output=True, text=True, check=False)
    program = directory / "node_modules" / ".bin" / "opencode"
    if done.returncode or not program.exists():
        raise NotRunning(f"npm could not install opencode-ai@{version}:\n{done.stderr.strip()}")
    return program


class OpencodeServer(ServerProcess):
    """`opencode serve`, whose language model is at `model_url`."""

    def __init__(self, program: Path, model_url: str) -> None:
        super().__init__([program, "serve", "--hostname", "127.0.0.1", "--port", "{port}"], ready="/session/status",
                         environment=OFFLINE, start=START)
        (self.work / "opencode.json").write_text(json.dumps(configuration(model_url)))

    @property
    def version(self) -> str:
        return subprocess.run([self.command[0], "--version"], cwd=self.work, env=self.environment, capture_output=True,
                              text=True, check=True, timeout=START).stdout.strip()

    async def description(self) -> dict[str, str]:
        """What its OpenAPI description says, by operation, as in `POST /session`."""
        def read() -> bytes:
            with urlopen(f"{self.url}/doc", timeout=START) as answer:
                return bytes(answer.read())

        paths = json.loads(await asyncio.to_thread(read))["paths"]
        return {f"{method.upper()} {path}": operation.get("description", "")
                for path, operations in paths.items() for method, operation in operations.items()}


def configuration(model_url: str) -> dict[str, object]:
    """`opencode.json`: the fake model for turns, and its other model for titles, which are no turns."""
    provider = {
        "npm": "@ai-sdk/openai-compatible", "name": "fake", "options": {"baseURL": model_url, "apiKey": "none"},
        "models": {TURN: {"name": TURN}, SIDE: {"name": SIDE}},
    }
    return {"model": f"fake/{TURN}", "small_model": f"fake/{SIDE}", "provider": {"fake": provider},
            "share": "disabled", "autoupdate": False}
