"""What is generated in specs/ is not stale, is the same wherever it is made, and leads somewhere."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.budget import DEEP
from support.counts import PINNED
from support.paths import ROOT
from tools.specs import pages as specs
from tools.specs.pages import COUNTED, FILES, HEADER, SECTIONS, SLOW, filled
from tools.specs.tables import revisions_page

from cancelmark.model.revisions.matrix import Column

SPECS = ROOT / "specs"
PROTOCOL = (SPECS / "protocol.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [
    *sorted(set(FILES) - {"revisions.md"})])
def test_a_generated_file_is_not_stale(name: str) -> None:
    assert (SPECS / name).read_text(encoding="utf-8") == FILES[name](), "run `make specs`"


def test_the_page_of_revisions_is_not_stale(columns: dict[str, Column]) -> None:
    made = HEADER + revisions_page(list(columns.values()))
    assert (SPECS / "revisions.md").read_text(encoding="utf-8") == made, "run `make specs`"


def test_the_generated_sections_of_the_protocol_are_not_stale() -> None:
    assert filled(PROTOCOL, {name: make for name, make in SECTIONS.items() if name not in SLOW}) == PROTOCOL


def test_what_is_generated_is_the_same_on_another_machine(tmp_path: Path) -> None:
    """With another hash seed, locale, encoding, time zone, home and directory. `make test-deep` makes all of it so."""
    environment = {"PYTHONHASHSEED": "4242", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0",
                   "TZ": "Pacific/Kiritimati", "HOME": str(tmp_path), "COLUMNS": "40",
                   "PYTHONPATH": str(ROOT / "tests")}
    command = [sys.executable, "-m", "tools.specs", str(SPECS), "--check", *([] if DEEP else ["--quick"])]
    done = subprocess.run(command, cwd=tmp_path, env=environment, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_what_is_stale_is_named_and_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    copy = tmp_path / "specs"
    shutil.copytree(SPECS, copy)
    for name in ("model", "views", "conformance", "impl", "bench", "tests", "docs"):
        (tmp_path / name).symlink_to(SPECS.parent / name)
    protocol, drawing = copy / "protocol.md", copy / "diagrams" / "fold.svg"
    protocol.write_text(PROTOCOL.replace("| `drop` | queued |", "| `drop` | active |"), encoding="utf-8")
    drawing.unlink()
    monkeypatch.setattr(specs, "FILES", {name: FILES[name] for name in ("diagrams/fold.svg", "diagrams/fold.mmd")})
    monkeypatch.setattr(specs, "CLUSTER_SECTIONS", {})
    monkeypatch.setattr(specs, "traced", lambda root: None)
    monkeypatch.setattr(specs, "page", lambda _: (SPECS / "traceability.md").read_text().removeprefix(HEADER))
    monkeypatch.setattr(sys, "argv", ["specs", str(copy), "--quick", "--check"])
    assert specs.main() == 1
    assert capsys.readouterr().out == f"stale: {drawing}, {protocol}; run `make specs`\n"
    assert not drawing.exists()
    monkeypatch.setattr(sys, "argv", ["specs", str(copy), "--quick"])
    assert specs.main() == 0
    assert capsys.readouterr().out == f"wrote {drawing}\nwrote {protocol}\n"
    assert protocol.read_text(encoding="utf-8") == PROTOCOL
    assert drawing.read_bytes() == (SPECS / "diagrams" / "fold.svg").read_bytes()


def test_the_published_counts_are_the_pinned_ones() -> None:
    assert set(COUNTED) == set(PINNED)
    for bounds, (states, edges, depth) in PINNED.items():
        assert f"| {bounds} | {states:,} | {edges:,} | {depth} | holds |" in PROTOCOL


def test_every_section_is_asked_for_once() -> None:
    assert sorted(re.findall(r"<!-- generated: (\w+) -->", PROTOCOL)) == sorted(SECTIONS)
