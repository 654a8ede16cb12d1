"""Prompts with hidden run ids.

Most steps of a session do not depend on which of its prompts have a run id. Sessions are therefore tabulated with their
run ids hidden. An action or a property that reads one raises `Asked`, and only then are both cases tried. A result that
was computed without reading a run id holds in both cases.

In every other respect such a prompt is an ordinary prompt. Its run id compares as one unknown value, which is correct
because two prompts with the same seq have the same run id. A protocol must read run ids through the field `run_id`.
"""

from typing import Any, TypeVar

from ...session import AnySession, Prompt

T = TypeVar("T", bound=AnySession)


class Asked(BaseException):
    """The hidden run id of the prompt with this seq was read.

    A `BaseException`, so that a protocol that catches `Exception` does not swallow it.
    """

    def __init__(self, seq: int) -> None:
        super().__init__(seq)
        self.seq = seq


class _Unknown:
    """The placeholder for a hidden run id. It equals only itself and has no truth value."""

    def __bool__(self) -> bool:
        raise TypeError("a hidden run id was read by tuple position; use the field run_id instead")


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
    """The session with these run ids filled in, by seq. The others are unchanged."""
    return _with_prompts(session, [
        Prompt(p.seq, run_ids[p.seq], *p[2:]) if p.seq in run_ids else p for p in session.prompts])


def _with_prompts(session: T, prompts: list[Prompt]) -> T:
    """A copy of the session with these prompts, which must already be sorted by seq."""
    same: T = session._replace(prompts=tuple(prompts))  # type: ignore[attr-defined]
    return same
