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
The latest seq plus one is the next. Whatever else a number can do, a place refuses, and a session of such a protocol is
worked out as it is. So a place has no hash, either: in `seq in {2}` nothing is compared unless hashes are equal. For
the same reason neither actions nor properties keep seqs in sets; where they do, nothing breaks, but takes longer.

`isinstance(seq, int)` is true of a place. What Python asks of no object cannot be refused: `type(seq)`, `seq is 2`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...session import AnySession, Prompt, Session

MARK, PROMPTS, MEMORY = map(Session._fields.index, ("mark", "prompts", "memory"))


class NotRenumberedError(BaseException):
    """Something that only seqs can tell, or a seq where nobody would look for it.

    No `Exception`, so that a protocol which goes on after any of those does not go on after this.
    """


def _refuse(*_: Any) -> Any:
    raise NotRenumberedError


ALLOWED = {"__new__", "__getattribute__", "__doc__", "__le__", "__gt__", "__ge__", "__lt__", "__eq__", "__ne__",
           "__bool__"}
Refusing: Any = type("Refusing", (), {"__slots__": (), **{
    name: _refuse if name.startswith("__") else property(_refuse) for name in vars(int).keys() - ALLOWED}})


class Place(Refusing):  # type: ignore[misc]
    """Where a seq is in the order of a session's seqs: an even number, or an odd one for a limit."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # for `isinstance`
        return int

    def __le__(self, other: Any) -> bool:
        try:
            mine, others = self.at, other.at
        except AttributeError:
            raise NotRenumberedError from None
        if mine & ~others & 1:
            raise NotRenumberedError
        return mine <= others  # type: ignore[no-any-return]

    def __gt__(self, other: Any) -> bool:
        return not self <= other

    def __ge__(self, other: Any) -> bool:
        try:
            mine, others = self.at, other.at
        except AttributeError:
            raise NotRenumberedError from None
        if others & ~mine & 1:
            raise NotRenumberedError
        return mine >= others  # type: ignore[no-any-return]

    def __lt__(self, other: Any) -> bool:
        return not self >= other

    def __eq__(self, other: Any) -> bool:
        try:
            mine, others = self.at, other.at
        except AttributeError:
            raise NotRenumberedError from None
        if (mine ^ others) & 1:
            raise NotRenumberedError
        return mine == others  # type: ignore[no-any-return]

    __hash__ = _refuse  # since it has an `__eq__`

    def __bool__(self) -> bool:
        if self.at & 1:
            raise NotRenumberedError
        return True


class Latest(Place):
    """The place of the latest seq, and of a mark that is equal to it."""

    __slots__ = ()

    def __add__(self, one: Any) -> Any:
        if type(one) is not int or one != 1:
            raise NotRenumberedError
        return PLACES[self.at + 1]


KINDS = {Place, Latest}
MOST = 32  # live prompts that there are places for
# One of each: `is` is quicker than `==`.
PLACES: list[Any] = [Place(at) for at in range(2 * MOST + 6)]
LATEST: list[Any] = [Latest(at) for at in range(2 * MOST + 6)]


class Shape(NamedTuple):
    """A session without its seqs, but with their order."""

    form: "Form"
    mark: int  # its place
    latest: int  # the place of the latest seq

    def fill(self, kind: type[Prompt]) -> tuple[Session, Any]:
        """A session of this shape with places for seqs, and the place of the latest seq."""
        latest = LATEST[self.latest]
        return self.form.fill(kind, latest if self.mark == self.latest else PLACES[self.mark],
                              PLACES[2:self.latest:2]), latest


def shape_of(session: AnySession, seq: int) -> tuple[Shape, list[int]] | None:
    """The shape of the session when `seq` is the latest, and the seqs by place. None: it cannot be renumbered."""
    found = form_of(session)
    if found is None or session.mark > seq:
        return None
    form, (_, *live) = found
    seqs = [0, 0]
    for prompt in live:
        seqs += (prompt, 0)
    latest = len(seqs) + 1
    mark = latest if session.mark == seq else 1 + 2 * sum([prompt <= session.mark for prompt in live])
    seqs += (0, seq, seq + 1)
    seqs[mark] = session.mark
    return Shape(form, mark, latest), seqs


def number_place(place: Any) -> int:
    """The place as a number."""
    if type(place) not in KINDS:
        raise NotRenumberedError
    return place.at  # type: ignore[no-any-return]


def number_of(seq: Any) -> int:
    """The number of a place. A seq is its own."""
    number: int = seq.at if type(seq) in KINDS else seq
    return number


def number_prompt(prompt: Prompt) -> Prompt:
    """The prompt with the number of its place."""
    return type(prompt)(number_place(prompt.seq), *_without_places(prompt[1:]))


class Form(NamedTuple):
    """A session without its mark and its seqs."""

    fields: tuple[Any, ...]  # other than mark and prompts
    prompts: tuple[tuple[Any, ...], ...]  # without their seqs

    def fill(self, kind: type[Prompt], mark: int, seqs: Sequence[int]) -> Session:
        """The session of this form with that mark and those seqs."""
        fields = list(self.fields)
        fields.insert(MARK, mark)
        fields.insert(PROMPTS, tuple([kind(seq, *prompt) for seq, prompt in zip(seqs, self.prompts)]))
        return Session._make(fields)

    def check(self) -> None:
        """Makes sure that it has no places where nobody would look for them."""
        _without_places(self.fields)
        for prompt in self.prompts:
            _without_places(prompt)


def form_of(session: Any) -> tuple[Form, tuple[Any, ...]] | None:
    """The form of the session; and its mark and its seqs, or places. None: it cannot be renumbered."""
    if type(session) is not Session or session.memory is not None:
        return None
    prompts = session.prompts
    return (Form(session[:MARK] + session[MARK + 1:PROMPTS] + session[PROMPTS + 1:],
                 tuple([prompt[1:] for prompt in prompts])),
            (session.mark, *[prompt[0] for prompt in prompts]))


def number_places(session: Any) -> tuple[Form, tuple[int, ...]]:
    """The form of the session, and the numbers of its places."""
    found = form_of(session)
    if found is None:
        raise NotRenumberedError
    form, places = found
    if not KINDS.issuperset(map(type, places)):
        raise NotRenumberedError
    return form, tuple([place.at for place in places])


def _without_places(fields: tuple[Any, ...]) -> tuple[Any, ...]:
    if not KINDS.isdisjoint(map(type, fields)):
        raise NotRenumberedError
    return fields
