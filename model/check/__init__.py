"""Searching a protocol: every reachable state within bounds, judged on the way."""
