"""The observer: a record of what callers requested, derived from their calls only.

Properties compare this record with what the session does. The observer therefore never reads a field that an action
writes: if a session forgets a hold or a position, the observer's record exposes it. As long as a protocol does what it
is asked, the record is a function of the session's own fields, so it adds no states to the exploration.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from .lifecycle import State
from .questions import ANSWERS, SETTLED, Question

# Typed `Any`, because the sessions and prompts are those of `model.session`, which imports this module.


class Wish(NamedTuple):
    """What callers have requested for one prompt, and whether its turn has started."""

    place: int = 0  # 0, or the counter of its last move to the front
    version: int = 0  # of its text
    now: bool = False  # it is an interrupt
    ran: bool = False  # observed, not requested: its turn has started
    asks: tuple[Question, ...] = ()  # what happened to its questions, according to the calls
    told: frozenset[int] = frozenset()  # the questions that subscribers believe to be open, according to the effects

    def write(self) -> "Wish | None":
        """The value to store in the prompt: None if nothing was requested."""
        return None if self == NO_WISH else self


NO_WISH = Wish()


def wish_of(prompt: Any) -> Wish:
    return prompt.wish or NO_WISH


def place(prompt: Any) -> tuple[int, int]:
    """The position in the queue that callers requested, as a sort key: the lowest is next."""
    return -wish_of(prompt).place, prompt.seq


def unreached(prompt: Any) -> bool:
    """Whether no call has canceled the prompt."""
    return bool(prompt.reach.value != "cancel")


# --- The prompts that a call targets

def everyone(session: Any, prompt: Any, variant: Any) -> Iterable[Any]:
    return list(session.live)


def waiting(session: Any, prompt: Any, variant: Any) -> Iterable[Any]:
    return list(session.queue)


def named(session: Any, prompt: Any, variant: Any) -> Iterable[Any]:
    return [prompt]


def in_front(session: Any, prompt: Any, variant: Any) -> Iterable[Any]:
    """The active prompt or, if there is none and the session is not held, the first prompt that has not entered yet. A
    stop with hold targets only the active prompt, because the hold keeps the others waiting."""
    if session.active or session.wished_hold or variant == "hold":
        return list(session.active)
    return sorted((p for p in session.live if p.state is State.ACCEPTED), key=place)[:1]


def interrupted(session: Any, prompt: Any, variant: Any) -> Iterable[Any]:
    """The active prompt, if it was accepted before an interrupt that enters now and is neither held nor canceled."""
    if not wish_of(prompt).now or session.wished_hold or not unreached(prompt):
        return []
    return [p for p in session.active if p.seq < prompt.seq]


# --- The session after a call, with the caller's request recorded

Note: TypeAlias = Callable[[Any, Any, Any], Any]  # (session, prompt, variant)


def _note(session: Any, seq: int, **notes: Any) -> Any:
    return session.with_sorted_prompts(p._replace(wish=wish_of(p)._replace(**notes).write()) if p.seq == seq else p
                           for p in session.prompts)


def _front(session: Any) -> int:
    return 1 + max((wish_of(p).place for p in session.live), default=0)


def accept(session: Any, prompt: Any, variant: Any) -> Any:
    """Record an interrupt. Without `prompt`, the latest prompt is the one that was accepted."""
    if not str(variant).startswith("interrupt"):
        return session
    latest = prompt or max(session.prompts, key=lambda p: p.seq)
    return _note(session, latest.seq, place=_front(session), now=True)


def hold(session: Any, prompt: Any, variant: Any) -> Any:
    return session._replace(wished_hold=True)


def resume(session: Any, prompt: Any, variant: Any) -> Any:
    return session._replace(wished_hold=False)


def stop(session: Any, prompt: Any, variant: Any) -> Any:
    return hold(session, prompt, variant) if variant == "hold" else session


def replace(session: Any, prompt: Any, variant: Any) -> Any:
    return _note(session, prompt.seq, version=wish_of(prompt).version + 1)


def to_front(session: Any, prompt: Any, variant: Any) -> Any:
    others = [p for p in session.live if p.seq != prompt.seq]
    if all(place(prompt) < place(p) for p in others):
        return session
    return _note(session, prompt.seq, place=_front(session))


def note_starts(session: Any, seqs: Iterable[int]) -> Any:
    """Record that these turns have started."""
    for seq in seqs:
        session = _note(session, seq, ran=True)
    return session


# --- Questions

def note_asks(session: Any, call: str, prompt: Any, variant: Any, effects: Iterable[Any]) -> Any:
    """Record what a call does to questions, and what its effects make subscribers believe about them."""
    if call != "ask" and not any(p.wish is not None and p.wish.asks for p in session.prompts):
        return session  # no turn has asked
    for p in session.prompts:
        wish = wish_of(p)
        called = prompt is not None and prompt.seq == p.seq
        asks = _asks_after(wish.asks, call, variant) if called else wish.asks
        if p.state is not State.ACTIVE or not unreached(p) or (called and call == "requeue"):
            asks = tuple(SETTLED.get(question, question) for question in asks)
        told = _told_after(wish.told, [e for e in effects if e.seq == p.seq])
        if (asks, told) != (wish.asks, wish.told):
            session = _note(session, p.seq, asks=asks, told=told)
    return session


def _asks_after(asks: tuple[Question, ...], call: str, variant: Any) -> tuple[Question, ...]:
    """The questions of a prompt after a call on it. The first answer counts, and a withdrawn question takes none."""
    if call == "ask":
        return (*asks, Question.OPEN)
    if call not in ("answer", "run", "withdraw"):
        return asks
    number, _, given = str(variant).partition(" ")
    n = int(number)
    if n > len(asks) or (call != "run" and asks[n - 1] is not Question.OPEN):
        return asks
    becomes = Question.RAN if call == "run" else ANSWERS.get(given, Question.WITHDRAWN)
    return (*asks[:n - 1], becomes, *asks[n:])


def _told_after(told: frozenset[int], effects: Iterable[Any]) -> frozenset[int]:
    for e in effects:
        if e.kind == "ask":
            told |= {e.ask}
        elif e.kind in ("answered", "withdraw"):
            told -= {e.ask}
    return told
