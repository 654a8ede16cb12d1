"""`cancelmark check` as benchmarks run it."""

import json
import subprocess
import sys
from typing import Any

from cancelmark.model.properties import Bounds

RUN = "raise SystemExit(__import__('cancelmark.impl.cli.main', fromlist=['main']).main())"
# As if there was no place to keep what is compiled: it is compiled each time.
COMPILE = "from cancelmark.model.check.fast import library; library.folders = lambda: iter(()); "


def bound_options(bounds: Bounds) -> list[str]:
    return [text for name, n in vars(bounds).items() for text in (f"--{name}", str(n))
            if n or name == "prompts"]


def check(bounds: Bounds, engine: str | None = None, *, anew: bool = False) -> dict[str, Any]:
    """What `cancelmark check` reports at these bounds, from a fresh process. `anew`: the engine is compiled too."""
    options = [*bound_options(bounds), *(["--engine", engine] if engine else [])]
    done = subprocess.run(
        [sys.executable, "-c", COMPILE * anew + RUN, "check", "--json", "--max-states", "100000000", *options],
        stdout=subprocess.PIPE, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report
