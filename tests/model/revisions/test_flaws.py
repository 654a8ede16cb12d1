"""Every flaw is where it says it is, and its trace tells its story and breaks its property."""

import pytest

from cancelmark.model.check.explore import explore
from cancelmark.model.check.witness import find_witness, observe_change
from cancelmark.model.delivery import DELIVERY, LOGGED, LOSSY
from cancelmark.model.properties import PROPERTIES, Bounds, SessionStep
from cancelmark.model.protocol import REFERENCE
from cancelmark.model.revisions.flaws import BY_ID, DISPATCH, FLAWS, FLAWS_BY_NAME, Flaw
from cancelmark.model.server import Change, changes
from cancelmark.model.trace import Trace


def telling(flaw: Flaw) -> list[str]:
    """The last revision that has the flaw, the one that repaired it, and the reference."""
    return [name for name in DISPATCH if name in (flaw.latest, flaw.repaired, REFERENCE.name)]


@pytest.mark.parametrize(("flaw", "names"), [
    *(pytest.param(flaw, telling(flaw), id=flaw.name) for flaw in FLAWS),
    *(pytest.param(flaw, list(DISPATCH), id=f"{flaw.name}, everywhere", marks=pytest.mark.long) for flaw in FLAWS)])
def test_a_flaw_is_in_exactly_the_revisions_it_names(flaw: Flaw, names: list[str]) -> None:
    found = {name: flaw.trace(name) for name in names}
    assert {name for name, trace in found.items() if trace} == {*names}.intersection(flaw.revisions)
    for name, trace in found.items():
        if trace:
            assert tells(flaw, name, trace), "the key steps happen in order"
            assert breaks(flaw, name, trace)


def changes_of(flaw: Flaw, name: str, trace: Trace) -> list[Change]:
    """The trace's steps, taken again in the model."""
    server, taken = trace.start, []
    for step in trace.steps:
        taken.append(next(c for c in changes(flaw.behaviour(name), server)
                          if (c.call, c.after, c.effects) == (step.call, step.after, step.effects)))
        server = step.after
    return taken


def tells(flaw: Flaw, name: str, trace: Trace) -> bool:
    keys = list(flaw.keys)
    for before, change in zip(trace.states, changes_of(flaw, name, trace)):
        seen = observe_change(before, change)
        while keys and keys[0] in seen:
            keys.pop(0)
    return not keys


def breaks(flaw: Flaw, name: str, trace: Trace) -> bool:
    """Judged without the search: on each step, or at the end of the trace with nothing left for the system to do."""
    broken = BY_ID[flaw.breaks]
    if broken.on_session:
        return not all(broken.on_session(SessionStep.of(before.sessions[0], change.moves[0][1]))
                       for before, change in zip(trace.states, changes_of(flaw, name, trace)))
    last = trace.states[-1]
    assert not any(c.call.action.system for c in changes(flaw.behaviour(name), last))
    assert broken.at_rest
    return not all(broken.at_rest(p) for p in last.prompts if flaw.victim in (None, p.seq))


def test_a_story_that_cannot_happen_is_not_found() -> None:
    """The search can say no: the reference, with the keys of a flaw in its own words."""
    broken = next(p for p in PROPERTIES if p.id == "no-lost-cancel")
    assert find_witness(REFERENCE, broken, ("accept(A)", "cancel", "A active")) is None
    assert find_witness(REFERENCE, broken, ("accept(A)", "A active", "cancel", "A canceled")) is None


def test_a_search_that_is_too_large_says_so() -> None:
    flaw = FLAWS_BY_NAME["sibling-survives-cancel"]
    with pytest.raises(RuntimeError, match="r0 gave up after 10 states"):
        find_witness(DISPATCH["r0"], BY_ID[flaw.breaks], flaw.keys, max_states=10)


def test_flaws_are_written_to_be_read() -> None:
    assert len(FLAWS_BY_NAME) == len(FLAWS)
    for flaw in FLAWS:
        assert 20 < len(flaw.tale.split()) < 75, flaw.name
        assert "(R" in flaw.ruled_out, "the reference's rule is cited"
        assert flaw.repaired is None or flaw.repaired not in flaw.revisions
        assert (flaw.repaired is None) == ("r4" in flaw.revisions), flaw.name


@pytest.mark.parametrize("bounds", [Bounds(2), Bounds(2, crashes=1), Bounds(3, crashes=2)], ids=str)
def test_a_log_delivers_every_end_once_and_buffers_do_not(bounds: Bounds) -> None:
    assert not explore(LOGGED, bounds, properties=[DELIVERY]).violations
    assert DELIVERY.id in explore(LOSSY, bounds, properties=[DELIVERY]).violations
