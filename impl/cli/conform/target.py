"""The server that `cancelmark conform` judges: one that speaks our wire protocol, or one with an adapter."""

import argparse
import asyncio
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from math import inf
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from uuid import uuid4

from ...files import UsageError

if TYPE_CHECKING:
    from cancelmark.conformance.adapter import MakeAdapter
    from cancelmark.conformance.playing.script import Script
    from cancelmark.conformance.playing.venue import MakeFake

ANSWER = 10.0  # seconds for the first response
PATIENCE = 3.0  # seconds without activity after which the kit gives up waiting, at least
TIMES = 5  # runs in the command that reproduces a finding
UNTIL = "60s"  # for which that command repeats a race
TOKEN = '--token "$TOKEN"'  # in that command, so that the token itself is not printed
WIRE_ONLY = ("token", "token_file", "workspace", "grace", "keep_open")


@dataclass(frozen=True)
class Target:
    """A server to judge."""

    name: str
    make: "MakeAdapter"
    outside: bool
    options: str  # the command-line arguments that select it, quoted for a shell
    plain_errors: tuple[type[Exception], ...] = ()
    command: str = ""  # the agent's own command, after all options
    fake: "MakeFake | None" = None  # makes the language model, if it is not the usual one

    def reproduce(self, script: "Script") -> str:
        """The command that replays a script."""
        how = f"--until {UNTIL}" if self.outside and script.is_race else f"--times {TIMES}"
        return f"cancelmark conform {self.options} --script {shlex.quote(str(script))} {how}{self.command}"

    def explain(self, error: Exception) -> str:
        """Why it cannot be judged. The message of an error in `plain_errors` is enough, without its type and origin."""
        return str(error.__cause__ if isinstance(error.__cause__, self.plain_errors) else error)


@contextmanager
def find_target(arguments: argparse.Namespace) -> Iterator[Target]:
    """The server to judge. Raises `UsageError` if it cannot be judged."""
    if (arguments.url is None) == (arguments.adapter is None):
        raise UsageError("conform: give either the URL of a server that speaks our wire protocol, or --adapter "
                         "module:Class")
    with _wire(arguments) if arguments.adapter is None else _adapted(arguments) as target:
        if arguments.llm_port is not None and not target.outside:
            raise UsageError(f"--llm-port {arguments.llm_port}: {target.name} runs in this process and needs no port; "
                             "omit --llm-port, or set `outside = True` in the adapter")
        yield target


@contextmanager
def _adapted(arguments: argparse.Namespace) -> Iterator[Target]:
    from cancelmark.conformance.adapter.loading import CannotLoad, importable, load_adapter

    if given := [name for name in WIRE_ONLY if getattr(arguments, name)]:
        raise UsageError(f"--{given[0].replace('_', '-')} does not apply with --adapter; configure the adapter itself")
    with importable(arguments.adapter.rpartition(":")[0]):
        try:
            make = load_adapter(arguments.adapter)
        except CannotLoad as error:
            raise UsageError(f"--adapter {arguments.adapter}: {error}") from error
        options = ["--adapter", arguments.adapter, *port_options(arguments)]
        yield Target(arguments.adapter, make, make().outside, shlex.join(options))


@contextmanager
def _wire(arguments: argparse.Namespace) -> Iterator[Target]:
    from ...adapters.wire import OpenWireAdapter, WireAdapter
    from ...client import ClientError

    urls, token = [url.rstrip("/") for url in (arguments.url, *arguments.others)], token_of(arguments)
    identifies_by_seq = min(asyncio.run(probe_server(url, token)) for url in urls)
    if arguments.grace is not None and len(urls) > 1:
        raise UsageError(f"--grace {arguments.grace:g}: does not apply to a cluster, whose nodes close a workspace "
                         "only on request; omit it")
    if arguments.grace is not None and not 0 <= arguments.grace < inf:
        raise UsageError(f"--grace {arguments.grace}: give the seconds for which the server waits without subscribers, "
                         "0 or more")
    kind = OpenWireAdapter if arguments.keep_open else WireAdapter
    kind.patience = PATIENCE
    given = [*(["--token-file", str(arguments.token_file)] if arguments.token_file else []), *port_options(arguments),
             *(["--workspace", str(arguments.workspace)] if arguments.workspace else []),
             *(["--grace", f"{arguments.grace:g}"] if arguments.grace is not None else []),
             *(["--keep-open"] if arguments.keep_open else [])]
    hidden = [TOKEN] if arguments.token and not arguments.token_file else []
    with _workspace(urls, arguments.workspace) as workspace:
        asyncio.run(check_same_cluster(urls, token, workspace))
        offered = asyncio.run(probe_calls(urls, token, workspace))
        yield Target(", ".join(urls), lambda: kind(*urls, token=token, workspace=workspace, grace=arguments.grace,
                                                   offered=offered, identifies_by_seq=identifies_by_seq), True,
                     " ".join([*map(shlex.quote, urls), *hidden, *map(shlex.quote, given)]), (ClientError,))


