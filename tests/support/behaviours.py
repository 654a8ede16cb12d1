"""The behaviours that the original's own tests pin, as data: scripts, and what must be seen on the way.

A script has the calls of the protocol: `accept A`, `accept A run id`, `enter A`, `finish A error`, `cancel`; in a
second session `cancel@2`. After each call the player waits until nothing more happens by itself. A prompt stays
accepted until the script lets it enter. A turn goes on until the script lets it finish, or until it is stopped.
"""

from dataclasses import dataclass, fields

import pytest

# What a player cannot see, and why.
BLIND = {
    ("server", "mark"): "a mark is not on the wire",
    ("server", "pending"): "a mark is not on the wire",
    ("r1", "mark"): "the cancel is a flag there",
}


@dataclass(frozen=True)
class Sees:
    """What must be seen at one moment. None: it does not matter there, or the player cannot see it."""

    became: str | None = None  # every prompt, its state or how it ended: "A canceled, B active"
    ends: str | None = None  # the terminal events, in order: "A canceled"
    all_ends: str | None = None  # the terminal events, in any order: here in that of the alphabet
    messages: str | None = None  # in order: "user" or the finish reason of an assistant's
    ran: str | None = None  # the prompts for whose turns the language model was called, in order: "AC"
    queue: str | None = None  # in order
    mark: int | None = None
    pending: bool | None = None  # a cancel waits for an accepted prompt to enter
    errors: str | None = None  # the prompts of which anybody was told an error

    def check(self, player: str, seen: "Sees") -> None:
        """What the player has seen is this."""
        for name in (each.name for each in fields(Sees)):
            expected, found = getattr(self, name), getattr(seen, name)
            assert (found is None) is ((player, name) in BLIND), name
            assert None in (expected, found) or found == expected, name


@dataclass(frozen=True)
class Behaviour:
    """A script, cut where something must be seen."""

    name: str
    steps: tuple[str | Sees, ...]
    since: int  # the first revision of the original that shows it, as all later ones do; 5: none does
    marks: pytest.MarkDecorator | None = None
    stubborn: frozenset[str] = frozenset()  # prompts whose turns do not stop when they are told to

    @property
    def calls(self) -> list[str]:
        return [call for step in self.steps if isinstance(step, str) for call in step.split("; ")]

    @property
    def sessions(self) -> int:
        return 1 + any("@2" in call for call in self.calls)


