"""Habits of language that make this code hard to read, kept out of docstrings, comments, messages and pages."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("model", "impl", "views", "conformance", "bench", "examples")
PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES += [*(ROOT / "docs").glob("*.md"),
          *(ROOT / "specs" / f"{name}.md" for name in ("protocol", "wire", "cluster", "trace", "formal", "threats"))]
SOURCES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


class Habit(NamedTuple):
    """Words, why they stop a reader, and what to write."""

    words: str
    why: str
    write: str


HABITS = [
    Habit(r"nobody|somebody|whoever|whom", "the actor is not named", "the caller, node, prompt or subscriber"),
    Habit(r"those who (?:wait|watch|ask)", "a component is not a person", "waiters, subscribers, callers"),
    Habit(r"stands? still|stood still", "private for a stuck session", "is stuck, is blocked"),
    Habit(r"comes? to nothing|in vain", "an idiom for a plain fact", "has no effect"),
    Habit(r"(?:tries|tried|trying) again", "the trade has a word", "retries (with backoff)"),
    Habit(r"closing twice is closing once", "the trade has a word", "idempotent"),
    Habit(r"(?<!there )(?:is|are|was|were) no (?:number|file|URL|JSON|call|request|prompt|session)",
          "foreign word order", "is not a …"),
    Habit(r"so that also|also not", "foreign word order", "even"),
    Habit(r"lets? go of|let go of", "an idiom for a technical operation", "releases"),
    Habit(r"who comes (?:second|late|too late)", "the actor is not named", "a late caller, the loser of the race"),
]

# Text that stays as it is, and why.
KEPT = {
    ("impl/store/schema.py", "nobody"): "a comment in a migration that was released",
    ("impl/cluster/moving.py", "nobody"): "the name of a parameter in SQL",
    ("conformance/playing/scenarios.py", "nobody"): "the names of scenarios, which users pass to --scenario",
    ("model/variants/bugs.py", "nobody"): "the names of variants, which users pass to --protocol",
    ("model/variants/bugs.py", "tried again"): "the same",
    ("model/variants/mistakes.py", "whoever"): "the same",
    ("views/course/exercises.py", "nobody"): "the same",
}


def spoken(source: str) -> Iterator[tuple[int, str]]:
    """The lines and texts of comments and of strings that are sentences."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def written(page: str) -> Iterator[tuple[int, str]]:
    """The lines of a page that are written by hand: no code, and nothing that is generated."""
    skip = ""
    for number, line in enumerate(page.splitlines(), 1):
        if skip:
            skip = "" if line.startswith(skip) else skip
        elif line.startswith("```"):
            skip = "```"
        elif line.startswith("<!-- generated"):
            skip = "<!-- end"
        elif not line.startswith("    "):
            yield number, re.sub(r"`[^`]*`|\]\([^)]*\)", "", line)


@cache
def read(path: Path) -> list[tuple[int, str]]:
    """What a source or page says, read once for all habits."""
    text = path.read_text(encoding="utf-8")
    return list(spoken(text) if path.suffix == ".py" else written(text))


def find(habit: Habit, texts: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    pattern = re.compile(rf"(?<![\w-])(?:{habit.words})(?![\w-])", re.IGNORECASE)
    return [(number, found[0].lower()) for number, text in texts for found in pattern.finditer(text)]


@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.write)
def test_sources_and_pages_use_the_words_of_the_trade(habit: Habit) -> None:
    found = {}
    for path in [*SOURCES, *PAGES]:
        name = path.relative_to(ROOT).as_posix()
        for number, words in find(habit, read(path)):
            if (name, words) not in KEPT:
                found[f"{name}:{number}"] = words
    assert not found, f"{habit.why}; write: {habit.write}"


def test_what_is_kept_is_still_there() -> None:
    there = {(name, words) for name, _ in KEPT for habit in HABITS
             for _, words in find(habit, read(ROOT / name))}
    assert set(KEPT) <= there


@pytest.mark.parametrize("text", [
    '"""Tells whoever waits."""', "x = 1  # nobody waits", 'raise ValueError(f"{x} is no number, try 3")',
    'log.error("session %s stands still", id)'])
def test_a_habit_in_a_source_is_found(text: str) -> None:
    assert any(find(habit, spoken(text)) for habit in HABITS)


@pytest.mark.parametrize(("page", "number"), [
    ("It is told to whoever waits.", 1), ("`nobody` is a name.", 0), ("```\nnobody\n```\nAfter.", 0),
    ("<!-- generated: x -->\nnobody\n<!-- end -->\nnobody waits", 1)])
def test_a_habit_on_a_page_is_found_outside_of_code_and_of_what_is_generated(page: str, number: int) -> None:
    assert sum(len(find(habit, written(page))) for habit in HABITS) == number


# --- messages

REFUSALS = {"UsageError", "Refusal", "BadInput", "NoSession", "RunIdInUse", "Busy", "Full", "Closing", "Leaving",
            "Stuck", "Moved", "NotReady", "StoreError", "NoRoom", "Unconfirmed"}
REMEDY = re.compile(
    r";|\{\}$|: [a-z`-]|\b(?:give|choose|use|expected|must|only|requires?|needs?|mutually exclusive|see|not with|leave|"
    r"name one|add|install|supports?|at least|at most|or let)\b", re.IGNORECASE)


def messages(source: str) -> Iterator[tuple[int, str]]:
    """The messages with which a source refuses something."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            kind = getattr(node.exc.func, "id", getattr(node.exc.func, "attr", ""))
            texts = [_text(argument) for argument in node.exc.args]
            if kind in REFUSALS and any(" " in text for text in texts):
                yield node.lineno, "; ".join(texts)


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return "{}"


def test_a_refusal_ends_with_a_remedy() -> None:
    """What is wrong with which input, then what to do about it. What a placeholder ends with, its maker says."""
    without = [f"{path.relative_to(ROOT)}:{number}: {text}" for path in SOURCES
               for number, text in messages(path.read_text(encoding="utf-8")) if not REMEDY.search(text)]
    assert not without


def test_a_refusal_without_a_remedy_is_found() -> None:
    (_, text), = messages('raise UsageError(f"--port {port} is out of range")')
    assert not REMEDY.search(text)
