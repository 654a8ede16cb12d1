"""The model checker: explores every reachable state of a protocol within bounds, and checks every property."""
