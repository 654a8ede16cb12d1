"""What clients and the language model observed of a server, in order, and nothing else.

Time is counted in observations. Any two observations are ordered; a step inside the server is only known to have
happened between two of them. `Track.for_oracle` translates a prompt for the oracle.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from cancelmark.model.calls import NAMED
from cancelmark.model.oracle import Call, CallKind, End, Prompt, Span

from ..adapter import Ended, Notice

ENDING: dict[str, CallKind] = {"cancel": "cancel", "delete": "cancel", "clear": "clear_queue", "shut": "close",
                              "restart": "crash", "revoke": "revoke", "stop": "stop", "stop_hold": "stop",
                              "interrupt": "revoke"}
"""The calls that may end a prompt. An interrupt is the acceptance of another prompt."""
CANCELS_ALL = ("cancel", "delete", "shut")  # calls that cancel every prompt of a session
MAY_CANCEL = ("cancel", "clear", "delete", "shut")  # calls that may cancel any prompt of a session
STOP = ("stop", "stop_hold")
CANCELS_ONE = ("revoke", *STOP, "interrupt")  # calls that cancel one prompt
HOLD = ("hold", "stop_hold")
CLIENTS, SERVER, MODEL = "clients", "server", "language model"  # the lifelines


def at_session(n: int) -> str:
    """The suffix that names the session of a call in a script; empty for the first session."""
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
        """Whether it is a request, as opposed to a response or an event."""
        return self.ends in ((CLIENTS, SERVER), (SERVER, MODEL))


class Complaint(NamedTuple):
    """A broken guarantee, and a sentence on what was observed."""

    guarantee: str
    says: str


@dataclass
class Track:
    """What was observed of one prompt."""

    label: str
    name: str
    session: int
    run_id: bool
    begin: int
    accepted: float = inf
    refused: bool = False
    answered: float = inf  # when the server refused it
    floor: int = 0  # when it was last observed waiting: whatever is observed next happened after this
    queued: Span | None = None  # when it was first observed in the queue
    settled: Span | None = None  # if the queue cannot be queried: when it was first observed waiting
    asked: int = 0  # requests to the language model so far
    goes_on: list[int] = field(default_factory=list)  # when its turn called the language model again
    starts: list[tuple[int, int]] = field(default_factory=list)  # when observed, and the floor at that time
    let_go: tuple[str, int] | None = None  # how the kit released its turn, and when
    over: int | None = None  # when the request to the language model ended: answered, failed or aborted
    open: int = 0  # open requests to the language model
    left_open: bool = False  # one of them was still open long after the prompt's end
    broken_off: int = 0  # requests that the server aborted
    broken_at: int | None = None  # when the server was first observed aborting its turn
    ends: list[tuple[int, Ended, int]] = field(default_factory=list)
    notices: list[tuple[int, Notice]] = field(default_factory=list)
    taken_in: tuple[int, str] | None = None
    maybe_taken_in: bool = False  # another turn has its text, which may also be the residue of a cancel
    blamed: bool = False  # its missing terminal event was reported
    fails: bool = False  # the server cannot start it
    resent: int = 0  # how often it was resent after it was accepted
    reused: int = 0  # how often another prompt was sent under its run id
    summaries: int = 0  # requests for a summary so far
    summarizing: bool = False  # one of them is unanswered
    calling: bool = False  # its turn has called a tool, and has not continued yet
    will_outgrow: bool = False  # as soon as it starts
    will_summarize: bool = False  # as soon as a summary is requested
    pauses: list[tuple[int, float]] = field(default_factory=list)  # from the context overflow until the turn continued
    if_busy: str = ""  # what the client wants if the session is not idle
    version: int | None = None  # of its text, as the language model received it; 0: the original
    parked: bool = False  # it was observed waiting in a held session without a running turn

    @property
    def accept(self) -> Span:
        return Span(self.begin, self.accepted)

    @property
    def waited(self) -> Span | None:
        """When it was first observed waiting behind another prompt, as far as that can be known."""
        return self.queued or self.settled

    @property
    def running(self) -> bool:
        """Whether its turn has an open request to the language model."""
        return bool(self.starts) and self.over is None and not self.paused

    @property
    def paused(self) -> bool:
        """Whether its turn has overflowed its context and has not continued yet."""
        return bool(self.pauses) and self.pauses[-1][1] == inf

    def outgrow(self, at: int) -> None:
        """Note that its turn overflows its context, now or as soon as it starts."""
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
        """When its end was observed."""
        return self.ends[0][0] if self.ends else self.taken_in[0] if self.taken_in else inf

    @property
    def start_at(self) -> float:
        """When the start of its turn was observed."""
        return self.starts[0][0] if self.starts else inf

    def is_alive(self, call: "ClientCall") -> bool:
        """Whether the prompt was live, with its turn running or still to come, when the call was sent."""
        return self.accepted < call.begin < min(self.over_at, self.let_go[1] if self.let_go else inf)

    def is_let_go(self, by: float) -> bool:
        """Whether the kit had released its turn by then."""
        return self.let_go is not None and self.let_go[1] <= by

    def tell_end(self) -> str:
        if self.refused:
            return "refused"
        return " and ".join(end.outcome for _, end, _ in self.ends) or ("taken in" if self.taken_in else "without end")

    def for_oracle(self, steered: bool) -> Prompt:
        """The prompt in the oracle's terms. Where the start of turns is not observable, an answer implies a turn."""
        ends = [End(max(self.begin, floor), at, e.outcome) for at, e, floor in self.ends]
        starts = [Span(max(self.begin, floor), at) for at, floor in self.starts]
        if self.taken_in and not ends:
            ends = [End(max(self.begin, self.floor), self.taken_in[0], "folded")]
        if not steered and ends:
            starts = [Span(self.begin, ends[0].end)] if ends[0].outcome in ("end_turn", "error") else []
        return Prompt(self.label, self.accept, self.run_id, None, tuple(starts), tuple(ends), str(self.session))


