"""`opencode serve`, isolated from the user's files."""

import asyncio
import json
from pathlib import Path
from urllib.request import urlopen

from cancelmark.conformance.adapter.fake_llm import SIDE, TURN
from cancelmark.conformance.adapter.process import ServerProcess

START = 120.0  # seconds
OFFLINE = dict.fromkeys((
    "OPENCODE_DISABLE_AUTOUPDATE", "OPENCODE_DISABLE_MODELS_FETCH", "OPENCODE_DISABLE_LSP_DOWNLOAD",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS"), "1")


class OpencodeServer(ServerProcess):
    """`opencode serve` with the language model at `model_url`."""

    def __init__(self, program: Path, model_url: str) -> None:
        super().__init__([program, "serve", "--hostname", "127.0.0.1", "--port", "{port}"], ready="/session/status",
                         environment=OFFLINE, start=START)
        (self.work / "opencode.json").write_text(json.dumps(configuration(model_url)))

    async def description(self) -> dict[str, str]:
        """The descriptions in its OpenAPI document, by operation, as in `POST /session`."""
        def read() -> bytes:
            with urlopen(f"{self.url}/doc", timeout=START) as answer:
                return bytes(answer.read())

        paths = json.loads(await asyncio.to_thread(read))["paths"]
        return {f"{method.upper()} {path}": operation.get("description", "")
                for path, operations in paths.items() for method, operation in operations.items()}


def configuration(model_url: str) -> dict[str, object]:
    """`opencode.json`: the fake model `turn` for turns, and `side` for titles, which are not turns."""
    provider = {
        "npm": "@ai-sdk/openai-compatible", "name": "fake", "options": {"baseURL": model_url, "apiKey": "none"},
        "models": {TURN: {"name": TURN}, SIDE: {"name": SIDE}},
    }
    return {"model": f"fake/{TURN}", "small_model": f"fake/{SIDE}", "provider": {"fake": provider},
            "share": "disabled", "autoupdate": False}
