"""Which seqs a server has assigned, and between which lines of its trace, as far as the lines tell.

A seq is assigned before the line of its acceptance is written. Other lines may come in between: a cancel that already
covers it, or an acceptance with a higher seq. A prompt that is refused after that leaves a gap (R1c). So this keeps the
latest seq and the gaps below it, each with the lines between which its seqs were assigned.
"""

from typing import NamedTuple

MOST_GAPS = 10_000  # the oldest are forgotten; an acceptance that comes even later is rejected


class Gap(NamedTuple):
    """Seqs that were assigned or skipped, without a known acceptance."""

    first: int
    last: int
    since: int  # they were assigned after this line
    until: int  # the last line that can have been written before that


class Seqs:
    """The seqs of a server. Methods return what is wrong, or None."""

    def __init__(self) -> None:
        self.latest = 0
        self.accepted = 0  # the highest with a known acceptance
        self.gaps: list[Gap] = []  # by seq
        self._since = 0  # a seq above the latest is assigned after this line

    def give(self, seq: int, after: int, now: int) -> str | None:
        """Note that line `now` accepts a prompt under `seq`, which was assigned right after line `after`."""
        if seq > self.latest:
            gap, at = Gap(self.latest + 1, seq, self._since, now - 1), len(self.gaps)
        else:
            at = next((i for i in reversed(range(len(self.gaps))) if self.gaps[i].first <= seq), -1)
            if at < 0 or self.gaps[at].last < seq:
                return f"seq {seq} is already assigned: the latest is {self.latest}"
            gap = self.gaps[at]
        if not gap.since <= after <= gap.until:
            when = f"right after line {gap.since}" if gap.since == gap.until else (
                f"after line {gap.since} at the earliest and line {gap.until} at the latest")
            return f"according to the other lines, seq {seq} was assigned {when}, not after line {after}"
        before, behind = Gap(gap.first, seq - 1, gap.since, after), Gap(seq + 1, gap.last, after, gap.until)
        self.gaps[at:at + 1] = [part for part in (before, behind) if part.first <= part.last]
        del self.gaps[:-MOST_GAPS]
        if seq > self.latest:
            self.latest, self._since = seq, after
        self.accepted = max(self.accepted, seq)
        return None

    def reach(self, mark: int, until: int, since: int) -> str | None:
        """Note that `mark` was the latest seq: it was assigned after line `until` at the latest, and any later one
        after line `since` at the earliest."""
        if mark < self.latest:
            return f"the mark must be at least {self.latest}, the latest assigned seq, not {mark}"
        if mark > self.latest:
            self.gaps.append(Gap(self.latest + 1, mark, self._since, until))
            del self.gaps[:-MOST_GAPS]
        self.latest, self._since = mark, max(self._since, since)
        return None

    def free(self, seq: int) -> bool:
        """Whether no acceptance under this seq is known."""
        return seq > self.latest or any(gap.first <= seq <= gap.last for gap in self.gaps)

    def restart(self, latest: int, now: int) -> None:
        """Note that the server restarted, and found `latest` in its journal (R17e)."""
        self.latest, self.gaps, self._since = max(latest, self.accepted), [], now