NO_REVISION = 5
BEHAVIOURS = (
    # reservations
    Behaviour("several accepted prompts on a session are counted each", (
        "accept A; accept B; accept C", Sees("A accepted, B accepted, C accepted"),
        "enter A; finish A end_turn", Sees("A end_turn, B accepted, C accepted"),
        "enter B; finish B end_turn", Sees("A end_turn, B end_turn, C accepted"),
        "enter C; finish C end_turn", Sees("A end_turn, B end_turn, C end_turn", queue=""),
    ), since=0),
    Behaviour("acceptance returns at once", (
        "accept A", Sees("A accepted", ends="", ran=""),
        "enter A", Sees("A active", ends="", ran="A"),
    ), since=0),
    # cancel
    Behaviour("an idle cancel leaves nothing pending and changes no state", (
        "cancel", Sees("", ends="", messages="", pending=False),
    ), since=0, marks=pytest.mark.rule("R12e")),
    Behaviour("a cancel with an accepted prompt is pending", (
        "accept A; cancel", Sees("A accepted", ends="", messages="", pending=True),
    ), since=1, marks=pytest.mark.rule("R12b")),
    Behaviour("a second cancel while one is pending changes nothing", (
        "accept A; cancel", Sees("A accepted", ends="", messages="", mark=1, pending=True),
        "cancel", Sees("A accepted", ends="", messages="", mark=1, pending=True),
    ), since=1),
    Behaviour("one cancel with an active and an accepted prompt does both", (
        "accept A run id; enter A; accept B run id; cancel", Sees("A canceled, B accepted", pending=True),
        "enter B", Sees("A canceled, B canceled", messages="user canceled user canceled", ran="A", pending=False),
    ), since=1, marks=pytest.mark.rule("R2", "R12a", "R12b")),
    Behaviour("a cancel of the active run also cancels the accepted follow up which never streams", (
        "accept A run id; enter A; accept B run id; cancel; enter B",
        Sees("A canceled, B canceled", ends="A canceled, B canceled", ran="A", errors=""),
    ), since=2),
    Behaviour("two accepted one cancel both are canceled on entry", (
        "accept A; accept B; cancel", Sees("A accepted, B accepted", mark=2, pending=True),
        "enter A; enter B", Sees("A canceled, B canceled", messages="user canceled user canceled", ran="", queue="",
                                 pending=False),
        "accept C; enter C; finish C end_turn", Sees("A canceled, B canceled, C end_turn", ran="C"),
    ), since=2, marks=pytest.mark.rule("R7a", "R7b")),
    Behaviour("a later prompt that enters first does not consume the cancel", (
        "accept A; accept B; cancel; accept C; enter C; finish C end_turn",
        Sees("A accepted, B accepted, C end_turn", mark=2, pending=True),
        "enter A; enter B", Sees("A canceled, B canceled, C end_turn", queue="", pending=False, ran="C",
                                 messages="user end_turn user canceled user canceled"),
    ), since=2, marks=pytest.mark.rule("R12b")),
    Behaviour("a queued prompt with a run id that a cancel drops publishes one canceled run complete", (
        "accept A run id; enter A; accept B run id; enter B; cancel",
        Sees("A canceled, B canceled", ends="B canceled, A canceled", ran="A", queue=""),
    ), since=4, marks=pytest.mark.rule("R14d")),
    Behaviour("a queued prompt without a run id that a cancel drops has its end published too", (
        "accept A run id; enter A; accept B; enter B; cancel",
        Sees("A canceled, B canceled", ends="B canceled, A canceled", ran="A", queue=""),
    ), since=NO_REVISION, marks=pytest.mark.rule("R12c", "R14d")),
    Behaviour("a cancel in one session changes no other", (
        "accept A run id; enter A; accept B run id@2; enter B@2; cancel",
        Sees("A canceled, B active", ends="A canceled"),
        "finish B end_turn@2", Sees("A canceled, B end_turn", ends="A canceled, B end_turn"),
    ), since=0, marks=pytest.mark.rule("R20")),
    # entry
    Behaviour("canceled on entry writes both messages and never calls the model", (
        "accept A; cancel; enter A", Sees("A canceled", messages="user canceled", ran="", pending=False),
    ), since=1, marks=pytest.mark.rule("R7a", "R7b", "R21")),
    Behaviour("canceled on entry publishes one run complete", (
        "accept A run id; cancel; enter A", Sees("A canceled", ends="A canceled", messages="user canceled", errors=""),
    ), since=2, marks=pytest.mark.rule("R14a", "R21")),
    Behaviour("the cancel check precedes the busy check", (
        "accept A run id; enter A; accept B run id; cancel; enter B",
        Sees("A active, B canceled", queue="", pending=False),
        "finish A end_turn", Sees("A end_turn, B canceled", ran="A"),
    ), since=1, stubborn=frozenset("A"), marks=pytest.mark.rule("R3b", "R4")),
    Behaviour("a canceled prompt does not wait for a later one that runs", (
        "accept A run id; cancel; accept B run id; enter B; enter A", Sees("A canceled, B active", queue=""),
        "finish B end_turn", Sees("A canceled, B end_turn", ends="A canceled, B end_turn"),
    ), since=2, marks=pytest.mark.rule("R3b", "R4")),
    Behaviour("after an idle cancel the next prompt runs normally to end_turn", (
        "cancel; accept A run id; enter A; finish A end_turn",
        Sees("A end_turn", ends="A end_turn", messages="user end_turn", ran="A"),
        "cancel; accept B run id; enter B; finish B end_turn; cancel; accept C run id; enter C; finish C end_turn",
        Sees("A end_turn, B end_turn, C end_turn", ends="A end_turn, B end_turn, C end_turn", ran="ABC", errors=""),
    ), since=0, marks=pytest.mark.rule("R12e", "R27c")),
    Behaviour("a stale mark catches nobody", (
        "accept A; enter A; cancel", Sees("A canceled"),
        "accept B; enter B; finish B end_turn; accept C; enter C; finish C end_turn",
        Sees("A canceled, B end_turn, C end_turn"),
        "accept D; enter D; finish D end_turn",
        Sees("A canceled, B end_turn, C end_turn, D end_turn", ran="ABCD"),
    ), since=0),
    # queue
    Behaviour("above the mark a queued prompt folds or is kept in order and below it is dropped", (
        "accept A; enter A; accept B; enter B; accept C run id; enter C; cancel",
        Sees("A canceled, B canceled, C canceled"),
        "accept D run id; enter D; accept E run id; enter E; accept F run id; enter F", Sees(queue="EF"),
        "accept G; enter G; accept H; enter H", Sees(queue="EFGH"),
        "finish D end_turn",
        Sees("A canceled, B canceled, C canceled, D end_turn, E active, F queued, G folded, H folded"),
        "finish E end_turn; finish F end_turn",
        Sees("A canceled, B canceled, C canceled, D end_turn, E end_turn, F end_turn, G folded, H folded", ran="ADEF"),
    ), since=4, marks=pytest.mark.rule("R9b", "R11b")),
    Behaviour("without a mark every queued prompt without a run id folds", (
        "accept A; enter A; accept B run id; enter B; accept C; enter C; accept D; enter D; accept E; enter E",
        Sees("A active, B queued, C queued, D queued, E queued", queue="BCDE"),
        "finish A end_turn", Sees("A end_turn, B active, C folded, D folded, E folded", ran="AB", queue=""),
    ), since=0, marks=pytest.mark.rule("R9a")),
    Behaviour("a queued prompt keeps its prompt text and run id", (
        "accept A; enter A; accept B run id; enter B", Sees("A active, B queued", queue="B"),
    ), since=0),
    Behaviour("a queued prompt with a run id runs as its own turn after the active one", (
        "accept A run id; enter A; accept B run id; enter B", Sees("A active, B queued", ran="A", queue="B"),
        "finish A end_turn", Sees("A end_turn, B active", ran="AB", queue=""),
        "finish B end_turn", Sees("A end_turn, B end_turn", all_ends="A end_turn, B end_turn",
                                  messages="user end_turn user end_turn", ran="AB"),
    ), since=4, marks=pytest.mark.rule("R5a", "R11a", "R14c")),
    Behaviour("the end of a turn does not wait for the turn after it", (
        "accept A run id; enter A; accept B run id; enter B; finish A end_turn",
        Sees("A end_turn, B active", ends="A end_turn"),
        "finish B end_turn", Sees("A end_turn, B end_turn", ends="A end_turn, B end_turn"),
    ), since=NO_REVISION, marks=pytest.mark.rule("R14b")),
    # backend
    Behaviour("an error before the run could start publishes one errored run complete", (
        "accept A run id; fail A", Sees("A error", ends="A error", ran="", errors="A"),
    ), since=4),
    Behaviour("if the end was already published there is no second one", (
        "accept A run id; enter A; accept B run id; enter B; cancel", Sees(ends="B canceled, A canceled"),
        "cancel; clear_queue; cancel", Sees("A canceled, B canceled", ends="B canceled, A canceled"),
    ), since=4, marks=pytest.mark.rule("R14a")),
    Behaviour("an errored run publishes its error once and is not canceled", (
        "accept A run id; enter A; finish A error", Sees("A error", ends="A error", messages="user error", errors="A"),
    ), since=0, marks=pytest.mark.rule("R14c")),
    Behaviour("an errored run tells its error under its own run id", (
        "accept A run id; enter A; accept B run id; enter B; finish A end_turn; finish B error",
        Sees("A end_turn, B error", all_ends="A end_turn, B error", messages="user end_turn user error", errors="B"),
    ), since=NO_REVISION),
    # several clients
    Behaviour("a cancel by another client gives a canceled message and nobody an error", (
        "accept A run id; enter A; cancel",
        Sees("A canceled", ends="A canceled", messages="user canceled", ran="A", errors=""),
    ), since=0),
)
