"""Searches in other processes: traces cross over as numbers, and come out as they went in."""



from cancelmark.model.check.explore import explore
from cancelmark.model.properties import Bounds
from cancelmark.model.protocol import REFERENCE
from cancelmark.model.revisions import REVISIONS
from cancelmark.model.revisions.matrix import Column, column
from cancelmark.model.trace import positions, retraced


def test_a_trace_is_its_positions() -> None:
    met = explore(REFERENCE, Bounds(2, cancels=1, crashes=1, sessions=2)).met
    assert met
    for trace in met.values():
        assert retraced(REFERENCE, positions(REFERENCE, trace), 2) == trace
    r4 = REVISIONS[-1]
    broken = explore(r4, Bounds(2, clears=1)).violations
    assert broken
    for trace in broken.values():
        assert retraced(r4, positions(r4, trace), 1, trace.loop) == trace


def test_a_column_crosses_over_from_another_process(columns: dict[str, Column]) -> None:
    protocol = REVISIONS[1]
    assert columns[protocol.name] == column(protocol)
