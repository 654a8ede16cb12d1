"""`cancelmark check` as benchmarks run it."""

import json
import os
import subprocess
import sys
from typing import Any

from cancelmark.model.properties import Bounds


def check(bounds: Bounds, engine: str | None = None, **environment: str) -> dict[str, Any]:
    """What `cancelmark check` reports at these bounds, from a fresh process."""
    options = [text for name, n in vars(bounds).items() for text in (f"--{name}", str(n))]
    options += ["--engine", engine] if engine else []
    done = subprocess.run(
        [sys.executable, "-m", "cancelmark.impl.cli.main", "check", "--json", "--max-states", "100000000", *options],
        stdout=subprocess.PIPE, check=True, env={**os.environ, **environment})
    report: dict[str, Any] = json.loads(done.stdout)
    return report
