"""Agents that we did not write, judged from outside: `make field`."""
