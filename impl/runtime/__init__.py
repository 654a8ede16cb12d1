"""The runtime: sessions that run, on asyncio and a store."""

from .run import Handle, Result, Run
from .runtime import Closing, Lane, NoSession, Refusal, RunIdInUse, Runtime, Stuck

__all__ = ["Closing", "Handle", "Lane", "NoSession", "Refusal", "Result", "Run", "RunIdInUse", "Runtime", "Stuck"]
