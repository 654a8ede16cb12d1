"""Judging somebody else's implementation. The one part of the model that may run asyncio."""
