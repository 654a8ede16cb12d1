"""Checking whether a server's log is a behaviour of the model."""
