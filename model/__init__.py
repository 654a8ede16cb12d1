"""The protocol: its table, its actions, its properties. Pure: no I/O, no clock, no asyncio."""
