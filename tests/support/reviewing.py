"""The review page as the command makes it, and what was found on the way: costly, so that a test run makes it once."""

import contextlib
import gzip
import io
import json
import re
from base64 import b64decode
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cancelmark.impl.cli.main import main
from cancelmark.impl.cli.review import command, findings
from cancelmark.impl.cli.review.findings import Findings


class Review(NamedTuple):
    """What `cancelmark review` did."""

    path: Path
    html: str
    said: str
    code: int
    found: Findings

    @property
    def url(self) -> str:
        return self.path.as_uri()

    @property
    def told(self) -> dict[str, Any]:
        found = re.search(r'<script type="application/json" id="payload">(.*?)</script>', self.html, re.DOTALL)
        assert found
        return dict(json.loads(found[1]))

    def graph(self, name: str) -> dict[str, Any]:
        found = re.search(rf'id="graph-{name}">(.*?)</script>', self.html)
        assert found
        return dict(json.loads(gzip.decompress(b64decode(found[1]))))


def make_review(path: Path) -> Review:
    """The page as people make it, and what was found on the way, for tests that change it."""
    kept: list[Findings] = []
    find_out = findings.compute_findings
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as said:
        patch.setattr(command, "compute_findings", lambda workers: kept.append(find_out(workers)) or kept[0])
        code = main(["review", "-o", str(path)])
    return Review(path, path.read_text(), said.getvalue(), code, kept[0])


def targets_of(graph: dict[str, Any]) -> list[int]:
    met, found = 1, []
    for back in graph["targets"]:
        found.append(met - back)
        met += back == 0
    return found


def steps_by_state(graph: dict[str, Any]) -> list[list[tuple[list[Any], int]]]:
    """For each state its steps, each with the state it leads to."""
    whole = iter(zip((graph["steps"]["values"][i] for i in graph["steps"]["data"]), targets_of(graph)))
    return [[next(whole) for _ in range(degree)] for degree in graph["degrees"]]
