"""Traceability: which parts of the model define each clause of the specification, and which tests check it.

The clauses are those of specs/protocol.md and specs/cluster.md. The model cites clauses as data (rows, actions,
properties, the wire) and, for other code, in docstrings: `(R12a, R12b)` means that the documented code defines those
clauses. A test that would fail if a clause were violated is marked `@pytest.mark.rule("R12a")`. Everything is read from
the sources, without running a test.

The runtime cites nothing: a citation there would only claim what a test of the runtime shows.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cancelmark.model import wire
from cancelmark.model.cluster.flaws import ALL_FLAWS
from cancelmark.model.delivery import LOGGED
from cancelmark.model.family import Feature, actions_of
from cancelmark.model.family_properties import ASK_PROPERTIES, FAMILY_PROPERTIES
from cancelmark.model.protocol import FAMILY
from cancelmark.model.revisions.matrix import JUDGED
from cancelmark.views.pages.tables import table

CLAUSE = r"[RC]\d+[a-z]?"
_CITED = re.compile(rf"\(({CLAUSE}(?:,\s+{CLAUSE})*)\)")  # a long list can span several lines
_RULE = re.compile(r"^\*\*([RC]\d+) ([^*]+)\.\*\*(.*?)(?=^\*\*[RC]|^#|^!\[|^<!--|\Z)", re.MULTILINE | re.DOTALL)
_LETTERED = re.compile(r"^- \*\*([RC]\d+[a-z])\*\* (.*?)(?=^- |\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Rule:
    """A rule of the specification. A rule without lettered clauses is its own only clause."""

    id: str
    title: str
    text: str  # before the lettered clauses
    clauses: Mapping[str, str]  # the text of each clause, by id


def rules(protocol: str) -> list[Rule]:
    """The rules of the specification, in numerical order."""
    found = []
    for id, title, text in _RULE.findall(protocol):
        lettered = dict(_LETTERED.findall(text))
        text = text.partition("\n- **")[0] if lettered else text
        found.append(Rule(id, title, text, lettered or {id: text}))
    return sorted(found, key=lambda rule: int(rule.id[1:]))


# --- what cites each clause

Carried = Iterator[tuple[str, str]]  # a clause, and the name of an object that cites it


def in_model(root: Path) -> Carried:
    for row in FAMILY.rows:
        yield row.rule, f"row {row.name}"
    for action in (*actions_of(frozenset(Feature)), *LOGGED.actions):
        yield from ((clause, f"action {action.name}") for clause in action.clauses)
    for prop in (*JUDGED, *FAMILY_PROPERTIES, *ASK_PROPERTIES):
        yield from ((clause, f"property {prop.id}") for clause in prop.clauses)
    said: list[tuple[str, Iterable[str]]] = [
        *((f"wire {r.method} {r.path}", r.rules) for r in wire.REQUESTS),
        *((f"wire {r.status}", r.rules) for r in wire.REFUSALS),
        *((f"wire run_complete.{name}", field.rules) for name, field in wire.RUN_COMPLETE.items()),
        *((f"wire event {e.name}", e.rules) for e in wire.EVENTS),
        *((f"wire finish reason {f.outcome.value}", f.rules) for f in wire.FINISH_REASONS),
    ]
    for name, clauses in said:
        yield from ((clause, name) for clause in clauses)
    yield from ((flaw.clause, f"flaw {flaw.name}") for flaw in ALL_FLAWS)
    yield from in_docstrings(root, "model")
    yield from ((clause, f"conformance.{name}") for clause, name in in_docstrings(root, "conformance"))


def in_docstrings(root: Path, package: str) -> Carried:
    """The citations in the docstrings of a package, by module and name."""
    for path in sorted((root / package).rglob("*.py")):
        if not _CITED.search(source := path.read_text(encoding="utf-8")):
            continue  # most files cite nothing, and parsing all takes a second
        module = ".".join(path.relative_to(root / package).with_suffix("").parts).removesuffix(".__init__")
        for name, node in _documented(ast.parse(source), module):
            for cited in _CITED.findall(ast.get_docstring(node) or ""):
                yield from ((clause, name) for clause in re.split(r",\s+", cited))


def _documented(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: str,
) -> Iterator[tuple[str, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every node that can have a docstring, with its qualified name."""
    yield name, node
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _documented(child, f"{name}.{child.name}")


