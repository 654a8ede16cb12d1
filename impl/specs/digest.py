"""The specification as the review page takes it with it: rules, what SPIN counted and what is proved, as JSON."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .rules import rules

_ROW = re.compile(r"^\| ((?:\w+=\d+ ?)+) \| ([\d,]+) \| ([\d,]+) \|", re.MULTILINE)
_CLAIM = re.compile(r"^\| \*\*([\w-]+)\*\* \| (.*) \|$", re.MULTILINE)


def digest(specs: Path) -> str:
    """What the page shows of specs/, so that an installed command has it too."""
    protocol, formal, proof = (
        (specs / name).read_text(encoding="utf-8") for name in ("protocol.md", "formal.md", "proof.md"))
    content = {
        "rules": [{"id": rule.id, "title": rule.title,
                   "clauses": {id: plain(text) for id, text in rule.clauses.items()}} for rule in rules(protocol)],
        "why": list(reasons(protocol)),
        "spin": spin_counts(formal),
        "proof": proof_claims(proof),
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def plain(text: str) -> str:
    """Markdown without its links, tables and pictures, in one line; `code` stays marked."""
    text = re.sub(r"<!--.*?-->|!\[[^\]]*\]\([^)]*\)", "", text, flags=re.DOTALL)
    text = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text)
    return " ".join(re.sub(r"(?<!\w)\*{1,2}([^*]+)\*{1,2}", r"\1", text).split())


def reasons(protocol: str) -> Iterator[dict[str, str]]:
    """The questions and answers of \"Why it is so\"."""
    section = protocol.partition("## Why it is so")[2]
    for title, text in re.findall(r"^\*\*(Why [^*]+)\.\*\* (.*?)(?=^\*\*|\Z)", section, re.MULTILINE | re.DOTALL):
        yield {"title": title, "text": plain(text.partition("The history behind these")[0])}


def spin_counts(formal: str) -> list[dict[str, Any]]:
    return [{"bounds": bounds, "states": int(states.replace(",", "")), "edges": int(edges.replace(",", ""))}
            for bounds, states, edges in _ROW.findall(formal)]


def proof_claims(proof: str) -> dict[str, Any]:
    asked = re.search(r"in\s+([\d,]+)\s+questions", proof)
    assert asked, "specs/proof.md does not say how many questions are asked"
    invariant = proof.partition("## The invariant")[2].partition("\n## ")[0]
    return {"questions": int(asked[1].replace(",", "")), "invariant": dict(_CLAIM.findall(invariant))}
