"""The rooms (packages) of the code in dependency order, and their table for docs/architecture.md."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from cancelmark.views.pages.tables import table

# From the inside to the outside. A file may import only from its own room and earlier ones, anywhere in the file. A
# room's subfolders belong to the room, unless they are rooms themselves.
ROOMS = (
    "model", "model/check", "model/revisions", "model/proof", "model/cluster",
    "views/drawing", "views/traces", "views/states", "views/pages", "views/course", "views",
    "conformance/schedule", "conformance/trace", "conformance/llm", "conformance/adapter", "conformance/judging",
    "conformance/playing", "conformance/report", "conformance",
    "impl", "impl/store", "impl/store/postgres", "impl/models", "impl/runtime", "impl/cluster", "impl/server",
    "impl/client", "impl/acp", "impl/adapters", "impl/cli",
    "bench",
)


def sources(root: Path) -> Iterator[str]:
    """The files of all rooms, relative to the root."""
    tops = dict.fromkeys(room.split("/")[0] for room in ROOMS)
    yield from (str(path.relative_to(root)) for top in tops for path in sorted((root / top).rglob("*.py")))


def room_of(path: str) -> str | None:
    """The room of a file or a folder."""
    return max((room for room in ROOMS if f"{path}/".startswith(f"{room}/")), key=len, default=None)


@cache
def imports(source: str, path: str) -> frozenset[str]:
    """Everything that a file imports, anywhere: `a.b` for `from a import b`, as absolute names from `cancelmark`."""
    package = ["cancelmark", *path.split("/")[:-1]]
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[:len(package) - node.level + 1] if node.level else []
            found |= {".".join([*base, *([node.module] if node.module else []), alias.name]) for alias in node.names}
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
                "import_module", "__import__"):
            found |= {str(a.value) for a in node.args if isinstance(a, ast.Constant)}
    return frozenset(found)


def imported_rooms(source: str, path: str) -> Iterator[tuple[str, str | None]]:
    """A file's imports from this repository, each with its room."""
    for name in sorted(imports(source, path)):
        if name.startswith("cancelmark."):
            yield name, room_of(name.removeprefix("cancelmark.").replace(".", "/"))


def rooms_table(root: Path) -> str:
    """Each room with its description, its number of modules, and the rooms that it imports."""
    used: dict[str, set[str]] = {room: set() for room in ROOMS}
    modules = dict.fromkeys(ROOMS, 0)
    for path in sources(root):
        room = room_of(path) or ""
        used[room] |= {other for _, other in imported_rooms(_read(root, path), path) if other}
        modules[room] += not path.endswith("__init__.py")
    return table(["room", "description", "modules", "imports"], [
        [f"`{room}`", _first_sentence(_read(root, f"{room}/__init__.py")), str(modules[room]),
         ", ".join(f"`{other}`" for other in ROOMS if other in used[room] - {room}) or "–"] for room in ROOMS])


def _read(root: Path, path: str) -> str:
    return (root / path).read_text(encoding="utf-8")


@cache
def _first_sentence(source: str) -> str:
    paragraph = " ".join((ast.get_docstring(ast.parse(source)) or "").partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].removesuffix(".")