def port_options(arguments: argparse.Namespace) -> list[str]:
    """The --llm-port option, for the command that reproduces a finding."""
    return [] if arguments.llm_port is None else ["--llm-port", str(arguments.llm_port)]


@contextmanager
def _workspace(urls: Sequence[str], given: str | None) -> Iterator[str]:
    """The path of the workspace: the given one, a temporary directory if the server is local, or else a unique name."""
    if given is not None:
        if not given:
            raise UsageError("--workspace: the path is empty; give a path, or omit the option")
        yield given
    elif all(map(is_local, urls)):
        with tempfile.TemporaryDirectory(prefix="cancelmark-conform-", ignore_cleanup_errors=True) as directory:
            yield directory
    else:
        yield f"/cancelmark-conform-{uuid4()}"


def is_local(url: str) -> bool:
    """Whether the server is certainly on this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return url.startswith("unix:") or host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def token_of(arguments: argparse.Namespace) -> str | None:
    if arguments.token_file is None:
        return str(arguments.token) if arguments.token else None
    try:
        return str(arguments.token_file.read_text().strip())
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not a text file"
        raise UsageError(f"--token-file: cannot read {arguments.token_file}: {why}") from error


async def probe_calls(urls: Sequence[str], token: str | None, workspace: str) -> frozenset[str]:
    """The optional calls that the server has; in a cluster, those that all nodes have."""
    from ...adapters.offered import find_calls
    from ...client import ClientError

    try:
        async with asyncio.timeout(3 * ANSWER * len(urls)):
            return frozenset.intersection(*[await find_calls(url, token, workspace) for url in urls])
    except TimeoutError:
        raise UsageError(f"{', '.join(urls)}: no response within {3 * ANSWER * len(urls):g} s; no prompt was accepted, "
                         "and the result is inconclusive") from None
    except ClientError as error:
        raise UsageError(f"{error}; no prompt was accepted, and the result is inconclusive") from error


async def probe_server(url: str, token: str | None) -> bool:
    """Connect to the server. Returns whether a terminal event names a prompt that has no run id, by its seq, as in
    every version but the original. Raises `UsageError` if there is no server that can be judged."""
    from ...client import BadAnswer, Client, ClientError, Refusal

    try:
        client = Client(url, token=token)
    except ValueError as error:
        raise UsageError(str(error)) from error
    async with client:
        try:
            async with asyncio.timeout(ANSWER):
                await client.health()
                await client.workspaces()
                return (await client.version()).protocol > 0
        except TimeoutError:
            raise UsageError(f"{url}: no response within {ANSWER:g} s; check that a server of this wire protocol runs "
                             "there") from None
        except Refusal as error:
            if error.status in (401, 403):
                wrong = "the token is wrong" if token else "the server requires a token; give it with --token"
                raise UsageError(f"{error}; {wrong}") from error
            raise UsageError(f"{url} responds with {error.status}, so it is not a server of this wire protocol; for "
                             "another one write an adapter (see --help)") from error
        except BadAnswer as error:
            raise UsageError(f"{error}; for another wire protocol write an adapter (see --help)") from error
        except ClientError as error:
            raise UsageError(f"{error}; check the URL, or start the server") from error


async def check_same_cluster(urls: Sequence[str], token: str | None, workspace: str) -> None:
    """Raise `UsageError` unless the servers are nodes of one cluster: all must know a workspace that one has opened."""
    from ...client import Client, Refusal

    async with Client(urls[0], token=token) as first:
        opened = await first.open_workspace(workspace) if len(urls) > 1 else None
        for url in urls[1:]:
            async with Client(url, token=token) as other:
                try:
                    assert opened is not None
                    await other.workspace(opened.id)
                except Refusal as error:
                    raise UsageError(f"{url} does not know the workspace that was opened at {urls[0]}, so they are not "
                                     "nodes of one cluster; start both with the same --database") from error
