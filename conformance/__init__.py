"""The conformance kit: `judge(MyAdapter)` says which guarantees a server keeps, with a history for each that it breaks.

adapter     what a server needs to be judged: an adapter, a process, a language model that the kit steers
playing     what clients do in one history, as data; who plays it, and who writes down what is seen
judging     which guarantees the history breaks, and which it puts to the test
report      what is said of a server, with pictures
kit         tries scenarios and random histories, makes what it finds smaller, and makes a report
suite       the same as a test class for pytest
samples     servers to try the kit on: our own models, servers with a bug put in, innocent ones that look guilty
schedule    a deterministic event loop, for any asyncio code    trace     whether a log is a behaviour of the model
"""

from typing import TYPE_CHECKING, Any

from .adapter import GUARANTEES, Adapter, Declined, Ended, Notice, Refused, Sent, Spoken, TurnFailed, Turns

if TYPE_CHECKING:
    from .kit import judge

__all__ = [
    "GUARANTEES", "Adapter", "Declined", "Ended", "Notice", "Refused", "Sent", "Spoken", "TurnFailed", "Turns", "judge",
]


def __getattr__(name: str) -> Any:
    """The kit comes with a server, which is slow to import: only for those who judge."""
    if name != "judge":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .kit import judge

    return judge
