"""`cancelmark check`: every interleaving within bounds, checked against every property."""

import argparse
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, NamedTuple

from cancelmark.model.check.explore import (
    ENGINES,
    Engine,
    NoEngine,
    Progress,
    Reduction,
    Result,
    Watch,
    engine_for,
    misses_fast_engine,
)
from cancelmark.model.check.plain import gc_disabled
from cancelmark.model.cluster.budget import Budget
from cancelmark.model.family import Feature
from cancelmark.model.family_properties import properties_for
from cancelmark.model.properties import Bounds, Property
from cancelmark.model.protocol import Behaviour
from cancelmark.model.trace import Trace, call_text

from ..files import UsageError
from .protocols import REMEDY, add_protocol, errors_as_usage, protocol_named
from .text import print_json

DEFAULT_BOUNDS = Bounds(3, cancels=2, clears=1, requeues=1, crashes=1, closes=1)
FAMILY_BOUNDS = Bounds(2, cancels=1, requeues=1, revokes=1, stops=1, holds=1, replaces=1, nexts=1)
DEEP_BOUNDS = Bounds(5, cancels=2, clears=1, requeues=1, crashes=1, closes=1, sessions=2)
FAMILY_DEEP_BOUNDS = Bounds(2, cancels=2, clears=1, requeues=1, crashes=1, closes=1, revokes=2, stops=2, holds=2,
                            replaces=1, nexts=2, sessions=2)
MAX_STATES, MAX_STATES_DEEP = 20_000_000, 200_000_000

# name, largest sensible value, help text
BOUND_OPTIONS = tuple((bound.name, bound.metadata["most"], bound.metadata["says"]) for bound in fields(Bounds))
# The bounds that apply only to a cluster.
CLUSTER_BOUNDS = tuple(bound for bound in fields(Budget) if bound.name not in {name for name, _, _ in BOUND_OPTIONS})

DESCRIPTION = f"""\
Explore every reachable state within bounds and check every property in each.

Bounds limit what callers, turns and faults do; the server's own actions are never limited. Without bound options, the
check uses {DEFAULT_BOUNDS};
for a protocol with optional calls (family), {FAMILY_BOUNDS}.
If any bound is given, the others default to 0 (sessions: 1).
--deep uses {DEEP_BOUNDS};
for the family, {FAMILY_DEEP_BOUNDS}. With the feature ask, asks=1, and with --deep asks=2.
It also applies every reduction that the protocol allows.

Two engines give the same result. The plain engine is the definition. The fast engine is compiled on first use, with the
system's C compiler or the one that pip install 'cancelmark[fast]' installs; by default it runs only when the search is
large enough to repay loading it. It can also apply reductions, which explore fewer states without changing a verdict.
The output names the reductions in use, and the counts are those of the reduced search.
  finished      forget finished prompts
  symmetry      treat states that differ only in the order of sessions as one
  commuting     if a step commutes with all others, explore only that one; traces may be longer than the shortest (not
                for a protocol with next or replace)

The last line is  states=… edges=… depth=… seconds=… verdict=…  with one of the verdicts
  holds         every state was explored, every property holds, and every transition, outcome and action was reached
  violated      a property is violated (a shortest trace is printed), or a transition, outcome or action was never
                reached; exit 1
  incomplete    a limit stopped the search: the result is inconclusive; exit 2
  interrupted   Ctrl-C stopped the search: the result is inconclusive; exit 130
"""

EPILOG = """\
examples:
  cancelmark check
  cancelmark check --prompts 4 --cancels 2 --clears 1
  cancelmark check --prompts 3 --cancels 1 --sessions 2 --property isolation
  cancelmark check --prompts 2 --crashes 1 --json
  cancelmark check --deep
  cancelmark check --protocol family:revoke,hold --prompts 2 --revokes 1 --holds 1
  cancelmark check --protocol seeded:the-mark-is-one-too-high
  cancelmark check --protocol mine.py:KEEP --prompts 2 --cancels 1
  cancelmark check --prompts 4 --cancels 2 --sessions 2 --reduce finished,symmetry
  cancelmark check --cluster
  cancelmark check --cluster --prompts 2 --cancels 1 --expiries 1 --doubts 1
  cancelmark check --cluster --flaw message-unfenced
"""

