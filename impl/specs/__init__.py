"""What is generated in specs/: `python -m cancelmark.impl.specs`."""
