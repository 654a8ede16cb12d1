"""The command line.

Exit 0: all is well; 1: a property is violated; 2: bad usage, or a limit stopped the work; 130: Ctrl-C did.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from io import TextIOWrapper
from typing import NoReturn

from cancelmark.impl.files import UsageError
from cancelmark.model.check.explore import StoppedError

from . import cancel, check, conform, diagram, diff, play, prove, queue, revisions, run, send, serve, trace, watch
from .review import command as review

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
  cancelmark diagram trace "accept A" cancel "enter A" "settle A"   one history, step by step
  cancelmark conform http://127.0.0.1:8000            which of the guarantees does that server keep?
  cancelmark serve                                    a server; then, in another terminal: cancelmark run "hello"
"""

COMMANDS = (
    review,
    check,
    prove,
    revisions,
    diagram,
    play,
    diff,
    serve,
    run,
    send,
    cancel,
    queue,
    watch,
    conform,
    trace,
)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    top = Parser("cancelmark", description=DESCRIPTION, epilog=EPILOG,
                 formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--version", action="version", version=f"cancelmark {version('cancelmark')}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show an arrow shows a question mark
    return run_command(parser().parse_args(argv))


def run_command(arguments: argparse.Namespace) -> int:
    """Runs the command that was parsed, and says in one line why it could not."""
    try:
        code = int(arguments.run(arguments))
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except UsageError as error:
        print(f"cancelmark: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader has gone, as with `| head`: not our error, and not worth a traceback
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a closed terminal
        print(f"cancelmark: {error.strerror or error}", file=sys.stderr)
        return 2
    except StoppedError as error:
        print(f"cancelmark: {error}; nothing is claimed", file=sys.stderr)
        return 130 if error.result.interrupted else 2
    except KeyboardInterrupt:
        print("cancelmark: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
