"""Installs the agents and servers of agents.toml, judges each, and writes specs/field/: a page each, and one table.

What was seen is kept in specs/field/seen.json, from which the pages are made. An agent that cannot be installed or
started here, or that needs too long, is skipped with the reason; what was seen of it before stays. With --again only
what is on the pages as a finding is played, and counted apart.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from time import monotonic
from typing import Any

from examples.field.agents import CACHE, Listed, Skipped, install, read_list
from examples.field.editor import CLIENT, try_client
from examples.field.plays import MODES, SCRIPTS, WHOLE, Player, busy
from examples.field.record import (
    AGAIN,
    FIRST,
    LOADED,
    LOADED_FROM,
    list_candidates,
    list_rows,
    make_series,
    make_whole,
    put_series,
    read_record,
    watching_load,
    write_record,
)
from examples.field.report import write_pages

RECORD = "seen.json"
TIMES, TIMES_AGAIN = 5, 3  # that each script is played


def main() -> int:
    agents = read_list()
    options = read_options([CLIENT.name, *agents])
    record = read_record(options.output / RECORD)
    failed = False
    if options.again:
        options.names = [name for name in options.names if any(list_candidates(record.get(name, {})))]
    for n, name in enumerate(options.names, 1):
        begun = monotonic()
        say(f"{n} of {len(options.names)}: {name}")
        try:
            if name == CLIENT.name:
                seen = try_client(options.cache)
                failed |= not seen["right"]
            elif options.again:
                seen = play_again(agents[name], record[name], options)
                failed |= not tell_again(seen)
            else:
                seen = judge_agent(agents[name], options)
        except Exception as error:  # whatever it is, the others are to be played
            why = error if isinstance(error, Skipped) else f"{type(error).__name__}: {error}"
            say(f"  skipped: {why}")
            if options.again or not isinstance(error, Skipped):
                failed = True
            elif not options.script and record.get(name, {}).get("package") != agents.get(name, CLIENT).package:
                record[name] = {"package": agents.get(name, CLIENT).package, "skipped": str(why)}
        else:
            say(f"  played in {monotonic() - begun:.0f} s")
            if options.script:
                print(tell(seen))
            else:
                record[name] = seen
        if not options.script:
            write_record(options.output / RECORD, record)
            write_pages(agents, record, options.output)
    return int(failed)


def read_options(names: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.field", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"of {', '.join(names)} (default: all)")
    parser.add_argument("--from", dest="begin", metavar="NAME", help="all from this one on: after a stop")
    parser.add_argument("--again", action="store_true", help="play the findings again, and say which show")
    parser.add_argument("--mode", choices=MODES, help="polite or free alone; of a server, one of the others")
    parser.add_argument("--script", action="append", help="play this, print what shows, and write nothing")
    parser.add_argument("--times", type=int, help=f"that each script is played (default: {TIMES}; again: "
                        f"{TIMES_AGAIN})")
    parser.add_argument("--busy", type=int, metavar="N", help="processes that load the machine when what showed is "
                        f"played again (default: {LOADED_FROM} for each core; with --again none)")
    parser.add_argument("--cache", type=Path, default=CACHE, help="for installations (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, default=Path("specs/field"), help="(default: %(default)s)")
    options = parser.parse_args()
    if unknown := {*options.names, *filter(None, [options.begin])} - set(names):
        parser.error(f"there is no agent {sorted(unknown)[0]} in the list; choose from {', '.join(names)}")
    if options.names and options.begin:
        parser.error("give names, or --from NAME, not both")
    if options.times is not None and options.times < 1:
        parser.error(f"--times {options.times}: play a script at least once")
    if options.again and (options.script or options.mode):
        parser.error("--again plays what is recorded: leave --script and --mode out")
    own = options.names or names[names.index(options.begin) if options.begin else 0:]
    only_agents = options.again or options.script or options.mode
    options.names = [name for name in own if name != CLIENT.name or not only_agents]
    options.times = options.times or (TIMES_AGAIN if options.again else TIMES)
    options.cache.mkdir(parents=True, exist_ok=True)
    options.output.mkdir(parents=True, exist_ok=True)
    return options


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def playing(agent: Listed, cache: Path) -> Iterator[Player]:
    programs = install(agent, cache)
    with tempfile.TemporaryDirectory(prefix="cancelmark-field-") as files:
        yield Player(agent, programs, Path(files), monotonic() + agent.limit)


def play_series(name: str, player: Player, n: int, times: int, scripts: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    """Plays the scripts of each mode beside so many processes that compute."""
    reports = {}
    with busy(n), watching_load() as load:
        for mode, each in scripts.items():
            say(f"  {name}, {mode}: {len(each)} scripts, {times} times each")
            reports[mode] = player.play(mode, times, each)
    return make_series(name, n, load.average, reports)


def judge_agent(agent: Listed, options: argparse.Namespace) -> dict[str, Any]:
    """What shows on the machine as it is, and what of it shows on a loaded one."""
    known = SCRIPTS[agent.judge]
    if not (modes := [mode for mode in known if options.mode in (None, mode)]):
        raise Skipped(f"it is judged in the modes {', '.join(known)}")
    seen: dict[str, Any] = {"package": agent.package, "day": date.today().isoformat(), "cores": os.cpu_count() or 1}
    with playing(agent, options.cache) as player:
        scripts = {mode: tuple(options.script or known[mode]) for mode in modes}
        whole = WHOLE.get(agent.judge)
        if whole in modes and not options.script:
            say(f"  scenarios and random histories, {whole}")
            report, found = player.judge_whole(whole)
            seen["whole"] = make_whole(report)
            scripts[whole] = tuple(dict.fromkeys([*scripts[whole], *found]))
        seen["series"] = [play_series(FIRST, player, 0, options.times, scripts)]
        showed = {mode: tuple(row.script for row in list_rows(seen) if row.mode == mode and row.showed)
                  for mode in modes}
        again = {mode: each for mode, each in showed.items() if each}
        if again:
            n = LOADED_FROM * seen["cores"] if options.busy is None else options.busy
            put_series(seen, play_series(LOADED, player, n, options.times, again))
    return seen


def play_again(agent: Listed, seen: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Plays the findings, each by its shortest script."""
    if seen["package"] != agent.package:
        raise Skipped(f"{seen['package']} was judged, and the list has {agent.package}: make field ONLY={agent.name}")
    scripts: dict[str, tuple[str, ...]] = {}
    for found in list_candidates(seen):
        scripts[found.row.mode] = tuple(dict.fromkeys([*scripts.get(found.row.mode, ()), found.row.script]))
    with playing(agent, options.cache) as player:
        put_series(seen, play_series(AGAIN, player, options.busy or 0, options.times, scripts))
    return seen


def tell_again(seen: dict[str, Any]) -> bool:
    """Prints how often each finding showed again, and returns whether all did so often enough."""
    right = True
    rows = {(row.mode, row.script): row for row in list_rows(seen)}
    for found in list_candidates(seen):
        row, guarantee = rows[found.row.mode, found.row.script], found.guarantee["id"]
        count = row.counts[-1]
        right &= count.is_often(guarantee)
        print(f"{'reproduces' if count.is_often(guarantee) else 'DOES NOT REPRODUCE'}: {row.mode} {guarantee}, "
              f"{count.showed.get(guarantee, 0)} of {count.times} plays of {row.script!r}", flush=True)
    return right


def tell(seen: dict[str, Any]) -> str:
    """How the prompts of each script ended, and what showed."""
    return "\n".join(f"{row.mode}: {row.script}\n  ends: {', '.join(row.ended)}\n  did not hold: "
                     f"{', '.join(row.broken) or 'nothing'}" for row in list_rows(seen))


if __name__ == "__main__":
    sys.exit(main())
