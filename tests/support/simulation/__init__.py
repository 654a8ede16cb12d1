"""A whole cluster in one deterministic event loop: nodes of production code, and a PostgreSQL that is none."""
