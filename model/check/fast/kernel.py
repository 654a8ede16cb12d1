"""The Python side of `kernel.c`: the words of one search, the set of visited words, and the worker threads.

Words are visited in the same order with one thread or several: breadth first, each word's successors in the order of
the model's `changes`. Several threads process each batch of words in three rounds:

1. each thread expands its share of the batch;
2. each looks up the successors that fall into its own partition of the set;
3. each collects the new words of its share.

Within a round no thread writes memory that another reads.
"""

import os
from array import array
from collections.abc import Callable, Sequence
from ctypes import Structure, byref, c_int64, c_uint64, c_void_p
from functools import cache
from itertools import accumulate
from struct import Struct
from threading import Thread
from typing import Any, TypeVar

from .library import load
from .memory import WORD, Kind, Memory

T = TypeVar("T")

CASE = Struct("=QQIIIHH")  # as in kernel.c
MOVE = Struct("=QQQIHH")
BLOCK, MOST_MOVES = 256, 1024

BATCH = 1 << 17  # states per batch with several threads
WORTH_SHARING = 1 << 14  # the least number of states that is worth starting threads for
MOST_THREADS = 8
LOAD = 0.75  # maximum load factor of the set
UNTABLED = 1 << 12  # untabulated sessions fetched per call


class Plan(Structure):
    """The layout of words and the tables, as kernel.c expects them."""

    _fields_ = [
        *((name, c_int64) for name in
          ("sessions", "low", "session_bits", "prompts", "ends", "end_bits", "symmetric")),
        *((name, c_void_p) for name in ("case_of", "cases", "moves", "unrest_of_end")), ("at_rest", c_int64)]


class _Seen(Structure):
    _fields_ = [(name, c_void_p) for name in ("shown", "unrest", "crossed")]


class _Set(Structure):
    _fields_ = [("places", c_void_p), ("bits", c_int64), ("part_bits", c_int64)]


@cache
def library() -> Any:
    """The functions of kernel.c."""
    functions = load()
    number, pointer = c_int64, c_void_p
    for name, result, arguments in (
        ("canonical", c_uint64, (pointer, c_uint64)),
        ("search", number, (pointer,) * 6 + (number, number)),
        ("expand", number, (pointer,) * 4 + (number, number, pointer, pointer)),
        ("put", number, (pointer, pointer, number)),
        ("collect", None, (pointer, pointer, number, pointer)),
        ("find_untabled", number, (pointer, pointer, number, number, pointer, number)),
        ("find_parents", None, (pointer, pointer, pointer, number, number, pointer, number, pointer)),
        ("refill", None, (pointer, pointer, number)),
    ):
        function = getattr(functions, name)
        function.restype, function.argtypes = result, arguments
    return functions


def canonical(plan: Plan, word: int) -> int:
    """The word with its sessions sorted by number, and the ends of finished prompts reassigned accordingly."""
    found: int = library().canonical(byref(plan), word)
    return found


