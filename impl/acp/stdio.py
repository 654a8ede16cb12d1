"""Standard input and output of this process as one side of a connection."""

import asyncio
import sys

from ..files import UsageError
from .peer import LONGEST, Peer


async def standard_streams() -> Peer:
    """A peer on standard input and output. Redirects all other output to standard error, to keep the protocol clean."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LONGEST)
    try:
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, sys.stdout.buffer)
    except ValueError as error:
        raise UsageError("standard input and output must be pipes; this command is meant to be started by an editor"
                         ) from error
    sys.stdout = sys.stderr
    return Peer(reader, transport)
