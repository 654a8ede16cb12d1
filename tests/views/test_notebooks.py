"""The course runs from top to bottom, shows every picture that it promises, and its solutions find every hidden bug."""

import json
import re
import sys
import tomllib
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import groupby
from pathlib import Path
from textwrap import dedent

import jupytext
import nbformat
import pytest
from nbformat import NotebookNode
from support.browsing import Sight, chromium, inaccessible
from support.shared_fixture import once
from tools.course import FOLDER, HTML, PICTURE, SVG, TAGS, main, page, problems, run, sources, title

SOURCES = sources()


@pytest.fixture
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], NotebookNode]:
    """A notebook with its outputs. None is run twice."""
    def made(source: Path) -> NotebookNode:
        answers = re.findall(r"^# ```python\n(.*?)^# ```$", source.read_text(), re.DOTALL | re.MULTILINE)
        code = [re.sub(r"^# ?", "", answer, flags=re.MULTILINE) for answer in answers]
        after = "\n".join([*code, dedent(SHOWN[source.stem])])
        return nbformat.reads(once(tmp_path_factory, source.stem, lambda: nbformat.writes(run(source, after=after))), 4)

    return made


SOLVED = "from cancelmark.views.course.exercises import FOUND, HIDDEN; assert set(HIDDEN) == FOUND, (HIDDEN, FOUND)"

# What a notebook's text says of its results, asked after its last cell and the answers that stand in its text.
SHOWN = {
    "1_the_race": """
        assert lost.ends == {"A": "end_turn"} and lost.complaints()
        assert poisoned.ends == {"A": "end_turn", "B": "canceled"} and poisoned.complaints()
        assert siblings.ends == {"A": "canceled", "B": "end_turn"} and siblings.complaints()
        assert eaten.ends == {"A": "end_turn", "C": "canceled"} and len(eaten.complaints()) == 2
        assert not play(ChatServer, stop_an_answer).complaints()
        assert not play(FlagServer, stop_at_once).complaints()
        assert not play(CarefulFlagServer, stop_too_late).complaints()
        assert not play(CarefulFlagServer, stop_at_once).complaints()
        assert play(CounterServer, two_and_a_cancel).ends == {"A": "canceled", "B": "canceled"}
        assert play(CounterServer, overtaken).ends == {"A": "end_turn", "C": "canceled"}
        assert all(0 < wrong < orders for _, orders, wrong, _ in rows)
        assert reference.verdict == "holds" and {"no-lost-cancel", "no-poisoning"} <= set(second.violations)
    """,
    "2_the_mark": """
        assert right.ends == {"A": "canceled", "C": "end_turn"} and not right.complaints()
        assert aside(every_order, MarkServer).startswith("0 of")
        assert not aside(every_order, HesitantServer).startswith("0 of")
        assert result.verdict == "holds" and len(space(1).states) == 8 and series["no cancel"][2] == 899
        assert all(after > 9 * before for counts in series.values() for before, after in zip(counts[:-1], counts[1:]))
        assert all(v.verdict.value == "proved" for v in verdicts)
    """,
    "3_oracle_model_machine": """
        assert set(broken.violations) == {"no-lost-cancel"} and len(counterexample) == 6
        def queued_in_order(step): return all(p.seq < q.seq for p in step.started for q in step.after.queue)
        weaker = Property("fifo", "In order, once queued.", queued_in_order)
        assert explore(REFERENCE, Bounds(prompts=3, cancels=1), properties=[weaker]).verdict == "holds"
        assert len(failures) > 1 and len(failures[-1]) in (4, 6) and len(failures[-1]) <= len(failures[0])
        assert len(wider.violations["no-lost-cancel"]) == 4
    """,
    "3_solutions": f"""
        assert silent.verdict == "holds" and reference.verdict == "holds"
        {SOLVED}
    """,
    "4_from_model_to_server": """
        assert [r.outcome.value for r in results] == ["canceled", "canceled", "end_turn"]
        assert ends == {"A": "error", "B": "end_turn", "C": "canceled", "D": "end_turn"}
        assert len(count) == 12 and set(count.values()) == {1}
        assert report.broken == ["fifo", "some-terminal"] and verdict.ok
    """,
    "5_your_own_protocol": """
        assert set(failed.violations) == {"no-lost-cancel", "queue-dropped"}
        assert {"cancel-stops", "no-lost-cancel"} & set(second.violations)
        assert mended.verdict == "holds" and differences(MENDED) == [("none", "–")]
        assert [call for call, _ in differences(KEEP)] == ["cancel"]
    """,
}
MENDED = "from cancelmark.views.course.exercises import HIDDEN, REFERENCE\nHIDDEN[{}] = REFERENCE"


