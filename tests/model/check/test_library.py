"""The kernel as machine code: compiled once, kept where nobody else can write, and never loaded from anywhere else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.engines import need_fast_engine

from cancelmark.model.check.fast import library
from cancelmark.model.check.fast.library import NoLibrary, can_load, compiler, is_trusted, load

need_fast_engine()
pytestmark = pytest.mark.real


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where the kernel may be kept: empty, and ours."""
    place = tmp_path / "kept"
    monkeypatch.setattr(library, "folders", lambda: iter([place]))
    return place


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The places in which something was compiled."""
    places: list[Path] = []
    really = library.compile_kernel

    def compile_kernel(command: list[str], place: Path) -> Path:
        places.append(place)
        return really(command, place)

    monkeypatch.setattr(library, "compile_kernel", compile_kernel)
    return places


def works(kernel: object) -> bool:
    return hasattr(kernel, "search")


def test_it_is_compiled_once_and_kept_for_this_user_alone(folder: Path, compiled: list[Path]) -> None:
    assert works(load())
    assert works(load())
    assert len(compiled) == 1
    assert [path.name for path in folder.iterdir()] == [library.file_name()]
    assert folder.stat().st_mode & 0o777 == 0o700


def test_another_source_is_another_file(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = library.file_name()
    changed = tmp_path / "kernel.c"
    changed.write_bytes(library.SOURCE.read_bytes() + b"\n")
    monkeypatch.setattr(library, "SOURCE", changed)
    assert library.file_name() != before
    monkeypatch.setattr(library, "OPTIONS", ())
    assert library.file_name() != before


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
def test_a_folder_that_others_can_write_to_is_not_used(folder: Path, compiled: list[Path], mode: int) -> None:
    load()
    folder.chmod(mode)
    assert works(load())
    assert len(compiled) == 2, "it was compiled for this process alone"
    assert compiled[1].parent != folder
    assert not compiled[1].exists(), "and nothing is left of it"


def test_a_file_that_others_can_write_to_is_replaced(folder: Path, compiled: list[Path]) -> None:
    load()
    kept = folder / library.file_name()
    kept.chmod(0o777)
    assert not is_trusted(kept)
    load()
    assert len(compiled) == 2
    assert is_trusted(kept)


def test_a_link_in_place_of_the_file_is_not_followed(folder: Path, compiled: list[Path], tmp_path: Path) -> None:
    load()
    kept = folder / library.file_name()
    kept.rename(tmp_path / "elsewhere.so")
    kept.symlink_to(tmp_path / "elsewhere.so")
    load()
    assert len(compiled) == 2
    assert not kept.is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_somebody_else_owns_is_not_loaded(folder: Path, compiled: list[Path]) -> None:
    load()
    os.chown(folder / library.file_name(), 4711, -1)
    load()
    os.chown(folder, 4711, -1)
    load()
    assert len(compiled) == 3


def test_a_file_that_was_cut_off_is_compiled_anew(folder: Path, compiled: list[Path]) -> None:
    folder.mkdir(mode=0o700)
    kept = folder / library.file_name()
    kept.write_bytes(b"\x7fELF\x02\x01\x01")
    assert is_trusted(kept)
    assert works(load())
    assert len(compiled) == 1
    assert kept.stat().st_size > 1000


def test_where_nothing_can_be_kept_it_is_compiled_each_time(
    monkeypatch: pytest.MonkeyPatch, compiled: list[Path], tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(library, "folders", lambda: iter([tmp_path / "file" / "none", Path("/proc/none")]))
    assert works(load())
    assert works(load())
    assert len(compiled) == 2
    assert not any(place.exists() for place in compiled)


def test_it_is_kept_in_the_user_s_cache_where_the_package_is_read_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    beside, cache = library.folders()
    assert (beside, cache) == (library.SOURCE.parent / "__pycache__", tmp_path / "cancelmark")
    monkeypatch.setattr(library, "folders", lambda: iter([Path("/proc/none"), cache]))
    load()
    assert (cache / library.file_name()).exists()
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert len(list(library.folders())) == 1


@pytest.mark.parametrize(("command", "says"), [
    ("/none/cc", "cannot run the C compiler /none/cc: No such file or directory"),
    ("false", "false failed to compile the fast engine"), ("true", "true failed to compile the fast engine")])
def test_a_compiler_that_fails_is_named(
    command: str, says: str, folder: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CC", command)
    with pytest.raises(NoLibrary, match=says):
        load()
    assert list(folder.iterdir()) == [] if folder.exists() else True


def test_without_a_compiler_what_was_compiled_is_enough(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load()
    monkeypatch.setattr(library, "compiler", lambda: None)
    assert can_load()
    assert works(load())
    (folder / library.file_name()).unlink()
    assert not can_load()
    with pytest.raises(NoLibrary, match="needs a C compiler"):
        load()


def test_the_machine_s_compiler_comes_before_the_one_that_the_extra_brings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "ziglang", None)
    assert compiler() is None
    (tmp_path / "cc").touch(mode=0o755)
    assert compiler() == [str(tmp_path / "cc")]
    monkeypatch.setenv("CC", "ccache gcc")
    assert compiler() == ["ccache", "gcc"]


def test_the_compiler_that_the_extra_brings_will_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ziglang", reason="pip install 'cancelmark[fast]'")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    assert works(load())


def test_two_processes_that_compile_at_once_both_get_it(tmp_path: Path) -> None:
    code = ("from pathlib import Path\nfrom cancelmark.model.check.fast import library\n"
            f"library.folders = lambda: iter([Path({str(tmp_path)!r})])\nlibrary.load().search")
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [each.wait(timeout=300) for each in running] == [0, 0]
    assert len(list(tmp_path.iterdir())) == 1
