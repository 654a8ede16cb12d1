"""The page of the family says what the explorer finds, and is not stale."""

import re
from pathlib import Path

import pytest
from support.budget import DEEP
from tools.specs.family import (
    WIDE,
    features_table,
    mistakes_table,
    policies_table,
    search_subset,
    subset_row,
    subsets,
    wide_row,
)
from tools.specs.tables import family_properties_table

from cancelmark.model.family import QUEUE_FEATURES, Feature
from cancelmark.model.properties import Bounds
from cancelmark.views.pages.tables import table

PAGE = (Path(__file__).parents[2] / "specs" / "family.md").read_text(encoding="utf-8")
SEARCHED = [s for s in subsets() if DEEP or len(s) < 2]  # the whole page is made by `make family`


def test_the_tables_of_the_page_are_those_that_the_model_makes() -> None:
    for made in (features_table(), family_properties_table(), policies_table(), mistakes_table()):
        assert made in PAGE, "specs/family.md is stale; make it anew with: make family"


@pytest.mark.parametrize("features", SEARCHED, ids=lambda fs: "+".join(sorted(f.value for f in fs)) or "none")
def test_the_counts_of_the_page_are_those_of_the_search(features: frozenset[Feature]) -> None:
    row = table((), [subset_row(features, search_subset(features))]).splitlines()[-1]
    assert row in PAGE.splitlines(), "specs/family.md is stale; make it anew with: make family"


@pytest.mark.parametrize("bounds", WIDE if DEEP else WIDE[-1:], ids=str)
def test_the_counts_of_the_whole_family_are_those_of_the_search(bounds: Bounds) -> None:
    row = table((), [wide_row(bounds)]).splitlines()[-1]
    assert row in PAGE.splitlines(), "specs/family.md is stale; make it anew with: make family"


def test_every_set_of_features_is_on_the_page_and_holds() -> None:
    assert len(re.findall(r"\| all \d+ hold \|", PAGE)) == len(list(subsets())) == 2 ** len(QUEUE_FEATURES)
    assert "broken:" not in PAGE
