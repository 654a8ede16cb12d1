"""The findings of a review as plain data. Each piece can be computed in its own process."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from cancelmark.model import revisions
from cancelmark.model.actions import Variant
from cancelmark.model.check.explore import explore_fully
from cancelmark.model.delivery import DELIVERY, LOGGED, LOSSY
from cancelmark.model.examples import EXAMPLES
from cancelmark.model.properties import PROPERTIES, Bounds
from cancelmark.model.revisions.flaws import DISPATCH, FLAWS
from cancelmark.model.revisions.matrix import ANY, DELIVERY_BOUNDS, JUDGED, NAMED, PackedColumn, Profile, column
from cancelmark.views.states.levels import Level, count_levels
from cancelmark.views.traces.text import trace_text

from ..check import DEFAULT_BOUNDS, verdict_of
from ..protocols import known_protocols
from .dressing import PackedGraph, pack_graph
from .whatif import CHANGES, ChangeFindings, search_change
from .workers import Workers

REF = "ref"
DELIVERIES = (LOGGED, LOSSY)
REVISIONS = tuple(revision.name for revision in revisions.REVISIONS)

# --- the bounds within which the reference is checked

CHECKED = (DEFAULT_BOUNDS, Bounds(3, cancels=1, clears=1, sessions=2))
GROWTH: Mapping[str, tuple[Bounds, ...]] = {
    name: tuple(Bounds(prompts, cancels=cancels) for prompts in range(1, 5))
    for cancels, name in enumerate(("no cancel", "1 cancel", "2 cancels"))}
LEVELS_PROFILE = Profile(Bounds(3, cancels=2, clears=1), ANY, "states of prompts by depth")

# --- the bounds of the explorer

POSTED: tuple[Variant, ...] = (False, True)
ANONYMOUS: tuple[Variant, ...] = (False,)  # r0 has the most steps: its graph is large enough with one kind of prompt
PLAYED: Mapping[str, tuple[Profile, ...]] = {
    **{name: (
        Profile(Bounds(2, cancels=1), ANONYMOUS if name == "r0" else POSTED, "two prompts and a cancel"),
        Profile(Bounds(2, cancels=1, clears=1), NAMED, "two prompts with run ids, a cancel and a clear_queue"),
        Profile(Bounds(2, requeues=1), NAMED, "a turn that resumes after compaction"),
        Profile(Bounds(2, closes=1), NAMED, "a shutdown"),
        Profile(Bounds(1, cancels=1, clears=1, requeues=1, closes=1), ANY, "one prompt of any kind, every action"),
    ) for name in REVISIONS},
    REF: (Profile(Bounds(3, cancels=3, clears=1, requeues=1, crashes=1, closes=1), ANY, "three prompts of any kind"),),
}
TWO_SESSIONS = Profile(Bounds(2, cancels=2, clears=1, crashes=1, closes=1, sessions=2), ANY, "two sessions")


@dataclass(frozen=True)
class Checked:
    """One search of the reference within bounds."""

    bounds: Bounds
    states: int
    levels: list[int]
    verdict: str
    verdicts: dict[str, str]  # by property id
    traces: dict[str, str]  # by violated property: the counterexample as text
    possible: int  # rows, outcomes and actions that the bounds allow
    unmet: list[str]  # those never reached


@dataclass(frozen=True)
class ProtocolFindings:
    """One protocol: its verdicts, its state graph, and traces as walks in the graph."""

    name: str
    column: PackedColumn
    cells: dict[str, str]  # by property id: `holds`, `fails 4`, or `–`
    graph: PackedGraph
    counterexamples: dict[str, list[int]]
    flaws: dict[str, list[int]]  # the flaws whose latest revision this is
    examples: dict[str, list[int]]  # of the reference, with one session


@dataclass(frozen=True)
class SessionsFindings:
    """The reference with two sessions."""

    graph: PackedGraph
    examples: dict[str, list[int]]


@dataclass(frozen=True)
class DeliveryFindings:
    """One delivery model."""

    name: str
    graph: PackedGraph
    searched: int
    counterexample: list[int] | None
    flaws: dict[str, list[int]]


@dataclass(frozen=True)
class Findings:
    """All findings of a review."""

    checked: dict[Bounds, Checked]
    chapters: dict[str, ProtocolFindings]
    sessions: SessionsFindings
    delivered: dict[str, DeliveryFindings]
    levels: list[Level]
    changed: dict[str, ChangeFindings]

    @property
    def wrong(self) -> list[str]:
        """Every failed check, in words."""
        return [
            *(f"{id} is violated within {c.bounds}" for c in self.checked.values() for id in c.traces),
            *(f"{goal} is never reached within {c.bounds}" for c in self.checked.values() for goal in c.unmet),
            *(f"{id} is violated within the bounds of the matrix" for id, cell in self.chapters[REF].cells.items()
              if cell.startswith("fails")),
            *(f"the flaw {flaw.name} was not found in {flaw.latest}" for flaw in FLAWS if flaw.name not in self.flaws),
        ]

    @property
    def flaws(self) -> dict[str, tuple[str, list[int]]]:
        """The flaws that were found: for each, the protocol and the walk in its graph."""
        parts = [*((c.name, c.flaws) for c in self.chapters.values()),
                 *((d.name, d.flaws) for d in self.delivered.values())]
        return {flaw: (protocol, walk) for protocol, flaws in parts for flaw, walk in flaws.items()}

    @property
    def states(self) -> int:
        """The states of all searches; a state that several searches share counts for each."""
        return (sum(c.states for c in self.checked.values()) + sum(c.column.states for c in self.chapters.values())
                + sum(d.searched for d in self.delivered.values()) + sum(c.states for c in self.changed.values()))


# --- computing

def check(bounds: Bounds) -> Checked:
    result = explore_fully(known_protocols()[REF], bounds)
    return Checked(
        bounds, result.states, result.levels, result.verdict,
        {p.id: verdict_of(result, p) for p in PROPERTIES},
        {id: trace_text(trace) for id, trace in result.violations.items()},
        sum(g.possible for g in result.goals), result.unmet)


def chapter(name: str) -> ProtocolFindings:
    verdicts = column(known_protocols()[name])
    flaws = {flaw.name: trace for flaw in FLAWS if flaw.latest == name and flaw.breaks != DELIVERY.id
             and (trace := flaw.trace(name))}
    broken = {id: trace for id, trace in verdicts.violations.items()
              if id != DELIVERY.id and len(trace.start.sessions) == 1}
    examples = {e.name: e.trace for e in EXAMPLES if e.sessions == 1} if name == REF else {}
    behaviour = known_protocols()[name] if name == REF else DISPATCH[name]
    graph, walks = pack_graph(behaviour, PLAYED[name], [*broken.values(), *flaws.values(), *examples.values()])
    told = iter(walks)
    return ProtocolFindings(
        name, verdicts.pack(known_protocols()[name]), {p.id: verdicts.cell(p.id) for p in JUDGED}, graph,
        {id: next(told) for id in broken}, {flaw: next(told) for flaw in flaws},
        {example: next(told) for example in examples})


def two_sessions() -> SessionsFindings:
    examples = {e.name: e.trace for e in EXAMPLES if e.sessions == 2}
    graph, walks = pack_graph(known_protocols()[REF], [TWO_SESSIONS], list(examples.values()), sessions=2)
    return SessionsFindings(graph, dict(zip(examples, walks)))


def delivery(way: str) -> DeliveryFindings:
    behaviour = {d.name: d for d in DELIVERIES}[way]
    result = explore_fully(behaviour, DELIVERY_BOUNDS, properties=[DELIVERY])
    flaws = {flaw.name: trace for flaw in FLAWS if flaw.behaviour(flaw.latest) == behaviour
             and (trace := flaw.trace(flaw.latest))}
    graph, walks = pack_graph(behaviour, [Profile(DELIVERY_BOUNDS, (None,), "a subscriber that disconnects")],
                          [*result.violations.values(), *flaws.values()])
    told = iter(walks)
    return DeliveryFindings(way, graph, result.states, next(told) if result.violations else None,
                     {name: next(told) for name in flaws})


def count_reference_levels() -> list[Level]:
    return count_levels(known_protocols()[REF], LEVELS_PROFILE)


def compute_findings(workers: Workers) -> Findings:
    """Computes all findings, starting with the longest pieces."""
    largest, *others = CHECKED
    smaller = sorted({*others, *chain.from_iterable(GROWTH.values())}, key=lambda b: (-b.prompts, -b.cancels))
    checked = {largest: workers.begin(check, largest)}
    chapters = {name: workers.begin(chapter, name) for name in ("r0", "r4", "r2", "r3", "r1", REF)}
    checked |= {bounds: workers.begin(check, bounds) for bounds in smaller}
    sessions, levels = workers.begin(two_sessions), workers.begin(count_reference_levels)
    delivered = {way.name: workers.begin(delivery, way.name) for way in DELIVERIES}
    changed = {id: workers.begin(search_change, id) for id in CHANGES}
    return Findings(
        {bounds: found() for bounds, found in checked.items()}, {name: chapters[name]() for name in (*REVISIONS, REF)},
        sessions(), {name: found() for name, found in delivered.items()}, levels(),
        {id: found() for id, found in changed.items()})
