"""The power of the random tests: how many examples they need to find each known flaw, seeded into the runtime."""

import sys
from importlib import import_module
from pathlib import Path

from ..report import Goal, Report, Table
from ..setting import Setting

TESTS = Path(__file__).resolve().parents[2] / "tests"


def measure(setting: Setting) -> Report:
    """Looks for each flaw with as many seeds as there are rounds."""
    if not (TESTS / "tools" / "power.py").exists():
        return Report(remarks=["not measured: the tests are not there; run this from a checkout"])
    sys.path.insert(0, str(TESTS))
    try:
        power = import_module("tools.power")
    except ModuleNotFoundError as missing:
        return Report(remarks=[f"not measured: {missing.name} is not installed; pip install 'cancelmark[test]'"])
    finally:
        sys.path.remove(str(TESTS))
    rows = list(power.measure(setting.rounds))
    *_, most, _ = zip(*rows)
    budgets = {"histories": power.HISTORIES, "schedules": power.SCHEDULES}
    shares = [examples / budgets[where] for examples, (_, _, where, *_) in zip(most, rows)]
    return Report(
        [Table("Examples until a seeded flaw shows", power.COLUMNS, rows)],
        [Goal("the hardest flaw to find, against the budget of the tests", (max(shares),), "at most", 1)])
