"""`cancelmark trace check` as people meet it: verdicts and exit codes, files of every kind, traces of real servers."""

import asyncio
import gc
import gzip
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from random import Random
from types import FunctionType, ModuleType
from typing import Any

import pytest
from support.commands import COMMAND, run_command
from support.kills import Observer
from support.long_trace import text
from support.paths import ROOT
from support.runtime_traces import do_everything, echo, write_trace
from support.runtimes import tool
from support.servers import Process

from cancelmark.conformance.trace.check import TraceCheck
from cancelmark.conformance.trace.records import FIELDS, NEEDED, parse_line, read_lines
from cancelmark.impl.client import Client
from cancelmark.impl.runtime.trace import TraceWriter
from cancelmark.impl.store import SqliteStore

GOOD = [
    {"action": "accept", "session": "s", "seq": 1, "run_id": "a"},
    {"action": "accept", "session": "s", "seq": 2, "run_id": "b"},
    {"action": "cancel", "session": "s"},
    {"effect": "end", "seq": 1, "outcome": "canceled"},
    {"effect": "end", "seq": 2, "outcome": "canceled"},
]


def ndjson(lines: Iterable[Any]) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def run(content: bytes | Path, *options: str, code: int = 0) -> str:
    """What the command says of a file, or of what it reads."""
    path, data = (str(content), b"") if isinstance(content, Path) else ("-", content)
    said = run_command("trace", "check", path, *options, code=code, given=data)
    assert (said.stdout == "") is (said.stderr != ""), "a report, or one line that says why there is none"
    return said.stdout or said.stderr


# --- verdicts ---------------------------------------------------------------------------------------------------

