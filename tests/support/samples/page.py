"""specs/conformance.md: what the kit finds in our own models, and in servers that were written for it."""

from collections.abc import Iterable
from functools import cache

from cancelmark.conformance.judging.guarantees import GUARANTEES_BY_ID, NEEDS
from cancelmark.conformance.kit import judge
from cancelmark.conformance.playing.scenarios import HIDDEN, SCENARIOS, UNSEEN
from cancelmark.conformance.profile import Profile
from cancelmark.conformance.report import Finding, Report, Status
from cancelmark.model.revisions.flaws import FLAWS, Flaw
from cancelmark.views.pages.tables import table

from .family import HIDDEN as FAMILY_HIDDEN
from .family import SHOWN as FAMILY_SHOWN
from .models import BEHAVIOURS, model_adapter
from .naive import NaiveAdapter
from .table import SEEDED

FEW = Profile("scenarios", histories=0, schedules=40, inside=0, repeats=1, shrinks=0, seconds=0)
MANY = Profile("scenarios", histories=0, schedules=5000, inside=0, repeats=1, shrinks=0, seconds=0)

CELLS = {Status.BROKEN: "**broken**", Status.KEPT: "kept", Status.NOT_TESTED: "?", Status.NOT_OBSERVABLE: "–",
         Status.NOT_OFFERED: "–", Status.NOT_CLAIMED: "–"}


@cache
def judge_known(name: str) -> Report:
    """The report on a model, or on the naive server. Scenarios alone: they are the same wherever this runs."""
    return judge(NaiveAdapter if name == "naive" else model_adapter(name), profile=FEW)


def shows(flaw: Flaw, revision: str) -> bool:
    """Whether the flaw's scenario breaks its guarantee in a revision. Where it should, more schedules are tried."""
    found = judge_known(revision).scenarios[flaw.name]
    if found is None and revision in flaw.revisions:
        found = judge(model_adapter(revision), profile=MANY, scenarios={flaw.name}).scenarios[flaw.name]
    return isinstance(found, Finding)


def conformance_page() -> str:
    names = (*BEHAVIOURS, "naive")
    return f"""# The conformance kit, tried on what we know

The kit judges a server by what its clients and its language model see (`cancelmark conform`, `conformance/`).
Here it judges servers of which we know what is wrong: the models of the original's revisions, which
[revisions.md](revisions.md) judges from inside; the reference; and a naive worker on an `asyncio.Queue`
(`support/samples/naive.py`). A – stands where a guarantee is not observable, because the server does not offer what
that takes. Wherever the model says that a guarantee holds, the kit finds nothing; where it does not find what the model
finds, the last two tables say why.

{table(("guarantee", *names), ((p.id, *(CELLS[judge_known(n).verdict(p.id).status] for n in names))
                               for p in GUARANTEES_BY_ID.values() if not p.call))}
None of these has calls of the family. [Mistakes in the family](#mistakes-in-the-family) has servers that do.

## What is seen when a guarantee is broken

{table(("guarantee", "what is seen", "the adapter needs"), (
    (p.id, p.sign, ", ".join(NEEDS[n].offer for n in p.needs) or "nothing more") for p in GUARANTEES_BY_ID.values()))}
## Seeded servers

Small servers that judge the judge (`support/samples/table.py`). Of each subject one is guilty, and one looks guilty
and is innocent. The kit must say exactly this, and `tests/conformance/test_seeded.py` sees to it.

{table(("subject", "server", "what it does", "broken"), (
    (subject, s.name, s.says, ", ".join(sorted(s.broken)) or ("–" if s.is_innocent else "not tested"))
    for subject, servers in SEEDED.items() for s in servers))}
## Mistakes in the family

Each mistake that [family.md](family.md) lists is a protocol, and so a server (`support/samples/family.py`). This is
what shows of it from outside: a guarantee that is broken, and a script with its schedule in which that is seen. In the
same scripts a server without a mistake shows nothing.

{table(("mistake", "breaks", "what is done"), (
    (name, guarantee, f"`{text.replace('|', chr(92) + '|')}`") for name, (guarantee, text) in FAMILY_SHOWN.items()))}
Some do not show:

{table(("mistake", "why nobody outside can tell"), FAMILY_HIDDEN.items())}
## Flaws that show from outside

Each is a scenario: what clients do, where `;` waits until the server is quiet, `,` does not, and `+` is at the same
time. The last column has the revisions in which it breaks the guarantee: maybe more than those that have this flaw.

{table(("flaw", "guarantee", "what is done", "shows in"), _list_shown())}
## Flaws that do not

{table(("flaw", "breaks", "in", "why nobody outside can tell"), (
    (f"[{f.name}](flaws.md#{f.name})", f.breaks, f.where, HIDDEN[f.name]) for f in FLAWS if f.name in HIDDEN))}
Some revisions break a guarantee in a way that has no name of its own:

{table(("guarantee", "in", "why it does not show"), ((g, r, why) for (g, r), why in UNSEEN.items()))}"""


def _list_shown() -> Iterable[tuple[str, str, str, str]]:
    flaws = {f.name: f for f in FLAWS}
    for s in SCENARIOS:
        if s.name in flaws:
            where = [r for r in BEHAVIOURS if shows(flaws[s.name], r)]
            yield f"[{s.name}](flaws.md#{s.name})", s.guarantee, f"`{s.text}`", ", ".join(where)
