"""Writes specs/conformance.md: the kit judges the servers of tests/support/samples. `make specs` runs it."""

from support.paths import ROOT
from support.samples.page import conformance_page
from tools.specs.pages import HEADER

if __name__ == "__main__":
    (ROOT / "specs" / "conformance.md").write_text(HEADER + conformance_page(), encoding="utf-8")
