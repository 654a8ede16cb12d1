"""What the course asks of its reader: predictions, and bugs to find."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import EllipsisType

from .history import History
from .result import Trace
from .session import label


@dataclass(frozen=True)
class Prediction:
    """How somebody says that prompts will end, by name. What is left open is `...`."""

    says: Mapping[str, str | EllipsisType]

    def against(self, seen: History | Trace) -> "Comparison":
        """The prediction beside what happened."""
        if isinstance(seen, History):
            return Comparison(self.says, seen.ends)
        ends = {label(p.seq): p.outcome.value for p in seen.states[-1].prompts if p.outcome}
        return Comparison(self.says, ends)


@dataclass(frozen=True)
class Comparison:
    """What was said, and what was so."""

    said: Mapping[str, str | EllipsisType]
    was: Mapping[str, str]

    def _repr_html_(self) -> str:
        from .views.notebook import comparison_sheet

        return comparison_sheet(self)


def predict(**ends: str | EllipsisType) -> Prediction:
    """`predict(A="canceled", B=...)`: how prompts will end, before it is seen."""
    return Prediction(ends)
