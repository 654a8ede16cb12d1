"""What clients and the language model saw of a server, in order, and nothing else.

Time is counted in observations: two things that were seen have an order, and what happened inside the server is only
known to have happened between two of them. `Track.for_oracle` is what the oracle is told of a prompt.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from cancelmark.model.calls import NAMED
from cancelmark.model.oracle import Call, CallKind, End, Prompt, Span

from ..adapter import Ended, Notice

KINDS: dict[str, CallKind] = {"cancel": "cancel", "delete": "cancel", "clear": "clear_queue", "shut": "close",
                              "restart": "crash", "revoke": "revoke", "stop": "stop", "stop_hold": "stop",
                              "interrupt": "revoke"}
"""What may end a prompt. An interrupt is the acceptance of another prompt."""
WHOLE = ("cancel", "delete", "shut")  # calls that cancel all that a session has
REACHES = ("cancel", "clear", "delete", "shut")  # calls that may cancel any prompt of a session
STOP = ("stop", "stop_hold")
ONE = ("revoke", *STOP, "interrupt")  # calls that cancel one prompt
HOLD = ("hold", "stop_hold")
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
    answered: float = inf  # when the answer came that it is refused
    floor: int = 0  # when it was last seen to be waiting: what comes next comes after this
    queued: Span | None = None  # when it was first seen to be in the queue
    settled: Span | None = None  # where nobody can be asked for the queue: when it was first seen to wait
    asked: int = 0  # how often the language model was
    goes_on: list[int] = field(default_factory=list)  # when its turn was seen to call the language model again
    starts: list[tuple[int, int]] = field(default_factory=list)  # when seen, and the floor then
    let_go: tuple[str, int] | None = None  # how the kit let its turn end, and when
    over: int | None = None  # when the language model was done with it: answered, failed or broken off
    open: int = 0  # requests to the language model that wait for an answer
    left_open: bool = False  # one of them was still waiting long after the prompt's end
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
    if_busy: str = ""  # what it wants of a session that is not idle
    version: int | None = None  # of its text, as the language model heard it; 0: as it was sent
    parked: bool = False  # it was seen to wait in a session that was held and had nothing running

    @property
    def accept(self) -> Span:
        return Span(self.begin, self.accepted)

    @property
    def waited(self) -> Span | None:
        """When it was first seen to wait behind another, as far as that can be known."""
        return self.queued or self.settled

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

    @property
    def over_at(self) -> float:
        """When it was seen to have ended."""
        return self.ends[0][0] if self.ends else self.taken_in[0] if self.taken_in else inf

    @property
    def start_at(self) -> float:
        """When its turn was seen to start."""
        return self.starts[0][0] if self.starts else inf

    def is_alive(self, call: "ClientCall") -> bool:
        """Whether the prompt was there, and its turn held or still to come, when the call began."""
        return self.accepted < call.begin < min(self.over_at, self.let_go[1] if self.let_go else inf)

    def is_let_go(self, by: float) -> bool:
        """Whether the kit had let its turn end by then."""
        return self.let_go is not None and self.let_go[1] <= by

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
    of: str | None = None  # the prompt that it names, or that the server says it has reached; empty: nobody
    by: Track | None = None  # whose acceptance it is: an interrupt
    version: int = 0  # the text that it brings: a replace
    refused: bool = False  # the server said no

    @property
    def text(self) -> str:
        """What is done, as a script says it."""
        named = f" {self.of}" if self.what in NAMED else ""
        return f"{self.what.replace('_', ' ')}{named}{at_session(self.session or 0)}"

    @property
    def taken(self) -> bool:
        """It was answered, and not with a no."""
        return self.end < inf and not self.refused

    def concerns(self, p: Track) -> bool:
        """Whether it may be about the prompt. An interrupt is about those that were accepted before it."""
        if self.session not in (None, p.session):
            return False
        if self.by:
            return self.by is not p and not self.by.refused and not self.by.accepted < p.begin
        return self.of in (None, p.label)

    def as_call(self, p: Track, certain: bool) -> Call:
        """As the oracle is told of it, about a prompt: if it is not certain that it has reached it, it may do so at any
        time."""
        of = p.label if self.what in ONE else ""
        return Call(self.begin, self.end if certain else inf, KINDS[self.what],
                    None if self.session is None else str(self.session), of)


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

    @property
    def accepted(self) -> list[Track]:
        return [p for p in self.prompts if p.accepted < inf]

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
        return (c for c in self.calls if c.what in whats and c.concerns(p))

    def reachable(self, p: Track, *whats: str) -> bool:
        """Whether one of these calls may have reached it: it was not over when the prompt began to be accepted. A call
        that cancels one prompt is a cancel too."""
        if "cancel" in whats:
            whats += ONE
        return any(c.end > p.begin for c in self.calls_on(p, *whats))

    def touched(self, p: Track, by: float, but: ClientCall | None = None) -> bool:
        """Whether something may have ended it by then, or kept it from its turn."""
        return any(c.end > p.begin and c.begin < by for c in self.calls_on(p, *KINDS) if c is not but)

    def cancels_of(self, p: Track) -> Iterator[ClientCall]:
        """The calls that have canceled it for certain, and were answered."""
        for c in self.calls:
            if p.accepted < c.begin and c.taken and c.session in (None, p.session) and (
                    c.what in WHOLE or (c.what in ONE and c.of == p.label)
                    or (c.what in STOP and self.in_front(c) is p)):
                yield c

    def covered(self, p: Track) -> bool:
        """Whether a call has canceled it for certain, and was answered."""
        return any(self.cancels_of(p))

    def in_front(self, stop: ClientCall) -> Track | None:
        """Who was in front for certain, whatever the server says: whose turn ran all the while, or who was alone in a
        session that nobody held."""
        here = [p for p in self.prompts_of(stop.session or 0)
                if not p.refused and p.begin < stop.end and not p.over_at < stop.begin]
        if running := next((p for p in here if self.runs_through(p, stop.begin, stop.end, stop)), None):
            return running
        alone = here[0] if len(here) == 1 and stop.what == "stop" else None
        if alone and alone.accepted < stop.begin and self.is_live(alone, stop.begin, stop.end, stop) and (
                not self.maybe_held(alone.session, stop.begin, stop.end)):
            return alone
        return None

    def runs_through(self, p: Track, begin: float, end: float, but: ClientCall | None = None) -> bool:
        """Whether its turn has run from then until then for certain, unless that call has ended it."""
        return bool(p.starts) and p.starts[0][0] < begin and (p.over is None or p.over > begin) and (
            self.is_live(p, begin, end, but))

    def is_live(self, p: Track, begin: float, end: float, but: ClientCall | None = None) -> bool:
        """Whether it was accepted by then and not done by then for certain, unless that call has ended it: nothing
        could have ended it, neither a call nor the language model, nor has another's turn taken it in."""
        return (self.steered and p.accepted < begin and not p.over_at < begin and not p.is_let_go(by=end)
                and not (p.fails or p.pauses or self.fails_by_itself) and (p.run_id or bool(p.starts))
                and not self.touched(p, end, but))

    def maybe_held(self, session: int, begin: float = inf, end: float = inf) -> bool:
        """Whether the session may have been held at some time between: nobody has resumed it for certain by then."""
        return any(c.begin < end and not c.refused and not any(
            c.end < r.begin and r.end < begin for r in self._calls_in(session, "resume"))
            for c in self._calls_in(session, *HOLD))

    def surely_held(self, session: int, begin: float, end: float) -> bool:
        """Whether the session was held all the while."""
        return any(c.end <= begin for c in self.holds_until(session, end))

    def holds_until(self, session: int, end: float) -> Iterator[ClientCall]:
        """The holds that were answered, and that nobody can have ended before then."""
        return (c for c in self._calls_in(session, *HOLD) if c.taken and not any(
            r.end > c.begin and r.begin < end for r in self._calls_in(session, "resume")))

    def _calls_in(self, session: int, *whats: str) -> Iterator[ClientCall]:
        return (c for c in self.calls if c.what in whats and c.session == session)

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
            if p.waited and p.waited.end < c.begin and c.end < inf and any(
                    q.starts and q.starts[0][0] <= p.waited.end and (q.over or inf) > c.end and not q.pauses
                    and not self.reachable(q, "cancel", "shut", "restart")
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
