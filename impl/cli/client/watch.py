"""`cancelmark watch`: shows the prompts of a workspace live."""

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from cancelmark.model.calls import CALLS_BY_NAME
from cancelmark.model.lifecycle import State

from ...files import UsageError
from ..text import line, plain
from .connect import Target, add_target, connect_target, run_client

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...client import ClientError, Events, Notice
    from .board import Board

PAUSE = 0.05  # minimum seconds between two redraws
RECENT = 100  # sessions whose prompts are shown even if all are done

DESCRIPTION = """\
Watch the prompts of a workspace, from all clients, as they move from accepted through queued and active to done. Press
q or Ctrl-C to quit; this does not affect the prompts. In a pipe, each event is printed on one line, without updates of
incomplete messages. If the connection breaks or the server restarts, the command reconnects.
"""

EPILOG = """\
examples:
  cancelmark watch
  cancelmark watch | grep error
  cancelmark watch --json | jq 'select(.type == "run_complete") | .payload.payload'
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print every event as a line of JSON, as on the wire")
    add_target(parser, session=False)


def run(arguments: argparse.Namespace) -> int:
    return run_client(watch(arguments))


async def watch(arguments: argparse.Namespace) -> int:
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    async with connect_target(arguments) as target:
        from ...client import Events, Patience, Refusal
        from .board import Board

        board = Board()
        shown: View = Screen(target, board, over) if sys.stdout.isatty() and not arguments.json else \
            Lines(board, arguments.json)
        connected_again = asyncio.Event()

        def changed(trouble: "ClientError | None") -> None:
            shown.connection(trouble)
            if trouble is None:
                connected_again.set()

        events = Events(target.client, target.workspace.id, patience=Patience(total=None), changed=changed)
        async with events:
            tasks = [asyncio.ensure_future(work) for work in (
                over.wait(), _follow(events, board, shown), _catch_up(target, board, shown, connected_again))]
            try:
                with shown.open():
                    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            except Refusal as error:
                if error.status != 404:
                    raise
                raise UsageError(f"the server has closed the workspace {target.workspace.path}; run the command again "
                                 "to reopen it") from error
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
    return 0


async def _follow(events: "Events", board: "Board", view: "View") -> None:
    """Applies each event to the board and shows it."""
    async for notice in events:
        board.take(notice)
        view.show(notice)


async def _catch_up(target: Target, board: "Board", view: "View", connected_again: asyncio.Event) -> None:
    """Fills the board from listings at first and after each reconnect, since updates may have been missed."""
    from ...client import Refusal, Unreachable

    while True:
        await connected_again.wait()
        connected_again.clear()
        with suppress(Refusal, Unreachable):  # the original has no such listing; `connection` reports a lost server
            sessions = await target.client.sessions(target.workspace.id)
            board.fill(sessions, [])
            for session in [s for s in sessions[:-RECENT] if s.is_busy] + [*sessions[-RECENT:]]:
                board.fill([], await target.client.prompts(target.workspace.id, session.id))
        view.changed()


class View:
    """A way to show the board."""

    @contextmanager
    def open(self) -> Iterator[None]:
        yield

    def show(self, notice: "Notice") -> None:
        """Shows an event that is already on the board."""

    def changed(self) -> None:
        """The board was filled from listings."""

    def connection(self, trouble: "ClientError | None") -> None:
        """The connection was lost, with the reason; None: it is established."""


class Lines(View):
    """One line for each event."""

    def __init__(self, board: "Board", raw: bool) -> None:
        self._board, self._raw, self._troubled = board, raw, False

    def show(self, notice: "Notice") -> None:
        raw = {"id": notice.id, **notice.envelope}
        if words := json.dumps(raw, ensure_ascii=False) if self._raw else self.tell(notice):
            print(words, flush=True)

    def connection(self, trouble: "ClientError | None") -> None:
        if trouble and not self._troubled:
            print(f"cancelmark: {plain(str(trouble))}; retrying", file=sys.stderr, flush=True)
        self._troubled = trouble is not None

    def tell(self, notice: "Notice") -> str:
        from ...client import AgentEvent, Ask, Called, Message, Prompt, RunComplete, Session, TakenOver
        from .board import describe_ask, prompt_note

        title = self._board.title
        match notice.payload:
            case Prompt() as prompt:
                return line(f"{title(prompt.session_id)} #{prompt.seq} {prompt.state} {prompt.outcome} "
                            f"{prompt_note(prompt)}{prompt.text}")
            case TakenOver() as taken:
                return line(f"{title(taken.session_id)} {taken.node} took over from {taken.gone}")
            case Ask() as ask:
                return line(f"{title(ask.session_id)} #{ask.seq} {describe_ask(ask)}")
            case RunComplete() as end:
                told = end.error or end.text
                return line(f"{title(end.session_id)} #{end.seq} ended {end.outcome} {end.run_id} {told}")
            case Message(finish_reason=reason) as message if reason or message.role != "assistant":
                return line(f"{title(message.session_id)} #{message.seq} {message.role} {reason or ''} {message.text}")
            case Session() as session if notice.change == "created":
                return line(f"{title(session.id)} session created")
            case Called() as called:  # covers hold and resume, so session updates need no line
                seq, hold = f" #{called.seq}" if called.seq else "", " and hold" if called.held else ""
                done = CALLS_BY_NAME[called.call].done if called.call in CALLS_BY_NAME else ""
                return line(f"{title(called.session_id)}{seq} {done or called.call}"
                            f"{hold if called.call == 'stop' else ''} by client {called.client_id[:4] or 'unknown'}")
            case AgentEvent(error=error) as event if error:
                return line(f"{title(event.session_id)} error {event.run_id} {error}")
        return ""


class Screen(View):
    """A full-screen view; restores the terminal on exit."""

    def __init__(self, target: Target, board: "Board", over: asyncio.Event) -> None:
        from rich.console import Console
        from rich.live import Live

        self._target, self._board, self._over = target, board, over
        # use the terminal's current size, not one that a shell exported earlier
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self._console = Console(highlight=False, _environ=environment)
        self._news = asyncio.Event()
        self._trouble: ClientError | None = None
        self._live = Live(console=self._console, screen=True, auto_refresh=False, get_renderable=self._picture)

    def show(self, notice: "Notice") -> None:
        self._news.set()

    def changed(self) -> None:
        self._news.set()

    def connection(self, trouble: "ClientError | None") -> None:
        self._trouble = trouble
        self._news.set()

    @contextmanager
    def open(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        with keys(self._key) as (pause, resume):
            def suspended() -> None:
                self._live.stop()
                pause()
                os.kill(os.getpid(), signal.SIGSTOP)
                resume()
                self._live.start(refresh=True)

            loop.add_signal_handler(signal.SIGWINCH, self._news.set)
            loop.add_signal_handler(signal.SIGTSTP, suspended)
            with self._live:
                drawing = asyncio.ensure_future(self._draw())
                drawing.add_done_callback(lambda _: self._over.set())  # quit if drawing fails
                try:
                    yield
                    if drawing.done():
                        drawing.result()
                finally:
                    drawing.cancel()

    def _key(self, typed: bytes) -> None:
        if typed[:1] in (b"q", b"Q", b"\x03", b"\x04") or not typed:
            self._over.set()

    async def _draw(self) -> None:
        while True:
            self._news.clear()
            self._live.refresh()
            await asyncio.sleep(PAUSE)
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0 if self._board.count(State.ACTIVE.value) else None):
                    await self._news.wait()

    def _picture(self) -> "RenderableType":
        from rich.console import Group
        from rich.text import Text

        from .board import COLUMNS, draw_board

        width, height = self._console.size
        unicode = not self._console.options.ascii_only
        state = (("reconnecting" if width < 60 else f"{plain(str(self._trouble))}; retrying", "yellow")
                 if self._trouble else ("live", "green"))
        top = _ends(width, Text.assemble((" cancelmark ", "bold"), (line(self._target.workspace.path), "dim")),
                    Text.assemble(("● " if unicode else "* ", state[1]), state, " "))
        counts = ", ".join(f"{self._board.count(name)} {name}" for name in COLUMNS)
        bottom = _ends(width, Text(f" {counts}", "dim"), Text("q quits ", "dim"))
        body = draw_board(self._board, width, height - 4, unicode=unicode)
        if not self._board.cards:
            body = [Text(' no prompts yet; in another terminal: cancelmark run "hello"', "dim", no_wrap=True)]
        body += [Text("")] * (height - 4 - len(body))
        return Group(top, Text(""), *body, Text(""), bottom)


def _ends(width: int, left: Any, right: Any) -> Any:
    """A line with `left` and `right` at its two ends."""
    left.truncate(max(0, width - right.cell_len - 1), overflow="ellipsis")
    left.append(" " * (width - left.cell_len - right.cell_len))
    left.append_text(right)
    left.truncate(width)
    left.no_wrap = True
    return left


@contextmanager
def keys(pressed: Callable[[bytes], None]) -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
    """Calls `pressed` with each key, if standard input is a terminal. Yields two functions: one restores the terminal's
    settings, the other starts reading keys again."""
    if not sys.stdin.isatty():
        yield (lambda: None), (lambda: None)
        return
    import termios
    import tty

    file, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(file)

    def take() -> None:
        tty.setcbreak(file)
        loop.add_reader(file, lambda: pressed(os.read(file, 64)))

    def give_back() -> None:
        loop.remove_reader(file)
        termios.tcsetattr(file, termios.TCSADRAIN, before)

    take()
    try:
        yield give_back, take
    finally:
        give_back()
