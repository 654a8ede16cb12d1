"""`cancelmark conform acp -- COMMAND …`: an agent of the Agent Client Protocol, in its two modes."""

import argparse
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from ...files import UsageError
from .target import Target

if TYPE_CHECKING:
    from ...adapters.agents import AgentCommand

MODES = ("polite", "free")
OPTIONS = ("mode", "env", "config", "auth", "network")  # that are for agents alone
LOCAL = ("token", "token_file", "workspace", "grace", "keep_open", "adapter", "llm_port")  # that are for others


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("agents of the Agent Client Protocol")
    group.add_argument("--mode", choices=(*MODES, "both"), help="polite: one prompt at a time, by what the protocol's "
                       "text promises; free: by all guarantees (default: both, reported apart)")
    group.add_argument("--env", action="append", metavar="NAME=VALUE", help="in the agent's environment; {model_url}, "
                       "{model_root}, {home} and {work} are filled in; can be given more than once")
    group.add_argument("--config", action="append", metavar="PATH=FILE", help="write this file, filled in, to that "
                       "path in the agent's home; can be given more than once")
    group.add_argument("--auth", metavar="METHOD", help="log in by this method of the agent's")
    group.add_argument("--network", choices=("none", "host"), help="none: its own loopback alone (default, where the "
                       "system allows it); host: this machine's, with proxies that lead nowhere")


def find_agents(arguments: argparse.Namespace) -> list[Target]:
    """The agent in the modes that are asked for."""
    from cancelmark.conformance.adapter.process import NotRunning

    from ...adapters.acp import acp_adapter

    if given := [name for name in LOCAL if getattr(arguments, name)]:
        raise UsageError(f"--{given[0].replace('_', '-')} is not for agents; cancelmark conform --help has what is")
    modes = MODES if arguments.mode in (None, "both") else (arguments.mode,)
    if len(modes) > 1 and (arguments.junit or arguments.html):
        raise UsageError("--junit and --html are about one judgement: give --mode polite or --mode free too")
    how = command_of(arguments)
    targets = []
    for mode in modes:
        kind = acp_adapter(how, mode)
        options = f"acp --mode {mode} {_quoted(arguments)}".rstrip()
        targets.append(Target(f"{shlex.join(arguments.started)}, {mode} clients", kind, True, options,
                              (NotRunning,), f" -- {shlex.join(arguments.started)}", kind.make_model))
    return targets


def command_of(arguments: argparse.Namespace) -> "AgentCommand":
    from ...adapters.agents import AgentCommand

    command = list(arguments.started)
    if not command:
        raise UsageError("conform acp: say how the agent is started, after --, as in: cancelmark conform acp -- "
                         "opencode acp")
    if shutil.which(command[0]) is None:
        raise UsageError(f"conform acp: there is no program {command[0]!r:.200} on the PATH; install it, or give its "
                         "path")
    command[0] = str(Path(str(shutil.which(command[0]))).absolute())
    return AgentCommand(tuple(command), dict(_pairs("--env", arguments.env)), {
        name: _read(file) for name, file in _pairs("--config", arguments.config)}, arguments.auth or "",
        arguments.network != "host")


def _pairs(option: str, given: list[str] | None) -> list[tuple[str, str]]:
    pairs = [text.partition("=") for text in given or ()]
    for name, sign, value in pairs:
        if not name or not sign or (option == "--config" and (Path(name).is_absolute() or ".." in Path(name).parts)):
            what = "a path in the agent's home, = and a file" if option == "--config" else "a name, = and a value"
            raise UsageError(f"{option} {name}{sign}{value:.80}: give {what}")
    return [(name, value) for name, _, value in pairs]


def _read(file: str) -> str:
    try:
        return Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {file}: {getattr(error, 'strerror', error)}") from error


def _quoted(arguments: argparse.Namespace) -> str:
    given = [*(word for env in arguments.env or () for word in ("--env", env)),
             *(word for config in arguments.config or () for word in ("--config", config)),
             *(["--auth", arguments.auth] if arguments.auth else []),
             *(["--network", arguments.network] if arguments.network else [])]
    return shlex.join(given)
