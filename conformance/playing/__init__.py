"""Playing histories on a server: what clients do, and what is seen of it."""
