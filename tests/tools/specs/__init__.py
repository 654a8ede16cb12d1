"""Generators for specs/ and docs/: `make specs`."""
