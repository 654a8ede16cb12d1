"""The four kinds of path through a diagram, and their styles. Line styles differ, so diagrams work without colour."""

from collections.abc import Iterable
from enum import Enum


class Path(Enum):
    """The kind of path that an edge belongs to: CSS class, Graphviz line style, Mermaid sign, and legend."""

    HAPPY = ("happy", "bold", "▶", "undisturbed")
    ORDINARY = ("ordinary", "solid", "", "queue")
    CANCEL = ("cancel", "dashed", "✕", "canceled")
    FAULT = ("fault", "dotted", "⚡", "failed")

    def __init__(self, css: str, line: str, sign: str, legend: str) -> None:
        self.css, self.line, self.sign, self.legend = css, line, sign, legend

    def with_sign(self, text: str) -> str:
        """`text` with the sign, for Mermaid diagrams, whose edges have no line styles."""
        return f"{self.sign} {text}".strip()


def mermaid_legend(paths: Iterable[Path], beside: str, remark: str = "") -> list[str]:
    """A note next to a state that explains the signs, followed by a remark."""
    text = [path.with_sign(path.legend) for path in Path if path.sign and path in paths] + [remark] * bool(remark)
    return [f"    note left of {beside}", *(f"        {line}" for line in text), "    end note"] if text else []
