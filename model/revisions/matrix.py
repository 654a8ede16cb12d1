"""The verdict matrix: every revision against every property, and what each revision fixed and introduced.

Each revision is explored within a few *profiles*. A profile is a set of prompt kinds and bounds. The profiles are small
and together they violate every property that a revision can violate. A cell reads "holds" if no profile violates the
property; otherwise it has the shortest counterexample of all profiles. The reference is explored within the same
bounds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ..actions import Variant
from ..check.explore import Result, Watch, explore_fully
from ..check.graph import spend
from ..delivery import DELIVERY, delivery_of
from ..properties import PROPERTIES, Bounds
from ..protocol import REFERENCE, Behaviour, Protocol
from ..revisions import REVISIONS
from ..server import Call
from ..trace import Trace, positions, retraced
from .flaws import FLAWS
from .machine import Revision


@dataclass(frozen=True)
class Profile:
    """The calls that a search allows."""

    bounds: Bounds
    accepts: tuple[Variant, ...]  # kinds of prompt
    why: str

    def spend(self, spent: tuple[int, ...], call: Call) -> tuple[int, ...] | None:
        """How much of the bounds is spent after a call, or None if the profile rules the call out."""
        refused = call.action.bound == "prompts" and call.variant not in self.accepts
        return None if refused else spend(self.bounds, spent, call)


ANY: tuple[Variant, ...] = (False, True, "in process")
NAMED: tuple[Variant, ...] = (True,)
INSIDE: tuple[Variant, ...] = ("in process",)

PROFILES: tuple[Profile, ...] = (
    Profile(Bounds(2, cancels=1), ANY, "two prompts of any kind and a cancel"),
    Profile(Bounds(2, cancels=1, clears=1), NAMED, "two prompts with run ids, a cancel and a clear_queue"),
    Profile(Bounds(3), NAMED, "three prompts with run ids: ordering and concurrency"),
    Profile(Bounds(2, requeues=1), NAMED, "two prompts with run ids, and a turn that resumes after compaction"),
    Profile(Bounds(1, cancels=1, requeues=1), NAMED, "a turn that resumes after compaction, and a cancel"),
    Profile(Bounds(2, cancels=1, requeues=1), NAMED, "two prompts, a turn that resumes after compaction, and a cancel"),
    Profile(Bounds(2, clears=1, requeues=1), INSIDE, "two in-process prompts, compaction and a clear_queue"),
    Profile(Bounds(2, closes=1), NAMED, "two prompts with run ids and a shutdown"),
)


REFERENCE_PROFILE = Profile(Bounds(2, cancels=1, closes=1, sessions=2), ANY, "the reference only: two sessions")

# Properties that do not apply: in the models of the revisions sessions are isolated and prompts cannot be lost by
# construction, r0 cancels no prompt on entry, and only r4 has a close.
SILENT: Mapping[str, tuple[str, ...]] = {
    "isolation": ("r0", "r1", "r2", "r3", "r4"),
    "no-loss": ("r0", "r1", "r2", "r3", "r4"),
    "record": ("r0",),
    "closed": ("r0", "r1", "r2", "r3"),
}

DELIVERY_BOUNDS = Bounds(2, crashes=1)  # two prompts, and a subscriber that disconnects once
JUDGED = (*PROPERTIES, DELIVERY)


@dataclass(frozen=True)
class Column:
    """One protocol's verdicts, including that on delivery, which has its own model."""

    name: str
    title: str
    violations: dict[str, Trace]  # by property id: the shortest of all profiles
    states: int
    unjudged: tuple[str, ...] = ()  # properties that were not checked

    def cell(self, property: str) -> str:
        """`holds`, `fails` with the length of the shortest counterexample, or `–` if the property does not apply."""
        if property in self.violations:
            return f"fails {len(self.violations[property])}"
        return "–" if self.name in SILENT.get(property, ()) or property in self.unjudged else "holds"

    def pack(self, protocol: Behaviour) -> "PackedColumn":
        return PackedColumn(self.title, self.states, {
            id: (positions(_judged_on(protocol, id), trace), len(trace.start.sessions), trace.loop)
            for id, trace in self.violations.items()})


@dataclass(frozen=True)
class PackedColumn:
    """A column as plain data that can be sent between processes. Its traces are encoded as numbers."""

    title: str
    states: int
    traces: dict[str, tuple[tuple[int, ...], int, int | None]]  # by property id: positions, sessions, loop

    def unpack(self, protocol: Behaviour) -> Column:
        violations = {id: retraced(_judged_on(protocol, id), *trace) for id, trace in self.traces.items()}
        return Column(protocol.name, self.title, violations, self.states)


def _judged_on(protocol: Behaviour, id: str) -> Behaviour:
    """The model that a property is checked on: delivery has its own."""
    return delivery_of(protocol.name) if id == DELIVERY.id else protocol


def matrix(watch_of: Callable[[str], Watch] | None = None) -> Iterator[Column]:
    """The verdicts of r0 … r4 and of the reference, one protocol at a time."""
    everything: tuple[Behaviour, ...] = (*REVISIONS, REFERENCE)
    for behaviour in everything:
        yield column(behaviour, watch_of and watch_of(behaviour.name))


def column(behaviour: Behaviour, watch: Watch | None = None) -> Column:
    """The verdicts of one protocol."""
    profiles = PROFILES if isinstance(behaviour, Revision) else (*PROFILES, REFERENCE_PROFILE)
    results = [search(behaviour, profile, watch) for profile in profiles]
    violations: dict[str, Trace] = {}
    for result in results:
        for id, trace in result.violations.items():
            if id not in violations or len(trace) < len(violations[id]):
                violations[id] = trace
    states = sum(r.states for r in results)
    if isinstance(behaviour, Protocol) and behaviour is not REFERENCE:  # a variant does not define delivery
        return Column(behaviour.name, behaviour.name, violations, states, (DELIVERY.id,))
    violations |= explore_fully(delivery_of(behaviour.name), DELIVERY_BOUNDS, properties=[DELIVERY]).violations
    title = behaviour.title if isinstance(behaviour, Revision) else "the reference protocol"
    return Column(behaviour.name, title, violations, states)


def search(behaviour: Behaviour, profile: Profile, watch: Watch | None = None) -> Result:
    """Explore one protocol within one profile."""
    if isinstance(behaviour, Revision):
        kinds = tuple(kind for kind in profile.accepts if kind in behaviour.accepts)
        behaviour = replace(behaviour, accepts=kinds)
    return explore_fully(behaviour, profile.bounds, watch=watch)


@dataclass(frozen=True)
class Rung:
    """Two consecutive revisions, and what changed between them."""

    before: Column
    after: Column

    def properties(self, before: bool, after: bool) -> list[str]:
        """The properties that are violated in the earlier revision iff `before`, and in the later one iff `after`."""
        return [p.id for p in JUDGED
                if (p.id in self.before.violations, p.id in self.after.violations) == (before, after)]

    def flaws(self, before: bool, after: bool) -> list[str]:
        """The flaws that are present in the earlier revision iff `before`, and in the later one iff `after`."""
        return [f.name for f in FLAWS
                if (self.before.name in f.revisions, self.after.name in f.revisions) == (before, after)]


def ladder(columns: Sequence[Column]) -> list[Rung]:
    return [Rung(before, after) for before, after in pairwise(columns)]
