"""The kernel as machine code: compiled once by whatever C compiler is there, kept, and loaded from then on.

It is kept beside the compiled Python files, or where nobody may write there, in the user's cache directory; or nowhere,
and is then compiled each time. What is loaded is run. So a file is loaded only if this user or root has written it, and
only from a directory that nobody else can write to.
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
    """The kernel, ready to be called."""
    name = file_name()
    for folder in folders():
        if is_trusted(folder) and is_trusted(folder / name):
            try:
                return CDLL(str(folder / name))
            except OSError:  # a file that was cut off, or of another kind of machine: it is written anew
                continue
    return build(name)


def can_load() -> bool:
    """Whether there is a compiler, or what one has made."""
    name = file_name()
    return any(is_trusted(folder) and is_trusted(folder / name) for folder in folders()) or compiler() is not None


def file_name() -> str:
    """Says all that the machine code depends on."""
    made_of = SOURCE.read_bytes() + repr((OPTIONS, sys.platform, os.uname().machine, sys.maxsize)).encode()
    return f"kernel-{source_hash(made_of).hex()}.so"


def folders() -> Iterator[Path]:
    """Where the kernel may be kept, the first choice first."""
    yield SOURCE.with_name("__pycache__")
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser(
        "~/Library/Caches" if sys.platform == "darwin" else "~/.cache")
    if os.path.isabs(caches):
        yield Path(caches, "cancelmark")


def is_trusted(path: Path) -> bool:
    """Whether it is there, and nobody but this user or root can have written it."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & 0o022


def compiler() -> list[str] | None:
    """The command of a C compiler: the one that the user names, the machine's, or the one that an extra brings."""
    from shutil import which

    if named := os.environ.get("CC"):
        return named.split()
    for name in ("cc", "gcc", "clang"):
        if found := which(name):
            return [found]
    return [sys.executable, "-m", "ziglang", "cc"] if find_spec("ziglang") else None


def build(name: str) -> CDLL:
    """Compiles the kernel, keeps it if there is a place for it, and loads it."""
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
        except OSError:  # read-only, full, or mounted so that nothing there can be run
            continue
    with TemporaryDirectory(prefix="cancelmark-") as place:
        try:
            return CDLL(str(compile_kernel(command, Path(place))))
        except OSError as error:
            raise NoLibrary(f"the fast engine's kernel cannot be loaded: {error}") from error


def compile_kernel(command: list[str], place: Path) -> Path:
    """The kernel as a shared library in this place."""
    from subprocess import PIPE, STDOUT, run

    made = place / "kernel.so"
    try:
        done = run([*command, *OPTIONS, "-o", str(made), str(SOURCE)], stdout=PIPE, stderr=STDOUT, text=True,
                   stdin=-3, check=False)
    except OSError as error:
        raise NoLibrary(f"{command[0]} does not run: {error.strerror}") from error
    if done.returncode or not made.exists():
        raise NoLibrary(f"{command[0]} does not compile the fast engine: {(done.stdout.splitlines() or ['?'])[-1]}")
    return made
