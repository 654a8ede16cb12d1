"""Memory for many words: all of it is zero, and what nobody has touched takes no room."""

import mmap
from ctypes import addressof, c_char
from typing import Literal

BYTES = {"Q": 8, "i": 4, "B": 1}  # of a number of each kind
WORD = BYTES["Q"]
Kind = Literal["Q", "i", "B"]


class Memory:
    """Room for so many numbers of one kind: words, or smaller ones. `at_random`: they are not used in order."""

    def __init__(self, length: int, kind: Kind = "Q", *, at_random: bool = False) -> None:
        self.kind, self.at_random = kind, at_random
        self._map = self._ask(length)

    def _ask(self, length: int) -> mmap.mmap:
        size = length * BYTES[self.kind]
        try:
            found = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"no {size >> 20:,} MiB of memory") from error
        if self.at_random and hasattr(mmap, "MADV_HUGEPAGE"):
            found.madvise(mmap.MADV_HUGEPAGE)  # a word is found sooner; but each page takes longer to be had
        return found

    @property
    def view(self) -> "memoryview[int]":
        return memoryview(self._map).cast(self.kind)

    @property
    def address(self) -> int:
        """Where it begins, until it grows."""
        return addressof(c_char.from_buffer(self._map))

    def __len__(self) -> int:
        return len(self._map) // BYTES[self.kind]

    def grow(self, length: int) -> None:
        """Makes room for so many, and keeps what is there. No view of it may be left."""
        try:
            self._map.resize(length * BYTES[self.kind])
        except SystemError:  # this system cannot
            larger = self._ask(length)
            larger[:len(self._map)] = self._map[:]
            self._map = larger
