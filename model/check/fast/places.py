"""Sessions up to renumbering of their seqs.

What a session can do depends on the order of its seqs, not on the seqs themselves: whoever has worked it out for the
prompts 1 and 2 under the mark 1 knows it for 2 and 5 under the mark 3. So a session is worked out once, with *places*
instead of seqs, and then the seqs are put back.

    a live prompt     2, 4, 6, … in order of seq
    the mark          one more than the last live prompt that it covers; 1 if it covers none
    the latest seq    above all live prompts; the mark's place if the two are equal
    the next seq      one more than that

So whether the mark *is* the seq of a live prompt is not told; a mark and the latest seq are *limits*.

That this is enough is not assumed of a protocol but held. Places of prompts can be compared with each other, and
limits with each other. A prompt and a limit can be compared in one way: whether the prompt is at or below the limit.
The latest seq plus one is the next. Whatever else is done with a place raises an error, and a session of such a
protocol is worked out as it is.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...session import AnySession, Prompt, Session

MARK, PROMPTS, MEMORY = map(Session._fields.index, ("mark", "prompts", "memory"))


class NotRenumberedError(Exception):
    """Something that only seqs can tell, or a seq where nobody would look for it."""


class Place:
    """Where a seq is in the order of a session's seqs: an even number, or an odd one for a limit."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at

    def __le__(self, other: Any) -> bool:
        mine, others = self.at, other.at
        if mine & ~others & 1:
            raise NotRenumberedError
        return mine <= others  # type: ignore[no-any-return]

    def __gt__(self, other: Any) -> bool:
        return not self <= other

    def __ge__(self, other: Any) -> bool:
        mine, others = self.at, other.at
        if others & ~mine & 1:
            raise NotRenumberedError
        return mine >= others  # type: ignore[no-any-return]

    def __lt__(self, other: Any) -> bool:
        return not self >= other

    def __eq__(self, other: Any) -> bool:
        mine, others = self.at, other.at
        if (mine ^ others) & 1:
            raise NotRenumberedError
        return mine == others  # type: ignore[no-any-return]

    def __hash__(self) -> int:
        return self.at

    def __repr__(self) -> str:
        raise NotRenumberedError

    def __bool__(self) -> bool:
        if self.at & 1:
            raise NotRenumberedError
        return True


class Latest(Place):
    """The place of the latest seq."""

    __slots__ = ()

    def __add__(self, one: Any) -> Any:
        if one != 1:
            raise NotRenumberedError
        return PLACES[self.at + 1]


MOST = 32  # live prompts that there are places for
PLACES: list[Any] = [Place(at) for at in range(2 * MOST + 6)]  # one of each: `is` is quicker than `==`
LATEST: list[Any] = [Latest(at) for at in range(2 * MOST + 6)]


class Shape(NamedTuple):
    """A session without its seqs."""

    fields: tuple[Any, ...]  # other than mark and prompts
    prompts: tuple[tuple[Any, ...], ...]  # without their seqs
    mark: int  # its place
    latest: int  # the place of the latest seq

    def fill(self, session: AnySession) -> tuple[AnySession, Any]:
        """A session of this shape with places for seqs, and the place of the latest seq."""
        prompts = [type(p)(PLACES[at], *p[1:]) for at, p in zip(range(2, self.latest, 2), session.prompts)]
        return replace_seqs(session, PLACES[self.mark], prompts), LATEST[self.latest]


def shape_of(session: AnySession, seq: int) -> tuple[Shape, list[int]] | None:
    """The shape of the session when `seq` is the latest, and the seqs by place. None: it cannot be renumbered."""
    if type(session) is not Session or session.memory is not None or session.mark > seq:
        return None
    prompts = session.prompts
    seqs = [0, 0]
    for prompt in prompts:
        seqs += (prompt[0], 0)
    latest = len(seqs) + 1
    mark = latest if session.mark == seq else 1
    if mark == 1:
        for prompt in prompts:
            mark += 2 * (prompt[0] <= session.mark)
    seqs += (0, seq, seq + 1)
    seqs[mark] = session.mark
    return Shape(session[:MARK] + session[MARK + 1:PROMPTS] + session[PROMPTS + 1:],
                 tuple([p[1:] for p in prompts]), mark, latest), seqs


def replace_seqs(session: Any, mark: Any, prompts: Sequence[Prompt]) -> Any:
    """The session with that mark and those prompts."""
    fields = list(session)
    fields[MARK], fields[PROMPTS] = mark, tuple(prompts)
    return Session._make(fields)


def number_place(place: Any) -> int:
    """The place as a number."""
    if not isinstance(place, Place):
        raise NotRenumberedError
    return place.at


def number_prompt(prompt: Prompt) -> Prompt:
    """The prompt with the number of its place."""
    return type(prompt)(number_place(prompt.seq), *_without_places(prompt[1:]))


def number_places(session: Any) -> Any:
    """The session with the numbers of its places, if it has none where nobody would look for them."""
    if type(session) is not Session or session.memory is not None:
        raise NotRenumberedError
    numbered = replace_seqs(session, number_place(session.mark), list(map(number_prompt, session.prompts)))
    _without_places(numbered)
    return numbered


def _without_places(fields: tuple[Any, ...]) -> tuple[Any, ...]:
    for kind in map(type, fields):
        if kind is Place or kind is Latest:
            raise NotRenumberedError
    return fields


def put_back(session: Any, seqs: list[int]) -> Any:
    """The session with seqs for the numbers of its places."""
    return replace_seqs(
        session, seqs[session[MARK]], [type(p)(seqs[p[0]], *p[1:]) for p in session[PROMPTS]])
