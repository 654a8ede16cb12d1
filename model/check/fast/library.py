"""Compiles the kernel once with an available C compiler, caches the shared library, and loads it.

The library is cached next to the compiled Python files or, if that directory is not writable, in the user's cache
directory. If neither works, it is compiled each time. Loading a library runs its code, so a file is loaded only if this
user or root owns it, and only from a directory that no other user can write to.
"""

import os
import sys
from collections.abc import Iterator
from ctypes import CDLL
from importlib.util import find_spec, source_hash
from pathlib import Path

SOURCE = Path(__file__).with_name("kernel.c")
OPTIONS = ("-O2", "-shared", "-fPIC")


class NoLibrary(Exception):
    """The kernel cannot be compiled on this machine."""


def load() -> CDLL:
    """Load the kernel, compiling it first if necessary."""
    name = file_name()
    for folder in folders():
        if is_trusted(folder) and is_trusted(folder / name):
            try:
                return CDLL(str(folder / name))
            except OSError:  # truncated, or built for another architecture: rebuild it
                continue
    return build(name)


def can_load() -> bool:
    """Whether there is a compiler or a cached library."""
    name = file_name()
    return any(is_trusted(folder) and is_trusted(folder / name) for folder in folders()) or compiler() is not None


def file_name() -> str:
    """The file name of the library: a hash of everything that the machine code depends on."""
    made_of = SOURCE.read_bytes() + repr((OPTIONS, sys.platform, os.uname().machine, sys.maxsize)).encode()
    return f"kernel-{source_hash(made_of).hex()}.so"


def folders() -> Iterator[Path]:
    """The directories to cache the kernel in, in order of preference."""
    yield SOURCE.with_name("__pycache__")
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser(
        "~/Library/Caches" if sys.platform == "darwin" else "~/.cache")
    if os.path.isabs(caches):
        yield Path(caches, "cancelmark")


def is_trusted(path: Path) -> bool:
    """Whether the path exists and only this user or root can have written it."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & 0o022


def compiler() -> list[str] | None:
    """The command of a C compiler: $CC, the system's compiler, or ziglang from the extra `fast`."""
    from shutil import which

    if named := os.environ.get("CC"):
        return named.split()
    for name in ("cc", "gcc", "clang"):
        if found := which(name):
            return [found]
    return [sys.executable, "-m", "ziglang", "cc"] if find_spec("ziglang") else None


def build(name: str) -> CDLL:
    """Compile the kernel, cache it if possible, and load it."""
    from tempfile import TemporaryDirectory

    command = compiler()
    if command is None:
        raise NoLibrary("the fast engine needs a C compiler")
    for folder in folders():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if is_trusted(folder):
                with TemporaryDirectory(dir=folder, prefix="kernel-") as place:
                    made = compile_kernel(command, Path(place))
                    made.chmod(0o755)
                    return CDLL(str(made.replace(folder / name)))
        except OSError:  # read-only, full, or mounted noexec
            continue
    with TemporaryDirectory(prefix="cancelmark-") as place:
        try:
            return CDLL(str(compile_kernel(command, Path(place))))
        except OSError as error:
            raise NoLibrary(f"the fast engine's kernel cannot be loaded: {error}") from error


def compile_kernel(command: list[str], place: Path) -> Path:
    """Compile the kernel into a shared library in this directory."""
    from subprocess import PIPE, STDOUT, run

    made = place / "kernel.so"
    try:
        done = run([*command, *OPTIONS, "-o", str(made), str(SOURCE)], stdout=PIPE, stderr=STDOUT, text=True,
                   stdin=-3, check=False)
    except OSError as error:
        raise NoLibrary(f"cannot run the C compiler {command[0]}: {error.strerror}") from error
    if done.returncode or not made.exists():
        raise NoLibrary(f"{command[0]} failed to compile the fast engine: {(done.stdout.splitlines() or ['?'])[-1]}")
    return made