EXIT = {"holds": 0, "violated": 1, "incomplete": 2, "interrupted": 130}


def add_options(parser: argparse.ArgumentParser) -> None:
    bounds = parser.add_argument_group("bounds")
    for name, most, meaning in BOUND_OPTIONS:
        bounds.add_argument(f"--{name}", type=int, metavar="N", help=f"{meaning} (at most {most})")
    bounds.add_argument("--deep", action="store_true", help="use the largest bounds (takes a minute or more)")
    add_protocol(parser)
    parser.add_argument("--property", action="append", metavar="ID", dest="properties",
                        help="check only this property; may be repeated")
    how = parser.add_argument_group("engine")
    how.add_argument("--engine", metavar="NAME", help=f"{' or '.join(ENGINES)} (default: the faster one)")
    how.add_argument("--reduce", metavar="NAMES",
                     help=f"all, none, or some of {','.join(r.value for r in Reduction)} (default: none; deep: all)")
    limits = parser.add_argument_group("limits")
    limits.add_argument("--max-states", type=int, metavar="N",
                        help=f"stop after this many states (default: {MAX_STATES:,}; deep: {MAX_STATES_DEEP:,})")
    limits.add_argument("--max-memory", type=int, default=4096, metavar="MIB",
                        help="stop when the process uses more memory than this (default: 4096 MiB)")
    add_cluster_options(parser)
    parser.add_argument("--json", action="store_true", help="report as JSON")


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "cluster", "With --cluster: explore two nodes on one database within the bounds of specs/cluster.md, or within "
        "the bounds given here and above.")
    group.add_argument("--cluster", action="store_true", help="check a cluster: several servers on one database")
    group.add_argument("--flaw", metavar="NAME",
                       help="remove a safeguard and show what breaks (`cancelmark explain` lists them)")
    for bound in CLUSTER_BOUNDS:
        name, says = f"--{bound.name.replace('_', '-')}", str(bound.metadata["says"])
        if bound.type is bool:
            group.add_argument(name, action="store_const", const=True, help=says)
        else:
            group.add_argument(name, type=int, metavar="N", help=says)


@gc_disabled()  # not after the search either: a collection would traverse every state and free nothing
def run(arguments: argparse.Namespace) -> int:
    max_states = arguments.max_states
    if max_states is None:
        max_states = MAX_STATES_DEEP if arguments.deep else MAX_STATES
    for name, value in (("max-states", max_states), ("max-memory", arguments.max_memory)):
        if value < 1:
            raise UsageError(f"--{name} {value}: must be at least 1")
    if arguments.cluster:
        return check_cluster(arguments)
    for name in ("flaw", *(bound.name for bound in CLUSTER_BOUNDS)):
        if getattr(arguments, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} requires --cluster")
    protocol = protocol_named(arguments.protocol)
    properties = properties_named(arguments.properties, protocol)
    engine = engine_named(protocol, arguments, properties)

    if arguments.engine is None and misses_fast_engine(protocol, bounds_of(arguments, protocol)):
        print("cancelmark: the plain engine will take more than ten seconds; the fast engine is about 20 times faster: "
              "pip install 'cancelmark[fast]'", file=sys.stderr)
    before = peak_memory()
    started, processor = time.perf_counter(), time.process_time()
    with errors_as_usage(protocol), watching(max_memory=arguments.max_memory) as watch:
        result = engine.search(max_states, watch)
    cost = Cost(time.perf_counter() - started, time.process_time() - processor,
                (peak_memory() - before) / result.states)

    if arguments.json:
        print_json(report(result, properties, cost))
    else:
        show(result, properties, cost)
    return EXIT[result.verdict]


def check_cluster(arguments: argparse.Namespace) -> int:
    from . import cluster  # a separate model, loaded on demand

    with watching("exploring the cluster", arguments.max_memory) as watch:
        searched = cluster.run_cluster(arguments, watch)
    if arguments.json:
        print_json(cluster.report(searched))
    else:
        cluster.show(searched)
    return EXIT[cluster.verdict_of(searched)]


class Cost(NamedTuple):
    """The cost of a search in wall-clock time, processor time and memory."""

    seconds: float
    processor_seconds: float
    bytes_per_state: float


