"""`cancelmark diagram`: the protocol and its traces as pictures."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from pydot import Dot

from cancelmark.model.check.explore import explore_fully
from cancelmark.model.properties import Bounds
from cancelmark.model.protocol import Protocol
from cancelmark.model.trace import Trace, replay
from cancelmark.views.drawing.render import render_png, render_svg
from cancelmark.views.states.lifecycle import lifecycle_graph, lifecycle_mermaid
from cancelmark.views.states.session import session_graph, session_mermaid
from cancelmark.views.traces.chain import trace_dot
from cancelmark.views.traces.itf import trace_itf
from cancelmark.views.traces.lifelines import trace_svg
from cancelmark.views.traces.sequence import trace_mermaid
from cancelmark.views.traces.text import trace_text

from ..files import UsageError, write
from .protocols import add_protocol, errors_as_usage, protocol_named
from .width import columns

MOST_FEATURES = 4  # in a session's diagram: a search of a minute

DESCRIPTION = """\
Draw the protocol, from the transition table and the actions that run it.

  lifecycle   the five states of a prompt and the transitions between them
  session     the states of one session and the actions between them (found by exploring the model)
  trace       one trace, step by step: give its calls, or --goal for the shortest trace that reaches a goal
"""

EPILOG = """\
examples:
  cancelmark diagram lifecycle -o lifecycle.svg
  cancelmark diagram session --format mermaid
  cancelmark diagram lifecycle --protocol mine.py:KEEP -o mine.svg
  cancelmark diagram trace "accept A" cancel "accept B" "enter B" "enter A" --format text
  cancelmark diagram trace --goal "row fold→done" -o fold.svg
  cancelmark diagram --protocol r1 trace "accept A" "accept B" cancel "enter A" "enter B" --format mermaid
"""

Content = str | bytes
GOAL_BOUNDS = Bounds(2, cancels=1, clears=1, requeues=1, crashes=1, closes=1)

PROTOCOL: Mapping[str, tuple[Callable[[Protocol], Dot], Callable[[Protocol], str]]] = {
    "lifecycle": (lambda protocol: lifecycle_graph(protocol.rows), lambda protocol: lifecycle_mermaid(protocol.rows)),
    "session": (session_graph, session_mermaid),
}
TRACE: Mapping[str, Callable[[Trace], Content]] = {
    "svg": trace_svg,
    "png": lambda trace: render_png(trace_svg(trace)),
    "dot": lambda trace: trace_dot(trace).to_string(),
    "mermaid": trace_mermaid,
    "text": lambda trace: trace_text(trace, columns()),
    "itf": lambda trace: json.dumps(trace_itf(trace), indent=2, ensure_ascii=False) + "\n",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="lifecycle|session|trace")
    parser.add_argument("calls", nargs="*", metavar="CALL",
                        help="trace: the calls, such as 'accept A' cancel 'enter A'")
    parser.add_argument("--goal", metavar="GOAL",
                        help="trace: draw the shortest trace that reaches this row (transition), outcome or action, "
                             "such as 'action recover'")
    add_protocol(parser)
    parser.add_argument("--sessions", type=int, default=1, metavar="N",
                        help="trace: number of sessions; cancel@2 is a cancel in the second (default: 1)")
    parser.add_argument("--format", metavar="FORMAT",
                        help="svg, dot, mermaid or png; for a trace also text or itf (Informal Trace Format, JSON). "
                             "Default: from the extension of the output file, else svg, or text for a trace")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE",
                        help="write to FILE instead of standard output")


def run(arguments: argparse.Namespace) -> int:
    what = arguments.what
    if what == "trace":
        write_to(arguments.output, render(TRACE, what, arguments, lambda draw: draw(trace_of(arguments))))
    elif what in PROTOCOL:
        if arguments.calls or arguments.goal or arguments.sessions != 1:
            raise UsageError(f"diagram {what} accepts no calls, --goal or --sessions; use diagram trace")
        protocol = protocol_named(arguments.protocol)
        if not isinstance(protocol, Protocol):
            raise UsageError(f"--protocol {protocol.name}: a revision of the original has no {what} diagram; use "
                             "diagram trace")
        if what == "session" and len(protocol.features) > MOST_FEATURES:
            raise UsageError(f"diagram session --protocol {protocol.name}: its {len(protocol.features)} features have "
                             f"too many states; choose up to {MOST_FEATURES}, such as family:ask,hold")
        graph, mermaid = PROTOCOL[what]
        forms: Mapping[str, Callable[[Protocol], Content]] = {
            "svg": lambda protocol: render_svg(graph(protocol)),
            "png": lambda protocol: render_png(render_svg(graph(protocol))),
            "dot": lambda protocol: graph(protocol).to_string(),
            "mermaid": mermaid,
        }
        with errors_as_usage(protocol):
            write_to(arguments.output, render(forms, what, arguments, lambda draw: draw(protocol)))
    else:
        raise UsageError(f"diagram {what}: no such diagram; choose lifecycle, session or trace")
    return 0


def render(
    forms: Mapping[str, Callable[..., Content]], what: str, arguments: argparse.Namespace,
    draw: Callable[[Callable[..., Content]], Content],
) -> Content:
    """The diagram in the selected format."""
    form = arguments.format or (arguments.output.suffix[1:].lower() if arguments.output else "")
    if not form:
        form = "text" if what == "trace" else "svg"
    form = {"mmd": "mermaid", "gv": "dot", "txt": "text", "json": "itf"}.get(form, form)
    if form not in forms:
        raise UsageError(f"--format {form}: not supported for a {what}; choose from {', '.join(forms)}")
    if form == "png" and not arguments.output:
        raise UsageError("--format png needs an output file; give one with -o")
    try:
        return draw(forms[form])
    except RuntimeError as error:  # png, without its extra or without a font
        raise UsageError(str(error)) from error


def trace_of(arguments: argparse.Namespace) -> Trace:
    if bool(arguments.calls) == bool(arguments.goal):
        raise UsageError("diagram trace: give either calls, such as 'accept A' cancel 'enter A', or --goal")
    protocol = protocol_named(arguments.protocol)
    if arguments.goal:
        if not isinstance(protocol, Protocol):
            raise UsageError(f"--goal: not supported for {protocol.name}, a revision of the original; give the calls "
                             "of a trace")
        with errors_as_usage(protocol):
            met = explore_fully(protocol, GOAL_BOUNDS).met
        if arguments.goal not in met:
            raise UsageError(f"--goal {arguments.goal}: no such goal; choose one of {', '.join(sorted(met))}")
        return met[arguments.goal]
    if not 1 <= arguments.sessions <= 4:
        raise UsageError(f"--sessions {arguments.sessions}: must be from 1 to 4")
    try:
        with errors_as_usage(protocol):
            return replay(protocol, arguments.calls, arguments.sessions)
    except ValueError as error:
        raise UsageError(str(error)) from error


def write_to(path: Path | None, content: Content) -> None:
    if path is not None:
        write(path, content)
    else:
        assert isinstance(content, str)
        sys.stdout.write(content if content.endswith("\n") else content + "\n")
