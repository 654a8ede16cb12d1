"""Strangers who mean a server harm: random requests and connections that no honest client makes.

    python strangers.py PORT SEED [TOKEN WORKSPACE SESSION]

Each line on standard input is a number of attacks. They are played, several at a time, and a line of JSON says what was
answered to each kind. Those who have the token know the workspace and the session too.
"""

import asyncio
import json
import os
import re
import socket
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

AT_ONCE = 4
PATIENCE = 60.0
KEPT = 200  # connections that are left open, the oldest of which is then torn down

ODD = (b"http://[", b"http://[::1", b"//", b"\xff\xfe", b"null", b"http://127.0.0.1:99999999", b"[", b":", b"::::", b"",
       b"a" * 3000, b"%zz%ff%00", b"http://\xe2\x98\x83", b"-1", b"+1", b"0x10", b"1e9", b"9" * 5000, b"\xb2", b"1_0",
       b"99999999999999999999", b"LOG-1", b"x-9999999999999999999999", b"-", b"--1", b"1;2", b"1,1", b"1, 2", b"\t")
HEADERS = (b"origin", b"host", b"referer", b"last-event-id", b"content-length", b"transfer-encoding", b"authorization",
           b"sec-fetch-site", b"cookie", b"connection", b"upgrade", b"expect", b"range", b"content-type", b"x-odd")
HOST = b"\r\nhost: localhost\r\n"
NO_HTTP = (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200, b"PRI * HTTP/2.0\r\n\r\nSM\r\n", b"GET /",
           b"\0" * 300, b"GET  /  HTTP/1.1", b"GET /nowhere HTTP/9.9" + HOST, b"\r\n" * 3000,
           b"GET /nowhere HTTP/1.1\nhost: localhost\n", b"CONNECT localhost:1 HTTP/1.1" + HOST,
           b"OPTIONS * HTTP/1.1" + HOST, b"GET / HTTP/1.1\r\n host: localhost",
           b"GET /nowhere HTTP/1.1" + HOST + b" folded: x",
           b"GET http://[ HTTP/1.1" + HOST, b"GET / HTTP/1.1\r\nho st: localhost", b"G\xff /x HTTP/1.1" + HOST)
PATHS = ("/proc/1/root", "/proc/self/fd/0", "/proc/1/exe/x", "/" + "x" * 4000, "/" + "d/" * 2000, "relative",
         "/a\0b", "")


@dataclass(frozen=True)
class Attack:
    """What is sent, in pieces, and what is done then."""

    kind: str
    pieces: Sequence[bytes]
    then: str = "read"  # or reset, or leave open
    good: bool = False  # it may be answered with 200 or the like: it is hostile by its number alone


