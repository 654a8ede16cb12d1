"""Simulated clusters: every single fault of the small scenarios, or one run with its whole story.

    make simulate                                        every single fault of every small scenario
    make simulate RUN="cancel"                           of one scenario
    make simulate RUN="cancel --choices 5:6"             one run, as a failure has printed it
    make simulate RUN="cancel --flaw claim-only"         an error is put in: the run that shows it

A choice `5:6` leaves five things as they are, and takes the sixth of what may go wrong then. `--choices -` lets nothing
go wrong. The scenarios are in tests/support/simulation/scenarios.py, the errors in flaws.py beside it.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from support.simulation.cluster import Do, Scenario
from support.simulation.flaws import BY_NAME
from support.simulation.playing import Run, find_flaw, play, play_all, read_choices
from support.simulation.scenarios import DOUBLE, LARGE, SCENARIOS, SMALL


def search(scenario: Scenario) -> Run | None:
    """Plays the scenario with every fault, and says how often. The first run with a problem."""
    number = 0
    for run in play_all(scenario, faults=2 if scenario in DOUBLE else 1):
        number += 1
        if run.problems:
            return run
    print(f"{scenario.name}: {number} runs, nothing is wrong", flush=True)
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="?", choices=SCENARIOS, metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("--choices", help="of a run, as a failure has printed them")
    parser.add_argument("--calls", default="", help=f"what clients do in the scenario {LARGE.name}")
    parser.add_argument("--flaw", choices=BY_NAME, metavar="FLAW", help=", ".join(BY_NAME))
    given = parser.parse_args(arguments)
    scenario = SCENARIOS[given.scenario] if given.scenario else None
    try:
        if scenario and given.calls:
            scenario = replace(scenario, clients=[Do.read(call) for call in given.calls.split()])
        chosen = read_choices(given.choices) if given.choices else None
    except ValueError as error:
        parser.error(str(error))
    flaw = BY_NAME[given.flaw] if given.flaw else None
    if scenario and chosen:
        run: Run | None = play(scenario, chosen, flaw)
    elif flaw:
        run = find_flaw(flaw)
    else:
        found = map(search, [scenario] if scenario else [*SMALL, *DOUBLE])
        run = next(filter(None, found), None)
    if run:
        print(run)
    return 1 if run and run.problems else 0


if __name__ == "__main__":
    sys.exit(main())
