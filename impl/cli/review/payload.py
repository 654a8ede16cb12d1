"""The data for the page's scripts: the protocols that the explorer offers, and the traces that the page shows."""

from collections.abc import Iterator
from typing import NamedTuple

from cancelmark.model.delivery import DELIVERY, LOGGED, LOSSY
from cancelmark.model.examples import EXAMPLES
from cancelmark.model.revisions.flaws import FLAWS, FLAWS_BY_NAME
from cancelmark.model.revisions.matrix import JUDGED

from .dressing import PackedGraph
from .findings import REF, REVISIONS, Findings
from .whatif import CHANGES, INSTEAD, POLICIES

SENTENCES = {p.id: p.sentence for p in JUDGED}
SESSIONS = "sessions"  # the reference with two sessions


class ShownTrace(NamedTuple):
    """A trace that the page can show: a walk in the graph of a protocol."""

    id: str
    protocol: str
    group: str
    title: str
    heading: str
    sentence: str
    path: list[int]
    stories: tuple[str, ...] = ()  # names of flaws


def make_payload(found: Findings) -> dict[str, object]:
    titles = {
        REF: "the reference", SESSIONS: "the reference, two sessions",
        **{name: f"{name} · {found.chapters[name].column.title.split(':')[0]}" for name in REVISIONS},
        LOGGED.name: "delivery by a log (the reference)", LOSSY.name: "delivery by buffers (r0–r4)",
    }
    titles |= {id: change.title for id, change in CHANGES.items()}
    traces = (*example_traces(found), *counterexample_traces(found), *flaw_traces(found), *change_traces(found))
    return {
        "protocols": [{"id": name, "title": titles[name], **_placed(name)} for name in graphs(found)],
        "properties": SENTENCES,
        "traces": [trace._asdict() for trace in traces],
    }


def _placed(name: str) -> dict[str, object]:
    """The menu group of a protocol, and its name on the command line."""
    if name in CHANGES:
        kind = ("One optional call" if CHANGES[name] in POLICIES else
                "In place of the mark" if CHANGES[name] in INSTEAD else "What if …")
        return {"group": kind, "play": CHANGES[name].play}
    if name in (LOGGED.name, LOSSY.name):
        return {"group": "Delivery of events", "play": None}
    return {"group": "The original" if name in REVISIONS else "The reference",
            "play": REF if name == SESSIONS else name}


def graphs(found: Findings) -> dict[str, PackedGraph]:
    return {REF: found.chapters[REF].graph, SESSIONS: found.sessions.graph,
            **{name: found.chapters[name].graph for name in REVISIONS},
            **{id: changed.graph for id, changed in found.changed.items()},
            **{name: d.graph for name, d in found.delivered.items()}}


def example_traces(found: Findings) -> Iterator[ShownTrace]:
    """The examples of the guarantees that the reviewed reference has."""
    for e in EXAMPLES:
        protocol, paths = (REF, found.chapters[REF]) if e.sessions == 1 else (SESSIONS, found.sessions)
        if path := paths.examples.get(e.name):
            yield ShownTrace(f"example/{e.name}", protocol, "Guarantees", e.title, e.title, e.says, path)


def counterexample_traces(found: Findings) -> Iterator[ShownTrace]:
    for c in found.chapters.values():
        for id, path in c.counterexamples.items():
            yield _counterexample(c.name, id, c.name, path)
        lossy = found.delivered[LOSSY.name].counterexample
        if lossy and c.name in REVISIONS:
            yield _counterexample(c.name, DELIVERY.id, LOSSY.name, lossy)


def _counterexample(name: str, property: str, protocol: str, path: list[int]) -> ShownTrace:
    stories = tuple(flaw.name for flaw in FLAWS if flaw.breaks == property and name in flaw.revisions)
    return ShownTrace(f"{name}/{property}", protocol, "Shortest counterexamples", f"{property}, {len(path)} steps",
                f"{name} violates {property}", f"{SENTENCES[property]} Violated after {len(path)} steps.", path,
                stories)


def flaw_traces(found: Findings) -> Iterator[ShownTrace]:
    for name, (protocol, path) in found.flaws.items():
        flaw = FLAWS_BY_NAME[name]
        yield ShownTrace(f"flaw/{name}", protocol, "Flaws", f"{name}, {len(path)} steps", f"{name}, in {flaw.latest}",
                   f"{flaw.says} {flaw.tale} Why the reference rules it out: {flaw.ruled_out}", path)


def change_traces(found: Findings) -> Iterator[ShownTrace]:
    for id, changed in found.changed.items():
        for property, path in changed.broken.items():
            if path:
                yield ShownTrace(f"{id}/{property}", id, "Shortest counterexamples", f"{property}, {len(path)} steps",
                                 f"What if: {CHANGES[id].title}",
                                 f"{SENTENCES[property]} Violated after {len(path)} steps.", path)
