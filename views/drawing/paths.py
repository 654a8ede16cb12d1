"""The four paths through a diagram, and how each is drawn: by line first, so that it reads without colour."""

from collections.abc import Iterable
from enum import Enum


class Path(Enum):
    """Which story an edge belongs to: its CSS class, its Graphviz line style, its sign in Mermaid, its legend."""

    HAPPY = ("happy", "bold", "▶", "undisturbed")
    ORDINARY = ("ordinary", "solid", "", "queue")
    CANCEL = ("cancel", "dashed", "✕", "canceled")
    FAULT = ("fault", "dotted", "⚡", "failed")

    def __init__(self, css: str, line: str, sign: str, legend: str) -> None:
        self.css, self.line, self.sign, self.legend = css, line, sign, legend

    def with_sign(self, text: str) -> str:
        """`text` as Mermaid shows it, where edges have no line styles and the sign has to say it."""
        return f"{self.sign} {text}".strip()


def mermaid_legend(paths: Iterable[Path], beside: str, remark: str = "") -> list[str]:
    """The signs explained in a note beside a state, and a remark."""
    text = [path.with_sign(path.legend) for path in Path if path.sign and path in paths] + [remark] * bool(remark)
    return [f"    note left of {beside}", *(f"        {line}" for line in text), "    end note"] if text else []
