"""`cancelmark conform acp -- COMMAND …`: an agent that speaks the Agent Client Protocol (ACP), in two modes."""

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
OPTIONS = ("mode", "env", "config", "auth", "network")  # only for agents
LOCAL = ("token", "token_file", "workspace", "grace", "keep_open", "adapter", "llm_port")  # not for agents


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("Agent Client Protocol (ACP) agents")
    group.add_argument("--mode", choices=(*MODES, "both"), help="polite: clients send one prompt at a time, and only "
                       "the guarantees of the ACP specification are judged; free: clients send at any time, and all "
                       "guarantees are judged (default: both, reported separately)")
    group.add_argument("--env", action="append", metavar="NAME=VALUE", help="set an environment variable of the agent; "
                       "{model_url}, {model_root}, {home} and {work} are substituted; repeatable")
    group.add_argument("--config", action="append", metavar="PATH=FILE", help="copy FILE to PATH in the agent's home "
                       "directory, with the same substitutions; repeatable")
    group.add_argument("--auth", metavar="METHOD", help="the agent's authentication method to log in with")
    group.add_argument("--network", choices=("none", "host"), help="none: only a private loopback interface (default, "
                       "if the system supports network namespaces); host: this machine's network, with dead proxy "
                       "settings")


def find_agents(arguments: argparse.Namespace) -> list[Target]:
    """The agent as one target for each requested mode."""
    from cancelmark.conformance.adapter.process import NotRunning

    from ...adapters.acp import acp_adapter

    if given := [name for name in LOCAL if getattr(arguments, name)]:
        raise UsageError(f"--{given[0].replace('_', '-')} does not apply to conform acp; see cancelmark conform --help")
    modes = MODES if arguments.mode in (None, "both") else (arguments.mode,)
    if len(modes) > 1 and (arguments.junit or arguments.html):
        raise UsageError("--junit and --html report on one mode; add --mode polite or --mode free")
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
        raise UsageError("conform acp: the agent's command is missing; give it after --, as in: cancelmark conform acp "
                         "-- opencode acp")
    if shutil.which(command[0]) is None:
        raise UsageError(f"conform acp: {command[0]!r:.200} is not on the PATH; install it, or give its path")
    command[0] = str(Path(str(shutil.which(command[0]))).absolute())
    return AgentCommand(tuple(command), dict(_pairs("--env", arguments.env)), {
        name: _read(file) for name, file in _pairs("--config", arguments.config)}, arguments.auth or "",
        arguments.network != "host")


def _pairs(option: str, given: list[str] | None) -> list[tuple[str, str]]:
    pairs = [text.partition("=") for text in given or ()]
    for name, sign, value in pairs:
        if not name or not sign or (option == "--config" and (Path(name).is_absolute() or ".." in Path(name).parts)):
            what = "PATH=FILE, with PATH relative to the agent's home" if option == "--config" else "NAME=VALUE"
            raise UsageError(f"{option} {name}{sign}{value:.80}: expected {what}")
    return [(name, value) for name, _, value in pairs]


def _read(file: str) -> str:
    try:
        return Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--config: cannot read {file}: {getattr(error, 'strerror', error)}") from error


def _quoted(arguments: argparse.Namespace) -> str:
    given = [*(word for env in arguments.env or () for word in ("--env", env)),
             *(word for config in arguments.config or () for word in ("--config", config)),
             *(["--auth", arguments.auth] if arguments.auth else []),
             *(["--network", arguments.network] if arguments.network else [])]
    return shlex.join(given)
