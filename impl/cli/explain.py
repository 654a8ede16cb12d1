"""`cancelmark explain`: the flaws of the original, and what breaks in a cluster without each safeguard."""

import argparse
import difflib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import fill, indent
from typing import Any

from cancelmark.model.cluster.flaws import ALL_FLAWS, find_history
from cancelmark.model.cluster.flaws import ClusterFlaw as ClusterFlaw
from cancelmark.model.cluster.search import Path as History
from cancelmark.model.protocol import REFERENCE
from cancelmark.model.revisions.flaws import FLAWS, FLAWS_BY_NAME, Flaw
from cancelmark.model.revisions.matrix import JUDGED
from cancelmark.model.trace import Trace
from cancelmark.views.pages.cluster import flaw_svg, tell_history
from cancelmark.views.traces.itf import trace_itf
from cancelmark.views.traces.lifelines import trace_svg
from cancelmark.views.traces.sequence import trace_mermaid
from cancelmark.views.traces.text import trace_text

from ..files import UsageError, write
from .cluster import FLAWS_BY_NAME as CLUSTER_FLAWS
from .width import columns

DESCRIPTION = """\
Explain one flaw of the original protocol: its cause, the shortest interleaving that shows it, and why the reference
rules it out. Or explain what breaks in a cluster when a safeguard is removed. With the name of a property, list the
flaws that break it; without a name, list all flaws. The interleaving is computed each time.
"""

EPILOG = """\
examples:
  cancelmark explain
  cancelmark explain sibling-survives-cancel
  cancelmark explain overtaken-in-the-window --revision r0 --format svg -o window.svg
"""

SENTENCES = {p.id: p.sentence for p in JUDGED}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("flaw", nargs="?", metavar="NAME", help="a flaw or a property (default: list all flaws)")
    parser.add_argument("--revision", metavar="NAME", help="the revision to show it in (default: the latest with it)")
    parser.add_argument("--format", default="text", metavar="FORMAT", help="text (default), mermaid, svg or json")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE",
                        help="write to FILE instead of standard output")
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="same as --format json")


def run(arguments: argparse.Namespace) -> int:
    forms: Mapping[str, Callable[[Flaw, str, Trace], str]] = {
        "text": tell,
        "mermaid": lambda flaw, name, trace: trace_mermaid(trace),
        "svg": lambda flaw, name, trace: trace_svg(trace),
        "json": lambda flaw, name, trace: json.dumps(as_json(flaw, name, trace), indent=2, ensure_ascii=False) + "\n",
    }
    if arguments.format not in forms:
        raise UsageError(f"--format {arguments.format}: choose one of {', '.join(forms)}")
    if arguments.flaw is None:
        content = catalogue(arguments.format)
    elif arguments.flaw in SENTENCES and arguments.format == "text":
        content = list_flaws(arguments.flaw)
    elif arguments.flaw in CLUSTER_FLAWS:
        if arguments.revision:
            raise UsageError(f"--revision {arguments.revision}: {arguments.flaw} is a cluster flaw and has no "
                             "revisions; omit --revision")
        content = explain_flaw(CLUSTER_FLAWS[arguments.flaw], arguments.format)
    else:
        flaw = flaw_named(arguments.flaw)
        name = arguments.revision or flaw.latest
        content = forms[arguments.format](flaw, name, trace_in(flaw, name))
    if arguments.output:
        write(arguments.output, content)
    else:
        sys.stdout.write(content)
    return 0


def flaw_named(name: str) -> Flaw:
    if name not in FLAWS_BY_NAME:
        near = difflib.get_close_matches(name, [*FLAWS_BY_NAME, *CLUSTER_FLAWS], 1, cutoff=0.4)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"explain {name}: no such flaw; {hint}`cancelmark explain` lists them")
    return FLAWS_BY_NAME[name]


def trace_in(flaw: Flaw, revision: str) -> Trace:
    if revision not in flaw.revisions:
        where = "the reference" if revision == REFERENCE.name else revision
        raise UsageError(f"--revision {revision}: {where} does not have {flaw.name}; choose from {flaw.where}")
    trace = flaw.trace(revision)
    assert trace is not None, f"{flaw.name} is declared for {revision} and was not found there"
    return trace


