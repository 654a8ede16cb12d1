"""Diagrams and traces: Graphviz, Mermaid, SVG, PNG, text, and ITF for other tools.

Views return their output and write no files. The same input always gives the same bytes.
"""
