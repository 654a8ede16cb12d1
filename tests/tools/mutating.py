"""Mutants of a module: its source with one small change each, which some test ought to notice.

What is changed: comparisons, `and` and `or`, `not`, conditions, numbers, truth values and strings, arithmetic and set
operations, `min` and `max`, `any` and `all`, the order of `sorted`, the elements of a literal, and statements, which
are left out, as is the `with` around a block. What is not: annotations, decorators, docstrings, f-strings, assertions,
names of types, and the clauses that a row, an action or a property cites: a published page lists them.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

COMPARISONS: dict[type[ast.cmpop], list[type[ast.cmpop]]] = {
    ast.Lt: [ast.LtE, ast.GtE], ast.LtE: [ast.Lt, ast.Gt], ast.Gt: [ast.GtE, ast.LtE], ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq], ast.NotEq: [ast.Eq], ast.Is: [ast.IsNot], ast.IsNot: [ast.Is], ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
}
OPERATIONS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "bisect_left": "bisect_right", "certain": "possible",
         "possible": "certain"}
METHODS = {"union": "intersection", "intersection": "union", "issuperset": "issubset", "issubset": "issuperset",
           "setdefault": "get", "update": "difference_update"}
SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "bases", "ctx"}
SKIPPED_NODES = (ast.Import, ast.ImportFrom, ast.JoinedStr, ast.Assert)
LEFT_OUT = (ast.Assign, ast.AugAssign, ast.Delete, ast.Raise, ast.Expr, ast.Continue, ast.Break)


class Key(NamedTuple):
    """What a mutant is known by, as long as its line stays as it is."""

    module: str  # model/session
    where: str  # the function or class around it
    line: str
    change: str


@dataclass(frozen=True)
class Place:
    """A node of the tree that can be replaced."""

    parent: ast.AST
    field: str
    index: int | None
    node: Any
    where: str

    def put(self, node: Any) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


@dataclass(frozen=True)
class Mutant:
    key: Key
    number: int  # of the line
    source: "Source"
    place: Place
    new: Any

    def code(self) -> CodeType:
        """The module with the change in it."""
        self.place.put(self.new)
        try:
            tree = ast.fix_missing_locations(self.source.tree)
            return compile(tree, str(self.source.path), "exec", dont_inherit=True)
        finally:
            self.place.put(self.place.node)


@dataclass(frozen=True)
class Source:
    """A module to change."""

    module: str
    path: Path

    @cached_property
    def lines(self) -> list[str]:
        return self.path.read_text(encoding="utf-8").splitlines()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse("\n".join(self.lines))

    @cached_property
    def mutants(self) -> list[Mutant]:
        """Every mutant that there is, each with a key of its own."""
        found, seen = [], Counter[Key]()
        for place in places(self.tree, ""):
            for change, new in replacements(place):
                number = place.node.lineno
                key = Key(self.module, place.where, self.lines[number - 1].strip(), change)
                seen[key] += 1
                if seen[key] > 1:
                    key = key._replace(change=f"{change} (no. {seen[key]})")
                found.append(Mutant(key, number, self, place, ast.copy_location(new, place.node)))
        return found


def places(node: ast.AST, where: str) -> Iterator[Place]:
    """Every node that may be replaced, from the top down."""
    for field, value in ast.iter_fields(node):
        if field in SKIPPED_FIELDS:
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or _skipped(child, where):
                continue
            if hasattr(child, "lineno"):
                yield Place(node, field, index, child, where)
            named = isinstance(child, ast.FunctionDef | ast.ClassDef)
            yield from places(child, f"{where}.{child.name}".strip(".") if named else where)


def _skipped(node: ast.AST, where: str) -> bool:
    match node:
        case ast.Expr(value=ast.Constant()):  # a docstring, or the body of a protocol's method
            return True
        case ast.Assign(targets=[ast.Name(id="__slots__")]) | ast.AnnAssign(annotation=ast.Name(id="TypeAlias")):
            return True
        case ast.Assign(value=ast.Subscript()):  # the name of a type
            return not where
        case ast.keyword(arg="rule" | "clauses"):
            return True
    return isinstance(node, SKIPPED_NODES)


def replacements(place: Place) -> Iterator[tuple[str, ast.AST]]:
    """What may stand in that place instead, with a few words each."""
    node, parent = place.node, place.parent
    if place.field in ("test", "ifs") and not isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp):
        yield f"{_text(node)} → not {_text(node)}", ast.UnaryOp(ast.Not(), node)
    match node:
        case ast.Compare():
            for i, op in enumerate(node.ops):
                for other in COMPARISONS[type(op)]:
                    new = ast.Compare(node.left, [*node.ops[:i], other(), *node.ops[i + 1:]], node.comparators)
                    yield f"{_token(op)} → {_token(other())}", new
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield f"{_token(node.op)} → {_token(other)}", ast.BoolOp(other, node.values)
            for i, value in enumerate(node.values):
                rest = [*node.values[:i], *node.values[i + 1:]]
                yield f"without {_text(value)}", rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
        case ast.UnaryOp(op=ast.Not()):
            yield "without not", node.operand
        case ast.BinOp():
            other = OPERATIONS[type(node.op)]()
            yield f"{_token(node.op)} → {_token(other)}", ast.BinOp(node.left, other, node.right)
        case ast.Constant(value=value) if value is not None and value is not Ellipsis:
            for other in _values(value):
                yield f"{value!r} → {other!r}", ast.Constant(other)
        case ast.Call(func=ast.Name(id="sorted")):
            yield "sorted → sorted backwards", ast.Call(
                node.func, node.args, [*node.keywords, ast.keyword("reverse", ast.Constant(True))])
        case ast.Call(func=ast.Name(id=name)) if name in NAMES:
            yield f"{name} → {NAMES[name]}", ast.Call(ast.Name(NAMES[name], ast.Load()), node.args, node.keywords)
        case ast.Call(func=ast.Attribute(attr=name)) if name in METHODS:
            func = ast.Attribute(node.func.value, METHODS[name], ast.Load())
            yield f"{name} → {METHODS[name]}", ast.Call(func, node.args, node.keywords)
        case ast.Tuple() | ast.List() | ast.Set() if _is_a_choice(place):
            for i, element in enumerate(node.elts):
                new = type(node)([*node.elts[:i], *node.elts[i + 1:]])  # type: ignore[call-arg]
                if not isinstance(node, ast.Set):
                    new.ctx = ast.Load()  # type: ignore[union-attr]
                yield f"without {_text(element)}", new
        case ast.Dict():
            for i, key in enumerate(node.keys):
                yield f"without {_text(key or node.values[i])}", ast.Dict(
                    [*node.keys[:i], *node.keys[i + 1:]], [*node.values[:i], *node.values[i + 1:]])
        case ast.Return(value=ast.expr()) if not isinstance(node.value, ast.Constant):
            yield "return None", ast.Return(ast.Constant(None))
        case ast.With():
            yield f"without {_text(node.items[0])}", ast.If(ast.Constant(True), node.body, [])
        case _ if isinstance(node, LEFT_OUT) and not isinstance(parent, ast.Module | ast.ClassDef):
            yield f"without {_text(node)}", ast.Pass()


def _is_a_choice(place: Place) -> bool:
    """Whether a literal's elements are a choice, and not the parts of one value."""
    parent = place.parent
    if isinstance(parent, ast.Compare):
        return isinstance(parent.ops[0], ast.In | ast.NotIn)
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Tuple):
        return False
    return (isinstance(getattr(place.node, "ctx", ast.Load()), ast.Load)
            and not isinstance(parent, ast.Return | ast.Yield | ast.Subscript | ast.BinOp))


def _values(value: object) -> list[object]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, value - 1]
    return ["" if value else "something"]


def _token(op: ast.AST) -> str:
    x = ast.Name("x")
    match op:
        case ast.cmpop():
            return ast.unparse(ast.Compare(x, [op], [x]))[2:-2]
        case ast.boolop():
            return ast.unparse(ast.BoolOp(op, [x, x]))[2:-2]
    return ast.unparse(ast.BinOp(x, op, x))[2:-2]  # type: ignore[arg-type]


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 72 else text[:72] + " …"
