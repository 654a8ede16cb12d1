"""The runtime and its store, within one process."""
