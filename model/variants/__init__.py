"""Variants of the reference protocol, as values: policies of known servers, alternative designs, and plausible bugs."""
