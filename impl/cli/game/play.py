"""`cancelmark play`: steps through the protocol interactively in the terminal."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.text import Text

from cancelmark.model.check.judging import at_rest, properties_of
from cancelmark.model.check.walk import Walk
from cancelmark.model.protocol import REFERENCE
from cancelmark.model.server import Change
from cancelmark.model.session import AnySession, Prompt
from cancelmark.model.trace import call_text, replay
from cancelmark.views.drawing.theme import PROMPT_LOOKS
from cancelmark.views.traces import content
from cancelmark.views.traces.facts import facts
from cancelmark.views.traces.text import trace_text

from ...files import UsageError
from ..itf import load, save
from ..protocols import add_protocol, errors_as_usage, protocol_named
from ..terminal import output, plain_table
from ..width import columns, fit_line
from .quiz import Question, ask, questions

DESCRIPTION = """\
Step through the protocol: choose the next action, and see the state of each prompt, the events published and the
properties violated. Give calls to start with them, or --load to continue a saved trace.

On a terminal, each action has a key. Otherwise, commands are read from standard input, one per line: a key, a call such
as `enter A`, or undo, redo, save FILE, load FILE, quiz, help, quit.
"""

EPILOG = """\
examples:
  cancelmark play
  cancelmark play --protocol r1 "accept A" cancel "accept B" "enter B" "enter A"
  cancelmark play --quiz --questions 5
  printf '%s\\n' "accept A" cancel "enter A" "save a.itf.json" | cancelmark play
"""

FOOTER = "u undo · r redo · s save · l load · z quiz · : type a call · ? help · q quit"
HELP = (
    "Press the key next to an action to take it.",
    "The grey word after an action names its actor.",
    "*           next to a state or the mark: this step changed it",
    "mark ≤ A    a cancel covers A and every prompt accepted before A",
    "stopping    the prompt's turn was asked to stop and has not finished yet",
    "events 0    terminal events of the prompt so far; at the end each prompt must have exactly one",
    "reached by  the call that applies to this prompt: a cancel, or a clear_queue",
    "`:` reads a call as it is displayed: accept A, run id",
)
KEYS = "1234567890abcdefgijkmnoptvwxy"  # for actions; the other letters are commands
COMMANDS = {"u": "undo", "r": "redo", "s": "save", "l": "load", "z": "quiz", "?": "help", "h": "help", "q": "quit",
            "\x04": "quit"}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("calls", nargs="*", metavar="CALL", help="calls to start with, such as 'accept A' cancel")
    add_protocol(parser)
    parser.add_argument("--sessions", type=int, default=1, metavar="N", help="number of sessions (default: 1)")
    parser.add_argument("--load", type=Path, metavar="FILE", help="continue a saved trace")
    parser.add_argument("--quiz", action="store_true", help="predict what happens to prompts; the model explains")
    parser.add_argument("--questions", type=int, default=10, metavar="N", help="number of questions (default: 10)")
    parser.add_argument("--seed", type=int, metavar="N", help="random seed, to get the same questions again")


def run(arguments: argparse.Namespace) -> int:
    random = Random(arguments.seed)
    with keyboard() as typed:
        if arguments.quiz:
            return Quiz(typed).run(random, arguments.questions)
        with errors_as_usage(protocol_named(arguments.protocol)):
            Game(walk_of(arguments), typed, random).run()
    return 0


def walk_of(arguments: argparse.Namespace) -> Walk:
    if not 1 <= arguments.sessions <= 4:
        raise UsageError(f"--sessions {arguments.sessions}: must be from 1 to 4")
    if arguments.load:
        if arguments.calls:
            raise UsageError("play: calls and --load are mutually exclusive")
        return Walk.along(*load(arguments.load, protocol_named(arguments.protocol)))
    protocol = protocol_named(arguments.protocol)
    try:
        return Walk.along(protocol, replay(protocol, arguments.calls, arguments.sessions))
    except ValueError as error:
        raise UsageError(str(error)) from error


# --- input

class PlayerInput:
    """The player's input: single keys on a terminal, lines otherwise."""

    def __init__(self, console: Console, key: Callable[[], str] | None) -> None:
        self.console, self.read_key = console, key

    @property
    def by_key(self) -> bool:
        return self.read_key is not None

    def key(self) -> str:
        """One key, or one line. The end of the input is Ctrl-D."""
        return self.read_key() if self.read_key else self.line("> ")

    def line(self, question: str) -> str:
        try:
            return self.console.input(question if self.by_key else "").strip()
        except EOFError:
            return "\x04"


