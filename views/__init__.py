"""Diagrams and traces for people: Graphviz, Mermaid, SVG, PNG, text, and ITF for other tools.

Views return what they made, and write nothing. The same input gives the same bytes.
"""
