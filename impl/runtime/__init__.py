"""The runtime: sessions that run, on asyncio and a store."""

from .outbox import Outbox
from .refusals import Busy, Closing, Moved, NoPrompt, NoSession, OtherVersion, Refusal, RunIdInUse, Stuck, TooLate
from .result import Result
from .run import Handle, Run
from .runtime import Runtime

__all__ = [
    "Busy", "Closing", "Handle", "Moved", "NoPrompt", "NoSession", "OtherVersion", "Outbox", "Refusal", "Result", "Run",
    "RunIdInUse", "Runtime", "Stuck", "TooLate",
]
