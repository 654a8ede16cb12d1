"""`cancelmark run`: sends a prompt, shows its answer, and exits with its outcome."""

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
from .connect import add_prompt, add_target, connect_target, prompt_of, read_attachments, run_client

if TYPE_CHECKING:
    from ...client import ClientError, Notice, RunComplete

EXIT = {"end_turn": 0, "error": 1, "canceled": 3}
LEFT = 130

DESCRIPTION = """\
Send a prompt and wait until it finishes. On a terminal, the answer is shown as it arrives. In a pipe, only the final
answer is printed, when it is complete. Errors go to standard error.

Ctrl-C cancels every prompt that the session has accepted so far, including this one, and waits until it finishes. A
second Ctrl-C exits at once and leaves the prompt to the server. If the connection breaks or the server restarts, the
command reconnects and keeps waiting.
"""

EPILOG = """\
exit status:
  0     the turn finished
  1     the turn failed, or its outcome is unknown
  2     the prompt was not sent: usage error, no server, or the server refused it
  3     the prompt was canceled
  130   a second Ctrl-C ended the command

examples:
  cancelmark run "hello"
  git diff | cancelmark run - > review.md
  cancelmark run --attach app.log "what went wrong?"
  cancelmark run --session talks --json "hello"
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_prompt(parser)
    parser.add_argument("--run-id", metavar="ID", help="the run id (default: a new one)")
    parser.add_argument("--json", action="store_true", help="print only the outcome, as JSON")
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    attachments = read_attachments(arguments.attach)
    prompt = prompt_of(arguments.prompt, attached=bool(attachments))
    return run_client(wait_for_run(arguments, prompt, attachments, View(quiet=arguments.json)))


async def wait_for_run(arguments: argparse.Namespace, prompt: str, attachments: list[Attachment],
                       view: "View") -> int:
    interrupts = Interrupts(view)
    try:
        with view:
            async with connect_target(arguments) as target:
                from ...client import ClientError, RunStream

                session = await target.session(arguments.session, create=True)
                assert session
                async with RunStream(target.client, target.workspace.id, session.id, prompt, run_id=arguments.run_id,
                                     attachments=attachments, if_busy=arguments.if_busy,
                                     changed=view.connection) as stream:
                    interrupts.aim(stream.cancel)
                    try:
                        async for notice in stream.events():
                            view.show(notice)
                    except ClientError as error:
                        view.say(f"{error}; the outcome of run {stream.run_id} is unknown")
                        return EXIT["error"]
                    assert stream.result
                    interrupts.over()
                    if stream.recorded:
                        view.say("the server kept only this run's outcome; the answer is in the session's messages")
                    view.end(stream.result)
                    return EXIT.get(stream.result.outcome, EXIT["error"])
    except asyncio.CancelledError:
        if not interrupts.leaving:
            raise
        view.say("exiting; the prompt stays on the server", pressed=True)
        return LEFT


class Interrupts:
    """Handles Ctrl-C: the first cancels the prompt once it is accepted, the second exits."""

    def __init__(self, view: "View") -> None:
        self.leaving = False
        self._view, self._asked = view, asyncio.Event()
        self._main = asyncio.current_task()
        self._canceling: asyncio.Task[None] | None = None
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._interrupt)

    def aim(self, cancel: Callable[[], Awaitable[None]]) -> None:
        """Sets how to cancel the prompt, now that it is accepted."""
        self._canceling = asyncio.ensure_future(self._cancel(cancel))

    def over(self) -> None:
        """The prompt has finished: ignore Ctrl-C from now on."""
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
            self._view.say("canceling; press Ctrl-C again to exit without waiting", pressed=True)
            self._asked.set()

    async def _cancel(self, cancel: Callable[[], Awaitable[None]]) -> None:
        from ...client import ClientError

        await self._asked.wait()
        try:
            await cancel()
        except ClientError as error:
            self._view.say(f"could not cancel: {error}")


class View:
    """Shows a run: on a terminal as it arrives, in a pipe when it finishes; if `quiet`, only its outcome as JSON."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._live = sys.stdout.isatty() and not quiet
        self._spinner: Any = None
        self._shown: dict[str, str] = {}  # by message id: the text already on the terminal
        self._troubled = False
        self._open = False  # the terminal's last line is not terminated yet

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
            self.say(f"{trouble}; retrying")
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
            self.say(f"the run failed: {result.error or 'the server gave no reason'}")
        elif result.outcome == "canceled":
            self.say("canceled")

    def say(self, text: str, *, pressed: bool = False) -> None:
        """Prints a line on standard error. If a key was `pressed`, the terminal has echoed it on the current line."""
        if self._spinner:
            self._spinner.stop()
        if pressed and not self._open and not self._spinner and sys.stderr.isatty():
            print(file=sys.stderr)
        self._close()
        print(f"cancelmark: {plain(text)}", file=sys.stderr, flush=True)
        if self._spinner:
            self._spinner.start()

    def _print(self, id: str, text: str) -> None:
        """Prints the new part of a message. A message that did not just grow is printed again in full."""
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
