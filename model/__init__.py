"""The model: what the protocol is, and what judges others by it. Pure: no I/O, no clock, no asyncio."""
