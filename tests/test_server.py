"""The calls of the server over real sockets: what specs/wire.md says, call by call."""

import asyncio

from servers import serving


def test_a_prompt_is_accepted_runs_and_ends_once() -> None:
    async def main() -> None:
        async with serving() as server, server.client() as http:
            place = await server.workspace(http)
            async with place.watching() as watch:
                seq = await place.send("hello", "run-1")
                end = await watch.end("run-1")
                assert (end["outcome"], end["seq"]) == ("end_turn", seq)
                assert end["text"].startswith("You said: hello")
            assert await place.spoken() == [("user", None), ("assistant", "end_turn")]

    asyncio.run(main())
