"""Writes specs/family.md: every set of features searched, which takes minutes. `make family` runs it."""

import sys
from pathlib import Path

from rich.console import Console
from rich.progress import track

from cancelmark.views.pages.family import family_page, search_subset, subsets

from ..files import write


def main() -> None:
    shown = sys.stderr.isatty()
    sets = track(list(subsets()), "searching sets of features", console=Console(stderr=True, quiet=not shown),
                 transient=True, disable=not shown)
    found = {features: search_subset(features) for features in sets}
    write(Path("specs/family.md"), family_page(found.__getitem__))


if __name__ == "__main__":
    main()