@dataclass
class ClientCall:
    """A client's call other than an accept."""

    what: str
    session: int | None
    begin: int
    end: float = inf
    idle: bool = False  # the session had no live prompt from the request to the response
    of: str | None = None  # the prompt that it names, or that the server reports it has reached; empty: none
    by: Track | None = None  # of an interrupt: the prompt whose acceptance it is
    version: int = 0  # of a replace: the version of the new text
    refused: bool = False

    @property
    def text(self) -> str:
        """The call as a script writes it."""
        named = f" {self.of}" if self.what in NAMED else ""
        return f"{self.what.replace('_', ' ')}{named}{at_session(self.session or 0)}"

    @property
    def taken(self) -> bool:
        """Whether the server acknowledged it."""
        return self.end < inf and not self.refused

    def concerns(self, p: Track) -> bool:
        """Whether it may concern the prompt. An interrupt concerns those that were accepted before it."""
        if self.session not in (None, p.session):
            return False
        if self.by:
            return self.by is not p and not self.by.refused and not self.by.accepted < p.begin
        return self.of in (None, p.label)

    def as_call(self, p: Track, certain: bool) -> Call:
        """The call in the oracle's terms, for one prompt. Unless it certainly reached the prompt, it may do so at any
        time."""
        of = p.label if self.what in CANCELS_ONE else ""
        return Call(self.begin, self.end if certain else inf, ENDING[self.what],
                    None if self.session is None else str(self.session), of)