@contextmanager
def keyboard() -> Iterator[PlayerInput]:
    """Reads single keys if standard input and output are a terminal, and lines otherwise."""
    console = output()
    try:
        import termios
        import tty
    except ImportError:  # not available on this system
        yield PlayerInput(console, None)
        return
    if not (sys.stdin.isatty() and console.is_terminal):
        yield PlayerInput(console, None)
        return
    descriptor = sys.stdin.fileno()
    usual = termios.tcgetattr(descriptor)
    waiting: list[str] = []  # keys pressed and not yet handled

    def key() -> str:
        while not waiting:
            tty.setcbreak(descriptor)
            try:
                pressed = os.read(descriptor, 64).decode(errors="replace") or "\x04"
            finally:
                termios.tcsetattr(descriptor, termios.TCSADRAIN, usual)
            waiting.extend(pressed if not pressed.startswith("\x1b") else "")  # ignore escape sequences, as of arrows
        return waiting.pop(0)

    yield PlayerInput(console, key)


# --- playing

class Game:
    """An interactive walk through the model."""

    def __init__(self, walk: Walk, typed: PlayerInput, random: Random) -> None:
        self.walk, self.typed, self.random = walk, typed, random
        self.console = typed.console
        self.said = ""  # the message of the last command

    def run(self) -> None:
        while True:
            self.show()
            typed = self.typed.key()
            command, _, rest = typed.partition(" ")
            if self.typed.by_key and typed == ":":
                typed = self.typed.line("call: ")
            elif typed in COMMANDS:
                command = COMMANDS[typed]
            if command == "quit":
                return
            self.said = ""
            try:
                self.obey(command, rest.strip(), typed)
            except UsageError as error:
                self.said = str(error)

    def obey(self, command: str, rest: str, typed: str) -> None:
        match command:
            case "undo":
                self.walk.jump(self.walk.at - 1)
            case "redo":
                self.walk.jump(self.walk.at + 1)
            case "save":
                path = Path(rest or self.typed.line("save to: "))
                save(path, self.walk.protocol, self.walk.trace)
                self.said = f"saved to {path}; to continue it: cancelmark play --load {path}"
            case "load":
                self.walk = Walk.along(*load(Path(rest or self.typed.line("load: "))))
            case "quiz":
                self.quiz()
            case "help":
                self.said = "\n".join(part for line in HELP for part in fit_line(line, columns()))
            case _:
                self.take(typed)

    def take(self, typed: str) -> None:
        """Takes the action with that key, or the call with that text."""
        if not typed:
            return
        possible = dict(zip(KEYS, self.walk.possible))
        if typed in possible:
            self.walk.take(possible[typed])
            return
        if len(typed) == 1:
            raise UsageError(f"no action has the key {typed!r}; press ? for help")
        calls = [call_text(step.call, len(self.walk.start.sessions)) for step in self.walk.trace.steps]
        try:
            trace = replay(self.walk.protocol, [*calls, typed], len(self.walk.start.sessions))
        except ValueError as error:
            raise UsageError(str(error)) from error
        self.walk = Walk.along(self.walk.protocol, trace)

    def quiz(self) -> None:
        if self.walk.protocol is not REFERENCE or len(self.walk.start.sessions) > 1:
            raise UsageError("the quiz needs the reference with one session; start it with cancelmark play --quiz")
        if not (question := ask(self.walk, self.random)):
            raise UsageError("there is nothing to ask about yet; accept a prompt first")
        _, self.said = Quiz(self.typed).put(question)

    # --- showing

    def show(self) -> None:
        if self.typed.by_key:
            self.console.clear()
        self.console.print(self.screen(), soft_wrap=not self.console.is_terminal)

    def screen(self) -> RenderableType:
        walk = self.walk
        possible, broken = walk.possible, walk.broken
        parts: list[RenderableType] = [
            Text.assemble((f"{walk.protocol.name}", "bold"), f"  step {walk.at} of {len(walk.taken)}"),
            Text(trace_text(walk.trace, columns()).rstrip()
                 if walk.at else "no steps yet"),
            Text(""),
            *(self.session(session, i) for i, session in enumerate(walk.server.sessions)),
        ]
        sentences = {p.id: p.sentence for p in properties_of(walk.protocol)}
        for id, step in broken.items():
            parts.append(Text(f"✗ step {step} violates {id}: {sentences[id]}", "bold red"))
        if at_rest(possible):
            parts.append(Text("quiescent: the server has nothing left to do by itself", "dim"))
        parts += [Text(""), self.choices(possible)]
        if self.said:
            parts.append(Text(f"\n{self.said}"))
        if self.typed.by_key:
            parts.append(Text(f"\n{FOOTER}", "dim"))
        return Group(*parts)

    def session(self, session: AnySession, index: int) -> RenderableType:
        table = plain_table()
        if len(self.walk.server.sessions) > 1:
            table.add_row(f"[bold]session {index + 1}[/]")
        for name, value in facts(session).items():
            if value:
                table.add_row(f"[dim]{name}[/]", escape(value))
        for prompt in session.prompts:
            table.add_row(f"[bold]{prompt.label}[/]{' [dim]run id[/]' if prompt.run_id else ''}",
                          self.prompt(session, prompt))
        return table

    def prompt(self, session: AnySession, prompt: Prompt) -> Text:
        text, kind = content.prompt_text(session, prompt)
        reached = "" if prompt.reach.value == "nothing" else f"  reached by {prompt.reach.value}"
        return Text.assemble((text, PROMPT_LOOKS[kind].terminal), (f"  events {prompt.ends}{reached}", "dim"))

    def choices(self, possible: list[Change]) -> RenderableType:
        table = plain_table()
        keyed = [(KEYS[i] if i < len(KEYS) else " ", change) for i, change in enumerate(possible)]
        rows = -(-len(keyed) // 3)
        for i in range(rows):
            table.add_row(*(
                Text.assemble((key, "bold cyan"), f" {call_text(change.call, len(self.walk.start.sessions))} ",
                              (change.call.action.actor.value, "dim"))
                for key, change in keyed[i::rows]))
        return table


# --- asking

class Quiz:
    """Asks the player questions, one after another."""

    def __init__(self, typed: PlayerInput) -> None:
        self.typed, self.console = typed, typed.console

    def run(self, random: Random, count: int) -> int:
        if count < 1:
            raise UsageError(f"--questions {count}: must be at least 1")
        asked = right = 0
        for number, question in zip(range(1, count + 1), questions(random)):
            self.console.print(f"[bold]Question {number} of {count}[/]\n")
            self.console.print(trace_text(question.trace), markup=False)
            answer, verdict = self.put(question)
            if answer is None:
                break
            asked, right = asked + 1, right + (answer == question.answer)
            self.console.print(verdict + "\n", markup=False)
        self.console.print(f"{right} of {asked} right")
        return 0

    def put(self, question: Question) -> tuple[str | None, str]:
        """The answer, or None if the player quits, and its explanation."""
        self.console.print(question.text, style="bold", markup=False)
        for number, choice in enumerate(question.choices, 1):
            self.console.print(f"  [bold cyan]{number}[/] {choice}")
        while True:
            typed = self.typed.key()
            if typed in ("q", "quit", "\x04"):
                return None, ""
            by_number = {str(n): choice for n, choice in enumerate(question.choices, 1)}
            answer = by_number.get(typed, typed if typed in question.choices else None)
            if answer is None and typed in {choice[0] for choice in question.choices}:
                answer = next(choice for choice in question.choices if choice[0] == typed)
            if answer is not None:
                verdict = "Right." if answer == question.answer else f"No: {question.answer}."
                return answer, f"{verdict} {question.why}"
            self.console.print(f"answer 1 to {len(question.choices)}, or q")
