"""The runtime: sessions that run, on asyncio and a store."""

from .lane import Lane
from .refusals import Closing, Moved, NoSession, Refusal, RunIdInUse, Stuck
from .result import Result
from .run import Handle, Run
from .runtime import Runtime

__all__ = [
    "Closing", "Handle", "Lane", "Moved", "NoSession", "Refusal", "Result", "Run", "RunIdInUse", "Runtime", "Stuck",
]
