"""When a session was idle, according to its lines: what an acceptance with `reject` depends on.

The server checks for idleness when it assigns the prompt's seq. The prompt's line may be written later, after the lines
of other prompts, which have higher seqs. So this keeps the recent lines at which the session became idle or busy, and
the seqs that it has accepted.
"""

from typing import NamedTuple

MOST = 16  # changes that are kept; an acceptance that comes even later is rejected


class Change(NamedTuple):
    """A line at which the session became idle or busy, or accepted a prompt."""

    line: int
    idle: bool
    seq: int = 0  # of the accepted prompt


class Idleness:
    """The latest changes of one session. Methods return what is wrong, or None."""

    def __init__(self) -> None:
        self._changes: tuple[Change, ...] = (Change(0, True),)
        self._alone = 0  # the highest seq that was accepted because the session was idle

    def accept(self, seq: int) -> str | None:
        """Check the next line, which accepts a prompt under `seq`."""
        if seq < self._alone:
            return f"seq {seq} was assigned before {self._alone}, which was accepted because the session was idle"
        return None

    def reject(self, seq: int, after: int) -> str | None:
        """Check an acceptance with `reject`, whose seq was assigned after line `after`: the session must be idle then.
        """
        known = [change for change in self._changes if change.line <= after]
        if not known:
            return f"line {after} is too long ago to decide whether the session was idle"
        if not known[-1].idle:
            return f"the prompt requires an idle session, but after line {after} the session was not idle"
        earlier = [change.seq for change in self._changes if change.line > after and 0 < change.seq < seq]
        if earlier:
            return f"the prompt requires an idle session, but prompt {earlier[0]} was being accepted"
        self.found_idle(seq)
        return None

    def found_idle(self, seq: int) -> None:
        """Note that the prompt was accepted because the session was idle."""
        self._alone = max(self._alone, seq)

    def note(self, line: int, idle: bool, seq: int = 0) -> None:
        """Note a change of the session at this line."""
        if seq or self._changes[-1].idle is not idle:
            self._changes = (*self._changes[1 - MOST:], Change(line, idle, seq))
