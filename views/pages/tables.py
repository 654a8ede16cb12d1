"""Markdown tables."""

from collections.abc import Iterable, Sequence

from cancelmark.model.actions import Variant
from cancelmark.model.revisions.matrix import JUDGED, Column

KINDS: dict[Variant, str] = {False: "no run id", True: "run id", "in process": "in process"}


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], right: Iterable[int] = ()) -> str:
    """A Markdown table. The columns in `right` are right-aligned."""
    rule = ["---:" if i in set(right) else "---" for i in range(len(headings))]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (headings, rule, *rows)) + "\n"


def matrix_table(columns: Sequence[Column]) -> str:
    """The verdict matrix by property and revision. A number is the length of the shortest counterexample."""
    return table(("property", *(c.name for c in columns)), (
        (p.id, *(c.cell(p.id).replace("fails", "**fails**") for c in columns)) for p in JUDGED))
