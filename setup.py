"""The rooms are links in src/cancelmark, and stay links in a source distribution: so its tests run on its own files."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from setuptools import setup
from setuptools.command.sdist import sdist


class SourceDistribution(sdist):
    def make_release_tree(self, base_dir: str, files: Sequence[str]) -> None:
        super().make_release_tree(base_dir, files)
        for room in Path("src/cancelmark").iterdir():
            if room.is_symlink():
                copy = Path(base_dir, room)
                shutil.rmtree(copy)
                copy.symlink_to(room.readlink())


setup(cmdclass={"sdist": SourceDistribution})
