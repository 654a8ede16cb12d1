"""Prompts whose run ids nobody has looked at yet.

Most of what happens to a session does not depend on which of its prompts have a run id. So sessions are tabulated with
their run ids hidden: an action or a property that asks for one raises `Asked`, and only then are both answers tried.
What was worked out without asking holds for either.

Such a prompt is in every other respect a prompt: its run id is compared as one unknown value, which is right because
two prompts with one seq have one run id. A protocol that reads run ids must read the field `run_id`.
"""

from typing import Any, TypeVar

from ...session import AnySession, Prompt

T = TypeVar("T", bound=AnySession)


class Asked(BaseException):
    """The run id of the prompt with this seq is asked for.

    No `Exception`, so that a protocol which goes on after any of those does not go on after this.
    """

    def __init__(self, seq: int) -> None:
        super().__init__(seq)
        self.seq = seq


class _Unknown:
    """Stands where a run id is. It is equal to itself and cannot be taken for true or false."""

    def __bool__(self) -> bool:
        raise TypeError("a hidden run id was read by its position; read the field run_id")


UNKNOWN: Any = _Unknown()


class HiddenPrompt(Prompt):
    """A prompt that may or may not have a run id."""

    __slots__ = ()

    @property
    def run_id(self) -> bool:
        raise Asked(self.seq)


def without_run_ids(session: AnySession) -> AnySession:
    """The session with all its run ids hidden."""
    for p in session.prompts:
        if type(p) is not HiddenPrompt:
            break
    else:
        return session
    return _with_prompts(session, [
        p if type(p) is HiddenPrompt else HiddenPrompt(p.seq, UNKNOWN, *p[2:]) for p in session.prompts])


def with_run_ids(session: AnySession, run_ids: dict[int, bool]) -> AnySession:
    """The session with these run ids, by seq, and the others as they are."""
    return _with_prompts(session, [
        Prompt(p.seq, run_ids[p.seq], *p[2:]) if p.seq in run_ids else p for p in session.prompts])


def _with_prompts(session: T, prompts: list[Prompt]) -> T:
    """The session with other prompts, which are in order."""
    same: T = session._replace(prompts=tuple(prompts))  # type: ignore[attr-defined]
    return same
