"""The kit judges the calls of the family: each mistake shows from outside, or there is a reason why not."""

import pytest
from support.budget import DEEP
from support.runtime_adapter import RuntimeAdapter
from support.samples.family import HIDDEN, SHOWN, family_adapter

from cancelmark.conformance.judging.guarantees import OF_THE_FAMILY
from cancelmark.conformance.kit import judge
from cancelmark.conformance.playing.family import FAMILY_SCENARIOS
from cancelmark.conformance.playing.script import Script, script
from cancelmark.conformance.playing.venue import Inside
from cancelmark.conformance.profile import Profile
from cancelmark.model.variants.catalogue import MISTAKES, VARIANTS, ProtocolVariant


def test_every_mistake_shows_or_has_a_reason() -> None:
    assert SHOWN.keys() | HIDDEN.keys() == {m.name for m in MISTAKES}
    assert not SHOWN.keys() & HIDDEN.keys()


@pytest.mark.parametrize("name", SHOWN)
def test_a_mistake_shows(name: str) -> None:
    guarantee, text = SHOWN[name]
    mistake = VARIANTS[name]
    history = Inside(family_adapter(mistake.protocol, mistake.bounds)).play(script(text))
    assert guarantee in history.broken, history.observations


@pytest.mark.parametrize("make", [family_adapter(), RuntimeAdapter], ids=["model", "runtime"])
def test_nothing_shows_in_a_server_that_is_right(make: type[RuntimeAdapter]) -> None:
    """In the scripts of the mistakes, and in all scenarios, in a few schedules."""
    stage = Inside(make)
    scripts = [script(text) for _, text in SHOWN.values()]
    scripts += [Script(s.script.batches, late) for s in FAMILY_SCENARIOS for late in ((), (0, 2))]
    for each in scripts:
        assert not (history := stage.play(each)).complaints, (str(each), history.complaints)


def test_each_call_has_a_mistake_that_breaks_its_guarantee() -> None:
    assert {guarantee for guarantee, _ in SHOWN.values()} >= OF_THE_FAMILY


@pytest.mark.parametrize("mistake", MISTAKES if DEEP else [], ids=lambda mistake: mistake.name)
def test_a_judgement_finds_the_mistake(mistake: ProtocolVariant) -> None:
    few = Profile("seeded", histories=0, schedules=40, inside=200, repeats=1, shrinks=0, seconds=0)
    report = judge(family_adapter(mistake.protocol, mistake.bounds), profile=few)
    assert bool(report.broken) is (mistake.name in SHOWN), str(report)
