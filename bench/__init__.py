"""Benchmarks: `python -m cancelmark.bench`."""
