"""The record of a protocol variant, and helpers to build variants."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..actions import Argument
from ..effects import Effect
from ..lifecycle import ROWS, Row, State, Trigger
from ..properties import Bounds
from ..protocol import Protocol


@dataclass(frozen=True)
class ProtocolVariant:
    """A changed protocol, and exactly the violations that the explorer must find in it within the bounds."""

    protocol: Protocol
    bounds: Bounds
    breaks: Mapping[str, int]  # violated properties, each with the length of its shortest trace
    unmet: frozenset[str] = frozenset()  # goals that it cannot reach
    sentence: str = ""  # description, if the name is not enough
    flaw: str = ""  # the flaw of the original that it reproduces, by its name in model/revisions/flaws.py
    only_in_model: str = ""  # why it cannot be applied to the runtime's session

    @property
    def name(self) -> str:
        return self.protocol.name

    @property
    def title(self) -> str:
        return self.sentence or self.name

    @property
    def slug(self) -> str:
        """The name as a command-line argument."""
        return slug(self.name)


def slug(name: str) -> str:
    return name.strip().replace(" ", "-").replace("'", "").replace(",", "")


def rows_with(*changed: Row, without: Callable[[Row], bool] = lambda row: False) -> tuple[Row, ...]:
    return (*(row for row in ROWS if not without(row)), *changed)


def is_row(trigger: Trigger, dest: State | None = None) -> Callable[[Row], bool]:
    return lambda row: row.trigger is trigger and dest in (None, row.dest)


Apply = Callable[[Any, Argument], None]


def after(apply: Apply, then: Apply) -> dict[str, Apply]:
    """The action followed by `then`, in the same step."""
    def applied(step: Any, arg: Argument) -> None:
        apply(step, arg)
        then(step, arg)

    return {"apply": applied}


def without(apply: Apply, kind: type[Effect]) -> dict[str, Apply]:
    """The action without its effects of this kind."""
    def drop(step: Any, arg: Argument) -> None:
        step.effects[:] = [e for e in step.effects if not isinstance(e, kind)]

    return after(apply, drop)
