"""The runtime: runs sessions, on asyncio and a store."""

from .outbox import Outbox
from .refusals import (
    Busy,
    Closing,
    Leaving,
    Moved,
    NoPrompt,
    NoSession,
    OtherVersion,
    Refusal,
    RunIdInUse,
    Stuck,
    TooLate,
)
from .result import Result
from .run import Handle, Run
from .runtime import Runtime

__all__ = [
    "Busy", "Closing", "Handle", "Leaving", "Moved", "NoPrompt", "NoSession", "OtherVersion", "Outbox",
    "Refusal", "Result", "Run", "RunIdInUse", "Runtime", "Stuck", "TooLate",
]