# --- input

def engine_named(protocol: Behaviour, arguments: argparse.Namespace, properties: Sequence[Property]) -> Engine:
    """The engine that the arguments select, ready to search."""
    bounds = bounds_of(arguments, protocol)
    if arguments.engine not in (*ENGINES, None):
        raise UsageError(f"--engine {arguments.engine}: no such engine; choose {' or '.join(ENGINES)}")
    reductions = reductions_named(arguments.reduce or ("all" if arguments.deep else "none"))
    if reductions and arguments.engine == "plain":
        raise UsageError("--engine plain supports no reductions; omit --engine, or give --reduce none")
    try:
        return engine_for(protocol, bounds, properties, reductions, arguments.engine)
    except NoEngine as reason:
        raise UsageError(str(reason)) from reason


def reductions_named(names: str) -> frozenset[Reduction]:
    if names in ("all", "none"):
        return frozenset(Reduction if names == "all" else ())
    known = {r.value: r for r in Reduction}
    for name in names.split(","):
        if name not in known:
            raise UsageError(f"--reduce {name}: no such reduction; choose all, none or some of {', '.join(known)}")
    return frozenset(known[name] for name in names.split(","))


def properties_named(names: Sequence[str] | None, protocol: Behaviour) -> list[Property]:
    known = {p.id: p for p in properties_for(protocol)}
    for name in names or ():
        if name not in known:
            raise UsageError(f"--property {name}: no such property; choose one of {', '.join(known)}")
    return [known[name] for name in names or known]


def bounds_of(arguments: argparse.Namespace, protocol: Behaviour) -> Bounds:
    default, deep = DEFAULT_BOUNDS, DEEP_BOUNDS
    if getattr(protocol, "features", ()):
        default, deep = FAMILY_BOUNDS, FAMILY_DEEP_BOUNDS
    if Feature.ASK in getattr(protocol, "features", ()):
        default, deep = replace(default, asks=1), replace(deep, asks=2)
    given = {name: getattr(arguments, name) for name, _, _ in BOUND_OPTIONS if getattr(arguments, name) is not None}
    for name, most, _ in BOUND_OPTIONS:
        least = 1 if name in ("prompts", "sessions") else 0
        if name in given and not least <= given[name] <= most:
            raise UsageError(f"--{name} {given[name]}: must be from {least} to {most}")
    if arguments.deep:
        if given:
            raise UsageError(f"--{next(iter(given))} and --deep are mutually exclusive: --deep sets all bounds")
        return deep
    return Bounds(**given) if given else default


# --- watching

