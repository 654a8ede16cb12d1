"""The runtime: sessions that run, on asyncio and a store."""

from .lane import Lane
from .refusals import Busy, Closing, Moved, NoPrompt, NoSession, OtherVersion, Refusal, RunIdInUse, Stuck, TooLate
from .result import Result
from .run import Handle, Run
from .runtime import Runtime

__all__ = [
    "Busy", "Closing", "Handle", "Lane", "Moved", "NoPrompt", "NoSession", "OtherVersion", "Refusal", "Result", "Run",
    "RunIdInUse", "Runtime", "Stuck", "TooLate",
]
