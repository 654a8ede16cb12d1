"""The observer: what the callers of a protocol of the family asked for, written down from their calls alone.

Properties compare this with what the session does. So nothing here reads a field that an action writes: a session that
forgets a hold, or a place, is caught by what the observer remembers of it. While a protocol does what it is asked, the
notes follow from its fields, and add no state.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from .lifecycle import State

# Sessions and prompts are those of `model.session`, which stands on this module.


class Wish(NamedTuple):
    """What callers want of one prompt."""

    place: int = 0  # how far to the front
    version: int = 0  # of its text
    now: bool = False  # it is an interrupt
    ran: bool = False  # and what was seen: its turn has begun

    def write(self) -> "Wish | None":
        """As a prompt keeps it: nothing, if nobody wants anything."""
        return None if self == PLAIN else self


PLAIN = Wish()


def wish_of(prompt: Any) -> Wish:
    return prompt.wish or PLAIN


def place(prompt: Any) -> tuple[int, int]:
    """Where the prompt should stand among others: the lower is ahead."""
    return -wish_of(prompt).place, prompt.seq


def unreached(prompt: Any) -> bool:
    """Whether no call has canceled it."""
    return bool(prompt.reach.value != "cancel")


# --- whom a call reaches

def everyone(session: Any, prompt: Any, variant: Any) -> Iterable[Any]:
    return list(session.live)


def waiting(session: Any, prompt: Any, variant: Any) -> Iterable[Any]:
    return list(session.queue)


def named(session: Any, prompt: Any, variant: Any) -> Iterable[Any]:
    return [prompt]


def in_front(session: Any, prompt: Any, variant: Any) -> Iterable[Any]:
    """What runs; if nothing does and nothing is held, the first that is still to enter. A stop that holds reaches only
    what runs: the rest will wait."""
    if session.active or session.wished_hold or variant == "hold":
        return list(session.active)
    return sorted((p for p in session.live if p.state is State.ACCEPTED), key=place)[:1]


def interrupted(session: Any, prompt: Any, variant: Any) -> Iterable[Any]:
    """What runs and was accepted before an interrupt that enters and can follow."""
    if not wish_of(prompt).now or session.wished_hold or not unreached(prompt):
        return []
    return [p for p in session.active if p.seq < prompt.seq]


# --- what else a call wants: the session after it, with the observer's notes

Note: TypeAlias = Callable[[Any, Any, Any], Any]  # (session, prompt, variant)


def _note(session: Any, seq: int, **notes: Any) -> Any:
    return session.holding(p._replace(wish=wish_of(p)._replace(**notes).write()) if p.seq == seq else p
                           for p in session.prompts)


def _front(session: Any) -> int:
    return 1 + max((wish_of(p).place for p in session.live), default=0)


def accept(session: Any, prompt: Any, variant: Any) -> Any:
    """The latest prompt is the one that was accepted, unless it is named."""
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
    """What the observer saw: these turns have begun."""
    for seq in seqs:
        session = _note(session, seq, ran=True)
    return session