@dataclass
class Stranger:
    """One who makes attacks from a seed."""

    random: Random
    token: str = ""
    workspace: str = "unknown"
    session: str = "unknown"
    kinds: dict[str, Callable[[], Attack]] = field(init=False)

    def __post_init__(self) -> None:
        self.kinds = {name.removeprefix("make_"): getattr(self, name) for name in dir(self) if name.startswith("make_")}

    def attack(self) -> Attack:
        return self.kinds[self.random.choice(sorted(self.kinds))]()

    # --- parts of requests

    def head(self, method: str, path: str, *more: bytes, token: bool | None = None) -> bytes:
        lines = [f"{method} {path} HTTP/1.1".encode(), b"host: localhost", *more]
        if self.token and (self.random.random() < 0.5 if token is None else token):
            lines.append(f"authorization: Bearer {self.token}".encode())
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def path(self) -> str:
        workspace = f"/v1/workspaces/{self.random.choice([self.workspace, 'unknown', '%00', '%ff'])}"
        session = f"{workspace}/agent/sessions/{self.random.choice([self.session, 'unknown', '*'])}"
        prompt = f"{session}/prompts/{self.random.choice(['unknown', '%00', '%ff', '..', 'x' * 3000])}"
        return self.random.choice([
            "/v1/health", "/v1/workspaces", f"{workspace}/agent", f"{workspace}/sessions", f"{session}/prompts",
            "/v1/clients/x", "/app.js", "/metrics", "/nowhere", f"{workspace}/events?client_id=x", prompt,
            f"{prompt}/text", f"{prompt}/next", f"{session}/stop", f"{session}/hold", f"{session}/resume"])

    def body(self) -> bytes:
        size = 2 ** self.random.randint(4, 17 if self.random.random() < 0.97 else 20)
        unit = self.random.choice([b"[", b'{"a":', b"[],", b"{},", b"1e300,", b'"\\n",', b"\\", b'"', b",", b" ", b"\n",
                                   b"\xff", b"\\ud800", b"9", b"\0", b'"a":1,'])
        names = b"{%s}" % b",".join(b'"%d":0' % (n % (size // 16)) for n in range(size // 8))
        return self.random.choice([
            unit * (size // len(unit)), b"[%s1]" % (unit * (size // len(unit))), names,
            b'{"session_id":"s","prompt":"%s"}' % (unit * (size // len(unit))), self.random.randbytes(size),
            b"[0.%s]" % (b"1" * size), b"[" * 500 + b"]" * 500])

    # --- kinds

    def make_header(self) -> Attack:
        name, value = self.random.choice(HEADERS), self.random.choice(ODD)
        method = self.random.choice(["GET", "POST", "PUT", "DELETE"])
        return Attack("header", [self.head(method, self.path(), name + b": " + value)], good=True)

    def make_query(self) -> Attack:
        query = self.random.choice([b"client_id=%ff", b"client_id=" + b"x" * 5000, b"&" * 5000, b"%", b"=" * 100,
                                    b"limit=-1", b"limit=%C2%B2", b"limit=" + b"9" * 5000, b"before=%00", b"before=x"])
        list = self.random.choice(["events", "sessions", f"sessions/{self.session}/messages"])
        path = f"/v1/workspaces/{self.workspace}/{list}?{query.decode()}"
        return Attack("query", [self.head("GET", path)], good=True)

    def make_body(self) -> Attack:
        body = self.body()
        workspace = f"/v1/workspaces/{self.workspace}"
        session = f"{workspace}/agent/sessions/{self.session}"
        method, path = self.random.choice([
            ("POST", "/v1/workspaces"), ("POST", f"{workspace}/agent"), ("POST", f"{workspace}/sessions"),
            ("POST", f"{session}/stop"), ("PUT", f"{session}/prompts/unknown/text")])
        return Attack("body", [self.head(method, path, b"content-length: %d" % len(body)), body], good=True)

    def make_workspace(self) -> Attack:
        path = self.random.choice([*PATHS, f"/hostile/{self.random.randrange(10_000)}"])
        body = json.dumps({"path": path}).encode()
        return Attack("workspace", [self.head("POST", "/v1/workspaces", b"content-length: %d" % len(body)) + body],
                      good=True)

    def make_method(self) -> Attack:
        return Attack("method", [self.head(f"M{self.random.randrange(10**9)}", self.path())])

    def make_no_http(self) -> Attack:
        return Attack("no http", [self.random.choice([*NO_HTTP, self.random.randbytes(300)]) + b"\r\n\r\n"])

    def make_large_head(self) -> Attack:
        many = b"".join(b"h%d: x\r\n" % n for n in range(self.random.randint(1, 6000)))
        return Attack("large head", [b"GET /nowhere HTTP/1.1\r\nhost: localhost\r\n" + many + b"\r\n"])

    def make_chunks(self) -> Attack:
        head = self.head("POST", self.path(), b"transfer-encoding: chunked")
        chunk = self.random.choice([
            b"zz\r\n", b"-1\r\n\r\n", b"f" * 30 + b"\r\n", b"5\r\nab\r\n\r\n", b"1\r\nx\r\n" * 1500,
            b"1;" + b"x" * 9000 + b"\r\nx\r\n", b"0\r\n" + b"a: b\r\n" * 100 + b"\r\n", b"0\r\n\xff\r\n\r\n"])
        return Attack("chunks", [head, chunk] if self.random.random() < 0.5 else [head + chunk], good=True)

    def make_two_lengths(self) -> Attack:
        more = self.random.choice([(b"content-length: 3", b"content-length: 4"),
                                   (b"content-length: 3", b"transfer-encoding: chunked"),
                                   (b"transfer-encoding: gzip",), (b"transfer-encoding: chunked, chunked",)])
        return Attack("two lengths", [self.head("POST", "/v1/workspaces", *more) + b"abcd\r\n0\r\n\r\n"])

    def make_slow(self) -> Attack:
        whole = self.head("POST", self.path(), b"content-length: 100") + b"{"
        return Attack("slow", [whole[:self.random.randint(0, len(whole))]], "leave")

    def make_torn(self) -> Attack:
        whole = self.head("POST", self.path(), b"content-length: 2") + b"{}"
        return Attack("torn", [whole[:self.random.randint(0, len(whole))]], "reset")

    def make_unread(self) -> Attack:
        return Attack("unread", [self.head("GET", "/app.js") * self.random.randint(1, 30)],
                      self.random.choice(["leave", "reset"]))

    def make_stalled_stream(self) -> Attack:
        place = self.random.choice([[], [b"last-event-id: " + self.random.choice(ODD[12:])]])
        client = f"{self.random.getrandbits(128):032x}"
        client = "-".join((client[:8], client[8:12], client[12:16], client[16:20], client[20:]))
        head = self.head("GET", f"/v1/workspaces/{self.workspace}/events?client_id={client}", *place)
        return Attack("stalled stream", [head], self.random.choice(["reset", "reset", "leave"]))


class Raid:
    """Attacks on one server."""

    def __init__(self, port: int, stranger: Stranger) -> None:
        self._port, self._stranger = port, stranger
        self._kept: list[socket.socket] = []
        self.answers: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def play(self, attacks: int) -> None:
        todo = iter(range(attacks))

        async def one_after_another() -> None:
            for _ in todo:
                await self._play(self._stranger.attack())

        await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))

    async def _play(self, attack: Attack) -> None:
        loop = asyncio.get_running_loop()
        made = socket.socket()
        made.setblocking(False)
        said = b""
        try:
            await loop.sock_connect(made, ("127.0.0.1", self._port))
            async with asyncio.timeout(PATIENCE):
                for piece in attack.pieces:
                    await loop.sock_sendall(made, piece)
                    if len(attack.pieces) > 1:
                        await asyncio.sleep(0)
                if attack.then == "read":
                    said = await self._read(loop, made)
        except TimeoutError:
            self.wrong.append(f"{attack.kind}: no answer to {attack.pieces[0][:200]!r}")
        except OSError:
            pass  # it was thrown out
        self._judge(attack, said)
        self._part(made, attack.then)

    async def _read(self, loop: asyncio.AbstractEventLoop, made: socket.socket) -> bytes:
        """The head of an answer. Who has not sent all that it said it would is not answered for a while."""
        with suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                return await loop.sock_recv(made, 65_536)
        return b""

    def _judge(self, attack: Attack, said: bytes) -> None:
        found = re.match(rb"HTTP/1\.1 (\d\d\d) ", said)
        status = found[1].decode() if found else "none"
        self.answers[f"{attack.kind} {status}"] += 1
        if (said and not found) or status[0] == "5" or (status[0] == "2" and not attack.good):
            self.wrong.append(f"{attack.kind}: {said[:300]!r} to {attack.pieces[0][:300]!r}")

    def _part(self, made: socket.socket, how: str) -> None:
        self._kept.append(made)
        oldest = self._kept.pop() if how != "leave" else self._kept.pop(0) if len(self._kept) > KEPT else None
        if oldest:
            if how != "read":
                with suppress(OSError):
                    oldest.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            oldest.close()


async def main(port: str, seed: str, *known: str) -> None:
    raid = Raid(int(port), Stranger(Random(int(seed)), *known))
    orders: Any = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := await orders.readline():
        await raid.play(int(line))
        print(json.dumps({"answers": raid.answers, "wrong": raid.wrong[:10]}), flush=True)


if __name__ == "__main__":
    os.nice(5)
    asyncio.run(main(*sys.argv[1:]))
