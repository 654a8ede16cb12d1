"""The encoding of a whole state as one machine word.

From the lowest bit up:

    closing | seq | a number for each session | the rest of each bound | run ids, by seq | ends, by seq | 1

A session's number stands for its mark and its unfinished prompts, with hidden run ids. The end of a finished prompt
stands for its session, its outcome and its history. The topmost bit is always set, so that no state is 0. Nothing is
rounded or hashed: words and states correspond one to one, and a step adds a constant to the word.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ...properties import BOUND_NAMES, Bounds

WORD_BITS = 63  # a signed word; its sign bit is not used
SESSION_BITS = 18  # as many as any search needs
LEAST_SESSION_BITS = 8
BUDGETS = tuple(name for name in BOUND_NAMES if name != "prompts")  # the latest seq gives the number of prompts


class TooWide(Exception):
    """A state does not fit into a word."""


@dataclass(frozen=True)
class Layout:
    """The bit positions of the fields of a word."""

    bounds: Bounds
    end_bits: int

    @cached_property
    def low(self) -> int:
        """The number of bits for closing and seq. A session's next steps depend only on these and on its number."""
        return 1 + self.bounds.prompts.bit_length()

    @cached_property
    def session_bits(self) -> int:
        left = WORD_BITS - 1 - self.low - sum(self._budget_bits) - self.bounds.prompts * (1 + self.end_bits)
        bits = min(SESSION_BITS, left // self.bounds.sessions)
        if bits < LEAST_SESSION_BITS:
            raise TooWide(f"a state within {self.bounds} needs more than {WORD_BITS} bits")
        return bits

    @cached_property
    def sessions(self) -> tuple[int, ...]:
        """The lowest bit of each session's number."""
        return tuple(self.low + i * self.session_bits for i in range(self.bounds.sessions))

    @cached_property
    def budgets(self) -> dict[str, int]:
        """The lowest bit of the rest of each bound."""
        begins = self.low + self.bounds.sessions * self.session_bits
        return {name: begins + sum(self._budget_bits[:i]) for i, name in enumerate(BUDGETS)}

    @property
    def _budget_bits(self) -> list[int]:
        return [getattr(self.bounds, name).bit_length() for name in BUDGETS]

    @cached_property
    def run_ids(self) -> int:
        """The lowest bit of the run ids."""
        return self.low + self.bounds.sessions * self.session_bits + sum(self._budget_bits)

    @cached_property
    def ends(self) -> int:
        """The lowest bit of the ends."""
        return self.run_ids + self.bounds.prompts

    def run_id(self, seq: int) -> int:
        """The bit that is set if the prompt with this seq has a run id."""
        return 1 << self.run_ids + seq - 1

    def bits_left(self, bound: str) -> int:
        """The mask of the bits that hold the rest of a bound."""
        limit: int = getattr(self.bounds, bound)
        return (1 << limit.bit_length()) - 1 << self.budgets[bound]

    def word(
        self, closing: bool, seq: int, sessions: Iterable[int], left: Iterable[int], run_ids: Iterable[int],
        ends: Iterable[tuple[int, int]],
    ) -> int:
        """Encode a state: the sessions' numbers, the rest of each bound, the seqs of the prompts with a run id, and the
        ends of finished prompts by seq."""
        word = 1 << WORD_BITS - 1 | closing | seq << 1
        word += sum(number << at for number, at in zip(sessions, self.sessions))
        word += sum(n << at for n, at in zip(left, self.budgets.values()))
        word += sum(map(self.run_id, run_ids))
        return word + sum(end << self.ends + (seq - 1) * self.end_bits for seq, end in ends)
