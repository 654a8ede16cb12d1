"""What clients do in one history, as data: it can be written down, drawn at random, varied, and made smaller.

    script("accept A; accept B; fail")               A is accepted and then B; when all is quiet, A's turn fails
    script("accept A, cancel, accept B")             one right after the other, as each is answered
    script("accept A,200 cancel")                    and the cancel begins 200 microseconds after the answer
    script("accept A; release + accept B")           both at the same time, in this order
    script("accept A; cancel +50 accept B")          and B begins 50 microseconds after the cancel, answered or not
    script("accept A; accept B @2; cancel")          B is in a second session; there are sixteen

What a client can do with a prompt:

    accept A            it is sent; `accept A anonymous`: without a run id; `accept A failing`: it cannot start
    lose A              it is sent, and the connection breaks before the answer comes
    resend A            the same prompt is sent again, under its run id
    reuse A @2          another prompt is sent under the run id of A

`release`, `fail`, `again`, `outgrow` and `flood` are for the turn that is running in the session, if any: it ends well,
ends with an error, has to call the language model again, no longer fits into its context, or ends well with a very long
answer. `summarize` answers the summary that the server asks for when a turn has outgrown its context. With a letter, as
in `outgrow B`, each is for the turn of that prompt, now or as soon as it starts.

Some servers have more calls. `accept B reject` wants an idle session, and `accept B interrupt` stops what runs. `revoke
B` cancels one prompt, `replace B` gives it another text, `next B` moves it to the front. `stop` cancels what runs and
keeps the queue, `hold` parks the queue until `resume`, and `stop hold` does both. What is held when the script is over
is resumed then.

`cancel`, `clear` and `delete` are for a session, `shut` and `restart` for the server. Between `leave` and `return`
nobody watches events, and after `leave long` for longer than the server's grace; between `slow` and `return` the
subscriber is connected and reads nothing. `attach`: one more client connects.

Prompts get their letters in order; the letter of an `accept` or `lose` is for its readers.

A server in this process is also scheduled, and the text says how, so that it is all that it takes to play again:
`accept A, cancel | late 2 5 | depart 3:1` (see `Script`).
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
        **dict.fromkeys(IF_BUSY, SENDS)}  # what each word may stand behind
WORDS = re.compile(rf"(?P<what>[a-z]+)( (?P<letter>[A-Z]))?( (?P<how>{'|'.join(HOWS)}))?( @(?P<session>\d+))?")
BETWEEN = re.compile(r"\s*([;,+])(\d*)\s*")
ALONE = ("shut", "restart", "leave", "return", "slow", "attach")
SESSIONS = 16
TASKS = 8  # kinds of tasks that can be told apart when some come late
LATE, DEPART = re.compile(rf"late( [0-{TASKS - 1}])+"), re.compile(r"depart( \d+:[1-9]\d*)+")
GAPS = (0, 0, 20, 50, 100, 200, 500, 1000, 2000, 5000)  # microseconds: the window of a race is anywhere


@dataclass(frozen=True)
class Do:
    """Something that a client does, or that the language model does to a turn."""

    what: str
    session: int = 0
    how: str = ""
    """One of `HOWS`."""
    back: int = 0
    """Which prompt it speaks of: so many before it, 1 is the latest. 0: none, or a new one."""

    @property
    def run_id(self) -> bool:
        return self.how != "anonymous"

    @property
    def if_busy(self) -> str:
        """What a prompt wants of a session that is not idle."""
        return self.how if self.how in IF_BUSY else ""

    @property
    def needs(self) -> set[str]:
        """What a server has to offer for it, of the family."""
        if self.if_busy:
            return {self.how}
        if self.what not in FAMILY:
            return set()
        return {f"{self.what}_{self.how}" if self.how else "hold" if self.what == "resume" else self.what}

    def write(self, sent: int) -> str:
        """As people write it, after so many prompts were sent."""
        letter = label(sent + 1) if self.what in SENDS else label(sent + 1 - self.back) if self.back else ""
        return " ".join(filter(None, (self.what, letter, self.how, f"@{self.session + 1}" if self.session else "")))


@dataclass(frozen=True)
class Batch:
    """What is done at the same time, and whether the next batch waits until the server is quiet."""

    together: tuple[Do, ...]
    rest: bool = True
    gaps: tuple[int, ...] = ()
    """Microseconds between the beginnings of two that stand side by side; empty: none."""
    pause: int = 0
    """Microseconds after the answers, if the next batch does not wait for quiet."""

    def gap(self, n: int) -> int:
        """Microseconds before the nth of them begins, after the one before it."""
        return self.gaps[n - 1] if n and self.gaps else 0

    @property
    def waits(self) -> list[int]:
        return [wait for wait in (*self.gaps, self.pause) if wait]

    @property
    def is_alone(self) -> bool:
        """It is about who watches, or about the server as a whole: nothing is done at the same time."""
        return any(do.what in ALONE for do in self.together)


@cache
def _number_task(name: str) -> int:
    """Which of the kinds of tasks it is."""
    return crc32(name.encode()) % TASKS


@dataclass(frozen=True)
class Script:
    """The batches, and for a server in this process also the schedule: which tasks come late, and where it departs from
    first in, first out (`schedule.departing`)."""

    batches: tuple[Batch, ...]
    late: tuple[int, ...] = ()
    departures: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        late = f" | late {' '.join(map(str, self.late))}" if self.late else ""
        departures = " ".join(f"{wait}:{instead}" for wait, instead in self.departures)
        return self.steps + late + (f" | depart {departures}" if departures else "")

    @property
    def steps(self) -> str:
        """What clients do, without the schedule."""
        text, sent = "", 0
        for last, batch in enumerate(self.batches, 1 - len(self.batches)):
            for n, do in enumerate(batch.together):
                text += (f" +{batch.gap(n) or ''} " if n else "") + do.write(sent)
                sent += do.what in SENDS
            if last:
                text += "; " if batch.rest else f",{batch.pause or ''} "
        return text

    def chooser(self) -> Choose:
        """Tasks that come late run only when nobody else can. A task is late by its name, whatever that is."""
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
        """Of two scripts that show the same, the one with the smaller size tells it better."""
        everything = self.everything
        hurry = sum((not batch.rest) + len(batch.together) - 1 + len(batch.waits) for batch in self.batches)
        return (len(everything), sum(do.what in SENDS for do in everything),
                hurry + len(self.late) + len(self.departures),
                sum(do.session + bool(do.how) + (do.what != "release") * (do.what in TURNS) for do in everything)
                + sum(map(sum, self.departures)))

    @property
    def is_race(self) -> bool:
        """Whether it matters who comes first."""
        return any(not batch.rest or len(batch.together) > 1 for batch in self.batches)

    @property
    def at_once(self) -> int:
        """The most calls that are made at the same time."""
        return max((len(batch.together) for batch in self.batches), default=0)

    def vary(self, draw: Random) -> "Script":
        """The same race in another order and with other gaps: what is done at the same time begins in any order, from
        at once to some milliseconds apart, and what follows an answer follows as late, or does not wait for it."""
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
        """Scripts that are a little simpler than this one, the greatest leaps first."""
        return (s for s in self._smaller() if s.batches and s.is_sound)

    @property
    def is_sound(self) -> bool:
        """Whether everything that speaks of a prompt speaks of one that was sent before."""
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
    """A script as people write it."""
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
            raise ValueError(f"';{wait}' is nothing that can be done: ; waits until the server is quiet, and takes no "
                             "number")
        batches.append(Batch(tuple(together), mark == ";", tuple(gaps) if any(gaps) else (), int(wait or 0)))
        together, gaps = [], []
    return Script(tuple(batches), late, departures)


def read_scripts(texts: Sequence[str | Script]) -> list[Script]:
    """Scripts that somebody has written. Raises ValueError with the text that cannot be read."""
    if isinstance(texts, str):
        raise ValueError(f"scripts={texts!r}: give a list of scripts, even of one")
    if not texts:
        raise ValueError("scripts is empty: give at least one, or leave it out")
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
            raise ValueError(f"{words!r} is no schedule; write it as in 'accept A | late 2 5 | depart 3:1 0:2', where "
                             f"late has numbers below {TASKS}")
    return late, departures


def _do(words: str, letters: list[str]) -> Do:
    """What the words say. `letters` are those of the prompts that were sent so far, in order; a new one is added."""
    found = WORDS.fullmatch(words)
    what = found["what"] if found else ""
    if not found or what not in CALLS + TURNS or what not in HOWS.get(found["how"], (what,)):
        raise ValueError(f"{words!r} is nothing that can be done; try one of {', '.join(CALLS + TURNS)}, as in "
                         "'accept A', 'accept B anonymous', 'cancel @2'")
    session, letter = int(found["session"] or 1), found["letter"]
    if not 1 <= session <= SESSIONS:
        raise ValueError(f"{words!r} is nothing that can be done: sessions are @1 to @{SESSIONS}")
    if what in SENDS:
        letters.append(letter or label(len(letters) + 1))
        return Do(what, session - 1, found["how"] or "")
    named = AGAIN + NAMED
    if (letter and what not in named + TURNS) or (what in named and not letter) or (letter and letter not in letters):
        raise ValueError(f"{words!r} is nothing that can be done: a letter names a prompt that was sent before it, for "
                         f"{', '.join(named + TURNS)}")
    return Do(what, session - 1, found["how"] or "", len(letters) - letters.index(letter) if letter else 0)


def scripts(offers: frozenset[str], batches: int = 8) -> "SearchStrategy[Script]":
    """A Hypothesis strategy: whatever clients of a server that offers this may do. `offers` are the optional calls, and
    `steer`, `fail`, `fold`, `schedule`, `reject` and `interrupt`. Where there are calls of the family, half of the
    scripts have some."""
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
    """Without what speaks of a prompt that was not sent."""
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

    session = st.sampled_from([0, 0, 0, 1])  # prompts must get in each other's way
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
    if last:  # seldom, because nothing can follow a shut
        body = st.one_of(body, body, body, st.builds(lambda a, b, c: [*a, b, *c], body, st.sampled_from(last),
                                                     st.lists(batch, max_size=2)))
    wait, instead = st.integers(0, 3) | st.integers(0, 60), st.integers(1, 3) | st.integers(1, 20)
    if "schedule" not in offers:
        varied = st.builds(lambda made, draw: Script(tuple(made)).vary(draw), body, st.randoms(use_true_random=False))
        return st.one_of(st.builds(Script, body.map(tuple)), varied)
    late = st.lists(st.integers(0, TASKS - 1), max_size=4, unique=True)
    return st.builds(Script, body.map(tuple), late.map(tuple),
                     st.lists(st.tuples(wait, instead), max_size=8).map(tuple))
