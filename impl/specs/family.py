"""Writes specs/family.md: every set of features searched, which takes minutes. `make family` runs it."""

from pathlib import Path

from cancelmark.model.check.explore import Result
from cancelmark.model.lifecycle import Feature
from cancelmark.views.family import family_page, search_subset, subsets

from ..cli.terminal import progress_bar
from ..files import write


def main() -> None:
    with progress_bar() as bar:
        task = bar.add_task("searching sets of features", total=len(list(subsets())))

        def search(features: frozenset[Feature]) -> Result:
            bar.advance(task)
            return search_subset(features)

        write(Path("specs/family.md"), family_page(search))


if __name__ == "__main__":
    main()
