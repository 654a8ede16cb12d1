"""Installs the agents and servers of agents.toml, judges each, and writes specs/field/: a page for each, and one table.

All scripts run first on the machine as it is, two agents at a time. Then the scripts that broke a guarantee run again
beside busy processes. The results are stored in specs/field/seen.json, from which the pages are generated. An agent
that cannot be installed or started here, or that takes too long, is skipped with the reason, and its earlier results
stay. With --again only the frequent findings run, and are counted separately.
"""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
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
TIMES, TIMES_AGAIN = 5, 3  # runs of each script
SIDE_BY_SIDE = 2  # agents at a time: a judgement mostly waits


def main() -> int:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # background jobs ignore it, and child processes inherit that
        signal.signal(signal.SIGINT, signal.default_int_handler)
    listed = read_list()
    agents = {CLIENT.name: CLIENT, **listed}
    options = read_options(list(agents))
    record = read_record(options.output / RECORD)
    phases = [AGAIN] if options.again else [LOADED] if options.loaded else [FIRST, LOADED]
    seen: dict[str, dict[str, Any]] = {} if FIRST in phases else dict(record)
    failed = False
    for name in options.names if FIRST in phases else ():
        say(f"{name}: installing {agents[name].package}")
        with suppress(Skipped):  # reported when the agent is to run
            install(agents[name], options.cache)
    for phase in phases:
        names = [name for name in options.names if phase == FIRST or list_scripts(phase, seen.get(name, {}))]
        for name, told in play_all(phase, [agents[name] for name in names], options, seen):
            if isinstance(told, Exception):
                say(f"{name}: skipped: {told if isinstance(told, Skipped) else repr(told)}")
                failed |= phase == AGAIN or not isinstance(told, Skipped)
                if phase == FIRST and record.get(name, {}).get("package") != agents[name].package:
                    record[name] = {"package": agents[name].package, "skipped": str(told)}
            else:
                record[name] = seen[name] = told
                failed |= (phase == AGAIN and not tell_again(told)) or not told.get("right", True)
            if not options.script:
                write_record(options.output / RECORD, record)
                write_pages(listed, record, options.output)
    for each in seen.values() if options.script else ():
        print(tell(each))
    return int(failed)


def play_all(phase: str, agents: list[Listed], options: argparse.Namespace, seen: Mapping[str, dict[str, Any]],
             ) -> Iterator[tuple[str, dict[str, Any] | Exception]]:
    """The results of each agent, or why there are none, as they finish; the agents that may take longest start first.
    """
    cores = os.cpu_count() or 1
    usual = LOADED_FROM * cores if phase == LOADED else 0
    n = usual if options.busy is None or phase == FIRST else options.busy
    with busy(n if agents else 0), ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        playing = {pool.submit(play_one, phase, n, agent, options, seen.get(agent.name, {})): agent.name
                   for agent in sorted(agents, key=lambda agent: -agent.limit)}
        try:
            for done in as_completed(playing):
                error = done.exception()
                if error is not None and not isinstance(error, Exception):
                    raise error
                yield playing[done], error or done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def play_one(phase: str, n: int, agent: Listed, options: argparse.Namespace, seen: dict[str, Any]) -> dict[str, Any]:
    """The results of the agent, including this phase."""
    begun = monotonic()
    if agent.name == CLIENT.name:
        seen = try_client(options.cache)
    elif phase == FIRST:
        seen = play_first(agent, options)
    elif seen["package"] != agent.package:
        raise Skipped(f"the results are for {seen['package']}, but agents.toml lists {agent.package}; run make field "
                      f"ONLY={agent.name}")
    else:
        with playing(agent, options.cache) as player:
            put_series(seen, play_series(phase, player, n, options.times, list_scripts(phase, seen)))
    say(f"{agent.name}, {phase}: done in {monotonic() - begun:.0f} s")
    return seen


