"""Standard input and output of this process, as one side of a connection."""

import asyncio
import sys

from ..files import UsageError
from .peer import LONGEST, Peer


async def standard_streams() -> Peer:
    """Nothing else may be written to standard output: whatever prints goes to standard error from now on."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LONGEST)
    try:
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, sys.stdout.buffer)
    except ValueError as error:
        raise UsageError("standard input and output have to be pipes: an editor starts this command, and speaks to it "
                         "through them") from error
    sys.stdout = sys.stderr
    return Peer(reader, transport)
