"""`cancelmark check --cluster`, and `cancelmark explain` of what breaks there: several servers on one database."""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from textwrap import fill
from typing import Any, NamedTuple

from rich.table import Table

from cancelmark.model.check.explore import Watch
from cancelmark.model.cluster.bounds import BOUNDS, DEEP_BOUNDS, LOG_BOUND
from cancelmark.model.cluster.budget import Budget
from cancelmark.model.cluster.flaws import ALL_FLAWS, Flaw, find_history
from cancelmark.model.cluster.log import LOG_PROPERTIES, LogFlaw
from cancelmark.model.cluster.properties import CLUSTER_PROPERTIES, session_properties
from cancelmark.model.cluster.search import ClusterResult, Path, search_cluster, search_log
from cancelmark.model.protocol import Protocol

from ..files import UsageError
from .protocols import protocol_named
from .terminal import output
from .width import columns

MOST = 9
FLAWS_BY_NAME: dict[str, Flaw | LogFlaw] = {flaw.name: flaw for flaw in ALL_FLAWS}
FOREIGN = ("crashes", "sessions")  # bounds of check that a cluster has not

LIVENESS = {p.id for p in (*CLUSTER_PROPERTIES, *LOG_PROPERTIES) if p.reached}
STYLE = {"holds": "green", "violated": "bold red", "incomplete": "yellow", "interrupted": "yellow"}


class Searched(NamedTuple):
    """One search, and what it was of."""

    of: str
    protocol: str
    result: ClusterResult
    seconds: float


def run_cluster(arguments: argparse.Namespace, watch: Watch) -> list[Searched]:
    """The searches that are asked for."""
    for name in ("engine", "reduce", "properties", *FOREIGN):
        if getattr(arguments, name) is not None:
            option = "property" if name == "properties" else name
            raise UsageError(f"--{option}: not with --cluster, which judges everything with one engine")
    given = {f.name: value for f in fields(Budget) if (value := getattr(arguments, f.name)) is not None}
    for name, value in given.items():
        least = {"prompts": 1, "nodes": 1}.get(name, 0)
        if not least <= value <= MOST:
            raise UsageError(f"--{name} {value}: give a number from {least} to {MOST}")
    if arguments.flaw is not None:
        if given or arguments.deep:
            raise UsageError("--flaw: it has bounds of its own; leave out the others")
        return [_timed(arguments.flaw, *_search_flaw(flaw_named(arguments.flaw)))]
    protocol = protocol_named(arguments.protocol)
    if not isinstance(protocol, Protocol):
        raise UsageError(f"--protocol {arguments.protocol}: not with --cluster; give ref, family, or your own")
    if given:
        if arguments.deep:
            raise UsageError(f"--{next(iter(given))}: --deep has bounds of its own; give either")
        budget = Budget(**given)
        return [_timed(str(budget), protocol.name,
                       lambda: search_cluster(budget, protocol=protocol, max_states=arguments.max_states, watch=watch))]
    return list(_search_published(arguments.deep, watch))


def _search_published(deep: bool, watch: Watch) -> Iterator[Searched]:
    for bound in (*BOUNDS, *(DEEP_BOUNDS if deep else ())):
        yield _timed(str(bound.budget), bound.protocol.name,
                     lambda b=bound: search_cluster(b.budget, protocol=b.protocol, watch=watch))  # type: ignore[misc]
    yield _timed(f"log: {LOG_BOUND}", "–", lambda: search_log(LOG_BOUND))


def _search_flaw(flaw: Flaw | LogFlaw) -> tuple[str, Callable[[], ClusterResult]]:
    if isinstance(flaw, LogFlaw):
        return "–", lambda: search_log(flaw.budget, flaw.rules, until=flaw.property)
    return flaw.protocol.name, lambda: search_cluster(flaw.budget, flaw.rules, flaw.protocol, until=flaw.property)


def _timed(of: str, protocol: str, search: Callable[[], ClusterResult]) -> Searched:
    started = time.perf_counter()
    result = search()
    return Searched(of, protocol, result, time.perf_counter() - started)


def verdict_of(searched: list[Searched]) -> str:
    verdicts = [s.result.verdict for s in searched]
    return next((v for v in ("violated", "interrupted", "incomplete") if v in verdicts), "holds")


def report(searched: list[Searched]) -> dict[str, Any]:
    """The searches for programs."""
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
    """The searches for people."""
    console = output()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("bounds", "protocol", "states", "depth", "verdict"):
        table.add_column(heading, justify="right" if heading in ("states", "depth") else "left")
    for s in searched:
        verdict = s.result.verdict
        table.add_row(s.of, s.protocol, f"{s.result.states:,}", str(s.result.depth), f"[{STYLE[verdict]}]{verdict}[/]")
    console.print(table, soft_wrap=False)
    kinds = len(CLUSTER_PROPERTIES) + len(LOG_PROPERTIES)
    console.print(f"\njudged: {kinds} properties of nodes and log, and the {len(session_properties(Protocol('ref')))} "
                  "of a session on every commit")
    for s in searched:
        for id, path in s.result.violations.items():
            hopeless = ", after which it cannot be any more" if id in LIVENESS else ""
            console.print(f"\n[bold red]{id}[/] is violated; a shortest history{hopeless}, {len(path)} steps:")
            console.print(_tell(path), markup=False)
        if s.result.stopped:
            console.print(f"\n[yellow]stopped before the end:[/] {s.result.stopped}; what was not seen may hold or "
                          "not. Lower the bounds or raise the limit.")
    console.print(f"states={sum(s.result.states for s in searched)} edges={sum(s.result.edges for s in searched)} "
                  f"depth={max(s.result.depth for s in searched)} seconds={sum(s.seconds for s in searched):.2f} "
                  f"verdict={verdict_of(searched)}")


def _tell(path: Path) -> str:
    from cancelmark.views.pages.cluster import tell_history

    return tell_history(path)


# --- explain

def flaw_named(name: str) -> Flaw | LogFlaw:
    if name not in FLAWS_BY_NAME:
        raise UsageError(f"--flaw {name}: no such flaw of a cluster; choose one of {', '.join(FLAWS_BY_NAME)}")
    return FLAWS_BY_NAME[name]


def explain_flaw(flaw: Flaw | LogFlaw, form: str) -> str:
    """A flaw of a cluster, told in one of the forms of `explain`."""
    if form == "svg":
        from cancelmark.views.pages.cluster import flaw_svg  # what draws is loaded when it is asked for

        return flaw_svg(flaw)
    path = find_history(flaw)
    if form == "json":
        return json.dumps(flaw_as_data(flaw, path), indent=2, ensure_ascii=False) + "\n"
    if form == "text":
        return tell_flaw(flaw, path)
    raise UsageError(f"explain {flaw.name} --format {form}: a flaw of a cluster is told as text, svg or json")


def tell_flaw(flaw: Flaw | LogFlaw, path: Path) -> str:
    return "\n".join((
        f"{flaw.name}: breaks {flaw.property}; leaves out {flaw.clause} of specs/cluster.md", "",
        fill(flaw.says, min(columns(), 100)), "", f"The shortest history, {len(path)} steps:", "", _tell(path)))


def flaw_as_data(flaw: Flaw | LogFlaw, path: Path | None = None) -> dict[str, Any]:
    known = {"name": flaw.name, "breaks": flaw.property, "clause": flaw.clause, "says": flaw.says}
    return known if path is None else {**known, "calls": path.calls}