@dataclass
class History:
    """Everything that was observed while one script ran, and which guarantees it breaks."""

    steered: bool
    exact: bool  # what the language model observes happens at that very moment
    prompts: list[Track] = field(default_factory=list)
    calls: list[ClientCall] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    complaints: list[Complaint] = field(default_factory=list)
    silences: set[str] = field(default_factory=set)  # guarantees that are broken because of a timeout
    absences: list[tuple[int, float]] = field(default_factory=list)  # intervals in which no client read events
    long: list[tuple[int, float]] = field(default_factory=list)  # those longer than the server's grace period
    others: set[str] = field(default_factory=set)  # names in prompts that were sent under another prompt's run id
    records: int = 0  # prompts whose messages were checked
    capacity: int | None = None  # turns that the server runs concurrently, in all sessions
    fails_by_itself: bool = False  # turns may fail although the language model does not
    placeless: bool = False  # the subscriber could not leave, because it had no offset to resume from
    gone: str = ""  # the error that shows that the server has stopped
    now: int = 0

    def note(self, source: str, dest: str, text: str) -> int:
        """Record an observation, and return its time."""
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
        """The outcome of each prompt: `A canceled, B refused`."""
        return ", ".join(f"{p.label} {p.tell_end()}" for p in self.prompts) or "no prompt was accepted"

    @property
    def accepted(self) -> list[Track]:
        return [p for p in self.prompts if p.accepted < inf]

    def prompts_of(self, session: int) -> list[Track]:
        return [p for p in self.prompts if p.session == session]

    def find_prompt(self, name: str) -> Track | None:
        return next((p for p in self.prompts if p.name == name), None)

    def with_letters(self, text: str) -> str:
        """The text with each prompt's name replaced by its letter."""
        for p in self.prompts:
            text = text.replace(p.name, p.label)
        return text

    def calls_on(self, p: Track, *whats: str) -> Iterator[ClientCall]:
        """The calls of these kinds that may concern the prompt. Deleting a session counts as a cancel."""
        if "cancel" in whats:
            whats += ("delete",)
        return (c for c in self.calls if c.what in whats and c.concerns(p))

    def reachable(self, p: Track, *whats: str) -> bool:
        """Whether one of these calls may have reached it: the call was not complete when the prompt was sent. A call
        that cancels one prompt counts as a cancel."""
        if "cancel" in whats:
            whats += CANCELS_ONE
        return any(c.end > p.begin for c in self.calls_on(p, *whats))

    def touched(self, p: Track, by: float, but: ClientCall | None = None) -> bool:
        """Whether a call other than `but` may have ended it by then, or prevented its turn."""
        return any(c.end > p.begin and c.begin < by for c in self.calls_on(p, *ENDING) if c is not but)

    def cancels_of(self, p: Track) -> Iterator[ClientCall]:
        """The acknowledged calls that have certainly canceled it."""
        for c in self.calls:
            if p.accepted < c.begin and c.taken and c.session in (None, p.session) and (
                    c.what in CANCELS_ALL or (c.what in CANCELS_ONE and c.of == p.label)
                    or (c.what in STOP and self.in_front(c) is p)):
                yield c

    def covered(self, p: Track) -> bool:
        """Whether an acknowledged call has certainly canceled it."""
        return any(self.cancels_of(p))

    def in_front(self, stop: ClientCall) -> Track | None:
        """The prompt that was certainly the target of a stop, whatever the server reports: the one whose turn ran
        throughout, or the only one in a session that was not held."""
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
        """Whether its turn certainly ran from `begin` to `end`, unless the call `but` ended it."""
        return bool(p.starts) and p.starts[0][0] < begin and (p.over is None or p.over > begin) and (
            self.is_live(p, begin, end, but))

    def is_live(self, p: Track, begin: float, end: float, but: ClientCall | None = None) -> bool:
        """Whether it was certainly accepted by `begin` and not done by `end`, unless the call `but` ended it: no other
        call and no answer of the language model could have ended it, and it cannot have folded."""
        return (self.steered and p.accepted < begin and not p.over_at < begin and not p.is_let_go(by=end)
                and not (p.fails or p.pauses or self.fails_by_itself) and (p.run_id or bool(p.starts))
                and not self.touched(p, end, but))

    def maybe_held(self, session: int, begin: float = inf, end: float = inf) -> bool:
        """Whether the session may have been held at some time between `begin` and `end`."""
        return any(c.begin < end and not c.refused and not any(
            c.end < r.begin and r.end < begin for r in self._calls_in(session, "resume"))
            for c in self._calls_in(session, *HOLD))

    def surely_held(self, session: int, begin: float, end: float) -> bool:
        """Whether the session was certainly held throughout."""
        return any(c.end <= begin for c in self.holds_until(session, end))

    def holds_until(self, session: int, end: float) -> Iterator[ClientCall]:
        """The acknowledged holds that no resume can have ended before `end`."""
        return (c for c in self._calls_in(session, *HOLD) if c.taken and not any(
            r.end > c.begin and r.begin < end for r in self._calls_in(session, "resume")))

    def _calls_in(self, session: int, *whats: str) -> Iterator[ClientCall]:
        return (c for c in self.calls if c.what in whats and c.session == session)

    def outlived(self, p: Track) -> bool:
        """Whether no client was subscribed for longer than the grace period while it was live, and no call may have
        ended it."""
        return not self.reachable(p, *ENDING) and any(
            p.accepted < left and not (p.ends and p.ends[0][0] < left) for left, _ in self.long)

    @property
    def running(self) -> int:
        """The number of running turns, in all sessions."""
        return sum((p.running or p.summarizing) and p.live for p in self.prompts)

    @property
    def full(self) -> bool:
        """Whether the server runs as many turns as its capacity allows."""
        return self.capacity is not None and self.running >= self.capacity

    def clears_of(self, p: Track) -> Iterator[ClientCall]:
        """The acknowledged clears that certainly found it in the queue: it was observed there before, and another
        prompt's turn ran throughout."""
        for c in self.calls_on(p, "clear"):
            if p.waited and p.waited.end < c.begin and c.end < inf and any(
                    q.starts and q.starts[0][0] <= p.waited.end and (q.over or inf) > c.end and not q.pauses
                    and not self.reachable(q, "cancel", "shut", "restart")
                    for q in self.prompts_of(p.session)):
                yield c

    def away(self, p: Track) -> bool:
        """Whether the cause of its end happened while no client was subscribed."""
        return any(left <= cause <= back for left, back in self.absences for cause in self._causes(p))

    def maybe_away(self, p: Track) -> bool:
        """Whether the cause of its end happened before the subscriber left, which did not wait for the event."""
        return any(cause <= left for left, _ in self.absences for cause in self._causes(p)) and not p.blamed

    def _causes(self, p: Track) -> list[int]:
        calls = [c.begin for c in self.calls_on(p, *ENDING) if c.end > p.begin]
        return calls + ([p.let_go[1]] if p.let_go else [])