def peak_memory() -> int:
    """The peak memory of this process so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@contextmanager
def watching(describe: str = "exploring", max_memory: int = 4096) -> Iterator[Watch]:
    """A watcher that stops the search at the memory limit and, on a terminal, shows its progress."""
    def watch(progress: Progress) -> str | None:
        show_progress(progress)
        if peak_memory() > max_memory << 20:
            return f"more than {max_memory:,} MiB of memory"
        return None

    with showing(describe) as show_progress:
        yield watch


@contextmanager
def showing(describe: str) -> Iterator[Callable[[Progress], None]]:
    """Shows the progress of a search on a terminal."""
    if not sys.stderr.isatty():
        yield lambda progress: None
        return
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    from .terminal import progress_bar

    started = time.perf_counter()
    bar = progress_bar(SpinnerColumn(), TextColumn(describe), TextColumn("{task.fields[figures]}"), TimeElapsedColumn())
    task = bar.add_task(describe, total=None, figures="")

    def show_progress(progress: Progress) -> None:
        rate = progress.states / max(1e-9, time.perf_counter() - started)
        whole = f" of about {_round_estimate(progress.estimate)}" if progress.estimate else ""
        bar.update(task, figures=f"{progress.states:,}{whole} states  frontier {progress.frontier:,}  "
                                 f"depth {progress.depth}  {rate:,.0f} states/s")

    with bar:
        yield show_progress


def _round_estimate(estimate: int) -> str:
    """Two significant digits: an estimate is no more precise."""
    return f"{int(float(f'{estimate:.1e}')):,}"


# --- output

def verdict_of(result: Result, property: Property) -> str:
    if property.id in result.violations:
        return "violated"
    if result.bounds.sessions == 1 and property.id == "isolation":
        return "–"  # one session: nothing to isolate
    return "unknown" if result.stopped else "holds"


def not_tried(result: Result) -> list[str]:
    """The actions that the bounds exclude, each with the option that allows it. The verdicts do not cover them."""
    return [f"{action.name} (--{action.bound})" for action in result.protocol.actions
            if action.bound and not getattr(result.bounds, action.bound)]


def report(result: Result, properties: Sequence[Property], cost: Cost) -> dict[str, Any]:
    """The result for programs."""
    def calls(trace: Trace) -> dict[str, Any]:
        told = [call_text(step.call, len(trace.start.sessions)) for step in trace.steps]
        return {"length": len(trace), "calls": told, "loop": trace.loop}

    return {
        "protocol": result.protocol.name, "revision": result.protocol.name, "bounds": vars(result.bounds),
        "not_tried": not_tried(result), "engine": result.engine, "reductions": reductions_of(result),
        "states": result.states, "edges": result.edges, "depth": result.depth, "seconds": round(cost.seconds, 3),
        "processor_seconds": round(cost.processor_seconds, 3),
        "states_per_second": round(result.states / cost.seconds), "bytes_per_state": round(cost.bytes_per_state),
        "verdict": result.verdict, "stopped": result.stopped, "states_by_depth": result.levels,
        "properties": [
            {"id": p.id, "kind": p.kind.value, "sentence": p.sentence, "verdict": verdict_of(result, p),
             "counterexample": calls(result.violations[p.id]) if p.id in result.violations else None}
            for p in properties],
        "goals": [
            {"id": g.id, "possible": g.possible, "met": g.id in result.met,
             "witness": calls(result.met[g.id]) if g.id in result.met else None}
            for g in result.goals],
    }


def reductions_of(result: Result) -> list[str]:
    return [r.value for r in Reduction if r in result.reductions]


STYLE = {"holds": "green", "violated": "bold red", "unknown": "yellow", "–": "dim"}


def show(result: Result, properties: Sequence[Property], cost: Cost) -> None:
    """The result for people."""
    from rich.markup import escape

    from .terminal import output, plain_table

    console = output()
    missing = not_tried(result)
    left_out = f"\nnot explored, because the bound is 0: {', '.join(missing)}" if missing else ""
    console.print(f"protocol {result.protocol.name}, bounds: {result.bounds}{left_out}\n", markup=False)
    table = plain_table("property", "verdict", "what it says", wrapped=["what it says"])
    for p in properties:
        verdict = verdict_of(result, p)
        table.add_row(p.id, f"[{STYLE[verdict]}]{verdict}[/]", p.sentence)
    console.print(table, soft_wrap=False)

    possible = [g.id for g in result.goals if g.possible]
    more = len(result.goals) - len(possible)
    wider = f" ({more} more need wider bounds)" if more else ""
    if possible:
        console.print(f"\nreachability: {sum(g in result.met for g in possible)} of {len(possible)} transitions, "
                      f"outcomes and actions reached{wider}")
    for goal in result.unmet:
        console.print(f"  [bold red]never reached:[/] {goal}")
    for id, trace in result.violations.items():
        from cancelmark.views.traces.text import trace_text

        shortest = "trace" if Reduction.COMMUTING in result.reductions else "shortest trace"
        console.print(f"\n[bold red]{id}[/] is violated; a {shortest}, {len(trace)} steps:")
        console.print(trace_text(trace), markup=False)
    if result.stopped:
        remedy = REMEDY if result.broken else "Lower the bounds or raise the limit."
        console.print(f"\n[yellow]search stopped early:[/] {escape(result.stopped)}; unexplored states may violate a "
                      f"property. {remedy}")
    if result.reductions:
        console.print(f"reduced by {', '.join(reductions_of(result))}: the counts are those of the reduced search")
    console.print(f"{result.states / cost.seconds:,.0f} states/s, {cost.bytes_per_state:,.0f} bytes per state, "
                  f"{result.engine} engine")
    console.print(f"states={result.states} edges={result.edges} depth={result.depth} seconds={cost.seconds:.2f} "
                  f"verdict={result.verdict}")
