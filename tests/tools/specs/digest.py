"""The parts of the specification that the review page embeds, as JSON: rules, the family, SPIN's counts, the proof."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .rules import rules

_ROW = re.compile(r"^\| ((?:\w+=\d+ ?)+) \| ([\d,]+) \| ([\d,]+) \|", re.MULTILINE)
_CLAIM = re.compile(r"^\| \*\*([\w-]+)\*\* \| (.*) \|$", re.MULTILINE)


def digest(specs: Path) -> str:
    """The content of specs/ that the page shows, packaged so that an installed command has it."""
    protocol, formal, proof, family = (
        (specs / f"{name}.md").read_text(encoding="utf-8") for name in ("protocol", "formal", "proof", "family"))
    content = {
        "rules": [{"id": rule.id, "title": rule.title, "text": plain(rule.text),
                   "clauses": {id: plain(text) for id, text in rule.clauses.items()}} for rule in rules(protocol)],
        "why": list(reasons(protocol)),
        "unpromised": [plain(item) for item in re.findall(
            r"^- (.*?)(?=^- |\Z)", protocol.partition("## What is not guaranteed\n")[2].partition("\n## ")[0],
            re.MULTILINE | re.DOTALL)],
        "spin": spin_counts(formal),
        "proof": proof_claims(proof),
        "family": {
            "bounds": re.findall(r"explored exhaustively with ([\w= ]+)\.", family)[0],
            "sets": {features: states for features, states, *_ in table_of(family, "Every set of features")},
            "holding": sum("hold" in verdict for *_, verdict in table_of(family, "Every set of features")),
            "policies": table_of(family, "Policies of known servers"),
            "mistakes": {name: trace for name, _, _, trace, _ in table_of(family, "Plausible mistakes")},
        },
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def plain(text: str) -> str:
    """Markdown without links, tables and images, on one line. `code` keeps its backticks."""
    text = re.sub(r"<!--.*?-->|!\[[^\]]*\]\([^)]*\)", "", text, flags=re.DOTALL)
    text = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text)
    return " ".join(re.sub(r"(?<!\w)\*{1,2}([^*]+)\*{1,2}", r"\1", text).split())


def reasons(protocol: str) -> Iterator[dict[str, str]]:
    """The questions and answers in the section \"Why it is so\"."""
    section = protocol.partition("## Why it is so")[2]
    for title, text in re.findall(r"^\*\*(Why [^*]+)\.\*\* (.*?)(?=^\*\*|\Z)", section, re.MULTILINE | re.DOTALL):
        yield {"title": title, "text": plain(text.partition("The history behind these")[0])}


def spin_counts(formal: str) -> list[dict[str, Any]]:
    return [{"bounds": bounds, "states": int(states.replace(",", "")), "edges": int(edges.replace(",", ""))}
            for bounds, states, edges in _ROW.findall(formal)]


def table_of(page: str, title: str) -> list[list[str]]:
    """The rows of the first table under that heading."""
    section = page.partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return rows[2:]


def proof_claims(proof: str) -> dict[str, Any]:
    asked = re.search(r"in\s+([\d,]+)\s+proof\s+obligations", proof)
    assert asked, "specs/proof.md does not give the number of proof obligations"
    invariant = proof.partition("## The invariant")[2].partition("\n## ")[0]
    return {"questions": int(asked[1].replace(",", "")), "invariant": dict(_CLAIM.findall(invariant))}
