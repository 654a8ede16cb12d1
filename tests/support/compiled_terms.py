"""Terms of the solver as Python functions: a term that is evaluated on thousands of states is compiled once.

This is a reading of the terms. Whoever uses it compares it with the solver's own evaluation on some of the states.
"""

from collections.abc import Callable, Mapping
from typing import Any

import z3

Facts = Mapping[str, Any]  # of each free symbol: its value, or the list of its values; a member of a sort is its number

OPERATORS = {
    z3.Z3_OP_AND: " and ", z3.Z3_OP_OR: " or ", z3.Z3_OP_EQ: " == ", z3.Z3_OP_ADD: " + ", z3.Z3_OP_SUB: " - ",
    z3.Z3_OP_MUL: " * ", z3.Z3_OP_LE: " <= ", z3.Z3_OP_LT: " < ", z3.Z3_OP_GE: " >= ", z3.Z3_OP_GT: " > ",
}


def compile_term(term: Any) -> Callable[[Facts], Any]:
    """A function from facts to the value of the term."""
    lines: list[str] = []
    written: dict[int, str] = {}

    def write(one: Any) -> str:
        name = written.get(one.get_id())
        if name is None:
            line = _write(one, [write(child) for child in one.children()])
            name = written[one.get_id()] = f"t{len(lines)}"
            lines.append(f"    {name} = {line}")
        return name

    result = write(term)
    scope: dict[str, Any] = {}
    exec("\n".join(["def evaluate(facts):", *lines, f"    return {result}"]), scope)
    function: Callable[[Facts], Any] = scope["evaluate"]
    return function


def _write(term: Any, arguments: list[str]) -> str:
    kind, name = term.decl().kind(), term.decl().name()
    if kind in OPERATORS:
        return OPERATORS[kind].join(arguments)
    if kind == z3.Z3_OP_ITE:
        return f"{arguments[1]} if {arguments[0]} else {arguments[2]}"
    if kind == z3.Z3_OP_DISTINCT:
        return f"len({{{', '.join(arguments)}}}) == {len(arguments)}"
    if kind == z3.Z3_OP_NOT:
        return f"not {arguments[0]}"
    if kind == z3.Z3_OP_IMPLIES:
        return f"not {arguments[0]} or {arguments[1]}"
    if kind in (z3.Z3_OP_TRUE, z3.Z3_OP_FALSE):
        return str(kind == z3.Z3_OP_TRUE)
    if kind == z3.Z3_OP_ANUM:
        return str(term.as_long())
    if kind == z3.Z3_OP_DT_CONSTRUCTOR:
        sort = term.sort()
        return str([sort.constructor(i).name() for i in range(sort.num_constructors())].index(name))
    if kind == z3.Z3_OP_UNINTERPRETED:
        return f"facts[{name!r}]" + "".join(f"[{argument}]" for argument in arguments)
    raise ValueError(f"no way to write {name} ({kind}) in Python: {term}")
