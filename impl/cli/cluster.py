"""`cancelmark check --cluster`: several servers on one database."""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, NamedTuple

from cancelmark.model.check.explore import Watch
from cancelmark.model.cluster.bounds import BOUNDS, DEEP_BOUNDS, LOG_BOUND
from cancelmark.model.cluster.budget import Budget
from cancelmark.model.cluster.flaws import ALL_FLAWS, ClusterFlaw
from cancelmark.model.cluster.log import LOG_PROPERTIES
from cancelmark.model.cluster.properties import CLUSTER_PROPERTIES, session_properties
from cancelmark.model.cluster.search import ClusterResult, Path, search_cluster, search_log
from cancelmark.model.protocol import Protocol

from ..files import UsageError
from .protocols import protocol_named
from .terminal import output, plain_table

MOST = 9
FLAWS_BY_NAME = {flaw.name: flaw for flaw in ALL_FLAWS}
FOREIGN = ("crashes", "sessions")  # bounds of a single server that do not apply to a cluster

LIVENESS = {p.id for p in (*CLUSTER_PROPERTIES, *LOG_PROPERTIES) if p.reached}
STYLE = {"holds": "green", "violated": "bold red", "incomplete": "yellow", "interrupted": "yellow"}


class Searched(NamedTuple):
    """One search, with its bounds or flaw, and its protocol."""

    of: str
    protocol: str
    result: ClusterResult
    seconds: float


def run_cluster(arguments: argparse.Namespace, watch: Watch) -> list[Searched]:
    """Runs the searches that the arguments select."""
    for name in ("engine", "reduce", "properties", *FOREIGN):
        if getattr(arguments, name) is not None:
            option = "property" if name == "properties" else name
            raise UsageError(f"--{option} and --cluster are mutually exclusive: --cluster checks every property with "
                             "its own engine")
    given = {f.name: value for f in fields(Budget) if (value := getattr(arguments, f.name)) is not None}
    for name, value in given.items():
        least = {"prompts": 1, "nodes": 1}.get(name, 0)
        if not least <= value <= MOST:
            raise UsageError(f"--{name.replace('_', '-')} {value}: must be from {least} to {MOST}")
    if arguments.flaw is not None:
        if given or arguments.deep:
            raise UsageError("--flaw sets its own bounds; omit --deep and the bound options")
        flaw = flaw_named(arguments.flaw)
        return [_timed(flaw.name, flaw.protocol.name if flaw.protocol else "–", flaw.search)]
    protocol = protocol_named(arguments.protocol)
    if not isinstance(protocol, Protocol):
        raise UsageError(f"--protocol {arguments.protocol}: --cluster supports only ref, family and your own protocols")
    if given:
        if arguments.deep:
            raise UsageError(f"--{next(iter(given)).replace('_', '-')} and --deep are mutually exclusive: --deep sets "
                             "all bounds")
        budget = Budget(**given)
        return [_timed(str(budget), protocol.name,
                       lambda: search_cluster(budget, protocol=protocol, max_states=arguments.max_states, watch=watch))]
    return list(_search_published(arguments.deep, watch))


def _search_published(deep: bool, watch: Watch) -> Iterator[Searched]:
    for bound in (*BOUNDS, *(DEEP_BOUNDS if deep else ())):
        yield _timed(str(bound.budget), bound.protocol.name,
                     lambda b=bound: search_cluster(b.budget, protocol=b.protocol, watch=watch))  # type: ignore[misc]
    yield _timed(f"log: {LOG_BOUND}", "–", lambda: search_log(LOG_BOUND))


def _timed(of: str, protocol: str, search: Callable[[], ClusterResult]) -> Searched:
    started = time.perf_counter()
    result = search()
    return Searched(of, protocol, result, time.perf_counter() - started)


def verdict_of(searched: list[Searched]) -> str:
    verdicts = [s.result.verdict for s in searched]
    return next((v for v in ("violated", "interrupted", "incomplete") if v in verdicts), "holds")


def report(searched: list[Searched]) -> dict[str, Any]:
    """The searches as data for `--json`."""
    return {
        "verdict": verdict_of(searched),
        "properties": [{"id": p.id, "kind": p.kind.value, "sentence": p.sentence}
                       for p in (*CLUSTER_PROPERTIES, *LOG_PROPERTIES)],
        "searches": [
            {"of": s.of, "protocol": s.protocol, "states": s.result.states, "edges": s.result.edges,
             "depth": s.result.depth, "seconds": round(s.seconds, 3), "verdict": s.result.verdict,
             "stopped": s.result.stopped,
             "violations": {id: path.calls for id, path in s.result.violations.items()}} for s in searched],
    }


def show(searched: list[Searched]) -> None:
    """Prints the searches as a table, with a counterexample for each violation."""
    console = output()
    table = plain_table("bounds", "protocol", "states", "depth", "verdict", right=("states", "depth"))
    for s in searched:
        verdict = s.result.verdict
        table.add_row(s.of, s.protocol, f"{s.result.states:,}", str(s.result.depth), f"[{STYLE[verdict]}]{verdict}[/]")
    console.print(table, soft_wrap=False)
    kinds = len(CLUSTER_PROPERTIES) + len(LOG_PROPERTIES)
    console.print(f"\nchecked: {kinds} properties of nodes and log, and the "
                  f"{len(session_properties(Protocol('ref')))} of a session at every commit")
    for s in searched:
        for id, path in s.result.violations.items():
            hopeless = ", after which the property can no longer hold" if id in LIVENESS else ""
            console.print(f"\n[bold red]{id}[/] is violated; a shortest trace{hopeless}, {len(path)} steps:")
            console.print(_tell(path), markup=False)
        if s.result.stopped:
            console.print(f"\n[yellow]search stopped early:[/] {s.result.stopped}; unexplored states may violate a "
                          "property. Lower the bounds or raise the limit.")
    console.print(f"states={sum(s.result.states for s in searched)} edges={sum(s.result.edges for s in searched)} "
                  f"depth={max(s.result.depth for s in searched)} seconds={sum(s.seconds for s in searched):.2f} "
                  f"verdict={verdict_of(searched)}")


def _tell(path: Path) -> str:
    from cancelmark.views.pages.cluster import tell_history

    return tell_history(path)


def flaw_named(name: str) -> ClusterFlaw:
    if name not in FLAWS_BY_NAME:
        raise UsageError(f"--flaw {name}: no such cluster flaw; choose one of {', '.join(FLAWS_BY_NAME)}")
    return FLAWS_BY_NAME[name]
