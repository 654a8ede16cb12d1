"""Something of somebody's own by its name, `module:NAME` or `file.py:NAME`, as the current directory has it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from .interface import Adapter, MakeAdapter


class CannotLoad(ValueError):
    """There is nothing of that name, or it is something else; says what, and what there is."""


@contextmanager
def importable(where: str) -> Iterator[None]:
    """While this lasts, what lies in the current directory and beside the file can be imported."""
    added = [str(Path.cwd()), str(Path(where).resolve().parent)]
    sys.path[:0] = added
    try:
        yield
    finally:
        for path in added:
            sys.path.remove(path)


def load_module(where: str) -> ModuleType:
    """The module of that name, or the file."""
    with importable(where):
        try:
            return _load_file(where) if where.endswith(".py") else import_module(where)
        except (Exception, SystemExit) as error:  # whatever somebody's module does when it is loaded
            raise CannotLoad(f"cannot load {where}: {type(error).__name__}: {error}") from error


def _load_file(path: str) -> ModuleType:
    spec = spec_from_file_location(f"cancelmark_loaded_{Path(path).stem}", path)  # no name of another module
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)  # where its own dataclasses look for it
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


def load_adapter(name: str) -> MakeAdapter:
    """The adapter's class, or the function that makes one. One is made, to see that this works."""
    where, colon, attribute = name.rpartition(":")
    if not colon or not where or not attribute:
        raise CannotLoad(f"{name!r} does not say what and where; write module:Class or file.py:Class")
    module = load_module(where)
    make = getattr(module, attribute, None)
    there = [key for key, value in vars(module).items()
             if isinstance(value, type) and issubclass(value, Adapter) and value is not Adapter]
    if make is None:
        raise CannotLoad(f"{where} has no {attribute}; adapters there: {', '.join(there) or 'none'}")
    try:
        made = make()
    except Exception as error:
        raise CannotLoad(f"{attribute}() fails, and the kit makes one for each history: {type(error).__name__}: "
                         f"{error}") from error
    if not isinstance(made, Adapter):
        raise CannotLoad(f"{attribute}() is of type {type(made).__name__}, which is no cancelmark.Adapter; adapters "
                         f"there: {', '.join(there) or 'none'}")
    found: MakeAdapter = make
    return found
