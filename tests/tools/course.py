"""Builds the course: runs the notebooks, and writes each as an HTML page and as an .ipynb with its outputs. `make
notebooks` calls it.

A notebook is a Python file in jupytext's percent format. Tags on its cells declare what they show: a cell tagged
`picture` must show one, and no other cell may; a cell tagged `reveal` is collapsed on the page until the reader opens
it, and one tagged `wide` may be wider than the text.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from itertools import groupby, takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from pygments.formatters import HtmlFormatter
from rich.progress import track
from traitlets.config import Config

from cancelmark.impl.files import write

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
PICTURE = "picture"
TAGS = (PICTURE, "reveal", "wide")
SVG, HTML = "image/svg+xml", "text/html"
PATIENCE = 300  # seconds for one cell: only a guard against hanging


def sources(folder: Path = FOLDER) -> list[Path]:
    """The notebooks, in reading order."""
    return sorted(folder.glob("[0-9]*.py"))


def run(source: Path, before: str = "", after: str = "") -> NotebookNode:
    """The notebook with its outputs, up to the first error. `before` runs before its first cell, `after` after its
    last."""
    notebook: NotebookNode = jupytext.read(source)
    notebook.cells[:0] = [new_code_cell(before)] if before else []
    notebook.cells += [new_code_cell(after)] if after else []
    with TemporaryDirectory() as folder:
        files = Config(KernelManager={"transport": "ipc", "ip": f"{folder}/kernel"})  # Unix sockets instead of ports
        client = NotebookClient(notebook, kernel_name="python3", config=files, timeout=PATIENCE,
                                resources={"metadata": {"path": folder}})
        with suppress(CellExecutionError):  # `problems` finds it in the outputs
            client.execute(env={**os.environ, "IPYTHONDIR": folder, "PYDEVD_DISABLE_FILE_VALIDATION": "1"})
    return notebook


def problems(notebook: NotebookNode) -> list[str]:
    """The problems of a notebook that was run, a line each: errors, warnings, and pictures that are missing, broken or
    not declared."""
    found = []
    for number, cell in enumerate((c for c in notebook.cells if c.cell_type == "code"), 1):
        where = f"cell {number}, {cell.source.splitlines()[0] if cell.source else 'empty'!r}"
        pictures = [output.data for output in cell.outputs if {SVG, HTML} & set(output.get("data", ()))]
        for output in cell.outputs:
            if output.output_type == "error":
                found.append(f"{where}: {output.ename}: {output.evalue}")
            elif output.get("name") == "stderr":
                found.append(f"{where}: output on stderr: {output.text.strip()}")
        if cell.execution_count is None and cell.source:
            found.append(f"{where}: not run")
        elif pictures and PICTURE not in cell.metadata.get("tags", ()):
            found.append(f"{where}: shows a picture without the tag {PICTURE!r}; add the tag")
        elif not pictures and PICTURE in cell.metadata.get("tags", ()):
            found.append(f"{where}: has the tag {PICTURE!r} and shows no picture")
        found += [f"{where}: {fault}" for picture in pictures if (fault := _fault(picture))]
    return found


def _fault(picture: Any) -> str | None:
    """What is wrong with a picture or a table, or None."""
    if SVG not in picture:
        return None if "</caption>" in picture[HTML] else "a table without a caption"
    try:
        root = ElementTree.fromstring(picture[SVG])
    except ElementTree.ParseError as error:
        return f"a picture that is not well-formed: {error}"
    said = {child.tag.rpartition("}")[2] for child in root if child.text}
    return None if {"title", "desc"} <= said else "a picture without a title and a description in words"


def title(notebook: NotebookNode) -> str:
    """The notebook's first heading."""
    return str(notebook.cells[0].source.splitlines()[0].lstrip("# "))


def fold_answers(notebook: NotebookNode) -> NotebookNode:
    """The notebook with the text after a collapsed cell collapsed too, up to the next heading or question."""
    folded = deepcopy(notebook)
    cells = []
    for cell, before in zip(folded.cells, [None, *folded.cells]):
        if before is None or cell.cell_type != "markdown" or "reveal" not in before.metadata.get("tags", ()):
            cells.append(cell)
            continue
        paragraphs = cell.source.split("\n\n")
        told = list(takewhile(lambda text: not text.startswith("#") and "**Predict" not in text, paragraphs))
        if told:
            before.metadata["answered"] = True
            cells.append(new_markdown_cell("\n\n".join(told), metadata={"answer": True}))
        if rest := paragraphs[len(told):]:
            cells.append(new_markdown_cell("\n\n".join(rest)))
    folded.cells = cells
    return folded


def keep(notebook: NotebookNode, source: Path) -> str:
    """The notebook with its outputs as a small, reproducible .ipynb that a code host can show."""
    kept = deepcopy(notebook)
    kept.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
                     "language_info": {"name": "python"}, "source": source.name}
    for number, cell in enumerate(kept.cells, 1):
        cell["id"] = f"cell-{number}"
        cell.metadata = {"tags": cell.metadata["tags"]} if cell.metadata.get("tags") else {}
        if cell.cell_type == "code":
            cell.outputs = list(_joined(cell.outputs))
    return str(nbformat.writes(kept)) + "\n"


def _joined(outputs: Sequence[NotebookNode]) -> Iterator[NotebookNode]:
    """The outputs with consecutive prints joined, and pictures without their text form."""
    for kind, group in groupby(outputs, lambda output: output.output_type):
        if kind == "stream":
            pieces = list(group)
            yield new_output("stream", name="stdout", text="".join(piece.text for piece in pieces))
            continue
        for output in group:
            data = output.get("data", {})
            if SVG in data or HTML in data:
                data.pop("text/plain", None)
            yield output


def page(notebook: NotebookNode, source: Path, pages: Sequence[tuple[str, str]]) -> str:
    """The notebook as a self-contained HTML page. `pages` are all pages of the course: title and address."""
    light = HtmlFormatter(style="default").get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    css = f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}\n.highlight {{ background: none; }}"
    exporter = HTMLExporter(template_name="course", extra_template_basedirs=[str(FOLDER / ".template")])
    html, _ = exporter.from_notebook_node(fold_answers(notebook), {"course": {
        "title": title(notebook), "source": source.name, "code_css": css,
        "pages": [{"title": t, "href": href} for t, href in pages]}})
    return str(html)


def main() -> int:
    parser = argparse.ArgumentParser("tests/tools/course.py", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("build/notebooks"), help="folder for the pages")
    output: Path = parser.parse_args().output
    found = sources()
    output.mkdir(parents=True, exist_ok=True)
    pages = [(title(jupytext.read(source)), f"{source.stem}.html") for source in found]
    wrong = 0
    for source in track(found, "running the notebooks", disable=not sys.stderr.isatty()):
        notebook = run(source)
        write(output / f"{source.stem}.html", page(notebook, source, pages))
        if not problems(notebook):
            write(source.with_suffix(".ipynb"), keep(notebook, source))
        for problem in problems(notebook):
            wrong += 1
            print(f"{source.name}: {problem}", file=sys.stderr)
    print(f"{len(found)} notebooks in {output}; start with {output / pages[0][1]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