def in_tests(root: Path) -> Carried:
    """The clauses that tests are marked with, by file and name: a test by a decorator, a parameter by `marks=…`."""
    for path in sorted((root / "tests").rglob("*.py")):
        if "pytest.mark.rule" not in (source := path.read_text(encoding="utf-8")):
            continue
        file = path.relative_to(root / "tests").with_suffix("").as_posix()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from ((clause, f"{file}::{node.name}") for clause in _marked(node.name, node.decorator_list))
            elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                name, marks = str(node.args[0].value), [k.value for k in node.keywords if k.arg == "marks"]
                yield from ((clause, f"{file}::{name}") for clause in _marked(name, marks))


def _marked(name: str, marks: Iterable[ast.expr]) -> Iterator[str]:
    for mark in marks:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.rule":
            for argument in mark.args:
                if not isinstance(argument, ast.Constant):
                    raise ValueError(f"{name}: the arguments of pytest.mark.rule must be string literals")
                yield str(argument.value)


# --- the page

OF_THE_RUNTIME = ("impl/", "conformance/", "support/behaviours::")  # tests that run it


@dataclass
class Traceability:
    """Every clause, and what cites it."""

    rules: Sequence[Rule]
    carriers: Mapping[str, Mapping[str, list[str]]]  # by column and clause
    unknown: list[str] = field(default_factory=list)  # citations of clauses that do not exist

    def gaps(self) -> list[str]:
        """The missing citations, one line each."""
        return [f"{clause} is not cited in the {column}" for rule in self.rules for clause in rule.clauses
                for column in ("model", "tests of the runtime") if clause not in self.carriers[column]]


def traced(root: Path) -> Traceability:
    """The traceability of the project at `root`."""
    known = [rule for name in ("protocol.md", "cluster.md") if (page := root / "specs" / name).exists()
             for rule in rules(page.read_text(encoding="utf-8"))]
    clauses = {clause for rule in known for clause in rule.clauses}
    tests = list(in_tests(root))
    of_the_runtime = [(clause, name) for clause, name in tests if name.startswith(OF_THE_RUNTIME)]
    columns = {"model": in_model(root), "tests of the runtime": of_the_runtime,
               "other tests": (cited for cited in tests if cited not in of_the_runtime)}
    found: dict[str, dict[str, list[str]]] = {column: {} for column in columns}
    unknown = []
    for column, carried in columns.items():
        for clause, name in carried:
            if clause not in clauses:
                unknown.append(f"{name} cites {clause}, which does not exist")
            elif name not in found[column].setdefault(clause, []):
                found[column][clause].append(name)
    return Traceability(known, found, unknown)


def page(trace: Traceability) -> str:
    """specs/traceability.md."""
    clauses = sum(len(rule.clauses) for rule in trace.rules)
    tests = {test for column in ("tests of the runtime", "other tests")
             for carried in trace.carriers[column].values() for test in carried}
    return f"""# Traceability

For each clause of [protocol.md](protocol.md) and [cluster.md](cluster.md), the parts of the model that define it, and
the tests that would fail if it were violated: {clauses} clauses in {len(trace.rules)} rules, {len(tests)} tests. A test
fails if a clause has no part of the model or no test of the runtime, or if a citation names an unknown clause.

The model cites clauses as data (rows, actions, properties, flaws, the wire) or in docstrings, and the tests with
`@pytest.mark.rule`.

""" + "\n".join(_section(trace, rule) for rule in trace.rules)


def _section(trace: Traceability, rule: Rule) -> str:
    lines = [[clause, *("<br>".join(map(str if column == "model" else _test, carried.get(clause, [])))
                        or "–"
                        for column, carried in trace.carriers.items())] for clause in rule.clauses]
    return f"## {rule.id} {rule.title}\n\n{table(('clause', *trace.carriers), lines)}"


def _test(name: str) -> str:
    """A test's name as a sentence, with a link to its file."""
    file, _, test = name.partition("::")
    subject = file.rpartition("/")[2].removeprefix("test_")
    return f"[{subject}](../tests/{file}.py): {test.removeprefix('test_').replace('_', ' ')}"
