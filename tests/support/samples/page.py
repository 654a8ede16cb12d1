"""specs/conformance.md: the kit's findings in our own models, and in servers with seeded bugs."""

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
    """The report on a model, or on the naive server, from scenarios only: these are deterministic."""
    return judge(NaiveAdapter if name == "naive" else model_adapter(name), profile=FEW)


def shows(flaw: Flaw, revision: str) -> bool:
    """Whether the flaw's scenario breaks its guarantee in a revision. Where it should, more schedules run."""
    found = judge_known(revision).scenarios[flaw.name]
    if found is None and revision in flaw.revisions:
        found = judge(model_adapter(revision), profile=MANY, scenarios={flaw.name}).scenarios[flaw.name]
    return isinstance(found, Finding)


def conformance_page() -> str:
    names = (*BEHAVIOURS, "naive")
    return f"""# The conformance kit on servers with known bugs

The kit judges a server by what its clients and its language model observe (`cancelmark conform`, `conformance/`). Here
it judges servers whose bugs are known: models of the original server's revisions, which [revisions.md](revisions.md)
explores from inside; the reference; and a naive worker on an `asyncio.Queue` (`support/samples/naive.py`).

A – means that a guarantee is not observable, because the server does not offer what is needed. Wherever the model keeps
a guarantee, the kit reports no break. Where the kit misses a break that the model has, the last two tables give the
reason.

{table(("guarantee", *names), ((p.id, *(CELLS[judge_known(n).verdict(p.id).status] for n in names))
                               for p in GUARANTEES_BY_ID.values() if not p.call))}
None of these servers has optional calls. [Mistakes in the family](#mistakes-in-the-family) covers servers that do.

## How a break is observed

{table(("guarantee", "observation", "the adapter needs"), (
    (p.id, p.sign, ", ".join(NEEDS[n].offer for n in p.needs) or "nothing more") for p in GUARANTEES_BY_ID.values()))}
## Seeded servers

Small servers that test the kit (`support/samples/table.py`). For each subject there is a server with a bug, and one
that looks suspicious but is correct. `tests/conformance/test_seeded.py` checks that the kit reports exactly this.

{table(("subject", "server", "behaviour", "broken"), (
    (subject, s.name, s.says, ", ".join(sorted(s.broken)) or ("–" if s.is_innocent else "not tested"))
    for subject, servers in SEEDED.items() for s in servers))}
## Mistakes in the family

The family is the reference protocol with the optional calls (revoke, stop, hold, …). Each mistake that
[family.md](family.md) lists is a protocol, and so a server (`support/samples/family.py`). The table has a guarantee
that the mistake breaks, and a script with its schedule that shows the break. On a correct server these scripts break
nothing.

{table(("mistake", "breaks", "script"), (
    (name, guarantee, f"`{text.replace('|', chr(92) + '|')}`") for name, (guarantee, text) in FAMILY_SHOWN.items()))}
Clients cannot observe these:

{table(("mistake", "reason"), FAMILY_HIDDEN.items())}
## Flaws that clients can observe

Each flaw is a scenario. In its script, `;` waits until the server is quiet, `,` waits only for the response, and `+`
starts the next step at the same time. The last column lists the revisions in which the scenario breaks the guarantee,
which may be more than those with this flaw.

{table(("flaw", "guarantee", "script", "observed in"), _list_shown())}
## Flaws that clients cannot observe

{table(("flaw", "breaks", "in", "reason"), (
    (f"[{f.name}](flaws.md#{f.name})", f.breaks, f.where, HIDDEN[f.name]) for f in FLAWS if f.name in HIDDEN))}
Some revisions also break a guarantee without a named flaw:

{table(("guarantee", "in", "why clients cannot observe it"), ((g, r, why) for (g, r), why in UNSEEN.items()))}"""


def _list_shown() -> Iterable[tuple[str, str, str, str]]:
    flaws = {f.name: f for f in FLAWS}
    for s in SCENARIOS:
        if s.name in flaws:
            where = [r for r in BEHAVIOURS if shows(flaws[s.name], r)]
            yield f"[{s.name}](flaws.md#{s.name})", s.guarantee, f"`{s.text}`", ", ".join(where)
