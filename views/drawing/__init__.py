"""What pictures are made of: the theme, shapes, plots, Graphviz graphs, and the way from a graph to SVG and PNG."""
