"""What clients and the language model saw of a server, in order, and nothing else.

Time is counted in observations: two things that were seen have an order, and what happened inside the server is only
known to have happened between two of them. `Track.for_oracle` is what the oracle is told of a prompt.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from cancelmark.model.oracle import Call, CallKind, End, Prompt, Span

from ..adapter import Ended, Notice

KINDS: dict[str, CallKind] = {"cancel": "cancel", "delete": "cancel", "clear": "clear_queue", "shut": "close",
                              "restart": "crash"}
CLIENTS, SERVER, MODEL = "clients", "server", "language model"  # the lifelines


def at_session(n: int) -> str:
    """Which session it is, behind what is done there; nothing for the first."""
    return f" @{n + 1}" if n else ""


class Observation(NamedTuple):
    """One observation: a message from one lifeline to another, or a note if it has no destination."""

    at: int
    source: str
    dest: str
    text: str

    @property
    def ends(self) -> tuple[str, str]:
        return self.source, self.dest

    @property
    def asks(self) -> bool:
        """Whether somebody is asked for something, as opposed to told."""
        return self.ends in ((CLIENTS, SERVER), (SERVER, MODEL))


class Complaint(NamedTuple):
    """A guarantee that was broken, and how it shows."""

    guarantee: str
    says: str


@dataclass
class Track:
    """What was seen of one prompt."""

    label: str
    name: str
    session: int
    run_id: bool
    begin: int
    accepted: float = inf
    refused: bool = False
    floor: int = 0  # when it was last seen to be waiting: what comes next comes after this
    queued: Span | None = None  # when it was first seen to be in the queue
    asked: int = 0  # how often the language model was
    goes_on: list[int] = field(default_factory=list)  # when its turn was seen to call the language model again
    starts: list[tuple[int, int]] = field(default_factory=list)  # when seen, and the floor then
    let_go: tuple[str, int] | None = None  # how the kit let its turn end, and when
    over: int | None = None  # when the language model was done with it: answered, failed or broken off
    broken_off: int = 0
    broken_at: int | None = None  # when its turn was seen to be broken off
    ends: list[tuple[int, Ended, int]] = field(default_factory=list)
    notices: list[tuple[int, Notice]] = field(default_factory=list)
    taken_in: tuple[int, str] | None = None
    maybe_taken_in: bool = False  # another's turn has its text, which may also be left of a prompt that was canceled
    blamed: bool = False  # that it has no end was complained about
    fails: bool = False  # the server cannot start it
    resent: int = 0  # how often it was sent again after it was accepted
    reused: int = 0  # how often another was sent under its run id
    summaries: int = 0  # how often the language model was asked for one
    summarizing: bool = False  # and it has not answered
    calling: bool = False  # its turn has called a tool, and has not gone on yet
    will_outgrow: bool = False  # as soon as it starts
    will_summarize: bool = False  # as soon as a summary is asked for
    pauses: list[tuple[int, float]] = field(default_factory=list)  # since it no longer fitted, until it went on

    @property
    def accept(self) -> Span:
        return Span(self.begin, self.accepted)

    @property
    def running(self) -> bool:
        """The language model is being asked for its turn."""
        return bool(self.starts) and self.over is None and not self.paused

    @property
    def paused(self) -> bool:
        """Its turn no longer fits, and has not gone on yet."""
        return bool(self.pauses) and self.pauses[-1][1] == inf

    def outgrow(self, at: int) -> None:
        """Its turn no longer fits, now or as soon as it starts."""
        self.will_outgrow = not self.starts
        if self.starts:
            self.pauses.append((at, inf))

    def go_on(self, at: int) -> None:
        self.pauses[-1] = (self.pauses[-1][0], at)

    @property
    def ended(self) -> bool:
        return bool(self.ends) or self.taken_in is not None

    @property
    def live(self) -> bool:
        return self.accepted < inf and not self.ended

    @property
    def waiting(self) -> bool:
        return self.live and not self.starts

    def tell_end(self) -> str:
        if self.refused:
            return "refused"
        return " and ".join(end.outcome for _, end, _ in self.ends) or ("taken in" if self.taken_in else "without end")

    def for_oracle(self, steered: bool) -> Prompt:
        """The prompt as the oracle sees it. Whoever cannot see turns start knows that an answer comes from one."""
        ends = [End(max(self.begin, floor), at, e.outcome) for at, e, floor in self.ends]
        starts = [Span(max(self.begin, floor), at) for at, floor in self.starts]
        if self.taken_in and not ends:
            ends = [End(max(self.begin, self.floor), self.taken_in[0], "folded")]
        if not steered and ends:
            starts = [Span(self.begin, ends[0].end)] if ends[0].outcome in ("end_turn", "error") else []
        return Prompt(self.label, self.accept, self.run_id, None, tuple(starts), tuple(ends), str(self.session))


@dataclass
class ClientCall:
    """A call that is not an accept."""

    what: str
    session: int | None
    begin: int
    end: float = inf
    idle: bool = False  # the session had nothing to cancel when it began, nor while it lasted

    @property
    def call(self) -> Call:
        return Call(self.begin, self.end, KINDS[self.what], None if self.session is None else str(self.session))


@dataclass
class History:
    """Everything that was seen, and what is wrong with it."""

    steered: bool
    exact: bool  # what the language model sees happens at that very moment
    prompts: list[Track] = field(default_factory=list)
    calls: list[ClientCall] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    complaints: list[Complaint] = field(default_factory=list)
    silences: set[str] = field(default_factory=set)  # guarantees that are broken because nothing came
    absences: list[tuple[int, float]] = field(default_factory=list)  # when nobody read events, from and to
    long: list[tuple[int, float]] = field(default_factory=list)  # of these, for longer than the server's grace
    others: set[str] = field(default_factory=set)  # names in prompts that were sent under another's run id
    records: int = 0  # prompts whose messages were asked for
    capacity: int | None = None  # turns that the server runs at once, in all sessions
    fails_by_itself: bool = False  # turns may fail although the language model does not
    placeless: bool = False  # the subscriber wanted to leave, and there was no place to come back to
    gone: str = ""  # how it showed that the server has stopped
    now: int = 0

    def note(self, source: str, dest: str, text: str) -> int:
        """Writes an observation down, and returns its time."""
        self.now += 1
        self.observations.append(Observation(self.now, source, dest, text))
        return self.now

    def complain(self, guarantee: str, says: str) -> None:
        complaint = Complaint(guarantee, says)
        if complaint not in self.complaints:
            self.complaints.append(complaint)

    @property
    def broken(self) -> frozenset[str]:
        return frozenset(c.guarantee for c in self.complaints)

    def tell_ends(self) -> str:
        """How each prompt ended: `A canceled, B refused`."""
        return ", ".join(f"{p.label} {p.tell_end()}" for p in self.prompts) or "nothing was accepted"

    def prompts_of(self, session: int) -> list[Track]:
        return [p for p in self.prompts if p.session == session]

    def find_prompt(self, name: str) -> Track | None:
        return next((p for p in self.prompts if p.name == name), None)

    def with_letters(self, text: str) -> str:
        """The text with the letters of prompts for their names."""
        for p in self.prompts:
            text = text.replace(p.name, p.label)
        return text

    def calls_on(self, p: Track, *whats: str) -> Iterator[ClientCall]:
        """The calls of these kinds that could concern the prompt. To delete a session is to cancel it."""
        if "cancel" in whats:
            whats += ("delete",)
        return (c for c in self.calls if c.what in whats and c.session in (None, p.session))

    def reachable(self, p: Track, *whats: str) -> bool:
        """Whether one of these calls may have reached it: it was not over when the prompt began to be accepted."""
        return any(c.end > p.begin for c in self.calls_on(p, *whats))

    def covered(self, p: Track) -> bool:
        """Whether a cancel has reached it for certain, and was answered."""
        return any(p.accepted < c.begin and c.end < inf for c in self.calls_on(p, "cancel", "shut"))

    def outlived(self, p: Track) -> bool:
        """Whether nobody watched for long while it was not done, and nothing else may have ended it."""
        return not self.reachable(p, *KINDS) and any(
            p.accepted < left and not (p.ends and p.ends[0][0] < left) for left, _ in self.long)

    @property
    def running(self) -> int:
        """How many turns are running, in all sessions."""
        return sum((p.running or p.summarizing) and p.live for p in self.prompts)

    @property
    def full(self) -> bool:
        """Whether the server runs as many turns as it can."""
        return self.capacity is not None and self.running >= self.capacity

    def clears_of(self, p: Track) -> Iterator[ClientCall]:
        """The clears that found it in the queue for certain, and were answered: it was seen there before, and the turn
        of another ran all the while."""
        for c in self.calls_on(p, "clear"):
            if p.queued and p.queued.end < c.begin and c.end < inf and any(
                    q.starts and q.starts[0][0] <= p.queued.end and (q.over or inf) > c.end and not q.pauses
                    and not self.reachable(q, "cancel", "shut", "restart", "delete")
                    for q in self.prompts_of(p.session)):
                yield c

    def away(self, p: Track) -> bool:
        """Whether what ended it happened while nobody watched."""
        return any(left <= cause <= back for left, back in self.absences for cause in self._causes(p))

    def maybe_away(self, p: Track) -> bool:
        """Whether what ended it happened before that, and nobody waited for its end before they left."""
        return any(cause <= left for left, _ in self.absences for cause in self._causes(p)) and not p.blamed

    def _causes(self, p: Track) -> list[int]:
        calls = [c.begin for c in self.calls_on(p, *KINDS) if c.end > p.begin]
        return calls + ([p.let_go[1]] if p.let_go else [])