def test_a_behaviour_is_accepted_from_a_file_from_a_pipe_and_compressed(tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    for content in (ndjson(GOOD), gzip.compress(ndjson(GOOD)), ndjson(GOOD)[:-1], ndjson(GOOD).replace(b"\n", b"\r\n")):
        file.write_bytes(content)
        for given in (file, content):
            last = run(given).splitlines()[-1]
            assert re.fullmatch(
                r"lines=5 prompts=2 unfinished=0 lives=1 states=\d+ seconds=[\d.]+ verdict=accepted", last)


def test_a_pipe_between_processes() -> None:
    done = subprocess.run([*COMMAND, "trace", "check", "-"], input=gzip.compress(ndjson(GOOD)), capture_output=True,
                          check=True)
    assert done.stdout.endswith(b"verdict=accepted\n")
    assert done.stderr == b"", "no progress in a pipe"


def test_a_log_that_is_none_exits_1_and_says_where_and_what_instead() -> None:
    told = run(ndjson([GOOD[2], GOOD[0], GOOD[3]]), code=1)
    assert "the model does not allow line 3: end 1 canceled" in told
    assert "prompt 1 is accepted and cannot end as canceled" in told
    assert "before it, session s was:\n  mark 0; 1 accepted\n" in told
    assert "\n  end 1 error     outcome: error, not canceled\n" in told
    assert told.splitlines()[-1].endswith("verdict=rejected")


def test_json_has_the_same() -> None:
    told = json.loads(run(ndjson([GOOD[2], GOOD[0], GOOD[3]]), "--json", code=1))
    assert (told["verdict"], told["lines"], told["complete"]) == ("rejected", 3, False)
    assert told["rejected"]["line"] == 3
    assert told["rejected"]["states"] == ["mark 0; 1 accepted"]
    assert told["rejected"]["nearest"][0] == {
        "line": "end 1 error", "differs": {"outcome": {"model": "error", "line": "canceled"}}}
    assert json.loads(run(ndjson(GOOD), "--json"))["verdict"] == "accepted"


def test_complete_demands_every_step() -> None:
    assert "prompt 1 is accepted and covered and cannot end as canceled" in run(ndjson(GOOD), "--complete", code=1)


def test_what_cannot_be_decided_exits_2() -> None:
    many = [{"action": "accept", "session": "s", "seq": seq} for seq in range(1, 16)]
    told = run(ndjson([*many, {"action": "cancel", "session": "s"}, {"effect": "end", "seq": 2, "outcome": "end_turn"},
                       {"effect": "end", "seq": 2, "outcome": "end_turn"}, GOOD[3]]), code=1)
    assert "the model does not allow line 18: end 2 end_turn\nthere is no prompt 2" in told, "this is certain"
    wrong = [{"effect": "end", "seq": seq, "outcome": "end_turn"} for seq in range(15, 0, -1)]
    told = run(ndjson([*many, {"action": "cancel", "session": "s"}, *wrong]), code=2)
    assert re.search(r"cannot decide whether the model allows line \d+ \(end \d+ end_turn\): since line 16", told)
    assert told.splitlines()[-1].endswith("verdict=undecided")


def test_help_teaches_and_its_example_is_good() -> None:
    shown = run_command("trace", "check", "--help").stdout
    accept, cancel, requeue, hold, end = examples = [
        json.loads(found) for found in re.findall(r"^  (\{.*?\})", shown, re.MULTILINE)]
    assert requeue["action"] == "requeue"
    assert run(ndjson([hold, accept, cancel, end])).splitlines()[-1].endswith("verdict=accepted")
    for example in examples:
        parse_line(1, example)


# --- files of every kind ------------------------------------------------------------------------------------------

NUMBERED = [{**line, "n": n} for n, line in enumerate(GOOD[:3], 1)]


@pytest.mark.parametrize(("content", "says"), [
    (b"", "the log is empty; expected one JSON object per line"),
    (b"\n\n", "the log is empty"),
    (b"hello\n", "line 1: not JSON (Expecting value: line 1 column 1 (char 0)); a trace is NDJSON"),
    (b"hello", "line 1: not JSON"),
    (b"\x7fELF\x02\x00\x00\n", "line 1: binary data with a zero byte; a trace is UTF-8 text"),
    ("{}\n".encode("utf-16"), "line 1: binary data with a zero byte"),
    (b'{"action": "\xff"}\n', "line 1: not UTF-8 (invalid start byte at byte 13)"),
    (json.dumps(GOOD, indent=1).encode(), "line 1: not JSON"),
    (json.dumps(GOOD).encode(), "line 1: an array, not a JSON object; write one object per line"),
    (b"{}\n", "line 1: no action; each line is one action"),
    (b"[" * 100_000, "line 1: not JSON"),
    (ndjson([{"level": "info", "message": "started"}]), "line 1: unknown field 'level'; choose from action"),
    (ndjson([*GOOD[:2], {"action": "fly"}]), 'line 3: action is "fly"; it must be one of accept, enter'),
    (ndjson([{"action": "crash"}]), 'line 1: action is "crash"'),
    (ndjson([{"action": "accept", "session": "s"}]), "line 1: accept has no seq; it must be an integer from 1"),
    (ndjson([{"action": "accept", "session": None, "seq": 1}]), "line 1: accept has no session"),
    (ndjson([{"action": "finish", "seq": 1}]), "line 1: finish has no outcome"),
    (ndjson([{"action": "finish", "seq": 1, "outcome": "folded"}]), "outcome of a turn is end_turn, error or canceled"),
    (ndjson([{"action": "accept", "session": "s", "seq": True}]), "line 1: seq is true"),
    (ndjson([{"action": "accept", "session": "s", "seq": 10 ** 30}]), "line 1: seq is 1000"),
    (ndjson([{"action": "cancel", "session": "s", "outcome": "error"}]), "only end, finish may"),
    (ndjson([{"action": "close", "session": "s"}]), "it applies to all sessions: omit the session"),
    (ndjson([{**GOOD[0], "effect": "end"}]), "line 1: both an action and an effect"),
    (ndjson([{**GOOD[0], "v": 2}]), "line 1: v is 2; it must be the number 1"),
    (ndjson([{**GOOD[0], "rows": [{"seq": 1}]}]), 'line 1: rows is [{"seq": 1}]; it must be a list of'),
    (ndjson([{**GOOD[0], "effects": [{"effect": "end", "seq": 1}]}]), "line 1: effects is"),
    (ndjson([{**GOOD[0], "if_busy": "wait"}]), 'line 1: if_busy is "wait"; it must be queue, reject or interrupt'),
    (ndjson([{**GOOD[2], "if_busy": "queue"}]), "line 1: cancel must not have the field if_busy; only accept may"),
    (ndjson([{**GOOD[0], "held": 1}]), "line 1: held is 1; it must be true or false"),
    (ndjson([{**GOOD[0], "traits": [{"seq": 1}]}]), 'line 1: traits is [{"seq": 1}]; it must be a list of'),
    (ndjson([{"action": "recover", "found": {"s": {"mark": 0, "held": 1, "prompts": []}}}]), "line 1: found is"),
    (ndjson([{"action": "next"}]), "line 1: next has no seq"),
    (ndjson([{"action": "stop"}]), "line 1: stop has no session"),
    (ndjson([GOOD[0], GOOD[1], {**GOOD[0], "seq": 3, "run_id": "c", "if_busy": "reject", "after": 1}]),
     "line 3: a late acceptance with reject, in a trace that omits steps"),
    (ndjson(GOOD[:2]) + b"{broken\n" + ndjson(GOOD[2:]), "line 3: not JSON"),
    (ndjson(GOOD)[:-3] + b"\n", "line 5: not JSON"),
    (ndjson([NUMBERED[0], NUMBERED[2]]), "line 2: n is 3, but 2 was expected: lines are missing or out of order"),
    (ndjson([NUMBERED[0], NUMBERED[1], NUMBERED[1]]), "line 3: n is 2, but 3 was expected: lines are duplicate"),
    (ndjson([NUMBERED[0], GOOD[1]]), "line 2: no n, although the lines before it have one; number all lines, or none"),
    (ndjson([GOOD[0], NUMBERED[1]]), "line 2: an n, although the lines before it have none"),
    (ndjson([NUMBERED[0], NUMBERED[0]]), "line 2: n is 1, but this is not a recover with `found`"),
    (gzip.compress(ndjson(GOOD))[:-12], "the compressed file is damaged after line"),
    (gzip.compress(ndjson(GOOD))[:30] + b"xxxxxxxx", "the compressed file is damaged after line"),
    (b"\x1f\x8bnot gzip at all", "the compressed file is damaged after line 0"),
    (gzip.compress(ndjson(GOOD)) + b"more", "the compressed file is damaged after line 5"),
], ids=lambda value: value[:40] if isinstance(value, str) else "")
def test_a_file_that_is_no_trace_is_refused_with_line_and_remedy(content: bytes, says: str) -> None:
    told = run(content, code=2)
    assert told.startswith("cancelmark: standard input: ")
    assert says in told
    assert ";" in told
    assert len(told.splitlines()) == 1


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert "cannot read" in run(tmp_path, code=2)
    assert "No such file" in run(tmp_path / "nothing", code=2)


def test_fields_of_the_writers_own_begin_with_an_underscore() -> None:
    run(ndjson([{**line, "_level": "info"} for line in GOOD]))


def test_a_torn_last_line_is_said_so_and_not_judged() -> None:
    told = run(ndjson(GOOD)[:-5])
    assert "line 5 is truncated, as after a crash; it was not checked" in told
    assert "lines=4 prompts=2 unfinished=1" in told


# --- traces of real servers -----------------------------------------------------------------------------------------

def test_the_trace_of_a_runtime_in_which_everything_happens_is_accepted(tmp_path: Path) -> None:
    path = write_trace(tmp_path, SqliteStore(tmp_path / "test.db"), do_everything, tools=[tool("read", echo)])
    assert "(complete log)" in run(path)


def test_the_trace_of_lives_that_end_in_a_kill_is_accepted_also_with_torn_lines(tmp_path: Path) -> None:
    path, trace = tmp_path / "test.db", tmp_path / "test.db.ndjson"
    random, observer, seed = Random(2), Observer(), 0
    while observer.kills < 8:
        seed += 1
        observer.live(path, seed, random)
        if trace.exists() and seed == 3:  # as a machine that stops would leave it
            trace.write_bytes(trace.read_bytes()[:-20])
    told = json.loads(run(trace, "--json"))
    assert (told["verdict"], told["complete"], len(told["torn"])) == ("accepted", True, 1)
    assert seed - 1 <= told["lives"] <= seed, "one may have had no other line than the torn one"
    lines = trace.read_text().splitlines()
    lost = next(number for number, line in reversed(list(enumerate(lines))) if '"state":"active"' in line)
    found = json.loads(lines[lost])
    for session in found["found"].values():
        session["prompts"] = [prompt for prompt in session["prompts"] if prompt["state"] != "active"]
    trace.write_text("\n".join([*lines[:lost], json.dumps(found), *lines[lost + 1:]]) + "\n")
    assert f"the model does not allow line {lost + 1}" in run(trace, code=1), "a prompt that a restart loses"


def test_the_reference_has_no_call_of_the_family() -> None:
    for line in ({"action": "hold", "session": "s"}, {"action": "stop", "session": "s", "hold": True},
                 {**GOOD[0], "if_busy": "interrupt"}):
        run(ndjson([line]))
        assert f"protocol ref has no {line.get('if_busy') or line['action']}" in run(
            ndjson([line]), "--protocol", "ref", code=1)


def test_the_trace_of_a_server_that_is_killed_and_started_again_is_accepted(tmp_path: Path) -> None:
    server = Process(tmp_path / "data", "--trace", str(tmp_path / "traces"), "--pace", "0.01")

    async def talk(name: str) -> None:
        async with asyncio.timeout(60), Client(server.url) as client:
            workspace = await client.open_workspace(str(tmp_path))
            await client.init_agent(workspace.id)
            session = await client.create_session(workspace.id, "talk")
            for number in range(6):
                await client.send(workspace.id, session.id, f"slow: {number}", f"{name}-{number}")
            await client.cancel(workspace.id, session.id)
            await client.send(workspace.id, session.id, "fast: again")

    with server:
        asyncio.run(talk("first"))
        server.kill()
        server.start()
        asyncio.run(talk("second"))
        assert server.stop() == 0
    [trace] = (tmp_path / "traces").iterdir()
    told = json.loads(run(trace, "--json"))
    assert (told["verdict"], told["lives"], told["prompts"]) == ("accepted", 2, 14)


def test_a_trace_goes_on_behind_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.ndjson"
    for _ in range(2):
        with TraceWriter(path) as trace:
            trace.everywhere("recover", [], [], {})
    path.write_bytes(path.read_bytes() + b'{"v":1,"n":2,"ti')
    with TraceWriter(path) as trace:
        trace.everywhere("recover", [], [], {})
    told = json.loads(run(path, "--json"))
    assert (told["verdict"], told["lives"], told["torn"]) == ("accepted", 3, [3])


# --- a stream -------------------------------------------------------------------------------------------------------

class Stream(io.RawIOBase):
    """A file that is made while it is read."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines, self._rest = iter(lines), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest and (line := next(self._lines, None)):
            self._rest = line.encode()
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def peak(style: str, count: int, leak: bool = False) -> int:
    """Bytes that a check has in mind at most, looked at now and then."""
    check, most = TraceCheck(), 0
    for number, line in enumerate(read_lines(io.BufferedReader(Stream(text(count, style)))), 1):
        check.take(line)
        if leak:
            check.torn.append(number)
        if number % 500 == 0:
            most = max(most, weight(check))
    assert check.lines == count
    return most


def weight(root: object) -> int:
    """The bytes of everything that can be reached from it, apart from what a program has anyway."""
    seen: dict[int, object] = {}
    todo = [root]
    while todo:
        one = todo.pop()
        if id(one) not in seen and not isinstance(one, type | ModuleType | FunctionType | Enum):
            seen[id(one)] = one
            todo += gc.get_referents(one)
    return sum(map(sys.getsizeof, seen.values()))


@pytest.mark.long
@pytest.mark.parametrize(("style", "count"), [("complete", 1500), ("observed", 700)])
def test_memory_does_not_grow_with_the_lines(style: str, count: int) -> None:
    assert peak(style, 10 * count) < 2 * peak(style, count)


@pytest.mark.long
def test_a_leak_would_be_noticed() -> None:
    assert peak("complete", 10_000, leak=True) > 2 * peak("complete", 1000, leak=True)


# --- the format -------------------------------------------------------------------------------------------------------

def test_every_field_of_the_runtimes_schema_is_one_of_the_format() -> None:
    schema = json.loads((ROOT / "specs" / "trace.schema.json").read_text())
    assert set(schema["properties"]) == set(FIELDS) - {"effect"}
    assert set(schema["properties"]["action"]["enum"]) == set(NEEDED) - {"start", "end"}
