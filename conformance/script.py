"""What clients do in one history, as data: it can be written down, drawn at random, and made smaller.

    script("accept A; accept B; fail")               A is accepted and then B; when all is quiet, A's turn fails
    script("accept A, cancel, accept B")             one right after the other, as each is answered
    script("accept A; release + accept B")           both at the same time
    script("accept A; accept B @2; cancel")          B is in a second session

`release`, `fail` and `again` are for the turn that is running in the session, if any: it ends well, ends with an error,
or has to call the language model again. Between `leave` and `return` nobody watches events. Prompts get their letters
in order; the letters in a script are for its readers.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING
from zlib import crc32

from cancelmark.model.session import label

from .schedule import Choose, Ready, departing

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

CALLS = ("accept", "cancel", "clear", "shut", "restart", "leave", "return")
TURNS = ("release", "fail", "again")
WORDS = re.compile(r"(?P<what>[a-z]+)( [A-Z])?(?P<anonymous> anonymous)?( @(?P<session>[12]))?")
SESSIONS = 2
TASKS = 8  # kinds of tasks that can be told apart when some come late


@dataclass(frozen=True)
class Do:
    """Something that a client does, or that the language model does to the turn that is running."""

    what: str
    session: int = 0
    run_id: bool = True

    def __str__(self) -> str:
        return f"{self.what}{'' if self.run_id else ' anonymous'}{' @2' if self.session else ''}"


@dataclass(frozen=True)
class Batch:
    """What is done at the same time, and whether the next batch waits until the server is quiet."""

    together: tuple[Do, ...]
    rest: bool = True


@dataclass(frozen=True)
class Script:
    """The batches, and for a server in this process also the schedule: which tasks come late, and where it departs from
    first in, first out (`schedule.departing`)."""

    batches: tuple[Batch, ...]
    late: tuple[int, ...] = ()
    departures: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        letters = count(1)
        batches = []
        for batch in self.batches:
            words = [str(do).replace("accept", f"accept {label(next(letters))}") if do.what == "accept" else str(do)
                     for do in batch.together]
            batches.append(" + ".join(words) + ("; " if batch.rest else ", "))
        return "".join(batches).rstrip("; ,")

    def chooser(self) -> Choose:
        """Tasks that come late run only when nobody else can. A task is late by its name, whatever that is."""
        late, depart = frozenset(self.late), departing(self.departures)

        def choose(ready: Sequence[Ready]) -> int:
            early = [i for i, r in enumerate(ready) if crc32(r.task.encode()) % TASKS not in late]
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
        hurry = sum((not batch.rest) + len(batch.together) - 1 for batch in self.batches)
        return (len(everything), sum(do.what == "accept" for do in everything),
                hurry + len(self.late) + len(self.departures),
                sum(do.session + (not do.run_id) for do in everything) + sum(map(sum, self.departures)))

    def smaller(self) -> Iterator["Script"]:
        """Scripts that are a little simpler than this one, the greatest leaps first."""
        n = len(self.batches)
        for size in (n // 2, n // 4, 1):
            for at in range(0, n, size) if size else ():
                yield replace(self, batches=self.batches[:at] + self.batches[at + size:])
        if self.departures or self.late:
            yield replace(self, late=(), departures=())
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
    if len(batch.together) > 1:
        for i in range(len(batch.together)):
            yield (replace(batch, together=batch.together[:i] + batch.together[i + 1:]),)
        yield (*(Batch((do,), rest=False) for do in batch.together[:-1]), Batch(batch.together[-1:], batch.rest))
    if not batch.rest:
        yield (replace(batch, rest=True),)
    for i, do in enumerate(batch.together):
        for other in {replace(do, session=0), replace(do, run_id=True)} - {do}:
            yield (replace(batch, together=(*batch.together[:i], other, *batch.together[i + 1:])),)


def script(text: str) -> Script:
    """A script as people write it."""
    batches = []
    for quiet in text.split(";"):
        groups = quiet.split(",")
        for i, group in enumerate(groups):
            batches.append(Batch(tuple(_do(words.strip()) for words in group.split("+")), rest=i == len(groups) - 1))
    return Script(tuple(batches))


def _do(words: str) -> Do:
    found = WORDS.fullmatch(words)
    if not found or found["what"] not in CALLS + TURNS:
        raise ValueError(f"{words!r} is nothing that can be done; try one of {', '.join(CALLS + TURNS)}, as in "
                         "'accept A', 'accept B anonymous', 'cancel @2'")
    return Do(found["what"], int(found["session"] or 1) - 1, run_id=not found["anonymous"])


def scripts(offers: frozenset[str], batches: int = 8) -> "SearchStrategy[Script]":
    """A Hypothesis strategy: whatever clients of a server that offers this may do. `offers` are the optional calls, and
    `steer`, `fold` and `schedule`."""
    from hypothesis import strategies as st

    session = st.sampled_from([0, 0, 0, 1])  # prompts must get in each other's way
    named = st.builds(Do, st.just("accept"), session)
    anonymous = st.builds(Do, st.just("accept"), session, st.booleans())
    calls = [named, named, anonymous if "fold" in offers else named, st.builds(Do, st.just("cancel"), session)]
    if "clear" in offers:
        calls.append(st.builds(Do, st.just("clear"), session))
    if "steer" in offers:
        hows = TURNS if "fold" in offers else TURNS[:2]
        calls += [st.builds(Do, st.just("release"), session), st.builds(Do, st.sampled_from(hows), session)]
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
        return st.builds(Script, body.map(tuple))
    late = st.lists(st.integers(0, TASKS - 1), max_size=4, unique=True)
    return st.builds(Script, body.map(tuple), late.map(tuple),
                     st.lists(st.tuples(wait, instead), max_size=8).map(tuple))
