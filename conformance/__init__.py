"""The conformance kit: `judge(MyAdapter)` says which guarantees a server keeps, with a history for each that it breaks.

adapter     what a server needs to be judged, and the language model that the kit steers its turns with
script      what clients do in one history, as data         history   what was seen of it
driver      plays the script                                observer  writes the history
judgement   which guarantees the history breaks             venue     where it is played: in this process, or outside
kit         tries scenarios and random histories, makes what it finds smaller, and makes a report
suite       the same as a test class for pytest             fake_llm  a language model server for servers outside
models      our own models as servers to judge              naive     a server that looks right
schedule    a deterministic event loop, for any asyncio code    trace     whether a log is a behaviour of the model
"""

from typing import TYPE_CHECKING, Any

from .adapter import GUARANTEES, Adapter, Ended, Notice, Refused, Sent, Spoken, TurnFailed, Turns

if TYPE_CHECKING:
    from .kit import judge

__all__ = [
    "GUARANTEES", "Adapter", "Ended", "Notice", "Refused", "Sent", "Spoken", "TurnFailed", "Turns", "judge",
]


def __getattr__(name: str) -> Any:
    """The kit comes with a server, which is slow to import: only for those who judge."""
    if name != "judge":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .kit import judge

    return judge
