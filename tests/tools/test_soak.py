"""The soak, for some seconds and with few: that it runs, and that it notices what grows or is lost."""

import pytest
from tools import soak
from tools.soak import SAMPLES, Figures, Soak


@pytest.mark.real
def test_a_short_soak_is_flat(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["--seconds", "6", "--readers", "30", "--writers", "5"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("seconds=6 readers=30 writers=5 prompts=")
    assert said.endswith("verdict=flat\n")


@pytest.mark.parametrize(("growth", "said"), [
    (Figures(2_000_000, 0, 0), "memory grew"), (Figures(0, 5, 0), "files grew"), (Figures(0, 0, 1000), "log grew")])
def test_what_grows_is_noticed(growth: Figures, said: str) -> None:
    tried = Soak(None, 1, 1, 1)  # type: ignore[arg-type]
    tried.samples = [Figures(50_000_000 + n * growth.memory, 500 + n * growth.files, 1000 + n * growth.log)
                     for n in range(SAMPLES)]
    [wrong] = tried.judge()
    assert wrong.startswith(said)


def test_ends_that_are_lost_or_come_twice_are_noticed() -> None:
    tried = Soak(None, 1, 1, 1)  # type: ignore[arg-type]
    tried.samples = [Figures(50_000_000, 500, 1000)] * SAMPLES
    tried.sent = ["a", "b", "c"]
    tried.ends.update(["a", "b", "b"])
    assert tried.judge() == ["1 ends were lost", "1 ends came twice"]
