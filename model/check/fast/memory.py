"""Large zero-initialized arrays in anonymous memory. Pages that were never touched take no physical memory."""

import mmap
from ctypes import addressof, c_char
from typing import Literal

BYTES = {"Q": 8, "i": 4, "B": 1}  # item size by kind
WORD = BYTES["Q"]
Kind = Literal["Q", "i", "B"]


class Memory:
    """An array of `length` numbers of one kind. `at_random`: the access pattern is random, so use huge pages."""

    def __init__(self, length: int, kind: Kind = "Q", *, at_random: bool = False) -> None:
        self.kind, self.at_random = kind, at_random
        self._map = self._ask(length)

    def _ask(self, length: int) -> mmap.mmap:
        size = length * BYTES[self.kind]
        try:
            found = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"cannot allocate {size >> 20:,} MiB of memory") from error
        if self.at_random and hasattr(mmap, "MADV_HUGEPAGE"):
            found.madvise(mmap.MADV_HUGEPAGE)  # faster random access, slower first touch of each page
        return found

    @property
    def view(self) -> "memoryview[int]":
        return memoryview(self._map).cast(self.kind)

    @property
    def address(self) -> int:
        """The start address. Growing the array invalidates it."""
        return addressof(c_char.from_buffer(self._map))

    def __len__(self) -> int:
        return len(self._map) // BYTES[self.kind]

    def grow(self, length: int) -> None:
        """Enlarge the array to `length`, and keep its contents. No view of it may exist."""
        try:
            self._map.resize(length * BYTES[self.kind])
        except SystemError:  # this platform has no mremap
            larger = self._ask(length)
            larger[:len(self._map)] = self._map[:]
            self._map = larger
