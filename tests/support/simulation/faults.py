"""What may go wrong in a simulated cluster, and how much of it: each fault is paid from a budget of its kind."""

from collections import Counter
from dataclasses import dataclass, fields

FINE = "fine"


@dataclass(frozen=True)
class Faults:
    """How many of each kind the chooser has, in the words of `model/cluster`."""

    doubts: int = 0  # commits whose answer is lost, that are lost themselves, or that come late
    delays: int = 0  # commits that take their time
    pauses: int = 0  # nodes that hang for longer than their lease, and go on
    kills: int = 0  # nodes that are gone, and come back as another life
    expiries: int = 0  # nodes whose beats do not arrive, and that run on
    drains: int = 0  # nodes that leave as they should
    wakeups: int = 0  # wake-ups that nobody hears
    questions: int = 0  # statements that are no commits, and have no answer
    stalls: int = 0  # commits whose connection stalls: the answer comes, much later, and nothing fails
    locks: int = 0  # commits whose answer is lost, and whose session is locked for whoever sends them again
    outages: int = 0  # times that the database answers no node for longer than a lease
    leaks: int = 0  # statements that end as if their task were canceled, and nobody has asked for it

    def __repr__(self) -> str:
        told = ", ".join(f"{f.name}={getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name))
        return f"Faults({told})"


NOTHING = Faults()

# What may become of a commit, and of the node that sends it: by the budget that pays.
OF_COMMITS = {
    "the answer is lost": "doubts", "the commit is lost": "doubts", "the commit comes late": "doubts",
    "the commit is slow": "delays",
    "the node hangs before it sends": "pauses", "the node hangs before it hears": "pauses",
    "the node is killed before it sends": "kills", "the node is killed before it hears": "kills",
    "the node's beats are lost": "expiries", "the node leaves": "drains", "a cancellation leaks": "leaks",
    "the answer stalls": "stalls", "the answer is lost and the session locked": "locks",
    "the database is away": "outages",
}
OF_QUESTIONS = {"the question is lost": "questions", "a cancellation leaks": "leaks"}
# And what may become of a node while a turn runs.
OF_TURNS = {"the node hangs": "pauses", "the node is killed": "kills", "the node's beats are lost": "expiries",
            "the node leaves": "drains"}
OF_WAKEUPS = {"the wake-up is lost": "wakeups"}


class Purse:
    """What is left of the budgets."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._spent: Counter[str] = Counter()

    def list_possible(self, kinds: dict[str, str], spared: bool) -> list[str]:
        """The faults that can be paid. A node that is spared stays up: it is the last."""
        return [name for name, kind in kinds.items() if self._spent[kind] < getattr(self._faults, kind)
                and not (spared and kind in ("pauses", "kills", "expiries", "drains"))]

    def pay(self, name: str) -> None:
        self._spent[{**OF_COMMITS, **OF_QUESTIONS, **OF_TURNS, **OF_WAKEUPS}[name]] += 1
