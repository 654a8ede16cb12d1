"""Histories to judge: what an outsider sees of a model server, one step at a time or in every possible way."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, combinations, permutations
from typing import Any, NamedTuple

from cancelmark.model.effects import Answered, Ask, Effect, Run, Start, Unsure, Withdraw
from cancelmark.model.effects import End as EndEffect
from cancelmark.model.lifecycle import State
from cancelmark.model.oracle import AskRecord, Call, CallKind, End, Prompt, Reply, Span
from cancelmark.model.protocol import REFERENCE
from cancelmark.model.server import Change, Server, changes
from cancelmark.model.session import label


def without_finished(change: Change) -> Server:
    """The server after a change, without its finished prompts: no action looks at them, and searches go faster."""
    sessions = list(change.after.sessions)
    for i, move in change.moves:
        sessions[i] = move.live
    return change.after._replace(sessions=tuple(sessions))


class Recorder:
    """A sequential history in the making. Each step takes one moment; all that it brings about is seen in it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.by_seq: dict[int, Prompt] = {}
        self.calls: list[Call] = []
        self.asks: dict[tuple[int, int], AskRecord] = {}  # by seq and number

    @property
    def prompts(self) -> list[Prompt]:
        return list(self.by_seq.values())

    def step(self, effects: Iterable[Effect]) -> Span:
        """Something happened that nobody sees, except for the turns that started and the prompts that ended in it."""
        self.now += 1
        moment = Span(self.now, self.now)
        for e in effects:
            if isinstance(e, Start):
                self.see(e.seq, starts=(*self.by_seq[e.seq].starts, moment))
            elif isinstance(e, EndEffect):
                self.see(e.seq, ends=(*self.by_seq[e.seq].ends, End(self.now, self.now, e.outcome.value)))
            elif isinstance(e, Ask | Answered | Withdraw | Run | Unsure):
                self.see_ask(e, moment)
        return moment

    def see_ask(self, e: Ask | Answered | Withdraw | Run | Unsure, moment: Span) -> None:
        key = e.seq, e.ask
        if isinstance(e, Ask):
            self.asks[key] = AskRecord(f"{label(e.seq)}.{e.ask}", label(e.seq), moment)
            return
        ask = self.asks[key]
        match e:
            case Answered():
                ask = replace(ask, replies=(*ask.replies, Reply(self.now, self.now, e.answer)))
            case Withdraw():
                ask = replace(ask, withdrawals=(*ask.withdrawals, moment))
            case Run():
                ask = replace(ask, runs=(*ask.runs, moment))
            case Unsure():
                ask = replace(ask, reports=(*ask.reports, moment))
        self.asks[key] = ask

    def see(self, seq: int, **seen: Any) -> None:
        self.by_seq[seq] = replace(self.by_seq[seq], **seen)

    def accept(self, seq: int, session: int, run_id: bool) -> None:
        self.by_seq[seq] = Prompt(label(seq), self.step(()), run_id, session=str(session))

    def enter(self, seq: int, effects: Iterable[Effect]) -> None:
        self.see(seq, enter=self.step(effects))

    def call(self, kind: CallKind, session: int | None, effects: Iterable[Effect]) -> None:
        moment = self.step(effects)
        self.calls.append(Call(moment.begin, moment.end, kind, None if session is None else str(session)))


# --- Every life that one prompt can have, in company ------------------------------------------------------------

class Life(NamedTuple):
    """What can be seen of a prompt and of the calls around it, step by step in order of effect, and how it ended."""

    steps: tuple[frozenset[str], ...]
    outcome: str


