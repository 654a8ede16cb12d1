"""When a session was idle, as its lines tell: what an acceptance with `reject` has found.

Such a prompt looks when its seq is given out, and its line may be written later, when others have come. They have
higher seqs. So what is kept is where the session has lately become idle or busy, and which seqs it has accepted.
"""

from typing import NamedTuple

MOST = 16  # changes that are kept: an acceptance that comes even later is refused


class Change(NamedTuple):
    """What a line has made of the session."""

    line: int
    idle: bool
    seq: int = 0  # of a prompt that it accepts


class Idleness:
    """The latest changes of one session. Methods tell what is wrong, if anything is."""

    def __init__(self) -> None:
        self._changes: tuple[Change, ...] = (Change(0, True),)
        self._alone = 0  # the highest seq that was accepted because nobody was there

    def accept(self, seq: int) -> str | None:
        """The next line tells that a prompt was accepted under `seq`."""
        if seq < self._alone:
            return f"seq {seq} was given out before {self._alone}, which was accepted since nobody was there"
        return None

    def reject(self, seq: int, after: int) -> str | None:
        """And that, after line `after`, it found nobody."""
        known = [change for change in self._changes if change.line <= after]
        if not known:
            return f"line {after} is too long ago to say whether the session was idle"
        if not known[-1].idle:
            return f"after line {after} the session was not idle, and the prompt is accepted only if it is"
        earlier = [change.seq for change in self._changes if change.line > after and 0 < change.seq < seq]
        if earlier:
            return f"prompt {earlier[0]} was being accepted, and the prompt is accepted only if nobody is there"
        self.found_idle(seq)
        return None

    def found_idle(self, seq: int) -> None:
        """The prompt was accepted because nobody was there."""
        self._alone = max(self._alone, seq)

    def note(self, line: int, idle: bool, seq: int = 0) -> None:
        """What the line has made of the session."""
        if seq or self._changes[-1].idle is not idle:
            self._changes = (*self._changes[1 - MOST:], Change(line, idle, seq))
