"""Tables of the page, as HTML."""

from collections.abc import Iterable, Sequence
from html import escape


def draw_table(
    caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]], css: str = "", right: Iterable[int] = (),
) -> str:
    """A table of HTML cells, the first of each row its heading."""
    numbers = set(right)

    def css_of(i: int) -> str:
        return ' class="number"' if i in numbers else ""

    head = "".join(f'<th scope="col"{css_of(i)}>{heading}</th>' for i, heading in enumerate(headings))
    body = "".join(
        f'<tr><th scope="row">{first}</th>'
        + "".join(f'<td{css_of(i)} data-head="{escape(headings[i])}">{cell}</td>' for i, cell in enumerate(rest, 1))
        + "</tr>" for first, *rest in rows)
    return (f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(caption)}"><table class="{css}">'
            f'<caption class="unseen">{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody>'
            "</table></div>")
