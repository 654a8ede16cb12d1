"""Calls that other nodes come in between, and that are made again."""

from ..runtime import Moved
from ..runtime.refusals import Stale, repeated_on

CALLS = {"cancel", "clear_queue", "revoke", "stop", "hold", "resume", "replace", "next"}

repeated = repeated_on(Stale, Moved)