SOLUTIONS = FOLDER / "3_solutions.py"


def test_the_course_is_five_evenings_and_the_solutions() -> None:
    assert [source.stem for source in SOURCES] == [
        "1_the_race", "2_the_mark", "3_oracle_model_machine", "3_solutions", "4_from_model_to_server",
        "5_your_own_protocol"]


@pytest.mark.real
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_it_runs_and_shows_what_it_promises(source: Path, outputs: Callable[[Path], NotebookNode]) -> None:
    notebook = outputs(source)
    assert problems(notebook) == []
    tags = [tag for cell in notebook.cells for tag in cell.metadata.get("tags", ())]
    assert set(tags) <= set(TAGS)
    assert tags.count(PICTURE) >= 5
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert text.lower().count("predict") >= 3 or source == SOLUTIONS, "a reader is asked before being told"
    assert len(text.split()) / 180 < 40, "no more than 45 minutes, with what there is to try"


def test_its_pages_need_nothing_else_and_can_be_read_by_everybody(
    outputs: Callable[[Path], NotebookNode], tmp_path: Path,
) -> None:
    file = tmp_path / "page.html"
    with chromium() as browser:
        for source in SOURCES:
            notebook = outputs(source)
            file.write_text(page(notebook, source, [(title(notebook), "page.html")]))
            # Axe takes seconds for a page with many pictures, and all pages have the same style: one is judged dark.
            for scheme, width in (("light", 1000), ("dark", 1000 if source == SOURCES[0] else 390)):
                tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
                sight = Sight(tab, "file:")
                tab.goto(file.as_uri())
                tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
                assert not sight.errors
                assert not sight.elsewhere
                assert tab.evaluate("document.documentElement.scrollWidth") <= width, "it scrolls sideways"
                assert width < 1000 or inaccessible(tab) == []
                tab.close()


@pytest.mark.real
def test_a_solution_that_finds_no_bug_fails() -> None:
    """Where there is nothing to find, or something that nobody looks for, the solutions do not pass."""
    [missed, *_] = problems(run(SOLUTIONS, before=MENDED.format(1)))
    assert "min() iterable argument is empty" in missed or "min() arg is an empty sequence" in missed
    more = "from cancelmark.views.course.exercises import HIDDEN\nHIDDEN[7] = HIDDEN[1]"
    [unsolved] = problems(run(SOLUTIONS, before=more, after=SOLVED))
    assert "AssertionError" in unsolved


# --- The judge can fail

def made_up(tmp_path: Path, *cells: str) -> NotebookNode:
    source = tmp_path / "1_made_up.py"
    source.write_text("# %% [markdown]\n# # Made up\n\n" + "\n\n".join(f"# %%{cell}" for cell in cells))
    return run(source)


PICTURE_CELL = ' tags=["picture"]\nfrom cancelmark.views.notebook import Picture, Sheet\n'
GOOD = "<svg xmlns='http://www.w3.org/2000/svg'><title>t</title><desc>d</desc></svg>"


@pytest.mark.real
def test_the_judge_finds_what_is_wrong(tmp_path: Path) -> None:
    bad = made_up(
        tmp_path,
        f'{PICTURE_CELL}Picture("{GOOD}")',
        ' tags=["picture"]\n1 + 1',
        f'\nPicture("{GOOD}")',
        ' tags=["picture"]\nPicture("<svg>")',
        ' tags=["picture"]\nPicture("<svg xmlns=\'http://www.w3.org/2000/svg\'/>")',
        ' tags=["picture"]\nSheet("<table></table>")',
        "\nimport sys\nprint('careful', file=sys.stderr)",
        "\n1 / 0",
        "\nprint('too late')",
    )
    found = problems(bad)
    assert [problem.partition(",")[0] for problem in found] == [f"cell {n}" for n in (2, 3, 4, 5, 6, 7, 8, 9)]
    for problem, said in zip(found, (
            "shows no picture", "without the tag", "not well-formed", "title and a description", "caption",
            "careful", "ZeroDivisionError", "not run")):
        assert said in problem


