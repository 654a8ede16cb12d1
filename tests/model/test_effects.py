"""An effect says what it is, for traces, tables and pictures alike."""

from dataclasses import fields

from cancelmark.model.effects import EFFECTS, Acknowledge, End, Fold, Record, Report, Start, Stop, encode_effect
from cancelmark.model.lifecycle import Outcome
from cancelmark.views.traces.content import effect_text


def test_an_effect_as_data() -> None:
    assert [encode_effect(effect) for effect in (Acknowledge(1), Start(1), Stop(1), Record(1))] == [
        {"effect": "acknowledge", "seq": 1}, {"effect": "start", "seq": 1}, {"effect": "stop", "seq": 1},
        {"effect": "record", "seq": 1}]
    assert encode_effect(Fold(2, into=1)) == {"effect": "fold", "seq": 2, "into": 1}
    assert encode_effect(End(2, Outcome.FOLDED, of=1)) == {"effect": "end", "seq": 2, "outcome": "folded"}


def test_an_effect_in_words() -> None:
    assert effect_text(Fold(2, into=1)) == "B folds into A"
    assert effect_text(End(2, Outcome.ERROR, of=2)) == "B ends: error"
    assert effect_text(End(2, Outcome.ERROR, of=1)) == "B ends: error with the text of A"
    assert effect_text(Report(2, of=1)) == "B reports an error with the text of A"


def test_a_trace_tells_every_field_but_whose_text_an_end_carries() -> None:
    """Which is the prompt's own, in the reference."""
    for effect in EFFECTS:
        assert {field.name for field in fields(effect)} - {"of"} == {"seq", *effect.details}
