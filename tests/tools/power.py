"""The power of the random tests: flaws of the original are seeded into the runtime, and they must find them.

`make power` measures it and writes the table "flaws" of specs/power.md. The suite itself (`test_power`) asks only that
each flaw is found within the budget that the tests have on any day, and for the reason that the model gives.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from hypothesis import Phase, given, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from rich.console import Console
from rich.progress import track
from support.flawed_runtimes import FLAWED as RACES
from support.paths import ROOT
from support.random_clients import CHOICES, CLIENTS, SCHEDULES, STORE
from support.runtime_sessions import HISTORIES, STEP_COUNT, RuntimeSessions
from support.scheduled import Do, Parts, play
from tools.specs.pages import filled

from cancelmark.conformance.schedule import Choose
from cancelmark.impl.files import write
from cancelmark.impl.store import Store
from cancelmark.model.revisions.flaws import FLAWS, FLAWS_BY_NAME
from cancelmark.model.variants.catalogue import FLAWS_OF_ONE_STEP as STEPS

PAGE = ROOT / "specs" / "power.md"
SEEDS = 3
COLUMNS = ("seeded flaw", "caught by", "in", "examples (median)", "most", "steps")


class NotFound(AssertionError):
    """The budget was not enough."""


@dataclass(frozen=True)
class Found:
    """A seeded flaw that was found."""

    examples: int  # up to the first in which it shows
    steps: int  # that sessions take in the last one; the shrunk one, if there was time to shrink
    told: str  # by that one


class Search:
    """Examples as they come, of which one shows the flaw."""

    def __init__(self) -> None:
        self.examples = 0
        self.found: Found | None = None

    def begin(self) -> None:
        if self.found is None:
            self.examples += 1

    def fail(self, steps: int, told: str) -> None:
        self.found = Found(self.examples, steps, told)
        raise AssertionError(told)


def find(flaw: str, number: int = 0, shrink: bool = False) -> Found:
    """Finds the flaw as the suite does, with that seed. Only complaints of the property that it breaks count."""
    search = Search()
    test = _schedules(flaw, search) if flaw in RACES else _histories(flaw, search)
    phases = [Phase.generate, *([Phase.shrink] if shrink else [])]
    with suppress(AssertionError):
        test(number, settings(
            deadline=None, database=None, phases=phases, print_blob=False, report_multiple_bugs=False))
    if search.found is None:
        raise NotFound(f"{flaw}: not found in {search.examples} examples with seed {number}")
    return search.found


def _histories(flaw: str, search: Search) -> Callable[[int, settings], None]:
    class Flawed(RuntimeSessions):
        protocol = STEPS[flaw].protocol
        expected = f"^{FLAWS_BY_NAME[flaw].breaks}: "

        def __init__(self) -> None:
            search.begin()
            super().__init__()

        def complain(self, complaints: Iterable[str]) -> None:
            try:
                super().complain(complaints)
            except AssertionError as told:
                search.fail(len(self.watch.steps), str(told))

    def test(number: int, budget: settings) -> None:
        run_state_machine_as_test(seed(number)(Flawed), settings=settings(
            budget, max_examples=HISTORIES, stateful_step_count=STEP_COUNT))

    return test


def _schedules(flaw: str, search: Search) -> Callable[[int, settings], None]:
    parts: Parts = RACES[flaw]

    def example(clients: list[Do], choose: Choose, store: type[Store]) -> None:
        search.begin()
        played = play(clients, choose, store, parts)
        told = [complaint for complaint in played.complaints if complaint.property == FLAWS_BY_NAME[flaw].breaks]
        if told:
            search.fail(told[0].steps, f"{told[0]}\n{played}")

    def test(number: int, budget: settings) -> None:
        run: Any = settings(budget, max_examples=SCHEDULES)(given(CLIENTS, CHOICES, STORE)(example))
        seed(number)(run)()

    return test


# --- the page

def reason(flaw: str) -> tuple[str, str, str]:
    """The flaw, the property that must catch it, and the tests in which it does."""
    return flaw, FLAWS_BY_NAME[flaw].breaks, "schedules" if flaw in RACES else "histories"


SEEDED = [flaw.name for flaw in FLAWS if flaw.name in STEPS or flaw.name in RACES]


def measure(seeds: int = SEEDS) -> Iterator[Sequence[object]]:
    """A row for each flaw."""
    for flaw in track(SEEDED, "looking for seeded flaws", console=Console(stderr=True)):
        found = [find(flaw, number, shrink=number == 0) for number in range(seeds)]
        examples = [f.examples for f in found]
        yield *reason(flaw), median(examples), max(examples), found[0].steps


def flaws_table(rows: Iterable[Sequence[object]]) -> str:
    table = [COLUMNS, ("---", "---", "---", "---:", "---:", "---:"),
             *([f"[{name}](flaws.md#{name})", f"**{by}**", where, f"{middle:g}", str(most), str(steps)]
               for name, by, where, middle, most, steps in rows)]
    return TEXT.format(
        seeds=SEEDS, histories=f"{HISTORIES:,}", schedules=f"{SCHEDULES:,}",
        table="".join(f"| {' | '.join(line)} |\n" for line in table))


TEXT = """\
- **histories**: `tests/impl/runtime/test_impl_session_stateful.py`, {histories} random histories of two sessions, step
  by step. The flaw is in one step of the session.
- **schedules**: `tests/conformance/test_schedules.py`, {schedules} runs of a whole runtime, in memory and on SQLite, in
  which Hypothesis chooses the clients, the moments of their calls, and which ready task runs next. The flaw is a race:
  what should be one step is two.

*Examples* is how many were tried up to the first that shows the flaw, over {seeds} seeds. *Steps* is how many steps the
sessions take in the example that Hypothesis shrank it to.

{table}"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how soon the random tests find each flaw of the original.")
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help=f"how often (default: {SEEDS})")
    parser.add_argument("-o", "--output", type=Path, default=PAGE, metavar="FILE", help="default: specs/power.md")
    arguments = parser.parse_args()
    if arguments.seeds < 1:
        parser.error(f"--seeds {arguments.seeds}: give at least 1")
    rows = list(measure(arguments.seeds))
    write(arguments.output, filled(PAGE.read_text(encoding="utf-8"), {"flaws": lambda: flaws_table(rows)}))
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