@pytest.mark.real
def test_make_notebooks_writes_pages_and_fails_if_something_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    made = tmp_path / "1_made_up.py"
    made.write_text(f'# %% [markdown]\n# # Made up\n\n# %%{PICTURE_CELL}Picture("{GOOD}")\n')
    monkeypatch.setattr("tools.course.sources", lambda: [made])
    monkeypatch.setattr(sys, "argv", ["notebooks", "-o", str(tmp_path / "pages")])
    assert main() == 0
    html = (tmp_path / "pages" / "1_made_up.html").read_text()
    assert "<title>Made up · Cancelmark</title>" in html
    assert "<desc>d</desc>" in html
    HTMLParser().feed(html)
    made.write_text(made.read_text().replace("Picture(", "str("))
    assert main() == 1
    assert "has the tag 'picture' and shows no picture" in capsys.readouterr().err


# --- What a reader has to install and to open

@pytest.mark.real
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_the_notebook_beside_its_source_is_not_stale(
    source: Path, outputs: Callable[[Path], NotebookNode],
) -> None:
    kept = nbformat.read(source.with_suffix(".ipynb"), 4)
    cells = jupytext.read(source).cells
    assert [cell.source for cell in kept.cells] == [cell.source for cell in cells], "run `make notebooks`"
    run_now = outputs(source).cells[:len(cells)]
    assert [shown(cell) for cell in kept.cells] == [shown(cell) for cell in run_now], "run `make notebooks`"
    assert source.with_suffix(".ipynb").stat().st_size < 500_000


def shown(cell: NotebookNode) -> list[str]:
    """What a cell shows, in kind: figures of time may differ."""
    kinds = [SVG if SVG in data else HTML if HTML in data else output.output_type
             for output in cell.get("outputs", ()) for data in [output.get("data", {})]]
    return [kind for kind, _ in groupby(kinds)]


def test_a_guess_is_clicked_and_judged_and_the_answer_is_closed_until_then(
    outputs: Callable[[Path], NotebookNode], tmp_path: Path,
) -> None:
    source, file = SOURCES[0], tmp_path / "page.html"
    notebook = outputs(source)
    file.write_text(page(notebook, source, [(title(notebook), "page.html")]))
    with chromium() as browser:
        tab = browser.new_page()
        tab.goto(file.as_uri())
        told = tab.get_by_text("The user pressed Stop, and the server acknowledged it.")
        assert not told.is_visible()
        guess = tab.locator(".guess").first
        guess.get_by_role("button", name="A ends canceled").click()
        assert guess.get_by_role("status").inner_text() == "Surprised: A ended end_turn."
        assert told.is_visible()
        guess.get_by_role("button", name="A ends end_turn").click()
        assert guess.get_by_role("status").inner_text() == "Right."


def test_code_fits_on_the_page() -> None:
    assert not [line for source in SOURCES for line in source.read_text().splitlines()
                if len(line) > 84 and not line.startswith("#")]


def test_only_the_lab_needs_jupyterlab() -> None:
    extras = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert [name for name, needs in extras.items() if any("jupyterlab" in need for need in needs)] == ["lab"]
    assert not any("lab" in need for need in extras["dev"])


def test_make_lab_opens_the_sources_as_notebooks() -> None:
    """As far as it can be seen without JupyterLab: the folder of settings that it is told to use, and what they say."""
    makefile = (FOLDER.parent / "Makefile").read_text()
    assert re.search(r"^notebooks:.*## ", makefile, re.MULTILINE)
    assert re.search(r"^lab:.*## ", makefile, re.MULTILINE)
    [settings] = re.findall(r"--LabApp.app_settings_dir=(\S+)", makefile)
    said = json.loads((FOLDER.parent / settings / "overrides.json").read_text())
    assert said["@jupyterlab/docmanager-extension:plugin"] == {"defaultViewers": {"python": "Jupytext Notebook"}}
    for source in SOURCES:
        assert jupytext.read(source).metadata.kernelspec.name == "python3"
