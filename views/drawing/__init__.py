"""Drawing tools: the theme, shapes, plots, Graphviz graphs, and their conversion to SVG and PNG."""
