"""Installs the agents and servers of agents.toml, judges each, and writes specs/field/: a page each, and one table.

Installations are kept in a cache. An agent that cannot be installed or started here is skipped, with the reason.
"""

import argparse
import json
import os
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

from examples.field.agents import CACHE, Listed, Skipped, install, read_list
from examples.field.plays import MODES, SCRIPTS, busy, play
from examples.field.report import list_rows, page, table

TABLE = "README.md"


def main() -> int:
    agents = read_list()
    parser = argparse.ArgumentParser(prog="python -m examples.field", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"of {', '.join(agents)} (default: all)")
    parser.add_argument("--mode", choices=MODES, help="polite or free alone; of a server, one of the others")
    parser.add_argument("--script", action="append", help="play this, print what shows, and write nothing")
    parser.add_argument("--json", action="store_true", help="with --script: print the whole report, for programs")
    parser.add_argument("--times", type=int, default=5, help="that each script is played (default: %(default)s)")
    parser.add_argument("--busy", type=int, default=2 * (os.cpu_count() or 1), metavar="N",
                        help="processes that load the machine when what showed is played again (default: %(default)s)")
    parser.add_argument("--cache", type=Path, default=CACHE, help="for installations (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, default=Path("specs/field"), help="(default: %(default)s)")
    options = parser.parse_args()
    if unknown := set(options.names) - set(agents):
        parser.error(f"there is no agent {sorted(unknown)[0]} in the list; choose from {', '.join(agents)}")
    options.cache.mkdir(parents=True, exist_ok=True)
    options.output.mkdir(parents=True, exist_ok=True)
    for name in options.names or agents:
        try:
            seen = judge_agent(agents[name], options)
        except Skipped as why:
            seen = {"package": agents[name].package, "skipped": str(why)}
        print(f"{name}: {'judged' if 'reports' in seen else 'skipped: ' + seen['skipped']}", file=sys.stderr)
        if options.script:
            print(json.dumps(seen, indent=2) if options.json else tell(seen))
            continue
        (options.cache / f"{name}.json").write_text(json.dumps(seen))
    if not options.script:
        write_pages(agents, options.cache, options.output)
    return 0


def tell(seen: dict[str, Any]) -> str:
    """How the prompts of each script ended, and what showed; or why nothing was played."""
    if "skipped" in seen:
        return f"skipped: {seen['skipped']}"
    return "\n".join(f"{row.mode}: {row.script}\n  ends: {', '.join(row.ended)}\n  did not hold: "
                     f"{', '.join(row.broken) or 'nothing'}" for row in list_rows(seen))


def write_pages(agents: dict[str, Listed], cache: Path, output: Path) -> None:
    """Of all that were tried, now or before, as the list has them."""
    judged: dict[str, tuple[Listed, dict[str, Any]]] = {}
    skipped: dict[str, str] = {}
    for name, agent in agents.items():
        file = cache / f"{name}.json"
        seen = json.loads(file.read_text()) if file.exists() else {}
        if seen.get("package") != agent.package:
            skipped[name] = "not tried yet"
        elif "reports" in seen:
            judged[name] = agent, seen
            (output / f"{name}.md").write_text(page(agent, seen))
        else:
            skipped[name] = seen["skipped"]
    (output / TABLE).write_text(table(judged, skipped))


def judge_agent(agent: Listed, options: argparse.Namespace) -> dict[str, Any]:
    """The reports by mode: on the machine as it is, and what showed there once more on a loaded one."""
    programs = install(agent, options.cache)
    machine = {"cores": os.cpu_count() or 1, "load": os.getloadavg()[0], "busy": options.busy}
    scripts = SCRIPTS[agent.judge]
    if not (modes := [mode for mode in scripts if options.mode in (None, mode)]):
        raise Skipped(f"it is judged in the modes {', '.join(scripts)}")
    with tempfile.TemporaryDirectory(prefix="cancelmark-field-") as files:
        def judge(mode: str, played: tuple[str, ...]) -> dict[str, Any]:
            return play(agent, programs, mode, Path(files), options.times, played)

        reports = {mode: judge(mode, tuple(options.script or scripts[mode])) for mode in modes}
        showed = {mode: tuple(each["script"] for each in report["scripts"] if each["showed"])
                  for mode, report in reports.items()}
        with busy(options.busy):
            loaded = {mode: judge(mode, again) for mode, again in showed.items() if again}
    return {"package": agent.package, "day": date.today().isoformat(), "machine": machine, "reports": reports,
            "loaded": loaded}


if __name__ == "__main__":
    sys.exit(main())
