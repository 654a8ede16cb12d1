"""The conformance kit: `judge(MyAdapter)` reports which guarantees a server keeps, with a history for each broken one.

adapter     the interface to a server under test: the adapter, a server process, a language model that the kit controls
playing     scripts of client actions, the driver that runs them, and the observer that records a history
judging     which guarantees a history breaks, and which it tests
report      the report on a server, with diagrams
kit         runs scenarios and random scripts, shrinks its findings, and makes a report
suite       the kit as a test class for pytest
schedule    a deterministic event loop, for any asyncio code
trace       whether a log is a behaviour of the model
"""

from typing import TYPE_CHECKING, Any

from .adapter import GUARANTEES, Adapter, Declined, Ended, Notice, Refused, Sent, Spoken, TurnFailed, Turns

if TYPE_CHECKING:
    from .kit import judge

__all__ = [
    "GUARANTEES", "Adapter", "Declined", "Ended", "Notice", "Refused", "Sent", "Spoken", "TurnFailed", "Turns", "judge",
]


def __getattr__(name: str) -> Any:
    """Import `judge` on first use, because the kit is slow to import."""
    if name != "judge":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .kit import judge

    return judge