def usable_threads() -> int:
    """The number of threads to use by default: a power of two, at most the number of processors."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 << min(processors, MOST_THREADS).bit_length() - 1


def work_together(threads: int, work: Callable[[int], T]) -> list[T]:
    """Run `work` in each thread and return the results by thread number. The current thread is number 0."""
    results: dict[int, T] = {}

    def run(thread: int) -> None:
        results[thread] = work(thread)

    others = [Thread(target=run, args=(thread,)) for thread in range(1, threads)]
    for other in others:
        other.start()
    try:
        run(0)
    finally:
        for other in others:
            other.join()
    return [results[thread] for thread in range(threads)]


class Seen:
    """Where one thread first saw each violation and goal, as indexes in visiting order; -1 if never."""

    def __init__(self, unrest: int, crossed: int) -> None:
        self.shown, self.unrest, self.crossed = array("q"), _nowhere(unrest), _nowhere(crossed)

    def make_room(self, shown: int) -> None:
        self.shown.extend(_nowhere(shown - len(self.shown)))

    @property
    def _as_parameter_(self) -> Any:  # ctypes passes this to the library
        return byref(_Seen(*(numbers.buffer_info()[0] for numbers in (self.shown, self.unrest, self.crossed))))


def _nowhere(length: int) -> "array[int]":
    return array("q", [-1]) * length


class NotEverywhereError(RuntimeError):
    """An action on all sessions is not enabled in every session."""


class Search:
    """The visited words in order, the set of them, and how far they have been expanded."""

    def __init__(self, first: int, length: int, seen: Sequence[Seen]) -> None:
        """`first` is the initial word, `length` the initial size of the set; `seen` has one entry per thread."""
        self.seen = seen
        self.words, self.set = Memory(length), Memory(length, at_random=True)
        self.progress = array("q", [0, 1, 0])  # words expanded, words visited, edges
        self._scratch: dict[str, Memory] = {}
        self.words.view[0] = first
        self._refill()

    @property
    def expanded(self) -> int:
        return self.progress[0]

    @property
    def size(self) -> int:
        return self.progress[1]

    @property
    def edges(self) -> int:
        return self.progress[2]

    def advance(self, plan: Plan, most: int, end: int, expected: int) -> None:
        """Expand the words up to `end`, or as many as there is room for. If there is no room, grow instead, to the
        expected size. `most` is the maximum number of moves of a word."""
        margin = BLOCK * most + 1
        room = min(len(self.words), int(len(self.set) * LOAD)) - margin
        if self.size >= room:
            self._grow(margin, expected)
        elif (len(self.seen) == 1 or end - self.expanded < WORTH_SHARING
                or not self._share(plan, most, min(end, self.expanded + BATCH), room)):
            stopped = library().search(
                byref(plan), self.seen[0], self._set, self.words.address, self._at_hand("pending", BLOCK * most),
                self.progress.buffer_info()[0], end, room)
            if stopped:
                raise NotEverywhereError(NotEverywhereError.__doc__)

    def _share(self, plan: Plan, most: int, end: int, room: int) -> bool:
        """Expand the words up to `end` with all threads. False if there may be no room for the successors."""
        do, words, threads, seen, in_set = library(), self.words.address, len(self.seen), self.seen, self._set
        share = -(-(end - self.expanded) // threads)
        borders = [min(end, self.expanded + share * thread) for thread in range(threads + 1)]
        longest = share * most
        parts = self._at_hand("parts", threads * longest, "B")
        parted = self._at_hand("parted", threads * threads * longest)
        begins = [[parted + WORD * longest * (threads * thread + part) for part in range(threads)]
                  for thread in range(threads)]
        ends = [(c_void_p * threads)(*begin) for begin in begins]

        counts = work_together(threads, lambda thread: do.expand(
            byref(plan), seen[thread], in_set, words, borders[thread], borders[thread + 1], ends[thread],
            parts + longest * thread))
        if min(counts) < 0:
            raise NotEverywhereError(NotEverywhereError.__doc__)
        if self.size + sum(counts) >= room:
            return False
        put = work_together(threads, lambda part: [
            do.put(in_set, begin[part], ((end[part] or 0) - begin[part]) // WORD) for begin, end in zip(begins, ends)])
        new = [sum(by_share) for by_share in zip(*put)]
        places = list(accumulate(new, initial=self.size))
        work_together(threads, lambda thread: do.collect(
            (c_void_p * threads)(*begins[thread]), parts + longest * thread, new[thread],
            words + WORD * places[thread]))
        self.progress[0] = end
        self.progress[1] += sum(new)
        self.progress[2] += sum(counts)
        return True

    def _at_hand(self, name: str, length: int, kind: Kind = "Q") -> int:
        """The address of a reusable scratch buffer."""
        if name not in self._scratch or len(self._scratch[name]) < length:
            self._scratch[name] = Memory(length, kind)
        return self._scratch[name].address

    @property
    def _set(self) -> Any:
        length = len(self.set)
        return byref(_Set(self.set.address, length.bit_length() - 1, len(self.seen).bit_length() - 1))

    def _refill(self) -> None:
        library().refill(self._set, self.words.address, self.size)

    def _grow(self, margin: int, expected: int) -> None:
        if self.size >= len(self.words) - margin:
            self.words.grow(2 * len(self.words))
        length = len(self.set)
        if self.size >= int(length * LOAD) - margin:
            length *= 2
            while length * LOAD < expected:  # grow to the expected size at once, to rehash only once
                length *= 2
            del self.set  # it can be rebuilt from the words, so never hold both in memory
            self.set = Memory(length, at_random=True)
            self._refill()

    # --- queries on the words

    def find_untabled(self, plan: Plan, end: int) -> list[tuple[int, int]]:
        """The sessions of the words up to `end` that are not tabulated yet, each with its index, in order."""
        found: list[int] = []
        some = array("Q", bytes(WORD * UNTABLED))
        count = UNTABLED
        while count == UNTABLED:
            count = library().find_untabled(
                byref(plan), self.words.address, self.expanded, end, some.buffer_info()[0], UNTABLED)
            found += some[:count]
        return [(each >> 32, each & 0xFFFFFFFF) for each in sorted(found)]

    def find_parents(self, plan: Plan, begin: int, end: int, wanted: Sequence[int]) -> list[int]:
        """For each wanted word, in ascending order: the index of its first predecessor between `begin` and `end`. All
        words in that range have been expanded."""
        words, found = array("Q", wanted), _nowhere(len(wanted))
        library().find_parents(
            byref(plan), self.seen[0], self.words.address, begin, end, words.buffer_info()[0], len(words),
            found.buffer_info()[0])
        return found.tolist()