def catalogue(form: str) -> str:
    if form == "json":
        return json.dumps([{"name": f.name, "breaks": f.breaks, "revisions": f.revisions, "repaired": f.repaired,
                            "says": f.says, "tale": f.tale} for f in FLAWS]
                          + [flaw_as_data(f) for f in ALL_FLAWS], indent=2, ensure_ascii=False) + "\n"
    if form != "text":
        raise UsageError(f"explain --format {form}: name a flaw; `cancelmark explain` lists them")
    broken = {flaw.breaks for flaw in FLAWS}
    lines = [list_flaws(id) for id in SENTENCES if id in broken]
    lines += ["In a cluster, when a safeguard is removed (specs/cluster.md):",
              *(fill(f"{f.name} ({f.clause}, {f.property}): {f.says}", columns(), initial_indent="  ",
                     subsequent_indent="      ") for f in ALL_FLAWS), ""]
    return "\n".join(lines) + "\nFor details: cancelmark explain NAME\n"


def list_flaws(property: str) -> str:
    """The sentence of a property, and the flaws listed under it."""
    flaws = [flaw for flaw in FLAWS if flaw.breaks == property]
    told = [*map(_listed, flaws)] or ["  no named flaw; `cancelmark revisions` shows which revisions violate it"]
    return "\n".join((fill(f"{property}: {SENTENCES[property]}", columns()), *told, ""))


def _listed(flaw: Flaw) -> str:
    """The name, the revisions and the sentence of a flaw, on one line if they fit."""
    name, says = f"  {flaw.name:{max(map(len, FLAWS_BY_NAME))}}  {flaw.where:6}", fill(flaw.says, columns() - 6)
    beside = f"{name}  {flaw.says}"
    return beside if len(beside) <= columns() else f"{name}\n{indent(says, ' ' * 6)}"


def tell(flaw: Flaw, revision: str, trace: Trace) -> str:
    repaired = f"fixed in {flaw.repaired}" if flaw.repaired else "never fixed"
    wide = min(columns(), 100)
    return "\n".join((
        f"{flaw.name}: breaks {flaw.breaks}; in {flaw.where}; {repaired}", "",
        fill(f"{flaw.says} {flaw.tale}", wide), "",
        f"The shortest interleaving in {revision}, {len(trace)} steps:", "",
        trace_text(trace, columns()), fill(f"Why the reference rules it out: {flaw.ruled_out}", wide), ""))


def as_json(flaw: Flaw, revision: str, trace: Trace) -> dict[str, Any]:
    return {"name": flaw.name, "breaks": flaw.breaks, "revisions": flaw.revisions, "repaired": flaw.repaired,
            "says": flaw.says, "tale": flaw.tale, "ruled_out": flaw.ruled_out, "key_steps": flaw.keys,
            "revision": revision, "calls": [str(s.call) for s in trace.steps], "trace": trace_itf(trace)}


# --- cluster flaws

def explain_flaw(flaw: ClusterFlaw, form: str) -> str:
    """A cluster flaw in one of the formats of `explain`."""
    if form == "svg":
        return flaw_svg(flaw)
    path = find_history(flaw)
    if form == "json":
        return json.dumps(flaw_as_data(flaw, path), indent=2, ensure_ascii=False) + "\n"
    if form == "text":
        return tell_flaw(flaw, path)
    raise UsageError(f"--format {form}: not supported for {flaw.name}, a cluster flaw; choose text, svg or json")


def tell_flaw(flaw: ClusterFlaw, path: History) -> str:
    return "\n".join((
        f"{flaw.name}: breaks {flaw.property}; violates {flaw.clause} of specs/cluster.md", "",
        fill(flaw.says, min(columns(), 100)), "", f"The shortest trace, {len(path)} steps:", "", tell_history(path)))


def flaw_as_data(flaw: ClusterFlaw, path: History | None = None) -> dict[str, Any]:
    known = {"name": flaw.name, "breaks": flaw.property, "clause": flaw.clause, "says": flaw.says}
    return known if path is None else {**known, "calls": path.calls}
