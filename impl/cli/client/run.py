"""`cancelmark run`: sends a prompt, shows its answer, and ends as it ends."""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from cancelmark.model.lifecycle import State

from ...wire import Attachment
from ..text import plain
from ..width import Help
from .connect import add_place, add_prompt, carry_out, connect_place, prompt_of, read_attachments

if TYPE_CHECKING:
    from ...client import ClientError, Notice, RunComplete

EXIT = {"end_turn": 0, "error": 1, "canceled": 3}
LEFT = 130

DESCRIPTION = """\
Send a prompt and wait for its end. On a terminal the answer is shown as it comes; in a pipe it is printed at the end,
and nothing else is. What goes wrong is told on standard error.

Ctrl-C cancels everything that the session has accepted so far, this prompt with it, and waits for its end. A second one
leaves at once: the prompt is the server's then. If the connection breaks, or the server is restarted, the command comes
back and goes on waiting.
"""

EPILOG = """\
exit code:
  0     the turn ended by itself
  1     it ended in an error, or its end could not be learned
  2     nothing was asked: bad usage, no server, or it refused
  3     it was canceled
  130   left by a second Ctrl-C

examples:
  cancelmark run "hello"
  git diff | cancelmark run - > review.md
  cancelmark run --attach app.log "what went wrong?"
  cancelmark run --session talks --json "hello"
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("run",
                                 description=DESCRIPTION, epilog=EPILOG,
                                 formatter_class=Help)
    add_prompt(parser)
    parser.add_argument("--run-id", metavar="ID", help="the run id (default: a new one)")
    parser.add_argument("--json", action="store_true", help="report how it ended as JSON, and show nothing before")
    add_place(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    attachments = read_attachments(arguments.attach)
    prompt = prompt_of(arguments.prompt, attached=bool(attachments))
    return carry_out(wait_for_run(arguments, prompt, attachments, View(quiet=arguments.json)))


async def wait_for_run(arguments: argparse.Namespace, prompt: str, attachments: list[Attachment],
                       view: "View") -> int:
    interrupts = Interrupts(view)
    try:
        with view:
            async with connect_place(arguments) as place:
                from ...client import ClientError, RunStream

                session = await place.session(arguments.session, create=True)
                assert session
                async with RunStream(place.client, place.workspace.id, session.id, prompt, run_id=arguments.run_id,
                                     attachments=attachments, if_busy=arguments.if_busy,
                                     changed=view.connection) as stream:
                    interrupts.aim(stream.cancel)
                    try:
                        async for notice in stream.events():
                            view.show(notice)
                    except ClientError as error:
                        view.say(f"{error}; how run {stream.run_id} ended is not known")
                        return EXIT["error"]
                    assert stream.result
                    interrupts.over()
                    if stream.recorded:
                        view.say("the server keeps only how this run ended; the answer is in the session's messages")
                    view.end(stream.result)
                    return EXIT.get(stream.result.outcome, EXIT["error"])
    except asyncio.CancelledError:
        if not interrupts.leaving:
            raise
        view.say("left; the prompt is the server's now", pressed=True)
        return LEFT


class Interrupts:
    """The first Ctrl-C cancels the prompt, as soon as there is one; the second leaves."""

    def __init__(self, view: "View") -> None:
        self.leaving = False
        self._view, self._asked = view, asyncio.Event()
        self._main = asyncio.current_task()
        self._canceling: asyncio.Task[None] | None = None
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._interrupt)

    def aim(self, cancel: Callable[[], Awaitable[None]]) -> None:
        """Says how to cancel the prompt, now that it is accepted."""
        self._canceling = asyncio.ensure_future(self._cancel(cancel))

    def over(self) -> None:
        """The prompt has ended: there is nothing left to cancel or to leave."""
        if self._canceling:
            self._canceling.cancel()
        self._main = None

    def _interrupt(self) -> None:
        if self._main is None:
            return
        if self._asked.is_set():
            self.leaving = True
            self._main.cancel()
        else:
            self._view.say("canceling; Ctrl-C again leaves without waiting for the end", pressed=True)
            self._asked.set()

    async def _cancel(self, cancel: Callable[[], Awaitable[None]]) -> None:
        from ...client import ClientError

        await self._asked.wait()
        try:
            await cancel()
        except ClientError as error:
            self._view.say(f"could not cancel: {error}")


class View:
    """What is shown of a run: on a terminal as it comes, in a pipe at its end, as JSON if only that is wanted."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._live = sys.stdout.isatty() and not quiet
        self._spinner: Any = None
        self._shown: dict[str, str] = {}  # what is on the terminal of each message
        self._troubled = False
        self._open = False  # the terminal's last line has no end yet

    def __enter__(self) -> "View":
        if self._live and sys.stderr.isatty():
            from rich.console import Console

            self._spinner = Console(stderr=True).status("sending")
            self._spinner.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._still()

    def connection(self, trouble: "ClientError | None") -> None:
        if trouble and not self._troubled:
            self.say(f"{trouble}; trying again")
        self._troubled = trouble is not None

    def show(self, notice: "Notice") -> None:
        from ...client import Message, Prompt

        match notice.payload:
            case Prompt(state=state) if self._spinner:
                self._spinner.update("queued" if state == State.QUEUED.value else "waiting for the answer")
            case Message(role="assistant") as message if self._live:
                self._print(message.id, message.text)

    def end(self, result: "RunComplete") -> None:
        self._still()
        if self._quiet:
            print(json.dumps({"run_id": result.run_id, "session_id": result.session_id, "outcome": result.outcome,
                              "text": result.text, "error": result.error or None,
                              "message_id": result.message_id or None}, ensure_ascii=False))
        elif self._live:
            self._print(result.message_id, result.text)
            self._close()
        elif result.text:
            print(result.text)
        if result.outcome == "error":
            self.say(f"the run failed: {result.error or 'the server does not say why'}")
        elif result.outcome == "canceled":
            self.say("canceled")

    def say(self, text: str, *, pressed: bool = False) -> None:
        """A line on standard error. If a key was pressed, the terminal has shown it at the beginning of the line."""
        if self._spinner:
            self._spinner.stop()
        if pressed and not self._open and not self._spinner and sys.stderr.isatty():
            print(file=sys.stderr)
        self._close()
        print(f"cancelmark: {plain(text)}", file=sys.stderr, flush=True)
        if self._spinner:
            self._spinner.start()

    def _print(self, id: str, text: str) -> None:
        """Shows what is new in a message. One that has changed otherwise than by growing is shown anew."""
        shown = self._shown.get(id)
        if not text or text == shown:
            return
        self._still()
        if shown is None or not text.startswith(shown):
            self._close()
            shown = ""
        sys.stdout.write(plain(text[len(shown):]))
        sys.stdout.flush()
        self._shown[id] = text
        self._open = not text.endswith("\n")

    def _close(self) -> None:
        if self._open:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._open = False

    def _still(self) -> None:
        if self._spinner:
            self._spinner.stop()
            self._spinner = None
