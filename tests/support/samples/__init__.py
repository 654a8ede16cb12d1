"""Servers to try the kit on: what the kit must say of each is known."""
