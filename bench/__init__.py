"""What is measured, and how to measure it again: `python -m cancelmark.bench`."""
