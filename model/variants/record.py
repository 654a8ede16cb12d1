"""The record of a protocol that is not the reference, and what all of them are made with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..lifecycle import ROWS, Row, State, Trigger
from ..properties import Bounds
from ..protocol import Protocol


@dataclass(frozen=True)
class ProtocolVariant:
    """A changed protocol, and everything that the explorer finds in it within the bounds: no more and no less."""

    protocol: Protocol
    bounds: Bounds
    breaks: Mapping[str, int]  # by property: the steps of the shortest trace
    unmet: frozenset[str] = frozenset()  # goals that it cannot reach
    sentence: str = ""  # what it does, if the name does not say
    flaw: str = ""  # the flaw of the original that it is, by its name in model/revisions/flaws.py
    only_in_model: str = ""  # why the runtime's session cannot have it

    @property
    def name(self) -> str:
        return self.protocol.name

    @property
    def title(self) -> str:
        return self.sentence or self.name

    @property
    def slug(self) -> str:
        """The name as a command line takes it."""
        return slug(self.name)


def slug(name: str) -> str:
    return name.strip().replace(" ", "-").replace("'", "").replace(",", "")


def rows_with(*changed: Row, without: Callable[[Row], bool] = lambda row: False) -> tuple[Row, ...]:
    return (*(row for row in ROWS if not without(row)), *changed)


def is_row(trigger: Trigger, dest: State | None = None) -> Callable[[Row], bool]:
    return lambda row: row.trigger is trigger and dest in (None, row.dest)
