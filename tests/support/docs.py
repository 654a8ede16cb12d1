"""The pages of the repository, and what is in them."""

import re
from collections.abc import Sequence
from pathlib import Path

from support.paths import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "specs").rglob("*.md"),
                *(ROOT / "bench").glob("*.md")])


def code_blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of this language."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def commands_with_output(page: Path) -> list[tuple[str, list[str]]]:
    """The indented blocks that begin with `$ COMMAND`, each with the lines below it."""
    blocks = re.findall(r"^    \$ (.+)\n((?:    .*\n)+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [(command, [line[4:] for line in shown.splitlines()]) for command, shown in blocks]


def heading_anchors(page: Path) -> set[str]:
    """The anchors of the headings, as hosts of repositories make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.replace("`", "")).lower().replace(" ", "-") for heading in headings}


def matches(lines: Sequence[str], shown: Sequence[str]) -> bool:
    """Whether the lines are what is shown. A line `…` stands for any lines or none, `…` in a line for any text."""
    pattern = "".join(r"(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + r"\n" for line in shown)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines)) is not None