def read_options(names: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.field", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"the agents: {', '.join(names)} (default: all)")
    parser.add_argument("--from", dest="begin", metavar="NAME", help="resume an interrupted run from this agent")
    parser.add_argument("--again", action="store_true", help="rerun only the findings, and report which recur")
    parser.add_argument("--loaded", action="store_true", help="rerun only what broke, on a loaded machine")
    parser.add_argument("--mode", choices=MODES, help="run only this mode")
    parser.add_argument("--script", action="append", help="run only this script, print the results, and write nothing")
    parser.add_argument("--times", type=int, help=f"runs of each script (default: {TIMES}; with --again: "
                        f"{TIMES_AGAIN})")
    parser.add_argument("--busy", type=int, metavar="N", help="busy processes during the reruns (default: "
                        f"{LOADED_FROM} for each core; with --again none)")
    parser.add_argument("--cache", type=Path, default=CACHE, help="directory for installations (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, default=Path("specs/field"),
                        help="directory for the pages (default: %(default)s)")
    options = parser.parse_args()
    if unknown := {*options.names, *filter(None, [options.begin])} - set(names):
        parser.error(f"unknown agent {sorted(unknown)[0]}; choose from {', '.join(names)}")
    if options.names and options.begin:
        parser.error("names and --from are mutually exclusive")
    if options.times is not None and options.times < 1:
        parser.error(f"--times {options.times}: must be at least 1")
    if (options.again or options.loaded) and (options.script or options.mode):
        parser.error("--again and --loaded rerun recorded scripts; omit --script and --mode")
    own = options.names or names[names.index(options.begin) if options.begin else 0:]
    only_agents = options.again or options.loaded or options.script or options.mode
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
    """Run the scripts of each mode, while `n` busy processes run."""
    reports = {}
    with watching_load() as load:
        for mode, each in scripts.items():
            say(f"{player.agent.name}, {name}, {mode}: {len(each)} scripts, {times} runs each")
            reports[mode] = player.play(mode, times, each)
    return make_series(name, n, load.average, reports)


def play_first(agent: Listed, options: argparse.Namespace) -> dict[str, Any]:
    """The results on the machine as it is."""
    known = SCRIPTS[agent.judge]
    if not (modes := [mode for mode in known if options.mode in (None, mode)]):
        raise Skipped(f"it does not have the mode {options.mode}; choose from {', '.join(known)}")
    seen: dict[str, Any] = {"package": agent.package, "day": date.today().isoformat(), "cores": os.cpu_count() or 1}
    with playing(agent, options.cache) as player:
        scripts = {mode: tuple(options.script or known[mode]) for mode in modes}
        whole = WHOLE.get(agent.judge)
        if whole in modes and not options.script:
            say(f"{agent.name}, {whole}: scenarios and random histories")
            report, found = player.judge_whole(whole)
            seen["whole"] = make_whole(report)
            scripts[whole] = tuple(dict.fromkeys([*scripts[whole], *found]))
        seen["series"] = [play_series(FIRST, player, 0, options.times, scripts)]
    return seen


def list_scripts(phase: str, seen: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The scripts to rerun, by mode: in the loaded phase all that broke a guarantee, later the shortest script of each
    frequent finding."""
    rows = [found.row for found in list_candidates(seen)] if phase == AGAIN else [
        row for row in list_rows(seen) if row.showed] if "series" in seen else []
    return {mode: tuple(dict.fromkeys(row.script for row in rows if row.mode == mode))
            for mode in dict.fromkeys(row.mode for row in rows)}


def tell_again(seen: dict[str, Any]) -> bool:
    """Print how often each finding recurred, and return whether all did so often enough."""
    right = True
    rows = {(row.mode, row.script): row for row in list_rows(seen)}
    for found in list_candidates(seen):
        row, guarantee = rows[found.row.mode, found.row.script], found.guarantee["id"]
        count = row.counts[-1]
        right &= count.is_often(guarantee)
        print(f"{'reproduces' if count.is_often(guarantee) else 'DOES NOT REPRODUCE'}: {row.mode} {guarantee}, "
              f"{count.showed.get(guarantee, 0)} of {count.times} runs of {row.script!r}", flush=True)
    return right


def tell(seen: dict[str, Any]) -> str:
    """The outcomes and the broken guarantees of each script."""
    return "\n".join(f"{row.mode}: {row.script}\n  outcomes: {', '.join(row.ended)}\n  broken: "
                     f"{', '.join(row.broken) or 'nothing'}" for row in list_rows(seen))


if __name__ == "__main__":
    sys.exit(main())
