"""Diagrams and traces for people: Graphviz, Mermaid, SVG, PNG, text, and ITF for other tools.

Views return what they made, and write nothing. The same input gives the same bytes.
"""

from .chain import trace_dot
from .itf import itf_calls, trace_itf
from .lifecycle import lifecycle_graph, lifecycle_mermaid
from .lifelines import sequence_svg
from .render import render_png, render_svg
from .sequence import trace_mermaid
from .session import session_graph, session_mermaid
from .timeline import trace_svg
from .trace import trace_text

__all__ = [
    "itf_calls", "lifecycle_graph", "lifecycle_mermaid", "render_png", "render_svg", "sequence_svg",
    "session_graph", "session_mermaid", "trace_dot", "trace_itf", "trace_mermaid", "trace_svg", "trace_text",
]
