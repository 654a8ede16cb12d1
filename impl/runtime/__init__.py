"""The runtime: runs sessions, on asyncio and a store."""

from .outbox import Outbox
from .questions import AskUser, Reply
from .refusals import (
    Busy,
    Closing,
    Leaving,
    Moved,
    NoPrompt,
    NoQuestion,
    NoSession,
    OtherVersion,
    QuestionClosed,
    Refusal,
    RunIdInUse,
    Stuck,
    TooLate,
)
from .result import Result
from .run import Handle, Run
from .runtime import Runtime
from .turn import ToolRunner

__all__ = [
    "AskUser", "Busy", "Closing", "Handle", "Leaving", "Moved", "NoPrompt", "NoQuestion", "NoSession",
    "OtherVersion", "Outbox", "QuestionClosed", "Refusal", "Reply", "Result", "Run", "RunIdInUse", "Runtime",
    "Stuck", "TooLate", "ToolRunner",
]
