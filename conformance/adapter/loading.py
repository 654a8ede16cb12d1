"""Loading of user code by name: `module:NAME` or `file.py:NAME`, relative to the current directory."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from .interface import Adapter, MakeAdapter


class CannotLoad(ValueError):
    """The name cannot be loaded, or is not an adapter; the message lists the adapters in the module."""


@contextmanager
def importable(where: str) -> Iterator[None]:
    """Make modules in the current directory and in the file's directory importable."""
    added = [str(Path.cwd()), str(Path(where).resolve().parent)]
    sys.path[:0] = added
    try:
        yield
    finally:
        for path in added:
            sys.path.remove(path)


def load_module(where: str) -> ModuleType:
    """Import the module, or the file."""
    with importable(where):
        try:
            return _load_file(where) if where.endswith(".py") else import_module(where)
        except (Exception, SystemExit) as error:  # user code may raise anything
            raise CannotLoad(f"cannot load {where}: {type(error).__name__}: {error}") from error


def _load_file(path: str) -> ModuleType:
    spec = spec_from_file_location(f"cancelmark_loaded_{Path(path).stem}", path)  # cannot shadow another module
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)  # dataclasses in it look it up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


def load_adapter(name: str) -> MakeAdapter:
    """Load an adapter's class, or a function that returns an adapter. Calls it once, to check that this works."""
    where, colon, attribute = name.rpartition(":")
    if not colon or not where or not attribute:
        raise CannotLoad(f"{name!r} is not an adapter's name; expected module:Class or file.py:Class")
    module = load_module(where)
    make = getattr(module, attribute, None)
    there = [key for key, value in vars(module).items()
             if isinstance(value, type) and issubclass(value, Adapter) and value is not Adapter]
    if make is None:
        raise CannotLoad(f"{where} has no {attribute}; adapters there: {', '.join(there) or 'none'}")
    try:
        made = make()
    except Exception as error:
        raise CannotLoad(f"{attribute}() raised {type(error).__name__}: {error}; it must be callable without "
                         "arguments, because the kit calls it for each history") from error
    if not isinstance(made, Adapter):
        raise CannotLoad(f"{attribute}() returned a {type(made).__name__}, not a cancelmark.Adapter; adapters there: "
                         f"{', '.join(there) or 'none'}")
    found: MakeAdapter = make
    return found