class Scene(NamedTuple):
    """A server, one prompt on it that is watched, and what is still to come."""

    run_id: bool  # of the watched prompt
    calls: tuple[str, ...]  # each is made exactly once, in any order: "cancel 1", "cancel 2", "close 1", …
    company: int = 2  # other prompts, which come and go unseen
    requeues: int = 1
    server: Server = Server()
    watched: int | None = None  # its seq, once it is accepted
    starts: int = 0

    def after(self, change: Change, effects: Sequence[Effect], seen: Iterable[str], **spent: Any) -> Iterator[Life]:
        """The lives that go on with this change."""
        scene = self._replace(server=without_finished(change), **spent)
        items, outcome = list(seen), None
        for e in effects:
            if isinstance(e, Start) and e.seq == scene.watched:
                scene = scene._replace(starts=scene.starts + 1)
                items.append(f"start {scene.starts}")
            elif isinstance(e, EndEffect) and e.seq == scene.watched:
                outcome = e.outcome.value
                items.append("end")
        step = (frozenset(items),) if items else ()
        if outcome is None:
            yield from (Life(step + life.steps, life.outcome) for life in lives(scene))
        else:  # calls that come after the end, in every order; the model need not be asked about them
            yield from (Life(step + tuple(frozenset([c]) for c in rest), outcome) for rest in permutations(scene.calls))

    def waits(self) -> bool:
        """Whether the watched prompt is accepted and has not entered."""
        return any(p.seq == self.watched and p.state is State.ACCEPTED for p in self.server.prompts)


@cache
def steps_of(server: Server) -> list[tuple[Change, tuple[Effect, ...]]]:
    """Everything that can happen next. Nothing but the recovery can follow a crash, so the two are one step."""
    steps = []
    for change in changes(REFERENCE, server):
        effects = change.effects
        if change.call.name == "crash":
            (change,) = changes(REFERENCE, change.after)
            effects += change.effects
        steps.append((change, effects))
    return steps


@cache
def lives(scene: Scene) -> frozenset[Life]:
    """Every life that the watched prompt can have from here on, by exhaustive search of the model."""
    found: set[Life] = set()
    for change, effects in steps_of(scene.server):
        call = change.call
        if call.name == "accept":
            if scene.watched is None and call.variant is scene.run_id:
                found.update(scene.after(change, effects, ["accept"], watched=call.seq))
            if scene.company:
                found.update(scene.after(change, effects, [], company=scene.company - 1))
        elif call.name == "requeue":
            if scene.requeues:
                found.update(scene.after(change, effects, [], requeues=scene.requeues - 1))
        elif call.name in ("cancel", "clear_queue", "close", "recover"):
            entry = ["enter"] if call.name == "recover" and scene.waits() else []
            for made in scene.calls:
                if made.split()[0] == call.name.replace("recover", "crash"):
                    rest = tuple(c for c in scene.calls if c != made)
                    found.update(scene.after(change, effects, [made, *entry], calls=rest))
        else:
            entry = ["enter"] if call.name == "enter" and call.seq == scene.watched else []
            found.update(scene.after(change, effects, entry))
    return frozenset(found)


# --- Every way in which spans of time can lie to each other -----------------------------------------------------

@cache
def arrangements(n: int) -> list[tuple[tuple[Span, ...], int]]:
    """All arrangements of `n` spans, up to which of them are over before which others begin; each with its precedence.

    Time goes by in rounds: in each, some spans begin and then some end. Both must be some, because a begin can be put
    off to just before the next end, and an end to just before the next begin, without changing what precedes what.
    """
    def rounds(now: int, waiting: frozenset[int], begun: dict[int, int]) -> Iterator[dict[int, Span]]:
        if not waiting and not begun:
            yield {}
        for begins in subsets(waiting):
            running = begun | dict.fromkeys(begins, now)
            for ends in subsets(running) if waiting - begins else [frozenset(running)]:
                spans = {i: Span(running[i], now + 0.5) for i in ends}
                for rest in rounds(now + 1, waiting - begins, {i: running[i] for i in running if i not in ends}):
                    yield spans | rest

    found = [tuple(spans[i] for i in range(n)) for spans in rounds(0, frozenset(range(n)), {})]
    return [(spans, precedence(spans)) for spans in found]


def subsets(items: Iterable[int]) -> Iterator[frozenset[int]]:
    """All subsets that are not empty."""
    items = list(items)
    return map(frozenset, chain.from_iterable(combinations(items, k) for k in range(1, len(items) + 1)))


def precedence(spans: Sequence[Span]) -> int:
    """Which spans are over before which others begin, a bit for each pair."""
    return sum(1 << i * len(spans) + j for i, a in enumerate(spans) for j, b in enumerate(spans) if a.end < b.begin)
