"""Scripts: the client actions of one history as data, which can be written by hand, drawn at random, varied and shrunk.

    script("accept A; accept B; fail")               send A, then B; when the server is quiet, A's turn fails
    script("accept A, cancel, accept B")             send each as soon as the previous one has its response
    script("accept A,200 cancel")                    send the cancel 200 microseconds after the response
    script("accept A; release + accept B")           start both at the same time, in this order
    script("accept A; cancel +50 accept B")          send B 50 microseconds after the cancel, without waiting for it
    script("accept A; accept B @2; cancel")          send B to a second session; there are sixteen

Prompts
    accept A            send a prompt; `accept A anonymous`: without a run id; `accept A failing`: one that cannot start
    lose A              send a prompt, and break the connection before the response arrives
    resend A            send the same prompt again, under its run id
    reuse A @2          send another prompt under the run id of A

Prompts get their letters in order; the letter of an `accept` or `lose` is only for readers.

Turns
    release             the turn that is running in the session succeeds
    fail                it fails
    again               it has to call the language model again
    outgrow             it overflows its context
    flood               it succeeds with a very long answer
    summarize           the language model answers the server's request for a summary, after an overflow

With a letter, as in `outgrow B`, each applies to the turn of that prompt, now or as soon as it starts.

Sessions, server and subscriber
    cancel, clear, delete       of a session
    shut, restart               of the server
    leave, return               no client is subscribed in between; `leave long`: for longer than the server's grace
    slow, return                the subscriber stays connected in between, and reads nothing
    attach                      another client connects

Optional calls
    accept B reject             send a prompt that requires an idle session
    accept B interrupt          send a prompt that stops the running one
    revoke B                    cancel one prompt
    replace B                   replace its text
    next B                      move it to the front
    stop                        cancel the running prompt, and keep the queue
    hold, resume                no queued prompt starts in between; sessions still held at the end are resumed
    stop hold                   both in one step

The script for a server in this process includes the schedule, so its text is enough to replay the history: `accept A,
cancel | late 2 5 | depart 3:1` (see `Script`).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import TYPE_CHECKING
from zlib import crc32

from cancelmark.model.calls import CALLS_BY_WORD, FAMILY, NAMED
from cancelmark.model.session import label

from ..schedule import Choose, Ready, departing

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

SENDS = ("accept", "lose")
AGAIN = ("resend", "reuse")
CALLS = (*SENDS, *AGAIN, *CALLS_BY_WORD, "delete", "shut", "restart", "leave", "return", "slow", "attach")
TURNS = ("release", "fail", "again", "outgrow", "flood", "summarize")
IF_BUSY = ("reject", "interrupt")
HOWS = {"anonymous": SENDS, "failing": SENDS, "long": ("leave",), "hold": ("stop",),
        **dict.fromkeys(IF_BUSY, SENDS)}  # the actions that each modifier may follow
WORDS = re.compile(rf"(?P<what>[a-z]+)( (?P<letter>[A-Z]))?( (?P<how>{'|'.join(HOWS)}))?( @(?P<session>\d+))?")
BETWEEN = re.compile(r"\s*([;,+])(\d*)\s*")
ALONE = ("shut", "restart", "leave", "return", "slow", "attach")
SESSIONS = 16
TASKS = 8  # classes of tasks, of which a schedule can delay some
LATE, DEPART = re.compile(rf"late( [0-{TASKS - 1}])+"), re.compile(r"depart( \d+:[1-9]\d*)+")
GAPS = (0, 0, 20, 50, 100, 200, 500, 1000, 2000, 5000)  # microseconds: the window of a race may be anywhere


@dataclass(frozen=True)
class Do:
    """An action of a client, or of the language model on a turn."""

    what: str
    session: int = 0
    how: str = ""
    """One of `HOWS`."""
    back: int = 0
    """Which prompt it names, counted back from the latest, which is 1. 0: none, or a new one."""

    @property
    def run_id(self) -> bool:
        return self.how != "anonymous"

    @property
    def if_busy(self) -> str:
        """What the client wants if the session is not idle."""
        return self.how if self.how in IF_BUSY else ""

    @property
    def needs(self) -> set[str]:
        """The optional calls that a server must offer for it."""
        if self.if_busy:
            return {self.how}
        if self.what not in FAMILY:
            return set()
        return {f"{self.what}_{self.how}" if self.how else "hold" if self.what == "resume" else self.what}

    def write(self, sent: int) -> str:
        """The action as a script writes it, after `sent` prompts were sent."""
        letter = label(sent + 1) if self.what in SENDS else label(sent + 1 - self.back) if self.back else ""
        return " ".join(filter(None, (self.what, letter, self.how, f"@{self.session + 1}" if self.session else "")))


@dataclass(frozen=True)
class Batch:
    """Actions that start at the same time, and whether the next batch waits until the server is quiet."""

    together: tuple[Do, ...]
    rest: bool = True
    gaps: tuple[int, ...] = ()
    """Microseconds between the starts of two consecutive actions; empty: none."""
    pause: int = 0
    """Microseconds after the responses, if the next batch does not wait until the server is quiet."""

    def gap(self, n: int) -> int:
        """Microseconds between the start of action `n - 1` and that of action `n`."""
        return self.gaps[n - 1] if n and self.gaps else 0

    @property
    def waits(self) -> list[int]:
        return [wait for wait in (*self.gaps, self.pause) if wait]

    @property
    def is_alone(self) -> bool:
        """Whether it concerns subscribers or the whole server, and so must not overlap with other batches."""
        return any(do.what in ALONE for do in self.together)


@cache
def _number_task(name: str) -> int:
    """The class of the task, from a hash of its name."""
    return crc32(name.encode()) % TASKS


@dataclass(frozen=True)
class Script:
    """The batches, and for a server in this process the schedule: which classes of tasks run late, and where it departs
    from first in, first out (`schedule.departing`)."""

    batches: tuple[Batch, ...]
    late: tuple[int, ...] = ()
    departures: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        late = f" | late {' '.join(map(str, self.late))}" if self.late else ""
        departures = " ".join(f"{wait}:{instead}" for wait, instead in self.departures)
        return self.steps + late + (f" | depart {departures}" if departures else "")

    @property
    def steps(self) -> str:
        """The script without the schedule."""
        text, sent = "", 0
        for last, batch in enumerate(self.batches, 1 - len(self.batches)):
            for n, do in enumerate(batch.together):
                text += (f" +{batch.gap(n) or ''} " if n else "") + do.write(sent)
                sent += do.what in SENDS
            if last:
                text += "; " if batch.rest else f",{batch.pause or ''} "
        return text

    def chooser(self) -> Choose:
        """The schedule. Late tasks run only when no other task is ready; a task's class follows from its name."""
        late, depart = frozenset(self.late), departing(self.departures)

        if not late:
            return depart

        def choose(ready: Sequence[Ready]) -> int:
            early = [i for i, r in enumerate(ready) if _number_task(r.task) not in late]
            offered = early or range(len(ready))
            return offered[depart([ready[i] for i in offered])] if len(offered) > 1 else offered[0]

        return choose

    @property
    def everything(self) -> list[Do]:
        return [do for batch in self.batches for do in batch.together]

    @property
    def size(self) -> tuple[int, int, int, int]:
        """A measure for shrinking: of two scripts that show the same break, prefer the one with the smaller size."""
        everything = self.everything
        hurry = sum((not batch.rest) + len(batch.together) - 1 + len(batch.waits) for batch in self.batches)
        return (len(everything), sum(do.what in SENDS for do in everything),
                hurry + len(self.late) + len(self.departures),
                sum(do.session + bool(do.how) + (do.what != "release") * (do.what in TURNS) for do in everything)
                + sum(map(sum, self.departures)))

    @property
    def is_race(self) -> bool:
        """Whether some actions can race: not every action waits until the server is quiet."""
        return any(not batch.rest or len(batch.together) > 1 for batch in self.batches)

    @property
    def at_once(self) -> int:
        """The largest number of concurrent calls."""
        return max((len(batch.together) for batch in self.batches), default=0)

    def vary(self, draw: Random) -> "Script":
        """The same race in another order and with other gaps. Concurrent actions start in any order, up to some
        milliseconds apart. An action that follows a response starts up to some milliseconds later, or does not wait for
        it."""
        batches: list[Batch] = []
        for batch in self.batches:
            together = batch.together
            if len(together) > 1 and not any(do.back for do in together):
                together = tuple(draw.sample(together, len(together)))
            hurry = bool(batches) and not batches[-1].rest and not (
                batches[-1].is_alone or batch.is_alone or any(do.back == 1 for do in together))
            if hurry and draw.random() < 0.4:
                together = batches.pop().together + together
            gaps = tuple(draw.choice(GAPS) for _ in together[1:])
            batches.append(Batch(together, batch.rest, gaps if any(gaps) else (),
                                 0 if batch.rest else draw.choice(GAPS)))
        return replace(self, batches=tuple(batches))

    def smaller(self) -> Iterator["Script"]:
        """Scripts that are simpler than this one, the largest reductions first."""
        return (s for s in self._smaller() if s.batches and s.is_sound)

    @property
    def is_sound(self) -> bool:
        """Whether every action that names a prompt names one that was sent before."""
        sent = 0
        for do in self.everything:
            if do.back > sent:
                return False
            sent += do.what in SENDS
        return True

    def _smaller(self) -> Iterator["Script"]:
        n = len(self.batches)
        for size in (n // 2, n // 4, 1):
            for at in range(0, n, size) if size else ():
                yield replace(self, batches=self.batches[:at] + self.batches[at + size:])
        if self.departures or self.late:
            yield replace(self, late=(), departures=())
        if any(batch.waits for batch in self.batches):
            yield replace(self, batches=tuple(replace(batch, gaps=(), pause=0) for batch in self.batches))
        for i in range(len(self.late)):
            yield replace(self, late=self.late[:i] + self.late[i + 1:])
        for i in range(len(self.departures)):
            yield replace(self, departures=self.departures[:i] + self.departures[i + 1:])
        for i, batch in enumerate(self.batches):
            for changed in _simpler(batch):
                yield replace(self, batches=(*self.batches[:i], *changed, *self.batches[i + 1:]))
        for i, (wait, instead) in enumerate(self.departures):
            for less in {(0, instead), (wait // 2, instead), (wait - 1, instead), (wait, 1)} - {(wait, instead)}:
                if min(less) >= 0:
                    yield replace(self, departures=(*self.departures[:i], less, *self.departures[i + 1:]))


def _simpler(batch: Batch) -> Iterator[tuple[Batch, ...]]:
    together, gaps = batch.together, batch.gaps
    if len(together) > 1:
        for i in range(len(together)):
            yield (replace(batch, together=together[:i] + together[i + 1:], gaps=gaps[:max(0, len(together) - 2)]),)
        yield (*(Batch((do,), rest=False) for do in together[:-1]), Batch(together[-1:], batch.rest))
    if not batch.rest:
        yield (replace(batch, rest=True, pause=0),)
    if batch.waits:
        yield (replace(batch, gaps=(), pause=0),)
    for i, do in enumerate(together):
        plainer = {replace(do, session=0), replace(do, how="")}
        if do.what in TURNS:
            plainer.add(replace(do, what="release"))
        for other in plainer - {do}:
            yield (replace(batch, together=(*together[:i], other, *together[i + 1:])),)


def script(text: str) -> Script:
    """Parse a script. Raises ValueError with the part that is wrong."""
    steps, *schedule = text.split("|")
    late, departures = _schedule([words.strip() for words in schedule])
    words, letters = BETWEEN.split(steps.strip()), list[str]()
    batches, together, gaps = list[Batch](), list[Do](), list[int]()
    for said, mark, wait in zip(words[::3], [*words[1::3], ";"], [*words[2::3], ""]):
        together.append(_do(said, letters))
        if mark == "+":
            gaps.append(int(wait or 0))
            continue
        if mark == ";" and wait:
            raise ValueError(f"';{wait}': `;` waits until the server is quiet and takes no number; use ',{wait}' or "
                             f"'+{wait}' for a gap in microseconds")
        batches.append(Batch(tuple(together), mark == ";", tuple(gaps) if any(gaps) else (), int(wait or 0)))
        together, gaps = [], []
    return Script(tuple(batches), late, departures)


def read_scripts(texts: Sequence[str | Script]) -> list[Script]:
    """Parse several scripts. Raises ValueError with the script that is wrong."""
    if isinstance(texts, str):
        raise ValueError(f"scripts={texts!r} is a string; give a list of scripts: [{texts!r}]")
    if not texts:
        raise ValueError("scripts is empty; give at least one script, or omit the argument")
    read = []
    for text in texts:
        try:
            read.append(script(text) if isinstance(text, str) else text)
        except ValueError as error:
            raise ValueError(f"script {text!r}: {error}") from error
    return read


def _schedule(parts: Sequence[str]) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    late: tuple[int, ...] = ()
    departures: tuple[tuple[int, int], ...] = ()
    for words in parts:
        numbers = words.split()[1:]
        if LATE.fullmatch(words):
            late = tuple(map(int, numbers))
        elif DEPART.fullmatch(words):
            departures = tuple((int(wait), int(instead)) for wait, _, instead in (n.partition(":") for n in numbers))
        else:
            raise ValueError(f"{words!r} is not a schedule; write it as in 'accept A | late 2 5 | depart 3:1 0:2', "
                             f"with numbers below {TASKS} after late")
    return late, departures


def _do(words: str, letters: list[str]) -> Do:
    """Parse one action. `letters` are those of the prompts sent so far, in order; a new prompt adds its own."""
    found = WORDS.fullmatch(words)
    what = found["what"] if found else ""
    if not found or what not in CALLS + TURNS or what not in HOWS.get(found["how"], (what,)):
        raise ValueError(f"unknown action {words!r}; use one of {', '.join(CALLS + TURNS)}, as in 'accept A', 'accept "
                         "B anonymous', 'cancel @2'")
    session, letter = int(found["session"] or 1), found["letter"]
    if not 1 <= session <= SESSIONS:
        raise ValueError(f"{words!r}: there is no session @{session}; sessions are @1 to @{SESSIONS}")
    if what in SENDS:
        letters.append(letter or label(len(letters) + 1))
        return Do(what, session - 1, found["how"] or "")
    named = AGAIN + NAMED
    if (letter and what not in named + TURNS) or (what in named and not letter) or (letter and letter not in letters):
        raise ValueError(f"{words!r}: only {', '.join(named + TURNS)} take a letter, and it must name a prompt that "
                         "was sent before")
    return Do(what, session - 1, found["how"] or "", len(letters) - letters.index(letter) if letter else 0)


def scripts(offers: frozenset[str], batches: int = 8) -> "SearchStrategy[Script]":
    """A Hypothesis strategy for scripts that clients of a server with these `offers` may run: the optional methods, and
    `steer`, `fail`, `fold`, `schedule`, `reject` and `interrupt`. If revoke, stop and the like are among them, half of
    the scripts use some."""
    from hypothesis import strategies as st

    plain = _draw_scripts(offers, batches, [])
    family = _draw_family(offers) if "steer" in offers else []
    return st.one_of(plain, _draw_scripts(offers, batches, family).map(_keep_sound)) if family else plain


def _draw_family(offers: frozenset[str]) -> "list[SearchStrategy[Do]]":
    from hypothesis import strategies as st

    of_session = [Do(what, how=how) for what in FAMILY if what not in NAMED
                  for how in ("", *(how for how, whose in HOWS.items() if what in whose))]
    whole = [do for do in (*(Do("accept", how=word) for word in IF_BUSY), *of_session) if do.needs <= offers]
    return [*(st.builds(Do, st.just(what), back=st.integers(1, 3)) for what in NAMED if what in offers),
            *map(st.just, whole)]


def _keep_sound(drawn: Script) -> Script:
    """The script without the actions that name a prompt that was not sent."""
    batches, sent = list[Batch](), 0
    for batch in drawn.batches:
        kept = []
        for do in batch.together:
            if do.back <= sent:
                kept.append(do)
            sent += do.what in SENDS
        if kept:
            batches.append(replace(batch, together=tuple(kept), gaps=batch.gaps[:len(kept) - 1]))
    return replace(drawn, batches=tuple(batches))


def _draw_scripts(offers: frozenset[str], batches: int, family: "list[SearchStrategy[Do]]") -> "SearchStrategy[Script]":
    from hypothesis import strategies as st

    session = st.sampled_from([0, 0, 0, 1])  # mostly one session, so that prompts interfere
    named = st.builds(Do, st.just("accept"), session)
    anonymous = st.builds(Do, st.just("accept"), session, st.sampled_from(["", "anonymous"]))
    calls = [named, named, anonymous if "fold" in offers else named, st.builds(Do, st.just("cancel"), session)]
    if "clear" in offers:
        calls.append(st.builds(Do, st.just("clear"), session))
    if "steer" in offers:
        hows = ["release", *(["fail"] if "fail" in offers else []), *(["again"] if "fold" in offers else [])]
        calls += [st.builds(Do, st.just("release"), session), st.builds(Do, st.sampled_from(hows), session)]
    calls += family
    batch = st.builds(Batch, st.lists(st.one_of(calls), min_size=1, max_size=3).map(tuple), st.booleans())
    if "leave" in offers:
        alone = st.builds(Do, st.sampled_from(["leave", "return"])).map(lambda do: Batch((do,)))
        batch = st.one_of(*[batch] * 7, alone)
    last = [Batch((Do(what),)) for what in ("shut", "restart") if what in offers]
    body = st.builds(lambda first, rest: [first, *rest], st.builds(Batch, named.map(lambda do: (do,)), st.booleans()),
                     st.lists(batch, min_size=1, max_size=batches))
    if last:  # rarely, because nothing can follow a shut
        body = st.one_of(body, body, body, st.builds(lambda a, b, c: [*a, b, *c], body, st.sampled_from(last),
                                                     st.lists(batch, max_size=2)))
    wait, instead = st.integers(0, 3) | st.integers(0, 60), st.integers(1, 3) | st.integers(1, 20)
    if "schedule" not in offers:
        varied = st.builds(lambda made, draw: Script(tuple(made)).vary(draw), body, st.randoms(use_true_random=False))
        return st.one_of(st.builds(Script, body.map(tuple)), varied)
    late = st.lists(st.integers(0, TASKS - 1), max_size=4, unique=True)
    return st.builds(Script, body.map(tuple), late.map(tuple),
                     st.lists(st.tuples(wait, instead), max_size=8).map(tuple))
