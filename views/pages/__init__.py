"""Pages of specs/ that nobody writes by hand, as Markdown: the tables, the family, the cluster and the proof."""
