"""Three servers and a PostgreSQL on this machine, to try out; then one of them is killed, and you see what happens.

    make cluster                    shows the failover, and goes on serving until Ctrl-C
    … tests/tools/cluster.py --once   ends after the failover
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from support.postgres import PostgresServer, find_tool
from support.servers import Place, Process, web

LEASE = ("--lease", "3", "--poll", "0.5", "--pace", "0.2", "--log-level", "error")


class Show:
    """What happens, with the seconds since it began."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:5.1f} s  {text}", flush=True)


def owner_of(database: PostgresServer, nodes: list[Process], session: str) -> str:
    """The name of the node that owns the session."""
    rows = database.execute("SELECT n.url FROM cancelmark.sessions s JOIN cancelmark.nodes n ON n.id = s.owner"
                            f" WHERE s.id = '{session}'")
    urls = [node.url for node in nodes]
    return f"node {urls.index(str(rows[0][0])) + 1}" if rows and rows[0][0] in urls else "nobody"


async def show_failover(database: PostgresServer, nodes: list[Process]) -> None:
    show = Show()
    async with web(nodes[0].url) as first, web(nodes[1].url) as second:
        told: Any = (await first.post("/v1/workspaces", json={"path": str(Path.cwd())})).json()
        (await first.post(f"/v1/workspaces/{told['id']}/agent/init", json={})).raise_for_status()
        place = Place(first, told["id"])
        place.session = await place.new_session("a failover")
        there = place.seen_by(second)
        async with there.watching() as watch:
            await place.send("slow: a long story", "story")
            await there.send("and then?", "question")
            await there.until(lambda prompts: [p["state"] for p in prompts] == ["active", "queued"])
            show.say(f"a story was sent to node 1, a question to node 2; {owner_of(database, nodes, place.session)} "
                     "runs the story, the question waits")
            await asyncio.sleep(1)
            nodes[0].kill()
            show.say("node 1 is killed; a client watches at node 2")
            end = await watch.end("story")
            show.say(f"the story ended: {end['outcome']} ({end['error']})")
            show.say(f"the question is run by {owner_of(database, nodes, place.session)}")
            end = await watch.end("question")
            show.say(f"the question ended: {end['outcome']}; each end was seen once: {watch.ends()}")
        nodes[0].start()
        show.say("node 1 is back")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--once", action="store_true", help="end after the failover")
    given = parser.parse_args()
    if find_tool("postgres") is None:
        print("this needs a PostgreSQL server (Debian: apt install postgresql)", file=sys.stderr)
        return 2
    directory = Path(tempfile.mkdtemp(prefix="cancelmark-cluster-"))
    database = PostgresServer()
    try:
        with ExitStack() as stack:
            options = ("--database", database.url("postgres"), *LEASE)
            nodes = [stack.enter_context(Process(directory / f"node{n}", *options)) for n in (1, 2, 3)]
            for number, node in enumerate(nodes, 1):
                print(f"node {number}: {node.url}/")
            print(f"database: {database.url('postgres')}")
            asyncio.run(show_failover(database, nodes))
            if not given.once:
                print("serving (Ctrl-C stops)", flush=True)
                try:
                    while True:
                        time.sleep(1)
                except KeyboardInterrupt:
                    print()
            for node in nodes:
                node.stop()
    finally:
        database.remove()
        shutil.rmtree(directory, ignore_errors=True)
    print("all nodes and the database are stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
